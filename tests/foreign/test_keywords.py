"""What users' functions are called with, by their keywords: lengths, pages, biases, sinks, dropout, score_mods."""

from typing import Any

import numpy as np
import pytest

from tests.attend import attend
from tests.foreign.sequences import RAGGED, RIGHT, joined, rows, stacked, verdict
from tests.refusals import refusal
from workbench import Case, diff, run
from workbench.floats import DTYPES

SMALL = Case(seqlen_q=9, seqlen_k=12, heads=2, kv_heads=1, head_dim=16)


# --- packed sequences


def varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *, scale, causal, late=0, boxes=False):
    assert q.ndim == 3 and cu_seqlens_q.dtype == np.int32 and cu_seqlens_q[-1] == len(q) and cu_seqlens_k[-1] == len(k)
    found = []
    for b in range(len(cu_seqlens_q) - 1):
        of_q, of_k = slice(*cu_seqlens_q[b : b + 2]), slice(*cu_seqlens_k[b : b + 2] - late * (b > 0))
        assert of_q.stop - of_q.start <= max_seqlen_q and of_k.stop - of_k.start <= max_seqlen_k
        found.append(attend(q[of_q], k[of_k], v[of_k], scale=scale, causal=causal))
    out, lse = joined(found)
    if not boxes:
        return out, lse
    apart = np.zeros((len(found), lse.shape[0], max_seqlen_q), np.float32)
    for b, (_, one) in enumerate(found):
        apart[b, :, : one.shape[1]] = one
    return out, apart


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("boxes", [False, True])
def test_packed_sequences(dtype: str, boxes: bool) -> None:
    def kernel(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *, scale, causal):
        assert q.dtype == DTYPES[dtype] and q.shape == (13, 2, 16) and k.shape == v.shape == (21, 1, 16)
        lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        return varlen(q, k, v, *lengths, scale=scale, causal=causal, boxes=boxes)

    trace = run(kernel, RAGGED.but(dtype=dtype))
    assert diff(trace).verdict in RIGHT
    assert trace.stages["out"].shape == (3, 2, 9, 16) and trace.stages["lse"].shape == (3, 2, 9)
    assert not trace.stages["out"][1].any() and not trace.stages["out"][2, :, 4:].any()


def test_a_batch_without_keys_has_strides_of_its_last_dims() -> None:
    def kernel(q, k, v, cu_seqlens_q, cu_seqlens_k, *, scale, causal):
        assert k.shape == (0, 1, 16) and k.stride(-1) == v.stride(-1) == 1
        return attend(*(x.float().numpy() for x in (q, k, v)), scale=scale)

    for dtype in ("float32", "bfloat16"):
        case = Case(seqlens_q=(4,), seqlens_k=(0,), heads=2, kv_heads=1, head_dim=16, dtype=dtype)
        assert verdict(kernel, case, arrays="torch") in RIGHT


def test_a_wrong_start_of_a_packed_sequence_is_a_bug() -> None:
    def kernel(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *, scale, causal):
        lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        return varlen(q, k, v, *lengths, scale=scale, causal=causal, late=1)

    assert verdict(kernel, RAGGED) == "bug"


def test_optional_lengths_are_given_to_ragged_batches_alone() -> None:
    seen = []

    def kernel(q, k, v, *, scale, causal, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None):
        seen.append(cu_seqlens_q is not None)
        if cu_seqlens_q is not None:
            return varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, scale=scale, causal=causal)
        return stacked([attend(*map(rows, one), scale=scale, causal=causal) for one in zip(q, k, v, strict=True)])

    assert verdict(kernel, RAGGED) in RIGHT and verdict(kernel, SMALL) in RIGHT and seen[0] and not seen[-1]
    assert verdict(kernel, SMALL.but(batch=2, seqlens_k=(12, 12))) in RIGHT and not seen[-1]


def test_packed_results_of_another_shape_are_refused() -> None:
    def kernel(q, k, v, *, scale, causal, cu_seqlens_q, cu_seqlens_k):
        return np.zeros((14, 2, 16), np.float32)

    assert refusal(run, kernel, RAGGED) == (
        "kernel: out has axes [queries of all sequences, heads, head_dim_v] and must have shape [13, 2, 16] for this "
        "case; got [14, 2, 16]"
    )


# --- a mask tells what no other keyword does


def masked(q, k, v, *, scale, causal, mask=None):
    found = []
    for b, one in enumerate(zip(q, k, v, strict=True)):
        of_mask = None if mask is None else np.broadcast_to(mask, (len(q), *mask.shape[1:]))[b]
        found.append(attend(*map(rows, one), scale=scale, causal=causal, mask=of_mask))
    return stacked(found)


def third(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return (q_idx + 2 * kv_idx + h) % 3 != 0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", [RAGGED, RAGGED.but(window=(2, 0)), RAGGED.but(mask_mod=third)])
def test_a_function_without_lengths_gets_a_mask_and_finite_values_behind_it(case: Case, seed: int) -> None:
    def kernel(q, k, v, *, scale, causal, mask=None):
        assert not causal and np.all(np.isfinite(k)) and np.all(np.isfinite(v)) and np.any(abs(k[1, :, 3:]) > 4)
        return masked(q, k, v, scale=scale, causal=causal, mask=mask)

    assert verdict(kernel, case.but(seed=seed)) in RIGHT


def test_a_mask_of_lengths_that_is_ignored_is_a_bug() -> None:
    def kernel(q, k, v, *, scale, causal, mask=None):
        return masked(q, k, v, scale=scale, causal=True)

    assert verdict(kernel, RAGGED) == "bug"


def test_attn_mask_is_a_mask() -> None:
    def kernel(q, k, v, *, scale, causal, attn_mask):
        return masked(q, k, v, scale=scale, causal=causal, mask=attn_mask)

    assert verdict(kernel, SMALL.but(mask_mod=third, causal=True)) in RIGHT


# --- everything else, in one function


def everything(
    q, k, v, *, scale, causal, softcap=None, alibi_slopes=None, sinks=None, dropout_p=0.0, dropout_mask=None,
    score_mod=None, mask_mod=None, bias=None,
):  # fmt: skip
    q, k, v = (x.astype(np.float32) for x in (q, np.repeat(k, 2, axis=1), np.repeat(v, 2, axis=1)))
    scores = q @ k.swapaxes(-1, -2) * np.float32(scale)
    b, h, i, j = np.ix_(*map(np.arange, scores.shape))
    if softcap is not None:
        scores = np.float32(softcap) * np.tanh(scores / np.float32(softcap))
    if score_mod is not None:
        scores = score_mod(scores, b, h, i, j).astype(np.float32)
    if bias is not None:
        scores = scores + bias
    beyond = j - i - (k.shape[2] - q.shape[2])
    if alibi_slopes is not None:
        scores = scores - alibi_slopes[:, None, None] * abs(beyond)
    seen = (beyond <= 0) | (not causal)
    if mask_mod is not None:
        seen = seen & mask_mod(b, h, i, j)
    scores = np.where(seen, scores, -np.inf).astype(np.float32)
    logits = np.full(2, -np.inf, np.float32) if sinks is None else sinks
    largest = np.maximum(scores.max(axis=-1), logits[:, None])
    probs = np.exp(scores - largest[..., None])
    total = probs.sum(axis=-1) + np.exp(logits[:, None] - largest)
    probs = probs if dropout_mask is None else np.where(dropout_mask, probs / np.float32(1 - dropout_p), 0)
    return probs @ v / total[..., None], largest + np.log(total)


def relative(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score + 0.05 * (q_idx - kv_idx)


FIELDS = {
    "softcap": 2.0, "alibi_slopes": (0.5, 0.125), "sinks": (1.0, 0.5), "dropout_p": 0.25, "score_mod": relative,
    "mask_mod": third,
}  # fmt: skip


@pytest.mark.parametrize("field", [*FIELDS, "bias", "all"])
def test_fields_are_keywords(field: str) -> None:
    case = SMALL.but(causal=True, **(FIELDS if field == "all" else {x: FIELDS[x] for x in FIELDS if x == field}))
    bias = np.random.default_rng(0).standard_normal((9, 12)).astype(np.float32)
    inputs = dict(zip("qkv", case.inputs(), strict=True)) | ({"bias": bias} if field in ("bias", "all") else {})
    assert verdict(everything, case, inputs=inputs) in RIGHT
    if field != "all":
        dropped = "dropout_mask" if field == "dropout_p" else field

        def ignores(q, k, v, *, mask_mod=None, **options):
            return everything(q, k, v, **{"mask_mod": mask_mod, **options, dropped: None})

        assert verdict(ignores, case, inputs=inputs) == "bug"


def plain(q, k, v, *, scale, causal):
    return everything(q, k, v, scale=scale, causal=causal)


def capped(q, k, v, *, scale, causal, softcap=None):
    return everything(q, k, v, scale=scale, causal=causal, softcap=softcap)


def paged(q, k, v, *, scale, causal, block_table): ...


def dropping(q, k, v, *, scale, causal, dropout_p): ...


@pytest.mark.parametrize(
    ("function", "case", "message"),
    [
        (plain, SMALL.but(softcap=2.0), "plain takes no softcap, which the case has (softcap=2.0): add the keyword"),
        (capped, SMALL.but(window=(3, 0)), "capped takes no window_size, which the case has (window=3,0): add the keyword; it takes softcap"),
        (capped, SMALL.but(alibi_slopes=(0.5, 1.0)), "capped takes no alibi_slopes, which the case has (alibi_slopes=0.5,1.0): add the keyword; it takes softcap"),
        (capped, SMALL.but(sinks="normal"), "capped takes no sinks, which the case has (sinks=normal): add the keyword; it takes softcap"),
        (capped, SMALL.but(dropout_p=0.5), "capped takes no dropout_p, which the case has (dropout_p=0.5): add the keyword; it takes softcap"),
        (dropping, SMALL.but(dropout_p=0.5), "dropping takes no dropout_mask, which gives the probs that dropout_p=0.5 keeps: add the keyword; it takes dropout_p"),
        (capped, SMALL.but(score_mod=relative), f"capped takes no score_mod, which the case has (score_mod={__name__}:relative): add the keyword; it takes softcap"),
        (capped, SMALL.but(mask_mod=third), f"capped takes no mask_mod, which the case has (mask_mod={__name__}:third): add it, or mask; it takes softcap"),
        (capped, RAGGED, "capped takes no cu_seqlens_q, seqlens_k or mask, which gives seqlens_q=9,0,4, seqlens_k=6,3,12: add one of these keywords; it takes softcap"),
        (capped, SMALL.but(page_size=4), "capped takes no block_table, which the case has (page_size=4): add it, or kv_indptr, kv_indices and kv_last_page_len; it takes softcap"),
        (paged, SMALL, "paged takes block_table, but the case has no pages: choose a page_size"),
        (paged, SMALL.but(page_size=4), "paged takes no seqlens_k, which gives the end of the keys in pages: add that keyword, or cu_seqlens_k; it takes block_table"),
    ],
)  # fmt: skip
def test_what_a_function_does_not_take_is_refused(function: Any, case: Case, message: str) -> None:
    assert refusal(run, function, case) == message


def test_a_dropout_mask_without_dropout_is_refused() -> None:
    inputs = dict(zip("qkv", SMALL.inputs(), strict=True)) | {"dropout_mask": np.eye(9, 12, dtype=bool)}
    for target in (everything, "flash"):
        assert refusal(run, target, SMALL, inputs=inputs).endswith(
            ": dropout_mask needs dropout_p: kept probs are divided by 1 - dropout_p"
        )


def test_distances_of_alibi_in_a_ragged_batch_need_lengths() -> None:
    def kernel(q, k, v, *, scale, causal, alibi_slopes, mask=None): ...

    slopes = {"alibi_slopes": (0.5, 0.25)}
    assert refusal(run, kernel, RAGGED.but(**slopes)) == (
        "kernel takes no cu_seqlens_q, which gives seqlens_q=9,0,4, seqlens_k=6,3,12, from which ALiBi "
        "counts distances: add the keyword; it takes alibi_slopes, mask"
    )


def test_codes_lie_in_boxes() -> None:
    def kernel(q, k, v, *, scale, causal, scale_q, scale_k, scale_v, cu_seqlens_q, cu_seqlens_k): ...

    case = RAGGED.but(codes="e4m3")
    assert refusal(run, kernel, case) == "kernel: quantised codes cannot be packed or paged; use the padded layout"
