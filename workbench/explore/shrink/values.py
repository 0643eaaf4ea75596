"""Inputs of a small case as plain numbers: zeros, ones, signs, small integers."""

from collections.abc import Iterator

import numpy as np

from workbench.case.stages import INPUTS
from workbench.explore.shrink.attempts import Attempts, Inputs, Outcome
from workbench.explore.shrink.space import elements

#: elements of q, k and v that a reader takes in, and that may stand in a test as numbers
FEW = 64


def plain_inputs(attempts: Attempts) -> None:
    """Give the best plain numbers as inputs, an array after the other and then an element after the other, where it is
    of few elements, and each array may be plain; else it keeps its own.
    """
    case = attempts.best
    if elements(case) > FEW:
        return
    found: Inputs = dict(zip(INPUTS, case.inputs(), strict=True))
    names = INPUTS[: 2 if case.shared_kv else 3]

    def fails(name: str, array: np.ndarray) -> bool:
        nonlocal found
        other = {**found, name: case.cut(name, array)}
        if case.shared_kv:
            other["v"] = other["k"][..., : case.head_dim_v]
        if attempts.of(case, other) is not Outcome.FAILS:
            return False
        found = other
        return True

    for name in names:
        if not any(fails(name, candidate) for candidate in _plain(found[name])):
            return
    for name in names:
        for place in np.ndindex(found[name].shape):
            for value in (0, 1):
                if found[name][place] in (0, value):
                    break
                array = found[name].copy()
                array[place] = value
                if fails(name, array):
                    break
    attempts.inputs = found


def _plain(x: np.ndarray) -> Iterator[np.ndarray]:
    """The array as plain numbers, the plainest first."""
    values = x.astype(np.float64)
    for one in (np.zeros_like(values), np.ones_like(values), np.sign(values), np.rint(values)):
        yield one.astype(x.dtype)
