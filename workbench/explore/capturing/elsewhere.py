"""A process of its own in which calls of a GPU are judged.

A judgement is thousands of small operations of NumPy, each of which takes Python's lock: in a thread of the model's
process the one that launches kernels would wait for it, up to 5 ms (`sys.getswitchinterval`) an operation of torch.
"""

import contextlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import IO, Any

from workbench.case.stages import INPUTS
from workbench.explore.capturing.gradients import BackwardSnapshot, judged_backward
from workbench.explore.capturing.snapshot import Snapshot
from workbench.explore.capturing.verdict import Judged, array, judged, trace_of
from workbench.explore.capturing.weights import with_weights
from workbench.refusal import Refusal

#: bytes of the length before a message
_SIZE = 8
_START = f"import json, sys; sys.path[:] = json.loads(sys.argv[1])\nfrom {__name__} import answer\nanswer()"


def found_of(
    snapshot: Snapshot | BackwardSnapshot, name: str, said: str | Mapping[str, Any] | None, gpu: str | None
) -> Judged:
    """What float64 says of a snapshot on the host, of a call or of its backward pass; `gpu`: its generation."""
    if isinstance(snapshot, BackwardSnapshot):
        return judged_backward(snapshot, name, said)[0]
    return with_weights(judged(trace_of(snapshot, name, said, (), gpu), snapshot.call), snapshot, name, said, gpu)


def portable(snapshot: Snapshot | BackwardSnapshot) -> Snapshot | BackwardSnapshot:
    """A snapshot on the host in NumPy's arrays, without anything of torch."""
    if isinstance(snapshot, BackwardSnapshot):
        cast, forward = snapshot.forward.asked.cast, portable(snapshot.forward)  # type: ignore[arg-type]
        assert isinstance(forward, Snapshot)
        dout = array(snapshot.dout if cast is None else snapshot.dout.to(cast))
        return BackwardSnapshot(forward, dout, {x: array(y) for x, y in snapshot.gradients.items()})
    asked = snapshot.asked
    inputs = {
        x: array(y.to(asked.cast) if x in INPUTS and asked.cast is not None else y) for x, y in snapshot.inputs.items()
    }
    return replace(
        snapshot, asked=replace(asked, inputs={}, cast=None, packed=None), inputs=inputs,
        results={x: array(y) for x, y in snapshot.results.items()},
        changed=None if snapshot.changed is None else bool(snapshot.changed), ready=None,
    )  # fmt: skip


class Elsewhere:
    """The process, started when the first call is judged; it ends with this one."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._failed = False

    def judged(self, snapshot: Any, name: str, said: Any, gpu: str | None) -> Judged:
        """As `found_of`, which is asked here where the process cannot be had. Raises what is raised there: Refusal, and
        RuntimeError with the words of any other.
        """
        try:
            if self._failed:
                raise OSError
            asked = pickle.dumps((snapshot, name, said, gpu))
            process = self._started()
            assert process.stdin is not None and process.stdout is not None
            _send(process.stdin, asked)
            kind, found = pickle.loads(_received(process.stdout))
        except (OSError, EOFError, pickle.PicklingError, AttributeError, TypeError):
            # AttributeError and TypeError: what pickle raises of functions in a case
            self._failed = self._process is not None and self._process.poll() is not None
            return found_of(snapshot, name, said, gpu)
        if kind == "found":
            made: Judged = found
            return made
        raise Refusal(found) if kind == "refused" else RuntimeError(found)

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            # no GPU, and one thread: the model has the rest
            environment = {
                **os.environ,
                "CUDA_VISIBLE_DEVICES": "",
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
            }
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _START, json.dumps(sys.path)], env=environment, start_new_session=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
        return self._process

    def end(self) -> None:
        """End the process; another is started where it is asked again."""
        if self._process is not None:
            assert self._process.stdin is not None and self._process.stdout is not None
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            self._process.wait()
            self._process.stdout.close()
            self._process = None


def answer() -> None:
    """Judge what comes on stdin until it ends, in a process of its own."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anything prints is no answer
    while True:
        try:
            asked = pickle.loads(_received(sys.stdin.buffer))
        except EOFError:
            return
        try:
            told = "found", found_of(*asked)
        except Refusal as refusal:
            told = "refused", str(refusal)  # type: ignore[assignment]
        except Exception as error:
            told = "failed", f"{type(error).__name__}: {error}"  # type: ignore[assignment]
        _send(out, pickle.dumps(told))


def _send(stream: IO[bytes], message: bytes) -> None:
    stream.write(len(message).to_bytes(_SIZE, "little") + message)
    stream.flush()


def _received(stream: IO[bytes]) -> bytes:
    """One message; EOFError where the other side has ended."""
    size = stream.read(_SIZE)
    message = stream.read(int.from_bytes(size, "little")) if len(size) == _SIZE else b""
    if len(size) < _SIZE or len(message) < int.from_bytes(size, "little"):
        raise EOFError
    return message
