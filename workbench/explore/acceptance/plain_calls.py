"""Calls of a function by keyword, in its process: what `worker` makes of the requests of a judge by a plain reference.

As of `worker`, nothing that it says is believed.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workbench.explore.acceptance.handed import Handed, as_a_caller_reads, recorded

#: characters of the list of results, at most
LISTED = 1 << 16


@dataclass(frozen=True, eq=False)
class PlainCalls:
    """The function, and where its arrays are made."""

    function: Any
    name: str
    arrays: str  #: a library, in place of that of each input; empty: none
    device: str | None
    handed: Handed
    last: list[Any] = field(default_factory=list)  #: what the last call returned

    def answer(self, asked: Mapping[str, Any]) -> str:
        """Call the function as asked, and leave what it gives behind `asked["results"]`; in JSON whether it is by name,
        and name, dtype, shape of each array.
        """
        import numpy as np

        from workbench.arrays import home
        from workbench.case.user_code import running
        from workbench.explore.acceptance.arena import ALIGNED, Place
        from workbench.foreign.launches import Launches, emulated
        from workbench.foreign.memory import Memory
        from workbench.foreign.plain import read
        from workbench.foreign.probes import interpreter as triton_interpreter
        from workbench.refusal import Refusal

        end = asked["results"]

        def put(arrays: Any) -> list[Any]:
            """Write arrays one behind the other; name, dtype and shape of each."""
            nonlocal end
            pairs = arrays.items() if isinstance(arrays, Mapping) else enumerate(arrays)
            said: list[Any] = []
            for name, x in pairs:
                said.append(None if x is None else [name, x.dtype.name, x.shape])
                if x is not None:
                    if end + x.nbytes > len(self.handed.memory):
                        raise Refusal(f"results of a call take more than {len(self.handed.memory) / 1e9:.3g} GB")
                    np.ndarray(x.shape, x.dtype, self.handed.memory, end)[...] = x
                    end += (-(-x.nbytes // ALIGNED) + 1) * ALIGNED
            return said

        def read_(made: Any) -> Any:
            return read(_each(made), self.name).arrays

        earlier = asked["earlier"] and bool(self.last)
        if earlier and not asked["fresh"]:  # what runs on behind a call shows without another one
            put(read_(self.last[0]))
        libraries = {key: self.arrays or said for key, said in asked["libraries"].items()}
        main = next((one for one in libraries.values() if one != "numpy"), "numpy")
        said = self.device or asked["device"]
        device = {one: home(one, said if one != "numpy" else None) for one in {*libraries.values(), main}}
        self.handed.leave(asked["stale"], main, device[main])
        given = dict(asked["values"])
        for key, place in asked["places"].items():
            view = Place(*place).view(self.handed.memory)
            given[key] = self.handed.there(view, libraries[key], device[libraries[key]])
        given = {key: given[key] for key in asked["order"]}
        launches = Launches(self.name, on_emulator=emulated("auto"))
        memory = Memory()
        with recorded(asked["recorded"], main), running(self.function), triton_interpreter.guarded(), launches.sent():
            with memory.fresh(self.function):
                made = self.function(**given)
            found = read_(made)  # which waits for the device
        if self.handed.fetched:
            self.handed.back()
        if memory.broken:
            raise Refusal(f"it wrote before or behind {memory.broken[0]}, out of bounds")
        if earlier and asked["fresh"]:
            put(read_(self.last[0]))
        self.last[:] = [made]
        text = json.dumps({"named": isinstance(found, Mapping), "arrays": put(found)})
        if len(text) > LISTED:
            raise Refusal(f"it returned {len(found)} arrays, which is too many")
        return text


def _each(made: Any) -> Any:
    """What was returned, each array as its caller reads it."""
    if isinstance(made, Mapping):
        return {key: _each(x) for key, x in made.items()}
    return [_each(x) for x in made] if type(made) in (list, tuple) else as_a_caller_reads(made)
