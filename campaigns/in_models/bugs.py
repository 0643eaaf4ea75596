"""Forty-eight wrong attention functions in tiny models, as engineers write them, and what is wrong with each.

    bug = BUGS[0]
    with models.registered("mine", bug.attention("eager"), "eager"):
        model, inputs = models.make(bug.model, torch.float32, "mine", bug.run, bug.padding)
        models.go(model, inputs)

`attention(style)` gives a function with memory of its own, where it has any. `layer` is the layer_idx of the wrong
layer, None for all; `first_step` counts forward passes, the first being 0: where it is not 0, the branch that is wrong
is not taken before. The encoder of T5, which generate runs before, counts as step 0. `stage` is the first that is
wrong, in the words of docs/explanation/architecture.md. `visible_in` was measured by
`python -m campaigns.in_models.check bugs`: out is
further from float64 than 1.5 times what storing every operation in the dtype can do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from campaigns.in_models.right import COMPUTED, LOG2E, Attention, Call, Compute, attention_of, sees

Given = tuple[torch.Tensor, torch.Tensor | None]
ALL = ("eager", "boolean", "is_causal")
MASKED = ("eager", "boolean")
CAUSAL = ("is_causal",)
BOTH = ("float32", "bfloat16")


@dataclass(frozen=True)
class Bug:
    """A wrong function, where it runs, and what a kernel engineer would say of it."""

    name: str
    model: str
    run: str
    padding: str
    attention: Callable[[str], Attention]
    styles: tuple[str, ...]
    layer: int | None
    first_step: int
    truth: str
    stage: str
    visible_in: tuple[str, ...]


def softmax(scores: torch.Tensor) -> torch.Tensor:
    """Softmax over keys, 0 in rows that see nothing."""
    return torch.softmax(scores, -1).nan_to_num(0.0)


def in_layer(model: str, layer: int, compute: Compute) -> Callable[[str], Attention]:
    """A computation in one layer; the others have the right one of the model."""
    return attention_of(lambda call: (compute if call.module.layer_idx == layer else COMPUTED[model])(call))


def remembering(start: Callable[[], Compute]) -> Callable[[str], Attention]:
    """A computation with memory, which starts anew for each function that is made."""
    return lambda style: attention_of(start())(style)


def masked_anew(call: Call, seen: torch.Tensor) -> Call:
    """The call with another mask, [row, key] of what is seen."""
    return replace(call, added=torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)[None, None])


def finished(call: Call) -> Given:
    probs = call.probs(call.scores())
    return call.given(probs @ call.values, probs)


# --- scale


def hidden_size_scale(call: Call) -> Given:
    heads, dim = call.q.shape[1], call.q.shape[3]
    return finished(replace(call, scale=(heads * dim) ** -0.5))


def head_dim_scale(call: Call) -> Given:
    return finished(replace(call, scale=call.q.shape[-1] ** -0.5))


def group_scaled_again(call: Call) -> Given:
    q, outs = call.q.clone(), []
    for kv_head in range(call.k.shape[1]):
        heads = slice(kv_head * call.group, (kv_head + 1) * call.group)
        for head in range(heads.start, heads.stop):
            q[:, heads] *= call.scale  # meant for this head, done to its group
            probs = softmax(q[:, head] @ call.k[:, kv_head].mT + call.added[:, 0])
            outs.append(probs @ call.v[:, kv_head])
    return call.given(torch.stack(outs, 1))


# --- causal and window


def sees_next_key(call: Call) -> Given:
    row = torch.arange(call.rows)[:, None] + call.keys_count - call.rows
    return finished(masked_anew(call, torch.arange(call.keys_count) < row + 2))


def hides_itself(call: Call) -> Given:
    row = torch.arange(call.rows)[:, None] + call.keys_count - call.rows
    return finished(masked_anew(call, torch.arange(call.keys_count) < row))


def aligned_top_left(call: Call) -> Given:
    return finished(masked_anew(call, torch.ones(call.rows, call.keys_count, dtype=torch.bool).tril()))


def window_one_too_long(call: Call) -> Given:
    assert call.window is not None
    return finished(masked_anew(call, sees(call.rows, call.keys_count, True, call.window + 1)))


def window_one_too_short(call: Call) -> Given:
    assert call.window is not None
    return finished(masked_anew(call, sees(call.rows, call.keys_count, True, call.window - 1)))


def window_of_config(call: Call) -> Given:
    window = call.module.config.sliding_window  # of the model, not of this layer
    return finished(masked_anew(call, sees(call.rows, call.keys_count, True, window)))


def window_from_whole_tiles(call: Call) -> Given:
    assert call.window is not None
    block, scores = 4, call.scores()
    for row in range(call.rows):
        low = max(0, row + call.keys_count - call.rows - call.window + 1)
        first = -(-low // block)  # the tile after the one that low is in
        scores[:, :, row, : first * block] = -torch.inf
    probs = call.probs(scores)
    return call.given(probs @ call.values, probs)


# --- padding and masks


def unmasked_at_decode(call: Call) -> Given:
    return finished(replace(call, added=torch.zeros_like(call.added)) if call.rows == 1 else call)


def mask_not_read(call: Call) -> Given:
    return finished(replace(call, added=torch.zeros_like(call.added)))


def mask_minus_ten(call: Call) -> Given:
    return finished(replace(call, added=torch.where(call.added < 0, -10.0, 0.0)))


def mask_of_first_sequence(call: Call) -> Given:
    return finished(replace(call, added=call.added[:1]))


def mask_after_softmax(call: Call) -> Given:
    probs = torch.softmax(call.q @ call.keys.mT * call.scale, -1).masked_fill(call.added < 0, 0.0)
    return call.given(probs @ call.values, probs)


def nan_rows(call: Call) -> Given:
    scores = call.scores()
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    probs = weights / weights.sum(-1, keepdim=True)
    return call.given(probs @ call.values, probs)


# --- softcap, sinks, position bias


def softcap_after_mask(call: Call) -> Given:
    probs = softmax(call.capped(call.q @ call.keys.mT * call.scale + call.added))
    return call.given(probs @ call.values, probs)


def softcap_forgotten(call: Call) -> Given:
    return finished(replace(call, softcap=None))


def softcap_not_multiplied_back(call: Call) -> Given:
    assert call.softcap is not None
    probs = softmax(torch.tanh(call.q @ call.keys.mT * call.scale / call.softcap) + call.added)
    return call.given(probs @ call.values, probs)


def sinks_forgotten(call: Call) -> Given:
    return finished(replace(call, sinks=None))


def sink_without_max(call: Call) -> Given:
    assert call.sinks is not None
    scores = call.scores()
    row_max = scores.amax(-1, keepdim=True)
    weights = torch.exp(scores - row_max)
    probs = weights / (weights.sum(-1, keepdim=True) + torch.exp(call.sinks).view(1, -1, 1, 1))
    return call.given(probs @ call.values, probs)


def sinks_of_kv_heads(call: Call) -> Given:
    assert call.sinks is not None
    heads = torch.arange(call.q.shape[1]) // call.group
    return finished(replace(call, sinks=call.sinks[heads]))


def sink_in_each_split(call: Call, size: int = 16) -> Given:
    if call.rows > 1:
        return finished(call)
    assert call.sinks is not None
    sinks = call.sinks.view(1, -1, 1, 1)
    acc, total, top = torch.zeros_like(call.q), torch.zeros_like(sinks), torch.full_like(sinks, -torch.inf)
    scores, values = call.scores(), call.values
    for start in range(0, call.keys_count, size):
        part = scores[..., start : start + size]
        part_max = torch.maximum(part.amax(-1, keepdim=True), sinks)
        weights = torch.exp(part - part_max)
        part_sum = weights.sum(-1, keepdim=True) + torch.exp(sinks - part_max)  # once for each split
        raised = torch.maximum(top, part_max)
        before, here = torch.exp(top - raised), torch.exp(part_max - raised)
        acc = acc * before + weights @ values[..., start : start + size, :] * here
        total, top = total * before + part_sum * here, raised
    return call.given(acc / total)


def bias_forgotten(call: Call) -> Given:
    return finished(replace(call, bias=None))


def bias_transposed(call: Call) -> Given:
    bias = call.bias
    square = bias is not None and bias.shape[-1] == bias.shape[-2]
    return finished(replace(call, bias=bias.mT if bias is not None and square else bias))


# --- softmax


def softmax_over_heads_at_decode(call: Call) -> Given:
    scores = call.scores()
    if call.rows == 1:  # [batch, key, head], so that values are read once; softmax stays over the last axis
        probs = torch.softmax(scores.squeeze(2).mT, -1).mT.unsqueeze(2)
    else:
        probs = softmax(scores)
    return call.given(probs @ call.values, probs)


def exp2_without_log2e(call: Call) -> Given:
    scores = call.scores()
    weights = torch.exp2(scores - scores.amax(-1, keepdim=True))
    probs = weights / weights.sum(-1, keepdim=True)
    return call.given(probs @ call.values, probs)


def _online(call: Call, block: int, *, fix_acc: bool = True, fix_sum: bool = True, last: str = "adds") -> Given:
    scores, values = call.scores(), call.values
    shape = (*call.q.shape[:3], 1)
    row_max, row_sum = torch.full(shape, -1e30), torch.zeros(shape)
    acc = torch.zeros(*call.q.shape[:3], values.shape[-1])
    starts = range(0, call.keys_count, block)
    for start in starts:
        tile = scores[..., start : start + block]
        raised = torch.maximum(row_max, tile.amax(-1, keepdim=True))
        correction, weights = torch.exp(row_max - raised), torch.exp(tile - raised)
        row_sum = (row_sum * correction if fix_sum else row_sum) + weights.sum(-1, keepdim=True)
        product = weights @ values[..., start : start + block, :]
        if last == "overwrites" and start == starts[-1] and len(starts) > 1:
            acc = product
        else:
            acc = (acc * correction if fix_acc else acc) + product
        row_max = raised
    return call.given(acc / row_sum.masked_fill(row_sum == 0, 1.0))


def acc_not_corrected(call: Call) -> Given:
    return _online(call, 8, fix_acc=False)


def row_sum_not_corrected(call: Call) -> Given:
    return _online(call, 8, fix_sum=False)


def last_tile_overwrites(call: Call) -> Given:
    return _online(call, 16, last="overwrites")


def last_rows_not_normalised(call: Call, block: int = 8) -> Given:
    scores, out = call.scores(), torch.empty_like(call.q)
    for start in range(0, call.rows, block):
        rows = slice(start, start + block)
        row_max = scores[:, :, rows].amax(-1, keepdim=True)
        weights = torch.exp(scores[:, :, rows] - row_max)
        acc = weights @ call.values
        whole = start + block <= call.rows  # the epilogue of a tile that is not whole forgets the division
        out[:, :, rows] = acc / weights.sum(-1, keepdim=True) if whole else acc
    return call.given(out)


def merge_without_max(call: Call, size: int = 24) -> Given:
    if call.rows > 1:
        return finished(call)
    scores, values = call.scores(), call.values
    acc, total = torch.zeros_like(call.q), torch.zeros(*call.q.shape[:3], 1)
    for start in range(0, call.keys_count, size):
        part = scores[..., start : start + size]
        weights = torch.exp(part - part.amax(-1, keepdim=True))
        acc += weights @ values[..., start : start + size, :]
        total += weights.sum(-1, keepdim=True)
    return call.given(acc / total)


def merge_in_two_bases(call: Call, size: int = 12) -> Given:
    if call.rows > 1:
        return finished(call)
    scores, values = call.scores(), call.values
    outs, lses = [], []
    for start in range(0, call.keys_count, size):
        part = scores[..., start : start + size]
        lses.append(torch.logsumexp(part, -1, keepdim=True) * LOG2E)
        outs.append(torch.softmax(part, -1) @ values[..., start : start + size, :])
    lse = torch.stack(lses)
    weights = torch.softmax(lse, 0)  # base e, of numbers in base 2
    return call.given((torch.stack(outs) * weights).sum(0))


# --- heads, keys and layouts


def gqa_modulo(call: Call) -> Given:
    heads = torch.arange(call.q.shape[1]) % call.k.shape[1]
    probs = softmax(call.q @ call.k[:, heads].mT * call.scale + call.added)
    return call.given(probs @ call.v[:, heads], probs)


def values_tiled(call: Call) -> Given:
    probs = call.probs(call.scores())
    return call.given(probs @ call.v.repeat(1, call.group, 1, 1), probs)


def last_key_dropped_at_decode(call: Call) -> Given:
    count = call.keys_count - 1 if call.rows == 1 else call.keys_count  # the length before this token was appended
    probs = call.probs(call.scores()[..., :count])
    return call.given(probs @ call.values[..., :count, :])


def odd_key_dropped(call: Call, splits: int = 2) -> Given:
    if call.rows > 1:
        return finished(call)
    count = call.keys_count // splits * splits
    probs = call.probs(call.scores()[..., :count])
    return call.given(probs @ call.values[..., :count, :])


def key_for_value_in_last_head(call: Call) -> Given:
    packed = torch.stack((call.keys, call.values))
    where = [1] * (call.q.shape[1] - 1) + [0]
    values = torch.stack([packed[part, :, head] for head, part in enumerate(where)], 1)
    probs = call.probs(call.scores())
    return call.given(probs @ values, probs)


def query_in_another_layout(call: Call) -> Given:
    batch, heads, rows, dim = call.q.shape
    q = call.q.transpose(1, 2).reshape(batch, heads, rows, dim)  # memory [row, head], read as [head, row]
    return finished(replace(call, q=q))


def out_in_another_layout(call: Call) -> Given:
    batch, heads, rows, dim = call.q.shape
    probs = call.probs(call.scores())
    out = (probs @ call.values).contiguous().reshape(batch, rows, heads, dim)  # memory [head, row], told [row, head]
    return out.to(call.query.dtype), probs.to(call.query.dtype)


def whole_vectors_only(call: Call) -> Given:
    whole = call.q.shape[-1] // 8 * 8
    scores = call.q[..., :whole] @ call.keys[..., :whole].mT * call.scale + call.added
    probs = call.probs(scores)
    return call.given(probs @ call.values, probs)


# --- memory


def stale_repeated_heads() -> Compute:
    repeated: dict[torch.Size, tuple[torch.Tensor, torch.Tensor]] = {}

    def compute(call: Call) -> Given:
        if call.k.shape not in repeated:  # the shape says nothing of the layer
            repeated[call.k.shape] = (call.keys, call.values)
        keys, values = repeated[call.k.shape]
        probs = softmax(call.q @ keys.mT * call.scale + call.added)
        return call.given(probs @ values, probs)

    return compute


def unfinished_page(page: int = 4) -> Compute:
    stored: dict[int, torch.Tensor] = {}

    def compute(call: Call) -> Given:
        pages = -(-call.keys_count // page)
        values = torch.zeros(*call.v.shape[:2], pages * page, call.v.shape[-1])
        if call.module.layer_idx in stored:
            before = stored[call.module.layer_idx]
            values[:, :, : before.shape[2]] = before
        whole = call.keys_count // page * page
        values[:, :, :whole] = call.v[:, :, :whole]  # rows of a page that is not full wait to be written
        stored[call.module.layer_idx] = values
        probs = call.probs(call.scores())
        return call.given(probs @ values[:, :, : call.keys_count].repeat_interleave(call.group, 1), probs)

    return compute


# --- casts and dropout


def scores_in_bfloat16(call: Call) -> Given:
    probs = softmax((call.q.bfloat16() @ call.keys.bfloat16().mT).float() * call.scale + call.added)
    return call.given(probs @ call.values, probs)


def row_sum_in_bfloat16(call: Call) -> Given:
    scores = call.scores()
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    row_sum = torch.zeros(*weights.shape[:3], dtype=torch.bfloat16)
    for key in range(call.keys_count):
        row_sum += weights[..., key].bfloat16()
    return call.given(weights @ call.values / row_sum.float()[..., None])


def probs_in_fp8(call: Call) -> Given:
    probs = call.probs(call.scores()).to(torch.float8_e4m3fn).float()
    return call.given(probs @ call.values)


def dropout_left_on(call: Call) -> Given:
    probs = F.dropout(softmax(call.scores()), 0.1, training=True)
    return call.given(probs @ call.values, probs)


BUGS: tuple[Bug, ...] = (
    Bug(
        "hidden_size_scale", "llama", "forward", "left", attention_of(hidden_size_scale), MASKED, None, 0,
        "The scale is 1 / sqrt(heads * head_dim), 0.125, and not 1 / sqrt(head_dim), 0.25, which is given.",
        "scores", BOTH,
    ),
    Bug(
        "head_dim_scale", "gemma2", "forward", "none", attention_of(head_dim_scale), ALL, None, 0,
        "The scale is head_dim ** -0.5, 0.25; what is given, query_pre_attn_scalar ** -0.5, 0.204, is not read.",
        "scores", BOTH,
    ),
    Bug(
        "scale_of_one_not_believed", "t5", "generate", "none", in_layer("t5", 1, head_dim_scale), ALL, 1, 0,
        "Layer 1 scales q k^T by head_dim ** -0.5 = 0.25, where T5 gives a scaling of 1: scores are 4 times too small.",
        "scores", BOTH,
    ),
    Bug(
        "group_scaled_again", "mistral", "forward", "right", attention_of(group_scaled_again), MASKED, None, 0,
        "q of a whole group is scaled in place for each of its heads, so that heads 1 and 3 are scaled twice.",
        "scores", BOTH,
    ),
    Bug(
        "sees_next_key", "qwen3", "forward", "none", attention_of(sees_next_key), CAUSAL, None, 0,
        "The causal mask is off by one: row i sees key i + 1 as well; only the last row is right.",
        "scores", BOTH,
    ),
    Bug(
        "hides_itself", "gpt2", "generate", "none", in_layer("gpt2", 1, hides_itself), CAUSAL, 1, 0,
        "Layer 1 compares with < in the place of <=: no row sees its own key, and row 0 sees none and is 0.",
        "scores", BOTH,
    ),
    Bug(
        "aligned_top_left", "llama", "generate", "none", attention_of(aligned_top_left), CAUSAL, None, 1,
        "Causal is aligned at the top left, so that the one row of a decode step sees key 0 alone; prefill is right.",
        "scores", BOTH,
    ),
    Bug(
        "window_one_too_long", "mistral", "forward", "none", attention_of(window_one_too_long), CAUSAL, None, 0,
        "The sliding window is one key too long, 10 and not 9: rows from 9 on see one key more.",
        "scores", BOTH,
    ),
    Bug(
        "window_one_too_short", "gpt_oss", "forward", "none",
        in_layer("gpt_oss", 0, window_one_too_short), CAUSAL, 0, 0,
        "The sliding window of layer 0 is one key too short, 7 and not 8: rows from 7 on lose their oldest key.",
        "scores", BOTH,
    ),
    Bug(
        "window_of_config", "gpt_oss", "generate", "none", attention_of(window_of_config), CAUSAL, 1, 0,
        "The window is read from the config in each layer, so that layer 1, which is full, hides keys older than 8.",
        "scores", BOTH,
    ),
    Bug(
        "window_from_whole_tiles", "mistral", "forward", "left", attention_of(window_from_whole_tiles), MASKED, None, 0,
        "The first tile of the window is rounded up, not down: up to 3 of the oldest keys in the window are not seen.",
        "scores", BOTH,
    ),
    Bug(
        "unmasked_at_decode", "llama", "generate", "left", attention_of(unmasked_at_decode), MASKED, None, 1,
        "With one row the mask is not read, as if nothing were hidden: decode sees the 6 padded keys of sequence 0.",
        "scores", BOTH,
    ),
    Bug(
        "mask_not_read", "bert", "forward", "right", attention_of(mask_not_read), MASKED, None, 0,
        "The mask is not read: all rows of sequence 1 see its 6 padded keys on the right.",
        "scores", BOTH,
    ),
    Bug(
        "mask_minus_ten", "bert", "forward", "left", attention_of(mask_minus_ten), MASKED, None, 0,
        "Hidden scores get -10 in the place of -inf: the padded keys of sequence 0 leak with e^-10 of their weight.",
        "scores", ("float32",),
    ),
    Bug(
        "mask_of_first_sequence", "qwen3", "generate", "left", attention_of(mask_of_first_sequence), MASKED, None, 0,
        "The mask of sequence 0 serves all sequences: sequence 1 loses its first 6 keys, which are no padding there.",
        "scores", BOTH,
    ),
    Bug(
        "mask_after_softmax", "qwen3", "forward", "none", attention_of(mask_after_softmax), ALL, None, 0,
        "Hidden keys are zeroed after the softmax: they are in row_sum still, and probs of a row sum to less than 1.",
        "row_sum", BOTH,
    ),
    Bug(
        "nan_rows", "llama", "forward", "left", in_layer("llama", 0, nan_rows), ("boolean",), 0, 0,
        "A row that sees nothing is exp(-inf - -inf): layer 0 gives NaN in rows 0 to 5 of sequence 0, its padding.",
        "probs", BOTH,
    ),
    Bug(
        "softcap_after_mask", "gemma2", "forward", "none", attention_of(softcap_after_mask), ALL, None, 0,
        "The softcap comes after the mask: hidden scores become -4, the cap, and not -inf, so that all keys leak.",
        "scores", BOTH,
    ),
    Bug(
        "softcap_forgotten", "gemma2", "generate", "left", attention_of(softcap_forgotten), MASKED, None, 0,
        "The softcap of 4 is not applied.",
        "scores", BOTH,
    ),
    Bug(
        "softcap_not_multiplied_back", "gemma2", "forward", "right",
        in_layer("gemma2", 1, softcap_not_multiplied_back), MASKED, 1, 0,
        "Layer 1 computes tanh(scores / 4) and does not multiply it by the softcap of 4.",
        "scores", BOTH,
    ),
    Bug(
        "sinks_forgotten", "gpt_oss", "generate", "left", attention_of(sinks_forgotten), MASKED, None, 0,
        "The sinks are not in row_sum: probs of each row sum to 1.",
        "row_sum", BOTH,
    ),
    Bug(
        "sink_without_max", "gpt_oss", "forward", "none", attention_of(sink_without_max), ALL, None, 0,
        "row_sum gets exp(sink) and not exp(sink - row_max): the sink's share is exp(row_max) times too large.",
        "row_sum", BOTH,
    ),
    Bug(
        "sinks_of_kv_heads", "gpt_oss", "forward", "right", in_layer("gpt_oss", 1, sinks_of_kv_heads), MASKED, 1, 0,
        "Layer 1 reads the sink of head h at h // 2, as if kv heads had the sinks: heads 1, 2 and 3 have another's.",
        "row_sum", BOTH,
    ),
    Bug(
        "sink_in_each_split", "gpt_oss", "generate", "none", attention_of(sink_in_each_split), ALL, 1, 1,
        "Each split of 16 keys has the sink in its sum: decode in layer 1, with two splits, counts it twice.",
        "row_sum", BOTH,
    ),
    Bug(
        "bias_forgotten", "t5", "forward", "right", attention_of(bias_forgotten), MASKED, None, 0,
        "The position bias is not added to the scores.",
        "scores", BOTH,
    ),
    Bug(
        "bias_transposed", "t5", "forward", "none", attention_of(bias_transposed), ALL, None, 0,
        "A square position bias is read as [head, key, row]: row i and key j get the bias of row j and key i, "
        "which in the causal decoder is one number for all keys that a row sees.",
        "scores", BOTH,
    ),
    Bug(
        "softmax_over_heads_at_decode", "gpt2", "generate", "none",
        attention_of(softmax_over_heads_at_decode), ALL, None, 1,
        "With one row, scores lie as [batch, key, head] and softmax runs over the last axis: heads, not keys.",
        "row_sum", BOTH,
    ),
    Bug(
        "exp2_without_log2e", "qwen3", "forward", "right", attention_of(exp2_without_log2e), MASKED, None, 0,
        "probs are exp2 of the scores, which were not multiplied by log2(e).",
        "probs", BOTH,
    ),
    Bug(
        "acc_not_corrected", "llama", "forward", "none", in_layer("llama", 0, acc_not_corrected), ALL, 0, 0,
        "Layer 0 does not multiply acc by the correction where a tile of 8 keys raises the maximum; row_sum is.",
        "acc", BOTH,
    ),
    Bug(
        "row_sum_not_corrected", "qwen3", "generate", "none", attention_of(row_sum_not_corrected), ALL, None, 0,
        "row_sum is not multiplied by the correction where a tile of 8 keys raises the maximum; acc is.",
        "row_sum", BOTH,
    ),
    Bug(
        "last_tile_overwrites", "gemma2", "generate", "none",
        in_layer("gemma2", 1, last_tile_overwrites), ALL, 1, 0,
        "In layer 1 the last tile of 16 keys is stored to acc, not added: the tiles before it are in row_sum alone; "
        "rows 0 to 15 of prefill, which see nothing of it, are 0.",
        "acc", BOTH,
    ),
    Bug(
        "last_rows_not_normalised", "qwen3", "forward", "none",
        in_layer("qwen3", 1, last_rows_not_normalised), ALL, 1, 0,
        "Layer 1 does not divide by row_sum in the last tile of rows, which is not whole: rows 24 to 29.",
        "out", BOTH,
    ),
    Bug(
        "merge_without_max", "gpt2", "generate", "none", attention_of(merge_without_max), ALL, None, 5,
        "Splits of 24 keys are merged as if they had one maximum: from step 5 on, with 25 keys, there are two.",
        "merge_weight", BOTH,
    ),
    Bug(
        "merge_in_two_bases", "llama", "generate", "none", attention_of(merge_in_two_bases), ALL, None, 1,
        "Splits of 12 keys are merged at decode by exp of an lse that is in base 2: their weights are too far apart.",
        "merge_weight", BOTH,
    ),
    Bug(
        "gqa_modulo", "mistral", "generate", "none", attention_of(gqa_modulo), ALL, None, 0,
        "Head h reads kv head h % 2 and not h // 2, of k and of v: heads 1 and 2 read the wrong one.",
        "qk", BOTH,
    ),
    Bug(
        "values_tiled", "llama", "generate", "left", in_layer("llama", 1, values_tiled), MASKED, 1, 0,
        "Layer 1 repeats kv heads of v as 0 1 0 1, where k has 0 0 1 1: heads 1 and 2 take the values of another.",
        "acc", BOTH,
    ),
    Bug(
        "last_key_dropped_at_decode", "qwen3", "generate", "left",
        attention_of(last_key_dropped_at_decode), MASKED, None, 1,
        "With one row the count of keys is the one before the token was appended: the newest key is not seen.",
        "scores", BOTH,
    ),
    Bug(
        "odd_key_dropped", "llama", "generate", "none", attention_of(odd_key_dropped), ALL, None, 1,
        "Decode gives each of 2 splits keys // 2 keys: of an odd count, in steps 1, 3, 5 and 7, the last is lost.",
        "scores", BOTH,
    ),
    Bug(
        "key_for_value_in_last_head", "gpt2", "forward", "right",
        attention_of(key_for_value_in_last_head), MASKED, None, 0,
        "The last head, 3, takes its keys as values.",
        "acc", BOTH,
    ),
    Bug(
        "query_in_another_layout", "gpt2", "forward", "none", attention_of(query_in_another_layout), ALL, None, 0,
        "q lies in memory as [row, head, dim] and is read as [head, row, dim]: a row gets q of another row and head.",
        "qk", BOTH,
    ),
    Bug(
        "out_in_another_layout", "bert", "forward", "none", in_layer("bert", 1, out_in_another_layout), ALL, 1, 0,
        "Layer 1 hands back [head, row, dim] as if it were [row, head, dim]; probs are right.",
        "out", BOTH,
    ),
    Bug(
        "whole_vectors_only", "gpt_oss", "generate", "none", attention_of(whole_vectors_only), ALL, None, 0,
        "The dot product of q and k runs over whole vectors of 8: of head_dim 20 the last 4 are left out.",
        "qk", BOTH,
    ),
    Bug(
        "stale_repeated_heads", "llama", "generate", "none", remembering(stale_repeated_heads), ALL, 1, 0,
        "Repeated k and v are kept by their shape alone, so that layer 1 computes with those of layer 0.",
        "qk", BOTH,
    ),
    Bug(
        "unfinished_page", "qwen3", "generate", "none", remembering(unfinished_page), ALL, None, 1,
        "Values of a page of 4 that is not full are not written yet and read as 0: up to 3 newest keys, at decode.",
        "acc", BOTH,
    ),
    Bug(
        "scores_in_bfloat16", "gpt2", "forward", "left", attention_of(scores_in_bfloat16), MASKED, None, 0,
        "q, k and their product are cast to bfloat16, though the model is float32.",
        "qk", ("float32",),
    ),
    Bug(
        "row_sum_in_bfloat16", "llama", "generate", "none", in_layer("llama", 0, row_sum_in_bfloat16), ALL, 0, 0,
        "Layer 0 adds row_sum up in bfloat16, key by key: small weights are lost beside a large sum.",
        "row_sum", ("float32",),
    ),
    Bug(
        "probs_in_fp8", "mistral", "generate", "left", attention_of(probs_in_fp8), MASKED, None, 0,
        "probs are cast to float8 e4m3, without a scale, before they meet v.",
        "probs_cast", BOTH,
    ),
    Bug(
        "dropout_left_on", "bert", "forward", "none", in_layer("bert", 0, dropout_left_on), ALL, 0, 0,
        "Layer 0 drops a tenth of its probs, as in training, and divides the others by 0.9; the model is in eval.",
        "probs", BOTH,
    ),
)  # fmt: skip
