"""RoPE as an operation."""

import numpy as np

from workbench.operations.operation import Operation, Setting
from workbench.reference.graph import Contract
from workbench.reference.rope import pair_of, partner_of, rope


def _rule(of: Setting) -> str:
    if of.sizes["d"] % 2:
        return f"dim must be even (dims are rotated in pairs); got {of.sizes['d']}"
    base = of.numbers["base"]
    return "" if 0 < base < np.inf else f"base must be above 0; got {base:g}"


def _stages(of: Setting) -> dict[str, str]:
    def stored(axes: str, convention: str, *names: str) -> dict[str, str]:
        """The stages as they are read: cast, where the convention says so."""
        cast = of.conventions[convention] != "float32" and of.dtype != "float32"
        return dict.fromkeys([*names, *([f"{name}_cast" for name in names] if cast else [])], axes)

    return {
        "exponent": "d", "inv_freq": "d", "angles": "bnd", **stored("bnd", "table_dtype", "cos", "sin"),
        "partner": "bhnd", **stored("bhnd", "product_dtype", "kept", "turned"), "out": "bhnd",
    }  # fmt: skip


def _contract(of: Setting) -> Contract:
    stored = {"table_dtype": ("cos_cast", "sin_cast"), "product_dtype": ("kept_cast", "turned_cast")}
    cast = [name for convention, names in stored.items() if of.conventions[convention] == "inputs" for name in names]
    # frequencies are made by exp or a power of 4 ulps, and a reciprocal of half an ulp
    return Contract(exp_ulps=4.5, stored=dict.fromkeys(cast, of.dtype))


def _drawn(of: Setting, rng: np.random.Generator, positions: np.ndarray) -> dict[str, np.ndarray]:
    return {"x": rng.standard_normal([of.sizes[axis] for axis in "bhnd"]), "positions": positions}


def _normal(of: Setting, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Positions on end, from a start of each batch's own below 100."""
    starts = rng.integers(0, 100, (of.sizes["b"], 1))
    return _drawn(of, rng, starts + np.arange(of.sizes["n"]))


def _far(of: Setting, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Positions at random, up to 131,071."""
    return _drawn(of, rng, rng.integers(0, 1 << 17, (of.sizes["b"], of.sizes["n"])))


def _cancelling(of: Setting, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Pairs that are turned onto an axis: in one dim of each the two products cancel."""
    drawn = _normal(of, rng)
    dim, pairs = of.sizes["d"], of.conventions["pairs"]
    pair = pair_of(dim, pairs)
    angles = drawn["positions"][:, None, :, None] * of.numbers["base"] ** (-2 * pair / dim)
    first = np.zeros(dim, dtype=bool)
    first[np.unique(pair, return_index=True)[1]] = True
    onto = np.where(first, drawn["x"], 0.0)
    return {**drawn, "x": onto * np.cos(angles) - partner_of(onto, pairs) * np.sin(angles)}


ROPE = Operation(
    name="rope",
    axes={"b": "batch", "h": "heads", "n": "tokens", "d": "dim"},
    sizes={"b": 2, "h": 2, "n": 64, "d": 64},
    inputs={"x": "bhnd", "positions": "bn"},
    stages=_stages,
    reference=rope,
    results=("out",),
    distributions={"normal": _normal, "far": _far, "cancelling": _cancelling},
    contract=_contract,
    numbers={"base": 10000.0},
    conventions={
        "pairs": ("halves", "interleaved"),
        "table_dtype": ("float32", "inputs"),
        "product_dtype": ("float32", "inputs"),
    },
    budgeted=lambda of: ("pairs", "table_dtype", "product_dtype"),
    rule=_rule,
    dtypes={"positions": "float32"},  # whole numbers, exact below 2^24
)
