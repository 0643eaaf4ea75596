"""Laws of hidden keys: what no row that is compared may see changes no bit of it."""

from collections.abc import Callable
from typing import Any

import numpy as np

from workbench.case.assumptions import FLOOR
from workbench.case.memory import POISONS
from workbench.case.tiling import tiles
from workbench.explore.laws.codes import NO_CODES
from workbench.explore.laws.compare import alike, budgets, by_pairs, first, results, within
from workbench.explore.laws.law import Verdict
from workbench.explore.laws.part import each, sequences
from workbench.explore.laws.run import Bounded, Rows, Run, smaller
from workbench.explore.laws.subject import Subject, seen, wide
from workbench.floats import largest

#: numbers that are NaN behind an input: a tile of 128 keys of head_dim 256
BEHIND = 128 * 256


def hidden_keys_changed(s: Subject) -> Verdict:
    """Changing masked keys and values to other finite numbers changes no bit of the rows that do not see them.

    Preconditions: rows that see no key from some on, or up to some; no codes, whose scales they would change. Keys
    become 8 times as large, values up to a quarter of the largest number; where the kernel does not say that exp has no
    floor, so large that weights of FLOOR leave out as it is. Bits where it declares that row_max is the running
    maximum: a bound by the norms of all keys moves with hidden ones, and out within the budgets.
    """
    if s.quantises:
        return "changed keys would change the scales of quantised codes"
    case, sees, groups = s.case, seen(s.case, s.inputs), sequences(s.case)
    by_row = [np.logical_or.reduce(sees[list(one.b), :, : one.q, : one.k], axis=(0, 1)) for one in groups]
    ends = zip(*(_ends(one.k) for one in groups), strict=True)
    found = [parts for keys in ends if any(parts := [_blind(*one) for one in zip(by_row, keys, strict=True)])]
    if not found:
        return "no keys at either end are hidden from any row"
    verdicts = []
    most = largest(s.inputs["v"].dtype) / 4
    if "exp_floor" in s.first.trace.contract.assumed or s.first.trace.contract.exp_floor is not None:
        # all of them together less than half an ulp of float32 of a number of out of 2^-10
        most = min(most, 2.0 ** (-FLOOR - 10 - 25) / case.seqlen_k)
    for parts in found:
        k, v = s.inputs["k"].copy(), s.inputs["v"].copy()
        hidden = [(one, *part) for one, part in zip(groups, parts, strict=True) if part]
        for one, _, keys in hidden:
            some = slice(one.b[0], one.b[-1] + 1), slice(None), keys
            k[some] = (wide(k[some]) * -8).astype(k.dtype)
            v[some] = (most * s.rng.uniform(-1, 1, v[some].shape)).astype(v.dtype)
        if not (np.isfinite(wide(k)).all() and np.isfinite(wide(v)).all()):
            continue
        run = s.run(k=k, v=v)
        whole = Rows.all(case)
        verdicts += [_the_same(s, run, whole._replace(b=one.b, q=rows)) for one, rows, _ in hidden]
    return first(*verdicts) if verdicts else f"8 K overflows {case.dtype}"


def memory_of_no_sequence(s: Subject) -> Verdict:
    """Memory past the ends of sequences and in unused pages changes no bit: NaN, infinities, stale numbers.

    Preconditions: a ragged batch or a paged cache; what stands there is drawn from the seed, each kind in turn
    (`case/memory.py`).
    """
    if not s.case.ragged and s.case.page_size is None:
        return "no memory lies outside the sequences"
    others = (s.run(s.case.but(seed=s.case.seed + kind)) for kind in range(1, len(POISONS)))
    return first(*(_the_same(s, run, Rows.all(s.case)) for run in others))


def keys_appended(s: Subject) -> Verdict:
    """Appending keys after the last visible key of a row changes no bit of it.

    Preconditions: a causal mask that begins at the first key, for rows before the last key; of codes, those that the
    kernel gave. Bits of kernels of ours whose splits keep their tiles; others may choose other tiles for more keys.
    """
    case = s.case
    if not case.causal or case.causal_alignment != "top-left":
        return "the mask is not causal from the top left, so that appended keys would move it"
    if not s.read:
        return NO_CODES
    added = range(case.block_k or 16)
    run = s.part(k=each(case, "k", lambda n: [*range(n), *(j % n for j in added if n)]))
    whole, groups = Rows.all(case), sequences(case)
    rows = [whole._replace(b=one.b, q=range(min(one.q, one.k))) for one in groups]
    count = [len(tiles(n, case.block_k or 1)) for n in (case.seqlen_k, run.trace.case.seqlen_k)]
    kept = s.ours and (case.splits in (None, 1) or count[0] == count[1])
    return by_pairs(results if kept else budgets, s.first, run, [(one, one) for one in rows])


def nan_behind_the_inputs(s: Subject) -> Verdict:
    """NaN in memory right after q, k, v or any other array reaches no row.

    Preconditions: a function, which runs in this process, on arrays of NumPy or torch: each lies, with its own strides,
    at the beginning of a larger one. `workbench check` watches every load of kernels of ours.
    """
    if s.behind is None:
        return "only for functions that run in this process"

    def handing(function: Callable[..., Any], *arrays: Any, **options: Any) -> Any:
        behind = {name: _before_nan(x) if hasattr(x, "dtype") else x for name, x in options.items()}
        return function(*(_before_nan(x) for x in arrays), **behind)

    run = Run(s.behind(handing)(s.case, s.inputs))
    rows = Rows.all(s.case)
    return alike(s, (s.first, rows), (run, rows))


def _before_nan(x: Any) -> Any:
    """A floating array of NumPy or torch, copied to memory behind which are NaN; other arrays as they are."""
    numpy = isinstance(x, np.ndarray)
    if not (x.dtype.kind in "fV" if numpy else x.dtype.is_floating_point):
        return x
    strides = [stride // x.itemsize for stride in x.strides] if numpy else x.stride()
    size = 1 + sum((n - 1) * stride for n, stride in zip(x.shape, strides, strict=True)) + BEHIND
    room: Any = np.full(size, np.nan, x.dtype) if numpy else x.new_full((size,), float("nan"))
    view: Any = np.lib.stride_tricks.as_strided(room, x.shape, x.strides) if numpy else None
    view = room.as_strided(x.shape, strides) if view is None else view
    view[...] = x
    return view


def _the_same(s: Subject, run: Run, rows: Rows) -> Verdict:
    """Whether rows to which what was changed is hidden are as before; what they see is the same, and so is their
    budget.
    """
    promise = s.first.trace.contract
    told = not {"row_max", "exp_floor"} & {*promise.assumed}
    if told and promise.row_max == "running" and promise.exp_floor is None:
        return results((s.first, rows), (run, rows))
    rows = smaller(rows, s.first, run)
    verdicts = []
    for name in s.first.stages:
        before = s.first.bounded(name, rows)
        verdicts.append(within(name, before, Bounded(run.values(name, rows), before.off), rows))
    return first(*verdicts)


def _ends(count: int) -> list[slice]:
    """The last and the first keys, in parts of about a half and of one."""
    return [slice(count // 2, None), slice(count - 1, None), slice(None, (count + 1) // 2), slice(None, 1)]


def _blind(sees: np.ndarray, keys: slice) -> tuple[range, slice] | None:
    """Rows, one after the other, that see none of the keys, and these; None where there are none of either."""
    blind = np.flatnonzero(~sees[:, keys].any(-1))
    if not len(blind) or not sees.shape[1]:
        return None
    gap = np.flatnonzero(np.diff(blind) > 1)
    return range(int(blind[0]), int(blind[gap[0] if len(gap) else -1]) + 1), keys
