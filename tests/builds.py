"""The builds of random cases: one of each dtype, since each is seconds of compiling for every kernel function."""

from collections.abc import Mapping
from typing import Any

import pytest

from workbench.explore import ranges
from workbench.explore.draw import Among
from workbench.explore.ranges import BUILDS

FEW_BUILDS = BUILDS[0], BUILDS[1], BUILDS[4]
assert {build.dtype for build in FEW_BUILDS} == {build.dtype for build in BUILDS}
#: of a random case of a kernel: what leaves one build of it
ONE_BUILD: Mapping[str, Any] = {"dtype": FEW_BUILDS[0].dtype}


def draw_few_builds(patch: pytest.MonkeyPatch) -> None:
    """Have random cases drawn on FEW_BUILDS, all in windows, which may be as wide as the keys, and without softcap:
    either is another build of each.
    """
    patch.setattr(ranges, "BUILDS", FEW_BUILDS)
    patch.setattr(ranges, "RANGES", {**ranges.RANGES, "softcap": Among((None,)), "windowed": Among((True,))})
