"""Laws of the backward pass of attention. What is allowed is derived: error budgets of the gradients, and what the
rounding of the out and lse that were given does to what they should be.
"""

import numpy as np

from workbench.explore.laws.backward_run import Gradients, first, within
from workbench.explore.laws.law import Verdict
from workbench.floats import smallest_normal
from workbench.operations.backward_inputs import forward

#: a power of two for dout
POWER = 4.0
#: steps of a direction, of which q, k and v are of the size of 1
STEP = 2.0**-16


def dout_times_power_of_two(s: Gradients) -> Verdict:
    """Multiplying dout and dlse by 4 multiplies every gradient by 4, bit for bit, unless numbers are subnormal."""
    if s.case.dtype == "float16":
        return "dS may be subnormal in float16"
    names = [name for name in ("dout", "dlse") if name in s.inputs]
    changed = {name: (s.inputs[name] * np.asarray(POWER, s.inputs[name].dtype)) for name in names}
    if not _normal(s):
        return "dS may be subnormal"
    other, again = s.again(**changed), s.again()
    verdicts = []
    for name in _results(s):
        same = np.array_equal(s.first.value(name), again.value(name), equal_nan=True)
        wanted = s.first.value(name) * POWER
        if same:
            allowed = np.where(abs(wanted) < POWER * smallest_normal(s.first.stages[name].dtype), np.nan, 0.0)
            allowed = np.where(wanted == 0, 0.0, allowed)
        else:  # its sums come in another order each time
            allowed = s.told.bounded(name).off * POWER + other.bounded(name).off
        verdicts.append(within(name, s.first.axes(name), other.value(name), wanted, allowed))
    return first(verdicts)


def _results(s: Gradients) -> list[str]:
    return [name for name in s.case.operation.results if name in s.first.stages]


def _normal(s: Gradients) -> bool:
    """Whether P, from lse, and numbers that it is multiplied by are so large that no product is subnormal."""
    if s.has("score_mod"):
        return False
    q, k = s.wide("q"), s.of_heads("k")
    scores = abs(s.case.numbers["scale"]) * np.sqrt((q**2).sum(-1).max() * (k**2).sum(-1).max())
    # |s| is at most `scores`, and so is lse up to log(keys): P is at least e^(-2 scores) / keys. 2^-126 is e^-87, which
    # leaves e^-37 for what P is multiplied by
    added = sum(2 * abs(s.wide(name)).max() * (s.case.sizes["k"] if name == "alibi_slopes" else 1)
                for name in ("bias", "alibi_slopes", "sinks") if name in s.inputs)  # fmt: skip
    return bool(2 * scores + added < 50)


def dq_of_a_row_without_keys_is_0(s: Gradients) -> Verdict:
    """dQ of an empty row (no visible key) is 0."""
    empty = np.asarray(~s.visible.any(-1))
    if not empty.any():
        return "there are no empty rows"
    dq = s.first.value("dq")
    return within("dq", "bhqd", dq, np.zeros(dq.shape), np.where(empty[..., None], 0.0, np.nan))


def gradients_of_a_key_that_nobody_sees_are_0(s: Gradients) -> Verdict:
    """dK and dV of a key that no row of its group sees are 0."""
    hidden = s.per_group(np.asarray(s.visible.any(2), np.int64)) == 0
    if not hidden.any():
        return "every key is visible"
    verdicts = []
    for name in ("dkv",) if s.case.numbers.get("shared_kv") else ("dk", "dv"):
        x = s.first.value(name)
        allowed = np.where(hidden[..., None], 0.0, np.nan)
        verdicts.append(within(name, s.first.axes(name), x, np.zeros(x.shape), np.broadcast_to(allowed, x.shape)))
    return first(verdicts)


def directional_derivative(s: Gradients) -> Verdict:
    """<dQ, D>, <dK, D> and <dV, D> are the derivatives of <out, dout> + <lse, dlse> along D, as forward passes in
    float64 give them.
    """
    if s.has("softcap", "score_mod"):
        return "no bound is known with a softcap or a score_mod"
    shared = s.case.numbers.get("shared_kv")  # K then moves V, too
    return first([_along(s, name) for name in ("q" if shared else "qkv")])


def _along(s: Gradients, name: str) -> Verdict:
    """Along a direction of signs. A forward pass is linear in V. In Q and K scores move by h sigma, and the third
    derivative of the mean of x = dout V under P is a joint cumulant: at most 4 R_x R_sigma^3 of the ranges of both
    (|E x s^3 - 3 E x s E s^2|), that of lse 2 R_sigma^3; so the difference is off by h^2 / 6 of it.
    """
    found, scale = s.told.bounded(f"d{name}"), s.case.numbers["scale"]
    rng = np.random.default_rng([s.case.seed, 7])
    along = rng.choice([-1.0, 1.0], found.value.shape)
    setting, dout = s.case.setting, s.wide("dout")
    dlse = s.wide("dlse") if s.has("dlse") else np.zeros(dout.shape[:3])
    ends, sizes = [], []
    for sign in (1, -1):
        made = forward(setting, {**s.inputs, name: s.wide(name) + sign * STEP * along})
        lse = np.where(np.isfinite(made["lse"]), made["lse"], 0.0)
        of_rows = (dout * made["out"]).sum(-1) + dlse * lse
        ends.append(s.per_group(of_rows).sum(-1))
        sizes.append(s.per_group((abs(dout * made["out"])).sum(-1) + abs(dlse * lse)).sum(-1))
    wanted = (ends[0] - ends[1]) / (2 * STEP)
    found_ = found.value * along
    own = s.per_group(found_.sum((2, 3))) if name == "q" else found_.sum((2, 3))
    off = s.per_group(found.off.sum((2, 3))) if name == "q" else found.off.sum((2, 3))
    if name == "v":
        lost = s.per_group((np.expm1(s.off_lse)[..., None] * abs(dout)).sum((2, 3)))
    else:
        wide = np.repeat(along, s.case.sizes["h"] // s.case.sizes["g"], 1) if name == "k" else along
        q, k = (wide, s.of_heads("k")) if name == "q" else (s.wide("q"), wide)
        sigma = np.where(s.visible, scale * np.einsum("bhqd,bhkd->bhqk", q, k), 0.0)
        x = np.where(s.visible, np.einsum("bhqe,bhke->bhqk", dout, s.of_heads("v")), 0.0)
        if s.has("dropout_p"):
            x = x * s.wide("dropout_mask") / (1 - s.case.numbers["dropout_p"])
        reach = 2 * abs(sigma).max(-1)  # with a sink, which stays, 0 is among what moves
        of_x = 2 * abs(x).max(-1)
        third = (4 * of_x + 2 * abs(dlse)) * reach**3
        moved = s.off_delta * np.exp(s.off_lse) + np.expm1(s.off_lse) * (of_x + abs(dlse))
        lost = s.per_group(STEP**2 / 6 * third + moved * reach).sum(-1)
    # a forward pass in float64 is off by up to 2^9 units of each term, and the difference keeps these
    lost = lost + (sizes[0] + sizes[1]) * 2.0**-44 / STEP
    return within(f"<d{name}, D>", "bg", own, wanted, off + lost)
