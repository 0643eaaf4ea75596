"""What runs in the function's process: it is told where inputs lie, calls, and writes raw bytes back.

Nothing that it says is believed: the judge reads numbers, under shapes and dtypes of its own, and judges these.
"""

import json
import mmap
import os
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from workbench.explore.acceptance.handed import Handed, as_a_caller_reads, recorded
from workbench.explore.acceptance.namespaces import Apart, apart
from workbench.explore.acceptance.plain_calls import PlainCalls

#: kinds of a reply: it runs by itself; it cannot; the function is there, or is not, or needs what is not here; results
#: are there; the function raised, or returned what is no result
APART, TOGETHER, LOADED, UNFOUND, LACKING, DONE, RAISED = b"pnlfuox"
HEAD = struct.Struct("<BI")  #: of a reply: kind, bytes of text
ASKED = struct.Struct("<I")  #: of a request: bytes of JSON
TEXT = 4000  #: characters of a reply, the last ones
_NO_PROC = (
    "; an isolated process needs its own /proc for CUDA, which Linux does not allow here. If you trust the function, "
    "run it with `--unsafe`"
)


@dataclass(frozen=True, eq=False)
class _Calls:
    """The function, and where its arrays are made."""

    function: Any
    name: str
    arrays: str
    device: str | None
    layout: str
    handed: Handed
    #: what reads the results of the last call again, from where the function left them
    last: list[Callable[[], Mapping[str, Any]]] = field(default_factory=list)

    def answer(self, asked: Mapping[str, Any]) -> str:
        """Call the function as asked, and leave what it gives where it is asked to; their dtypes, in JSON."""
        import numpy as np

        from workbench.arrays import handed_over, home
        from workbench.case import formats, mods
        from workbench.case.case import Case
        from workbench.case.inputs import by_name
        from workbench.case.options import Options
        from workbench.case.user_code import running
        from workbench.explore.acceptance.arena import Place
        from workbench.foreign import returned
        from workbench.foreign.adapters import adapter_of, lives
        from workbench.foreign.arguments import arguments_of
        from workbench.foreign.keywords import Asked
        from workbench.foreign.launches import Launches, emulated
        from workbench.foreign.layouts import results
        from workbench.foreign.packages import Call
        from workbench.foreign.probes import interpreter as triton_interpreter
        from workbench.refusal import Refusal

        case = Case(**asked["case"])
        if not asked["fresh"]:  # what runs on behind a call shows without another one
            self._earlier(asked["earlier"])
        views = {name: Place(*place).view(self.handed.memory) for name, place in asked["places"].items()}
        adapter = adapter_of(self.function)
        arrays, device = self.arrays, self.device
        if adapter is not None:
            arrays, device = lives(adapter, Options(arrays=arrays, device=device), self.name)
        device = home(arrays, device)
        of_case = Asked(case, by_name(case, views))
        call = arguments_of(self.function, adapter, of_case, {}, self.name, self.layout)
        if case.codes is not None and not call.put_in:
            due = ", ".join(formats.beside(case.codes, case.coded))
            raise Refusal(f"it takes no {case.codes} codes, but the spec has them: add the keywords {due}")
        boxes = adapter is None and not (call.put_in or case.ragged or case.page_size is not None)
        boxes = boxes and all(x.ndim == 4 for x in call.positional.values())
        self.handed.leave(asked["stale"], arrays, device)
        lying = self._lying(call.positional, views if boxes else {}, arrays, device)
        if case.shared_kv and "v" in lying:
            lying["v"] = lying["k"][..., : case.head_dim_v]
        keywords = {
            key: self.handed.kept_at(key, x, arrays, device) if isinstance(x, np.ndarray) else x
            for key, x in call.keywords.items()
        }
        launches = Launches(self.name, case, emulated("auto"))
        modified = mods.running(score_mod=case.score_mod, mask_mod=case.mask_mod)
        with (
            modified,
            recorded(asked["recorded"], arrays),
            running(self.function),
            triton_interpreter.guarded(),
            launches.sent(),
        ):
            if adapter is None or adapter.call is None:
                made = self.function(*lying.values(), **keywords)
            else:
                over = lambda x: handed_over(x.copy(), arrays, device)  # noqa: E731
                made = adapter.call(Call(self.function, of_case, **lying, over=over))
            seen = _as_a_caller_reads(made, self.name) if arrays == "torch" else made
            found, parts, _ = returned.read(seen, self.name)  # which waits for the device
            found, _ = launches.concatenated(found, parts, {})
        self._check_kept(call, {} if boxes else lying, keywords)
        if boxes and self.handed.fetched:
            self.handed.back()
        base2 = adapter is not None and adapter.base2
        stages = results(found, call.axes, case, self.name, base2=base2)
        if asked["fresh"]:
            self._earlier(asked["earlier"])
        again = lambda: results(returned.read(made, self.name).stages, call.axes, case, self.name, base2=base2)  # noqa: E731
        self.last[:] = [again]
        dtypes = {}
        for stage, (offset, shape) in asked["results"].items():
            if stage not in stages:
                continue
            x = stages[stage]
            if x.shape != tuple(shape):
                raise Refusal(f"{stage} must have shape {list(shape)} for this case; got {list(x.shape)}")
            np.ndarray(x.shape, x.dtype, self.handed.memory, offset)[...] = x
            dtypes[stage] = x.dtype.name
        return json.dumps(dtypes)

    def _earlier(self, asked: Mapping[str, Any]) -> None:
        """What the results of the call before hold now, where it is asked to."""
        import numpy as np

        for stage, (offset, shape) in asked.items():
            x = self.last[0]()[stage]
            np.ndarray(tuple(shape), x.dtype, self.handed.memory, offset)[...] = x

    def _lying(
        self, positional: Mapping[str, Any], views: Mapping[str, Any], arrays: str, device: str
    ) -> dict[str, Any]:
        """The arrays of a call: `views` of the arena, in the layout that the function takes, or copies beside it."""
        found = {}
        for name, x in positional.items():
            if name in views:
                own = views[name].swapaxes(1, 2) if self.layout == "bshd" else views[name]
                found[name] = self.handed.there(own, arrays, device)
            else:
                found[name] = self.handed.kept_at(name, x, arrays, device)
        return found

    def _check_kept(self, call: Any, lying: Mapping[str, Any], keywords: Mapping[str, Any]) -> None:
        """Refusal where the function changed an input that is not in the arena."""
        import numpy as np

        from workbench.arrays import as_numpy
        from workbench.refusal import Refusal

        for name, now in {**lying, **keywords}.items():
            before = call.positional.get(name, call.keywords.get(name))
            if isinstance(before, np.ndarray):
                after = as_numpy(now, name, (before.dtype,))
                if after.shape == before.shape and after.tobytes() != np.ascontiguousarray(before).tobytes():
                    raise Refusal(f"input {name} was overwritten")


def _as_a_caller_reads(made: Any, name: str) -> dict[str, Any]:
    """Results of torch by name, as their caller reads them."""
    from workbench.foreign import returned

    return {stage: as_a_caller_reads(x) for stage, x in returned.by_name(made, name).items()}


def _reply(kind: int, text: str = "") -> None:
    said = (text if kind == DONE else text[-TEXT:]).encode(errors="replace")
    os.write(_replies, HEAD.pack(kind, len(said)) + said)


Calls = _Calls | PlainCalls


def _answered(calls: Calls, asked: Mapping[str, Any]) -> tuple[Calls, str]:
    """The answer to a call, and what answers the next one: with tensors of torch where the function is written for
    them.
    """
    from workbench.arrays import of_torch

    try:
        return calls, calls.answer(asked)
    except Exception as error:
        if not of_torch(error, calls.function, calls.arrays or "numpy"):
            raise
    calls = replace(calls, arrays="torch", handed=Handed(calls.handed.memory), last=[])
    return calls, calls.answer(asked)


def _request() -> Any:
    found = b""
    while len(found) < ASKED.size:
        found += os.read(_requests, ASKED.size - len(found)) or sys.exit(0)
    size, found = ASKED.unpack(found)[0], b""
    while len(found) < size:
        found += os.read(_requests, size - len(found)) or sys.exit(0)
    return json.loads(found)


def main() -> None:
    """Go apart, load the function, and call it as long as it is asked to; the command line has descriptors of files."""
    global _requests, _replies
    arena, _requests, _replies, alone = map(int, sys.argv[2:6])
    found = apart() if alone else Apart("", str(os.getpid()))
    if found.why:
        _reply(TOGETHER, found.why)
        os._exit(0)
    from workbench.explore.acceptance.arena import SIZE
    from workbench.foreign.find import find
    from workbench.raised import as_raised
    from workbench.refusal import Refusal, Unavailable

    if not alone:
        from workbench.foreign.isolation import end_with_parent

        end_with_parent()
    _reply(APART, found.number)
    begun = _request()
    try:
        where = begun["arrays"], begun["device"]
        function, handed = find(begun["target"]), Handed(mmap.mmap(arena, SIZE))
        calls: Calls = (
            PlainCalls(function, begun["target"], *where, handed)
            if begun["plain"]
            else _Calls(function, begun["target"], *where, begun["layout"], handed)
        )
    except (Refusal, Unavailable) as error:
        _reply(LACKING if isinstance(error, Unavailable) else UNFOUND, str(error))
        os._exit(0)
    _reply(LOADED)
    while True:
        asked = _request()
        try:
            calls, said = _answered(calls, asked)
        except Refusal as error:
            _reply(RAISED, str(error))
        except Unavailable as error:
            no_gpu = not found.has_proc and begun["device"] == "cuda"
            _reply(LACKING, str(error) + (_NO_PROC if no_gpu else ""))
        except BaseException as error:  # sys.exit among them
            _reply(RAISED, as_raised(error))
        else:
            _reply(DONE, said)


_requests = _replies = -1
