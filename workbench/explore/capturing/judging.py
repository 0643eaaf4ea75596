"""What judges the snapshots of a capture: at once on a CPU; those of a GPU a thread fetches, on a stream of its own,
for a process that judges them.
"""

import contextlib
import ctypes
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.case.stages import PROBS
from workbench.explore.capturing.asking import Question, causes
from workbench.explore.capturing.elsewhere import Elsewhere, found_of, portable
from workbench.explore.capturing.gradients import BackwardSnapshot, judged_backward
from workbench.explore.capturing.packed import PackedSnapshot
from workbench.explore.capturing.snapshot import Snapshot
from workbench.explore.capturing.verdict import Judged, trace_of
from workbench.explore.capturing.weights import weights_of
from workbench.foreign.call import generation
from workbench.foreign.collect import of_run
from workbench.judge.diff import diff
from workbench.operations.stored import save as save_run
from workbench.refusal import Refusal
from workbench.trace.file import save
from workbench.trace.trace import Trace

#: file of the first call that left its budget, and of each where all are kept
FIRST, EACH = "first-wrong.safetensors", "calls/{:06d}.safetensors"
#: and of the first backward pass, in a folder of its own, as it is judged as another operation
BACKWARD = "backward/first-wrong.safetensors"
#: seconds between two looks whether the copies of a call are made
_LOOK_S = 1e-3
AnySnapshot = Snapshot | PackedSnapshot | BackwardSnapshot


class Judging:
    """Judges snapshots and counts what came of them."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        folder: Path,
        contract: str | Mapping[str, Any] | None,
        keep_all: bool,
        limit: int,
    ) -> None:
        self._name, self._function, self._folder, self._contract = name, function, folder, contract
        self._keep_all, self._limit = keep_all, limit
        self._waiting: queue.Queue[tuple[AnySnapshot, Question | None, int]] = queue.Queue()
        self._to_ask: tuple[Trace, Snapshot, Question | None] | None = None  # of the kept call, until it was asked
        self._held = 0
        self._lock = threading.Lock()  # of what is held, which both threads change
        self._thread: threading.Thread | None = None
        self._elsewhere, self._gpu = Elsewhere(), ""  # the generation of the GPU, once it is known
        self.judged = self.wrong = self.doubted = 0
        self.gradients = self.wrong_gradients = 0
        self.kept_gradients: Judged | None = None
        self.dropped: Counter[str] = Counter()
        self.unread: Counter[str] = Counter()
        self.worst: Judged | None = None
        self.kept: Judged | None = None
        self.causes: tuple[str, ...] = ()
        self.seconds = 0.0

    def submit(self, snapshot: AnySnapshot, question: Question | None = None) -> None:
        """Judge a call: now on a CPU, later of a GPU, whose stream is not waited for here. `question`: the call, to be
        made again where it is wrong; of a GPU it waits with its arguments, if these fit into what may wait.
        """
        question = question if isinstance(snapshot, Snapshot) else None  # rows of packed sequences are no arguments
        if snapshot.ready is None:
            self._judge(snapshot, question)
            return self.ask()
        size = _nbytes(snapshot)
        with self._lock:
            full = self._held + size > self._limit
            if question is not None and self._held + size + question.nbytes > self._limit:
                question = None
            size += 0 if question is None else question.nbytes
            self._held += 0 if full else size
        if full:
            self.dropped["the queue of calls to judge was full (limit_mb)"] += 1
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True, name="workbench.capture")
            self._thread.start()
        self._waiting.put((snapshot, question, size))

    def ask(self) -> None:
        """Look for the cause in the first wrong call where that was not done yet: the function is called by this
        thread.
        """
        if self._to_ask is not None:
            asked, self._to_ask = self._to_ask, None
            start = time.perf_counter()
            try:
                self.causes = causes(*asked, self._name, self._contract, self._limit)
            except Exception as error:  # of ours: the model goes on, and the report says it
                self.unread[f"{type(error).__name__}: {error}, while searching for a cause".splitlines()[0]] += 1
            self.seconds += time.perf_counter() - start

    def wait(self) -> None:
        """Until all that was submitted is judged, and the first wrong call asked."""
        self._waiting.join()
        self.ask()

    def end(self) -> None:
        """Until all is judged, and the process that judged it has ended."""
        self.wait()
        self._elsewhere.end()

    def _work(self) -> None:
        import torch

        _beside_graphs()
        while True:
            snapshot, question, size = self._waiting.get()
            try:
                # a copy to the host that waits for the GPU holds a lock of the driver, on which the model's launches
                # would wait: steps of 5.5 ms took 30 once
                while not snapshot.ready.query():
                    time.sleep(_LOOK_S)
                with torch.cuda.device(snapshot.tensors[0].device), torch.cuda.stream(torch.cuda.Stream()):
                    for x in snapshot.tensors:  # their memory is of the caller's stream, which may free and reuse it
                        x.record_stream(torch.cuda.current_stream())
                    self._judge(snapshot, question)
            except Exception as error:  # of a GPU that has failed; whoever asks for the report must not wait forever
                self.unread[f"{type(error).__name__}: {error}".splitlines()[0]] += 1
            finally:
                with self._lock:
                    self._held -= size
                self._waiting.task_done()

    def _judge(self, snapshot: AnySnapshot, question: Question | None) -> None:
        start = time.perf_counter()
        try:
            here = snapshot.on_host()
            if isinstance(here, Snapshot) and bool(here.changed):
                self.dropped["its inputs changed while it ran"] += 1
            elif snapshot.ready is None:
                self._counted(here, found_of(here, self._name, self._contract, None), question)
            else:
                here = portable(here)
                self._gpu = self._gpu or generation() or ""
                found = self._elsewhere.judged(here, self._name, self._contract, self._gpu or None)
                self._counted(here, found, question)
        except Refusal as refusal:
            self.unread[str(refusal).splitlines()[0].removeprefix(f"{self._name}: ")] += 1
        except Exception as error:  # of ours: the model goes on, and the report says it
            self.unread[f"{type(error).__name__}: {error}".splitlines()[0]] += 1
        self.seconds += time.perf_counter() - start

    def _counted(self, snapshot: Snapshot | BackwardSnapshot, found: Judged, question: Question | None) -> None:
        """Count what was found, and keep what is to be kept."""
        if isinstance(snapshot, BackwardSnapshot):
            self._backward(snapshot, replace(found, where=snapshot.forward.asked.where))
        else:
            self._forward(snapshot, replace(found, where=snapshot.asked.where), question)

    def _backward(self, snapshot: BackwardSnapshot, found: Judged) -> None:
        self.gradients += 1
        if not found.leaves:
            return
        self.wrong_gradients += 1
        if self.kept_gradients is None:
            self.kept_gradients = found
            (self._folder / BACKWARD).parent.mkdir(exist_ok=True)
            _, run, where = judged_backward(snapshot, self._name, self._contract)
            save_run(run, self._folder / BACKWARD, (f"{found.named}: {where}",))

    def _forward(self, snapshot: Snapshot, found: Judged, question: Question | None) -> None:
        # what breaks a bound takes the place of what is beyond chance alone
        first = found.leaves and (self.kept is None or (found.proved and not self.kept.proved))
        if found.verdict == "untestable":
            self.unread["no element could be judged"] += 1
        else:
            self._count(found, first)
        if first or self._keep_all:
            self._keep(snapshot, found, question, first)

    def _count(self, found: Judged, first: bool) -> None:
        self.judged += 1
        self.kept = found if first else self.kept
        if found.leaves:
            self.wrong += 1
            return
        self.doubted += found.verdict not in ("exact", "rounding")
        if self.worst is None or found.over_budget > self.worst.over_budget:
            self.worst = found

    def _keep(self, snapshot: Snapshot, found: Judged, question: Question | None, first: bool) -> None:
        """Save a call: the first wrong one, with what ran, and each where all are kept, those that could not be judged
        too.
        """
        import torch

        notes = (f"{found.named}: {snapshot.where}",)
        trace = trace_of(snapshot, self._name, self._contract, notes, self._gpu or None)
        if first:
            seed = f"torch.initial_seed() was {torch.initial_seed()}"
            wrong = trace
            if found.stage == PROBS:
                wrong = weights_of(snapshot, self._name, self._contract, notes, self._gpu or None)
            whole = replace(wrong, provenance=of_run(self._function), notes=(*wrong.notes, seed))
            save(whole, self._folder / FIRST)
            if wrong is not trace and not diff(trace).origins:
                question = None  # its weights alone are wrong, which no call with other numbers in v returns
            else:
                whole = trace
            self.causes, self._to_ask = (), (whole, snapshot, question)
        if self._keep_all:
            path = self._folder / EACH.format(snapshot.call)
            path.parent.mkdir(exist_ok=True)
            save(trace, path)


def _beside_graphs() -> None:
    """Let this thread ask the GPU and copy from it while another one records a CUDA graph: in the usual mode a call of
    any thread makes the recording fail (`cuThreadExchangeStreamCaptureMode` of the driver).
    """
    relaxed = ctypes.c_int(2)  # CU_STREAM_CAPTURE_MODE_RELAXED
    with contextlib.suppress(OSError):  # an AMD GPU
        ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode(ctypes.byref(relaxed))


def _nbytes(snapshot: AnySnapshot) -> int:
    return sum(x.nbytes for x in snapshot.tensors)
