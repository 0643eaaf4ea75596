"""What a function computes, as far as it was measured: attention in float64 with every measured part put in.

A finding is a part of it: a map of heads or elements, weights that keys have before any score, what becomes of a score,
steps along the keys, the denominator. A finding is so where this, with it, predicts runs that nobody has seen.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from workbench.floats import DTYPES
from workbench.readings.codebook import Scale, stood_for
from workbench.readings.denominator import Denominator
from workbench.readings.known import Step
from workbench.readings.parts import Kernel, Parts
from workbench.readings.target import Answer, Target

#: of q, k and v as they lie in memory
Factors = Callable[[Mapping[str, np.ndarray]], np.ndarray]


@dataclass(frozen=True, eq=False)
class Model:
    """Attention in float64, as `predicted` computes it."""

    scale: float
    respond: Callable[[np.ndarray], np.ndarray]  #: of scaled scores: softcap, score_mod, or what was measured
    start: np.ndarray  #: [b, h, q, k]: ln of what a key weighs where all scores are 0; -inf where hidden
    kept: np.ndarray | None  #: what dropout leaves of a weight, [b, h, q, k]
    heads: dict[str, np.ndarray]  #: k, v -> [b, h]: batch * kv_heads + kv head
    #: q, k, v -> index row * dims + dim of the element at each place, -1 for none; of q and k also [b, h, row, dim] of
    #: the index in the whole of it
    sources: dict[str, np.ndarray]
    #: q, k, v -> what each code is decoded to, before its scale and with no zero point; of inputs that are codes
    tables: dict[str, np.ndarray] = field(default_factory=dict)
    scales: dict[str, Scale] = field(default_factory=dict)  #: q, k, v -> with what it is multiplied, where not its own
    rescaled: Mapping[str, Factors] = field(default_factory=dict)  #: k, v -> what its elements are multiplied with
    fixed: np.ndarray | None = None  #: bool [b, h, q, k]: keys whose score is `start`, whatever q and k are
    factor: np.ndarray | float = 1.0  #: of scores, [b, h, 1, 1] where heads have their own
    operands: str = "qk"  #: whose products scores are; "kq": of query j and key i
    over: int = 0  #: dims that are read behind the end of each row of Q and K
    by_query: bool = False  #: maxima and sums are over the queries, not the keys
    step: Step | None = None
    flush: float = -np.inf  #: scores farther below their row's maximum weigh nothing
    denominator: Denominator | None = None
    #: [q, q], row-mixing matrix M: row i gets sum_j M[i, j] of the unnormalised rows j
    mixed: np.ndarray | None = None
    moved: np.ndarray | None = None  #: [b, h, q, k]: by the values of which key a key's weight is multiplied
    added: np.ndarray | float = 0.0  #: to out, whatever V is
    kernel: Kernel | None = None  #: a loop, merge or cast in place of the formula
    place: np.ndarray | None = None  #: [b, h, q]: flat index of the row whose result stands there; -1 for none
    columns: np.ndarray | None = None  #: [q, d]: which dim of a result stands at each dim of out; -1 for none
    lost: np.ndarray | None = None  #: [b, h, q]: rows that are not finite, whatever V is

    def memory(self, answer: Answer) -> dict[str, np.ndarray]:
        """q, k and v of a run, and what codes stand for as the function decodes them."""
        run, other = answer.run, {*self.tables, *self.scales} - {*answer.chosen}
        memory = answer.memory | {
            name: stood_for(run, name, self.tables.get(name), self.scales[name](run) if name in self.scales else None)
            for name in other
        }
        return memory | {name: memory[name] * one(answer.memory) for name, one in self.rescaled.items()}

    def read(self, name: str, x: np.ndarray) -> np.ndarray:
        """An input [b, heads, rows, dims] as the function reads it, with query heads."""
        if self.over and name != "v":
            at = np.arange(x.size // x.shape[-1])[:, None] * x.shape[-1] + np.arange(x.shape[-1] + self.over)
            x = x.reshape(-1)[at % x.size].reshape(*x.shape[:-1], -1)
        if name in self.sources:
            index = self.sources[name]
            if index.ndim == 4:  # of the whole of it, for each query head
                return np.where(index >= 0, x.reshape(-1)[np.maximum(index, 0)], 0.0)
            flat = x.reshape(*x.shape[:2], -1)
            x = np.where(index >= 0, flat[..., np.maximum(index, 0)], 0.0)
        if name in self.heads:
            x = x.reshape(-1, *x.shape[2:])[self.heads[name]]
        return x

    def placed(self, name: str, x: np.ndarray) -> np.ndarray:
        """What must stand in an input for the function to read x, [.., rows, dims], there; 0 where it reads nothing."""
        index = self.sources.get(name)
        if index is None or index.ndim != 2:
            return x
        flat = x.reshape(*x.shape[:-2], -1)
        found = np.zeros_like(flat)
        told = index.reshape(-1) >= 0
        found[..., index.reshape(-1)[told]] = flat[..., told]
        return found.reshape(x.shape)

    @property
    def v_dims(self) -> np.ndarray | None:
        """The dims of V that are read; None where all are."""
        if "v" not in self.sources:
            return None
        index = self.sources["v"]
        dims = np.unique(index[index >= 0] % index.shape[-1])
        return dims if 0 < len(dims) < index.shape[-1] else None

    def read_placed(self, v: np.ndarray) -> np.ndarray:
        """[k, d] of V that is alike in all heads, as it is read."""
        if "v" not in self.sources:
            return v
        index = self.sources["v"]
        found: np.ndarray = np.where(index >= 0, v.reshape(-1)[np.maximum(index, 0) % v.size], 0.0)
        return found

    def scores(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        """Scores of a run with what keys weigh by themselves, [b, h, q, k]."""
        of = {"q": self.read("q", inputs["q"]), "k": self.read("k", inputs["k"])}
        left, right_ = (of[name] for name in self.operands)
        return self.of_raw(left @ right_.swapaxes(-1, -2) * self.scale)

    def of_raw(self, raw: np.ndarray) -> np.ndarray:
        """The same of scaled dot products."""
        found = self.respond(raw * self.factor)
        if self.fixed is not None:
            found = np.where(self.fixed, 0.0, found)
        # of a hidden key nothing counts, not even NaN
        return np.where(self.start == -np.inf, -np.inf, found + self.start)

    def weights(self, scores: np.ndarray, sinks: np.ndarray | None) -> np.ndarray:
        """What each value is multiplied by, [b, h, q, k]; sinks [1, h, 1]."""
        if self.by_query:
            shifted = np.exp(scores - scores.max(-2, keepdims=True))
            return np.nan_to_num(shifted / shifted.sum(-2, keepdims=True))
        with np.errstate(all="ignore"):
            top = scores.max(-1, keepdims=True)
            top = np.where(np.isfinite(top), top, 0.0)
            plain = np.where(scores - top < self.flush, 0.0, np.exp(scores - top))
            mine = plain if self.step is None else plain * np.exp(self.step.of(scores))
            total = self.total(scores, plain, sinks)
            if self.mixed is not None:
                mine = self.mixed @ mine
            found = np.where(total[..., None] == 0, 0.0, mine / total[..., None])
        found = found if self.kept is None else found * self.kept
        if self.moved is None:
            return found
        b, h, q, _ = np.ogrid[tuple(map(slice, found.shape))]
        there = np.zeros_like(found)
        np.add.at(there, (b, h, q, self.moved), found)
        return there

    def total(self, scores: np.ndarray, plain: np.ndarray, sinks: np.ndarray | None) -> np.ndarray:
        """What a row is divided by, [b, h, q], in units of e^(row maximum); plain: e^(s - maximum)."""
        if self.denominator is not None:
            return self.denominator(scores, plain, sinks)
        whole = self.step is None or not self.step.in_sum
        found: np.ndarray = (plain if whole or self.step is None else plain * np.exp(self.step.of(scores))).sum(-1)
        top = scores.max(-1)
        return found if sinks is None else found + np.exp(sinks - np.where(np.isfinite(top), top, 0.0))

    def exponentials(self, answer: Answer) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Scores of a run, their maxima [b, h, q] and e^(s - maximum)."""
        scores = self.scores(self.memory(answer))
        with np.errstate(all="ignore"):
            top = scores.max(-1)
            plain = np.exp(scores - np.where(np.isfinite(top), top, 0.0)[..., None])
            return scores, top, np.where(scores - top[..., None] < self.flush, 0.0, plain)

    def lse(self, answer: Answer) -> np.ndarray:
        """The logarithm of what out of a run was divided by, [b, h, q] in natural units."""
        if self.kernel is not None:
            found = self.kernel(self.parts(answer))[1]
        else:
            scores, top, plain = self.exponentials(answer)
            with np.errstate(all="ignore"):
                found = top + np.log(self.total(scores, plain, answer.sinks))
        return found if self.place is None else np.where(self.place >= 0, found.reshape(-1)[self.place], 0.0)

    def of_run(self, answer: Answer) -> np.ndarray:
        """The weights of a run."""
        return self.weights(self.scores(self.memory(answer)), answer.sinks)

    def values(self, answer: Answer) -> np.ndarray:
        """What is weighted, [b, h, k, d]; 0 where no row sees it."""
        found = self.read("v", self.memory(answer)["v"])
        if np.isfinite(found).all():
            return found
        seen = np.isfinite(self.start).any(2)
        return np.where(seen[..., None], found, 0.0)

    def predicted(self, answer: Answer) -> np.ndarray:
        """`out` of a run."""
        if self.kernel is not None:
            found = self.kernel(self.parts(answer))[0]
        else:
            found = self.of_run(answer) @ self.values(answer)
        if self.columns is not None:
            taken = np.take_along_axis(found, np.maximum(self.columns, 0)[None, None], -1)
            found = np.where(self.columns >= 0, taken, 0.0)
        if self.place is not None:
            flat = found.reshape(-1, found.shape[-1])
            found = np.where(self.place[..., None] >= 0, flat[np.maximum(self.place, 0)], 0.0)
        found = found + self.added
        return found if self.lost is None else np.where(self.lost[..., None], np.nan, found)

    def parts(self, answer: Answer) -> Parts:
        """What a kernel has of a run."""
        case = answer.trace.case
        q, k = (self.read(name, self.memory(answer)[name]) for name in self.operands)
        return Parts(
            q, k, self.values(answer), self.scale, self.factor, self.respond, self.start, self.fixed, answer.sinks,
            case.kv_heads, case.dtype,
        )  # fmt: skip

    def rounding(self, answer: Answer) -> float:
        """The root of the mean square of what casts of weights and of out to 16 bits make of a prediction."""
        dtype = DTYPES[answer.trace.case.dtype]
        if answer.trace.case.dtype == "float32":
            return 0.0
        weights, values = self.of_run(answer), self.values(answer)
        most = np.maximum(weights.max(-1, keepdims=True), 1e-300)
        whole = weights @ values
        cast = ((weights / most).astype(dtype).astype(np.float64) * most @ values).astype(dtype).astype(np.float64)
        off = (cast - whole)[np.isfinite(cast)]
        return float(np.sqrt(np.mean(off**2))) if off.size else 0.0

    def result(self, out: np.ndarray) -> np.ndarray:
        """What a run computed, at the rows that it is of: without what is added, NaN of rows that stand nowhere."""
        out = out - self.added
        if self.columns is not None:
            stored = out
            out = np.full(out.shape, np.nan)
            row, column = np.nonzero(self.columns >= 0)
            out[:, :, row, self.columns[row, column]] = stored[:, :, row, column]
        if self.place is None:
            return out
        found = np.full((out.shape[0] * out.shape[1] * out.shape[2], out.shape[3]), np.nan)
        told = self.place >= 0
        found[self.place[told]] = out[told]
        return found.reshape(out.shape)

    def but(self, **changes: Any) -> "Model":
        """With some parts as they were measured."""
        return replace(self, **changes)


def right(target: Target) -> Model:
    """What the function should compute, as its case says."""
    p, case = target.natural.problem, target.case
    start = np.where(np.asarray(p.inputs["mask"]), 0.0 if p.attn_bias is None else p.attn_bias, -np.inf)
    of_queries = np.arange(case.heads) // (case.heads // case.kv_heads)
    heads = np.arange(case.batch)[:, None] * case.kv_heads + of_queries
    kept = p.inputs.get("dropout_mask")
    cap = case.softcap

    def respond(x: np.ndarray) -> np.ndarray:
        x = x if not cap else cap * np.tanh(x / cap)
        return x if p.score_mod is None else p.score_mod(x)

    return Model(
        scale=case.scale,
        respond=respond,
        start=np.broadcast_to(start, (case.batch, case.heads, case.seqlen_q, case.seqlen_k)),
        kept=None if kept is None or case.dropout_p is None else np.asarray(kept) / (1 - case.dropout_p),
        heads={"k": heads, "v": heads},
        sources={},
    )
