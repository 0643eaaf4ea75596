"""Laws that hold bit for bit in any order of sums: what a power of two or a sign does, and runs that repeat.

Rounding to nearest commutes with them, and so does rounding toward zero, as long as every number is in the normal
range of its dtype. Where that is not sure (sums that are or may be in float16, weights so small that their products
with V are subnormal), and of codes, the same is asked within the budgets: of codes whose decoded rows are normal
numbers, since these are what the budgets are about.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from workbench.case.memory import POISONS
from workbench.explore.laws.compare import Change, budgets, first, results, same_bits
from workbench.explore.laws.law import Break, Verdict
from workbench.explore.laws.run import Rows, Run
from workbench.explore.laws.subject import Subject, cast, wide
from workbench.floats import FLOATS, smallest_normal

#: least product of a weight and a value: exact, it has 48 bits, all of them above float32's smallest normal number,
#: 2^-126; and whatever cancels has the last of them, at least
_SMALLEST = 2.0 ** (48 - 126)


def v_times_power_of_two(s: Subject) -> Verdict:
    """V times 2 doubles out and leaves lse.

    Where v is a part of k, q is halved. Preconditions of bits: as of this file; V holds its doubles.
    """
    for factor in (2.0, 0.5):
        if (run := _v_times(s, factor)) is not None:
            return _moved(s, run, factor)
    return f"neither twice nor half of V is exact in {s.case.dtype}"


def v_negated(s: Subject) -> Verdict:
    """The sign of V is the sign of out, and moves no lse.

    Where v is a part of k, q changes its sign too. Preconditions of bits: as of this file; rounding toward plus or
    minus infinity is not of IEEE arithmetic in kernels.
    """
    run = _v_times(s, -1.0)
    return "q or k leaves the normal range of its dtype" if run is None else _moved(s, run, -1.0)


def q_and_k_times_power_of_two(s: Subject) -> Verdict:
    """Q times -4 and K times -1/4 leave every product of the two, and so out and lse.

    Where v is a part of k, out is -1/4 of what it was. Preconditions of bits: as of this file; both are exact.
    """
    q, k = cast(wide(s.inputs["q"]) * -4, s.inputs["q"]), cast(wide(s.inputs["k"]) / -4, s.inputs["k"])
    if q is None or k is None or not _in_range(s, "q", q) or not _in_range(s, "k", k):
        return f"4 q or k / 4 leaves the normal range of {s.case.dtype}"
    return _moved(s, s.run(q=q, k=k), -0.25 if s.case.shared_kv else 1.0)


def scale_times_power_of_two(s: Subject) -> Verdict:
    """The scale times 4 and Q times 1/4 leave every score, and so out and lse.

    4, so that the square root of the scale, by which some multiply q and k, is exact too. Preconditions of bits: as of
    this file; q / 4 is exact.
    """
    q = cast(wide(s.inputs["q"]) / 4, s.inputs["q"])
    if q is None or not _in_range(s, "q", q):
        return f"q / 4 leaves the normal range of {s.case.dtype}"
    return _moved(s, s.run(s.case.but(scale=s.case.scale * 4), q=q), 1.0)


def columns_of_v_permuted(s: Subject) -> Verdict:
    """The columns of V permuted permute the columns of out.

    Where v is a part of k, the dims of q go with them. Preconditions of bits: as of this file, and columns that are
    computed alike: of kernels of ours, and where it is claimed. Libraries of matrix products add up some columns in
    another order than others, as do products of q and k whose dims have another order.
    """
    columns = s.rng.permutation(s.case.head_dim_v)
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
    """The same keys in pages at other places give the same bits.

    Preconditions: a paged cache, whose places are drawn from the seed; what stands in unused ones changes with them.
    """
    if s.case.page_size is None:
        return "keys are not in pages"
    rows = Rows.all(s.case)
    # the same poison: one is chosen by the seed
    return results((s.first, rows), (s.run(s.case.but(seed=s.case.seed + len(POISONS))), rows))


def runs_repeat(s: Subject) -> Verdict:
    """The same inputs give the same bits, and other inputs of the same shapes in between leave them.

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
    """A call leaves its inputs as they were.

    Preconditions: a function, which runs in this process. Kernels of ours have inputs that are not written.
    """
    if s.behind is None:
        return "it takes a function that is called in this process"
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


def _v_times(s: Subject, factor: float) -> Run | None:
    """The kernel on V times a power of two, by which q is divided where v is a part of k; None where that rounds."""
    if not s.case.shared_kv:
        v = cast(wide(s.inputs["v"]) * factor, s.inputs["v"])
        return None if v is None else s.run(v=v)
    q, k = cast(wide(s.inputs["q"]) / factor, s.inputs["q"]), cast(wide(s.inputs["k"]) * factor, s.inputs["k"])
    if q is None or k is None or not _in_range(s, "q", q) or not _in_range(s, "k", k):
        return None
    return s.run(q=q, k=k)


def _moved(s: Subject, run: Run, factor: float) -> Verdict:
    """Whether a run gives out times a factor, and the same lse."""
    rows = Rows.all(s.case)
    if s.quantises and not (_decodes_to_normal(s.first) and _decodes_to_normal(run)):
        return "rows that codes are decoded to hold subnormal numbers, or were not given"
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
    return least_weight(s) * values[values > 0].min(initial=np.inf) >= _SMALLEST and all(
        _in_range(s, name, s.inputs[name]) for name in "qkv"
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


def _in_range(s: Subject, name: str, x: np.ndarray) -> bool:
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
