"""The backward pass of attention, as FlashAttention-2 computes it (Dao 2023, arXiv 2307.08691, algorithm 2): P again
from lse, delta = rowsum(dO * O), dP = dO V^T, dS = P * (dP - delta), and from these dQ, dK and dV.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from workbench.operations.backward_inputs import (
    DISTRIBUTIONS,
    OPTIONAL,
    distances,
    hidden_by_mod,
    mod_slope,
    modified,
    rule,
    seen,
)
from workbench.operations.backward_stages import stages
from workbench.operations.operation import Operation, Setting, Sizes
from workbench.reference.attention_backward import attention_backward
from workbench.reference.graph import Contract


def _free(of: Setting, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What hidden keys have before P, which is 0 there; what dropout leaves of dP is multiplied by it."""
    before = ("qk", "qk_cast", "scores", "tanh", "capped", "modded", "alibi", "biased", "biased_cast")
    names = (*before, "dprobs", "dprobs_cast", "dkept", "dkept_cast")
    return dict.fromkeys(names, ~seen(of, inputs))


def _terms(of: Setting, made: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Of gradients through dS: P (|dP| + |delta| + |dlse|) times |K| or |Q|; of dV P |dout|."""
    group, scale = of.sizes["h"] // of.sizes["g"], abs(of.numbers["scale"])
    found: dict[str, np.ndarray] = {}

    def per_group(x: np.ndarray) -> np.ndarray:
        return x.reshape(x.shape[0], -1, group, *x.shape[2:]).sum(2)

    if "probs" not in made:
        return found
    values = made.get("dropped", made["probs"])
    found["dv"] = per_group(np.einsum("bhqk,bhqe->bhke", abs(values), abs(made["dout"])))
    if not {"dprobs", "delta"} <= {*made}:
        return found
    offset = abs(made["delta"]) + abs(made.get("dlse", np.zeros(())))
    found["dscores"] = made["probs"] * (abs(made.get("dkept", made["dprobs"])) + offset[..., None])
    of_scaled = found["dscores"]
    if "mod_slope" in made:
        of_scaled = found["dmodded"] = of_scaled * abs(made["mod_slope"])
    if "tanh" in made:
        of_scaled = found["dscaled"] = of_scaled * (1 - made["tanh"] ** 2)
    keys = np.repeat(abs(made["k"]), group, 1)
    found["dq"] = scale * np.einsum("bhqk,bhkd->bhqd", of_scaled, keys)
    found["dk"] = scale * per_group(np.einsum("bhqk,bhqd->bhkd", of_scaled, abs(made["q"])))
    if "dkv" in made:
        found["dkv"] = found["dk"].copy()
        found["dkv"][..., : of.sizes["e"]] += found["dv"]
    return found


def _beside(of: Setting, inputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """What ALiBi's slopes are multiplied by, functions and which keys they show, and what was not given."""
    whole = [of.sizes[axis] for axis in "bhqk"]
    found: dict[str, Any] = {"own": of.own}
    if "alibi_slopes" in of.optional:
        lengths = inputs["seqlens_k"][:, None, None, None] if "seqlens_k" in of.optional else None
        found["distances"] = np.broadcast_to(distances(of, lengths), whole).astype(np.float32)
    if "score_mod" in of.functions:
        functions = {"score_mod": partial(modified, of), "mod_slope": partial(mod_slope, of)}
        found |= {**functions, "shown": ~hidden_by_mod(of)}
    return found


def _budgeted(of: Setting) -> list[str]:
    narrow = ["accumulation_dtype"] if of.dtype != "float32" else []
    return ["delta", "dscores_of", *narrow, *(["tanh"] if of.numbers.get("softcap") else [])]


def _scale(sizes: Sizes) -> float:
    return float(sizes["d"] ** -0.5)


ATTENTION_BACKWARD = Operation(
    name="attention_backward",
    axes={
        "b": "batch", "h": "heads", "g": "kv_heads", "q": "queries", "k": "keys", "d": "dim", "e": "dim_v",
        "m": "bias_batch", "n": "bias_heads", "r": "bias_queries",
    },
    sizes={"b": 1, "h": 2, "g": 2, "q": 64, "k": 64, "d": 32, "e": 32, "m": 1, "n": "h", "r": "q"},
    inputs={"q": "bhqd", "k": "bgkd", "v": "bgke", "out": "bhqe", "lse": "bhq", "dout": "bhqe"},
    optional=OPTIONAL,
    stages=stages,
    reference=attention_backward,
    beside=_beside,
    contract=lambda of: Contract(exp="base2"),
    results=("dq", "dkv", "dk", "dv", "dsink", "dbias", "dslopes"),
    distributions=DISTRIBUTIONS,
    numbers={
        "scale": _scale, "causal": False, "softcap": float, "window_left": int, "window_right": int,
        "dropout_p": float, "alibi_column": bool, "shared_kv": bool,
    },
    functions=("score_mod",),
    # the usual: those of FlashAttention
    conventions={
        "delta": ("out", "probs"),
        "delta_dtype": ("float32", "inputs"),
        "qk_dtype": ("float32", "inputs"),
        "probs_dtype": ("inputs", "float32"),
        "dprobs_dtype": ("float32", "inputs"),
        "dscores_of": ("probs", "cast probs"),
        "dscores_dtype": ("inputs", "float32"),
        "dk_sum_dtype": ("float32", "inputs"),
        "dv_sum_dtype": ("float32", "inputs"),
        "accumulation_dtype": ("float32", "inputs"),
        "dropped_dtype": ("float32", "inputs"),
        "parts_dtype": ("float32", "inputs"),
        "tanh": ("float32", "approximate"),
    },
    budgeted=_budgeted,
    known={
        "torch's own operations": {
            "delta": "probs", "qk_dtype": "inputs", "dprobs_dtype": "inputs", "dscores_of": "cast probs",
            "dk_sum_dtype": "inputs", "dv_sum_dtype": "inputs", "dropped_dtype": "inputs",
        },
    },
    dtypes={
        "lse": "float32", "dlse": "float32", "sinks": "float32", "alibi_slopes": "float32", "dropout_mask": "bool",
        "mask": "bool", "seqlens_k": "int32",
    },
    free=_free,
    terms=_terms,
    rule=rule,
)  # fmt: skip
