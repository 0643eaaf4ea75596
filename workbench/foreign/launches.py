"""What a foreign function launches of numba.cuda: on a GPU or on the emulator, watched there if asked, and with probes
where its kernels have some.
"""

import importlib.util
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.case.case import Case
from workbench.case.stages import STAGES, shape
from workbench.cuda.gpu import gpu
from workbench.floats import DTYPES
from workbench.foreign.probes.numba_cuda import PROBED, Probed, refuse_others
from workbench.refusal import Refusal
from workbench.trace.trace import blank

if TYPE_CHECKING:
    from workbench.cuda.host.watch import Watch

_NUMBA = "numba.cuda"
#: what a slot of a buffer holds that nobody wrote: a signalling NaN, as of `trace.blank`
_BLANK = np.uint64(0x7FF0BEEF0BADF00D)
#: stages that have the dtype of q where their numbers are such
_CAST = ("probs_cast", "out")
#: whether kernels run with their probes, and the watch under which they do
_PROBES: ContextVar[bool] = ContextVar("probes", default=True)
_WATCH: ContextVar["Watch | None"] = ContextVar("watch", default=None)


def emulated(backend: str) -> bool:
    """Whether kernels of numba.cuda run on the emulator; auto takes a GPU where there is one. Unavailable for cuda
    without a GPU.
    """
    if backend == "auto":
        return gpu() is None
    from workbench.cuda.run import choose_backend

    return choose_backend(backend) == "emulator"


@contextmanager
def bare(watch: "Watch | None" = None) -> Iterator[None]:
    """Within it, functions launch kernels without probes; with a `watch`, which needs the emulator, all their accesses
    are looked at.
    """
    tokens = _PROBES.set(False), _WATCH.set(watch)
    try:
        yield
    finally:
        _PROBES.reset(tokens[0])
        _WATCH.reset(tokens[1])


@dataclass
class Launches:
    """Those of one call of a function."""

    name: str  #: of the function
    case: Case = Case()  #: whose stages probes dump
    on_emulator: bool = False
    #: gives the command that watches what it launches; empty where no command names it
    watched_by: Callable[[], str] = str
    probes: bool = True
    kernels: list[str] = field(default_factory=list)  #: that were launched, in order
    buffers: dict[str, Any] = field(default_factory=dict)  #: of stages, on the device
    probed: dict[str, Probed] = field(default_factory=dict)  #: by stage
    known: set[Any] = field(default_factory=set)  #: functions of kernels, whose probes stand where they may

    @contextmanager
    def sent(self) -> Iterator["Launches"]:
        """Within it, what is launched goes where it is to run. Nothing of numba is imported before a function does."""
        with ExitStack() as stack:
            stack.enter_context(_imported(lambda: self._enter(stack)))
            yield self

    def _enter(self, stack: ExitStack) -> None:
        if sys.modules[_NUMBA].config.ENABLE_CUDASIM:
            return  # numba's simulator stands in for a GPU already
        from workbench.cuda.host import launches as host

        launch: Callable[..., None] = host.on_gpu
        if self.on_emulator:
            launch = host.OnEmulator(_WATCH.get(), str if _WATCH.get() else self.watched_by)
            stack.enter_context(launch.standing_in())
        stack.enter_context(host.sent_to(lambda *launched: self._launch(launch, *launched)))

    def _launch(self, launch: Callable[..., None], dispatcher: Any, arguments: Any, configured: Any) -> None:
        function = dispatcher.py_func
        if function not in self.known:
            refuse_others(function)
            self.known.add(function)
        found: Probed | None = getattr(function, PROBED, None)
        self.kernels.append(function.__name__)
        if found is None or not (self.probes and _PROBES.get()):
            launch(dispatcher, function, arguments, (), configured)
            return
        more = [self._buffer(stage, found) for stage in found.stages]
        launch(dispatcher, found.function, arguments, more, configured)

    def _buffer(self, stage: str, probed: Probed) -> Any:
        """The buffer of a stage, which all kernels of a call share."""
        if stage not in self.buffers:
            from workbench.cuda.host.launches import on_device

            dims = shape(STAGES[stage], self.case.but(**_tiles(probed)).sizes)
            self.buffers[stage] = on_device(np.full(dims, _BLANK).view(np.float64))
            self.probed[stage] = probed
        return self.buffers[stage]

    def concatenated(
        self, stages: Mapping[str, np.ndarray], parts: Collection[str], declared: Mapping[str, Any]
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """What the function returned, whole `stages` and `parts`, and `declared` of its contract, with the stages that
        probes stored and the tiles and splits that they have. Refusal where both say something of one, and for numbers
        in float64 beside slots that nobody wrote.
        """
        if both := [stage for stage in self.buffers if stage in {*stages, *parts}]:
            raise Refusal(f"{self.name} returned {', '.join(both)}, which its probes also dump: remove one of the two")
        told = dict(declared)
        for one in self.probed.values():
            for field_, x in _tiles(one).items():
                if told.setdefault(field_, x) != x:
                    raise Refusal(
                        f"{one.where}: @probed({field_}={x}), but {self.name} declares {field_}={told[field_]} in its "
                        '"contract" or in another kernel'
                    )
        return {**stages, **self._dumped()}, told

    def _dumped(self) -> dict[str, np.ndarray]:
        if not self.buffers:
            return {}
        from workbench.cuda.host.launches import from_device

        return {stage: _values(stage, from_device(made), self.case) for stage, made in self.buffers.items()}

    def check(self, backend: str) -> None:
        """Refusal where nothing was launched, and that was what the function was called for."""
        if self.kernels or (backend == "auto" and _WATCH.get() is None):
            return
        why = "there is nothing to watch" if _WATCH.get() is not None else f"--backend {backend} is for such kernels"
        raise Refusal(f"{self.name} launched no numba.cuda kernel: {why}")

    def anew(self) -> "Launches":
        """For another call of the function."""
        return Launches(self.name, self.case, self.on_emulator, self.watched_by)

    @property
    def plain(self) -> "Launches | None":
        """For a call without probes, where these may have changed the kernels that ran; None where they did not."""
        return replace(self.anew(), probes=False) if self.buffers and not self.on_emulator else None

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know of what was launched."""
        return (f"launched on the emulator: {', '.join(self.launched)}",) if self.on_emulator and self.kernels else ()

    @property
    def launched(self) -> tuple[str, ...]:
        """Every kernel once."""
        return tuple(dict.fromkeys(self.kernels))


def _tiles(probed: Probed) -> dict[str, int]:
    """What @probed says of tiles and splits, as fields of a contract, and of a case."""
    return {name: x for name, x in (("block_k", probed.block_k), ("splits", probed.splits)) if x is not None}


def _values(stage: str, values: np.ndarray, case: Case) -> np.ndarray:
    """What probes stored, in the narrowest dtype of a kernel that has all of it."""
    unwritten = values.view(np.uint64) == _BLANK
    written = np.where(unwritten, 0, values)
    for dtype in ([DTYPES[case.dtype]] if stage in _CAST else []) + [DTYPES["float32"]]:
        with np.errstate(over="ignore"):
            narrow = written.astype(dtype)
        if np.array_equal(narrow.astype(np.float64), written, equal_nan=True):
            return np.where(unwritten, blank(values.shape, dtype), narrow)
    if unwritten.any():
        index = tuple(np.argwhere(unwritten)[0].tolist())
        raise Refusal(
            f"probe.{stage} stored float64 numbers but left {unwritten.sum()} of {values.size} slots unwritten, the "
            f"first at {index}: dump float32, or write every slot"
        )
    return values


#: numba.cuda, and what of ours imports it first
_AWAITED = (_NUMBA, "workbench.cuda.emulator")


@contextmanager
def _imported(act: Callable[[], None]) -> Iterator[None]:
    """Within it, `act` is called as soon as numba.cuda is imported; at once where it is."""
    if _NUMBA in sys.modules:
        act()
        yield
        return
    finder = _Awaiting(act)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)


@dataclass(eq=False)
class _Awaiting:
    """Is asked for each module that is to be imported, and leaves it to others; `act` follows upon numba.cuda. Where
    the emulator, of which `act` makes use, is what imports it, `act` follows upon that.
    """

    act: Callable[[], None]
    begun: int = 0  #: of _AWAITED, whose import has not ended

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """None, but for _AWAITED, which others find."""
        if name not in _AWAITED:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def run_and_act(module: ModuleType) -> None:
            self.begun += 1
            try:
                run(module)
            finally:
                self.begun -= 1
            if not self.begun and self in sys.meta_path:
                sys.meta_path.remove(self)
                self.act()

        spec.loader.exec_module = run_and_act  # type: ignore[method-assign]
        return spec
