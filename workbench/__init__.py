"""A numerics workbench for attention kernels: it names the first wrong stage and tells a bug from rounding.

>>> from workbench import Case, run, diff
>>> trace = run("split_k", Case(seqlen=32, head_dim=32, block_q=16, block_k=16), faults=["reduce-double-counts-sum"])
>>> diff(trace).origin
'merge_weight'
"""

from typing import TYPE_CHECKING, Any

from workbench.lazy import attribute

if TYPE_CHECKING:
    from workbench.case.case import Case
    from workbench.cuda.prepared import kernel
    from workbench.explore.acceptance.run import accept
    from workbench.explore.capturing.capture import capture
    from workbench.explore.laws.every import laws
    from workbench.explore.read import measure, measure_contract
    from workbench.explore.shrink.shrink import shrink
    from workbench.explore.sweep.compare import compare
    from workbench.explore.sweep.plan import random_cases
    from workbench.explore.sweep.sweep import load as load_sweep
    from workbench.explore.sweep.sweep import sweep
    from workbench.foreign.check import check
    from workbench.foreign.run import run
    from workbench.judge.against.calls import compare_runs
    from workbench.judge.against.pair import Against, against
    from workbench.judge.against.runs import Runs
    from workbench.judge.diff import Diff, diff
    from workbench.judge.stage import StageDiff
    from workbench.judge.table import table
    from workbench.operations.call import diff_operation
    from workbench.readings.contract.measured import MeasuredContract
    from workbench.readings.reader import Measured
    from workbench.refusal import Refusal, Unavailable
    from workbench.trace.dumped import load_dump
    from workbench.trace.file import load, save
    from workbench.trace.inputs import case_of
    from workbench.trace.inputs import load as load_inputs
    from workbench.trace.inputs import save as save_inputs
    from workbench.trace.narrow import narrowed
    from workbench.trace.printed import load_log
    from workbench.trace.ranks import load_ranks, save_rank
    from workbench.trace.trace import Trace

#: public name -> where it is, in data-flow order; imported when first used, so that `import workbench` is light
_HOMES = {
    "Case": "case.case.Case",
    "load_inputs": "trace.inputs.load",
    "save_inputs": "trace.inputs.save",
    "case_of": "trace.inputs.case_of",
    "run": "foreign.run.run",
    "Trace": "trace.trace.Trace",
    "load": "trace.file.load",
    "load_dump": "trace.dumped.load_dump",
    "load_log": "trace.printed.load_log",
    "save": "trace.file.save",
    "save_rank": "trace.ranks.save_rank",
    "load_ranks": "trace.ranks.load_ranks",
    "narrowed": "trace.narrow.narrowed",
    "diff": "judge.diff.diff",
    "Diff": "judge.diff.Diff",
    "StageDiff": "judge.stage.StageDiff",
    "table": "judge.table.table",
    "diff_operation": "operations.call.diff_operation",
    "against": "judge.against.pair.against",
    "Against": "judge.against.pair.Against",
    "compare_runs": "judge.against.calls.compare_runs",
    "Runs": "judge.against.runs.Runs",
    "accept": "explore.acceptance.run.accept",
    "measure": "explore.read.measure",
    "measure_contract": "explore.read.measure_contract",
    "Measured": "readings.reader.Measured",
    "MeasuredContract": "readings.contract.measured.MeasuredContract",
    "laws": "explore.laws.every.laws",
    "shrink": "explore.shrink.shrink.shrink",
    "random_cases": "explore.sweep.plan.random_cases",
    "sweep": "explore.sweep.sweep.sweep",
    "load_sweep": "explore.sweep.sweep.load",
    "compare": "explore.sweep.compare.compare",
    "check": "foreign.check.check",
    "capture": "explore.capturing.capture.capture",
    "kernel": "cuda.prepared.kernel",
    "Refusal": "refusal.Refusal",
    "Unavailable": "refusal.Unavailable",
}
__all__ = [
    "Against",
    "Case",
    "Diff",
    "Measured",
    "MeasuredContract",
    "Refusal",
    "Runs",
    "StageDiff",
    "Trace",
    "Unavailable",
    "accept",
    "against",
    "capture",
    "case_of",
    "check",
    "compare",
    "compare_runs",
    "diff",
    "diff_operation",
    "kernel",
    "laws",
    "load",
    "load_dump",
    "load_inputs",
    "load_log",
    "load_ranks",
    "load_sweep",
    "measure",
    "measure_contract",
    "narrowed",
    "random_cases",
    "run",
    "save",
    "save_inputs",
    "save_rank",
    "shrink",
    "sweep",
    "table",
]


def __getattr__(name: str) -> Any:
    return attribute(__name__, _HOMES, name)
