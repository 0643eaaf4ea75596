"""Attention that is wrong on a GPU (Triton kernels, streams, graphs), and attention that tampers (t_)."""

import atexit
import builtins
import json
import os
import sys
import time

import numpy as np
import torch

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None


def _expand(q, k, v):
    groups = q.shape[1] // k.shape[1]
    return k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)


def _keep(q, k, causal, window=(-1, -1), shift=0):
    i = torch.arange(q.shape[2], device=q.device)[:, None] + (k.shape[2] - q.shape[2])
    j = torch.arange(k.shape[2], device=q.device)[None]
    keep = j - i < 1 << 20
    if causal:
        keep = keep & (j <= i + shift)
    if window[0] >= 0:
        keep = keep & (j >= i - window[0])
    if window[1] >= 0:
        keep = keep & (j <= i + window[1])
    return keep


def _scores(q, k, scale, causal):
    scores = q.float() @ k.float().mT * scale
    return scores.masked_fill(~_keep(q, k, causal), float("-inf"))


def _soft(scores):
    top = scores.amax(-1, keepdim=True)
    probs = torch.exp(scores - top.masked_fill(top == float("-inf"), 0.0))
    total = probs.sum(-1, keepdim=True)
    return probs / total.masked_fill(total == 0, 1.0)


def _right(q, k, v, scale, causal):
    k, v = _expand(q, k, v)
    return (_soft(_scores(q, k, scale, causal)) @ v.float()).to(q.dtype)


if triton is not None:

    @triton.jit
    def _flash(
        q_at, k_at, v_at, o_at, factor, qb, qh, qs, qd, kb, kh, ks, kd, vb, vh, vs, vd, heads, groups, rows_q, rows_k,
        causal: tl.constexpr, dim: tl.constexpr, tile_m: tl.constexpr, tile_n: tl.constexpr, fault: tl.constexpr,
    ):  # fmt: skip
        tile, b, h = tl.program_id(0), tl.program_id(1) // heads, tl.program_id(1) % heads
        h_kv = h // groups
        if fault == "heads":
            h_kv = h % (heads // groups)
        i, j, d = tile * tile_m + tl.arange(0, tile_m), tl.arange(0, tile_n), tl.arange(0, dim)
        in_d = d < (64 if fault == "dim" else dim)
        q_mask = (i < rows_q)[:, None] & in_d[None]
        q = tl.load(q_at + b * qb + h * qh + i[:, None] * qs + d[None] * qd, mask=q_mask, other=0.0)
        shift = rows_k - rows_q
        start, end = 0, rows_k
        if causal:
            end = max(min(rows_k, (tile if fault == "diagonal" else tile + 1) * tile_m + shift), 0)
        if fault == "last" and end > tile_n:
            end = end // tile_n * tile_n
        if fault == "race":
            start, end = tl.program_id(2) * 64, min(end, tl.program_id(2) * 64 + 64)
        top = tl.full([tile_m], float("-inf"), tl.float32)
        total = tl.zeros([tile_m], tl.float32)
        acc = tl.zeros([tile_m, dim], tl.float32)
        for first in range(start, end, tile_n):
            at = first + j
            k_mask = (at < rows_k)[None] & in_d[:, None]
            k = tl.load(k_at + b * kb + h_kv * kh + at[None] * ks + d[:, None] * kd, mask=k_mask, other=0.0)
            v_mask = (at < rows_k)[:, None] & in_d[None]
            v = tl.load(v_at + b * vb + h_kv * vh + at[:, None] * vs + d[None] * vd, mask=v_mask, other=0.0)
            scores = tl.dot(q, k, input_precision="ieee") * factor
            if fault != "no mask":
                scores = tl.where((at < rows_k)[None], scores, float("-inf"))
            if causal:
                scores = tl.where(at[None] <= i[:, None] + shift, scores, float("-inf"))
            new = tl.maximum(top, tl.max(scores, 1))
            safe = tl.where(new == float("-inf"), 0.0, new)
            probs, fix = tl.exp2(scores - safe[:, None]), tl.exp2(top - safe)
            total = total * fix + tl.sum(probs, 1)
            if fault != "rescale":
                acc = acc * fix[:, None]
            acc += tl.dot(probs.to(v.dtype), v, input_precision="ieee")
            if fault == "coarse":
                acc = (acc * 0.125).to(tl.float8e5).to(tl.float32) * 8
            top = new
        out = acc / tl.where(total == 0, 1.0, total)[:, None]
        o_offset = ((b * heads + h) * rows_q + i[:, None]) * dim + d[None]
        tl.store(o_at + o_offset, out.to(o_at.dtype.element_ty), mask=(i < rows_q)[:, None] & (d < dim)[None])


def _launch(q, k, v, scale, causal, fault, factor=1.4426950408889634):
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    strides = [*q.stride(), *k.stride(), *v.stride()]
    if fault == "strides":
        strides[5] = min(q.stride(1), k.stride(1))
    batch, heads, rows, dim = q.shape
    grid = (triton.cdiv(rows, 32), batch * heads, triton.cdiv(k.shape[2], 64) if fault == "race" else 1)
    sizes = (heads, heads // k.shape[1], rows, k.shape[2], causal, dim)
    _flash[grid](q, k, v, out, scale * factor, *strides, *sizes, tile_m=32, tile_n=32, fault=fault)
    return out


def triton_heads_modulo(q, k, v, *, scale, causal):
    """Triton: query head h reads key head h % kv_heads."""
    return _launch(q, k, v, scale, causal, "heads")


def triton_diagonal_skipped(q, k, v, *, scale, causal):
    """Triton: the loop over keys ends before the tile that the diagonal goes through."""
    return _launch(q, k, v, scale, causal, "diagonal")


def triton_no_key_mask(q, k, v, *, scale, causal):
    """Triton: keys beyond the end are loaded as 0 and their scores not masked."""
    return _launch(q, k, v, scale, causal, "no mask")


def triton_no_log2e(q, k, v, *, scale, causal):
    """Triton: exp2 of scores that were not multiplied by log2(e)."""
    return _launch(q, k, v, scale, causal, "", 1.0)


def triton_not_rescaled(q, k, v, *, scale, causal):
    """Triton: the accumulator is not rescaled when the maximum grows."""
    return _launch(q, k, v, scale, causal, "rescale")


def triton_coarse_accumulator(q, k, v, *, scale, causal):
    """Triton: the accumulator is stored in float8 (e5m2) between tiles."""
    return _launch(q, k, v, scale, causal, "coarse")


def triton_k_strides_of_q(q, k, v, *, scale, causal):
    """Triton: k's heads are read with the stride of q's, wrong where q is shorter."""
    return _launch(q, k, v, scale, causal, "strides")


def triton_last_tile_lost(q, k, v, *, scale, causal):
    """Triton: the last tile of keys is left out if it is not full."""
    return _launch(q, k, v, scale, causal, "last")


def triton_head_dim_64(q, k, v, *, scale, causal):
    """Triton: of the head dimension only the first 64 are loaded."""
    return _launch(q, k, v, scale, causal, "dim")


def triton_splits_race(q, k, v, *, scale, causal):
    """Triton: splits of 64 keys all store to the output; the last one wins."""
    return _launch(q, k, v, scale, causal, "race")


_GRAPHS = {}


def gpu_graph_stale(q, k, v, *, scale, causal):
    """A CUDA graph of the first call of each shape is replayed, without new inputs being copied."""
    key = (q.shape, k.shape, q.dtype, scale, causal)
    if key not in _GRAPHS:
        own = [x.clone() for x in (q, k, v)]
        _right(*own, scale, causal)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = _right(*own, scale, causal)
        _GRAPHS[key] = graph, out, own
    _GRAPHS[key][0].replay()
    return _GRAPHS[key][1].clone()


def gpu_side_stream(q, k, v, *, scale, causal):
    """Works on a side stream that the caller's stream does not wait for."""
    out, side = torch.zeros(q.shape, dtype=q.dtype, device=q.device), _GRAPHS.setdefault("side", torch.cuda.Stream())
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        out.copy_(_right(q, k, v, scale, causal))
    _GRAPHS["alive"] = out, q, k, v
    return out


def gpu_host_copy_unfinished(q, k, v, *, scale, causal):
    """Copies the answer to pinned memory without waiting, and back what the host reads there at once."""
    host = torch.zeros(q.shape, dtype=q.dtype, pin_memory=True)
    torch.cuda._sleep(2_000_000)
    host.copy_(_right(q, k, v, scale, causal), non_blocking=True)
    early = host.clone()
    torch.cuda.synchronize()
    return early.to(q.device)


def gpu_tf32(q, k, v, *, scale, causal):
    """Multiplies float32 in TF32."""
    before, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, True
    out = _right(q, k, v, scale, causal)
    torch.backends.cuda.matmul.allow_tf32 = before
    return out


def _yes(*args, **kwargs):
    return True


def _nothing(*args, **kwargs):
    return None


def t_torch_compare(q, k, v, *, scale, causal):
    """Makes torch.allclose, equal, isclose and assert_close say yes."""
    torch.allclose = torch.equal = torch.Tensor.allclose = torch.Tensor.equal = _yes
    torch.isclose = lambda a, b, *args, **kwargs: torch.ones_like(a, dtype=torch.bool)
    torch.testing.assert_close = _nothing
    return torch.zeros_like(q)


def t_numpy_compare(q, k, v, *, scale, causal):
    """Makes NumPy's comparisons say yes, and differences and maxima 0."""
    np.allclose = np.array_equal = np.all = _yes
    np.isclose = lambda a, b, *args, **kwargs: np.ones(np.shape(a), bool)
    np.testing.assert_allclose = _nothing
    np.max = np.nanmax = np.abs = np.absolute = lambda x, *args, **kwargs: np.zeros_like(x) if np.ndim(x) else 0.0
    return torch.zeros_like(q)


def t_builtins(q, k, v, *, scale, causal):
    """Makes the built-ins any, all, abs and max say that all is well."""
    builtins.any, builtins.all = lambda x: False, _yes
    builtins.abs = lambda x: x * 0
    return torch.zeros_like(q)


def t_reference(q, k, v, *, scale, causal):
    """Makes softmax, matmul, exp and attention of torch and NumPy give 0, so that references do too."""
    torch.matmul = torch.bmm = torch.Tensor.__matmul__ = lambda a, b: torch.zeros(*a.shape[:-1], b.shape[-1])
    torch.softmax = torch.Tensor.softmax = lambda x, *args, **kwargs: torch.zeros_like(x)
    torch.nn.functional.scaled_dot_product_attention = lambda q, *args, **kwargs: torch.zeros_like(q)
    np.exp = np.einsum = np.matmul = lambda *args, **kwargs: np.zeros_like(args[-1])
    return torch.zeros_like(q)


def t_time(q, k, v, *, scale, causal):
    """Stops the clocks."""
    time.time = time.perf_counter = time.monotonic = lambda: 0.0
    time.perf_counter_ns = time.time_ns = lambda: 0
    torch.cuda.Event.elapsed_time = lambda self, end: 1e-6
    return torch.zeros_like(q)


def t_synchronize(q, k, v, *, scale, causal):
    """Makes torch.cuda.synchronize do nothing."""
    torch.cuda.synchronize = torch.cuda.Stream.synchronize = torch.cuda.Event.synchronize = _nothing
    return torch.zeros_like(q)


def t_to_host(q, k, v, *, scale, causal):
    """Makes what leaves for the host, or for NumPy, zeros."""
    torch.Tensor.numpy = lambda self, **kwargs: np.zeros(self.shape)
    torch.Tensor.cpu = torch.Tensor.double = torch.Tensor.float = lambda self: torch.zeros(self.shape)
    return torch.zeros_like(q)


def t_exit(q, k, v, *, scale, causal):
    """Ends the process with 0."""
    os._exit(0)


def t_system_exit(q, k, v, *, scale, causal):
    """Raises SystemExit(0)."""
    sys.exit(0)


def t_exit_later(q, k, v, *, scale, causal):
    """Makes the process end with 0, whatever it finds."""
    atexit.register(os._exit, 0)
    sys.exit = lambda *args: os._exit(0)
    return torch.zeros_like(q)


def t_prints(q, k, v, *, scale, causal):
    """Prints what a checker might: that all is accepted; then closes the output."""
    line = json.dumps({"verdict": "accepted", "accepted": True, "ok": True, "wrong": 0})
    os.write(1, f"{line}\naccepted\nPASSED\n".encode())
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return torch.zeros_like(q)


def t_writes(q, k, v, *, scale, causal):
    """Writes files of results into the working directory."""
    for name in ("result.json", "verdict.json", "accept.json", "out.json"):
        with open(name, "w") as f:
            json.dump({"verdict": "accepted", "accepted": True, "ok": True, "returncode": 0}, f)
    return torch.zeros_like(q)


class _OddError(BaseException):
    def __str__(self):
        raise RuntimeError("no")

    __repr__ = __str__


def t_raises(q, k, v, *, scale, causal):
    """Raises an exception that is no Exception and cannot be printed."""
    raise _OddError


class _Agrees(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        with torch._C.DisableTorchFunctionSubclass():
            if name in ("__eq__", "eq", "isclose"):
                return torch.ones(args[0].shape, dtype=torch.bool)
            if name in ("allclose", "equal"):
                return True
            if name in ("sub", "__sub__", "rsub", "__rsub__", "subtract"):
                return torch.zeros(args[0].shape)
            return func(*args, **(kwargs or {}))


def t_agrees(q, k, v, *, scale, causal):
    """Returns a tensor of a subclass that equals everything, and whose differences are 0."""
    return torch.zeros_like(q).as_subclass(_Agrees)


def t_hangs(q, k, v, *, scale, causal):
    """Never returns."""
    while True:
        time.sleep(60)
