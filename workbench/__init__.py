"""A numerics workbench for attention kernels: it names the first wrong stage and tells a bug from rounding.

>>> from workbench import Case, run, diff
>>> trace = run("split_k", Case(seqlen=32, head_dim=32, block_q=32, block_k=32), faults=["reduce-double-counts-sum"])
>>> diff(trace).origin
'merge_weight'
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.case.case import Case
    from workbench.cuda.check import check
    from workbench.foreign.run import run
    from workbench.judge.against.pair import Against, against
    from workbench.judge.diff import Diff, diff
    from workbench.judge.stage import StageDiff
    from workbench.judge.table import table
    from workbench.refusal import Refusal, Unavailable
    from workbench.trace.file import load, save
    from workbench.trace.inputs import case_of
    from workbench.trace.inputs import load as load_inputs
    from workbench.trace.inputs import save as save_inputs
    from workbench.trace.narrow import narrowed
    from workbench.trace.printed import load_log
    from workbench.trace.trace import Trace

#: public name -> where it is, in data-flow order; imported when first used, so that `import workbench` is light
_HOMES = {
    "Case": "case.Case",
    "load_inputs": "input_files.load",
    "save_inputs": "input_files.save",
    "case_of": "input_files.case_of",
    "run": "target.run",
    "Trace": "trace.Trace",
    "load": "trace_file.load",
    "load_log": "log.load_log",
    "save": "trace_file.save",
    "narrowed": "narrow.narrowed",
    "diff": "judge.diff",
    "Diff": "judge.Diff",
    "StageDiff": "stage_diff.StageDiff",
    "table": "rows.table",
    "against": "pair.against",
    "Against": "pair.Against",
    "check": "cuda.check.check",
    "Refusal": "refusal.Refusal",
    "Unavailable": "refusal.Unavailable",
}
__all__ = [
    "Against",
    "Case",
    "Diff",
    "Refusal",
    "StageDiff",
    "Trace",
    "Unavailable",
    "against",
    "case_of",
    "check",
    "diff",
    "load",
    "load_inputs",
    "load_log",
    "narrowed",
    "run",
    "save",
    "save_inputs",
    "table",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'workbench' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].rpartition(".")
    value = getattr(importlib.import_module(f"workbench.{module}"), attribute)
    globals()[name] = value
    return value
