"""RMSNorm as an operation."""

import numpy as np

from workbench.operations.operation import Operation, Setting
from workbench.reference.graph import Contract
from workbench.reference.rmsnorm import rmsnorm


def _stages(of: Setting) -> dict[str, str]:
    cast = of.conventions["cast"] == "before weight" and of.dtype != "float32"
    return {"squares": "n", "rstd": "n", "normed": "nd", **({"normed_cast": "nd"} if cast else {}), "out": "nd"}


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
    stages=_stages,
    reference=rmsnorm,
    results=("out", "rstd"),
    distributions={"normal": _normal, "near-eps": _near_eps, "outlier": _outlier},
    contract=_contract,
    numbers={"eps": 1e-6},
    budgeted=lambda of: ("weight_offset", "cast"),
    conventions={"weight_offset": (0, 1), "cast": ("after weight", "before weight")},
)
