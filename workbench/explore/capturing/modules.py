"""Calls of torch's scaled_dot_product_attention that the modules of a model make."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from workbench.explore.capturing.layers import Layers
from workbench.explore.capturing.sources import Tell, Watched, replaced
from workbench.foreign.calls import Call, placed, reader_of

_ALONE = (
    "nn.MultiheadAttention did not call scaled_dot_product_attention: pass need_weights=False, and call "
    "torch.backends.mha.set_fastpath_enabled(False) first"
)


class Made(NamedTuple):
    """Torch's attention, called by a module."""

    function: Any
    read: Callable[..., Call]
    where: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def asked(self, *args: Any, **kwargs: Any) -> Call:
        """What a call of it asks."""
        return placed(self.read(*args, **kwargs), self.where)


@contextmanager
def watching(model: Any, layers: Layers, watched: Watched, tell: Tell) -> Iterator[None]:
    """The calls of torch's attention by modules of a model are watched, until it is left, but for those inside a call
    that is watched; `tell` counts what was not judged.
    """
    import torch

    sdpa, alone = torch.nn.functional.scaled_dot_product_attention, torch.nn.MultiheadAttention
    read = reader_of(sdpa).read
    running: list[tuple[Any, int]] = []  # the modules whose forward runs, the innermost last
    calls = 0

    def of_model(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        if not running or layers.inside_a_call:
            return sdpa(*args, **kwargs)
        calls += 1
        made = Made(sdpa, read, layers.begin(running[-1][0]))
        try:
            return watched(made, *args, **kwargs)
        finally:
            layers.end()

    def begin(module: Any, *_: Any) -> None:
        running.append((module, calls))

    def end(module: Any, *_: Any) -> None:
        _, before = running.pop()
        if isinstance(module, alone) and calls == before:
            tell(_ALONE)

    with ExitStack() as stack:
        stack.enter_context(replaced(sdpa, of_model, []))
        for module in model.modules():
            stack.callback(module.register_forward_pre_hook(begin).remove)
            stack.callback(module.register_forward_hook(end, always_call=True).remove)
        yield
