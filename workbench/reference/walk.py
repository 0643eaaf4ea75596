"""The walk: a table of stages computed, bounded, or computed as a float32 kernel would, tile by tile.

All of it takes NumPy arrays, or tensors of torch on any device.

Special values, the same in every stage: a NaN that is read comes out as NaN, before any other rule; then the rule that
the step names; else what IEEE arithmetic gives (inf - inf and 0 * inf are NaN). Nothing warns.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from array_api_compat import device

from workbench.floats import array_namespace
from workbench.reference.bound import EXACT, Bound, Budget
from workbench.reference.context import Context
from workbench.reference.dataflow import upstream, with_upstream
from workbench.reference.from_scores import Softmax
from workbench.reference.mode import VALUE, Mode
from workbench.reference.problem import Problem
from workbench.reference.stage import Bounded, Table, reads
from workbench.reference.steps.cast import Cast


@np.errstate(all="ignore")
def values(p: Problem, names: Collection[str] | None = None, mode: Mode = VALUE) -> dict[str, np.ndarray]:
    """The stages `names`, all where there are none, in data-flow order, from the given ones and from the inputs; and
    the parameters that they are made of.

    A given stage is read in place of the computed one by every later stage and by the next tile's state. What is
    returned is still computed: with a kernel's whole trace as given, each stage is what the kernel should have made of
    its own inputs; with nothing given, of q, k and v. `mode`: the evaluation mode, such as float32 as a kernel might.
    """
    at = Context(p, {}, mode)
    dumped = {name for name, stage in p.table.items() if stage.dumped}
    wanted = dumped if names is None else {*names}
    needed = dumped if names is None else with_upstream(p.table, wanted, p.given)
    needed = needed & dumped
    for name in at.looped & needed:
        at.computed[name] = _empty(p, name)
    for name in at.visits(needed):
        made = at.make(p.table[name].step)
        if at.tile is None:
            at.computed[name] = made
        else:
            at.computed[name][at.place()] = made
    for name in wanted - needed:  # parameters
        at.whole(name)
    return {name: at.computed[name] for name in p.table if name in at.computed}


@np.errstate(all="ignore")
def magnitudes(p: Problem, computed: Mapping[str, np.ndarray], names: Collection[str]) -> dict[str, np.ndarray]:
    """The sums of the sizes of the terms of the stages `names`, which are sums, arrays of their shapes."""
    at = Context(p, dict(computed))
    found = {name: np.empty_like(computed[name]) for name in names}
    for name in at.visits(names):
        found[name][at.place()] = p.table[name].step.magnitude(at)  # type: ignore[attr-defined]
    return found


@np.errstate(all="ignore")
def budgets(p: Problem, computed: Mapping[str, np.ndarray], names: Collection[str]) -> dict[str, Budget]:
    """The largest rounding error that a correct kernel can make, for every element of each stage of `names`.

    A stage is judged from the values that it read (the kernel's own where they were dumped, the `computed` ones
    elsewhere) and from bounds on their errors (0 where they were dumped). With every stage dumped the bounds are those
    of each stage alone (isolated); with none they run from q, k, v to the end (propagated); in between they compose
    over the stages that nobody saw.
    """
    fused = {name for name in names if _may_fuse(p, name)}
    table = {
        name: replace(stage, step=stage.fused) if name in fused and stage.fused else stage
        for name, stage in p.table.items()
    }
    at = Context(replace(p, table=table), dict(computed))
    wanted = with_upstream(table, names, p.given, near=True)
    wanted = {name for name in wanted if table[name].dumped}
    for name in at.visits(wanted):
        made = at.bounded(table[name].step)
        if at.tile is None:
            at.bounds[name] = made
            continue
        bound, given = made.bound, name in p.given
        if name not in at.bounds:
            at.bounds[name] = _room(computed[name], made, p.statistics, given)
        if p.statistics and given and bound is not EXACT:
            bound = Bound(bound.worst, 0.0, at.likely(bound))
        for array, value in zip((*at.bounds[name].bound, at.bounds[name].size), (*bound, made.size), strict=True):
            if not isinstance(array, float):
                array[at.place()] = value
    return {name: _budget(at, name) for name in names}


@np.errstate(all="ignore")
def least(p: Problem, computed: Mapping[str, np.ndarray], names: Collection[str]) -> dict[str, np.ndarray]:
    """Lower bounds of the worst cases of those of `names` of which one is known, far cheaper than `budgets`."""
    at, found = Context(p, dict(computed)), {}
    for name in names:
        step = p.table[name].fused
        if isinstance(step, Softmax) and _may_fuse(p, name):
            at.name = name
            found[name] = step.least(at)
    return {name: x for name, x in found.items() if bool(array_namespace(x).all(array_namespace(x).isfinite(x)))}


@np.errstate(all="ignore")
def intervals(p: Problem, names: Collection[str]) -> dict[str, Any]:
    """What a correct kernel may have as each of the stages `names`, decoded rows and codes: `steps.codes.Interval`."""
    at = Context(p, values(p, names))
    return {name: at.interval(name) for name in names}


def _room(value: np.ndarray, made: Bounded, statistics: bool, given: bool) -> Bounded:
    """Room for the bounds of all tiles of a stage; of a given one nobody reads more than the worst case and the
    statistical bound.
    """
    xp = array_namespace(value)
    kept = (True, statistics and not given, statistics)
    bound = Bound(*(xp.empty_like(value) if wanted else 0.0 for wanted in kept))
    return Bounded(bound, np.inf if isinstance(made.size, float) else xp.empty_like(value))


def _may_fuse(p: Problem, name: str) -> bool:
    """Whether a stage is bounded in one step from further up: nothing between was dumped, and no predicted cast of
    probs would make the expectation more precise stage by stage.
    """
    fused = p.table[name].fused
    if fused is None:
        return False
    skipped = upstream(p.table, name, reads(fused))
    if skipped & {*p.given}:
        return False
    used = {name, *skipped}
    casts = any(isinstance(p.table[x].step, Cast) for x in used | _near(p.table, used))
    return not (casts and p.cast_aware)


def _near(table: Table, names: Collection[str]) -> set[str]:
    return {ref for name in names for ref in reads(table[name].step, near=True) if ref in table}


def _budget(at: Context, name: str) -> Budget:
    at.name, value, (bound, size) = name, at.computed[name], at.bounds[name]
    xp = array_namespace(value)
    worst = xp.full_like(value, bound.worst) if isinstance(bound.worst, float) else bound.worst
    likely = worst
    if at.statistics:
        made_by_tiles = name in at.p.given and name in at.looped
        likely = bound.common if made_by_tiles else at.likely(Bound(worst, *bound[1:]))
    return Budget(
        worst, xp.broadcast_to(xp.asarray(likely), worst.shape) if isinstance(likely, float) else likely, size
    )


def _empty(p: Problem, name: str) -> np.ndarray:
    """Room for a stage that is computed tile by tile; of those of attention only sums of values have the axis d."""
    x = p.inputs["q"] if "q" in p.inputs else next(iter(p.inputs.values()))  # masks are among those of attention
    dims = tuple(p.size_of(axis) for axis in p.table[name].axes)
    return array_namespace(x).empty(dims, dtype=x.dtype, device=device(x))
