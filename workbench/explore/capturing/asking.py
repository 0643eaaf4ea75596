"""A wrong call made again, with other numbers in its q, k and v: the function is in hand while it is watched."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workbench.arrays import module
from workbench.case.case import Case
from workbench.case.hiding import HUGE
from workbench.case.inputs import anew
from workbench.case.masks import visible
from workbench.case.stages import INPUTS, LSE, MASKS, OUT, RESULTS
from workbench.explore.capturing.snapshot import Snapshot, copied, returned
from workbench.explore.capturing.state import untouched
from workbench.explore.capturing.verdict import trace_of
from workbench.floats import to_float64
from workbench.foreign.calls import Call
from workbench.judge.diff import diff
from workbench.judge.explain.explain import Explained
from workbench.judge.explain.unstable import RANDOM, unstable
from workbench.refusal import Refusal
from workbench.trace.hidden import with_mask
from workbench.trace.trace import Trace
from workbench.work import ASKING, Work, trials

#: alternatives of a cause that a report lists, at most
LISTED = 2
#: fields of a case in which runs of one call may differ: what its numbers are
_OF_NUMBERS = ("seed", "distribution", "input_std")
Said = str | Mapping[str, Any] | None


@dataclass(frozen=True)
class Question:
    """A call as it was made, which holds its arguments."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    read: Callable[..., Call]
    autocast: tuple[str, Any] | None = None  #: kind of device and dtype, where torch.autocast was on

    @staticmethod
    def of(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], read: Any) -> "Question":
        """Of a call that is being made."""
        torch = module("torch", "a capture")
        kinds = {x.device.type for x in _tensors((args, kwargs))}
        on = next(((kind, torch.get_autocast_dtype(kind)) for kind in kinds if torch.is_autocast_enabled(kind)), None)
        return Question(function, args, kwargs, read, on)

    @property
    def nbytes(self) -> int:
        """Of the memory that its arguments span, each by itself."""
        return sum(_extent(x) * x.element_size() for x in _tensors((self.args, self.kwargs)))


class Again:
    """Calls the watched function again, as in the wrong call but for other q, k and v: the `Rerun` of its trace."""

    def __init__(
        self,
        question: Question,
        before: Snapshot,
        trace: Trace,
        name: str,
        said: Said,
        limit: int,
        shown: Callable[[Trace], Trace] = lambda trace: trace,
    ) -> None:
        """`trace`: of `before`, a part of the call; `shown`: what of a run is looked at. Refusal where the call cannot
        be made again: its q, k and v are no arguments, or they lie in more than `limit` bytes.
        """
        self._question, self._before, self._trace = question, before, trace
        self._name, self._said, self._shown = name, said, shown
        self._work = Work(ASKING)
        if question.nbytes > limit:
            raise Refusal(
                f"its arguments span {question.nbytes / 2**20:.3g} MB, more than limit_mb={limit / 2**20:.3g}"
            )
        self._pairs: list[tuple[Any, Any]] = []  # memory of an argument, and ours in its place
        self._args, self._kwargs = _mapped((question.args, question.kwargs), self._own)
        of_call = self._read()
        ours = {own.untyped_storage().data_ptr() for _, own in self._pairs}
        for name in INPUTS:
            if of_call.inputs[name].untyped_storage().data_ptr() not in ours:
                raise Refusal(f"its {name} is not an argument, nor a view of one")
        self._masks = {x: y.clone() for x, y in replace(before, asked=of_call).now().items() if x in MASKS}

    def __call__(self, case: Case, inputs: Mapping[str, np.ndarray] | None = None) -> Trace:
        """The trace of the call on `inputs`, or numbers drawn as `case` says. Refusal for a case that is other in more
        than its numbers, another mask or bias, where the function raises or changes what it was given, and where calls
        took as much as ASKING allows.
        """
        torch, trace = module("torch", "a capture"), self._trace
        ours = {x: getattr(trace.case, x) for x in _OF_NUMBERS}
        if case.but(**ours) != trace.case.but(**ours):
            raise Refusal(f"{self._name}: a captured call can only be repeated with other values, not on another case")
        if self._work.over:
            raise Refusal(
                f"{self._name}: a call of {self._before.whole.score_count:,} scores cannot be repeated more often"
            )
        self._work.take(trials(self._before.whole.score_count))
        if inputs is None:
            case, inputs = anew(case, trace.inputs)
        if inputs is None:
            inputs = dict(zip(INPUTS, case.inputs(), strict=True))
        if any(not _same(y, trace.inputs.get(x)) for x, y in inputs.items() if x in MASKS):
            raise Refusal(f"{self._name}: a captured call can only be repeated with its own mask")
        for theirs, own in self._pairs:
            own.copy_(theirs)
        asked = self._read()
        before = replace(self._before, asked=asked, inputs={}, results={})
        there = before.now()
        for name in INPUTS:
            there[name].copy_(_tensor(inputs[name]))
        before = copied(before, there, 2**62)
        if any(not torch.equal(before.inputs[x].cpu().float(), _tensor(inputs[x])) for x in INPUTS):
            raise Refusal(f"{self._name}: its q, k and v share memory")
        if any(not torch.equal(before.inputs[x], y) for x, y in self._masks.items()):
            raise Refusal(f"{self._name}: its mask depends on q, k or v, or has changed since the call")
        made = returned(before, self._called())
        if bool(made.changed):
            raise Refusal(f"{self._name} changes its inputs")
        found = trace_of(made.on_host(), self._name, self._said, trace.notes)
        ran = trace.case.but(**{x: getattr(case, x) for x in _OF_NUMBERS})
        given = {**trace.inputs, **{x: inputs[x] for x in INPUTS}}
        stages = {x: found.stages[x] for x in trace.stages}
        return self._shown(replace(trace, rerun=None, case=ran, stages=stages, inputs=given))

    def _called(self) -> Any:
        of = self._question
        torch = module("torch", "a capture")
        autocast = nullcontext() if of.autocast is None else torch.autocast(of.autocast[0], of.autocast[1])
        try:
            with untouched((of.function, of.args, of.kwargs)), autocast:
                return of.function(*self._args, **self._kwargs)
        except Refusal as refusal:
            raise Refusal(f"{self._name}: {refusal}") from None
        except Exception as error:
            raise Refusal(f"{self._name} raised {type(error).__name__}: {error}") from None

    def _read(self) -> Call:
        with module("torch", "a capture").no_grad():
            return self._question.read(*self._args, **self._kwargs)

    def _own(self, x: Any) -> Any:
        """A tensor of ours that lies as one of theirs does, with as much between its rows."""
        if not x.numel():
            return x
        x = x.detach()
        theirs = x.as_strided((_extent(x),), (1,), x.storage_offset())
        self._pairs.append((theirs, theirs.clone()))
        return self._pairs[-1][1].as_strided(x.shape, x.stride(), 0)


def _mapped(x: Any, change: Callable[[Any], Any]) -> Any:
    """Arguments with their tensors changed."""
    if isinstance(x, dict | Mapping):
        return {key: _mapped(y, change) for key, y in x.items()}
    if type(x) in (tuple, list):
        return type(x)(_mapped(y, change) for y in x)
    return change(x) if _is_tensor(x) else x


def _tensors(x: Any) -> list[Any]:
    found: list[Any] = []
    _mapped(x, found.append)
    return found


def _extent(x: Any) -> int:
    """Elements from its first to its last, those between its rows too."""
    return 1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0


def _same(x: np.ndarray, own: np.ndarray | None) -> bool:
    """Whether a mask or a bias is the run's own, but for how far below all scores it is where it hides."""
    if own is None or x.shape != own.shape:
        return False
    return bool(np.array_equal(x, own) if x.dtype == bool else np.array_equal(*(np.maximum(y, HUGE) for y in (x, own))))


def _tensor(x: np.ndarray) -> Any:
    """Numbers of q, k or v as a tensor of float32, which holds those of 16 bits."""
    return module("torch", "a capture").from_numpy(np.ascontiguousarray(x).astype(np.float32))


def _is_tensor(x: Any) -> bool:
    torch = module("torch", "a capture")
    return isinstance(x, torch.Tensor) and x.layout == torch.strided and not x.is_nested


def causes(
    trace: Trace, snapshot: Snapshot, question: Question | None, name: str, said: Said, limit: int
) -> tuple[str, ...]:
    """What explains a wrong call, in sentences: asked of the function where it can be called again, else of the call
    alone; () where nothing is found. Of numbers that are not finite when they come it says so, and looks no further.
    """
    if early := [x for x in INPUTS if x in trace.inputs and not np.isfinite(to_float64(trace.inputs[x])).all()]:
        given = f"{', '.join(early[:-1])} and {early[-1]}" if len(early) > 1 else early[0]
        return (f"the inputs already contain NaN or infinity, in {given}: look before this call",)
    shown = _looked_at(trace)
    if question is not None:
        try:
            again = Again(question, snapshot, shown(trace), name, said, limit, shown)
            judged = diff(replace(shown(trace), rerun=again, one_case=True))
            differs = unstable(judged.run, [x for x in judged.stages if x.role == "origin"])
            if not differs or differs.startswith(RANDOM):
                return sentences(judged.explain())
            # what it does now is not what it did
            return (differs, *sentences(diff(shown(trace)).explained))
        except Refusal:  # of what cannot be called again
            pass
    return sentences(diff(shown(trace)).explained)


def _looked_at(trace: Trace) -> Callable[[Trace], Trace]:
    """What of a wrong call and its reruns a cause is read off, as far as it is wrong: out and lse, as weights beside
    them say less than chosen inputs do, without rows that see no key, which hold what they like.
    """

    def ends(one: Trace) -> Trace:
        return replace(one, stages={x: y for x, y in one.stages.items() if x in RESULTS})

    for shown in (lambda one: _with_keys(ends(one)), ends):
        if diff(shown(trace)).origins:
            return shown
    return lambda one: one


def _with_keys(trace: Trace) -> Trace:
    """The trace whose rows that see no key hold what they should."""
    told, contract = with_mask(trace), trace.contract
    seen = visible(told.case, told.inputs)
    empty = np.broadcast_to(~seen.any(-1), trace.inputs["q"].shape[:3])
    stages = dict(trace.stages)
    for name, value, usual in ((OUT, contract.empty_out, 0.0), (LSE, contract.empty_lse, -np.inf)):
        if name in stages and empty.any():
            stages[name] = stages[name].copy()
            stages[name][empty] = usual if isinstance(value, str) else value
    return replace(trace, stages=stages)


def sentences(found: Explained) -> tuple[str, ...]:
    """Causes, a sentence each, and what stands above them first."""
    made = [found.unstable] if found.unstable else []
    for cause in found.causes:
        others = "".join(f"; or: {rival}" for rival in cause.rivals[:LISTED])
        others += f"; {len(cause.rivals) - LISTED} more fit" if len(cause.rivals) > LISTED else ""
        made.append(f"{'perhaps ' * cause.perhaps}{cause.text}{others}")
    return tuple(made)
