"""Calls of attention in a running process, watched: some are judged, and the first wrong one is kept."""

import functools
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ContextDecorator, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from workbench.arrays import module
from workbench.case.case import Case
from workbench.case.contract import check_names
from workbench.case.presets import fields_of
from workbench.explore.capturing import models
from workbench.explore.capturing.asking import Question
from workbench.explore.capturing.gradients import Followed
from workbench.explore.capturing.judging import Judging
from workbench.explore.capturing.packed import PackedSnapshot, taken_packed
from workbench.explore.capturing.report import Report
from workbench.explore.capturing.snapshot import Snapshot, load, returned, taken
from workbench.explore.capturing.sources import of_function
from workbench.files import write_atomically
from workbench.foreign.read_back import Given
from workbench.refusal import Refusal

KEEP = ("first", "all")
Before = Snapshot | PackedSnapshot


class Capture(ContextDecorator):
    """Watches one function while it is entered; also a decorator of what calls it. `report` says what came of it."""

    def __init__(
        self,
        function: Callable[..., Any],
        folder: str | Path,
        *,
        spec: Callable[..., Given] | str | None,
        sample: float,
        keep: str,
        contract: str | Mapping[str, Any] | None,
        limit_mb: float,
        seed: int,
    ) -> None:
        if not 0 < sample <= 1:
            raise Refusal(f"sample (the share of calls to judge) must be above 0 and at most 1; got {sample!r}")
        if keep not in KEEP:
            raise Refusal(f"keep must be one of {', '.join(KEEP)}; got {keep!r}")
        if not limit_mb > 0:
            raise Refusal(f"limit_mb (megabytes of calls that wait to be judged) must be above 0; got {limit_mb!r}")
        if contract is not None:
            check_names(fields_of(contract, Case()))  # before anything runs
        self._source = (models.source_of(function) if spec is None else None) or of_function(function, spec)
        self._sample, self._seed = sample, seed
        self._limit = int(limit_mb * 2**20)
        self._folder = Path(folder)
        if found := sorted(self._folder.glob("**/*.safetensors")):
            raise Refusal(f"{folder} has {found[0].name} of an earlier capture: use another folder")
        self._judging = Judging(self._source.name, function, self._folder, contract, keep == "all", self._limit)
        self._random = np.random.default_rng(seed)
        self._calls, self._next = 0, self._gap() - 1
        self._unread: Counter[str] = Counter()
        self._remarks: dict[str, None] = {}
        self._sampled, self._followed, self._host_s = 0, 0, 0.0
        self._watching: AbstractContextManager[Any] | None = None
        self.function = self._watched()  #: the function, watched: for callers that no module's name leads to

    def __enter__(self) -> "Capture":
        self._folder.mkdir(parents=True, exist_ok=True)
        cuda = module("torch", "a capture").cuda
        if cuda.is_initialized() and not cuda.is_current_stream_capturing():
            load(cuda.current_device())
        self._watching = self._source.watching(self.function, self._count, self._remark)
        self._watching.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._watching is not None:
            self._watching.__exit__(None, None, None)
        self._judging.end()
        text = json.dumps(self.report.as_dict(), indent=1)
        write_atomically(self._folder / "report.json", text.encode())

    @property
    def report(self) -> Report:
        """What was seen until now; calls that still wait to be judged are waited for."""
        self._judging.wait()
        of = self._judging
        return Report(
            self._source.name, str(self._folder), self._calls, self._sampled, of.judged, dict(of.dropped),
            dict(self._unread + of.unread), of.wrong, of.doubted, of.worst, of.kept,
            of.causes, self._host_s, of.seconds, of.gradients, self._followed - of.gradients, of.wrong_gradients,
            of.kept_gradients,
            unseen="" if self._calls else self._source.unseen(), remarks=tuple(self._remarks),
        )  # fmt: skip

    def _watched(self) -> Callable[..., Any]:
        function, in_graph = self._source.function, _recording()
        judged = _eager(self._judged, recursive=False)
        self._eager_before, self._eager_after = _eager(self._before), _eager(self._after)

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            call = self._calls
            self._calls = call + 1
            if in_graph is not None and in_graph():
                self._count("recorded into a CUDA graph, whose replays cannot be watched")
                return function(*args, **kwargs)
            if call < self._next:
                return function(*args, **kwargs)
            return judged(call, args, kwargs)

        # a compiled caller leaves its graph for this call, and one compiled before is compiled again: without it Dynamo
        # would trace what is above once, and count nothing afterwards; the function itself it may compile as before
        return _eager(watched, recursive=False)

    def _remark(self, said: str) -> None:
        self._remarks[said] = None

    def _count(self, why: str) -> None:
        """One more call that was not judged."""
        self._unread[why] += 1

    def _judged(self, call: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self._next = call + self._gap()
        self._sampled += 1
        before = self._eager_before(call, args, kwargs)
        if before is None:
            return self._source.function(*args, **kwargs)
        snapshot, followed = before
        made = self._source.function(*followed.args, **followed.kwargs)
        self._eager_after(snapshot, followed, made)
        return made

    def _before(self, call: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Before, Followed] | None:
        """What is to be judged of a call that is about to run, and what it is given; None where it cannot be."""
        with self._told():
            # the part of a call depends on its number alone, so that two captures of one model take the same
            random = np.random.default_rng((self._seed, call))
            # the call reads views that nothing else reads, where autograd keeps a record of it: above the dispatcher
            followed = Followed(args, kwargs, no_record=self._source.no_record)
            asked = self._source.read(*followed.args, **followed.kwargs)
            take = taken if asked.packed is None else taken_packed
            return take(asked, call, self._limit, random), followed
        return None

    def _after(self, before: Before, followed: Followed, made: Any) -> None:
        with self._told():
            asked = Question.of(self._source.function, followed.args, followed.kwargs, self._source.read)
            self._judging.submit(returned(before, made), asked)
            self._followed += followed.wait(before, made, self._source.read, self._told, self._judging.submit)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Takes the time, and counts what goes wrong in the place of raising it: nobody's model may fail because it is
        watched.
        """
        start = time.perf_counter()
        try:
            yield
        except Refusal as refusal:
            self._count(str(refusal).splitlines()[0])
        except Exception as error:
            self._count(f"{type(error).__name__}: {error}".splitlines()[0])
        finally:
            self._host_s += time.perf_counter() - start

    def _gap(self) -> int:
        """Calls to the next that is judged: at random, since every hundredth may be the same layer each time."""
        return int(self._random.geometric(self._sample))


def _eager(function: Callable[..., Any], *, recursive: bool = True) -> Callable[..., Any]:
    """The function, which torch's compiler leaves alone, and what it calls too where `recursive`."""
    torch = module("torch", "a capture")
    made: Callable[..., Any] = torch.compiler.disable(function, recursive=recursive)
    return made


def _recording() -> Callable[[], bool] | None:
    """Tells whether the current stream records a CUDA graph; None without a GPU."""
    torch = module("torch", "a capture")
    if not torch.cuda.is_available():
        return None
    found: Callable[[], bool] = torch.cuda.is_current_stream_capturing
    return found


def capture(
    function: Callable[..., Any],
    folder: str | Path,
    *,
    spec: Callable[..., Given] | str | None = None,
    sample: float = 1.0,
    keep: str = "first",
    contract: str | Mapping[str, Any] | None = None,
    limit_mb: float = 256.0,
    seed: int = 0,
) -> Capture:
    """Watch the calls of `function` in this process: `with capture(...) as c:`, or a decorator of what calls it.

    `function` may be a model, a torch.nn.Module: watched are the attention function that its config names where it is
    of transformers, and the calls of torch's scaled_dot_product_attention by modules of any other. What a call asks is
    read from its module and its arguments; it is named by layer and forward pass, as in "layer 7, step 3".

    A random `sample` of calls (a share) is judged: some rows of each, at most 2^16 scores, are copied before the call
    on its own stream, with the results behind it, and held against float64, on the CPU at once, of a GPU in a thread.
    The first call that leaves its budget is kept in `folder` as `first-wrong.safetensors`, which `workbench diff`
    judges again; the worst of the others as numbers, in report.json; `keep` "all" keeps every call in calls/, for
    `compare_runs`. `spec`, for functions that no adapter knows, is called as the function is and returns what the call
    asks (`foreign.calls.reader_of`); "sdpa" is of a function that takes what torch's scaled_dot_product_attention
    takes. Arrays are of torch, NumPy or JAX. `contract` as of `run`. `limit_mb`: copies that wait at most; calls beyond
    are dropped and counted, as those whose inputs changed while they ran. `seed` of what is sampled.

    `function` may be torch.ops.aten.scaled_dot_product_attention: every call that ends there is seen, of compiled and
    C++ callers too, but those of the backend math; this takes some 10 us of every operation of torch meanwhile, and
    torch.compile runs its callers eagerly.

    Refusal for a function that is neither known nor told, a model of transformers before 5, and a folder that holds a
    case already.

    >>> import torch
    >>> from tempfile import TemporaryDirectory
    >>> def attend(q, k, v):
    ...     return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v
    >>> with TemporaryDirectory() as folder, capture(attend, folder, spec="sdpa") as c:
    ...     out = c.function(*torch.ones(3, 1, 2, 16, 8))
    >>> c.report.judged, c.report.verdict
    (1, 'rounding')
    """
    return Capture(
        function, folder, spec=spec, sample=sample, keep=keep, contract=contract, limit_mb=limit_mb, seed=seed
    )
