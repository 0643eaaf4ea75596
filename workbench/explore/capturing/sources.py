"""Where calls of a capture are seen: a function under its names, torch's attention at the dispatcher, or a model."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from workbench.arrays import module
from workbench.foreign.calls import ATTENTION_OPS, Call, is_dispatched, reader_of

Watched = Callable[..., Any]
Tell = Callable[[str], None]

#: operations of aten, of nn.MultiheadAttention and nn.TransformerEncoderLayer, whose attention no mode sees
_INSIDE = ("_native_multi_head_attention", "_transformer_encoder_layer_fwd")
_HELD = (
    "callers that keep the function in a dict, a closure or a default bypass the capture: let them call c.function. "
    "For a function that is registered with transformers use capture(model, folder)"
)
_NOWHERE = "no module has this function as an attribute: call c.function instead"
_DISPATCHER = (
    "capture(torch.ops.aten.scaled_dot_product_attention, ...) sees all calls of torch's attention, from C++ "
    "and compiled graphs, too"
)
_NOT_DISPATCHED = "nothing called torch's attention, except perhaps its math backend, which runs matmuls and a softmax"


@dataclass(frozen=True)
class Source:
    """Calls of one kind."""

    name: str  #: what is watched, as reports and traces name it
    read: Callable[..., Call]  #: called as `function` is; Refusal for a call that cannot be judged
    function: Callable[..., Any]  #: makes one call; the capture puts a watched one in its place
    #: watches with it until it is left; the others take why a call is not judged, and what the report should say
    watching: Callable[[Watched, Tell, Tell], AbstractContextManager[Any]]
    unseen: Callable[[], str]  #: why no call may have been seen, and what to do
    no_record: bool = False  #: whether it is called below autograd


def called(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What is watched where each call brings its function along."""
    return function(*args, **kwargs)


def of_function(function: Callable[..., Any], spec: Callable[..., Any] | str | None) -> Source:
    """Calls of a function under the names that modules have it by, or of torch's attention at the dispatcher. Refusal
    for a function that is neither known nor told.
    """
    reader = reader_of(function, spec)
    if is_dispatched(function):
        return Source(reader.name, reader.read, called, _dispatched, lambda: _NOT_DISPATCHED, no_record=True)
    found: list[Any] = []

    def unseen() -> str:
        return f"{_HELD}; {_DISPATCHER}" if found else _NOWHERE

    def watching(watched: Watched, tell: Tell, remark: Tell) -> AbstractContextManager[None]:
        return replaced(function, watched, found)

    return Source(reader.name, reader.read, function, watching, unseen)


@contextmanager
def replaced(function: Callable[..., Any], watched: Watched, found: list[Any]) -> Iterator[None]:
    """The function is replaced by the watched one wherever a module or its class has it; `found`: where."""
    found[:] = _places(function)
    try:
        for owner, name in found:
            setattr(owner, name, watched)
        yield
    finally:
        for owner, name in found:
            setattr(owner, name, function)


def _places(function: Callable[..., Any]) -> Iterator[tuple[Any, str]]:
    """Modules that have the function under a name, and the class whose method it is."""
    for one in [*sys.modules.values()]:
        for name, value in [*getattr(one, "__dict__", {}).items()]:
            if value is function:
                yield one, name
    *path, name = getattr(function, "__qualname__", "").split(".")
    owner: Any = sys.modules.get(getattr(function, "__module__", ""))
    for outer in path:
        owner = getattr(owner, outer, None)
    if path and isinstance(owner, type) and owner.__dict__.get(name) is function:
        yield owner, name


def _dispatched(watched: Watched, tell: Tell, remark: Tell) -> Any:
    """The mode of torch's dispatcher in which calls of its attention, whoever makes them, are made by `watched`;
    operations that have attention inside are told.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    aten = module("torch", "a capture").ops.aten

    def inside(op: Any, *args: Any, **kwargs: Any) -> Any:
        tell(f"{op.overloadpacket} computes attention inside one operation")
        return op(*args, **kwargs)

    made_by = {
        getattr(aten, name, None): by for names, by in ((ATTENTION_OPS, watched), (_INSIDE, inside)) for name in names
    }

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return made_by.get(op.overloadpacket, called)(op, *args, **(kwargs or {}))

    return Watching()
