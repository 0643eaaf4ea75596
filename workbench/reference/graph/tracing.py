"""One run of a plain reference, recorded."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np

from workbench.reference.graph import functions, ufuncs
from workbench.reference.graph.arrays import Traced
from workbench.reference.graph.device import is_worth_it, off_device, on_device
from workbench.reference.graph.gradients import Gradients, split
from workbench.reference.graph.local_names import naming
from workbench.reference.graph.node import Graph
from workbench.reference.graph.numpy_module import Numpy, code_of, standing_in
from workbench.reference.graph.recording import Recording, recording, significant
from workbench.refusal import Refusal

__all__ = ["functions", "trace", "ufuncs"]  # which fill in what arrays do


def trace(
    f: Callable[..., Any],
    inputs: Mapping[str, Any],
    dtype: Any = None,
    gradients: Gradients | None = None,
    device: Any = None,
) -> Graph:
    """The graph of f(**inputs), which runs once, in float64, as it is.

    inputs: arrays of NumPy or tensors by name, also in lists and dicts, copied, and whatever else f takes. dtype: what
    float arrays are to f (`x.dtype`); None: their own. Tensors on another device than the CPU stay there: the run takes
    their shapes alone, and a decision of f its value from there. Passes over a graph of large arrays are on that
    device, those over small ones on the CPU; on `device`, of torch, where it is said. Results are `result`, or
    `result[0]`, `result[1]`,
    ... of a tuple, or the keys of a dict. gradients: those of all float inputs through torch.autograd, as further
    results `d<input>`; inputs that f does not take are gradients of its results, `d<result>`.

    Refusal for a primitive without a rule, with its name and line; for a float array that f did not make itself;
    for results that are no arrays of the run; for random numbers that differ under one seed; and for gradients of what
    is not in torch, or does not depend on its inputs.
    """
    inputs, of_results = (inputs, {}) if gradients is None else split(f, inputs)
    library = _front(inputs)
    if gradients is not None and library is _OfNumpy:
        raise Refusal(f"gradients go through torch.autograd: {_name(f)} must be in torch, and its inputs tensors")
    front = library if gradients is None else partial(library, gradients=gradients, given=of_results)
    elsewhere = _elsewhere(inputs) if device is None else device
    with library.apart():
        state = np.random.get_state()
        graph, values, draws = _run(front, f, inputs, dtype, elsewhere)
        if draws:
            np.random.set_state(state)
            again = _run(front, f, inputs, dtype, elsewhere)[1]
            same = values.keys() == again.keys() and all(
                np.array_equal(x.known, again[name].known, equal_nan=True) for name, x in values.items()
            )
            if not same:
                raise Refusal(
                    f"{_name(f)} draws other random numbers in a second run. Seed its generator, or pass them in"
                )
    if elsewhere is None:
        return graph
    return on_device(graph, elsewhere) if device is not None or is_worth_it(graph) else off_device(graph)


def _run(
    front: Any, f: Callable[..., Any], inputs: Mapping[str, Any], dtype: Any, device: Any
) -> tuple[Graph, dict[str, Traced], bool]:
    with recording(device) as run, np.errstate(all="ignore"):
        one = front(run)
        given = {name: _each(x, name, lambda name, x: one.given(name, x, dtype)) for name, x in inputs.items()}
        with one.running(f):
            with naming(run, code_of(f)):
                returned = f(**given)
            results, values = dict(_results(returned, "result")), {}
            for name, x in results.items():
                if (array := one.array(x)) is None:
                    made = type(x).__name__
                    raise Refusal(
                        f"{_name(f)} returns {made} as {name}, which was not computed from its inputs in this run"
                    )
                values[name] = array
            return one.graph(_name(f), given, results), values, one.draws


def _front(inputs: Mapping[str, Any]) -> Any:
    """The library of the inputs."""
    if _tensors(inputs):
        from workbench.reference.graph.torch_run import Torch

        return Torch
    return _OfNumpy


def _elsewhere(inputs: Mapping[str, Any]) -> Any:
    """The device of the first tensor that is not on the CPU; None where all are."""
    return next((x.device for x in _tensors(inputs) if x.device.type != "cpu"), None)


def _tensors(inputs: Mapping[str, Any]) -> list[Any]:
    """The tensors of torch among them."""
    torch, found = sys.modules.get("torch"), list[Any]()
    _each(inputs, "", lambda _, x: found.append(x))
    return [x for x in found if torch is not None and isinstance(x, torch.Tensor)]


def _each(x: Any, name: str, f: Callable[[str, Any], Any]) -> Any:
    """f of the arrays in lists, tuples and dicts, each by its name."""
    if isinstance(x, Mapping):
        return {key: _each(one, f"{name}.{key}", f) for key, one in x.items()}
    if type(x) in (list, tuple):
        return type(x)(_each(one, f"{name}[{i}]", f) for i, one in enumerate(x))
    return f(name, x)


class _OfNumpy:
    """NumPy for one run."""

    apart = staticmethod(nullcontext)

    def __init__(self, run: Recording) -> None:
        self.run, self._module = run, Numpy(run)

    @property
    def draws(self) -> bool:
        return self._module.draws

    def given(self, name: str, x: Any, dtype: Any) -> Any:
        return _input(self.run, name, x, dtype)

    def running(self, f: Any) -> Any:
        return standing_in(f, self._module)

    def array(self, x: Any) -> Traced | None:
        return x if isinstance(x, Traced) else None

    def graph(self, name: str, given: Mapping[str, Any], results: Mapping[str, Traced]) -> Graph:
        return self.run.graph({key: x.node_of_run for key, x in results.items()})


def _input(run: Recording, name: str, x: Any, dtype: Any) -> Any:
    if not isinstance(x, np.ndarray):
        return x
    if x.dtype.kind in "biu":
        wide, noted = x.copy(), x.dtype
    else:
        try:
            wide = x.astype(np.float64)
        except (TypeError, ValueError):
            raise Refusal(
                f"input {name} is an array of {x.dtype}; inputs hold floats, whole numbers or truths"
            ) from None
        noted = x.dtype if dtype is None else np.dtype(dtype)
    held = wide.copy()
    node = run.hold(held, noted, name, significant(held))
    return Traced(run, wide, node, noted, x.dtype.kind in "biu")


def _results(x: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(x, Mapping):
        for key, one in x.items():
            yield from _results(one, str(key))
    elif isinstance(x, list | tuple):
        for i, one in enumerate(x):
            yield from _results(one, f"{name}[{i}]")
    elif x is not None:
        yield name, x


def _name(f: Any) -> str:
    return str(getattr(f, "__qualname__", f))
