"""Trace against reference: every stage judged on its own inputs, the origins named, the victims told apart.

The reference is run twice in float64: with the kernel's own dumped stages in place of its own (isolated: what should
each stage have been, given what it read?) and without them (propagated: given q, k, v?).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from workbench import reference
from workbench.budget import Budget, budgets
from workbench.comparison import Comparison, StageDiff, State, compare
from workbench.contract import Contract
from workbench.errors import round_to
from workbench.stages import ALGORITHMS, INPUTS, nearest_dumped, unseen_upstream
from workbench.trace import Trace, check, to_float64, unwritten

#: verdicts from best to worst; the worst of a kernel's stages is the kernel's
SEVERITY = ("exact", "rounding", "suspicious", "biased", "untestable", "missing", "bug")


@dataclass(frozen=True, repr=False)
class Diff:
    """The judgement of a trace, stage by stage in data-flow order."""

    trace: Trace
    stages: tuple[StageDiff, ...]  #: judged and missing ones
    not_judged: tuple[StageDiff, ...]  #: given but not judged, and not given

    @property
    def verdict(self) -> str:
        """The worst verdict of a stage; untestable where nothing was judged."""
        return max((stage.verdict for stage in self.stages), key=SEVERITY.index, default="untestable")

    @property
    def origins(self) -> tuple[str, ...]:
        """Stages that are wrong on their own inputs, in data-flow order."""
        return tuple(stage.name for stage in self.stages if stage.role == "origin")

    @property
    def origin(self) -> str | None:
        """The first wrong stage; None where there is none."""
        return next(iter(self.origins), None)

    @property
    def victims(self) -> tuple[str, ...]:
        """Stages that are right on their own inputs and wrong against q, k, v."""
        return tuple(stage.name for stage in self.stages if stage.role == "victim")

    def __getitem__(self, name: str) -> StageDiff:
        return {stage.name: stage for stage in (*self.stages, *self.not_judged)}[name]

    def __iter__(self) -> Iterator[StageDiff]:
        return iter(self.stages)

    def plot(self) -> Any:
        """The overview of all stages, a matplotlib Figure."""
        from workbench.report.plots import overview

        return overview([*self.stages], self.trace.case)

    def heatmap(self, name: str, axes: tuple[str, str] | None = None) -> Any:
        """Where the errors of a stage are, over two of its axes (letters), a matplotlib Figure."""
        from workbench.report.plots import heatmap

        return heatmap(self[name], case=self.trace.case, axes=axes)

    def __repr__(self) -> str:
        return (
            f"<Diff of {self.trace.target}: {self.verdict}, origins {list(self.origins)}, victims {list(self.victims)}>"
        )

    def _repr_html_(self) -> str:
        from workbench.report.text import html_table

        return html_table(self)


def diff(trace: Trace) -> Diff:
    """Judge every stage of `trace`.

    Raises Refusal for a trace whose inputs are not finite or whose stages are unknown or misshaped.
    """
    check(trace, trace.target)
    known = ALGORITHMS[trace.algorithm]
    unjudgeable = {name: why for name in known if (why := _unjudgeable(trace, name))}
    dumped = readable(trace)
    isolated = _expectations(trace, dumped)
    propagated = _expectations(trace, {})

    judged: list[StageDiff] = []
    others: list[StageDiff] = []
    for name, stage in known.items():
        nothing = partial(StageDiff, name, stage.axes, isolated=None, propagated=None)
        if name not in trace.stages:
            absent = name in trace.requested
            why = "the run was to dump it and did not" if absent else "not given"
            (judged if absent else others).append(nothing(verdict="missing" if absent else "not judged", reason=why))
        elif name in unjudgeable:
            others.append(nothing(verdict="not judged", reason=unjudgeable[name]))
        else:
            judged.append(_judge(trace, name, isolated, propagated, dumped))
    return Diff(trace, tuple(judged), tuple(others))


_PARTIALS = ("partial_max", "partial_sum", "partial_O")
_BY_TILE = ("row_max", "correction", "probs", "probs_cast", "row_sum", "acc")


def readable(trace: Trace) -> dict[str, np.ndarray]:
    """The dumped stages whose keys are known, so that other stages can be computed from them; as dumped."""
    return {name: stage for name, stage in trace.stages.items() if name in _PARTIALS or not _unjudgeable(trace, name)}


def _unjudgeable(trace: Trace, name: str) -> str:
    """Why a stage cannot be judged however it looks; empty where it can."""
    if name in _BY_TILE and trace.contract.block_k is None:
        return "the contract does not tell block_k, so its key tiles are unknown"
    if name in _PARTIALS and (trace.contract.block_k is None or trace.contract.splits is None):
        return "the contract does not tell block_k and splits, so the keys of a split are unknown"
    if name == "merge_weight" and trace.contract.splits is None and "partial_max" not in trace.stages:
        return "the contract does not tell splits, and partial_max was not given"
    return ""


def expected(
    trace: Trace, dumped: Mapping[str, np.ndarray], rows: slice | np.ndarray = slice(None)
) -> dict[str, np.ndarray]:
    """Every stage in float64, computed from the `dumped` stages where there are any, else from q, k, v.

    With `rows`, indices of q, at those queries alone; `dumped` then holds no others.
    """
    case, contract = trace.case, trace.contract
    q, k, v = (to_float64(trace.inputs[name]) for name in INPUTS)
    given = {name: to_float64(stage) for name, stage in dumped.items()}
    options: dict[str, Any] = {
        "cast": _cast_of(contract, "probs_dtype", "probs" in given),
        "row_sum_of_cast": contract.row_sum_of_cast,
    }
    if trace.algorithm == "split_k":
        options["partial_cast"] = _cast_of(contract, "partials_dtype", "acc" in given)
    options |= _geometry(trace)
    return reference.forward(trace.algorithm, q[:, :, rows], k, v, mask=case.mask()[rows], given=given, **options)


def _expectations(trace: Trace, dumped: dict[str, np.ndarray]) -> dict[str, tuple[np.ndarray, Budget]]:
    """Expected value and budget of every stage, computed from the `dumped` stages where there are any."""
    q, k, v = (to_float64(trace.inputs[name]) for name in INPUTS)
    computed = expected(trace, dumped)
    bounds = budgets(
        trace.algorithm,
        trace.contract,
        q,
        k,
        v,
        exact_products=trace.case.dtype != "float32",
        computed=computed,
        given={name: to_float64(stage) for name, stage in dumped.items()},
        **_geometry(trace),
    )
    return {name: (computed[name], bounds[name]) for name in computed}


def _geometry(trace: Trace) -> dict[str, Any]:
    """Scale, tiles and splits, as the reference and the budgets take them."""
    block_k = trace.contract.block_k or trace.case.seqlen_k
    return {"scale": trace.case.scale, "block_k": block_k, "splits": splits(trace)}


def splits(trace: Trace) -> int:
    """Splits of the kernel: declared, else as many as its partial results have."""
    if trace.contract.splits is not None:
        return trace.contract.splits
    known = ALGORITHMS[trace.algorithm]
    sizes = {
        stage.shape[known[name].axes.index("s")] for name, stage in trace.stages.items() if "s" in known[name].axes
    }
    return next(iter(sizes), 1)


def _cast_of(contract: Contract, field: str, from_dumped: bool) -> Any:
    """The declared rounding, where its own input was dumped; elsewhere the budget covers it."""
    dtype = getattr(contract, field)
    return (
        partial(round_to, dtype=dtype) if from_dumped and dtype != "float32" and field not in contract.assumed else None
    )


def _judge(
    trace: Trace,
    name: str,
    isolated: dict[str, tuple[np.ndarray, Budget]],
    propagated: dict[str, tuple[np.ndarray, Budget]],
    dumped: dict[str, np.ndarray],
) -> StageDiff:
    stage = ALGORITHMS[trace.algorithm][name]
    actual = trace.stages[name]
    ancestors = nearest_dumped(trace.algorithm, name, dumped)
    unseen = unseen_upstream(trace.algorithm, name, dumped)
    end_to_end = not ancestors and not set(stage.reads) <= set(INPUTS)
    from_inputs = compare(actual, *propagated[name])
    own = None if end_to_end else compare(actual, *isolated[name])
    decisive = from_inputs if own is None else own
    verdict, reason = _verdict(decisive)
    return StageDiff(
        name,
        stage.axes,
        verdict,
        isolated=own,
        propagated=from_inputs if _comparable_from_inputs(trace, name) else None,
        judged_from=ancestors if unseen else (),
        upstream=unseen,
        reason=reason,
    )


def _comparable_from_inputs(trace: Trace, name: str) -> bool:
    """Whether q, k and v determine the stage: per-split values need the keys of each split."""
    return trace.contract.splits is not None or "s" not in ALGORITHMS[trace.algorithm][name].axes


def _verdict(comparison: Comparison) -> tuple[str, str]:
    """The verdict of a stage, and why where it is not the numbers that decide."""
    size = comparison.actual.size
    if unwritten(comparison.actual).any():
        return "missing", f"{int(unwritten(comparison.actual).sum())} of {size} slots were never written"
    if comparison.outside.any():
        return "bug", ""
    if not comparison.judged.any():
        poisoned = int((comparison.state == State.POISONED).sum())
        return (
            "untestable",
            f"no element could be judged: {poisoned} poisoned, {size - poisoned} with a budget that says nothing",
        )
    return ("exact" if comparison.exact else "rounding"), ""
