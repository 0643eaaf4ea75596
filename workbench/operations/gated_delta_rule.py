"""The gated delta rule, one token after the other: S_t = a_t (I - b_t k_t k_t^T) S_(t-1) + b_t k_t v_t^T, out_t = scale
S_t^T q_t, with a gate a and a step b of each token and head (Yang, Kautz and Hatamizadeh 2024, arXiv 2412.06464). In
chunks of tokens it is in `chunked_delta_rule`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.operations.chunked_delta_rule import chunked
from workbench.operations.operation import Operation, Setting
from workbench.reference.bound import EXACT, Bound
from workbench.reference.stage import Bounded, Ref, Stage, Table
from workbench.reference.steps.neutral import Sum, difference, product, scaled

#: stages between a state and what is written into the next, in order
_BETWEEN = ("recalled", "scaled", "delta", "written")


def _of_column(x: Any) -> Any:
    """The 2-norm of the error of each column of a state, which is what all elements of the column have as a bound."""
    return x if isinstance(x, float) else x.max(axis=-2)


@dataclass(frozen=True)
class Read:
    """A row of each token times a state: a sum over d, whose state may be off by columns of a known norm."""

    row: Ref
    state: Ref

    def _sum(self) -> Sum:
        return Sum("bhkd,bhde->bhke", (self.row, self.state))

    def value(self, at: Any) -> np.ndarray:
        return self._sum().value(at)

    control = value

    def bound(self, at: Any) -> Bounded:
        """The sum's own, and |row| times the error of each column (Cauchy and Schwarz)."""
        error = at.error(self.state)
        row, state = at(self.row), at(self.state)
        arithmetic, terms = at.arithmetic(""), row.shape[-1]
        size = np.einsum("bhkd,bhde->bhke", abs(row), abs(state))
        own, random = arithmetic.sum(terms) * size, arithmetic.unit * np.sqrt(terms) * size
        if error is EXACT:
            return Bounded(Bound(own, random, 0.0 * own))
        length = np.sqrt(np.sum(row * row, axis=-1, keepdims=True))
        moved = [length * (x if isinstance(x, float) else _of_column(x)[..., None, :]) for x in error]
        return Bounded(Bound(own + moved[0], np.sqrt(random**2 + moved[1] ** 2), moved[2] + 0.0 * own))

    words = "sum over d of {row} * {state}"


@dataclass(frozen=True)
class Update:
    """gate * state + k written^T. Its errors go through the signed transition gate (I - beta k k^T), whose norm is
    gate max(1, |1 - beta |k|^2|): gates of at most 1 forget them, where absolute values would let them explode.
    """

    keys: Ref
    written: Ref
    gate: Ref
    beta: Ref
    previous: Ref

    def value(self, at: Any) -> np.ndarray:
        made = np.einsum("bhkd,bhke->bhde", at(self.keys), at(self.written))
        return np.asarray(at(self.gate)[..., None] * at(self.previous) + made)

    control = value

    def bound(self, at: Any) -> Bounded:
        """What is added by this token's roundings as norms of columns, and what was off before times the transition's
        norm. Where nothing between state and `written` was dumped, both errors of the state are one, of one sign.
        """
        arithmetic = at.arithmetic("")
        k, gate, beta = at(self.keys)[:, :, 0], at(self.gate)[..., None], at(self.beta)[..., None]
        before, of_before = at(self.previous), at.error(self.previous)
        written = at(self.written)[:, :, 0]
        square, length = np.sum(k * k, axis=-1)[..., None, None], np.sqrt(np.sum(k * k, axis=-1))[..., None]
        size = abs(k)[..., None] * abs(written)[..., None, :] + abs(gate * before)
        local = [_norm(x * size) for x in (arithmetic.sum(3), arithmetic.unit * np.sqrt(3.0))]
        if any(at.given(name) for name in _BETWEEN):
            norm, error = gate, at.error(self.written)
            of_written: list[Any] = [x if isinstance(x, float) else x[:, :, 0] for x in error]
        else:
            norm, of_written = gate * np.maximum(1.0, abs(1 - beta * square)), list(self._of_recall(at))
        moved = [length * x for x in of_written]
        worst, random = local[0] + moved[0], np.sqrt(local[1] ** 2 + moved[1] ** 2)
        common = 0.0 * worst + moved[2]
        if of_before is not EXACT:
            norm = norm[..., 0]
            last = [x if isinstance(x, float) else _of_column(x) for x in of_before]
            worst = worst + norm * last[0]
            random, common = np.sqrt(random**2 + (norm * last[1]) ** 2), common + norm * last[2]
        like = 0.0 * size
        return Bounded(Bound(*(x[..., None, :] + like for x in (worst, random, common))))

    def _of_recall(self, at: Any) -> Iterator[Any]:
        """The error of what is written beyond that of the state: of a sum over d, products and a difference."""
        arithmetic = at.arithmetic("")
        k, before = at(self.keys)[:, :, 0], at(self.previous)
        gate, beta = at(self.gate), at(self.beta)
        size = np.einsum("bhd,bhde->bhe", abs(k), abs(before))
        recalled = np.einsum("bhd,bhde->bhe", k, before)
        delta = at("v")[:, :, 0] - gate * recalled
        of_sum, unit = (arithmetic.sum(k.shape[-1]), np.sqrt(k.shape[-1])), arithmetic.unit
        rest = abs(gate * recalled) * 2 + abs(delta) * 2
        yield abs(beta) * (abs(gate) * of_sum[0] * size + arithmetic.sum(2) * rest)
        yield abs(beta) * unit * np.sqrt((abs(gate) * of_sum[1] * size) ** 2 + rest**2)
        yield 0.0

    words = "{gate} * {previous} + {keys} {written}^T"


def _norm(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.sqrt(np.sum(x * x, axis=-2)))


def _recurrent(of: Setting) -> Table:
    return {
        "recalled": Stage("bhke", Read("k", "-state")),
        "scaled": Stage("bhke", product("gate", "recalled")),
        "delta": Stage("bhke", difference("v", "scaled")),
        "written": Stage("bhke", product("beta", "delta")),
        "state": Stage("bhtde", Update("k", "written", "gate", "beta", "-state"), initial=0.0, begins="initial_state"),
        "read": Stage("bhke", Read("q", "state")),
        "out": Stage("bhke", scaled("read", of.numbers["scale"])),
    }


def _drawn(of: Setting, rng: np.random.Generator, low: float, high: float) -> dict[str, np.ndarray]:
    b, h, n, d, e = (of.sizes[axis] for axis in "bhkde")
    q, k = rng.standard_normal((2, b, h, n, d))
    k = k / np.sqrt(np.sum(k * k, axis=-1, keepdims=True))
    return {
        "q": q,
        "k": k,
        "v": rng.standard_normal((b, h, n, e)),
        "gate": rng.uniform(low, high, (b, h, n)),
        "beta": rng.uniform(0, 1, (b, h, n)),
        "initial_state": 0.1 * rng.standard_normal((b, h, d, e)),
    }


GATED_DELTA_RULE = Operation(
    name="gated_delta_rule",
    axes={"b": "batch", "h": "heads", "k": "tokens", "d": "dim", "e": "dim_v"},
    sizes={"b": 1, "h": 2, "k": 64, "d": 32, "e": 32},
    inputs={"q": "bhkd", "k": "bhkd", "v": "bhke", "gate": "bhk", "beta": "bhk", "initial_state": "bhde"},
    table=lambda of: _recurrent(of) if of.conventions["chunk"] == 1 else chunked(of),
    results=("out", "state"),
    distributions={
        "normal": lambda of, rng: _drawn(of, rng, 0.95, 1.0),
        "forgetful": lambda of, rng: _drawn(of, rng, 0.0, 1.0),
        "never-forgets": lambda of, rng: _drawn(of, rng, 1.0, 1.0),
    },
    numbers={"scale": 1.0},
    # tokens that are computed at once; and what products read of results in a chunk, in the inputs' dtype or not
    conventions={"chunk": (1, 16, 32, 64, 128, 256), "operands": ("float32", "inputs")},
    tile=lambda of: int(of.conventions["chunk"]),
    dtypes={"gate": "float32", "beta": "float32", "initial_state": "float32"},
    walked="k",
)
