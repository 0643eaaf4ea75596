"""Edits of running sums: without the element itself, going on where they should start anew, and the other way round."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from workbench.judge.reference.causes.change import TILES
from workbench.judge.reference.causes.edit import Draft
from workbench.judge.reference.causes.places import kept
from workbench.judge.reference.causes.sums import Step
from workbench.reference.graph.node import Node


def running(node: Node) -> Iterator[Step]:
    """Words, family, size and what takes the place of a running sum."""
    yield "leaves out the element itself", "part", 1, _exclusive
    axis = node.attributes["axis"] % len(node.shape)
    n = node.shape[axis]
    if axis and node.shape[axis - 1] > 1:
        said = f"goes on from one place of axis {axis - 1} to the next, where it should start anew"
        yield said, "places", 2, partial(_on, axis)
    for t in TILES:
        if t < n:
            yield f"starts anew with each tile of {t}", "part", 1, partial(_anew, axis, t)


def _exclusive(d: Draft) -> None:
    d.add("subtract", d.node, d.old.reads[0])


def _on(axis: int, d: Draft) -> None:
    shape = d.old.shape
    flat = (*shape[: axis - 1], shape[axis - 1] * shape[axis], *shape[axis + 1 :])
    d.reshape(d.again(d.reshape(d.old.reads[0], flat), shape=flat, axis=axis - 1), shape)


def _anew(axis: int, tile: int, d: Draft) -> None:
    start = np.arange(d.old.shape[axis]) // tile * tile
    before = kept(d, d.take(d.node, axis, np.maximum(start - 1, 0)), axis, slice(0, tile), 0)
    d.add("subtract", d.node, before)
