"""Which layer of a model calls, and in which of its forward passes."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Layers:
    """The modules of a model by name, and its forward passes, counted from 0 while it is watched."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._names = _names(model)
        self._passes, self._inside = 0, False
        self._called: set[Any] = set()
        self._depth = 0

    def __contains__(self, module: Any) -> bool:
        return module in self._names

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Forward passes of the model are counted until it is left."""
        hooks = (
            self._model.register_forward_pre_hook(self._enter),
            self._model.register_forward_hook(self._leave, always_call=True),
        )
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _enter(self, *_: Any) -> None:
        self._inside = True

    def _leave(self, *_: Any) -> None:
        self._inside = False
        self._next()

    def _next(self) -> None:
        self._passes += 1
        self._called.clear()

    def begin(self, module: Any) -> str:
        """Which call the module makes now: layer 7, step 3. Of a part of the model that is called alone, as generate
        calls an encoder, a step ends where a module calls again.
        """
        if not self._inside and module in self._called:
            self._next()
        self._called.add(module)
        self._depth += 1
        return f"layer {self._names[module]}, step {self._passes}"

    def end(self) -> None:
        """The call that began last has ended."""
        self._depth -= 1

    @property
    def inside_a_call(self) -> bool:
        """Whether a call has begun that has not ended."""
        return self._depth > 0


def _names(model: Any) -> dict[Any, str]:
    """Module -> its layer_idx, where no other attention has the same, as those of an encoder and of a decoder; else its
    name in the model.
    """
    every = {module: name for name, module in model.named_modules()}
    index = {
        module: module.layer_idx
        for module in every
        if isinstance(getattr(module, "layer_idx", None), int) and "attention" in type(module).__name__.lower()
    }
    uses = Counter(index.values())
    return {
        module: str(index[module]) if uses.get(index.get(module, -1)) == 1 else name or type(module).__name__
        for module, name in every.items()
    }
