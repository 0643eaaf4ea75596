"""The backward pass of a watched call: its gradients as autograd makes them, held against float64.

The call reads views of its arguments that nothing else reads, so that the gradients that come back to these are those
of this call alone, whatever else its q, k and v are used for.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from workbench.case.masks import visible
from workbench.case.stages import INPUTS, LSE, OUT
from workbench.explore.capturing.packed import PackedSnapshot, stripped
from workbench.explore.capturing.snapshot import Snapshot, boxed, unmerged
from workbench.explore.capturing.verdict import Judged, array, described, trace_of
from workbench.floats import to_float64
from workbench.foreign.calls import Call
from workbench.foreign.returned import by_name
from workbench.judge.stage import ORIGIN_VERDICTS
from workbench.operations.judge import judged
from workbench.operations.of_attention import backward_case
from workbench.operations.run import OperationRun
from workbench.refusal import Refusal

Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]
Told = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True)
class BackwardSnapshot:
    """What one backward pass read and made, of the same part as its forward pass."""

    forward: Snapshot | PackedSnapshot
    dout: Any
    gradients: Mapping[str, Any]  #: dq, and of all queries of a head dk and dv; those that were asked for
    ready: Any = None  #: event behind all copies; None on a CPU

    @property
    def tensors(self) -> tuple[Any, ...]:
        """All copies."""
        of = [self.forward.bounds] if isinstance(self.forward, PackedSnapshot) else []
        return (*self.forward.inputs.values(), self.dout, *self.gradients.values(), *of)

    def on_host(self) -> "BackwardSnapshot":
        """The same on the CPU, in the order of the current stream."""
        gradients, dout = {x: y.cpu() for x, y in self.gradients.items()}, self.dout.cpu()
        if isinstance(self.forward, PackedSnapshot):
            _, places, keys = self.forward.cut()
            dout = dout[:, :, : len(places)]
            gradients = {x: y[:, :, : len(places) if x == "dq" else keys] for x, y in gradients.items()}
        return replace(self, forward=self.forward.on_host(), dout=dout, gradients=gradients)


class Followed:
    """A call whose gradients are waited for."""

    def __init__(self, args: Args, kwargs: Kwargs, *, no_record: bool = False) -> None:
        every = () if no_record else (*enumerate(args), *kwargs.items())
        views = {key: x.view_as(x) for key, x in every if _differentiable(x)}
        self._keys: set[Any] = {*views}
        self._found: dict[Any, Any] = {}
        self._dout: Any = None
        self.args, self.kwargs = _with(args, kwargs, views)  #: what the call is given in the place of its own

    def wait(
        self,
        before: Snapshot | PackedSnapshot,
        made: Any,
        read: Callable[..., Call],
        told: Told,
        done: Callable[..., None],
    ) -> bool:
        """Give `done` a snapshot of the backward pass once it has run; False where out has no gradient. `told` is a
        context in which nothing is raised into the model.
        """
        out: Any = by_name(made, "the call").get(OUT)
        views = {key: self.args[key] if isinstance(key, int) else self.kwargs[key] for key in self._keys}
        if not (views and _differentiable(out)):
            return False
        names = [x for x in INPUTS if before.asked.inputs[x].requires_grad]
        if before.asked.in_pages:  # the table of pages is not kept until the backward pass has run
            names = [x for x in names if x == "q"]
        if not names:
            return False
        # hooks hold nothing that leads back to what they hang on, which would never be freed
        before = stripped(before)
        self.args, self.kwargs = _with(self.args, self.kwargs, dict.fromkeys(self._keys))

        def of_out(gradient: Any) -> None:
            with told():
                if self._dout is None:  # of the first backward pass, where a graph is kept for several
                    self._dout = before.rows_of(
                        boxed(unmerged(gradient.detach(), before.asked.out, before.whole), before.asked.out)
                    ).clone()

        def of_view(key: Any, gradient: Any) -> None:
            with told():
                if self._dout is None or key in self._found:
                    return
                self._found[key] = gradient.detach()
                if {*self._found} == self._keys:
                    done(self._taken(before, names, read))

        out.register_hook(of_out)
        for key, view in views.items():
            view.register_hook(partial(of_view, key))
        return True

    def _taken(
        self, before: Snapshot | PackedSnapshot, names: Sequence[str], read: Callable[..., Call]
    ) -> BackwardSnapshot:
        """The gradients of the part: who reads q, k and v off the arguments reads theirs off the gradients."""
        import torch

        args, kwargs = _with(self.args, self.kwargs, self._found)
        asked = read(*args, **kwargs)
        gradients = {}
        for name in names:
            if name != "q" and not before.has_all_rows:  # dk and dv add up over all queries
                continue
            x = (before.rows_of if name == "q" else before.keys_of)(asked.inputs[name])
            gradients[f"d{name}"] = (x if before.asked.cast is None else x.to(before.asked.cast)).clone()
        if not gradients:
            raise Refusal("there are only dk and dv, which cannot be judged from part of the queries")
        event = torch.cuda.current_stream(self._dout.device).record_event() if self._dout.is_cuda else None
        self._found = {}
        return BackwardSnapshot(before, self._dout, gradients, event)


def judged_backward(taken: BackwardSnapshot, name: str, said: Any) -> tuple[Judged, OperationRun, str]:
    """What float64 says of a backward pass, its run, and which part it is; `said` is the contract that the user of the
    function tells. It leaves its budget where neither the conventions that are known of the function nor others make
    all of it right.
    """
    conventions = taken.forward.asked.gradients
    assert isinstance(taken.forward, Snapshot), "on the host"
    trace = trace_of(taken.forward, name, said, ())
    case, inputs = backward_case(trace.case, trace.inputs, conventions)
    dout = array(taken.dout if taken.forward.asked.cast is None else taken.dout.to(taken.forward.asked.cast))
    seen = visible(trace.case, trace.inputs)
    if "bias" in trace.inputs:
        seen = seen & (to_float64(trace.inputs["bias"]) > -np.inf)
    empty = np.broadcast_to(~seen.any(axis=-1), dout.shape[:-1])
    if dout[empty].any():  # NaN too
        raise Refusal("gradients of empty rows, which kernels define differently")
    made = {stage: array(x) for stage, x in taken.gradients.items()}
    # what the backward pass kept of out and lse, as it was stored or before, nobody saw
    run = OperationRun(name, case, {**inputs, "dout": dout}, made, (OUT, LSE), (*conventions,))
    found = judged(run)
    leaves = found.verdict in ORIGIN_VERDICTS and not found.explained_by
    over_budget, max_abs, element = described(found.stages)
    return (
        Judged(taken.forward.call, found.verdict, leaves, found.origin, over_budget, max_abs, element),
        run,
        taken.forward.where,
    )


def _differentiable(x: Any) -> bool:
    """Whether it is a tensor of whose use autograd keeps a record."""
    import torch

    return isinstance(x, torch.Tensor) and x.requires_grad and torch.is_grad_enabled()


def _with(args: Args, kwargs: Kwargs, others: Mapping[Any, Any]) -> tuple[Args, dict[str, Any]]:
    """Arguments, some replaced by place or name."""
    return tuple(others.get(i, x) for i, x in enumerate(args)), {key: others.get(key, x) for key, x in kwargs.items()}
