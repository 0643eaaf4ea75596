"""What a score_mod of flex_attention computes, where it adds to scores and caps them, as those of transformers do."""

import math
from collections.abc import Callable
from typing import Any

from workbench.refusal import Refusal

#: scores of which a score_mod is computed, 8 bytes each, several times
LARGEST = 2**22
#: beyond it a number that is added absorbs what score_mod makes of a score, even in float64
_ABSORBS = 1e12
#: relative error of a tanh in float32, and of what was rounded there
_ROUNDED = 1e-5


def known_score_mod(score_mod: Callable[..., Any], q: Any, k: Any) -> tuple[Any, float | None]:
    """What a score_mod adds, float32 [b, h, q, k] or None for nothing, and its softcap or None: it is computed of every
    index, and of two scores at each. q and k [b, h, s, d].

    Refusal, with its name, for one that computes anything else, and for a call of more than LARGEST scores.
    """
    import torch

    sizes, name = (*q.shape[:3], k.shape[2]), getattr(score_mod, "__qualname__", type(score_mod).__name__)
    if math.prod(sizes) > LARGEST:
        raise Refusal(f"torch:flex_attention with the score_mod {name}, of more than {LARGEST:,} scores")
    zero = torch.zeros(sizes, dtype=torch.float64, device=q.device)
    added = _of_every_index(score_mod, zero)
    # scores that differ from index to index, of both signs, small ones and large ones
    scores = torch.linspace(-8.0, 13.0, zero.numel(), dtype=torch.float64, device=q.device).reshape(sizes)
    clear = added.abs() < _ABSORBS
    made, capped = (torch.where(clear, _of_every_index(score_mod, x) - added, 0) for x in (scores, zero + _ABSORBS))
    allowed = _ROUNDED * (scores.abs() + torch.where(clear, added, 0).abs())
    softcap = float(capped.max())
    identity = softcap > _ABSORBS / 2
    wanted = scores if identity else softcap * torch.tanh(scores / softcap)
    fits = bool(((made - wanted).abs() <= allowed)[clear].all())
    if not fits or not softcap > 0 or bool(added.isnan().any()):
        raise Refusal(f"torch:flex_attention with the score_mod {name}, which does more than cap scores or add to them")
    return added.float() if bool(added.any()) else None, None if identity else softcap


def _of_every_index(score_mod: Callable[..., Any], scores: Any) -> Any:
    """score_mod(scores, b, h, q, k) of all indices, as flex_attention computes it without a compiler."""
    import torch
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    every = score_mod
    for axis in (4, 3, 2, 1):
        every = torch.vmap(every, in_dims=(0, *(0 if i == axis else None for i in range(1, 5))))
    with TransformGetItemToIndex():
        made = every(scores, *(torch.arange(n, device=scores.device) for n in scores.shape))
    return made.to(torch.float64)
