"""A call by keyword of a function in a process of its own: where its inputs lie, and what it returned."""

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from workbench.explore.acceptance.arena import ALIGNED, Place, contiguous, of
from workbench.explore.acceptance.caller import Caller, Fault
from workbench.foreign.memory import unwritten
from workbench.foreign.plain import ACCEPTED, Returned, as_array, is_array
from workbench.refusal import Refusal

_DTYPES = {one.name: one for one in ACCEPTED}


class Strided(NamedTuple):
    """How inputs lie: what is left free, filled with poison."""

    shift: int = 0  #: elements before the start of an array
    behind: int = 0  #: elements behind a row
    turned: bool = False  #: whether the last two axes lie the other way round, as of a transposed array

    @property
    def words(self) -> str:
        """How the memory layout differs from that of contiguous arrays; empty if it does not."""
        said = ["each input is a view of one whose last two axes are the other way round"] * self.turned
        said += [f"each input starts {of(self.shift, 'element')} past an aligned address"] * bool(self.shift)
        return "; ".join(said + [f"{of(self.behind, 'element')} of poison after each row"] * bool(self.behind))


def call(
    caller: Caller, inputs: Mapping[str, Any], strided: Strided, results: Mapping[str, tuple[tuple[int, ...], str]],
    stale: Returned | None,
) -> Returned:  # fmt: skip
    """What the function makes of `inputs`, which lie as `strided` says; memory of the size of its `results`, shapes and
    dtypes by name, was freed before, full of NaN or of what `stale` holds.

    Fault where it gives none, or changes an input; Refusal for inputs that are neither arrays nor plain values.
    """
    arena = caller.arena
    arrays = {name: as_array(x, f"input {name}") for name, x in inputs.items() if is_array(x)}
    values = {name: x for name, x in inputs.items() if name not in arrays}
    places = placed(arrays, strided)
    arena.write(arrays, places)
    start = arena.used + ALIGNED
    last, caller.last = caller.last, {}  # of a call that fails nothing is held
    blocks = _blocks(caller, start, results, stale)
    request = {
        "places": places, "values": values, "order": [*inputs], "results": start, "stale": blocks,
        "libraries": {name: "numpy" if isinstance(inputs[name], np.ndarray | np.generic) else "torch"
                      for name in arrays},
        "device": "cuda" if any(getattr(x, "is_cuda", False) for x in inputs.values()) else None,
        "fresh": caller.fresh, "recorded": caller.calls // 2 % 2 == 1, "earlier": bool(last),
    }  # fmt: skip
    try:
        json.dumps(request)
    except TypeError:
        odd = next(name for name, x in values.items() if not _is_plain(x))
        raise Refusal(
            f"accept passes arrays, numbers and words; input {odd} is a {type(values[odd]).__name__}"
        ) from None
    caller.calls += 1
    said = caller.asked(request, places)
    at = {}
    for name, x in last.items():
        at[name] = start
        start = _behind(start, x.nbytes)
    caller.check_earlier(last, at)
    found = _results(caller, said, start)
    pairs = found.arrays.items() if isinstance(found.arrays, Mapping) else enumerate(found.arrays)
    caller.last = {str(name): x for name, x in pairs if x is not None}
    return found


def placed(arrays: Mapping[str, np.ndarray], strided: Strided) -> dict[str, Place]:
    """Where the arrays lie, one behind the other; the same places for the same shapes and `strided`."""
    found: dict[str, Place] = {}
    end = 0
    for name, x in arrays.items():
        order = [*range(x.ndim)]
        if strided.turned and x.ndim > 1:
            order[-2:] = order[:-3:-1]
        room = [x.shape[axis] for axis in order]
        if room:
            room[-1] += strided.behind
        steps = contiguous(tuple(room), x.itemsize)
        strides = tuple(steps[order.index(axis)] for axis in range(x.ndim))
        start = (-(-end // ALIGNED) + 1) * ALIGNED + strided.shift * x.itemsize  # poison before it, too
        found[name] = Place(x.dtype.name, x.shape, strides, start)
        end = start + math.prod(room) * x.itemsize
    return found


def _behind(start: int, size: int) -> int:
    """Where an array begins behind one of so many bytes."""
    return start + (-(-size // ALIGNED) + 1) * ALIGNED


def _blocks(
    caller: Caller, start: int, results: Mapping[str, tuple[tuple[int, ...], str]], stale: Returned | None
) -> list[Place]:
    """Where blocks of the sizes of results hold what is to be left in freed memory."""
    arrays = () if stale is None else stale.arrays.values() if isinstance(stale.arrays, Mapping) else stale.arrays
    left = next((x for x in arrays if x is not None and x.dtype.kind not in "biu" and x.size), None)
    found = []
    for shape, dtype in results.values():
        for one in dict.fromkeys((dtype, "float32")):
            size = math.prod(shape) * _DTYPES[one].itemsize
            if start + size > len(caller.arena.memory):
                break
            place = Place(one, shape, contiguous(shape, _DTYPES[one].itemsize), start)
            with np.errstate(all="ignore"):
                place.view(caller.arena.memory)[...] = np.nan if left is None else np.resize(left, shape)
            found.append(place)
            start = _behind(start, size)
    return found


def _results(caller: Caller, said: str, start: int) -> Returned:
    """Copies of the results; Fault for what no right process says."""
    try:
        told = json.loads(said)
        rows, named = list(told["arrays"]), bool(told["named"])
        found: list[tuple[str, np.ndarray | None]] = []
        for row in rows:
            if row is None:
                found.append(("", None))
                continue
            name, dtype, shape = str(row[0]), _DTYPES[row[1]], tuple(int(n) for n in row[2])
            size = math.prod(shape) * dtype.itemsize
            if min(shape, default=0) < 0 or start + size > len(caller.arena.memory):
                raise ValueError
            found.append((name, caller.arena.read(start, dtype, shape)))
            start = _behind(start, size)
    except (ValueError, TypeError, KeyError, IndexError):
        raise Fault("raised", "its process sent an unreadable answer") from None
    if named:
        by_name = {name: x for name, x in found if x is not None}
        return Returned(by_name, {name: unwritten(x) for name, x in by_name.items()})
    several = tuple(x for _, x in found)
    return Returned(several, tuple(None if x is None else unwritten(x) for x in several))


def _is_plain(x: Any) -> bool:
    try:
        json.dumps(x)
    except TypeError:
        return False
    return True
