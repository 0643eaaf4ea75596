"""A numerics workbench for attention kernels: it names the first wrong stage and tells a bug from rounding.

>>> from workbench import Case, run, diff
>>> trace = run("split_k", Case(seqlen=32, head_dim=32, block_q=16, block_k=16), faults=["reduce-double-counts-sum"])
>>> diff(trace).origin
'merge_weight'

The public names are those of the stub `__init__.pyi`.
"""

from workbench.lazy import public

#: name that was public -> where it is
_MOVED = {
    "Against": "workbench.judge.against.pair.Against",
    "Measured": "workbench.readings.reader.Measured",
    "MeasuredContract": "workbench.readings.contract.measured.MeasuredContract",
    "Runs": "workbench.judge.against.runs.Runs",
    "StageDiff": "workbench.judge.stage.StageDiff",
    "against": "workbench.judge.against.pair.against",
    "case_of": "workbench.trace.inputs.case_of",
    "compare": "workbench.explore.sweep.compare.compare",
    "diff_operation": "workbench.operations.call.diff_operation",
    "load_dump": "workbench.trace.dumped.load_dump",
    "load_inputs": "workbench.trace.inputs.load",
    "load_log": "workbench.trace.printed.load_log",
    "load_ranks": "workbench.load",
    "load_sweep": "workbench.explore.sweep.sweep.load",
    "measure_contract": "workbench.explore.read.measure_contract",
    "narrowed": "workbench.trace.narrow.narrowed",
    "random_cases": "workbench.explore.sweep.plan.random_cases",
    "save_inputs": "workbench.trace.inputs.save",
    "save_rank": "workbench.trace.ranks.save_rank",
    "table": "workbench.judge.table.table",
}

__getattr__, __dir__ = public(__name__, __file__, _MOVED, distribution="attention-workbench")
