"""Stand-ins of packages that are not installed here: functions with their signatures, computed in NumPy.

Each checks what it is given as the package does, and reads no more of packed sequences, caches and pages than its lengths
say. Signatures as of flash-attn 2.8 (flash_attn/flash_attn_interface.py), FlashInfer 0.2 (flashinfer/prefill.py,
decode.py), xFormers 0.0.30 (xformers/ops/fmha) and JAX 0.6 (jax/_src/nn/functions.py).
"""

import math
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tests.attend import attend

torch = pytest.importorskip("torch", reason="torch is not installed")


def _numpy(*tensors: Any) -> list[np.ndarray]:
    return [x.float().numpy() for x in tensors]


def _as(x: np.ndarray, like: Any) -> Any:
    return torch.from_numpy(np.ascontiguousarray(x, np.float32)).to(like.dtype)


# --- flash-attn


def _flash(q: Any, k: Any, v: Any, scale: Any, causal: Any, window: Any, softcap: Any, slopes: Any) -> Any:
    """One sequence of FlashAttention-2."""
    assert isinstance(causal, bool) and len(window) == 2 and softcap >= 0 and scale is not None
    left, right = (-1 if side >= len(k) else side for side in window)
    right = 0 if causal else right
    slopes = None if slopes is None else slopes.numpy()
    assert slopes is None or (slopes.dtype == np.float32 and slopes.shape == (q.shape[1],))
    return attend(
        *_numpy(q, k, v), scale=scale, window=(left, right), softcap=softcap, slopes=slopes,
        column=left == -1 and right == 0, empty_lse=np.inf,
    )  # fmt: skip


def _check_flash(q: Any, k: Any, v: Any, dropout_p: float = 0.0) -> None:
    assert q.dtype in (torch.float16, torch.bfloat16) and q.dtype == k.dtype == v.dtype and dropout_p == 0
    assert all(x.stride(-1) == 1 for x in (q, k, v)) and q.shape[-1] == k.shape[-1] == v.shape[-1]


def flash_attn_func(
    q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
    deterministic=False, return_attn_probs=False,
):  # fmt: skip
    _check_flash(q, k, v, dropout_p)
    given = (softmax_scale, causal, window_size, softcap, alibi_slopes)
    found = [_flash(*one, *given) for one in zip(q, k, v, strict=True)]
    out, lse = _as(np.stack([x for x, _ in found]), q), torch.from_numpy(np.stack([x for _, x in found]))
    return (out, lse, None) if return_attn_probs else out


def _of_pages(cache, table, length):
    """The keys of a sequence, [t, h, d], from pages [page, key, h, d]."""
    needed = -(-length // cache.shape[1])
    pages = table[:needed].tolist()
    assert all(0 <= page < len(cache) for page in pages)
    keys = torch.cat([cache[page] for page in pages]) if pages else cache[0, :0]
    return keys[:length]


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None,
    causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
    return_attn_probs=False, block_table=None,
):  # fmt: skip
    _check_flash(q, k, v, dropout_p)
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32 and cu_seqlens_q[-1] == len(q) and q.ndim == 3
    assert max(cu_seqlens_q.diff()) <= max_seqlen_q and max(cu_seqlens_k.diff()) <= max_seqlen_k
    given = (softmax_scale, causal, window_size, softcap, alibi_slopes)
    found = []
    for b in range(len(cu_seqlens_q) - 1):
        one, keys = slice(*cu_seqlens_q[b : b + 2]), slice(*cu_seqlens_k[b : b + 2])
        if block_table is None:
            of_k, of_v = k[keys], v[keys]
        else:
            assert block_table.dtype == torch.int32 and k.ndim == 4
            of_k, of_v = (_of_pages(x, block_table[b], int(keys.stop - keys.start)) for x in (k, v))
        found.append(_flash(q[one], of_k, of_v, *given))
    out = _as(np.concatenate([x for x, _ in found]), q)
    return (out, torch.from_numpy(np.concatenate([x for _, x in found], axis=1)), None) if return_attn_probs else out


def flash_attn_with_kvcache(
    q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None, cache_batch_idx=None,
    cache_leftpad=None, block_table=None, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
    rotary_interleaved=True, alibi_slopes=None, num_splits=0, return_softmax_lse=False,
):  # fmt: skip
    _check_flash(q, k_cache, v_cache)
    assert cache_seqlens.dtype == torch.int32 and cache_seqlens.shape == (len(q),)
    found = []
    for b, length in enumerate(cache_seqlens.tolist()):
        if block_table is None:
            keys = [x[b, :length] for x in (k_cache, v_cache)]
        else:
            keys = [_of_pages(x, block_table[b], length) for x in (k_cache, v_cache)]
        found.append(_flash(q[b], *keys, softmax_scale, causal, window_size, softcap, alibi_slopes))
    out, lse = _as(np.stack([x for x, _ in found]), q), torch.from_numpy(np.stack([x for _, x in found]))
    return (out, lse) if return_softmax_lse else out


# --- FlashInfer


def _flashinfer(q, k, v, sm_scale, causal, window_left, logits_soft_cap):
    """One sequence; lse [s, h] of base 2."""
    assert sm_scale is not None and q.dtype in (torch.float16, torch.bfloat16)
    out, lse = attend(
        *_numpy(q, k, v), scale=sm_scale, causal=causal, window=(window_left, -1), softcap=logits_soft_cap or 0.0
    )
    return _as(out, q), torch.from_numpy(np.ascontiguousarray(lse.T / np.float32(math.log(2))))


def _nhd(x, kv_layout):
    assert kv_layout in ("NHD", "HND")
    return x if kv_layout == "NHD" else x.transpose(-3, -2)


def single_prefill_with_kv_cache(
    q, k, v, scale_q=None, scale_k=None, scale_v=None, o_dtype=None, custom_mask=None, packed_custom_mask=None,
    causal=False, kv_layout="NHD", pos_encoding_mode="NONE", use_fp16_qk_reduction=False, sm_scale=None,
    window_left=-1, logits_soft_cap=None, rope_scale=None, rope_theta=None, backend="auto", return_lse=False,
):  # fmt: skip
    k, v = _nhd(k, kv_layout), _nhd(v, kv_layout)
    out, lse = _flashinfer(q, k, v, sm_scale, causal, window_left, logits_soft_cap)
    return (out, lse) if return_lse else out


def single_decode_with_kv_cache(
    q, k, v, kv_layout="NHD", pos_encoding_mode="NONE", use_tensor_cores=False, q_scale=None, k_scale=None,
    v_scale=None, window_left=-1, logits_soft_cap=None, sm_scale=None, rope_scale=None, rope_theta=None,
    return_lse=False,
):  # fmt: skip
    assert q.ndim == 2
    k, v = _nhd(k, kv_layout), _nhd(v, kv_layout)
    out, lse = _flashinfer(q[None], k, v, sm_scale, False, window_left, logits_soft_cap)
    return (out[0], lse[0]) if return_lse else out[0]


class BatchDecodeWithPagedKVCacheWrapper:
    def __init__(
        self,
        float_workspace_buffer,
        kv_layout="NHD",
        use_cuda_graph=False,
        use_tensor_cores=False,
        paged_kv_indptr_buffer=None,
        paged_kv_indices_buffer=None,
        paged_kv_last_page_len_buffer=None,
        backend="auto",
        jit_args=None,
    ):
        assert float_workspace_buffer.dtype == torch.uint8
        self.kv_layout = kv_layout

    def plan(
        self,
        indptr,
        indices,
        last_page_len,
        num_qo_heads,
        num_kv_heads,
        head_dim,
        page_size,
        pos_encoding_mode="NONE",
        window_left=-1,
        logits_soft_cap=None,
        q_data_type="float16",
        kv_data_type=None,
        data_type=None,
        sm_scale=None,
        rope_scale=None,
        rope_theta=None,
        non_blocking=True,
    ):
        assert indptr.dtype == indices.dtype == last_page_len.dtype == torch.int32
        self.sizes = (num_qo_heads, num_kv_heads, head_dim, page_size)
        self.pages = (indptr.tolist(), indices, last_page_len.tolist())
        self.given = (sm_scale, False, window_left, logits_soft_cap)

    def run(
        self, q, paged_kv_cache, *args, q_scale=None, k_scale=None, v_scale=None, out=None, lse=None, return_lse=False
    ):
        heads, kv_heads, dim, size = self.sizes
        k, v = (_nhd(x, self.kv_layout) for x in paged_kv_cache)
        assert q.shape[1:] == (heads, dim) and k.shape[1:] == (size, kv_heads, dim)
        indptr, indices, last = self.pages
        found = []
        for b, one in enumerate(q):
            pages = indices[indptr[b] : indptr[b + 1]]
            length = max(len(pages) - 1, 0) * size + last[b]
            found.append(_flashinfer(one[None], *(_of_pages(x, pages, length) for x in (k, v)), *self.given))
        out, lse = (torch.cat([one[i] for one in found]) for i in (0, 1))
        return (out, lse) if return_lse else out


# --- xFormers


class LowerTriangularMask: ...


class LowerTriangularFromBottomRightMask: ...


class LocalAttentionFromBottomRightMask:
    def __init__(self, window_left, window_right):
        assert window_left >= 0 and window_right >= 0
        self.window = (window_left, window_right)


def memory_efficient_attention(query, key, value, attn_bias=None, p=0.0, scale=None, *, op=None, output_dtype=None):
    assert query.ndim == 4 and query.shape[2] == key.shape[2] == value.shape[2] and p == 0
    given = {
        type(None): {},
        LowerTriangularMask: {"causal": True, "top_left": True},
        LowerTriangularFromBottomRightMask: {"causal": True},
        LocalAttentionFromBottomRightMask: {"window": getattr(attn_bias, "window", None)},
    }[type(attn_bias)]
    found = [attend(*_numpy(*one), scale=scale, **given)[0] for one in zip(query, key, value, strict=True)]
    return _as(np.stack(found), query)


# --- JAX, on NumPy's arrays


def dot_product_attention(
    query,
    key,
    value,
    bias=None,
    mask=None,
    *,
    scale=None,
    is_causal=False,
    query_seq_lengths=None,
    key_value_seq_lengths=None,
    local_window_size=None,
    implementation=None,
):
    batch, rows, heads, _ = query.shape
    keys = key.shape[1]
    whole = (batch, heads, rows, keys)
    assert mask is None or (mask.dtype == bool and mask.ndim == 4)
    seen = np.broadcast_to(True if mask is None else mask, whole)
    for lengths, axis in ((query_seq_lengths, 2), (key_value_seq_lengths, 3)):
        if lengths is not None:
            assert lengths.dtype == np.int32 and lengths.shape == (batch,)
            at = np.arange(whole[axis]).reshape([-1 if i == axis else 1 for i in range(4)])
            seen = seen & (at < lengths.reshape(-1, 1, 1, 1))
    found = []
    for b in range(batch):
        of_bias = None if bias is None else np.broadcast_to(bias, whole)[b]
        found.append(
            attend(
                query[b], key[b], value[b], scale=scale, causal=is_causal, window=local_window_size or (-1, -1),
                top_left=True, mask=seen[b], bias=of_bias,
            )[0].astype(query.dtype)
        )  # fmt: skip
    return np.stack(found)


STAND_INS = {
    "flash_attn": [flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache],
    "flashinfer": [single_prefill_with_kv_cache, single_decode_with_kv_cache, BatchDecodeWithPagedKVCacheWrapper],
    "xformers": [],
    "xformers.ops": [memory_efficient_attention],
    "xformers.ops.fmha": [],
    "xformers.ops.fmha.attn_bias": [
        LowerTriangularMask,
        LowerTriangularFromBottomRightMask,
        LocalAttentionFromBottomRightMask,
    ],
    "jax": [],
    "jax.nn": [dot_product_attention],
}


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put them where `import` finds them; JAX's arrays are NumPy's."""
    put(monkeypatch, STAND_INS)


def put(monkeypatch: pytest.MonkeyPatch, stand_ins: Mapping[str, Sequence[Callable[..., Any]]]) -> None:
    """Modules of these names, with these functions."""
    for name, functions in stand_ins.items():
        module = types.ModuleType(name)
        for function in functions:
            setattr(module, function.__name__, function)
        if name == "jax":
            module.devices = lambda kind: [kind]
            module.device_put = lambda x, device: x
            module.block_until_ready = lambda x: x
        monkeypatch.setitem(sys.modules, name, module)
