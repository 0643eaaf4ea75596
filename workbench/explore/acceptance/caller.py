"""The judge's side of a function in a process of its own: started, called, and ended, whatever it does."""

import json
import math
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from workbench.case.case import Case
from workbench.case.distributions import shapes
from workbench.case.stages import RESULTS
from workbench.explore.acceptance import worker
from workbench.explore.acceptance.arena import Arena, Lying, Place, contiguous, placed
from workbench.explore.acceptance.plain_calls import LISTED
from workbench.floats import DTYPES
from workbench.foreign.isolation import LOOK_S, end, how_it_ended, resident_bytes
from workbench.refusal import Refusal, Unavailable
from workbench.trace.seen import held_in

OUT, LSE = RESULTS
#: seconds in which a function is imported, and called for the first time, which may compile it
LOAD_S = 120.0
#: seconds in which a process that has closed the way back has ended, on a busy machine too
_ENDS_S = 10.0
#: of a reply the most that is read, bytes
_MOST = 2 * LISTED
#: what is left in freed memory, as out is stored and as it is summed up
_BLOCKS = ("stored", "summed")
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from workbench.explore.acceptance.worker import main; main()"
)


class Fault(Exception):
    """What a function did that no right one does: it raised, ended, took too long, returned what is no result."""

    def __init__(self, kind: str, words: str) -> None:
        super().__init__(words)
        self.kind = kind


@dataclass(frozen=True)
class Answer:
    """What a call gave, in the judge's own memory."""

    stages: Mapping[str, np.ndarray]
    seconds: float


@dataclass(eq=False)
class Caller:
    """A function in a process of its own."""

    target: str
    memory_gb: float
    arena: Arena
    process: subprocess.Popen
    to: int
    back: int
    number: int = 0  #: of the process that calls
    limit_s: float = LOAD_S  #: for an answer
    layout: str = "bhsd"
    fresh: bool = False  #: whether a call may not overwrite the results of the one before
    calls: int = 0
    last: Mapping[str, np.ndarray] = field(default_factory=dict)  #: what the call before gave

    def call(self, case: Case, inputs: Mapping[str, np.ndarray], lying: Lying, stale: np.ndarray | None) -> Answer:
        """What the function makes of `inputs`, those of the case or in their place, which lie as `lying` says; memory
        of its results' size was freed before, full of NaN or of what `stale` holds.

        Fault where it gives none, or changes an input.
        """
        arena, shape = self.arena, (*shapes(case)[0][:3], case.head_dim_v)
        places = placed(inputs, lying)
        arena.write(inputs, places)
        wanted = {OUT: shape, LSE: shape[:3]}
        sizes = {name: math.prod(of) for name, of in wanted.items()}
        last, self.last = self.last, {}  # of a call that fails nothing is held
        earlier = {f"earlier {name}": x.size for name, x in last.items()}
        at = arena.results({**sizes, **dict.fromkeys(_BLOCKS, math.prod(shape)), **earlier})
        results = {name: (at[name], of) for name, of in wanted.items()}
        blocks = {
            name: self._block(at[name], case.dtype if name == "stored" else "float32", wanted, stale)
            for name in _BLOCKS
        }
        summed = blocks["summed"]  # of which lse's is a part
        asked = {
            "case": case.as_dict(), "places": places, "results": results,
            "fresh": self.fresh, "recorded": self.calls // 2 % 2 == 1,
            "earlier": {name: (at[f"earlier {name}"], x.shape) for name, x in last.items()},
            "stale": [*blocks.values(), summed._replace(shape=shape[:3], strides=contiguous(shape[:3], 4))],
        }  # fmt: skip
        self.calls += 1
        begun = time.monotonic()
        said = self.asked(asked, places)
        seconds = time.monotonic() - begun
        self.check_earlier(last, {name: at[f"earlier {name}"] for name in last})
        self.last = self._results(case, said, results)
        return Answer(self.last, seconds)

    def asked(self, request: Mapping[str, Any], places: Mapping[str, Place]) -> str:
        """What the function's process says of a call that is done; Fault where it is not, or changed an input."""
        self.send(request)
        kind, said = self.reply(self.limit_s)
        if kind == worker.LACKING:
            raise Unavailable(f"{self.target}: {said}")
        if kind != worker.DONE:
            raise Fault("raised", said)
        if name := self.arena.changed(places):
            what = "memory around its inputs" if name == "poison" else f"input {name}"
            raise Fault("overwritten", f"{what} was overwritten")
        return said

    def check_earlier(self, last: Mapping[str, np.ndarray], at: Mapping[str, int]) -> None:
        """Fault where results of the call before, which the process wrote out again, are not what they were."""
        for name, x in last.items():
            if self.arena.read(at[name], x.dtype, x.shape).tobytes() != x.tobytes():
                raise Fault(
                    "overwritten", f"{name} of the previous call was overwritten, but its caller may still hold it"
                )

    def _block(self, at: int, dtype: str, wanted: Mapping[str, tuple[int, ...]], stale: np.ndarray | None) -> Place:
        """Where a block of the size of out has what is to be left in freed memory."""
        shape = wanted[OUT]
        place = Place(dtype, shape, contiguous(shape, DTYPES[dtype].itemsize), at)
        left = np.nan if stale is None or not stale.size else np.resize(stale.astype(np.float32), shape)
        place.view(self.arena.memory)[...] = left
        return place

    def _results(
        self, case: Case, said: str, wanted: Mapping[str, tuple[int, tuple[int, ...]]]
    ) -> dict[str, np.ndarray]:
        """Copies of the results, of dtypes that a result may have; Fault for any other."""
        try:
            dtypes = dict(json.loads(said))
        except (ValueError, TypeError):
            raise Fault("raised", "its process sent an unreadable answer") from None
        if OUT not in dtypes:
            raise Fault("raised", "it returned no out")
        allowed = held_in(case)
        found = {}
        for name, dtype in dtypes.items():
            if name not in wanted:
                continue
            if dtype not in allowed[name]:
                raise Fault("dtype", f"{name} must be {' or '.join(allowed[name])}; got {dtype!s:.40}")
            offset, shape = wanted[name]
            found[name] = self.arena.read(offset, np.dtype(dtype), shape)
        return found

    def send(self, asked: Mapping[str, Any]) -> None:
        text = json.dumps(asked).encode()
        try:
            os.write(self.to, worker.ASKED.pack(len(text)) + text)
        except BrokenPipeError:
            raise self._ended() from None

    def reply(self, limit_s: float) -> tuple[int, str]:
        """The next reply; Fault where none comes within the limits."""
        head = self._bytes(worker.HEAD.size, limit_s)
        kind, size = worker.HEAD.unpack(head)
        text = self._bytes(min(size, _MOST), limit_s).decode(errors="replace")
        return kind, "".join(x if x.isprintable() or x in "\n\t" else "?" for x in text)

    def _bytes(self, size: int, limit_s: float) -> bytes:
        found, until = b"", time.monotonic() + limit_s
        while len(found) < size:
            ready, _, _ = select.select([self.back], [], [], LOOK_S)
            if ready:
                some = os.read(self.back, size - len(found))
                if not some:
                    raise self._ended()
                found += some
            elif time.monotonic() > until:
                raise Fault("time", f"it did not return within {limit_s:g} seconds")
            elif (held := resident_bytes(self.number)) > self.memory_gb * 1e9:
                raise Fault(
                    "memory", f"its process used {held / 1e9:.3g} GB of memory; the limit is {self.memory_gb:g} GB"
                )
        return found

    def _ended(self) -> Fault:
        try:
            code = self.process.wait(_ENDS_S)
        except subprocess.TimeoutExpired:
            return Fault("ended", "its process closed the pipe for its results")
        return Fault("ended", how_it_ended(128 - code if code > 128 else code))


@contextmanager
def started(
    target: str,
    *,
    arrays: str,
    device: str | None,
    layout: str = "bhsd",
    unsafe: bool,
    memory_gb: float,
    fresh: bool = False,
    plain: bool = False,
) -> Iterator[Caller]:
    """The function in its process, loaded, which ends with the block. Unavailable where Linux allows no namespaces and
    it is not `unsafe`, and where its file needs what is not here; Refusal where it is not found. plain: whether it is
    called by keyword, by `plain_caller.call`.
    """
    arena = Arena()
    (read, to), (back, written) = os.pipe(), os.pipe()
    numbers = [str(x) for x in (arena.fd, read, written, int(not unsafe))]
    command = [sys.executable, "-P", "-c", _PROGRAM, json.dumps([*map(str, sys.path)]), *numbers]
    devnull = subprocess.DEVNULL
    process = subprocess.Popen(
        command, stdin=devnull, stdout=devnull, stderr=devnull, start_new_session=True,
        pass_fds=(arena.fd, read, written),
    )  # fmt: skip
    os.close(read)
    os.close(written)
    caller = Caller(target, memory_gb, arena, process, to, back, layout=layout, fresh=fresh)
    try:
        _load(caller, {"target": target, "arrays": arrays, "device": device, "layout": layout, "plain": plain})
        yield caller
    finally:
        end(process)
        os.close(to)
        os.close(back)
        arena.close()


def _load(caller: Caller, asked: Mapping[str, Any]) -> None:
    kind, said = caller.reply(LOAD_S)
    if kind == worker.TOGETHER:
        raise Unavailable(
            f"Linux allows no user and network namespaces here ({said}), so {caller.target} cannot be isolated. "
            "If you trust it, run it with `--unsafe`"
        )
    caller.number = int(said) if said.isdigit() else 0
    caller.send(asked)
    try:
        kind, said = caller.reply(LOAD_S)
    except Fault as fault:
        raise Refusal(f"{caller.target} could not be imported: {fault}") from None
    if kind != worker.LOADED:
        raise (Unavailable if kind == worker.LACKING else Refusal)(said)
