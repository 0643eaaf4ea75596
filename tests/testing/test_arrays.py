"""The assertion on arrays: what passes, what is refused, and what a failure says of what was assumed."""

import numpy as np
import pytest

from tests.explore.laws.fields import boxes
from workbench import Case, Refusal
from workbench.case.memory import cu_seqlens, packed
from workbench.testing import AttentionError, AttentionWarning, assert_attention_close

CASE = Case(batch=2, heads=2, kv_heads=1, seqlen_q=6, seqlen_k=10, head_dim=8, dtype="float16")
Q, K, V = CASE.inputs()


def attention(
    q,
    k,
    v,
    *,
    scale=None,
    causal=False,
    window=None,
    softcap=None,
    mask=None,
    bias=0.0,
    causal_alignment="bottom-right",
):
    """out and lse in float64; a row without keys has out 0 and lse -inf."""
    n, m, group = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = k.repeat(group, axis=1), v.repeat(group, axis=1)
    scores = q @ np.swapaxes(k, -1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = (scores if softcap is None else softcap * np.tanh(scores / softcap)) + bias
    seen = Case(seqlen_q=n, seqlen_k=m, causal=causal, window=window, causal_alignment=causal_alignment).mask()
    scores = np.where(seen & (True if mask is None else mask), scores, -np.inf)
    row_max = scores.max(-1, keepdims=True)
    probs = np.exp(scores - np.where(np.isinf(row_max), 0, row_max))
    row_sum = probs.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        return probs @ v / np.where(row_sum == 0, 1, row_sum), (row_max + np.log(row_sum))[..., 0].astype(np.float32)


MASK = np.random.default_rng(0).random((6, 10)) < 0.5
MASK[3] = False
PROBLEMS = [
    {},
    {"causal": True},
    {"causal": True, "causal_alignment": "top-left"},
    {"scale": 0.5, "softcap": 2.0},
    {"window": (4, 2)},
    {"mask": MASK},
    {"bias": np.random.default_rng(1).normal(size=(1, 2, 6, 10)).astype(np.float32)},
]


@pytest.fixture(autouse=True)
def no_causes(monkeypatch):
    """Without a search for causes, of which each takes a second."""
    monkeypatch.setattr("workbench.judge.diff.QUICK", 0.0)


def failure(*arrays, **options):
    with pytest.raises(AttentionError) as raised:
        assert_attention_close(*arrays, **options)
    return str(raised.value)


# --- what passes


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: ",".join(problem) or "plain")
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_what_is_right_passes_and_what_is_not_fails(problem, layout):
    out, lse = attention(Q, K, V, **problem)
    arrays = [out.astype(np.float16), Q, K, V]
    if layout == "bshd":
        arrays = [x.swapaxes(1, 2) for x in arrays]
    judged = assert_attention_close(*arrays, lse=lse, layout=layout, **problem)
    assert judged.verdict in ("exact", "rounding") and {stage.name for stage in judged} == {"out", "lse"}
    arrays[0] = arrays[0].copy()
    arrays[0][1, 1, 1, 5] += 1
    with pytest.raises(AttentionError) as raised:
        assert_attention_close(*arrays, lse=lse, layout=layout, **problem)
    assert raised.value.diff.origin == "out"


def test_where_all_values_are_0_the_smallest_number_is_too_much():
    """Underflow is allowed for where something can underflow."""
    q, k, v = (np.random.default_rng(0).standard_normal((1, 1, 8, 16), dtype=np.float32) for _ in range(3))
    v[..., 0] = 0
    probs = np.exp(q @ k.swapaxes(-1, -2) / 4)
    out = probs @ v / probs.sum(-1, keepdims=True)
    assert_attention_close(out, q, k, v)
    out[..., 0] = 2.0**-149
    with pytest.raises(AttentionError, match="8/128"):
        assert_attention_close(out, q, k, v)


def test_torch_tensors_pass_in_bfloat16():
    torch = pytest.importorskip("torch")
    q, k, v = torch.randn(3, 1, 2, 33, 16, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(0))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert assert_attention_close(out, q, k, v, causal=True).trace.case.dtype == "bfloat16"
    with pytest.raises(AttentionError, match="bug in out"):
        assert_attention_close(out * 1.1, q, k, v, causal=True)


def test_a_contract_makes_budgets_tighter():
    off = attention(Q, K, V)[0].astype(np.float32) + np.float32(1e-4)
    with pytest.warns(AttentionWarning, match="^suspicious in out, "):
        assert_attention_close(off, Q, K, V)
    in_float32 = dict.fromkeys(("probs_dtype", "scores_dtype", "partials_dtype"), "float32")
    with pytest.raises(AttentionError):
        assert_attention_close(off, Q, K, V, contract=in_float32)


# --- with what a case may have beside


def made(case, **inputs):
    """q, k, v, out and lse of a case, by a kernel in float32."""
    q, k, v = case.inputs()
    told = {"seqlens_q": case.lengths_q, "seqlens_k": case.lengths_k, "dropout_mask": case.dropout_mask()}
    told |= {"alibi_slopes": case.slopes, "sinks": case.sink_logits, "dropout_p": case.dropout_p, **inputs}
    out, lse = boxes()(q, k, v, scale=case.scale, causal=case.causal, **told)
    return (out, q, k, v), {"lse": lse, "causal": case.causal}


BESIDE = CASE.but(seqlen_q=9, seqlen_k=12, heads=4, kv_heads=2, head_dim_v=5)


def test_sinks_and_slopes_are_taken_and_those_of_another_head_fail():
    case = BESIDE.but(sinks=(1.0, 2.0, 0.5, 3.0), alibi_slopes="geometric")
    arrays, said = made(case)
    said |= {"sinks": case.sink_logits, "alibi_slopes": case.slopes}
    assert assert_attention_close(*arrays, **said).verdict in ("exact", "rounding")
    for name in ("sinks", "alibi_slopes"):
        with pytest.raises(AttentionError):
            assert_attention_close(*arrays, **{**said, name: np.roll(said[name], 1)})


def test_a_failure_says_what_there_was_beside_and_the_other_form_of_alibi():
    case = BESIDE.but(alibi_slopes="geometric", sinks="normal", causal=True)
    (out, *qkv), said = made(case.but(sinks=None))
    shift = case.slopes[None, :, None] * (np.arange(9) + 3)  # slope * key, of which lse is larger
    said = {**said, "lse": said["lse"] + shift.astype(np.float32), "alibi_slopes": case.slopes}
    text = failure(out, *qkv, **said)
    assert "it passes with alibi_form='column'" in text.splitlines()
    assert ", alibi_slopes=0.25,0.0625,0.015625,0.00390625, alibi_form='distance'" in text


def test_dropout_comes_with_its_mask():
    case = BESIDE.but(dropout_p=0.25)
    arrays, said = made(case)
    mask = case.dropout_mask()
    assert assert_attention_close(*arrays, **said, dropout_p=0.25, dropout_mask=mask).verdict in ("exact", "rounding")
    with pytest.raises(AttentionError):
        assert_attention_close(*arrays, **said, dropout_p=0.25, dropout_mask=~mask)
    for half in ({"dropout_p": 0.25}, {"dropout_mask": mask}):
        with pytest.raises(Refusal, match="give both dropout_p and dropout_mask; got one of them"):
            assert_attention_close(*arrays, **said, **half)


def test_attn_mask_is_a_mask_or_a_bias_and_an_inverted_one_is_named():
    seen = np.random.default_rng(2).random((9, 12)) < 0.6
    arrays, said = made(BESIDE, mask=np.broadcast_to(seen, (2, 4, 9, 12)))
    assert_attention_close(*arrays, **said, attn_mask=seen)
    added = np.where(seen, 0, -np.inf).astype(np.float32)
    assert_attention_close(*arrays, **said, attn_mask=added)
    assert "it passes with the mask inverted: True must mean a visible key" in failure(*arrays, **said, attn_mask=~seen)
    with pytest.raises(Refusal, match="give attn_mask or mask; got both"):
        assert_attention_close(*arrays, **said, attn_mask=seen, mask=seen)


RAGGED = CASE.but(batch=3, seqlens_q=(5, 0, 6), seqlens_k=(10, 4, 7), causal=True)


def in_a_row(case=RAGGED):
    """Packed q, k, v, out and lse, with what says where sequences end."""
    (out, q, k, v), said = made(case)
    n, m = case.lengths_q, case.lengths_k
    arrays = [packed(x, length) for x, length in ((out, n), (q, n), (k, m), (v, m))]
    said["lse"] = packed(said["lse"], n).T
    return arrays, {**said, "cu_seqlens_q": cu_seqlens(n), "cu_seqlens_k": cu_seqlens(m)}


def test_packed_sequences_are_taken_and_other_ends_fail():
    arrays, said = in_a_row()
    judged = assert_attention_close(*arrays, **said)
    assert judged.verdict in ("exact", "rounding") and judged.trace.case.seqlens_q == (5, 0, 6)
    with pytest.raises(AttentionError, match="seqlens_q=5,0,6, seqlens_k=9,5,7"):
        assert_attention_close(*arrays, **{**said, "cu_seqlens_k": np.array([0, 9, 14, 21], np.int32)})
    alike, told = in_a_row(RAGGED.but(seqlens_k=(5, 0, 6), seqlen_k=6))
    del told["cu_seqlens_k"]
    assert assert_attention_close(*alike, **told).trace.case.seqlens_k == (5, 0, 6)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cu_seqlens_q": np.array([0, 5, 11], np.int32)}, "must have as many sequences; got 2 and 3"),
        (
            {"cu_seqlens_q": np.array([0, 5, 5, 10])},
            r"q of packed .* a total of 10 by cu_seqlens_q; got shape \[11, 2, 8\]",
        ),
        (
            {"cu_seqlens_k": np.array([0, 5, 4, 21])},
            r"cu_seqlens_k must have shape \[batch \+ 1\], .* got \[0, 5, 4, 21\]",
        ),
        ({"lse": np.zeros((11, 2), np.float32)}, r"lse of packed sequences is \[heads, total\]"),
        ({"layout": "bshd"}, "packed sequences must be .* and take no layout; got 'bshd'"),
    ],
)
def test_packed_arrays_that_do_not_fit_are_refused(change, said):
    arrays, told = in_a_row()
    with pytest.raises(Refusal, match=said):
        assert_attention_close(*arrays, **{**told, **change})


# --- what a failure says


def test_it_says_where_how_far_and_what_would_tell_more():
    expected = attention(Q, K, V)[0]
    out = expected.astype(np.float16)
    out[1, 1, 3, 5] += 1
    said = failure(out, Q, K, V)
    (row,) = [line for line in said.splitlines() if line.startswith("out ")]
    assert " bug <- origin " in row and " 1/192 " in row
    numbers = f"b=1 h=1 q=3 d=5 {out[1, 1, 3, 5]:.6g} {expected[1, 1, 3, 5]:.6g}"
    times = row.split()[4]
    assert " ".join(row.split()).endswith(f" {numbers}") and float(times) > 1
    assert said.startswith(f"bug in out, error {times}x its budget (arrays)\n")
    assert "judged with layout='bhsd', scale=0.353553, causal=False, window=None, softcap=None" in said
    assert "pass lse= to separate" in said and "pass contract= to declare" in said


def test_hints_are_left_out_of_what_was_given():
    out, lse = attention(Q, K, V)
    said = failure(out.astype(np.float16) + np.float16(1), Q, K, V, lse=lse, contract="triton")
    assert "pass lse=" not in said and "pass contract=" not in said


@pytest.mark.parametrize(
    ("made", "hint"),
    [
        ({"causal": True}, "it passes with causal=True"),
        ({"causal": True, "causal_alignment": "top-left"}, "it passes with causal=True, causal_alignment='top-left'"),
        ({"scale": 1.0}, "it passes with scale=1.0"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_it_says_under_which_other_assumption_the_arrays_pass(made, hint):
    out, _ = attention(Q, K, V, **made)
    said = failure(out.astype(np.float16), Q, K, V)
    assert hint in said.splitlines() and said.count("it passes with") == 1


def test_another_layout_of_all_is_found_by_judging_it():
    case = Case(heads=2, seqlen=8, head_dim=16)
    q, k, v = case.inputs()
    out, _ = attention(q, k, v)
    said = failure(*(x.swapaxes(1, 2) for x in (out.astype(np.float32), q, k, v)))
    assert "it passes with layout='bshd'" in said.splitlines()


def test_nan_is_no_pass_and_is_named():
    out = attention(Q, K, V)[0].astype(np.float16)
    out[..., 3] = np.nan
    said = failure(out, Q, K, V)
    assert "wrong elements are at dim 3 of 8; 24 non-finite" in said and said.startswith("bug in out, error not finite")


def test_out_in_float64_is_judged_as_float32():
    out, _ = attention(Q, K, V)
    assert assert_attention_close(out, Q, K, V).trace.contract.out_dtype == "float32"
    assert "out is float64: it is judged as float32" in failure(out + 1, Q, K, V)


# --- what is refused


def swapped(x):
    return x.swapaxes(1, 2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda a: a | {"q": a["q"].astype(np.float64)},
            "q must be an array of float32, float16 or bfloat16; got float64",
        ),
        (lambda a: a | {"v": a["v"].astype(np.float32)}, "q, k and v must have one dtype; got float16, float32"),
        (lambda a: a | {"out": a["out"][0]}, r"out must have axes b h s d; got shape \[2, 6, 8\]"),
        (lambda a: a | {"k": a["k"][0]}, r"k must have axes .*; got shape \[1, 10, 8\]"),
        (lambda a: a | {"k": a["k"][:, :, :7]}, r"k \[2, 1, 7, 8\], v \[2, 1, 10, 8\]"),
        (lambda a: a | {"out": a["out"][:, :, :5]}, r"q \[2, 2, 6, 8\].*out \[2, 2, 5, 8\]"),
        (lambda a: a | {"lse": np.zeros((2, 6, 2), np.float32)}, r"lse \[2, 6, 2\]"),
        (lambda a: {name: swapped(x) for name, x in a.items()}, "these are shapes of bshd: pass layout='bshd'"),
        (lambda a: a | {"out": swapped(a["out"])}, "are swapped relative to q: give both in one layout"),
        (lambda a: a | {"layout": "sbhd"}, "layout must be one of bhsd, bshd; got 'sbhd'"),
        (
            lambda a: a | {"q": np.where(a["q"] < 2, a["q"], np.float16(np.inf))},
            "inputs must be finite, or NaN; q holds inf at",
        ),
        (lambda a: a | {"mask": np.ones((6, 9), bool)}, r"mask must have shape \[2, 2, 6, 10\]"),
        (lambda a: a | {"contract": "exp_ulp=3"}, "exp_ulp"),
        (lambda a: a | {"fail_on": "never"}, "fail_on must be one of bug, biased, evidence, suspicious; got 'never'"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_shapes(change, said):
    out = attention(Q, K, V)[0].astype(np.float16)
    with pytest.raises(Refusal, match=said):
        assert_attention_close(**change({"out": out, "q": Q, "k": K, "v": V}))


def test_arrays_answer_no_other_inputs_so_that_nothing_is_read_off_them():
    """Whoever asks them what they make of other inputs gets the same numbers, from which any cause follows."""
    out, _ = attention(Q, K, V, causal=True)
    with pytest.raises(AttentionError) as error:
        assert_attention_close(out.astype(np.float16), Q, K, V)
    said = str(error.value)
    assert "it passes with causal=True" in said and "get no weight" not in said and "with V = 0" not in said
