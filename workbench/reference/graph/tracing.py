"""One run of a plain reference, recorded."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from workbench.reference.graph import functions, ufuncs
from workbench.reference.graph.arrays import Traced
from workbench.reference.graph.local_names import naming
from workbench.reference.graph.node import Graph
from workbench.reference.graph.numpy_module import Numpy, code_of, standing_in
from workbench.reference.graph.recording import Recording, recording, significant
from workbench.refusal import Refusal

__all__ = ["functions", "trace", "ufuncs"]  # which fill in what arrays do


def trace(f: Callable[..., Any], inputs: Mapping[str, Any], dtype: Any = None) -> Graph:
    """The graph of f(**inputs), which runs once, in float64, as it is.

    inputs: arrays by name, copied, and whatever else f takes. dtype: what float arrays are to f (`x.dtype`); None:
    their own. Results are `result`, or `result[0]`, `result[1]`, ... of a tuple, or the keys of a dict.

    Refusal for a primitive without a rule, with its name and line; for a float array that f did not make with the np of
    its own module; for results that are no arrays of the run; and for random numbers that differ under one seed.
    """
    state = np.random.get_state()
    graph, values, draws = _run(f, inputs, dtype)
    if draws:
        np.random.set_state(state)
        again = _run(f, inputs, dtype)[1]
        same = values.keys() == again.keys() and all(
            np.array_equal(x, again[name], equal_nan=True) for name, x in values.items()
        )
        if not same:
            raise Refusal(f"{_name(f)} draws other random numbers in a second run. Seed its generator, or pass them in")
    return graph


def _run(f: Callable[..., Any], inputs: Mapping[str, Any], dtype: Any) -> tuple[Graph, dict[str, np.ndarray], bool]:
    with recording() as run, np.errstate(all="ignore"):
        given = {name: _input(run, name, x, dtype) for name, x in inputs.items()}
        module = Numpy(run)
        with standing_in(f, module), naming(run, code_of(f)):
            returned = f(**given)
        results = dict(_results(returned, "result"))
        for name, x in results.items():
            if not isinstance(x, Traced):
                made = type(x).__name__
                raise Refusal(
                    f"{_name(f)} returns {made} as {name}, which was not computed from its inputs in this run"
                )
        values = {name: x.value for name, x in results.items()}
        return run.graph({name: x.node_of_run for name, x in results.items()}), values, module.draws


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
