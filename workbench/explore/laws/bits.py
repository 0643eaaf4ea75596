"""Laws that hold bit for bit in any order of sums: what a power of two or a sign does, and runs that repeat.

Rounding to nearest commutes with them, and so does rounding toward zero, as long as every number is in the normal
range of its dtype. Where that is not sure (sums that are or may be in float16, weights so small that their products
with V are subnormal), and of codes, the same is asked within the budgets: of codes whose decoded rows are normal
numbers, since these are what the budgets are about. Of codes with zero points another sign is put in as codes
(`codes.opposite`), since a quantiser treats the two ends of what shares a scale differently.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from workbench.case.case import Case
from workbench.case.memory import POISONS
from workbench.explore.laws.codes import NO_CODES, format_of, in_another_order, opposite
from workbench.explore.laws.compare import Change, budgets, first, results, same_bits
from workbench.explore.laws.law import Break, Verdict
from workbench.explore.laws.run import Rows, Run
from workbench.explore.laws.subject import Subject, cast, wide
from workbench.floats import FLOATS, smallest_normal

#: least product of a weight and a value of which all sums are normal: exact, it has 48 bits, all of them above
#: float32's smallest normal number, 2^-126; and whatever cancels has the last of them, at least
SMALLEST = 2.0 ** (48 - 126)


def v_times_power_of_two(s: Subject) -> Verdict:
    """Doubling V doubles out and does not change lse.

    Where v is a part of k, q is halved. Preconditions of bits: as of this file; V holds its doubles.
    """
    for factor in (2.0, 0.5):
        if isinstance(run := _times(s, _of_v(s, factor)), Run):
            return _moved(s, run, factor)
    return f"neither 2 V nor V / 2 is exact in {s.case.dtype}"


def v_negated(s: Subject) -> Verdict:
    """Negating V negates out and does not change lse.

    Where v is a part of k, q changes its sign too. Preconditions of bits: as of this file; rounding toward plus or
    minus infinity is not of IEEE arithmetic in kernels.
    """
    run = _times(s, _of_v(s, -1.0))
    return _moved(s, run, -1.0) if isinstance(run, Run) else run


def q_and_k_times_power_of_two(s: Subject) -> Verdict:
    """Multiplying Q by -4 and K by -1/4 changes neither out nor lse.

    Where v is a part of k, out is -1/4 of what it was. Preconditions of bits: as of this file; both are exact.
    """
    run = _times(s, {"q": -4.0, "k": -0.25})
    return _moved(s, run, -0.25 if s.case.shared_kv else 1.0) if isinstance(run, Run) else run


def scale_times_power_of_two(s: Subject) -> Verdict:
    """Multiplying the scale by 4 and Q by 1/4 changes neither out nor lse.

    4, so that the square root of the scale, by which some multiply q and k, is exact too. Preconditions of bits: as of
    this file; q / 4 is exact.
    """
    run = _times(s, {"q": 0.25}, s.case.but(scale=s.case.scale * 4))
    return _moved(s, run, 1.0) if isinstance(run, Run) else run


def columns_of_v_permuted(s: Subject) -> Verdict:
    """Permuting the columns of V permutes the columns of out.

    Where v is a part of k, the dims of q go with them; blocks of codes that have scales stay together. Preconditions of
    bits: as of this file, and columns that are computed alike: of kernels of ours, and where it is claimed. Libraries
    of matrix products add up some columns in another order than others, as do products of q and k whose dims have
    another order.
    """
    columns = in_another_order(s, range(s.case.head_dim_v))
    if s.case.shared_kv:
        dims = [*columns, *range(s.case.head_dim_v, s.case.head_dim)]
        run = s.run(q=s.inputs["q"][..., dims], k=s.inputs["k"][..., dims])
    else:
        run = s.run(v=s.inputs["v"][..., columns])
    rows, back = Rows.all(s.case), np.argsort(columns)
    turned = _columns(run, back)
    if (s.ours or s.claimed) and not s.quantises and not s.case.shared_kv:
        return results((s.first, rows), (turned, rows))
    # of a part of the columns no budget can be found in the turned run, since they are in another order
    changes: dict[str, Change] = {"out": lambda x: type(x)(x.value[..., columns], x.off[..., columns])}
    return budgets((s.first, rows), (run, rows), changes)


def pages_in_another_order(s: Subject) -> Verdict:
    """Moving the pages of the same keys changes no bit.

    Preconditions: a paged cache, whose places are drawn from the seed; what stands in unused ones changes with them.
    """
    if s.case.page_size is None:
        return "keys are not in pages"
    rows = Rows.all(s.case)
    # the same poison: one is chosen by the seed
    return results((s.first, rows), (s.run(s.case.but(seed=s.case.seed + len(POISONS))), rows))


def runs_repeat(s: Subject) -> Verdict:
    """The same inputs give the same bits again, even after a call with other inputs of the same shapes.

    Preconditions: none; atomic additions break it, as they break reproducibility.
    """
    again = s.run()
    others = {name: -s.inputs[name][..., ::-1, :] for name in "qkv"}
    s.on(s.case, s.inputs | others)
    last = s.run()
    rows = Rows.all(s.case)
    return first(
        same_bits((s.first, rows), (again, rows), "on the same inputs again"),
        same_bits((s.first, rows), (last, rows), "on the same inputs after others"),
    )


def inputs_are_kept(s: Subject) -> Verdict:
    """A call does not change its inputs.

    Preconditions: a function, which runs in this process. Kernels of ours have inputs that are not written.
    """
    if s.behind is None:
        return "only for functions that run in this process"
    changed: list[str] = []

    def watching(function: object, *arrays: object, **options: object) -> object:
        given = dict(zip("qkv", arrays, strict=False)) | options
        before = {name: array.copy() for name, x in given.items() if (array := _seen(x)) is not None}
        made = function(*arrays, **options)  # type: ignore[operator]
        changed.extend(name for name, x in before.items() if x.tobytes() != _seen(given[name]).tobytes())
        return made

    s.behind(watching)(s.case, s.inputs)
    if changed:
        return Break("", {}, np.nan, np.nan, 0.0, why=f"the call changed {', '.join(changed)} in place")
    return None


def _seen(x: Any) -> Any:
    """An array of numbers in NumPy; None of what is none."""
    from workbench.arrays import as_numpy

    if not hasattr(x, "dtype"):
        return None
    return as_numpy(x, "an input", (*FLOATS, *map(np.dtype, ("bool", "int32", "int64", "uint8"))))


def _of_v(s: Subject, factor: float) -> dict[str, float]:
    """Factors by which out is multiplied: of v, or of k, by which q is divided, where v is a part of it."""
    return {"q": 1 / factor, "k": factor} if s.case.shared_kv else {"v": factor}


def _times(s: Subject, factors: Mapping[str, float], case: Case | None = None) -> Run | str:
    """The kernel on inputs times powers of two, on another `case`; why there is none."""
    form, changed = format_of(s), dict[str, np.ndarray]()
    on_codes = form is not None and form.zero and min(factors.values()) < 0
    if not (read := s.read if on_codes else s.inputs):
        return NO_CODES
    if on_codes and s.case.shared_kv and "k" in factors:  # codes of v are an array of their own
        factors = {**factors, "v": factors["k"]}
    for x, factor in factors.items():
        name = x
        if on_codes and x in s.first.trace.case.coded:
            changed |= opposite(s, x)
            name, factor = f"scale_{x}", abs(factor)
        made = cast(wide(read[name]) * factor, read[name])
        if made is None or (x != "v" and not _in_range(s, made)):
            return f"{x} times {factor:g} is not exact, or leaves the normal range of its dtype"
        changed[name] = made
    return s.on(case or s.case, {**read, **changed})


def _moved(s: Subject, run: Run, factor: float) -> Verdict:
    """Whether a run gives out times a factor, and the same lse."""
    rows = Rows.all(s.case)
    if s.quantises and not (_decodes_to_normal(s.first) and _decodes_to_normal(run)):
        return "dequantised rows contain subnormal numbers, or are unknown"
    if normal(s):
        return results((s.first, rows), (run, rows), {"out": factor})
    return budgets((s.first, rows), (run, rows), {"out": lambda x: x.times(factor)})


def normal(s: Subject) -> bool:
    """Whether all numbers of the kernel are sure to be in the normal range of their dtypes, but for those of out."""
    promise = s.first.trace.contract
    sums = {"partials_dtype", "accumulator_dtype", "scores_dtype", "scaled_q_dtype"}
    # what nobody declared may be in the dtype of the inputs
    if s.quantises or any(getattr(promise, name) == "float16" for name in sums):
        return False
    if s.case.dtype == "float16" and sums & {*promise.assumed}:
        return False
    values = abs(wide(s.inputs["v"]))
    return least_weight(s) * values[values > 0].min(initial=np.inf) >= SMALLEST and all(
        _in_range(s, s.inputs[name]) for name in "qkv"
    )


def least_weight(s: Subject) -> float:
    """A number below all probs of visible keys."""
    low, high = score_range(s)
    sinks = s.case.sink_logits
    top = high if sinks is None else max(high, float(sinks.max()))
    return float(np.exp(low - top)) if np.isfinite(low) else 0.0


def score_range(s: Subject) -> tuple[float, float]:
    """Numbers that no score of a visible key is below or above, by the norms of q and k (Cauchy and Schwarz); infinite
    where a score_mod makes anything of them.
    """
    if s.case.score_mod is not None:
        return -np.inf, np.inf
    norms = [float(np.sqrt((wide(s.inputs[name]) ** 2).sum(-1).max())) for name in "qk"]
    size = abs(s.case.scale) * norms[0] * norms[1]
    size = size if s.case.softcap is None else min(size, s.case.softcap)
    low, high = -size, size
    if (bias := s.inputs.get("bias")) is not None and np.isfinite(bias).any():
        finite = wide(bias[np.isfinite(bias)])
        low, high = low + min(float(finite.min()), 0.0), high + max(float(finite.max()), 0.0)
    if (slopes := s.case.slopes) is not None:
        furthest = float(abs(slopes).max()) * (s.case.seqlen_q + s.case.seqlen_k)
        low, high = low - furthest, high + furthest
    return low, high


def _in_range(s: Subject, x: np.ndarray) -> bool:
    """Whether the products of an input stay normal: none of its numbers but 0 is near the end of the range."""
    size = abs(wide(x))
    dtype = "float32" if s.case.dtype != "float16" else "float16"
    return bool(size[size > 0].min(initial=np.inf) >= smallest_normal(dtype))


def _decodes_to_normal(run: Run) -> bool:
    """Whether the rows that codes were decoded to were given, and hold no subnormal numbers."""
    for x in run.trace.case.coded:
        if (stage := run.trace.stages.get(f"dequant_{x}")) is None:
            return False
        size = abs(wide(stage))
        if size[size > 0].min(initial=np.inf) < smallest_normal(stage.dtype):
            return False
    return True


def _columns(run: Run, columns: np.ndarray) -> Run:
    """A run with the columns of out in another order."""
    stages = {name: x[..., columns] if name == "out" else x for name, x in run.trace.stages.items()}
    return Run(replace(run.trace, stages=stages))
