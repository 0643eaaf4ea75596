"""Two runs of one problem held against each other: what each made of its inputs, and where they part.

A difference of a stage has two sources: what its inputs differ by already, and what the two kernels made of them.
Float64 tells them apart: with e what a stage should be given what its kernel dumped before it, own = (a - e_a) -
(b - e_b) is the part of a - b that arises here, and e_a - e_b the one that its inputs carry. Two correct kernels keep
|own| within the sum of both budgets, however far apart their inputs are and whatever their contracts promise, so that
more is a bug of one of them.

Both are judged from the stages that both have and that mean the same (`shared`), as traces of these alone would be: a
fault in a stage that one kernel has alone arises in the next one that they share.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from workbench.case.stages import INPUTS
from workbench.expectation.elements import Comparison
from workbench.expectation.observed import Observed
from workbench.floats import to_float64
from workbench.judge.against.alike import ORDER, check_same_problem, shared
from workbench.judge.against.stage import StageAgainst, side, stage_against
from workbench.judge.blocks import judged_at
from workbench.judge.diff import Diff, comparisons
from workbench.reference.dataflow import nearest_dumped
from workbench.shown import shown_by


@dataclass(frozen=True, repr=False)
class Against:
    """Two judged runs of one problem, A and B, stage by stage in data-flow order."""

    a: Diff
    b: Diff
    stages: tuple[StageAgainst, ...]  #: that both have and that are comparable
    apart: Mapping[str, str]  #: stage -> why it, or some of its tiles, are not comparable
    moved: Mapping[str, float]  #: of q, k and v, those that the two read differently, and by how much at most

    @property
    def parts_at(self) -> str | None:
        """The first stage where they diverge by more than both budgets; None where there is none."""
        here, carried = (self._first(kind) for kind in ("diverges", "carried"))
        return here or carried

    @property
    def differs_at(self) -> str | None:
        """The first stage that is not the same bit for bit; None where there is none."""
        return next((stage.name for stage in self.stages if stage.differing), None)

    @property
    def verdict(self) -> str:
        """diverges; untestable where nothing was judged in both; identical where all bits are; else rounding."""
        if self.parts_at is not None:
            return "diverges"
        if not any(stage.judged for stage in self.stages):
            return "untestable"
        return "rounding" if self.differs_at else "identical"

    def _first(self, verdict: str) -> str | None:
        return next((stage.name for stage in self.stages if stage.verdict == verdict), None)

    def __getitem__(self, name: str) -> StageAgainst:
        return {stage.name: stage for stage in self.stages}[name]

    def __iter__(self) -> Iterator[StageAgainst]:
        return iter(self.stages)

    def __bool__(self) -> bool:
        raise TypeError("the truth value of an Against is ambiguous; use its verdict: pair.verdict == 'diverges'")

    def __repr__(self) -> str:
        where = f" at {self.parts_at}" if self.parts_at else ""
        return f"<Against of {self.a.trace.target} and {self.b.trace.target}: {self.verdict}{where}>"

    def as_dict(self) -> dict[str, Any]:
        """The document of `workbench diff --against --json`, of plain Python values."""
        return shown_by("against.document", self)

    def save_html(self, path: str | Path) -> None:
        """Write the page of `workbench diff --against --html`. Refusal where nothing can be written there."""
        shown_by("page.against.save", path, self)

    def __str__(self) -> str:
        return shown_by("against.in_short", self)

    def _repr_html_(self) -> str:
        return shown_by("against.html_table", self)


def against(a: Diff, b: Diff, *, device: str = "auto") -> Against:
    """Two judged runs of one problem held against each other.

    `device` as of `diff`. Raises Refusal where they are not of one problem: shapes, mask, scale and inputs must agree;
    inputs of different dtypes may differ by their rounding, and a kernel on codes reads what it decodes.
    """
    check_same_problem(a.run, b.run)
    found = shared(a.run, b.run)
    # a kernel on codes beside one on floats: its attention, on what it decoded
    mixed = a.trace.algorithm != b.trace.algorithm
    one, other = (judged.run.dequantised if mixed else judged.run for judged in (a, b))
    sparse = {*one.trace.sparse, *other.trace.sparse}
    in_part = [name for name, tiles in found.tiles.items() if tiles is not None or name in sparse]
    compared = [judged_at(run, device, partial(_comparisons, run, found.tiles, in_part)) for run in (one, other)]
    stages = []
    for name, tiles in found.tiles.items():
        axes, keep = one.axes(name), _keep(name, tiles, one)
        here, from_inputs = (
            (side(one, name, of_a, axes, keep), side(other, name, of_b, axes, keep))
            for of_a, of_b in zip(compared[0][name], compared[1][name], strict=True)
        )
        stages.append(
            stage_against(name, axes, tiles, keep, _given(name, found.tiles, in_part, (one, other)), here, from_inputs)
        )
    return Against(a, b, tuple(stages), found.apart, _moved(one, other))


def _comparisons(
    run: Observed, tiles: Mapping[str, np.ndarray | None], in_part: Sequence[str], device: str
) -> dict[str, tuple[Comparison, Comparison]]:
    """The shared stages of a run against float64, as of one that has no others: from the stages before, and from
    q, k and v; where there is only one of the two, it twice.

    What is shared `in_part` only is read by stages of the same tiles alone: whatever comes later reads the other tiles
    too, in which a fault would be taken for an input.
    """
    whole = [name for name in tiles if name not in in_part]
    found = comparisons(run.only(whole), whole, device)
    if in_part:
        found |= comparisons(run.only([*whole, *in_part]), in_part, device)
    pairs = {}
    for name, (isolated, propagated) in found.items():
        here, from_inputs = isolated or propagated, propagated or isolated
        assert here is not None and from_inputs is not None
        pairs[name] = here, from_inputs
    return pairs


def _keep(name: str, tiles: np.ndarray | None, run: Observed) -> dict[str, np.ndarray]:
    """The axis of tiles, or of keys, of a stage that is shared in some tiles -> which indices of it are."""
    if tiles is None:
        return {}
    if "t" in run.axes(name):
        return {"t": tiles}
    assert run.contract.block_k is not None
    return {"k": np.repeat(tiles, run.contract.block_k)[: run.case.seqlen_k]}


def _given(name: str, names: Iterable[str], in_part: Sequence[str], pair: Sequence[Observed]) -> list[str]:
    """The nearest shared stages from which a stage is judged in either trace."""
    nearest: set[str] = set()
    for run in pair:
        read = [stage for stage in names if stage not in run.trace.sparse and (name in in_part or stage not in in_part)]
        nearest |= {*nearest_dumped(run.table, name, read)}
    return [stage for stage in ORDER if stage in nearest]


def _moved(a: Observed, b: Observed) -> dict[str, float]:
    both = [x for x in INPUTS if x in a.trace.inputs and x in b.trace.inputs]
    apart = {x: abs(to_float64(a.trace.inputs[x]) - to_float64(b.trace.inputs[x])) for x in both}
    # a code may be decoded to NaN or an infinity
    return {x: float(most) for x, gap in apart.items() if (most := gap[np.isfinite(gap)].max(initial=0)) > 0}
