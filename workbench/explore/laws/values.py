"""Laws of V: out is a mean of the rows of V, weighted by numbers that do not depend on it."""

import numpy as np

from workbench.case.masks import spread, visible
from workbench.explore.laws.compare import NOTHING, budgets, first, within
from workbench.explore.laws.law import Verdict
from workbench.explore.laws.run import Bounded, Rows, smaller
from workbench.explore.laws.subject import Subject, digits, taken, wide


def v_of_ones(s: Subject) -> Verdict:
    """V of ones gives ones in every row that sees a key.

    Preconditions: of codes a quantiser that holds 1, whose scale makes the largest value the largest code.
    """
    if s.quantises and s.case.quantiser_scale != "dynamic":
        return "1 is beyond the largest code of a static scale"
    run = s.run(v=np.ones_like(s.inputs["v"]))
    if "out" not in run.stages:
        return "out was not given"
    rows = smaller(Rows.all(s.case), run)
    found = run.bounded("out", rows)
    return within("out", Bounded(np.ones(found.value.shape), np.zeros(found.value.shape)), found, rows)


def v_added(s: Subject) -> Verdict:
    """The outputs of V1 and of V2 add up to that of V1 + V2.

    V is split into the numbers at random places and the others, so that V1 + V2 is exact. Preconditions: no codes,
    whose scale depends on V.
    """
    if s.quantises:
        return "the codes of V1 and V2 have other scales than those of V"
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
        return "the codes of V1 and V2 have other scales than those of V"
    one, other = digits(wide(s.inputs["v"]), s.inputs["v"])
    if one is None or other is None:
        return f"leading digits and the rest of V are not both exact in {s.case.dtype}"
    if "out" not in s.first.stages:
        return "out was not given"
    first_run, second_run = s.run(v=one), s.run(v=other)
    rows = smaller(Rows.all(s.case), s.first, first_run, second_run)
    added = first_run.bounded("out", rows) + second_run.bounded("out", rows)
    return within("out", added, s.first.bounded("out", rows), rows)


def out_lies_between(s: Subject) -> Verdict:
    """Every number of out lies between the least and the largest of its column of V, among the keys that the row sees.

    Preconditions: no codes.
    """
    if s.quantises or "out" not in s.first.stages:
        return "what V is decoded to is not known" if s.quantises else "out was not given"
    case, rows = s.case, smaller(Rows.all(s.case), s.first)
    found = s.first.bounded("out", rows)
    v = rows.of_keys(wide(s.inputs["v"]), case)
    low, high = np.empty(found.value.shape), np.empty(found.value.shape)
    sees = spread(case, visible(case, s.inputs))
    for b, h in np.ndindex(len(rows.b), len(rows.h)):
        for i, row in enumerate(rows.q):
            seen = v[b, h, sees[rows.b[b], rows.h[h], row]]
            if len(seen):
                low[b, h, i], high[b, h, i] = seen.min(0), seen.max(0)
    # a row without keys has no bounds, and its budget is NaN
    nearest = np.clip(found.value, low, high)
    nearest = np.where(np.isnan(found.off), 0.0, nearest)
    return within("out", Bounded(nearest, np.zeros(nearest.shape)), found, rows)


def row_of_one_key(s: Subject) -> Verdict:
    """A row that sees one key gives the V of that key.

    Asked in the rows of the case that do, or of its first key alone. Preconditions: no codes.
    """
    if s.quantises or "out" not in s.first.stages:
        return "what V is decoded to is not known" if s.quantises else "out was not given"
    run, inputs, case = s.first, s.inputs, s.case
    sees = visible(case, inputs)
    if not (sees.sum(-1) == 1).any():
        run = s.part(k=[0])
        case, inputs = s.case.but(seqlen_k=1), taken(s.inputs, k=[0])
        sees = visible(case, inputs)
    rows = smaller(Rows.all(case), run)
    sees = rows.of(spread(case, sees))
    alone = sees.sum(-1) == 1
    if not alone.any():
        return NOTHING
    wanted = np.take_along_axis(rows.of_keys(wide(inputs["v"]), case), sees.argmax(-1)[..., None], 2)
    off = np.where(alone[..., None], 0.0, np.nan)
    return within("out", Bounded(wanted, np.broadcast_to(off, wanted.shape)), run.bounded("out", rows), rows)


def queries_of_zeros(s: Subject) -> Verdict:
    """Queries of zeros give the mean of V over the keys that a row sees, and the log of their number as lse.

    V is made of -1, 0 and 1, which codes hold too. Preconditions: no bias; of codes, a scale that makes the largest
    value the largest code.
    """
    if "bias" in s.inputs:
        return "a bias weighs keys"
    if s.quantises and s.case.quantiser_scale != "dynamic":
        return "1 is beyond the largest code of a static scale"
    case = s.case
    v = s.rng.integers(-1, 2, s.inputs["v"].shape).astype(np.float64)
    v[:, :, 0, 0] = 1.0
    run = s.run(q=np.zeros_like(s.inputs["q"]), v=v.astype(s.inputs["v"].dtype))
    rows = smaller(Rows.all(case), run)
    sees = spread(case, visible(case, s.inputs))
    sees = rows.of(sees).astype(np.float64)
    count = sees.sum(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        wanted = {"out": sees @ rows.of_keys(v, case) / count[..., None], "lse": np.log(count)}
    exact = {name: Bounded(x, np.zeros(x.shape)) for name, x in wanted.items()}
    return first(*(within(name, exact[name], run.bounded(name, rows), rows) for name in run.stages))
