"""What torch's dispatcher is asked for in a run, answered with arrays of the run.

A `TorchDispatchMode` sees every operation of ATen, those of factories such as `torch.zeros` too, after torch has
decomposed what it decomposes itself. A `__torch_function__` would see some thousand names of Python instead.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from workbench.reference.graph.arrays import Traced, held
from workbench.reference.graph.recording import Recording
from workbench.reference.graph.torch_again import again, autograd_of, is_of_softmax
from workbench.reference.graph.torch_backward import BACKWARD
from workbench.reference.graph.torch_composites import COMPOSITES
from workbench.reference.graph.torch_convolution import CONVOLUTION
from workbench.reference.graph.torch_creation import (
    CREATE,
    DRAW,
    DRAW_INTO,
    DRAW_LIKE,
    LIKE,
    created,
    drawn,
    drawn_into,
    like,
)
from workbench.reference.graph.torch_delta import of_divisor
from workbench.reference.graph.torch_elementwise import ELEMENTWISE
from workbench.reference.graph.torch_empty import Empty
from workbench.reference.graph.torch_moves import COPIES, VIEWS
from workbench.reference.graph.torch_parts import Parts
from workbench.reference.graph.torch_places import PLACES, put_at, sort_stable
from workbench.reference.graph.torch_schema import facts, fixed, flat, is_unknown, number, written
from workbench.reference.graph.torch_shares import Shares
from workbench.reference.graph.torch_sums import SUMS
from workbench.reference.graph.torch_tensor import DTYPES, Tensor, plain_array

#: operation -> what it is in plain code; by the name of an overload where overloads differ in their arguments
OPERATIONS: Mapping[str, Callable[..., Any]] = {
    **ELEMENTWISE, **SUMS, **VIEWS, **COPIES, **PLACES, **COMPOSITES, **CONVOLUTION, **BACKWARD,
    "sort.stable": sort_stable,
}  # fmt: skip
#: where values are: all tensors of a run are on the CPU, also where a reference says otherwise
_ELSEWHERE = ("device", "layout", "pin_memory", "non_blocking")
#: writes after which an array is what it was, but for some elements
_IN_PART = ("masked_", "scatter", "index_")


class Dispatch(TorchDispatchMode):
    """One run."""

    def __init__(self, run: Recording) -> None:
        super().__init__()
        self.run = run
        self.draws = False  #: whether the reference asked for random numbers
        self.empty = Empty(run)
        self.within: list[Any] = []  #: the operations that are being decomposed, one inside another
        self.parts = Parts(run)
        self.shares = Shares(run)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: what keeps torch.compile out of a mode imports all of it, 3 s at the first operation."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        names = sys.gettrace()  # of local variables: it need not look at what is done here, half of a run's time
        sys.settrace(None)
        try:
            with np.errstate(all="ignore"):
                return self._answer(func, args, dict(kwargs or {}))
        finally:
            sys.settrace(names)

    def _answer(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        space, name, _ = facts(func)
        tensors = [x for x in flat([*args, *kwargs.values()]) if isinstance(x, torch.Tensor)]
        ours = [x for x in tensors if isinstance(x, Tensor)]
        if space != "aten":
            return self._behind(func, name, args, kwargs)
        if name == "lift_fresh" and not ours:  # torch.tensor([...]), and torch.from_numpy
            return args[0] if is_unknown(args[0]) else self._constant(args[0])
        if kwargs.get("dtype", torch.float64) not in (None, *DTYPES):
            self.run.refuse(f"no rule for a tensor of {kwargs['dtype']}")
        if tensors and not ours and any(is_unknown(x) for x in tensors) and name not in (*LIKE, *DRAW_LIKE):
            return func(*args, **kwargs)  # of the reference's globals alone
        plain = {key: x for key, x in kwargs.items() if key not in _ELSEWHERE}
        order = plain.pop("memory_format", None)
        if order is torch.contiguous_format and name == "clone":  # what .contiguous() and .reshape() ask for
            name = "contiguous"
        first = len(self.run.nodes)
        made = self._made(func, name, tuple(args), plain)
        made = self._behind(func, name, args, kwargs) if made is NotImplemented else _wrapped(made)
        self.run.one_call(first, [x.node_of_run for x in flat([made]) if isinstance(x, Tensor)])
        return made

    def _made(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        """Arrays of the run; the tensor itself of what writes to it; NotImplemented without a rule."""
        if name in CREATE or name in DRAW:
            return self._new(func, name, args, kwargs)
        target = written(func, args, kwargs)
        if isinstance(target, list | tuple):
            self.run.refuse(f"no rule for torch.ops.{func}, which writes into several tensors")
        if target is not None and not isinstance(target, Tensor):
            self.run.refuse(f"torch.{name} writes into a tensor that was not made in this run")
        if name in LIKE or name in DRAW_LIKE:
            return self._like(name, args, kwargs)
        x, more = self._taken(args), {key: self._taken(one) for key, one in kwargs.items()}
        if target is None:
            return self._read(func, name, x, more)
        kwargs.pop("out", None)
        more.pop("out", None)
        return self._write(func, name, target, x, more)

    def _read(self, func: Any, name: str, x: Any, more: dict[str, Any]) -> Any:
        if name == "_local_scalar_dense":
            self.empty.read(x[0])
            return x[0]._taken("a number of Python").item()
        if name == "equal":
            return bool(np.array_equal(*(one._taken("torch.equal") for one in x)))
        if name == "allclose":
            return bool(np.allclose(*(one._taken("torch.allclose") for one in x[:2]), *x[2:], **more))
        if name in VIEWS:
            return VIEWS[name](*x, **more)
        self.empty.read_all(flat([*x, *more.values()]))
        if self.run.backward is not None and not more:
            if name == "slice_backward":
                return self.parts.of_slice(*x)
            if name == "select_backward":
                return self.parts.of_select(*x)
            if name == "neg" and is_of_softmax(x[0]):
                x = (again(x[0]),)
            if name == "sum" and autograd_of().startswith("DivBackward"):
                return of_divisor(SUMS["sum"](*x), x[0].node_of_run)
            if name == "add" and len(x) == 2 and all(isinstance(one, Traced) for one in x):
                return self.parts.added(x[0], x[1], ELEMENTWISE["add"])
        known = fixed(x, more, func, ELEMENTWISE.get(name))
        if known is not None:
            return known
        rule = OPERATIONS.get(f"{name}.{func._overloadname}") or OPERATIONS.get(name)
        if rule is None:
            return NotImplemented
        try:
            if self.run.backward is not None and name in Shares.NAMES and not more:
                return self.shares.made(name, x, rule)
            return rule(*x, **more)
        except TypeError as error:  # an overload with other arguments
            self.run.refuse(f"no rule for torch.ops.{func} with these arguments ({error})")

    def _write(self, func: Any, name: str, target: Tensor, x: Any, more: dict[str, Any]) -> Any:
        to = target.traced
        if torch.Tag.inplace_view in func.tags:  # unsqueeze_ and the like, which torch itself calls
            if name.removesuffix("_") not in VIEWS:
                return NotImplemented
            with no_dispatch():
                func(target, *x[1:], **more)
            target.traced = VIEWS[name.removesuffix("_")](*x, **more)
            return target
        if not to.value.flags.writeable:
            self.run.refuse(
                f"torch.{name} writes to a tensor whose elements stand in several places (expand), or to a view that a"
                " run copies (diagonal, unfold). Write to the tensor itself, by index"
            )
        if name in DRAW_INTO:
            self.draws = True
            to.replace(drawn_into(to, name, x[1:], more))
        elif name in ("copy_", "fill_", "zero_"):
            source = x[1] if len(x) > 1 else 0
            self.empty.read_all([source])
            to.replace(_as_array(self.run, source, to))
        elif name == "index_put_":
            indices, values = list(x[1]), x[2]
            self.empty.read_all([*indices, values, *([to] if len(x) > 3 and x[3] else [])])
            self.empty.write_at(to, indices)
            before = to.assigned
            put_at(to, indices, values, *x[3:4])
            to.assigned = before
            return target
        else:
            read = name.removesuffix("_")
            made = self._read(func, read, x, more)
            if made is NotImplemented:
                return made
            if made.shape != to.shape:
                self.run.refuse(f"torch.{name} writes {made.shape} into a tensor of {to.shape}")
            if not made.whole and to.whole:
                raise RuntimeError(f"result type {made.dtype} can't be cast to the desired output type {to.dtype}")
            to.replace(made)
        if name.startswith(_IN_PART):
            to.assigned -= 1
        self.empty.write(to)
        return target

    # new tensors

    def _new(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Traced:
        if name in DRAW and any(isinstance(one, torch.Tensor) for one in [*args, *kwargs.values()]):
            self.run.refuse(f"no rule for torch.{name} with computed parameters")
        args = tuple(number(one) for one in args)
        if name in DRAW:
            self.draws = True
            return drawn(self.run, func, args, kwargs)
        made = created(self.run, func, args, kwargs)
        if "empty" in name:
            self.empty.add(made)
        return made

    def _like(self, name: str, args: Any, kwargs: dict[str, Any]) -> Traced:
        x = args[0].traced if isinstance(args[0], Tensor) else args[0]
        base = name if name in LIKE else "empty_like"
        made = like(self.run, base, x, tuple(number(one) for one in args[1:]), kwargs.get("dtype"))
        if name in DRAW_LIKE:
            self.draws = True
            return drawn_into(made, DRAW_LIKE[name], (), {})
        if "empty" in name:
            self.empty.add(made)
        return made

    # to and from arrays of the run

    def _taken(self, x: Any) -> Any:
        """Tensors as arrays of the run, lists of them too."""
        if isinstance(x, Tensor):
            if x.run is not self.run:
                self.run.refuse("a tensor of another run; a reference keeps nothing from one call to the next")
            return x.traced
        if isinstance(x, torch.Tensor):
            if is_unknown(x):
                self.run.refuse(
                    f"a tensor of {x.numel()} floats that was not made in this run (a global, a parameter, NumPy) meets"
                    " one that was, and may be rounded. Pass it as an input"
                )
            return self._constant(x).traced
        return type(x)(self._taken(one) for one in x) if isinstance(x, list | tuple) else x

    def _constant(self, x: torch.Tensor) -> Tensor:
        noted = DTYPES.get(x.dtype)
        if noted is None:
            self.run.refuse(f"no rule for a tensor of {x.dtype}")
        return Tensor(held(self.run, plain_array(x), noted))

    def _behind(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        """By torch's decomposition, if it has one; a Refusal if not."""
        from torch._decomp import decomposition_table  # seconds of imports, for a few operations

        made = decomposition_table.get(func)
        self.within.append(func)
        try:
            with self:
                found = func.decompose(*args, **kwargs) if made is None else made(*args, **kwargs)
            if found is NotImplemented:
                inner = f", which torch decomposes to {func}" if len(self.within) > 1 else ""
                self.run.refuse(f"no rule for torch.ops.{self.within[0]}{inner}")
        finally:
            self.within.pop()
        return found


def _as_array(run: Recording, x: Any, to: Traced) -> Traced:
    return x if isinstance(x, Traced) else held(run, np.asarray(x, to.value.dtype), to.dtype)


def _wrapped(made: Any) -> Any:
    if isinstance(made, list | tuple):
        return type(made)(_wrapped(one) for one in made)
    return Tensor(made) if isinstance(made, Traced) else made
