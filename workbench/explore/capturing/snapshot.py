"""Some rows of one call, copied on the stream of whoever calls: nothing here waits for a device."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workbench.arrays import as_torch
from workbench.case.box import Box
from workbench.case.case import Case
from workbench.case.fields import GIVEN
from workbench.case.stages import INPUTS, LSE, OUT, PROBS, RESULTS
from workbench.foreign.calls import DTYPES, Call
from workbench.foreign.layouts import BOX
from workbench.foreign.returned import by_name
from workbench.refusal import Refusal
from workbench.trace.rows import case_of, check_rows

#: scores of a call that are judged, at most: 20 ms on a core; a call of more is judged in part
SCORES = 2**16


@dataclass(frozen=True)
class Snapshot:
    """A part of one call: what it read and, once it has run, what it returned."""

    call: int  #: which call of the function it was, counted from 0
    asked: Call
    whole: Case  #: of the call
    part: Box  #: what of it was copied
    inputs: Mapping[str, Any]  #: the copies
    results: Mapping[str, Any]  #: copies of the same part of out, and of lse
    changed: Any = None  #: whether an input changed while the call ran, bool [] on the device of the call
    ready: Any = None  #: event behind all copies on the stream of the caller; None on a CPU
    sequence: int | None = None  #: which of packed sequences it is of

    @property
    def tensors(self) -> tuple[Any, ...]:
        """All copies."""
        return (*self.inputs.values(), *self.results.values(), self.changed)

    def on_host(self) -> "Snapshot":
        """The same on the CPU, in the order of the current stream."""
        inputs, results = ({name: x.cpu() for name, x in of.items()} for of in (self.inputs, self.results))
        changed = None if self.changed is None else self.changed.cpu()
        return replace(self, inputs=inputs, results=results, changed=changed)

    @property
    def case(self) -> Case:
        """The case of the part."""
        band = ("causal", "causal_alignment", "window") if self.all_rows else ()
        told = {name: getattr(self.whole, name) for name in band}
        return case_of(self.whole, self.part).but(distribution=GIVEN, **told)

    @property
    def all_rows(self) -> bool:
        """Whether it holds all queries of its heads, so that a causal mask or a window is that of its case."""
        return isinstance(self.part.q, slice) and self.part.q in (slice(None), slice(0, self.whole.seqlen_q, 1))

    @property
    def where(self) -> str:
        """Which part of its call it is."""
        of = "" if self.sequence is None else f"sequence {self.sequence}, "
        rows = np.arange(self.whole.seqlen_q)[self.part.q]
        if (len(rows), self.part.b, self.part.h) == (self.whole.seqlen_q, slice(None), slice(None)):
            return f"{of}all rows"
        step = f" in steps of {rows[1] - rows[0]}" if len(rows) > 1 and rows[1] - rows[0] > 1 else ""
        heads = range(self.whole.heads)[self.part.h]
        head = f"head {heads[0]}" if len(heads) == 1 else f"heads {heads[0]} to {heads[-1]}"
        of = of or f"batch {self.part.b.start}, "
        return f"{of}{head}, queries {rows[0]} to {rows[-1]}{step}"

    def rows_of(self, x: Any) -> Any:
        """A view of the part of what has its queries, [b, h, s(, d)]."""
        return x[self.part.b, self.part.h, self.part.q]

    def keys_of(self, x: Any) -> Any:
        """A view of the part of what has its keys, [b, kv head, s, d]."""
        return x[self.part.b, self.part.of_kv(self.whole).h]

    @property
    def has_all_rows(self) -> bool:
        """Whether it has all queries of its heads, over which gradients of keys add up."""
        return len(np.arange(self.whole.seqlen_q)[self.part.q]) == self.whole.seqlen_q

    def now(self) -> dict[str, Any]:
        """The same part of the call's own tensors, as they are now."""
        found = {x: (self.rows_of if x == "q" else self.keys_of)(self.asked.inputs[x]) for x in INPUTS}
        for name in ("mask", "bias"):
            if name in self.asked.inputs:
                whole = self.whole
                scores = (whole.batch, whole.heads, whole.seqlen_q, whole.seqlen_k)
                found[name] = self.rows_of(self.asked.inputs[name].expand(scores))
        return found


def named(call: int, where: str) -> str:
    """Which call it is: by its number, and of a model by layer and step."""
    return ", ".join(filter(None, (f"call {call}", where)))


def taken(asked: Call, call: int, limit: int, random: np.random.Generator) -> Snapshot:
    """The part of a call that is to be judged, before the call runs. Refusal, which says why, for a call that cannot be
    judged, or whose part has more than `limit` bytes.
    """
    whole = case_of_call(asked)
    before = Snapshot(call, asked, whole, _part(whole, random), {}, {})
    made: Snapshot = copied(before, before.now(), limit)
    return made


def copied(before: Any, now: Mapping[str, Any], limit: int) -> Any:
    """A snapshot with copies of what its call reads; Refusal for more than `limit` bytes."""
    size = sum(x.nbytes for x in now.values())
    if size > limit:
        raise Refusal(f"a part of {size / 2**20:.3g} MB, more than limit_mb={limit / 2**20:.3g}")
    return replace(before, inputs={name: x.detach().clone() for name, x in now.items()})


def returned(before: Any, made: Any) -> Any:
    """A snapshot, of packed sequences too, with what the call returned, and whether an input changed meanwhile."""
    import torch

    results = {}
    of_q, given = before.asked.inputs["q"].shape, by_name(made, "the call")
    for name, axes in ((OUT, before.asked.out), (LSE, before.asked.lse)):
        x = given.get(name)
        x = getattr(x, LSE, x)  # of torch's AuxOutput, in which it lies
        if x is None or not hasattr(x, "shape"):
            continue
        x = as_torch(x, name)
        if name == LSE and tuple(x.shape) == (*of_q[:3], before.whole.seqlen_k):
            name, axes = PROBS, BOX  # (out, weights), as models return it
        if not axes:
            continue
        if name == OUT and before.asked.cast not in (None, x.dtype) and x.dtype == before.asked.inputs["q"].dtype:
            # of a function that autocast does not reach
            uncast = replace(before.asked, cast=None)
            before = replace(before, asked=uncast, whole=before.whole.but(dtype=DTYPES[str(x.dtype)]))
        x = boxed(unmerged(x.detach(), axes, before.whole), axes)
        if name != PROBS and tuple(x.shape) != (*of_q[:3], before.whole.head_dim_v)[: len(RESULTS[name].axes)]:
            if name == LSE:
                continue  # flash_attn and others may return something else there
            shape = [*of_q[:3], before.whole.head_dim_v]
            raise Refusal(f"out has shape {list(x.shape)} [b h q d], but q, k and v imply {shape}")
        results[name] = before.rows_of(x).clone()
    if OUT not in results:
        raise Refusal("it returned no out")
    same = [_bits(x.detach()).eq(_bits(before.inputs[name])).all() for name, x in before.now().items()]
    changed = torch.stack(same).all().logical_not()
    on_gpu = changed.is_cuda
    event = torch.cuda.current_stream(changed.device).record_event() if on_gpu else None
    return replace(before, results=results, changed=changed, ready=event)


def load(device: Any) -> None:
    """Run on a GPU what a snapshot runs there: its first run takes 0.1 s, which is better spent before the model's."""
    import torch

    for dtype in (torch.bfloat16, torch.float32):
        x = torch.ones(2, 2, device=device, dtype=dtype)
        torch.stack([_bits(x[:, :1].clone()).eq(_bits(x[:, :1])).all()]).all().logical_not()


def case_of_call(asked: Call, lengths: tuple[int, int] | None = None) -> Case:
    """The case of a call; of a sequence of `lengths` of queries and keys where these are said. Refusal, which says why,
    where no rows of it can be judged.
    """
    q, k, v = (asked.inputs[x] for x in INPUTS)
    if any(x.ndim != len(BOX) or getattr(x, "is_nested", False) or x.is_sparse for x in (q, k, v)):
        raise Refusal(f"q, k and v with {q.ndim}, {k.ndim} and {v.ndim} axes, or nested or sparse")
    dtype = str(asked.cast or q.dtype)
    if dtype not in DTYPES:
        raise Refusal(f"unsupported dtype {dtype}")
    if asked.cast is None and not q.dtype == k.dtype == v.dtype:
        raise Refusal(f"q, k and v with different dtypes: {q.dtype}, {k.dtype}, {v.dtype}")
    if (q.shape[0] != k.shape[0] and not asked.in_pages) or k.shape[:3] != v.shape[:3]:
        raise Refusal(f"q, k and v that broadcast: {list(q.shape)}, {list(k.shape)}, {list(v.shape)}")
    seqlen_q, seqlen_k = lengths or (q.shape[2], k.shape[2])
    case = Case(
        batch=q.shape[0], heads=q.shape[1], kv_heads=k.shape[1], seqlen_q=seqlen_q, seqlen_k=seqlen_k,
        head_dim=q.shape[3], head_dim_v=v.shape[3], dtype=DTYPES[dtype], **asked.fields,
    )  # fmt: skip
    check_rows(case, "a call")
    return case


def _part(case: Case, random: np.random.Generator) -> Box:
    """All of a small call; else some rows of the heads that share one kv head, at even distances that vary, as do the
    first row, the head and the batch, from call to call.
    """
    if case.score_count <= SCORES:
        return Box()
    group = case.heads // case.kv_heads
    # a share of the kv heads: where another run has them repeated, the same share is a head of the same group
    batch, head = int(random.integers(case.batch)), int(random.random() * case.kv_heads) * group
    count = min(case.seqlen_q, max(1, SCORES // (case.seqlen_k * group)))
    step = int(random.integers(1, case.seqlen_q // count + 1))
    first = int(random.integers(case.seqlen_q - (count - 1) * step))
    rows = slice(first, first + (count - 1) * step + 1, step)
    return Box(slice(batch, batch + 1), slice(head, head + group), rows)


def unmerged(x: Any, axes: str, whole: Case) -> Any:
    """[batch, row, head, dim] of a result whose heads lie behind each other, [batch, row, head x dim]."""
    merged = (whole.batch, whole.seqlen_q, whole.heads * whole.head_dim_v)
    return x.unflatten(-1, (whole.heads, whole.head_dim_v)) if axes == "bshd" and tuple(x.shape) == merged else x


def boxed(x: Any, axes: str) -> Any:
    """A result, or its gradient, with the axes [b, h, s(, d)]; an axis that it lacks has the size 1."""
    if axes.startswith("b"):  # q, k and v have no batch, nor heads
        x = x[(None,) * (len(axes) - x.ndim)]
    if "n" in axes and x.ndim == len(axes) + 1:  # of sequences that all have as many rows, which lie behind each other
        x = x.flatten(0, 1)
    axes = axes.replace("n", "s")  # rows of packed sequences
    order = [axis for axis in BOX if axis in axes]
    if x.ndim != len(axes):
        raise Refusal(f"a result with {x.ndim} axes, where [{' '.join(axes)}] is expected")
    x = x.permute([axes.index(axis) for axis in order])
    for place, axis in enumerate(BOX[: 4 if "d" in axes else 3]):
        x = x if axis in axes else x.unsqueeze(place)
    return x


def _bits(x: Any) -> Any:
    """As integers, so that NaN is itself."""
    import torch

    return x if x.dtype == torch.bool else x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])
