"""Formulas of what wrong stages hold, on kernels with odd bugs."""

import numpy as np
import pytest

from tests.odd_kernels import CASE, SPLITS, judged, scaled_where
from workbench.judge.explain.formulas import formulas
from workbench.judge.explain.unknown.formula import INDEPENDENT

DIMS, KEYS = np.arange(32), np.arange(96)
FULL = CASE.but(causal=False)


def texts(name, change, case=CASE, **given):
    return [one.text for one in formulas(*judged(name, change, case, **given))]


def product(x, k):
    return x["q"] @ np.asarray(k, np.float32).swapaxes(-1, -2)


def acc(x, v):
    """acc with other values."""
    found, state = x["acc"].copy(), 0
    for t in range(6):
        keys = slice(16 * t, 16 * t + 16)
        state = x["correction"][..., t, None] * state + x["probs"][..., keys] @ v[:, :, keys].astype(np.float32)
        found[..., t, :] = state
    return found


def row_sum(x, step):
    """row_sum of `step`(correction, previous row_sum, sums of all tiles, tile)."""
    found, state = x["row_sum"].copy(), np.zeros_like(x["row_sum"][..., 0])
    sums = x["probs"].reshape(*x["probs"].shape[:3], 6, 16).sum(axis=-1)
    for t in range(6):
        found[..., t] = state = step(x["correction"][..., t], state, sums, t).astype(np.float32)
    return found


def row_before(sums):
    return np.concatenate([np.zeros_like(sums[:, :, :1]), sums[:, :, :-1]], axis=2)


def weights(x):
    return np.exp(x["scores"] - x["lse"][..., None])


# --- single elements


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        ("qk", lambda s, x: s * 3, "actual = expected * 3"),
        ("qk", lambda s, x: -s, "actual = -expected"),
        ("scores", lambda s, x: s + 0.25, "actual = expected + 0.25"),
        ("scores", lambda s, x: s * np.log2(np.e), "actual = expected * log2 e"),
        ("scores", lambda s, x: np.where(np.isfinite(s), x["qk"], s), "actual = expected / scale"),
        ("qk", lambda s, x: np.zeros_like(s), "actual = 0"),
        ("out", lambda s, x: s * x["row_sum"][..., -1:], "actual = expected * the last row_sum"),
        ("qk", lambda s, x: s * np.array([1, 2.5, 3, 0.3])[:, None, None], (
            "actual = expected * one number per head, "
            "from 0.3 to 3"
        )),
        ("probs", lambda s, x: s * np.repeat(x["correction"], 16, axis=-1), "actual = expected * correction"),
    ],
)  # fmt: skip
def test_elements(name, change, text):
    assert texts(name, change)[0] == text


def test_another_stage():
    case = SPLITS.but(causal=False)
    assert texts("merge_max", lambda s, x: x["partial_max"][:, :, 0], case) == ["actual = partial_max of split 0"]


# --- maps


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda s: s[..., KEYS ^ 8], "k = expected at k ^ 8"),
        (lambda s: np.roll(s, 1, -1), "k = expected at (k - 1) % 96"),
        (lambda s: s[..., ::-1], "k = expected at 95 - k"),
        (lambda s: s[..., np.maximum(KEYS - 16, KEYS % 16)], "k = expected at k - 16, the last 80 of 96 keys, from 16 on"),
        (lambda s: s[..., KEYS % 16 % 8 + KEYS // 16 * 16], "k = expected at k - 8, keys with k % 16 >= 8 of 96"),
        (lambda s: s[..., KEYS.reshape(-1, 4, 4).swapaxes(1, 2).ravel()], "k = expected at k with each 16 transposed, as 4 x 4"),
        (lambda s: s[:, :, KEYS ^ 1], "q = expected at q ^ 1"),
        (lambda s: s[:, [0, 1, 0, 1]], "h = expected at h % 2"),
        (lambda s: s[..., (KEYS // 32 + 1) % 3 * 32 + KEYS % 32], "k = expected at (k + 32) % 96"),
        (lambda s: s[..., np.array([1, 0, 2])[KEYS // 32] * 32 + KEYS % 32],
         "k = expected at k - 32, keys 32 to 63 of 96; at k + 32, the first 32 of 96 keys"),
    ],
)  # fmt: skip
def test_index_maps(change, text):
    assert texts("qk", lambda s, x: change(s))[0] == f"actual at {text}"


def test_a_map_without_a_rule_is_listed():
    order = np.random.default_rng(0).permutation(96)
    (text,) = texts("qk", lambda s, x: s[..., order])
    assert text.startswith(f"actual at k = expected at other k: {order[0]} at 0, {order[1]} at 1, ")


def test_transposed_tiles():
    def turned(s, x):
        return s.reshape(1, 4, 6, 16, 6, 16).swapaxes(3, 5).reshape(s.shape)

    assert texts("qk", turned) == ["actual = expected with each 16 x 16 of q and k transposed"]


# --- sums


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (lambda c, l, s, t: c * l + s[..., t] + row_before(s)[..., t], "correction * previous row_sum + sum of probs + sum of probs at query q - 1"),
        (lambda c, l, s, t: c * l + s[..., t] + (s[..., t + 1] if t < 5 else 0), "correction * previous row_sum + sum of probs + sum of probs at tile t + 1"),
        (lambda c, l, s, t: l + s[..., t], "sum of probs + previous row_sum"),
        (lambda c, l, s, t: c * l + 2 * s[..., t], "correction * previous row_sum + 2 * sum of probs"),
        (lambda c, l, s, t: 0.5 * c * l + s[..., t], "0.5 * correction * previous row_sum + sum of probs"),
    ],
)  # fmt: skip
def test_terms_of_row_sum(step, text):
    assert texts("row_sum", lambda s, x: row_sum(x, step)) == [f"row_sum = {text}"]


@pytest.mark.parametrize(
    ("name", "change", "case", "text"),
    [
        ("lse", lambda s, x: x["row_max"][..., -1] + x["row_sum"][..., -1], CASE, "row_max + row_sum"),
        ("lse", lambda s, x: x["row_max"][..., -1] + np.log2(x["row_sum"][..., -1]), CASE, "row_max + log2 e * log(row_sum)"),
        ("acc", lambda s, x: acc(x, np.where(KEYS[:, None] < 16, x["v"], np.roll(x["v"], 16, 2))), CASE,
         "correction * previous acc + probs_cast @ v of the previous tile"),
        ("merge_sum", lambda s, x: x["partial_sum"].sum(axis=2), SPLITS, "sum_s partial_sum"),
        ("out", lambda s, x: x["partial_O"].sum(axis=2) / x["merge_sum"][..., None], SPLITS, "sum_s partial_O / merge_sum"),
    ],
)  # fmt: skip
def test_terms_of_other_sums(name, change, case, text):
    assert texts(name, change, case) == [f"{name} = {text}"]


# --- operands


@pytest.mark.parametrize(
    ("name", "change", "given", "text"),
    [
        ("qk", lambda s, x: product(x, x["k"][..., DIMS ^ 1]), {}, "k as read: actual at d = expected at d ^ 1"),
        ("qk", lambda s, x: product(x, x["k"] * (DIMS != 31)), {}, "k as read: actual = 0, dim 31 of 32"),
        ("qk", lambda s, x: product(x, x["k"] * (1 + (DIMS % 8 == 3))), {}, "k as read: actual = expected * 2, dims with d % 8 == 3 of 32"),
        ("qk", lambda s, x: product(x, x["k"] + np.where((DIMS % 8 == 3) & (KEYS[:, None] >= 48), np.sin(x["k"] * 99), 0)), {},
         "k as read differs at dims with d % 8 == 3 of 32; the last 48 of 96 keys, from 48 on"),
        ("qk", lambda s, x: product(x, x["k"][:, ::2].reshape(1, 96, 2, 32).swapaxes(1, 2).repeat(2, axis=1)), {},
         "k as read: as if it were stored [b, s, h, d]"),
        ("acc", lambda s, x: acc(x, x["v"][:, :, KEYS ^ 8]), {}, "v as read: actual at k = expected at k ^ 8"),
        ("out", lambda s, x: weights(x) @ np.roll(x["v"], 1, axis=2), {"only": True}, "v as read: actual at k = expected at (k - 1) % 96"),
        ("out", lambda s, x: weights(x) @ np.where(KEYS[:, None] % 16 < 8, 0, x["v"]), {"only": True, "case": FULL},
         "v as read: actual = 0, keys with k % 16 < 8 of 96"),
    ],
)  # fmt: skip
def test_operands(name, change, given, text):
    assert text in texts(name, change, **given)


# --- nothing where nothing holds


def test_elements_are_counted():
    (found,) = formulas(*judged("qk", lambda s, x: np.where(KEYS % 16 == 5, s * 3, s)))
    assert found.of == found.wrong == 6 * 96 * 4 and found.residual < 1 and found.unexplained < 1e-6
    assert (
        str(found)
        == f"actual = expected * 3, at 2304 of 2304 wrong elements, residual {found.residual:.2g}x its budget"
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda s, x: np.where(np.random.default_rng(0).random(s.shape) < 0.9, s * 3, s * 2.5),
        lambda s, x: s * (1 + 1e-3 * np.random.default_rng(0).standard_normal(s.shape)),
        lambda s, x: np.full_like(s, np.nan),
        lambda s, x: np.sin(s),
    ],
    ids=["two factors", "noise", "NaN", "a function"],
)
def test_what_no_formula_makes(change):
    assert texts("qk", change) == []


def test_a_handful_of_elements_is_no_evidence():
    some = lambda n: scaled_where(lambda b, h, q, k: (h == 0) & (q == 50) & (k < n))  # noqa: E731
    observed, stage = judged("qk", lambda s, x: np.where(some(INDEPENDENT - 10)(s, x) != s, s * 3, s))
    assert 2 < stage.judged.outside.sum() < INDEPENDENT and formulas(observed, stage) == ()
