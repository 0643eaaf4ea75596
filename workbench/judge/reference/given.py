"""What a kernel returned, matched with the results and stages of a reference by position or by name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.judge.reference.lines import short
from workbench.reference.graph import Graph
from workbench.refusal import Refusal, unknown

#: what a call returned: by name, or in order, where None was left out
Arrays = Mapping[str, np.ndarray] | Sequence[np.ndarray | None]


@dataclass(frozen=True, eq=False)
class Given:
    """One array of a kernel, and the nodes of the graph that say what it should be."""

    name: str
    places: tuple[str, ...]  #: how the graph calls it; of a stage with several turns each, along the first axis
    nodes: tuple[int, ...]
    x: np.ndarray
    unwritten: np.ndarray  #: slots that nobody wrote
    result: bool  #: whether the reference returns it
    #: elements that nobody need write, of which nothing is judged; None: there are none
    free: np.ndarray | None = None

    @property
    def narrow(self) -> bool:
        """Whether its dtype holds less than float32, so that it was rounded when it was stored."""
        return self.x.dtype.kind not in "biu" and self.x.dtype.itemsize < 4

    @property
    def turns(self) -> tuple[np.ndarray, ...]:
        """The array of each place."""
        return (self.x,) if len(self.places) == 1 else tuple(self.x)


def matched(graph: Graph, arrays: Arrays, unwritten: Arrays, name: str) -> tuple[Given, ...]:
    """Each array of a kernel `name`, in the order in which the reference makes them.

    In order they are the first results of the reference. By name they are results or stages: `h[3]` is iteration 3 of a
    stage in a loop, `h[-1]` what it was before, `h` all of them along a first axis, or those of the loop, or the last;
    `h[0]`, `h[1]`, ... are joined, as `h[:]` where `h` is given, too.

    Refusal for more results than the reference has, for an unknown name, and for a shape or dtype that does not fit.
    """
    if isinstance(arrays, Mapping):
        assert isinstance(unwritten, Mapping)
        pairs = {key: (x, unwritten[key]) for key, x in arrays.items()}
        found = [_by_name(graph, key, *pair, name) for key, pair in _joined(graph, pairs).items()]
    else:
        assert not isinstance(unwritten, Mapping)
        results = list(graph.results)
        if len(arrays) > len(results):
            raise Refusal(
                f"{name} returned {len(arrays)} arrays; the reference returns {len(results)}: {_listed(graph)}"
            )
        found = [
            _fitting(graph, graph.called(key), (key,), (graph.results[key],), x, no, name)
            for key, x, no in zip(results, arrays, unwritten, strict=False)
            if x is not None and no is not None
        ]
    return tuple(sorted(found, key=lambda one: (one.nodes[-1], -len(one.nodes))))


def _joined(graph: Graph, pairs: Mapping[str, tuple[Any, Any]]) -> dict[str, tuple[Any, Any]]:
    """The arrays, all turns of one stage as one array."""
    found = dict(pairs)
    for stage in graph.stages:
        n = sum(key.startswith(f"{stage}[") for key in found)
        keys = [f"{stage}[{i}]" for i in range(n)]
        if not n or not all(key in found for key in keys) or not _turns(graph, stage, n):
            continue
        if n == 1 < len(graph.stages[stage]):  # the first turn alone
            continue
        several = [found[key] for key in keys]
        if len({(x.shape, x.dtype) for x, _ in several}) == 1:
            for key in keys:
                del found[key]
            x, no = several[0] if n == 1 else (np.stack(part) for part in zip(*several, strict=True))
            found[f"{stage}[:]" if stage in found else stage] = x, no
    return found


def _turns(graph: Graph, stage: str, n: int) -> dict[int, int]:
    """Which iterations of a stage n arrays are: all of a loop; else also what the stage was before it; else none."""
    several = graph.iterations(stage)
    of_loop = {i: node for i, node in several.items() if i >= 0}
    return next((some for some in (of_loop, several) if len(some) == n), {})


def _by_name(graph: Graph, key: str, x: np.ndarray, no: np.ndarray, name: str) -> Given:
    places = graph.places()
    stage = key.removesuffix("[:]")
    if stage not in places:
        known = [*graph.results, *(stage for stage in graph.stages if stage not in graph.results)]
        raise Refusal(f"{name} returned {unknown('stage', key, known)}")
    turns = graph.stages.get(stage, ())
    whole = stage != key or stage not in graph.results
    if whole and len(turns) > 1 and x.ndim == len(graph.nodes[turns[-1]].shape) + 1:
        if not (some := _turns(graph, stage, len(x))):
            line, has = short(graph.nodes[turns[-1]].line), len(graph.latest(stage))
            raise Refusal(f"{name} returned {len(x)} iterations of {stage}; the reference ({line}) has {has}")
        return _fitting(graph, key, tuple(f"{stage}[{i}]" for i in some), tuple(some.values()), x, no, name)
    return _fitting(graph, key, (stage,), (places[stage],), x, no, name)


def _fitting(
    graph: Graph, name: str, places: tuple[str, ...], nodes: tuple[int, ...], x: np.ndarray, no: np.ndarray, target: str
) -> Given:
    """The array; Refusal for another shape than the reference's, and for whole numbers in place of others."""
    node = graph.nodes[nodes[-1]]
    wanted = node.shape if len(nodes) == 1 else (len(nodes), *node.shape)
    at = f"{name} of the reference ({short(node.line)})"
    if x.shape != tuple(wanted):
        raise Refusal(f"{target} returned {name} of shape {list(x.shape)}; {at} has {list(wanted)}")
    if (is_whole(x.dtype)) != is_whole(node.dtype):
        raise Refusal(f"{target} returned {name} in {x.dtype}; {at} is {_said(node.dtype)}")
    result = any(i in graph.results.values() for i in nodes)
    return Given(name, places, nodes, x, no, result)


def is_whole(dtype: Any) -> bool:
    """Whether a dtype, of any library, holds whole numbers or truths."""
    return _said(dtype).startswith(("int", "uint", "bool"))


def _said(dtype: Any) -> str:
    """Its name, of torch's too."""
    try:
        return np.dtype(dtype).name
    except TypeError:
        return str(dtype).removeprefix("torch.")


def _listed(graph: Graph) -> str:
    return ", ".join(f"{key} ({short(graph.nodes[i].line)})" for key, i in graph.results.items())
