"""The backward pass of attention, as FlashAttention-2 computes it (Dao 2023, arXiv 2307.08691, algorithm 2): P again
from lse, delta = rowsum(dO * O), dP = dO V^T, dS = P * (dP - delta), and from these dQ, dK and dV.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.floats import DTYPES, unit_roundoff
from workbench.operations.operation import Operation, Setting, Sizes
from workbench.reference.bound import EXACT, Bound
from workbench.reference.dense import attention
from workbench.reference.stage import Bounded, Ref, Stage, Table
from workbench.reference.steps.neutral import CastTo, Map, Sum, difference, product, scaled


@dataclass(frozen=True)
class OfGroups:
    """What each query head reads of its kv head, [b, h, k, d]."""

    of: Ref
    group: int  #: query heads of a kv head

    def value(self, at: Any) -> np.ndarray:
        return np.repeat(at(self.of), self.group, axis=1)

    words = "{of} of each head's group"


@dataclass(frozen=True)
class GroupSum:
    """The gradients of a kv head: those of its query heads added up, [b, g, k, d]."""

    of: Ref
    group: int

    def value(self, at: Any) -> np.ndarray:
        return self._added(at(self.of))

    def _added(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(x.reshape(x.shape[0], -1, self.group, *x.shape[2:]).sum(2))

    def bound(self, at: Any) -> Bounded:
        """A sum of so many numbers, none of which is exact where nobody saw them."""
        x, error = at(self.of), at.error(self.of)
        size = self._added(abs(x))
        arithmetic, n = at.arithmetic(""), self.group - 1
        own = [arithmetic.sum(n) * size, arithmetic.unit * np.sqrt(n) * size, 0.0 * size]
        if error is not EXACT:
            worst, random, common = (0.0 * abs(x) + part for part in error)
            own = [own[0] + self._added(worst), np.sqrt(own[1] ** 2 + self._added(random**2)), self._added(common)]
        return Bounded(Bound(*own))

    words = "sum of {of} over the query heads of a group"


def seen(of: Setting) -> np.ndarray:
    """Which keys each query sees, bool [q, k]; causal from the bottom right."""
    rows, keys = of.sizes["q"], of.sizes["k"]
    return np.tri(rows, keys, keys - rows, dtype=bool) if of.numbers["causal"] else np.ones((rows, keys), bool)


def _table(of: Setting) -> Table:
    scale, visible, group = of.numbers["scale"], seen(of), of.sizes["h"] // of.sizes["g"]
    narrow = of.dtype != "float32"

    def weight(shifted: np.ndarray) -> np.ndarray:
        return np.where(visible, np.exp(np.where(visible, shifted, 0.0)), 0.0)

    def cast(name: str, axes: str = "bhqk") -> Table:
        """What is stored, or meets the next product, in 16 bits."""
        if not narrow or of.conventions[f"{name}_dtype"] == "float32":
            return {}
        return {f"{name}_cast": Stage(axes, CastTo(name, of.dtype))}

    casts = {name: cast(name) for name in ("qk", "probs", "dprobs", "dscores")}
    casts |= {"dk_sum": cast("dk_sum", "bhkd"), "dv_sum": cast("dv_sum", "bhke")}
    qk, probs, dprobs, dscores, dk, dv = (next(iter(made), name) for name, made in casts.items())
    weights = probs if of.conventions["dscores_of"] == "cast probs" else "probs"
    of_out = Sum("bhqe,bhqe->bhq", ("dout", "out"))
    delta = of_out if of.conventions["delta"] == "out" else Sum("bhqk,bhqk->bhq", (weights, dprobs))
    return {
        "k_rows": Stage("bhkd", OfGroups("k", group), dumped=False),
        "v_rows": Stage("bhke", OfGroups("v", group), dumped=False),
        "qk": Stage("bhqk", Sum("bhqd,bhkd->bhqk", ("q", "k_rows"))),
        **casts["qk"],
        "scores": Stage("bhqk", scaled(qk, scale, ulps=1.0)),
        # in base 2 a product with log2(e) more, of a constant that is rounded
        "shifted": Stage("bhqk", Map(
            ("scores", "lse"), lambda s, lse: np.where(visible, s - np.where(np.isfinite(lse), lse, 0.0), 0.0),
            (lambda s, lse: visible, lambda s, lse: visible), "{0} - {1}", ulps=2.0,
        ), dumped=False),
        "probs": Stage("bhqk", Map(("shifted",), weight, (weight,), "e^({0}), 0 where hidden", ulps=2.0)),
        **casts["probs"],
        "dprobs": Stage("bhqk", Sum("bhqe,bhke->bhqk", ("dout", "v_rows"))),
        **casts["dprobs"],
        "delta": Stage("bhq", delta),
        "centred": Stage("bhqk", difference(dprobs, "delta"), dumped=False),
        "dscores": Stage("bhqk", product(weights, "centred")),
        **casts["dscores"],
        "dq_sum": Stage("bhqd", Sum("bhqk,bhkd->bhqd", (dscores, "k_rows")), dumped=False),
        "dk_sum": Stage("bhkd", Sum("bhqk,bhqd->bhkd", (dscores, "q")), dumped=False),
        **casts["dk_sum"],
        "dk_group": Stage("bgkd", GroupSum(dk, group), dumped=False),
        "dv_sum": Stage("bhke", Sum("bhqk,bhqe->bhke", (probs, "dout")), dumped=False),
        **casts["dv_sum"],
        "dq": Stage("bhqd", scaled("dq_sum", scale, ulps=1.0)),
        "dk": Stage("bgkd", scaled("dk_group", scale, ulps=1.0)),
        "dv": Stage("bgke", GroupSum(dv, group)),
    }  # fmt: skip


def _forward(of: Setting, drawn: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """With out and lse as a right forward pass of the rounded inputs stores them; 0 and -inf of a row without keys."""
    q, k, v = (drawn[name].astype(DTYPES[of.dtype]) for name in "qkv")
    return {**drawn, **attention(q, k, v, scale=of.numbers["scale"], mask=seen(of))}


def _normal(of: Setting, rng: np.random.Generator) -> dict[str, np.ndarray]:
    n = of.sizes
    shapes = {"q": "bhqd", "k": "bgkd", "v": "bgke", "dout": "bhqe"}
    return _forward(of, {name: rng.standard_normal([n[axis] for axis in axes]) for name, axes in shapes.items()})


def _one_hot(of: Setting, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Scores of standard deviation 8, so that nearly all the weight of a row is on one key: dS is near 0 by
    cancellation.
    """
    drawn = _normal(of, rng)
    return _forward(of, {**drawn, "q": 8 * drawn["q"]})


def _along_out(of: Setting, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """dout along out, so that delta and dP are as large as they can be."""
    drawn = _normal(of, rng)
    return {**drawn, "dout": 4 * drawn["out"] + 0.1 * drawn["dout"]}


def _mean_of_4(of: Setting, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """K with a mean of 4, as activations of models have: sums of dS times K cancel, since dS adds up to 0."""
    drawn = _normal(of, rng)
    return _forward(of, {**drawn, "k": 4 + drawn["k"]})


def _free(of: Setting) -> dict[str, np.ndarray]:
    """What hidden keys have before P, which is 0 there."""
    return dict.fromkeys(("qk", "qk_cast", "scores", "dprobs", "dprobs_cast"), ~seen(of))


def _own_lse(of: Setting, lse: np.ndarray) -> np.ndarray:
    """How far an lse in float32 may be off: a sum of exps of 2 ulps each, of arguments up to 16; its logarithm, and a
    change of its base.
    """
    size = np.where(np.isfinite(lse), abs(lse), 0.0)
    return np.asarray(unit_roundoff("float32") * (of.sizes["k"] + 32 + 4 * size))


def _scale(sizes: Sizes) -> float:
    return float(sizes["d"] ** -0.5)


ATTENTION_BACKWARD = Operation(
    name="attention_backward",
    axes={"b": "batch", "h": "heads", "g": "kv_heads", "q": "queries", "k": "keys", "d": "dim", "e": "dim_v"},
    sizes={"b": 1, "h": 2, "g": 2, "q": 64, "k": 64, "d": 32, "e": 32},
    inputs={"q": "bhqd", "k": "bgkd", "v": "bgke", "out": "bhqe", "lse": "bhq", "dout": "bhqe"},
    table=_table,
    results=("dq", "dk", "dv"),
    distributions={"normal": _normal, "one-hot": _one_hot, "along-out": _along_out, "mean-of-4": _mean_of_4},
    numbers={"scale": _scale, "causal": False},
    # the usual: those of FlashAttention; torch's own operations store QK^T, P, dP, dS and gradients of each query head
    conventions={
        "delta": ("out", "probs"),
        "qk_dtype": ("float32", "inputs"),
        "probs_dtype": ("inputs", "float32"),
        "dprobs_dtype": ("float32", "inputs"),
        "dscores_of": ("probs", "cast probs"),
        "dscores_dtype": ("inputs", "float32"),
        "dk_sum_dtype": ("float32", "inputs"),
        "dv_sum_dtype": ("float32", "inputs"),
    },
    dtypes={"lse": "float32"},
    own={"lse": _own_lse},
    free=_free,
    rule=lambda of: "" if of.sizes["h"] % of.sizes["g"] == 0 else "heads is a multiple of kv_heads",
)
