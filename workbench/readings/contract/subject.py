"""A function that is believed right, asked on inputs of our choice, of which keys and values are alike in all heads."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from workbench.case.case import Case
from workbench.case.fields import GIVEN
from workbench.floats import DTYPES, to_float64, unit_roundoff
from workbench.refusal import Refusal, Unavailable
from workbench.trace.trace import Trace

#: calls after which nothing more is asked
CALLS = 400
#: what stands for 1 in V, so that small weights are no subnormals of float16
UNIT = 2.0**10
#: rows of one answer that are looked at, at most
ROWS = 512
#: fields of a case that put something into a score, or between a weight and out
_BESIDE = ("softcap", "alibi_slopes", "sinks", "dropout_p", "score_mod", "mask_mod", "page_size")


@dataclass(frozen=True, eq=False)
class Reply:
    """What was returned for chosen inputs, in float64; rows are those of all heads and sequences, one after another."""

    out: np.ndarray  #: [row, dim of v]
    lse: np.ndarray | None  #: [row]
    q: np.ndarray  #: [row, dim], as the function got it
    k: np.ndarray  #: [key, dim]
    v: np.ndarray  #: [key, dim of v]
    scale: float


class Subject:
    """A traced function and the calls that were made of it."""

    def __init__(self, trace: Trace) -> None:
        """Refusal for a trace at rest, and for a case in which a score is not scale * q @ k alone."""
        case = trace.case
        if trace.rerun is None:
            name = trace.called_with.trace or trace.target
            raise Refusal(f"{name} is a dump: a contract can only be measured on a function or a kernel")
        beside = [name for name in _BESIDE if getattr(case, name) is not None]
        beside += [name for name in ("mask", "bias") if name in trace.inputs]
        if case.codes is not None or case.shared_kv or case.ragged or "out" not in trace.stages:
            beside.append("codes, a v that is a part of k, ragged lengths or no out")
        if beside:
            raise Refusal(
                f"{trace.target}: a contract can only be measured on plain attention (scale * q @ k; full, causal or "
                f"in a window). This case has {', '.join(beside)}: leave that out"
            )
        self.trace = trace
        self.calls = 0
        self.case = case
        if case.causal and case.window is None:
            self.case = self._without_mask(case)

    def _without_mask(self, case: Case) -> Case:
        """The case with all keys visible, where the function takes it so."""
        open_ = case.but(causal=False)
        self.case = open_
        v = np.zeros((self.keys, self.width))
        v[-1] = UNIT
        try:
            out = self.ask(np.zeros(self.depth), np.zeros((self.keys, self.depth)), v).out
        except (Refusal, Unavailable):
            return case
        near = abs(out * self.keys / UNIT - 1) <= 0.1
        return open_ if near.all() else case

    @property
    def dtype(self) -> str:
        """Of q, k and v."""
        return self.case.dtype

    @property
    def keys(self) -> int:
        """How many there are."""
        return self.case.seqlen_k

    @property
    def depth(self) -> int:
        """Dims of q and k."""
        return self.case.head_dim

    @property
    def width(self) -> int:
        """Dims of v."""
        return self.trace.inputs["v"].shape[-1]

    @property
    def rows(self) -> int:
        """Queries of all heads and sequences."""
        return self.case.batch * self.case.heads * self.case.seqlen_q

    @property
    def roundoff(self) -> float:
        """Of the dtype of out."""
        return unit_roundoff(self.trace.stages["out"].dtype)

    @cached_property
    def seen(self) -> np.ndarray:
        """Which keys a row sees, bool [row, key]."""
        shape = (self.case.batch, self.case.heads, self.case.seqlen_q, self.keys)
        return np.broadcast_to(self.case.mask(), shape).reshape(self.rows, self.keys)

    @cached_property
    def whole(self) -> np.ndarray:
        """Rows that see every key."""
        return np.flatnonzero(self.seen.all(-1))

    @cached_property
    def some(self) -> np.ndarray:
        """Rows that see a key, at most ROWS, spread evenly."""
        every = np.flatnonzero(self.seen.any(-1))
        return every[:: -(-len(every) // ROWS) or 1]

    def ask(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float = 1.0) -> Reply:
        """The reply to q [row, dim], or [dim] of all rows, k [key, dim] and v [key, dim of v], the same for all heads.

        Raises Refusal where the function refuses its own case, and after CALLS calls.
        """
        assert self.trace.rerun is not None
        if self.calls >= CALLS:
            raise Refusal(f"{self.trace.target}: measuring a contract may take at most {CALLS} calls")
        self.calls += 1
        shape = self.trace.inputs["q"].shape
        chosen = {"q": np.broadcast_to(q, (self.rows, self.depth)).reshape(shape), "k": k, "v": v}
        kind = DTYPES[self.dtype]
        given: dict[str, np.ndarray] = dict(self.trace.inputs)
        for name, x in chosen.items():
            whole = np.broadcast_to(x, self.trace.inputs[name].shape)
            given[name] = np.ascontiguousarray(whole).astype(kind)
        case = self.case.but(distribution=GIVEN, scale=float(np.float32(scale)))
        stages = self.trace.rerun(case, given).stages
        lse = None if "lse" not in stages else to_float64(stages["lse"]).reshape(self.rows)
        read = {name: to_float64(x.astype(kind)) for name, x in chosen.items()}
        return Reply(
            out=to_float64(stages["out"]).reshape(self.rows, -1),
            lse=lse,
            q=read["q"].reshape(self.rows, self.depth),
            k=np.broadcast_to(read["k"], (self.keys, self.depth)),
            v=np.broadcast_to(read["v"], (self.keys, self.width)),
            scale=case.scale,
        )

    def weights(self, q: np.ndarray, k: np.ndarray, scale: float = 1.0) -> tuple[np.ndarray, Reply]:
        """What the first keys weigh, [row, key], as many as v has dims; and the reply."""
        count = min(self.width, self.keys)
        v = np.zeros((self.keys, self.width))
        v[np.arange(count), np.arange(count)] = UNIT
        reply = self.ask(q, k, v, scale)
        return reply.out[:, :count] / UNIT, reply

    def softmax(self, scores: np.ndarray) -> np.ndarray:
        """Weights of scores [row, key] in natural units, of what a row sees."""
        hidden = np.where(self.seen, scores, -np.inf)
        top = hidden.max(-1, keepdims=True)
        p = np.exp(hidden - np.where(np.isfinite(top), top, 0.0))
        total = p.sum(-1, keepdims=True)
        return np.where(total == 0, 0.0, p / np.where(total == 0, 1.0, total))


def to(x: np.ndarray, dtype: str, rounding: str = "nearest") -> np.ndarray:
    """x rounded to a dtype by name, in float64; `rounding`: nearest or toward-zero."""
    kind = np.dtype(dtype)
    near: np.ndarray = x.astype(kind).astype(np.float64)
    if rounding == "nearest":
        return near
    away = abs(near) > abs(x)
    return np.where(away, _below(abs(near), kind) * np.sign(x), near)


def _below(x: np.ndarray, kind: np.dtype) -> np.ndarray:
    """The number before each positive one."""
    bits = x.astype(kind)
    whole = bits.view(f"u{kind.itemsize}")
    found: np.ndarray = (whole - 1).astype(whole.dtype).view(kind).astype(np.float64)
    return found


def single(x: np.ndarray) -> np.ndarray:
    """x rounded to float32, in float64."""
    return x.astype(np.float32).astype(np.float64)
