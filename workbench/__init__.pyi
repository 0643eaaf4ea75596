"""The public names, which `workbench/__init__.py` takes from here."""

from workbench.case.case import Case as Case
from workbench.cuda.prepared import kernel as kernel
from workbench.explore.acceptance.run import accept as accept
from workbench.explore.capturing.capture import capture as capture
from workbench.explore.explain import explain as explain
from workbench.explore.laws.every import laws as laws
from workbench.explore.read import measure as measure
from workbench.explore.shrink.shrink import shrink as shrink
from workbench.explore.sweep.sweep import sweep as sweep
from workbench.foreign.check import check as check
from workbench.foreign.run import run as run
from workbench.judge.against.calls import compare_runs as compare_runs
from workbench.judge.diff import Diff as Diff
from workbench.operations.diff import diff as diff
from workbench.reference.graph.recording import stage as stage
from workbench.refusal import Refusal as Refusal
from workbench.refusal import Unavailable as Unavailable
from workbench.trace.file import save as save
from workbench.trace.load import load as load
from workbench.trace.trace import Trace as Trace

__version__: str
