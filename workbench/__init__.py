"""A numerics workbench for attention kernels: it names the first wrong stage and tells a bug from rounding.

>>> from workbench import Case, run, diff
>>> trace = run("split_k", Case(seqlen=32, head_dim=32, block_q=32, block_k=32), faults=["reduce-double-counts-sum"])
>>> diff(trace).origin
'merge_weight'
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.case import Case
    from workbench.judge import Diff, diff
    from workbench.log import load_log
    from workbench.pair import Against, against
    from workbench.refusal import Refusal, Unavailable
    from workbench.stage_diff import StageDiff
    from workbench.target import run
    from workbench.trace import Trace, load, save

#: public name -> module, in data-flow order; imported when first used, so that `import workbench` is light
_HOMES = {
    "Case": "case",
    "run": "target",
    "Trace": "trace",
    "load": "trace",
    "load_log": "log",
    "save": "trace",
    "diff": "judge",
    "Diff": "judge",
    "StageDiff": "stage_diff",
    "against": "pair",
    "Against": "pair",
    "Refusal": "refusal",
    "Unavailable": "refusal",
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
    "diff",
    "load",
    "load_log",
    "run",
    "save",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'workbench' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"workbench.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
