"""Laws of V: out is a mean of the rows of V, weighted by numbers that do not depend on it; with sinks a part of that
mean, and with dropout the mean of those that are kept.
"""

from typing import Any

import numpy as np

from workbench.explore.laws.beside import beside, of_heads
from workbench.explore.laws.codes import STATIC, held, scale_off
from workbench.explore.laws.compare import NOTHING, budgets, first, within
from workbench.explore.laws.law import Verdict
from workbench.explore.laws.part import each, part_of, taken
from workbench.explore.laws.run import Bounded, Rows, smaller
from workbench.explore.laws.subject import Subject, digits, seen, wide


def v_of_ones(s: Subject) -> Verdict:
    """V of ones gives ones in every row that sees a key; with dropout that keeps all, 1 / (1 - dropout_p).

    Preconditions: no sinks, which take a share; of codes a quantiser that holds 1, whose scale makes the largest value
    the largest code.
    """
    if s.quantises and s.first.trace.case.quantiser_scale != "dynamic":
        return STATIC
    if s.case.sinks is not None:
        return "sinks take a share of the weights"
    changed = _with_v(s, np.ones_like(s.inputs["v"]))
    if s.case.dropout_p is not None:
        changed["dropout_mask"] = np.ones_like(s.inputs["dropout_mask"])
    run = s.run(**changed)
    if "out" not in run.stages:
        return "out was not given"
    rows = smaller(Rows.all(s.case), run)
    found = run.bounded("out", rows)
    wanted = np.full(found.value.shape, 1 / (1 - (s.case.dropout_p or 0.0)))
    return within("out", Bounded(wanted, scale_off(s) * wanted), found, rows)


def v_added(s: Subject) -> Verdict:
    """The outputs of V1 and of V2 add up to that of V1 + V2.

    V is split into the numbers at random places and the others, so that V1 + V2 is exact. Preconditions: no codes,
    whose scale depends on V.
    """
    if s.quantises:
        return "the quantised codes of V1 and V2 have other scales than those of V"
    v, rows = s.inputs["v"], Rows.all(s.case)
    here = s.rng.random(v.shape) < 0.5
    zero = np.zeros((), v.dtype)
    one, other = s.run(v=np.where(here, v, zero)), s.run(v=np.where(here, zero, v))
    rows = smaller(rows, s.first, one, other)
    if "out" not in s.first.stages:
        return "out was not given"
    added = one.bounded("out", rows) + other.bounded("out", rows)
    return first(
        within("out", added, s.first.bounded("out", rows), rows),
        budgets((s.first, rows), (one, rows), only=("lse",)),
    )


def v_split_by_digits(s: Subject) -> Verdict:
    """The outputs of the leading digits of V and of the others add up to that of V.

    So that what rounds or cuts V or its products shows. Preconditions: no codes; digits whose rest is exact.
    """
    if s.quantises:
        return "the quantised codes of V1 and V2 have other scales than those of V"
    one, other = digits(wide(s.inputs["v"]), s.inputs["v"])
    if one is None or other is None:
        return f"leading digits and the rest of V are not both exact in {s.case.dtype}"
    if "out" not in s.first.stages:
        return "out was not given"
    first_run, second_run = s.run(v=one), s.run(v=other)
    rows = smaller(Rows.all(s.case), s.first, first_run, second_run)
    added = first_run.bounded("out", rows) + second_run.bounded("out", rows)
    return within("out", added, s.first.bounded("out", rows), rows)


def dropout_added(s: Subject) -> Verdict:
    """What dropout keeps in two masks adds up to what it keeps in both together, and no mask moves lse.

    The kept ones are split at random. Preconditions: dropout.
    """
    if s.case.dropout_p is None:
        return "there is no dropout"
    if "out" not in s.first.stages:
        return "out was not given"
    kept = s.inputs["dropout_mask"]
    here = s.rng.random(kept.shape) < 0.5
    one, other = s.run(dropout_mask=kept & here), s.run(dropout_mask=kept & ~here)
    rows = smaller(Rows.all(s.case), s.first, one, other)
    added = one.bounded("out", rows) + other.bounded("out", rows)
    return first(
        within("out", added, s.first.bounded("out", rows), rows),
        budgets((s.first, rows), (one, rows), only=("lse",)),
    )


def out_lies_between(s: Subject) -> Verdict:
    """Every number of out lies between the least and the largest of its column of V, among the keys that the row sees.

    With sinks 0 is among these; with dropout too, and those that are kept are divided by 1 - dropout_p. Preconditions:
    no codes.
    """
    if s.quantises or "out" not in s.first.stages:
        return "what V is decoded to is not known" if s.quantises else "out was not given"
    case, rows = s.case, smaller(Rows.all(s.case), s.first)
    found = s.first.bounded("out", rows)
    v = rows.of_keys(wide(s.inputs["v"]), case)
    low, high = np.zeros(found.value.shape), np.zeros(found.value.shape)
    sees = seen(case, s.inputs)
    sees = sees if case.dropout_p is None else sees & s.inputs["dropout_mask"]
    for b, h in np.ndindex(len(rows.b), len(rows.h)):
        for i, row in enumerate(rows.q):
            of_row = v[b, h, sees[rows.b[b], rows.h[h], row]]
            if len(of_row):
                low[b, h, i], high[b, h, i] = of_row.min(0), of_row.max(0)
    if case.sinks is not None or case.dropout_p is not None:
        low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
    share = 1 - (case.dropout_p or 0.0)
    # a row without keys has no bounds, and its budget is NaN
    nearest = np.clip(found.value, low / share, high / share)
    nearest = np.where(np.isnan(found.off), 0.0, nearest)
    return within("out", Bounded(nearest, np.zeros(nearest.shape)), found, rows)


def row_of_one_key(s: Subject) -> Verdict:
    """A row that sees one key gives the V of that key; with dropout 0, or that by 1 - dropout_p.

    Asked in the rows of the case that do, or of its first key alone. Preconditions: no sinks, no codes.
    """
    if s.quantises or "out" not in s.first.stages:
        return "what V is decoded to is not known" if s.quantises else "out was not given"
    if s.case.sinks is not None:
        return "a sink takes a share of the weights"
    run, inputs, case = s.first, s.inputs, s.case
    sees = seen(case, inputs)
    if not (sees.sum(-1) == 1).any():
        some = each(case, "k", lambda n: range(min(n, 1)))
        run = s.part(k=some)
        case, inputs = part_of(s.case, k=some), taken(s.inputs, k=some)
        sees = seen(case, inputs)
    rows = smaller(Rows.all(case), run)
    sees = rows.of(sees)
    alone, key = sees.sum(-1) == 1, sees.argmax(-1)[..., None]
    if not alone.any():
        return NOTHING
    wanted = np.take_along_axis(rows.of_keys(wide(inputs["v"]), case), key, 2)
    if case.dropout_p is not None:
        kept = np.take_along_axis(rows.of(inputs["dropout_mask"]), key, 3)
        wanted = np.where(kept, wanted / (1 - case.dropout_p), 0.0)
    off = np.where(alone[..., None], 0.0, np.nan)
    return within("out", Bounded(wanted, np.broadcast_to(off, wanted.shape)), run.bounded("out", rows), rows)


def queries_of_zeros(s: Subject) -> Verdict:
    """Queries of zeros give the mean of V over the keys that a row sees, and the log of their number as lse; weighed by
    what is beside the products of q and k: a bias, ALiBi, sinks, a score_mod.

    V is made of numbers that codes hold, too (`codes.held`). Preconditions: of codes, a scale that makes the largest
    value the largest code.
    """
    made = held(s)
    if isinstance(made, str):
        return made
    case, v = s.case, made.stands_for
    run = s.run(q=np.zeros_like(s.inputs["q"]), **_with_v(s, made.given.astype(s.inputs["v"].dtype)))
    rows = smaller(Rows.all(case), run)
    scores = beside(case, s.inputs, rows)
    largest = scores.max(-1)
    sinks = of_heads(case.sink_logits, rows)
    top = np.maximum(np.where(largest == -np.inf, 0.0, largest), sinks)
    weights = np.exp(scores - top[..., None])
    total, of_sink = weights.sum(-1), np.exp(sinks - top)
    if case.dropout_p is not None:
        weights = weights * rows.of(s.inputs["dropout_mask"]) / (1 - case.dropout_p)
    with np.errstate(invalid="ignore", divide="ignore"):
        out = weights @ rows.of_keys(v, case) / (total + of_sink)[..., None]
        lse = top + np.log(total + of_sink * run.trace.contract.lse_includes_sink)
    # sums of float64, of numbers of at most 1; of V, of which codes have scales that are rounded, by 1 - dropout_p
    off = (case.seqlen_k + 8) * np.finfo(np.float64).eps
    of_v = (off + made.off) * abs(v).max() / (1 - (case.dropout_p or 0.0))
    wanted = {name: Bounded(x, np.full(x.shape, o)) for name, x, o in (("out", out, of_v), ("lse", lse, off))}
    return first(*(within(name, wanted[name], run.bounded(name, rows), rows) for name in run.stages))


def _with_v(s: Subject, v: np.ndarray) -> dict[str, Any]:
    """What changes where V is another; where it is a part of k, that part."""
    if not s.case.shared_kv:
        return {"v": v}
    return {"k": np.concatenate([v, s.inputs["k"][..., s.case.head_dim_v :]], -1)}
