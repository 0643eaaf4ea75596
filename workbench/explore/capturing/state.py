"""A call made in the middle of a model that leaves nothing behind: no number in a tensor of others, no attribute, no
step of a random generator.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

from workbench.arrays import module, own_random
from workbench.refusal import Refusal

#: containers and attributes within each other that are put back
_DEEP = 3


@contextmanager
def untouched(objects: Iterable[Any]) -> Iterator[None]:
    """What runs within has no gradients, its own random numbers, and may write into no tensor that was there before
    (Refusal). Attributes, lists and dicts of `objects`, and what functions among these close over, are put back.
    """
    torch = module("torch", "a capture")
    back = [*_copies(objects)]
    try:
        with own_random(), torch.no_grad(), _writing_nowhere():
            yield
    finally:
        for put_back in back:
            put_back()


def _copies(objects: Iterable[Any]) -> Iterator[Callable[[], None]]:
    """What puts each back."""
    known: set[int] = set()
    waiting = [(one, _DEEP) for one in objects]
    while waiting:
        x, deep = waiting.pop()
        if id(x) in known or deep == 0:
            continue
        known.add(id(x))
        inner: list[Any] = []
        if isinstance(x, MethodType):
            inner = [x.__self__, x.__func__]
        elif isinstance(x, FunctionType):
            inner = [*(x.__closure__ or ())]
        elif isinstance(x, CellType):
            held = _held(x)
            inner = [*held]
            yield partial(_refilled, x, held)
        elif isinstance(x, list):
            inner, was = [*x], [*x]
            yield partial(x.__setitem__, slice(None), was)
        elif isinstance(x, dict):
            inner, of_dict = [*x.values()], dict(x)
            yield partial(_as_before, x, of_dict)
        elif isinstance(x, tuple):
            inner = [*x]
        elif isinstance(x, set):
            of_set = set(x)
            yield partial(_as_before, x, of_set)
        elif hasattr(x, "__dict__") and not isinstance(x, type | ModuleType) and not hasattr(x, "untyped_storage"):
            inner = [vars(x)]
            deep += 1  # the dict of its attributes is no step
        waiting += [(one, deep - 1) for one in inner]


def _as_before(x: dict[Any, Any] | set[Any], was: Any) -> None:
    x.clear()
    x.update(was)


def _held(cell: CellType) -> tuple[Any, ...]:
    """What a cell holds; () of one that is empty."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def _refilled(cell: CellType, held: tuple[Any, ...]) -> None:
    if held:
        cell.cell_contents = held[0]
    elif _held(cell):
        del cell.cell_contents


def _writing_nowhere() -> Any:
    """The mode of torch's dispatcher in which an operation that writes into a tensor made before is refused."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    torch = module("torch", "a capture")

    def storages(of: Any) -> set[int]:
        tensors = (x for x in tree_leaves(of) if isinstance(x, torch.Tensor) and x.layout == torch.strided)
        return {x.untyped_storage().data_ptr() for x in tensors}

    class WritingNowhere(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self._own: set[int] = set()

        def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = {**dict(zip((one.name for one in op._schema.arguments), args, strict=False)), **(kwargs or {})}
            for one in op._schema.arguments:
                if one.alias_info is not None and one.alias_info.is_write and one.name in given:
                    if storages(given[one.name]) - self._own:
                        raise Refusal(f"it writes into an existing tensor ({op})")
            made = op(*args, **(kwargs or {}))
            self._own |= storages(made) - storages((args, kwargs))
            return made

    return WritingNowhere()
