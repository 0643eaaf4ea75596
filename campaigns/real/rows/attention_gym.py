"""attention-gym: masks and biases for FlexAttention, which computes in torch where nothing is compiled: scores in
float32, probabilities in the inputs' dtype times values.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from campaigns.real import inputs as of
from campaigns.real.call import Call, takes
from campaigns.real.case import Case
from campaigns.real.project import Project, Tolerance
from campaigns.real.wrong import Truth, Wrong

NEWEST = "7fdb85d0"
PROJECT = Project(
    name="attention-gym", owner="meta-pytorch", newest=NEWEST, paths=("attn_gym",),
    tolerance={"": Tolerance(atol=1e-5, rtol=1.3e-6), "bfloat16": Tolerance(atol=1e-5, rtol=1.6e-2)},
    stubs=("attn_gym", "attn_gym.mods", "attn_gym.paged_attention"),
)  # fmt: skip
EXACT = {"float32": "operands=float32", "bfloat16": "operands=bfloat16"}
QKV = ("q", "k", "v")
PAGE = 16  #: tokens


def _flex(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **given: Any) -> torch.Tensor:
    """Of arrays that have heads before time."""
    found: torch.Tensor = flex_attention(q, k, v, **given)
    return found.transpose(1, 2)


def _masked(function: Callable[..., Any], sizes: tuple[int, ...], **given: torch.Tensor) -> torch.Tensor:
    q, k, v = (given[name].transpose(1, 2) for name in QKV)
    return _flex(
        q, k, v, block_mask=create_block_mask(function(*sizes), None, None, q.shape[2], q.shape[2], device=q.device)
    )


def _scored(function: Callable[..., Any], size: int, causal: bool = False, **given: torch.Tensor) -> torch.Tensor:
    q, k, v = (given[name].transpose(1, 2) for name in QKV)
    mask = create_block_mask(_seen, None, None, q.shape[2], q.shape[2], device=q.device) if causal else None
    return _flex(q, k, v, score_mod=function(size), block_mask=mask)


def _seen(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def _paged(pages: type, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The second of two sequences; the first is drawn from a seed of its own."""
    T, where = q.shape[1], q.device
    made: Any = pages(2 * T // PAGE, PAGE, 2, device=where)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    draw = of.drawn(1)
    first = [draw(*x.shape).to(x) for x in (k, v)]
    caches = [torch.zeros(1, k.shape[1], 2 * T, k.shape[3], device=where, dtype=k.dtype) for _ in range(2)]
    for one in range(2):
        which = torch.tensor([one], device=where)
        made.reserve(which, torch.tensor([T], device=where))
        made.assign(which, torch.arange(T, device=where)[None], *((k, v) if one else first), *caches)
    mask = create_block_mask(_seen, 1, 1, T, T, device=where, BLOCK_SIZE=PAGE)
    mask = made.convert_logical_block_mask(mask, torch.tensor([1], device=where))
    return _flex(q, caches[0], caches[1], block_mask=mask)


def _steep(seed: int, dtype: torch.dtype, T: int) -> of.Tensors:
    """Scores that a cap of 5 bends."""
    made = of.plain(seed, dtype, T)
    return made | {"q": 4 * made["q"]}


_CANVAS = (8, 8, 5, 3, 4, 4)  # width, height, window, tile
_WINDOW = {"width": 8, "height": 8, "window": (5, 3), "tile": (4, 4)}
_attention = Call("plain/attention:attention", takes(*QKV), {"causal": True})
#: of a module that the newest commit does not have
_PAGES = Case("pages", Call("attn_gym.paged_attention.paged_attention:PagedAttention", takes(*QKV), adapter=_paged),
    (_attention,), of.plain, EXACT, T=64)  # fmt: skip
CASES = (
    Case("neighbourhood attention in tiles",
         Call("attn_gym.masks.natten:generate_tiled_natten", takes(*QKV), {"sizes": _CANVAS}, adapter=_masked),
         (Call("plain/attention:neighbours", takes(*QKV), _WINDOW),), of.plain, EXACT, T=64),
    Case("ALiBi", Call("attn_gym.mods.alibi:generate_alibi_bias", takes(*QKV), {"size": 2, "causal": True},
                       adapter=_scored),
         (Call("plain/attention:alibi", takes(*QKV)),), of.plain, EXACT, T=64),
    Case("soft cap", Call("attn_gym.mods.softcapping:generate_tanh_softcap", takes(*QKV), {"size": 5},
                          adapter=_scored),
         (Call("plain/attention:softcapped", takes(*QKV), {"cap": 5.0}),), _steep, EXACT, T=64),
    Case("sliding window", Call("attn_gym.masks.sliding_window:generate_sliding_window", takes(*QKV), {"sizes": (9,)},
                                adapter=_masked),
         (Call("plain/attention:windowed", takes(*QKV), {"window": 9}),), of.plain, EXACT, T=64),
    Case("prefix", Call("attn_gym.masks.prefix_lm:generate_prefix_lm_mask", takes(*QKV), {"sizes": (9,)},
                        adapter=_masked),
         (Call("plain/attention:windowed", takes(*QKV), {"prefix": 9}),), of.plain, EXACT, T=64),
    Case("dilated window",
         Call("attn_gym.masks.dilated_sliding_window:generate_dilated_sliding_window", takes(*QKV), {"sizes": (9, 3)},
              adapter=_masked),
         (Call("plain/attention:windowed", takes(*QKV), {"window": 9, "dilation": 3, "causal": False}),), of.plain,
         EXACT, T=64),
)  # fmt: skip

#: The truth of the last was changed after its first run, from mask: the first sequence's keys are seen, and no edit of
#: the reference, which has the second's alone, does so.
WRONG = (
    Wrong(PROJECT.name, "41a96b6c", "001b36d", "columns and rows are exchanged within tiles, and of tiles",
          CASES[0], ("out",), Truth("near_x = ", "mask"), "windows of 3 by 5 where they are of 5 by 3"),
    Wrong(PROJECT.name, "bbf437e9", "290c1e7", "the bias has the other sign",
          CASES[1], ("out",), Truth("bias = -slope", "factor"), "all but the first token"),
    Wrong(PROJECT.name, "5e0d1b80", "043a4a3", "the score itself, and no cap, multiplies the tanh",
          CASES[2], ("out",), Truth("capped = cap * torch.tanh", "operand"), "all"),
    Wrong(PROJECT.name, "a8e73e5b", "672e59b", "pages are looked up in the table of the first sequence",
          _PAGES, ("out",), Truth("masked_fill(~seen", "no edit", changed=True), "all of the second sequence"),
)  # fmt: skip
