"""Laws of scores: what leaves every product of q and k, or moves all of a row alike, leaves out."""

import numpy as np

from workbench.explore.laws.beside import beside, of_heads
from workbench.explore.laws.codes import in_another_order
from workbench.explore.laws.compare import Change, budgets, within
from workbench.explore.laws.law import Verdict
from workbench.explore.laws.part import each, part_of, taken
from workbench.explore.laws.run import Bounded, Rows, smaller
from workbench.explore.laws.sinks import moved, off_by
from workbench.explore.laws.subject import Subject, cast, digits, wide

#: how far scores are moved where exp of them is to leave float32's range, once or three times
_FAR = 128.0
_CODES = "quantised codes of q and k would get another scale"


def row_moved(s: Subject) -> Verdict:
    """A number added to all scores of a row, its sink among them, moves its lse by that, and leaves its out.

    K is made 1 in its last dim, and q there 0 in one run, and in the other c, one number a row, or a head where there
    are sinks, most of them even ones of -8 to 8: the scores move by c times the scale. The others move them by 128 or
    more up or down, so that exp of a score itself, or less the maximum of another row, is 0 or infinite: where the
    kernel declares that it subtracts the running maximum, since a bound for all rows cannot be near to each.
    Preconditions: no softcap, no score_mod, no codes; a last dim of K that is none of V.
    """
    if s.case.softcap is not None or s.case.score_mod is not None or s.quantises:
        return _CODES if s.quantises else "a softcap or a score_mod moves scores by other amounts"
    if s.case.shared_kv and s.case.head_dim_v == s.case.head_dim:
        return "the last dim of k is one of v"
    case, rows = s.case, Rows.all(s.case)
    k, q, with_c = s.inputs["k"].copy(), s.inputs["q"].copy(), s.inputs["q"].copy()
    shape = case.batch, case.heads, case.seqlen_q
    far = 2.0 ** np.ceil(np.log2(_FAR / abs(case.scale))) * s.rng.choice([-3, -2, -1, 1, 2, 3], shape)
    near, promise = 2.0 * s.rng.integers(-4, 5, shape), s.first.trace.contract
    c = np.where(s.rng.random(shape) < 0.25, far, near)
    running = promise.row_max == "running" and "row_max" not in promise.assumed
    if not running or not np.isfinite(wide(c.astype(q.dtype))).all():
        c = near
    if case.sinks is not None:
        c = np.broadcast_to(c[:1, :, :1], shape)
    k[..., -1], q[..., -1], with_c[..., -1] = 1, 0, c.astype(q.dtype)
    there, off = moved(s, c[0, :, 0] * case.scale)
    before, after = s.run(q=q, k=k), s.run(there, q=with_c, k=k)
    rows = smaller(rows, before, after)
    by = rows.of(c) * case.scale
    changes: dict[str, Change] = {
        "out": lambda x: off_by("out", x, off, rows),
        "lse": lambda x: off_by("lse", x.plus(by), off, rows),
    }
    return budgets((before, rows), (after, rows), changes)


def dims_permuted(s: Subject) -> Verdict:
    """The dims of q and k permuted alike leave out and lse.

    Where v is a part of k, the dims behind it; blocks of codes that have scales stay together. Preconditions: two dims
    or more.
    """
    first = s.case.head_dim_v if s.case.shared_kv else 0
    if s.case.head_dim - first < 2:
        return "one dim has no other order"
    dims = [*range(first), *in_another_order(s, range(first, s.case.head_dim))]
    rows = Rows.all(s.case)
    return budgets((s.first, rows), (s.whole(d=dims), rows))


def dims_shared_out(s: Subject) -> Verdict:
    """A number of q in two dims, half of its digits in each, where K is the same in both, gives what it gives in one.

    Preconditions: head_dim above 1; no codes; digits whose rest is exact.
    """
    if s.case.head_dim == 1 or s.quantises:
        return _CODES if s.quantises else "one dim has none beside it"
    rows, pairs = Rows.all(s.case), s.case.head_dim // 2
    k, whole = s.inputs["k"].copy(), s.inputs["q"].copy()
    k[..., 1 : 2 * pairs : 2], whole[..., 1 : 2 * pairs : 2] = k[..., : 2 * pairs : 2], 0
    some, rest = digits(wide(whole)[..., : 2 * pairs : 2], whole)
    if some is None or rest is None:
        return f"leading digits and the rest of q are not both exact in {s.case.dtype}"
    shared = whole.copy()
    shared[..., : 2 * pairs : 2], shared[..., 1 : 2 * pairs : 2] = some, rest
    return budgets((s.run(q=whole, k=k), rows), (s.run(q=shared, k=k), rows))


def one_key_and_its_opposite(s: Subject) -> Verdict:
    """The lse of a row that sees one key alone is its score: that of -q is its opposite.

    Preconditions: lse is given, without a sink; no bias, no ALiBi, no score_mod; no codes of q.
    """
    if "lse" not in s.first.stages or not s.read or _biased(s) or s.case.score_mod is not None:
        return "lse is not given, a bias moves it, or the kernel gave no quantised codes"
    if s.case.sinks is not None and s.first.trace.contract.lse_includes_sink:
        return "lse holds a sink beside the score"
    if s.quantises and "q" in s.first.trace.case.coded:
        return _CODES
    some = each(s.case, "k", lambda n: range(min(n, 1)))
    case, alone = part_of(s.case, k=some), taken(s.read, k=some)
    plus, minus = s.on(case, alone), s.on(case, {**alone, "q": -alone["q"]})
    rows = Rows.all(case)
    return budgets((plus, rows), (minus, rows), {"lse": lambda x: x.times(-1)}, only=("lse",))


def softcap_bounds_lse(s: Subject) -> Verdict:
    """With a softcap, lse is at most the cap away from the log of the number of keys that the row sees.

    Weighed by biases, and with sinks, which no cap holds. Asked of 64 q. Preconditions: a softcap, no score_mod; lse is
    given; 64 q is in the range of its dtype.
    """
    case = s.case
    if case.softcap is None or case.score_mod is not None or "lse" not in s.first.stages:
        return "there is no softcap, a score_mod after it, or no lse"
    q = cast(wide(s.inputs["q"]) * 64, s.inputs["q"])
    if q is None:
        return f"64 q leaves the range of {case.dtype}"
    run = s.run(q=q)
    rows = smaller(Rows.all(case), run)
    found, middle = run.bounded("lse", rows), np.logaddexp.reduce(beside(case, s.inputs, rows), -1)
    includes = run.trace.contract.lse_includes_sink
    sinks = of_heads(case.sink_logits if includes else None, rows)
    low, high = (np.logaddexp(middle + side * case.softcap, sinks) for side in (-1, 1))
    nearest = np.clip(found.value, low, high)
    return within("lse", Bounded(nearest, np.zeros(nearest.shape)), found, rows)


def _biased(s: Subject) -> bool:
    return "bias" in s.inputs or s.case.alibi_slopes is not None
