"""Calls of attention inside a model: of the functions of transformers, and of torch's attention by any module."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from workbench.explore.capturing import interface, modules
from workbench.explore.capturing.layers import Layers
from workbench.explore.capturing.sources import Source, Tell, Watched, called
from workbench.foreign.calls import Call


def source_of(model: Any) -> Source | None:
    """How to watch the attention of a torch.nn.Module; None if it is not one.

    Of a model of transformers they are those of the attention function that its config names; of any other module also
    of torch's scaled_dot_product_attention.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        return None
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    layers, name, asks = Layers(model), type(model).__name__, interface.asks(model)
    # its own files call torch's attention inside those functions alone
    alone = asks and isinstance(model, sys.modules["transformers.modeling_utils"].PreTrainedModel)

    @contextmanager
    def watching(watched: Watched, tell: Tell, remark: Tell) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(layers.counted())
            if asks:
                stack.enter_context(interface.watching(layers, watched, remark))
            if not alone:
                stack.enter_context(modules.watching(model, layers, watched, tell))
            yield

    def read(found: Any, *args: Any, **kwargs: Any) -> Call:
        call: Call = found.asked(*args, **kwargs)
        return call

    unseen = (
        f"no module of {name} {'asked transformers for an attention function' if alone else _CALLED} during "
        "the capture. If it computes attention itself, capture that function: capture(function, folder, spec=...)"
    )
    return Source(name, read, called, watching, lambda: unseen)


_CALLED = "called torch's scaled_dot_product_attention"
