"""The smallest faults, in plain torch in the place of a case's kernel; written before they were run.

The right functions compute in float32 and store results in the inputs' dtype, as the naive references do. A fault
loses one term of one sum, one row, or the lower 16 bits of a decay or of a state.
"""

from dataclasses import dataclass, replace

import torch

from campaigns.real.call import Call, takes
from campaigns.real.case import FLOAT32, NARROW, Case
from campaigns.real.rows.fla import named

#: none: right; the last key's term of one sum of the token in the middle; the row of the last token is not written; the
#: decay of each token in bfloat16; the state after each token in bfloat16; only after each 64 tokens
NONE, TERM, ROW, DECAY, STATE, CHUNKS = "", "term", "row", "decay", "state", "chunks"
#: tokens of a chunk
CHUNK = 64
#: what kernels on 16-bit inputs usually do, and no more
USUAL = {"float32": "operands=float32"} | {dtype: f"operands={dtype}" for dtype in NARROW}


@dataclass(frozen=True)
class Fault:
    """A fault of one operation."""

    operation: str  #: whose inputs and references it has
    function: str
    inputs: tuple[str, ...]
    fault: str
    declares: bool  #: that its operands are in float32, as a kernel token by token has them; else what is usual

    @property
    def case(self) -> Case:
        """The case with this in the kernel's place; in float32 both contracts are one."""
        kernel = Call(f"campaigns.linear.faults:{self.function}", takes(*self.inputs), {"fault": self.fault})
        case = replace(named(self.operation), kernel=kernel, contract=FLOAT32 if self.declares else USUAL, rounds="")
        return replace(case, dtypes=tuple(x for x in case.dtypes if x in NARROW)) if self.declares else case


def recurrence(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor | None = None, beta: torch.Tensor | None = None,
    fault: str = NONE,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Linear attention token by token, with log gates g of a head or of each dimension of a key, and by the delta rule
    with step sizes beta; and the last state.
    """
    q_, k_, v_ = q.float() * q.shape[-1] ** -0.5, k.float(), v.float()
    T, rows = q.shape[1], list[torch.Tensor]()
    state = torch.zeros(*k.shape[:1], *k.shape[2:], v.shape[-1], device=v.device)
    for t in range(T):
        if g is not None:
            decay = _narrow(g[:, t].float().exp(), fault == DECAY)
            state = state * (decay[..., None] if g.ndim == k.ndim else decay[..., None, None])
        write = v_[:, t]
        if beta is not None:
            write = beta[:, t].float()[..., None] * (write - (state * k_[:, t, :, :, None]).sum(-2))
        state = state + k_[:, t, :, :, None] * write[..., None, :]
        state = _narrow(state, fault == STATE or (fault == CHUNKS and t % CHUNK == CHUNK - 1))
        terms = state * q_[:, t, :, :, None]
        rows.append((_without_a_term(terms, -2) if fault == TERM and t == T // 2 else terms).sum(-2))
    return _without_a_row(torch.stack(rows, 1), fault).to(v.dtype), state


def hgrn(x: torch.Tensor, g: torch.Tensor, fault: str = NONE) -> tuple[torch.Tensor, torch.Tensor]:
    """x and a state that decays, and the last state."""
    state, rows = torch.zeros_like(x[:, 0], dtype=torch.float32), list[torch.Tensor]()
    for t in range(x.shape[1]):
        decay = _narrow(g[:, t].float().exp(), fault == DECAY)
        state = _narrow(decay * state + x[:, t].float(), fault == STATE or (fault == CHUNKS and t % CHUNK == CHUNK - 1))
        rows.append(state)
    return _without_a_row(torch.stack(rows, 1), fault).to(x.dtype), state


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, fault: str = NONE) -> torch.Tensor:
    """Causal attention."""
    T = q.shape[1]
    scores = torch.einsum("bthd,bshd->bhts", q.float() * q.shape[-1] ** -0.5, k.float())
    seen = torch.ones(T, T, dtype=torch.bool, device=q.device).tril()
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    if fault == TERM:  # the value of the last key that the token in the middle sees
        kept = torch.ones(T, T, device=q.device)
        kept[T // 2, T // 2] = 0
        weights = weights * kept
    out = torch.einsum("bhts,bshd->bthd", _narrow(weights, fault == STATE), v.float())
    return _without_a_row(out, fault).to(v.dtype)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, fault: str = NONE) -> torch.Tensor:
    """x over its root mean square, times a weight; the mean's inverse root is what it keeps."""
    squares = x.float().square()
    if fault == TERM:
        middle = x.shape[1] // 2
        lost = torch.zeros_like(squares)
        lost[:, middle, -1] = squares[:, middle, -1]
        squares = squares - lost
    rstd = _narrow((squares.mean(-1, keepdim=True) + 1e-6).rsqrt(), fault == STATE)
    return _without_a_row(x.float() * rstd * weight.float(), fault).to(x.dtype)


def cumsum(s: torch.Tensor, fault: str = NONE) -> torch.Tensor:
    """Sums of a token and all behind it."""
    total, rows, T = torch.zeros_like(s[:, 0], dtype=torch.float32), list[torch.Tensor](), s.shape[1]
    for t in reversed(range(T)):
        total = _narrow(total + s[:, t].float(), fault == STATE)
        rows.insert(0, total - s[:, T - 1].float() if fault == TERM and t == T // 2 else total)
    return _without_a_row(torch.stack(rows, 1), fault).to(s.dtype)


def _narrow(x: torch.Tensor, rounds: bool) -> torch.Tensor:
    return x.bfloat16().float() if rounds else x


def _without_a_term(terms: torch.Tensor, axis: int) -> torch.Tensor:
    """The terms of sums along an axis, of which the last sum of the first head lacks its last one."""
    kept = torch.ones_like(terms)
    kept[0, 0].select(axis, -1)[..., -1] = 0
    return terms * kept


def _without_a_row(out: torch.Tensor, fault: str) -> torch.Tensor:
    """Results whose last token is left at 0 by the fault."""
    if fault != ROW:
        return out
    return torch.cat([out[:, :-1], torch.zeros_like(out[:, -1:])], 1)


#: operation -> a function, its inputs and its faults
_OF: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "linear attention, tokens": ("recurrence", ("q", "k", "v"), (NONE, TERM, ROW, STATE, CHUNKS)),
    "simple GLA, tokens": ("recurrence", ("q", "k", "v", "g"), (NONE, TERM, ROW, DECAY, STATE, CHUNKS)),
    "GLA, tokens": ("recurrence", ("q", "k", "v", "g"), (NONE, TERM, ROW, DECAY, STATE, CHUNKS)),
    "delta rule, tokens": ("recurrence", ("q", "k", "v", "beta"), (NONE, TERM, ROW, STATE, CHUNKS)),
    "gated delta rule, tokens": ("recurrence", ("q", "k", "v", "g", "beta"), (NONE, TERM, ROW, DECAY, STATE, CHUNKS)),
    "KDA, tokens": ("recurrence", ("q", "k", "v", "g", "beta"), (NONE, TERM, ROW, DECAY, STATE, CHUNKS)),
    "HGRN, tokens": ("hgrn", ("x", "g"), (NONE, ROW, DECAY, STATE, CHUNKS)),
    "attention": ("attention", ("q", "k", "v"), (NONE, TERM, ROW)),
    "RMS norm": ("rms_norm", ("x", "weight"), (NONE, TERM, ROW, STATE)),
    "cumulative sum, reversed": ("cumsum", ("s",), (NONE, TERM, ROW, STATE)),
}
FAULTS = tuple(
    Fault(operation, function, inputs, fault, declares)
    for declares in (False, True)
    for operation, (function, inputs, several) in _OF.items()
    for fault in several
)
