"""Gradients of a reference by torch.autograd, as nodes of the same run.

Autograd stands above the dispatcher: it records what the reference asks for, and its backward pass asks the dispatcher
for more. So the nodes of the backward pass follow those of the forward pass, with rules and budgets of their own.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from workbench.reference.graph.arrays import Traced
from workbench.reference.graph.gradients import Gradients
from workbench.reference.graph.node import Graph, Line, Node
from workbench.reference.graph.patterns import PASSES
from workbench.reference.graph.recording import Backward, Recording, significant
from workbench.reference.graph.rules import CONSTANT, INPUT
from workbench.reference.graph.torch_again import softmax_again, source
from workbench.reference.graph.torch_tensor import Tensor, plain_array
from workbench.refusal import Refusal

#: primitives that compare
_COMPARES = frozenset("equal not_equal less less_equal greater greater_equal maximum minimum max min".split())
#: number of autograd's nodes for operations that have no derivative
_WITHOUT = 2**64 - 1


class Autograd:
    """The gradients of one run."""

    def __init__(self, run: Recording, asked: Gradients, given: Mapping[str, Any]) -> None:
        self.run, self.asked = run, asked
        self.given = {name: self._read(name, x) for name, x in given.items()}  #: gradients of results
        self._lines: dict[int, Line] = {}  #: of the nodes of autograd, by their number
        self._next = _counted()
        self._copies: dict[int, Traced] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Within it autograd records. What is a view is made anew in the backward pass, as tensors of a run have no
        memory that strides could address.
        """
        kept = torch.autograd.graph.saved_tensors_hooks(self._packed, self._unpacked)
        with torch.enable_grad(), torch.autograd._force_original_view_tracking(True), kept:
            yield

    def note(self, made: Any) -> None:
        """What autograd has recorded since the last call is of the line that is being run, which has made something."""
        if (now := _counted()) > self._next:
            self._lines |= dict.fromkeys(range(self._next, now), self.run.line())
            self._next = now
        elif isinstance(made, Tensor) and made.grad_fn is not None and made.grad_fn._sequence_nr() == _WITHOUT:
            self._lines.setdefault(_WITHOUT, self.run.line())

    def _line(self) -> Line:
        """The line whose backward pass is under way."""
        node = torch._C._current_autograd_node()
        found = None if node is None else self._lines.get(node._sequence_nr())
        return Line("?", 0, True) if found is None else found._replace(backward=True)

    @staticmethod
    def _read(name: str, x: Any) -> np.ndarray:
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            raise Refusal(f"{name} must be a tensor of floats, the gradient of a result; got {type(x).__name__}")
        return plain_array(x)

    # what the forward pass keeps

    def _packed(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return x, x._version

    def _unpacked(self, kept: tuple[torch.Tensor, int]) -> torch.Tensor:
        """A copy that the backward pass alone reads: a kernel may keep it in fewer bits."""
        x, version = kept
        if not isinstance(x, Tensor):
            return x
        if x._version != version:  # which torch checks only where nobody looks at what is kept
            self.run.refuse(
                "a tensor that the backward pass reads was written in place since, which torch.autograd refuses"
            )
        node = x.traced.node_of_run
        if x.traced.whole or x.traced.fixed or source(self.run, node) in self.run.inputs.values():
            return x
        if node not in self._copies:
            of = Traced(self.run, x.traced.value, softmax_again(self.run, node), x.traced.dtype)
            self._copies[node] = of.again()
        return Tensor(self._copies[node])

    # the way back

    def graph(self, name: str, leaves: Mapping[str, Any], results: Mapping[str, Any]) -> Graph:
        """The graph of results and gradients of leaves, `d<leaf>`, or `grad_<leaf>` where a stage is called so.

        name: of the reference. Refusal where no result depends on a leaf, and for gradients of no result.
        """
        run = self.run
        nodes = {key: x.traced.node_of_run for key, x in results.items()}
        forward = run.graph(nodes)
        taken = {*run.inputs, *run.stages, *results}
        starts = {key: x for key, x in results.items() if x.requires_grad}
        if not starts:
            raise Refusal(f"no result of {name} has a gradient: torch.autograd sees no path from its inputs to them")
        names = {key: _free(forward.called(key), taken) for key in starts}
        if left := sorted({*self.given} - {*names.values()}):
            known = ", ".join(names.values())
            raise Refusal(f"{name} takes no {left[0]}, and gradients of its results are {known}")
        heads = [self._cotangent(names[key], i, x) for i, (key, x) in enumerate(starts.items())]
        wanted = {key: x for key, x in leaves.items() if isinstance(x, Tensor) and x.requires_grad}
        found = self._back([*starts.values()], heads, [*wanted.values()])
        gradients = {key: _free(key, taken) for key, x in zip(wanted, found, strict=True) if x is not None}
        made = {gradients[key]: self._own(x) for key, x in zip(wanted, found, strict=True) if x is not None}
        return run.graph(nodes | made, cotangents=names, gradients=gradients, saved=self._saved(), again=run.again)

    def _own(self, x: Tensor) -> int:
        """A node of its own: one gradient may be another, or that of a result. A computed gradient is `factored`: two
        more roundings, since kernels write (p - 1) g for p g - g.
        """
        node, nodes = x.traced.node_of_run, self.run.nodes
        computed = nodes[source(self.run, node)].op not in (INPUT, CONSTANT)
        nodes.append(
            Node("factored" if computed else "named", (node,), {}, tuple(x.shape), x.traced.dtype, nodes[node].line)
        )
        return len(nodes) - 1

    def _back(self, heads: list[Any], gradients: list[Any], leaves: list[Any]) -> tuple[Any, ...]:
        self.run.backward = Backward(sys._getframe().f_code, self._line, len(self.run.nodes))
        try:
            return torch.autograd.grad(heads, leaves, gradients, allow_unused=True)
        except RuntimeError as error:
            if not str(error).startswith("derivative for"):
                raise
            line = self._lines.get(_WITHOUT, Line("?", 0))
            raise Refusal(f"{line}: {str(error).partition(chr(10))[0]} in torch.autograd") from None
        finally:
            self.run.backward = None

    def _cotangent(self, name: str, place: int, of: Tensor) -> Tensor:
        """The gradient of a result, as an input."""
        shape, noted = tuple(of.shape), of.traced.dtype
        value = self.given.get(name)
        if value is not None:
            if value.shape != shape:
                raise Refusal(f"{name} has the shape {list(value.shape)}; its result has {list(shape)}")
        elif self.asked.seed is None:
            raise Refusal(f"{name} is missing among the inputs: the gradient of a result that gradients were made from")
        else:
            value = self.asked.drawn(place, shape)
        held = np.asarray(value.astype(noted).astype(np.float64))
        if name in self.given and not np.array_equal(held, value, equal_nan=True):
            raise Refusal(f"{name} has values that {noted}, the dtype of its result, does not hold")
        return Tensor(Traced(self.run, held, self.run.hold(held.copy(), noted, name, significant(held)), noted))

    def _saved(self) -> frozenset[int]:
        """Copies that a kernel may keep in fewer bits: where a comparison reads one, that would be another choice."""
        nodes = self.run.nodes
        copies = self.run.kept | {x.node_of_run for x in self._copies.values()}
        compared = set[int]()
        for node in nodes:
            for j in node.reads if node.op in _COMPARES else ():
                while nodes[j].op in PASSES and j not in copies:
                    j = nodes[j].reads[0]
                compared.add(j)
        return frozenset(copies - compared)


def _counted() -> int:
    """How many nodes autograd has made in this thread."""
    found: int = torch._C._autograd._get_sequence_nr()
    return found


def _free(name: str, taken: set[str]) -> str:
    """The name of a gradient."""
    return f"d{name}" if f"d{name}" not in taken else f"grad_{name}"
