"""Calls of torch's scaled_dot_product_attention that the modules of a model make."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from workbench.explore.capturing.layers import Layers
from workbench.explore.capturing.sources import Source, Tell, Watched, called, replaced
from workbench.foreign.calls import Call, placed, reader_of

_ALONE = (
    "nn.MultiheadAttention without scaled_dot_product_attention: it calls it with need_weights=False, and after "
    "torch.backends.mha.set_fastpath_enabled(False)"
)


class Made(NamedTuple):
    """Torch's attention, called by a module."""

    function: Any
    where: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def source_of(model: Any) -> Source | None:
    """Calls of torch's attention inside a torch.nn.Module; None for what is none."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        return None
    layers, name = Layers(model), type(model).__name__
    sdpa = torch.nn.functional.scaled_dot_product_attention
    reader = reader_of(sdpa)

    def read(made: Made, *args: Any, **kwargs: Any) -> Call:
        return placed(reader.read(*args, **kwargs), made.where)

    @contextmanager
    def watching(watched: Watched, tell: Tell) -> Iterator[None]:
        running: list[Any] = []  # the modules whose forward runs, the innermost last
        calls = [0]

        def of_model(*args: Any, **kwargs: Any) -> Any:
            if not running:
                return sdpa(*args, **kwargs)
            calls[0] += 1
            return watched(Made(sdpa, layers.enter(running[-1][0])), *args, **kwargs)

        def begin(module: Any, *_: Any) -> None:
            running.append((module, calls[0]))

        def end(module: Any, *_: Any) -> None:
            _, before = running.pop()
            if isinstance(module, torch.nn.MultiheadAttention) and calls[0] == before:
                tell(_ALONE)

        with ExitStack() as stack:
            stack.enter_context(layers.counted())
            stack.enter_context(replaced(sdpa, of_model, []))
            for module in model.modules():
                stack.enter_context(_hooked(module.register_forward_pre_hook(begin)))
                stack.enter_context(_hooked(module.register_forward_hook(end, always_call=True)))
            yield

    unseen = (
        f"no module of {name} called torch's scaled_dot_product_attention while it was watched; of attention that it "
        "computes itself name the function and say what it asks: capture(function, folder, spec=...)"
    )
    return Source(name, read, called, watching, lambda: unseen)


@contextmanager
def _hooked(hook: Any) -> Iterator[None]:
    try:
        yield
    finally:
        hook.remove()
