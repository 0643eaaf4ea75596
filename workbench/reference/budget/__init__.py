"""The largest rounding error that a correct kernel can make, for every element of every stage.

A stage is judged from the values that it read (the kernel's own where they were dumped, the reference's elsewhere) and
from bounds on their errors (0 where they were dumped). With every stage dumped the bounds are those of each stage alone
(isolated); with none they run from q, k, v to the end (propagated); in between they compose over the stages that nobody
saw.

Notation of Higham, Accuracy and Stability of Numerical Algorithms (2002), chapters 2 to 4: u = 2^-24 is float32's unit
roundoff; g(n) = n u / (1 - n u) bounds the relative error of n rounded operations, sums in any order.
"""

from collections.abc import Collection
from functools import cache

import numpy as np
from array_api_compat import array_namespace

from workbench.case.stages import nearest_dumped, unseen_upstream
from workbench.reference.budget.ends import end_budgets
from workbench.reference.budget.error import EXACT, Error, statistical
from workbench.reference.budget.losses import Losses, alone, losses_of, without
from workbench.reference.budget.merge import (
    ErrorOf,
    last_tile,
    lse_budget,
    merge_max_error,
    merge_sum_error,
    merge_weight_error,
    numerator_error,
    out_budget,
    partial_error,
)
from workbench.reference.budget.problem import Budget, Problem
from workbench.reference.budget.scores import magnitudes, qk_error, qk_size, scores_error, scores_size
from workbench.reference.budget.tiles import tile_errors

__all__ = ["Budget", "Losses", "Problem", "alone", "budgets", "losses_of", "without"]

_STATES = {"partial_max": "row_max", "partial_sum": "row_sum", "partial_O": "acc"}


@np.errstate(all="ignore")
def budgets(p: Problem, names: Collection[str]) -> dict[str, Budget]:
    """The budget of each stage of `names`."""
    direct = {name for name in names if name in ("out", "lse") and straight_from_scores(p, name)}
    needed = _needed(p, [name for name in names if name not in direct])
    found: dict[str, tuple[Error, np.ndarray | float | None]] = {}
    budget: dict[str, Budget] = {}

    def error(name: str) -> Error:
        return EXACT if name in p.given else found[name][0]

    size = cache(lambda: magnitudes(p))  # a large product, which few stages need
    if "qk" not in p.given or "qk" in names:
        found["qk"] = qk_error(p, size()), qk_size(p, size())
    if "scores" not in p.given or "scores" in names:
        found["scores"] = scores_error(p, error("qk"), size), scores_size(p, size())
    if direct:
        ends = end_budgets(p, error("scores"))
        budget |= {name: ends[name] for name in direct}
    found |= tile_errors(p, error("scores"), needed)
    if p.algorithm == "split_k":
        found |= _merge_errors(p, needed, error)
    for name in names:
        if name in budget or name in ("out", "lse"):
            continue
        known, of = found[name]
        budget[name] = _budget(p, name, known, of)
    for name in {"out", "lse"} & (set(names) - direct):
        budget[name] = _last(p, name, error)
    return budget


def straight_from_scores(p: Problem, name: str) -> bool:
    """Whether out or lse is judged from scores in one step: nothing between was dumped, and no declared cast of probs
    would make the expectation more precise stage by stage.
    """
    if set(nearest_dumped(p.algorithm, name, p.given)) - {"qk", "scores"}:
        return False
    return not p.cast_aware or (name == "lse" and p.contract.row_sum_of_cast is False)


def _needed(p: Problem, names: Collection[str]) -> set[str]:
    """`names`, and what lies between them and what was dumped."""
    return {*names, *(stage for name in names for stage in unseen_upstream(p.algorithm, name, p.given))}


def _merge_errors(p: Problem, needed: set[str], error: ErrorOf) -> dict[str, tuple[Error, np.ndarray | float | None]]:
    found: dict[str, tuple[Error, np.ndarray | float | None]] = {}

    def of(name: str) -> Error:
        return found[name][0] if name in found and name not in p.given else error(name)

    for name, state in _STATES.items():
        if name in needed:
            found[name] = partial_error(p, name, error(state)), None
    if "merge_max" in needed:
        found["merge_max"] = merge_max_error(p, of("partial_max")), None
    if "merge_weight" in needed:
        found["merge_weight"] = merge_weight_error(p, of("partial_max"), of("merge_max"))
    if "merge_sum" in needed:
        found["merge_sum"] = merge_sum_error(p, of("partial_max"), of("merge_max"), of("partial_sum"))
    return found


def _last(p: Problem, name: str, error: ErrorOf) -> Budget:
    """The budget of out or lse from the stages before it."""
    if p.algorithm == "flash":
        last = p.tiling.last
        row_sum, e_sum = p.seen["row_sum"][..., last], last_tile(p, error("row_sum"), 0)
        if name == "out":
            return out_budget(p, last_tile(p, error("acc"), 1), row_sum, e_sum)
        return lse_budget(p, p.seen["row_max"][..., last], last_tile(p, error("row_max"), 0), row_sum, e_sum)
    row_sum, e_sum = p.seen["merge_sum"], error("merge_sum")
    if name == "out":
        return out_budget(p, numerator_error(p, error("merge_weight"), error("partial_O")), row_sum, e_sum)
    return lse_budget(p, p.seen["merge_max"], error("merge_max"), row_sum, e_sum)


def _budget(p: Problem, name: str, known: Error, size: np.ndarray | float | None) -> Budget:
    value = p.computed[name]
    xp = array_namespace(value)
    worst = xp.full_like(value, known.worst) if isinstance(known.worst, float) else known.worst
    known = Error(worst, known.random, known.common)
    likely = statistical(known, p.elements[name]) if p.statistics else worst
    bound = xp.broadcast_to(xp.asarray(likely), worst.shape) if isinstance(likely, float) else likely
    return Budget(worst, bound, np.inf if size is None else size)
