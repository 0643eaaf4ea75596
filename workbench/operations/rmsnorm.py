"""RMSNorm as an operation: its values and budgets are of the plain function, the table is what causes edit."""

import numpy as np

from workbench.operations.operation import Operation, Setting
from workbench.operations.rmsnorm_causes import hypotheses
from workbench.reference.graph import Contract
from workbench.reference.rmsnorm import rmsnorm
from workbench.reference.stage import Stage, Table
from workbench.reference.steps.neutral import CastTo, Map, Sum, product


def _table(of: Setting) -> Table:
    dim, eps, offset = of.sizes["d"], of.numbers["eps"], of.conventions["weight_offset"]

    def inverse(squares: np.ndarray) -> np.ndarray:
        return np.asarray(1 / np.sqrt(squares / dim + eps))

    table: Table = {
        "squares": Stage("n", Sum("nd,nd->n", ("x", "x"))),
        "rstd": Stage("n", Map(("squares",), inverse, f"1 / sqrt({{0}} / {dim} + {eps:g})")),
        "normed": Stage("nd", product("x", "rstd")),
    }  # fmt: skip
    normed = "normed"
    if of.conventions["cast"] == "before weight" and of.dtype != "float32":
        table["normed_cast"] = Stage("nd", CastTo("normed", of.dtype))
        normed = "normed_cast"
    out = Map(
        (normed, "weight"), lambda x, w: x * (w + offset), f"{{0}} * ({{1}} + {offset})" if offset else "{0} * {1}"
    )
    return {**table, "out": Stage("nd", out)}


def _contract(of: Setting) -> Contract:
    before = of.conventions["cast"] == "before weight"
    return Contract(stored={"normed_cast": of.dtype} if before else {})


def _normal(of: Setting, rng: np.random.Generator) -> dict[str, np.ndarray]:
    sizes = of.sizes
    return {"x": rng.standard_normal((sizes["n"], sizes["d"])), "weight": 1 + 0.2 * rng.standard_normal(sizes["d"])}


def _near_eps(of: Setting, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Rows whose mean square goes from far below 1e-6 to far above."""
    drawn = _normal(of, rng)
    return {**drawn, "x": drawn["x"] * 10.0 ** np.linspace(-5, -1, of.sizes["n"])[:, None]}


def _outlier(of: Setting, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """One dim a thousand times as large as the others."""
    drawn = _normal(of, rng)
    return {**drawn, "x": drawn["x"] * np.where(np.arange(of.sizes["d"]) == of.sizes["d"] // 3, 1000.0, 1.0)}


RMSNORM = Operation(
    name="rmsnorm",
    axes={"n": "rows", "d": "dim"},
    sizes={"n": 64, "d": 512},
    inputs={"x": "nd", "weight": "d"},
    table=_table,
    results=("out", "rstd"),
    distributions={"normal": _normal, "near-eps": _near_eps, "outlier": _outlier},
    reference=rmsnorm,
    contract=_contract,
    numbers={"eps": 1e-6},
    hypotheses=hypotheses,
    conventions={"weight_offset": (0, 1), "cast": ("after weight", "before weight")},
)
