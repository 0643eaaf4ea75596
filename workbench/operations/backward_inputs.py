"""Inputs of the backward pass of attention: which keys a query sees, what is added to scores, the forward pass before
it, and distributions.
"""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from workbench.case import mods
from workbench.floats import DTYPES, to_float64
from workbench.operations.operation import Draw, Setting
from workbench.reference.dense import attention

Arrays = Mapping[str, np.ndarray]
#: optional input -> its axes; a bias has a length of 1 where it is the same for all
OPTIONAL: Mapping[str, str] = {
    "dlse": "bhq",
    "sinks": "h",
    "bias": "mnrk",
    "alibi_slopes": "h",
    "dropout_mask": "bhqk",
    "mask": "bhqk",
    "seqlens_k": "b",
}


def rule(of: Setting) -> str:
    """Why a setting is of no backward pass."""
    n, numbers = of.sizes, of.numbers
    if n["h"] % n["g"]:
        return "heads must be a multiple of kv_heads"
    for letter, whole, name in (("m", "b", "batch"), ("n", "h", "heads"), ("r", "q", "queries")):
        if "bias" in of.optional and n[letter] not in (1, n[whole]):
            return f"bias_{name} must be 1 or {name}; got {n[letter]}"
    if ("dropout_p" in numbers) != ("dropout_mask" in of.optional):
        return "dropout_p and dropout_mask go together: give both"
    if not 0 <= numbers.get("dropout_p", 0.0) < 1:
        return f"dropout_p must be at least 0 and below 1; got {numbers['dropout_p']:g}"
    if not 0 < numbers.get("softcap", 1.0) < np.inf:
        return f"softcap must be above 0; got {numbers['softcap']:g}"
    if low := [name for name in ("window_left", "window_right") if numbers.get(name, -1) < -1]:
        return f"{low[0]} must be 0 or more, or -1 for no window; got {numbers[low[0]]}"
    if "alibi_column" in numbers and "alibi_slopes" not in of.optional:
        return "alibi_column needs alibi_slopes"
    if numbers.get("shared_kv") and n["e"] > n["d"]:
        return f"with shared_kv, dim_v must be at most dim ({n['d']}); got {n['e']}"
    return ""


def by_place(of: Setting, lengths: np.ndarray | None = None) -> np.ndarray:
    """Which keys each query sees by its place, bool [q, k], or [b, 1, q, k] with the `lengths` [b, 1, 1, 1] of keys:
    causal and windows from the bottom right, keys within the length; [b, h, q, k] with a score_mod.
    """
    rows, keys = np.arange(of.sizes["q"])[:, None], np.arange(of.sizes["k"])
    of_row = rows + (of.sizes["k"] if lengths is None else lengths) - of.sizes["q"]
    left, right = (of.numbers.get(f"window_{side}", -1) for side in ("left", "right"))
    found = np.ones(np.broadcast_shapes(of_row.shape, keys.shape), bool)
    if of.numbers["causal"]:
        found &= keys <= of_row
    if left != -1:
        found &= keys >= of_row - left
    if right != -1:
        found &= keys <= of_row + right
    if "score_mod" in of.functions:
        found = found & ~hidden_by_mod(of)
    return found if lengths is None else found & (keys < lengths)


def seen(of: Setting, inputs: Arrays) -> np.ndarray:
    """Which keys each query sees, by all that hides some, bool that broadcasts to [b, h, q, k]."""
    lengths = to_float64(inputs["seqlens_k"]).reshape(-1, 1, 1, 1) if "seqlens_k" in of.optional else None
    found = by_place(of, lengths)
    return found & (inputs["mask"] != 0) if "mask" in of.optional else found


def modified(of: Setting, scores: np.ndarray) -> np.ndarray:
    """What the score_mod of a setting makes of scores [b, h, q, k]."""
    return mods.evaluated(of.functions["score_mod"], "score_mod", _indices(of), scores)


def mod_slope(of: Setting, scores: np.ndarray) -> np.ndarray:
    """Its derivative there; Refusal as of `mods.derivative`."""
    return mods.derivative(of.functions["score_mod"], "score_mod", _indices(of), scores)


def hidden_by_mod(of: Setting) -> np.ndarray:
    """Where a score_mod hides a key, bool [b, h, q, k]: it makes -inf of two scores."""
    shape = [of.sizes[axis] for axis in "bhqk"]
    return np.logical_and(*(modified(of, np.full(shape, x)) == -np.inf for x in (0.0, 1.0)))


def _indices(of: Setting) -> tuple[np.ndarray, ...]:
    return tuple(np.ix_(*(np.arange(of.sizes[axis]) for axis in "bhqk")))


def distances(of: Setting, lengths: np.ndarray | None = None) -> np.ndarray:
    """What ALiBi's slopes are multiplied by: minus the distance from the diagonal [q, k], or the index of the key."""
    rows, keys = np.arange(of.sizes["q"])[:, None], np.arange(of.sizes["k"])
    if of.numbers.get("alibi_column"):
        return np.broadcast_to(keys, (len(rows), len(keys)))
    return -abs(keys - rows - ((of.sizes["k"] if lengths is None else lengths) - of.sizes["q"]))


def forward(of: Setting, given: Arrays) -> dict[str, np.ndarray]:
    """Out and lse of a right forward pass of inputs as they are, float64; 0 and -inf of a row without keys."""
    n, numbers, added = of.sizes, of.numbers, None
    wide = {name: to_float64(given[name]) for name in given}
    if "bias" in of.optional:
        added = np.broadcast_to(wide["bias"], [n[axis] for axis in "bhqk"])
    if "alibi_slopes" in of.optional:
        lengths = wide["seqlens_k"][:, None, None, None] if "seqlens_k" in of.optional else None
        of_alibi = wide["alibi_slopes"][:, None, None] * distances(of, lengths)
        added = of_alibi if added is None else added + of_alibi
    return attention(
        wide["q"], wide["k"], wide["v"], scale=numbers["scale"], mask=seen(of, given), attn_bias=added,
        softcap=numbers.get("softcap"), score_mod=partial(modified, of) if "score_mod" in of.functions else None,
        sinks=wide.get("sinks"), dropout_p=numbers.get("dropout_p", 0.0),
        dropout_mask=given.get("dropout_mask"),
    )  # fmt: skip


def after_forward(of: Setting, drawn: Arrays) -> dict[str, np.ndarray]:
    """With out and lse as a right forward pass of the rounded inputs has them, and the v of a k that holds it."""
    if of.numbers.get("shared_kv"):
        drawn = {**drawn, "v": drawn["k"][..., : of.sizes["e"]]}
    rounded = {name: x.astype(DTYPES[of.dtype]) if name in ("q", "k", "v", "bias") else x for name, x in drawn.items()}
    return {**drawn, **forward(of, rounded)}


def _beside(of: Setting, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Optional inputs, float32 where they are stored so."""
    n = of.sizes
    p = of.numbers.get("dropout_p", 0.0)
    made: Mapping[str, Callable[[], np.ndarray]] = {
        "dlse": lambda: rng.standard_normal((n["b"], n["h"], n["q"])),
        "sinks": lambda: rng.standard_normal(n["h"]).astype(np.float32),
        "bias": lambda: rng.standard_normal([n[axis] for axis in OPTIONAL["bias"]]),
        # the powers of two of Press et al. 2021 (arXiv 2108.12409, section 3)
        "alibi_slopes": lambda: (2.0 ** (-8 * (1 + np.arange(n["h"])) / n["h"])).astype(np.float32),
        "dropout_mask": lambda: rng.random([n[axis] for axis in "bhqk"]) >= p,
        "mask": lambda: rng.random([n[axis] for axis in "bhqk"]) < 0.8,
        "seqlens_k": lambda: rng.integers(0, n["k"] + 1, n["b"]).astype(np.int32),
    }
    return {name: made[name]() for name in of.optional}


def _normal(of: Setting, rng: np.random.Generator) -> dict[str, np.ndarray]:
    shapes = {"q": "bhqd", "k": "bgkd", "v": "bgke", "dout": "bhqe"}
    drawn = {name: rng.standard_normal([of.sizes[axis] for axis in axes]) for name, axes in shapes.items()}
    return after_forward(of, {**drawn, **_beside(of, rng)})


def _one_hot(of: Setting, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Scores of standard deviation 8, so that nearly all the weight of a row is on one key: dS is near 0 by
    cancellation.
    """
    drawn = _normal(of, rng)
    return after_forward(of, {**drawn, "q": 8 * drawn["q"]})


def _along_out(of: Setting, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """dout along out, so that delta and dP are as large as they can be."""
    drawn = _normal(of, rng)
    return {**drawn, "dout": 4 * drawn["out"] + 0.1 * drawn["dout"]}


def _mean_of_4(of: Setting, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """K with a mean of 4, as activations of models have: sums of dS times K cancel, since dS adds up to 0."""
    drawn = _normal(of, rng)
    return after_forward(of, {**drawn, "k": 4 + drawn["k"]})


def _equal_scores(of: Setting, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """All keys the same, so that scores of a row are equal: dQ is 0 by cancellation of all its terms."""
    drawn = _normal(of, rng)
    return after_forward(of, {**drawn, "k": np.broadcast_to(drawn["k"][:, :, :1], drawn["k"].shape)})


def _outliers(of: Setting, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """A dim of K and one of V twenty times the others, as activations have (Dettmers et al. 2022, arXiv 2208.07339)."""
    drawn = _normal(of, rng)
    far = {name: drawn[name] * np.where(np.arange(drawn[name].shape[-1]) == 0, 20.0, 1.0) for name in "kv"}
    return after_forward(of, {**drawn, **far})


#: name -> what draws all inputs
DISTRIBUTIONS: Mapping[str, Draw] = {
    "normal": _normal,
    "one-hot": _one_hot,
    "along-out": _along_out,
    "mean-of-4": _mean_of_4,
    "equal-scores": _equal_scores,
    "outliers": _outliers,
}
