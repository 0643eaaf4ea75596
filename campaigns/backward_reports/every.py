"""All reports."""

import campaigns.backward_reports.layouts
import campaigns.backward_reports.tiles  # noqa: F401
from campaigns.backward_reports.record import REPORTS, Report

BY_NAME: dict[str, Report] = {one.name: one for one in REPORTS}
