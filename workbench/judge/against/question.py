"""What a call asks, however it is spelled. kv heads repeated or not, rows of several heads packed beside each other,
hidden keys as a mask, as numbers or as padding: one question has one form.

A unit is what shares its keys: a kv head of a batch. Its rows are the queries of its heads, head by head.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from workbench.case.masks import attn_bias, spread, visible
from workbench.case.stages import INPUTS
from workbench.expectation.observed import Observed
from workbench.floats import to_float64, unit_roundoff


class Cut(NamedTuple):
    """Indices of what of a trace is asked after."""

    batches: np.ndarray
    heads: np.ndarray
    queries: np.ndarray


@dataclass(frozen=True, eq=False)
class Question:
    """One call in float64; arrays as [unit, row or key, dim] or [unit, row, key]."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    seen: np.ndarray  #: bool: keys that a row sees
    bias: np.ndarray | None  #: added to scaled scores; 0 where a key is hidden; None: nothing
    sinks: np.ndarray  #: [unit, row]; -inf is none
    scale: float
    softcap: float | None
    roundoff: float  #: unit roundoff of the coarsest of q, k and v
    batch: int
    queries: int  #: of a head
    keys: int  #: of the call, seen or not
    places: np.ndarray  #: [unit, key]: where a key stands in the call
    cut: "Cut | None" = None  #: what of its trace it is; None: all
    order: np.ndarray | None = None  #: of its rows, where it is another than the call's

    @property
    def asked(self) -> np.ndarray:
        """Rows that see a key, bool [unit, row]."""
        found: np.ndarray = np.any(self.seen, axis=-1)
        return found

    @property
    def read(self) -> np.ndarray:
        """Keys that a row sees, bool [unit, key]."""
        found: np.ndarray = np.any(self.seen, axis=1)
        return found

    @property
    def width(self) -> int:
        """Elements of q of one token."""
        return self.q.size // (self.batch * self.queries) if self.q.size else 1

    @property
    def group(self) -> int:
        """Heads that share a kv head."""
        return self.q.shape[1] // self.queries

    def scores(self) -> np.ndarray:
        """What the softmax reads, with -inf where a key is hidden."""
        scores = self.scale * (self.q @ self.k.swapaxes(1, 2))
        if self.softcap is not None:
            scores = self.softcap * np.tanh(scores / self.softcap)
        return np.where(self.seen, scores if self.bias is None else scores + self.bias, -np.inf)

    def weights(self) -> np.ndarray:
        """Of each key relative to the largest of its row."""
        scores = self.scores()
        top = scores.max(-1, initial=-np.inf, keepdims=True)
        return np.exp(scores - np.where(np.isfinite(top), top, 0.0))

    def rows(self, x: np.ndarray) -> np.ndarray:
        """A result [batch, head, query, dim] as [unit, row, dim] in float64."""
        found = to_float64(x if self.cut is None else x[np.ix_(*self.cut)]).reshape(*self.q.shape[:2], -1)
        return found if self.order is None else found[:, self.order]

    def split(self, units: int) -> "Question":
        """The same of so many units, of which several have the same keys."""
        times = units // len(self.q)

        def cut(x: Any) -> Any:
            return None if x is None else x.reshape(units, x.shape[1] // times, *x.shape[2:])

        def again(x: np.ndarray) -> np.ndarray:
            return np.repeat(x, times, axis=0)

        return replace(
            self, q=cut(self.q), k=again(self.k), v=again(self.v), seen=cut(self.seen), bias=cut(self.bias),
            sinks=cut(self.sinks), places=again(self.places),
        )  # fmt: skip

    def ordered(self, rows: np.ndarray) -> "Question":
        """The same with its rows in another order."""
        return replace(
            self, q=self.q[:, rows], seen=self.seen[:, rows], sinks=self.sinks[:, rows], order=rows,
            bias=None if self.bias is None else self.bias[:, rows],
        )  # fmt: skip

    def packed(self, keys: int) -> "Question":
        """The same with `keys` keys: those that are read, in their order, then keys that no row sees."""
        order = np.argsort(~self.read, axis=1, kind="stable")[:, :keys]
        short = keys - order.shape[1]

        def moved(x: Any, axis: int) -> Any:
            if x is None:
                return None
            index = order.reshape(len(x), *(order.shape[1] if i == axis else 1 for i in range(1, x.ndim)))
            taken = np.take_along_axis(x, index, axis)
            return np.pad(taken, [(0, short if i == axis else 0) for i in range(x.ndim)])

        return replace(
            self, k=moved(self.k, 1), v=moved(self.v, 1), seen=moved(self.seen, 2), bias=moved(self.bias, 2),
            places=moved(self.places, 1),
        )  # fmt: skip


@np.errstate(all="ignore")
def question(run: Observed, cut: Cut | None = None) -> Question:
    """What a run asks, or of a part of its rows."""
    case, given = run.case, run.trace.inputs
    batches, heads, queries = cut or map(np.arange, (case.batch, case.heads, case.seqlen_q))
    kv_heads = np.unique(heads // (case.heads // case.kv_heads))
    units, rows, keys = len(batches) * len(kv_heads), len(heads) // len(kv_heads) * len(queries), case.seqlen_k
    q, k, v = (to_float64(given[x]) for x in INPUTS)
    at = np.ix_(batches, heads, queries)
    added = attn_bias(case, given)
    bias, resolution = None, 0.0
    if added is not None:
        bias = to_float64(spread(case, added.bias)[at]).reshape(units, rows, keys)
        resolution = unit_roundoff(added.bias.dtype) if added.bias.dtype != np.float64 else unit_roundoff(np.float32)
    sinks = np.full(case.heads, -np.inf) if case.sink_logits is None else case.sink_logits.astype(np.float64)
    made = Question(
        q=q[at].reshape(units, rows, -1),
        k=k[np.ix_(batches, kv_heads)].reshape(units, keys, -1),
        v=v[np.ix_(batches, kv_heads)].reshape(units, keys, -1),
        seen=spread(case, visible(case, given))[at].reshape(units, rows, keys),
        bias=bias,
        sinks=np.broadcast_to(sinks[:, None], (case.batch, case.heads, case.seqlen_q))[at].reshape(units, rows),
        scale=case.scale, softcap=case.softcap,
        roundoff=max(unit_roundoff(given[x].dtype) for x in INPUTS),
        batch=len(batches), queries=len(queries), keys=keys,
        places=np.broadcast_to(np.arange(keys), (units, keys)),
        cut=cut,
    )  # fmt: skip
    return made if added is None else _hidden_by_number(made, resolution)


def _hidden_by_number(question: Question, resolution: float) -> Question:
    """Keys are hidden whose weight is 0 in float64; all of a row where what is added swallows its scores."""
    assert question.bias is not None
    plain = replace(question, bias=None).scores()
    largest = abs(np.where(question.seen, plain, 0.0)).max(-1, initial=0.0)
    least = question.bias.max(-1, initial=-np.inf, where=question.seen)
    swallowed = (least < 0) & (resolution * abs(least) > largest)
    seen = question.seen & (question.weights() > 0) & ~swallowed[..., None]
    return replace(question, seen=seen, bias=np.where(seen, question.bias, 0.0))
