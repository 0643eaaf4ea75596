"""The gated delta rule, one token after the other: S_t = a_t (I - b_t k_t k_t^T) S_(t-1) + b_t k_t v_t^T, out_t = scale
S_t^T q_t, with a gate a and a step b of each token and head (Yang, Kautz and Hatamizadeh 2024, arXiv 2412.06464). In
chunks of tokens it is in `chunked_delta_rule`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.operations.chunked_delta_rule import chunked
from workbench.operations.operation import Operation, Setting, Turn
from workbench.reference.delta_rule import token
from workbench.reference.stage import Ref, Stage, Table
from workbench.reference.steps.neutral import Sum, difference, product, scaled

#: most kernels take chunks of 64 tokens, which loses more where gates forget: sums of their logarithms are large
_BY_TOKEN = Turn(token, begins="initial_state", written="written", otherwise={"chunk": 64})


@dataclass(frozen=True)
class Update:
    """gate * state + k written^T."""

    keys: Ref
    written: Ref
    gate: Ref
    previous: Ref

    def value(self, at: Any) -> np.ndarray:
        made = np.einsum("bhkd,bhke->bhde", at(self.keys), at(self.written))
        return np.asarray(at(self.gate)[..., None] * at(self.previous) + made)

    words = "{gate} * {previous} + {keys} {written}^T"


def _recurrent(of: Setting) -> Table:
    return {
        "recalled": Stage("bhke", Sum("bhkd,bhde->bhke", ("k", "-state"))),
        "scaled": Stage("bhke", product("gate", "recalled")),
        "delta": Stage("bhke", difference("v", "scaled")),
        "written": Stage("bhke", product("beta", "delta")),
        "state": Stage("bhtde", Update("k", "written", "gate", "-state"), initial=0.0, begins="initial_state"),
        "read": Stage("bhke", Sum("bhkd,bhde->bhke", ("q", "state"))),
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
    turn=lambda of: _BY_TOKEN if of.conventions["chunk"] == 1 else None,
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
