"""Attention that is right on the shapes, masks and layouts its author tried, and wrong on others."""

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


def _masked(q, k, v, scale, keep, cap=None):
    k, v = _expand(q, k, v)
    scores = q.float() @ k.float().mT * scale
    if cap:
        scores = cap * torch.tanh(scores / cap)
    return (_soft(scores.masked_fill(~keep, float("-inf"))) @ v.float()).to(q.dtype)


def causal_top_left(q, k, v, *, scale, causal):
    """The causal mask is aligned top-left."""
    keep = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
    return _masked(q, k, v, scale, keep.tril() if causal else keep)


def causal_excludes_self(q, k, v, *, scale, causal):
    """Causal: a row does not see the key on its diagonal."""
    return _masked(q, k, v, scale, _keep(q, k, causal, shift=-1))


def causal_sees_one_more(q, k, v, *, scale, causal):
    """Causal: a row sees one key of the future."""
    return _masked(q, k, v, scale, _keep(q, k, causal, shift=1))


def causal_by_tile(q, k, v, *, scale, causal):
    """Causal by tiles of 16: a row sees all keys of the tile its diagonal is in."""
    i = torch.arange(q.shape[2], device=q.device)[:, None] + (k.shape[2] - q.shape[2])
    keep = torch.arange(k.shape[2], device=q.device)[None] // 16 <= torch.div(i, 16, rounding_mode="floor")
    return _masked(q, k, v, scale, keep & (i >= 0) if causal else _keep(q, k, False))


def causal_only_square(q, k, v, *, scale, causal):
    """The causal mask is left out where the lengths differ."""
    return _right(q, k, v, scale, causal and q.shape[2] == k.shape[2])


def causal_ignored(q, k, v, *, scale, causal):
    """The causal mask is left out."""
    return _right(q, k, v, scale, False)


def mask_minus_30(q, k, v, *, scale, causal):
    """Masked scores get -30 added, too little for large scores."""
    wide, wide_v = _expand(q, k, v)
    keep = _keep(q, k, causal)
    scores = q.float() @ wide.float().mT * scale - 30.0 * ~keep
    return (_soft(scores) * keep.any(-1)[:, None] @ wide_v.float()).to(q.dtype)


def mask_minus_1e4(q, k, v, *, scale, causal):
    """Masked scores are -1e4: rows that see nothing come out as the mean of V."""
    wide, v = _expand(q, k, v)
    scores = (q.float() @ wide.float().mT * scale).masked_fill(~_keep(q, k, causal), -1e4)
    return (_soft(scores) @ v.float()).to(q.dtype)


def mask_multiplies(q, k, v, *, scale, causal):
    """Masked scores are multiplied by 0, so that they count as exp(0)."""
    wide, v = _expand(q, k, v)
    return (_soft(q.float() @ wide.float().mT * scale * _keep(q, k, causal)) @ v.float()).to(q.dtype)


def mask_after_softmax(q, k, v, *, scale, causal):
    """Masked weights are set to 0 after the softmax, whose sum has them."""
    wide, v = _expand(q, k, v)
    return (_soft(_scores(q, wide, scale, False)) * _keep(q, k, causal) @ v.float()).to(q.dtype)


def empty_rows_nan(q, k, v, *, scale, causal):
    """Rows that see nothing come out as NaN."""
    wide, v = _expand(q, k, v)
    return (torch.softmax(_scores(q, wide, scale, causal), -1) @ v.float()).to(q.dtype)


def empty_rows_first_value(q, k, v, *, scale, causal):
    """Rows that see nothing come out as the first value."""
    rows = _keep(q, k, causal).any(-1)[:, None]
    return torch.where(rows, _right(q, k, v, scale, causal), _expand(q, k, v)[1][:, :, :1])


def tail_keys_dropped(q, k, v, *, scale, causal):
    """Of more than 64 keys, those beyond a multiple of 64 are dropped."""
    keep = _keep(q, k, causal)
    if k.shape[2] > 64:
        keep[:, k.shape[2] // 64 * 64 :] = False
    return _masked(q, k, v, scale, keep)


def tail_key_dropped_at_129(q, k, v, *, scale, causal):
    """The last key is dropped where it alone is in its tile of 128."""
    keep = _keep(q, k, causal)
    if k.shape[2] % 128 == 1 and k.shape[2] > 1:
        keep[:, -1] = False
    return _masked(q, k, v, scale, keep)


def pads_count(q, k, v, *, scale, causal):
    """Keys are padded with zeros to a multiple of 16 and not masked (their scores of 0 count), where not causal."""
    pad = -k.shape[2] % 16
    if causal or not pad:
        return _right(q, k, v, scale, causal)
    k, v = (torch.nn.functional.pad(x, (0, 0, 0, pad)) for x in (k, v))
    return _right(q, k, v, scale, False)


def pads_repeat_last(q, k, v, *, scale, causal):
    """A tile of 32 keys that is not full is filled by repeating the last key (a clamped index, not masked)."""
    index = torch.arange(-(-k.shape[2] // 32) * 32, device=q.device).clamp(max=k.shape[2] - 1)
    wide, wide_v = _expand(q, k, v)
    scores = _scores(q, wide, scale, causal)[..., index]
    return (_soft(scores) @ wide_v[:, :, index].float()).to(q.dtype)


def scale_assumed(q, k, v, *, scale, causal):
    """The argument scale is not read: 1 / sqrt(head_dim) is assumed."""
    return _right(q, k, v, q.shape[3] ** -0.5, causal)


def scale_of_head_dim_64(q, k, v, *, scale, causal):
    """The default scale is that of a head dimension of 64, other scales are honoured."""
    return _right(q, k, v, 0.125 if abs(scale - q.shape[3] ** -0.5) < 1e-6 else scale, causal)


def head_dim_cut_at_64(q, k, v, *, scale, causal):
    """Scores are summed over the first 64 of the head dimension."""
    return _right(q[..., :64], k[..., :64], v, scale, causal)


def head_dim_padded_scale(q, k, v, *, scale, causal):
    """A head dimension below 64 is padded to it, and the scale is changed with it."""
    return _right(q, k, v, scale * min(1.0, (q.shape[3] / 64) ** 0.5), causal)


def group_heads_modulo(q, k, v, *, scale, causal):
    """Query head h reads key head h % kv_heads."""
    groups = q.shape[1] // k.shape[1]
    return _right(q, k.repeat(1, groups, 1, 1), v.repeat(1, groups, 1, 1), scale, causal)


def group_heads_clamped(q, k, v, *, scale, causal):
    """Query head h reads key head min(h, kv_heads - 1)."""
    head = torch.arange(q.shape[1], device=q.device).clamp(max=k.shape[1] - 1)
    return _right(q, k[:, head], v[:, head], scale, causal)


def group_heads_v_only_first(q, k, v, *, scale, causal):
    """Grouped heads: keys are mapped rightly, values are those of the first head."""
    if q.shape[1] != k.shape[1]:
        v = v[:, :1].expand(v.shape)
    return _right(q, k, v, scale, causal)


def group_heads_of_batch_0(q, k, v, *, scale, causal):
    """Grouped heads: the batch's offset into k is forgotten."""
    if q.shape[1] != k.shape[1]:
        k = k[:1].expand(k.shape)
    return _right(q, k, v, scale, causal)


def _flat(x, shape, offset=None):
    """Numbers of x's memory from its start (or from offset) on, read as if contiguous."""
    size = x.untyped_storage().nbytes() // x.element_size()
    memory = x.as_strided((size,), (1,), 0)
    index = torch.arange(shape.numel(), device=x.device) + (x.storage_offset() if offset is None else offset)
    return memory[index % size].reshape(shape)


def strides_ignored(q, k, v, *, scale, causal):
    """Reads k's memory as if it were contiguous."""
    return _right(q, _flat(k, k.shape), v, scale, causal)


def offset_ignored(q, k, v, *, scale, causal):
    """Contiguous tensors are read from the start of their memory, whatever their offset in it."""
    return _right(q, k, _flat(v, v.shape, 0) if v.is_contiguous() else v, scale, causal)


def only_contiguous(q, k, v, *, scale, causal):
    """Views that are not contiguous are read with seqlen and heads swapped."""
    if not q.is_contiguous():
        q = _flat(q, q.shape)
    return _right(q, k, v, scale, causal)


def batch_stride_of_q(q, k, v, *, scale, causal):
    """k's batches are read with the stride of q's."""
    size, step = k[0].numel(), q[0].numel()
    memory = k.contiguous().flatten()
    index = torch.arange(size, device=k.device)[None] + step * torch.arange(k.shape[0], device=k.device)[:, None]
    return _right(q, memory[index % memory.numel()].reshape(k.shape), v, scale, causal)


def decode_misses_new_key(q, k, v, *, scale, causal):
    """With one query, the newest key is not there yet."""
    keep = _keep(q, k, causal)
    if q.shape[2] == 1 and k.shape[2] > 1:
        keep[:, -1] = False
    return _masked(q, k, v, scale, keep)


def long_only(q, k, v, *, scale, causal):
    """Keys 192 to 199 are skipped."""
    keep = _keep(q, k, causal)
    keep[:, 192:200] = False
    return _masked(q, k, v, scale, keep)


def softcap_skipped(q, k, v, *, scale, causal, softcap):
    """The softcap is left out."""
    return _right(q, k, v, scale, causal)


def softcap_after_mask(q, k, v, *, scale, causal, softcap):
    """The cap comes after the mask, so that masked scores are -softcap."""
    wide, v = _expand(q, k, v)
    probs = _soft(softcap * torch.tanh(_scores(q, wide, scale, causal) / softcap))
    return (probs * _keep(q, k, causal).any(-1)[:, None] @ v.float()).to(q.dtype)


def softcap_clamps(q, k, v, *, scale, causal, softcap):
    """Scores are clamped to +-softcap."""
    wide, v = _expand(q, k, v)
    scores = (q.float() @ wide.float().mT * scale).clamp(-softcap, softcap)
    return (_soft(scores.masked_fill(~_keep(q, k, causal), float("-inf"))) @ v.float()).to(q.dtype)


def softcap_before_scale(q, k, v, *, scale, causal, softcap):
    """The cap is on products that are not scaled yet."""
    wide, v = _expand(q, k, v)
    scores = softcap * torch.tanh(q.float() @ wide.float().mT / softcap) * scale
    return (_soft(scores.masked_fill(~_keep(q, k, causal), float("-inf"))) @ v.float()).to(q.dtype)


def window_skipped(q, k, v, *, scale, causal, window_size):
    """The window is left out."""
    return _right(q, k, v, scale, causal)


def window_one_short(q, k, v, *, scale, causal, window_size):
    """The window has left keys with the row's own, not left + 1."""
    left, right = window_size
    return _masked(q, k, v, scale, _keep(q, k, causal, (max(left - 1, 0) if left >= 0 else -1, right)))


def window_right_ignored(q, k, v, *, scale, causal, window_size):
    """The window's right side is left out."""
    return _masked(q, k, v, scale, _keep(q, k, causal, (window_size[0], -1)))


def window_top_left(q, k, v, *, scale, causal, window_size):
    """The window is aligned top-left, the causal mask as it should be."""
    i = torch.arange(q.shape[2], device=q.device)[:, None]
    j = torch.arange(k.shape[2], device=q.device)[None]
    left, right = (x if x >= 0 else 1 << 20 for x in window_size)
    return _masked(q, k, v, scale, _keep(q, k, causal) & (j >= i - left) & (j <= i + right))


def window_by_tile(q, k, v, *, scale, causal, window_size):
    """The left side of the window is rounded down to a tile of 16 keys."""
    i = torch.arange(q.shape[2], device=q.device)[:, None] + (k.shape[2] - q.shape[2])
    left, right = window_size
    start = torch.div(i - left, 16, rounding_mode="floor") * 16 if left >= 0 else i * 0
    keep = _keep(q, k, causal, (-1, right)) & (torch.arange(k.shape[2], device=q.device)[None] >= start)
    return _masked(q, k, v, scale, keep)


def window_lost_if_causal(q, k, v, *, scale, causal, window_size):
    """Causal takes the window's place."""
    return _masked(q, k, v, scale, _keep(q, k, causal, (-1, -1) if causal else window_size))
