"""The gated delta rule as an operation, by token and by chunk."""

import numpy as np

from workbench.operations.operation import Operation, Setting, Turn
from workbench.reference.delta_rule import gated_delta_rule, token
from workbench.reference.graph import Contract

#: most kernels take chunks of 64 tokens, which loses more where gates forget: sums of their logarithms are large
_BY_TOKEN = Turn(token, begins="initial_state", written="written", otherwise={"chunk": 64})


#: what is made in a chunk, and what is stored as products read it
_IN_CHUNKS = {
    "gates": "bhk", "overlap": "bhkc", "inverse": "bhkc", "u": "bhke", "w": "bhkd", "scores": "bhkc",
    "written": "bhke", "read": "bhke",
}  # fmt: skip
_STORED = ("inverse", "u", "w", "written")


def _stages(of: Setting) -> dict[str, str]:
    if of.conventions["chunk"] > 1:
        return {**_IN_CHUNKS, "out": "bhke", "state": "bhtde"}
    before = dict.fromkeys(("recalled", "scaled", "delta", "written"), "bhke")
    return {**before, "state": "bhtde", "read": "bhke", "out": "bhke"}


def _contract(of: Setting) -> Contract:
    narrow = of.conventions["operands"] == "inputs" and of.dtype != "float32" and of.conventions["chunk"] > 1
    if narrow:
        return Contract(operands=of.dtype, exp="base2", stored=dict.fromkeys(_STORED, of.dtype))
    return Contract(exp="base2")


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
    stages=_stages,
    reference=gated_delta_rule,
    contract=_contract,
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
    budgeted=lambda of: ("operands",) if of.conventions["chunk"] > 1 else (),
    tile=lambda of: int(of.conventions["chunk"]),
    dtypes={"gate": "float32", "beta": "float32", "initial_state": "float32"},
    walked="k",
)
