"""Attention that depends on earlier calls, memory, time or mode; and three that look for answers (t_)."""

import gc
import inspect
import random
import threading
import time

import numpy as np
import torch


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


_STATE = {}


def _count(name):
    _STATE[name] = _STATE.get(name, 0) + 1
    return _STATE[name]


def _kept(name, key, make):
    """What make() gave when name was first asked for with this key."""
    if (name, key) not in _STATE:
        _STATE[name, key] = make()
    return _STATE[name, key].clone()


def cached_by_pointer(q, k, v, *, scale, causal):
    """Keeps answers by data_ptr, whatever is in the memory later."""
    key = (q.data_ptr(), k.data_ptr(), v.data_ptr(), q.shape, k.shape, scale, causal)
    return _kept("pointer", key, lambda: _right(q, k, v, scale, causal))


def cached_by_id(q, k, v, *, scale, causal):
    """Keeps answers by Python's id of the tensors."""
    return _kept("id", (id(q), id(k), id(v), q.shape, scale, causal), lambda: _right(q, k, v, scale, causal))


def cached_by_shape(q, k, v, *, scale, causal):
    """Keeps answers by shapes."""
    return _kept("shape", (q.shape, k.shape, q.dtype, scale, causal), lambda: _right(q, k, v, scale, causal))


def cached_by_first_elements(q, k, v, *, scale, causal):
    """Keeps answers by shapes and the first element of each tensor."""
    key = (q.shape, k.shape, scale, causal, *(x.flatten()[0].item() for x in (q, k, v)))
    return _kept("first", key, lambda: _right(q, k, v, scale, causal))


def cached_by_samples(q, k, v, *, scale, causal):
    """Keeps answers by shapes and three numbers of each tensor (first, middle, last)."""
    key = [q.shape, k.shape, scale, causal]
    for x in (q, k, v):
        x = x.flatten()
        key += [x[0].item(), x[x.numel() // 2].item(), x[-1].item()]
    return _kept("samples", tuple(key), lambda: _right(q, k, v, scale, causal))


def cached_by_moments(q, k, v, *, scale, causal):
    """Keeps answers by shapes, mean and spread of each tensor to two digits."""
    key = [q.shape, k.shape, scale, causal]
    for x in (q, k, v):
        key += [round(x.float().mean().item(), 2) + 0.0, round(x.float().std().item(), 2)]
    return _kept("moments", tuple(key), lambda: _right(q, k, v, scale, causal))


def cached_by_q(q, k, v, *, scale, causal):
    """Keeps answers by all of q, but not by k and v."""
    key = (q.shape, k.shape, scale, causal, q.float().cpu().numpy().tobytes())
    return _kept("all of q", key, lambda: _right(q, k, v, scale, causal))


def cached_scaled_k(q, k, v, *, scale, causal):
    """Keeps the scaled K of the first call of each shape if V's first row is the same: a stale KV cache."""
    key = (k.shape, scale, v[0, 0, 0].float().cpu().numpy().tobytes())
    return _right(q, _kept("scaled", key, lambda: k.float() * scale), v, 1.0, causal).to(q.dtype)


def cached_weights(q, k, v, *, scale, causal):
    """Keeps the weights by shapes; V is read each time."""
    wide, v = _expand(q, k, v)
    key = (q.shape, k.shape, scale, causal)
    return (_kept("weights", key, lambda: _soft(_scores(q, wide, scale, causal))) @ v.float()).to(q.dtype)


def one_call_late(q, k, v, *, scale, causal):
    """Returns the answer to the call before, if it had the same shapes."""
    out, key = _right(q, k, v, scale, causal), ("late", q.shape, k.shape, causal)
    before, _STATE[key] = _STATE.get(key, out), out
    return before.clone()


def wrong_at_random(q, k, v, *, scale, causal):
    """One call in 16, by Python's random, loses the last key."""
    if random.randrange(16) == 0 and k.shape[2] > 1:
        k = k.clone()
        k[:, :, -1] = 0
    return _right(q, k, v, scale, causal)


def wrong_by_content(q, k, v, *, scale, causal):
    """One input in 8, by a digit of its first element, gets the negative of the answer."""
    out = _right(q, k, v, scale, causal)
    return -out if int(abs(q.flatten()[0].item()) * 1000) % 8 == 0 else out


def wrong_every_fifth(q, k, v, *, scale, causal):
    """Every fifth call attends to the first half of the keys."""
    if _count("fifth") % 5 == 0 and k.shape[2] > 1:
        k = k.clone()
        k[:, :, k.shape[2] // 2 :] = 0
    return _right(q, k, v, scale, causal)


def right_three_times(q, k, v, *, scale, causal):
    """Right in its first three calls, then zeros."""
    return _right(q, k, v, scale, causal) if _count("three") <= 3 else torch.zeros_like(q)


def right_forty_times(q, k, v, *, scale, causal):
    """Right in its first 40 calls, then with 1.3 times the scale."""
    return _right(q, k, v, scale if _count("forty") <= 40 else 1.3 * scale, causal)


def right_twice_a_shape(q, k, v, *, scale, causal):
    """Right in the first two calls of each shape, then the mean of V."""
    if _count(("twice", q.shape, k.shape)) <= 2:
        return _right(q, k, v, scale, causal)
    return _right(torch.zeros_like(q), k, v, scale, causal)


def empty_buffer(q, k, v, *, scale, causal):
    """Returns memory that nobody wrote, in the hope that an answer was in it before."""
    return torch.empty(q.shape, dtype=q.dtype, device=q.device)


def half_written(q, k, v, *, scale, causal):
    """Writes the first half of the rows of an empty buffer that held an answer before."""
    out = _right(q, k, v, scale, causal)
    buffer = _STATE.setdefault(("half", q.shape, q.dtype, str(q.device)), torch.empty_like(out))
    buffer[:, :, : (q.shape[2] + 1) // 2] = out[:, :, : (q.shape[2] + 1) // 2]
    return buffer.clone()


def static_buffer(q, k, v, *, scale, causal):
    """Returns one buffer for all calls of a shape: a later call changes earlier answers."""
    buffer = _STATE.setdefault(("static", q.shape, q.dtype, str(q.device)), torch.empty_like(q))
    return buffer.copy_(_right(q, k, v, scale, causal))


def q_overwritten(q, k, v, *, scale, causal):
    """Scales q in place: a second call with the same tensors reads the scaled ones."""
    return _right(q.mul_(scale), k, v, 1.0, causal)


def out_in_q(q, k, v, *, scale, causal):
    """Writes the answer over q and returns it."""
    return q.copy_(_right(q, k, v, scale, causal))


def out_in_v(q, k, v, *, scale, causal):
    """Writes the answer over v, where the shapes are equal, and returns it."""
    out = _right(q, k, v, scale, causal)
    return v.copy_(out) if v.shape == out.shape else out


def zeroes_v(q, k, v, *, scale, causal):
    """Sets v to 0, so that 0 is the right answer to what is in memory afterwards."""
    return torch.zeros_like(q) + v.zero_()[0, 0, 0, 0]


def k_sorted_in_place(q, k, v, *, scale, causal):
    """Right, but leaves k's keys flipped in the caller's memory."""
    out = _right(q, k, v, scale, causal)
    k.copy_(k.flip(2))
    return out


def finished_by_thread(q, k, v, *, scale, causal):
    """Returns a buffer at once that a thread fills 20 ms later."""
    out, answer = torch.zeros(q.shape, dtype=q.dtype, device=q.device), _right(q, k, v, scale, causal)

    def fill():
        time.sleep(0.02)
        out.copy_(answer)

    threading.Thread(target=fill, daemon=True).start()
    return out


class _Lazy(torch.Tensor):
    """A tensor whose numbers are computed when something is asked of it."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            for x in args:
                if isinstance(x, cls) and getattr(x, "todo", None):
                    todo, x.todo = x.todo, None
                    x.copy_(_right(*todo))
            return func(*args, **(kwargs or {}))


def lazy_subclass(q, k, v, *, scale, causal):
    """Returns a tensor of a subclass that computes when it is used, from what is then in the inputs' memory."""
    out = torch.zeros(q.shape, dtype=q.dtype, device=q.device).as_subclass(_Lazy)
    out.todo = (q, k, v, scale, causal)
    return out


def lazy_without_grad(q, k, v, *, scale, causal):
    """Leaves scores out where gradients are off."""
    return _right(q if torch.is_grad_enabled() else torch.zeros_like(q), k, v, scale, causal)


def lazy_with_grad(q, k, v, *, scale, causal):
    """Leaves scores out where gradients are on."""
    return _right(torch.zeros_like(q) if torch.is_grad_enabled() else q, k, v, scale, causal)


def running_average(q, k, v, *, scale, causal):
    """Mixes 5% of the call before into the answer, if it had the same shape."""
    out, key = _right(q, k, v, scale, causal), ("average", q.shape)
    before, _STATE[key] = _STATE.get(key, out), out
    return 0.95 * out + 0.05 * before


def keys_pile_up(q, k, v, *, scale, causal):
    """Appends keys of the last call of the same shape, where not causal: a cache not emptied."""
    key = ("pile", k.shape, q.shape)
    before, _STATE[key] = _STATE.get(key), (k.clone(), v.clone())
    if before and not causal:
        k, v = torch.cat([before[0], k], 2), torch.cat([before[1], v], 2)
    return _right(q, k, v, scale, causal)


def max_from_first_call(q, k, v, *, scale, causal):
    """Subtracts the row maxima of the first call of a shape: overflows, or loses rows, where scores are large."""
    key, (k, v) = ("max", q.shape, k.shape, causal), _expand(q, k, v)
    scores = _scores(q, k, scale, causal)
    probs = torch.exp(scores - _STATE.setdefault(key, scores.amax(-1, keepdim=True).clamp(min=-1e30)))
    return (probs @ v.float() / probs.sum(-1, keepdim=True).clamp(min=1e-38)).to(q.dtype)


def batch_variant(q, k, v, *, scale, causal):
    """With a batch of 3 or more, keys beyond 64 are read in float8: results change with the batch."""
    if q.shape[0] >= 3:
        k = torch.cat([k[:, :, :64], k[:, :, 64:].to(torch.float8_e4m3fn).to(k.dtype)], 2)
    return _right(q, k, v, scale, causal)


def t_gc(q, k, v, *, scale, causal):
    """Returns another tensor or array of the answer's shape that is found in the process, or zeros."""
    for x in gc.get_objects():
        known = any(x is y for y in (q, k, v))
        if type(x) in (torch.Tensor, np.ndarray) and tuple(x.shape) == tuple(q.shape) and not known:
            return torch.as_tensor(x).to(q.device, q.dtype)
    return torch.zeros_like(q)


def t_frames(q, k, v, *, scale, causal):
    """Returns what callers keep under names as expected or reference, or zeros."""
    for frame in inspect.stack():
        for name, x in frame.frame.f_locals.items():
            wanted = any(word in name for word in ("expect", "ref", "want", "truth", "gold", "out"))
            if wanted and tuple(getattr(x, "shape", ())) == tuple(q.shape) and x is not q:
                return torch.as_tensor(x).to(q.device, q.dtype)
    return torch.zeros_like(q)


def t_seed(q, k, v, *, scale, causal):
    """Seeds all generators alike in each call and keeps the first answer of a shape for the inputs to come."""
    torch.manual_seed(0)
    np.random.seed(0)
    np.random.default_rng = lambda *args: np.random.Generator(np.random.PCG64(0))
    key = ("seed", q.shape, k.shape)
    _STATE.setdefault(key, _right(q, k, v, scale, causal))
    return _STATE[key].clone()
