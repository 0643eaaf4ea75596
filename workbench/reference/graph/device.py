"""A graph whose values are on a device, so that passes run there."""

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from workbench.arrays import as_torch, on_cpu
from workbench.reference.graph.node import Graph

#: elements of a node, on average, above which passes run on a device. A rule launches some 20 kernels at 10 us; in that
#: time one core does float64 work on 2^17 elements. Of 200 tokens of 16,384 elements a judgement takes 4 s on a core,
#: and 51 s on an H100 that 16 processes share
WORTH = 2**17


def is_worth_it(graph: Graph) -> bool:
    """Whether its nodes are so large that a device is faster than one core."""
    return sum(prod(node.shape) for node in graph.nodes) > WORTH * len(graph.nodes)


def on_device(graph: Graph, device: Any) -> Graph:
    """The graph with tensors of torch on `device` in place of NumPy arrays, of indices too; tensors stay."""
    nodes = (
        replace(node, value=moved(node.value, device), attributes=moved(node.attributes, device))
        for node in graph.nodes
    )
    return replace(graph, nodes=tuple(nodes))


def numpy_of(x: Any) -> np.ndarray:
    """The values of an array or tensor on any device, in float64."""
    return np.asarray(x if isinstance(x, np.generic | float | int) else on_cpu(x), np.float64)


def off_device(graph: Graph) -> Graph:
    """The graph with NumPy arrays in place of tensors of torch; itself where it has none."""
    if all(node.value is None or isinstance(node.value, np.ndarray) for node in graph.nodes):
        return graph
    nodes = (replace(node, value=_fetched(node.value), attributes=_fetched(node.attributes)) for node in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


def _fetched(x: Any) -> Any:
    if isinstance(x, Mapping):
        return {key: _fetched(one) for key, one in x.items()}
    if type(x) is tuple:
        return tuple(_fetched(one) for one in x)
    return on_cpu(x) if hasattr(x, "cpu") else x


def moved(x: Any, device: Any) -> Any:
    """Arrays of NumPy as tensors on a device, those in mappings and tuples too; anything else as it is."""
    if isinstance(x, np.ndarray):
        return as_torch(x, "a value of the graph").to(device)
    if isinstance(x, Mapping):
        return {key: moved(one, device) for key, one in x.items()}
    return tuple(moved(one, device) for one in x) if type(x) is tuple else x
