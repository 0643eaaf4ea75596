"""A kernel's gradients through torch.autograd, as those of a reference are asked for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from workbench.arrays import as_torch, module
from workbench.foreign.plain import is_array
from workbench.reference.graph import Graph
from workbench.reference.graph.device import numpy_of
from workbench.refusal import Refusal


def cotangents(graph: Graph, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The gradients of the results by name, as they were given among the inputs, or else as the graph holds them, in
    the dtype of the result: of NumPy, or tensors where an input is one, on its device.
    """
    torch = module("torch")
    of_torch = next((x for x in inputs.values() if isinstance(x, torch.Tensor)), None)
    found = {}
    for result, name in graph.cotangents.items():
        if name in inputs:
            found[name] = inputs[name]
            continue
        value = numpy_of(graph.nodes[graph.inputs[name]].value)  # of a graph on a GPU a tensor there
        x = value.astype(graph.nodes[graph.results[result]].dtype)
        found[name] = x if of_torch is None else as_torch(x, name).to(of_torch.device)
    return found


@dataclass(eq=False)
class ThroughAutograd:
    """A kernel that is called as its reference is, and then differentiated: it returns results, stages and gradients by
    the names of the graph.
    """

    function: Callable[..., Any]
    name: str
    graph: Graph
    without: dict[str, None] = field(default_factory=dict)  #: inputs that no gradient of the kernel reached
    beside: dict[str, None] = field(default_factory=dict)  #: those that have one, and none in the reference

    def __call__(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What `function` returns of the inputs and gradients of results that are `given`.

        Refusal where autograd does not see that a result depends on the inputs.
        """
        torch = module("torch")
        heads = {name: given[name] for name in self.graph.cotangents.values()}
        own = {name: x for name, x in given.items() if name not in heads}
        if wrong := next((name for name, x in own.items() if is_array(x) and not isinstance(x, torch.Tensor)), None):
            self._refuse(f"takes {wrong} as {type(own[wrong]).__name__}, and autograd needs tensors of torch")
        leaves = {
            name: x.detach().requires_grad_()
            for name, x in own.items()
            if isinstance(x, torch.Tensor) and x.is_floating_point() and x.element_size() > 1
        }
        with torch.enable_grad():
            made = self._named(self.function(**own | leaves))
            pairs = [self._pair(made, result, heads[name], name) for result, name in self.graph.cotangents.items()]
            some = [pair for pair in pairs if pair is not None]
            if not some:
                self._refuse("returns none of the results that have gradients")
            found = torch.autograd.grad(
                [x for x, _ in some], [*leaves.values()], [g for _, g in some], allow_unused=True
            )
        for (name, leaf), g in zip(leaves.items(), found, strict=True):
            wanted = self.graph.gradients.get(name)
            if wanted is None:
                self.beside |= {} if g is None else {name: None}
            else:
                self.without |= {name: None} if g is None else {}
                made[wanted] = torch.zeros_like(leaf) if g is None else g
        return made

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know of the gradients."""
        said = [f"no gradient of {self.name} reached {name}: judged as 0" for name in self.without]
        said += [f"{name} has a gradient, and none in the reference: not judged" for name in self.beside]
        return tuple(said)

    def _named(self, made: Any) -> dict[str, Any]:
        """What was returned, by name: results in order, or results and stages."""
        results = [key for key in self.graph.results if key not in self.graph.gradients.values()]
        if isinstance(made, Mapping):
            if own := [str(key) for key in made if key in self.graph.gradients.values()]:
                self._refuse(f"returns {own[0]}, which autograd is to make of its results; leave it out")
            return {str(key): x for key, x in made.items()}
        several = list(made) if isinstance(made, tuple | list) else [made]
        if len(several) > len(results):
            self._refuse(f"returns {len(several)} arrays; the reference returns {len(results)}: {', '.join(results)}")
        return {self.graph.called(key): x for key, x in zip(results, several, strict=False)}

    def _pair(self, made: Mapping[str, Any], result: str, head: Any, name: str) -> tuple[Any, Any] | None:
        """A result and its gradient; None of one that is not there, and whose gradient is 0."""
        torch, called = module("torch"), self.graph.called(result)
        x = made.get(called, made.get(result))
        if not isinstance(x, torch.Tensor):
            if x is None and not bool((head != 0).any()):
                return None
            what = "returns no" if x is None else f"returns a {type(x).__name__} as"
            self._refuse(f"{what} {called}, whose gradient {name} the reference goes back from")
        if not x.requires_grad:
            self._refuse(
                f"returns {called} without a gradient: torch.autograd sees no path from its inputs to it. Where that is"
                f" meant, detach {called} in the reference"
            )
        if tuple(x.shape) != tuple(head.shape):
            self._refuse(f"returns {called} of shape {list(x.shape)}; the reference's is {list(head.shape)}")
        g = head.to(device=x.device, dtype=x.dtype)
        if not bool((g.to(head) == head).all()):
            self._refuse(f"returns {called} in {x.dtype}, which does not hold {name}, in {head.dtype}")
        return x, g

    def _refuse(self, words: str) -> NoReturn:
        raise Refusal(f"{self.name} {words}")
