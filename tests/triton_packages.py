"""Stand-ins of packages of Triton kernels that are not installed here, as of `tests.packages`.

Signatures as of flash-linear-attention 0.5 (fla/ops/attn/parallel.py), aiter in 2026 (aiter/ops/triton/attention/mha.py)
and native-sparse-attention-triton in 2025 (native_sparse_attention/ops/triton/flash_attention.py).
"""

import numpy as np
import pytest

from tests import packages
from tests.packages import put, torch


def parallel_attn(
    q, k, v, g=None, scale=None, window_size=None, cu_seqlens=None, chunk_indices=None, *, sink_bias=None, **kwargs
):  # fmt: skip
    assert q.shape[:2] == k.shape[:2] == v.shape[:2] and q.dtype == k.dtype == v.dtype and scale is not None
    assert not kwargs, "which it ignores"
    assert cu_seqlens is None or (len(q) == 1 and cu_seqlens.dtype == torch.int64 and cu_seqlens[-1] == q.shape[1])
    assert sink_bias is None or sink_bias.shape == (q.shape[2],)
    starts = [0, q.shape[1]] if cu_seqlens is None else cu_seqlens.tolist()
    window = (-1 if window_size is None else window_size - 1, -1)
    given = {
        "scale": scale,
        "causal": True,
        "window": window,
        "sinks": None if sink_bias is None else sink_bias.numpy(),
    }
    out = torch.empty(*q.shape[:3], v.shape[3], dtype=q.dtype)
    for b in range(len(q)):
        for one in map(slice, starts, starts[1:]):
            made, _ = packages.attend(*packages._numpy(q[b, one], k[b, one], v[b, one]), **given)
            out[b, one] = packages._as(made, q)
    return out


def _aiter(q, k, v, b, softmax_scale, causal, window_size, alibi_slopes, sink):
    """One sequence, the b-th of a batch; out and lse [h, s]."""
    left, right = window_size
    assert right == -1, "window_size_right is not supported yet"
    assert alibi_slopes is None or (alibi_slopes.ndim == 2 and alibi_slopes.shape[1] == q.shape[1])
    assert sink is None or sink.shape == (q.shape[1],)
    rest = q.shape[2] - v.shape[2]
    assert rest == 0 or {v.shape[2], rest} <= {16, 32, 64, 128}
    out, lse = packages.attend(
        *packages._numpy(q, k, v), scale=softmax_scale, causal=causal, window=(left if left > 0 else -1, -1),
        slopes=None if alibi_slopes is None else alibi_slopes[b].numpy(), sinks=None if sink is None else sink.numpy(),
        empty_lse=0.0 if causal else -np.inf,
    )  # fmt: skip
    return packages._as(out, q), torch.from_numpy(lse)


def _flash_attn_func(
    q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), bias=None, alibi_slopes=None,
    deterministic=True, return_lse=False, return_attn_probs=False, sink=None, config=None,
):  # fmt: skip
    given = (softmax_scale, causal, window_size, alibi_slopes, sink)
    found = [_aiter(*one, b, *given) for b, one in enumerate(zip(q, k, v, strict=True))]
    out, lse = (torch.stack(x) for x in zip(*found, strict=True))
    return (out, lse) if return_lse else out


def _flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False,
    window_size=(-1, -1), bias=None, alibi_slopes=None, deterministic=False, return_lse=False,
    return_attn_probs=False, block_table=None, out=None, sink=None, config=None,
):  # fmt: skip
    given = (softmax_scale, causal, window_size, alibi_slopes, sink)
    found = [
        _aiter(q[rows], k[keys], v[keys], b, *given)
        for b, (rows, keys) in enumerate(_sequences(cu_seqlens_q, cu_seqlens_k))
    ]
    out, lse = torch.cat([x for x, _ in found]), torch.cat([x.T for _, x in found])
    return (out, lse) if return_lse else out


def flash_attention_varlen(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal=False, sm_scale=None, gqa_interleave=False
):
    assert q.dtype in (torch.float16, torch.bfloat16) and len(q) == len(k) == len(v) and not gqa_interleave
    found = []
    for rows, keys in _sequences(cu_seqlens_q, cu_seqlens_k):
        arrays = packages._numpy(q[rows], k[keys], v[keys])
        found.append(packages._as(packages.attend(*arrays, scale=sm_scale, causal=causal, top_left=True)[0], q))
    return torch.cat(found)


def _sequences(*starts):
    assert all(x.dtype == torch.int32 for x in starts)
    return zip(*(map(slice, x.tolist(), x.tolist()[1:]) for x in starts), strict=True)


_flash_attn_func.__name__, _flash_attn_varlen_func.__name__ = "flash_attn_func", "flash_attn_varlen_func"
STAND_INS = {
    "fla": [],
    "fla.ops": [],
    "fla.ops.attn": [parallel_attn],
    "aiter": [],
    "aiter.ops": [],
    "aiter.ops.triton": [],
    "aiter.ops.triton.attention": [],
    "aiter.ops.triton.attention.mha": [_flash_attn_func, _flash_attn_varlen_func],
    "native_sparse_attention": [],
    "native_sparse_attention.ops": [flash_attention_varlen],
}


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put them where `import` finds them."""
    put(monkeypatch, STAND_INS)
