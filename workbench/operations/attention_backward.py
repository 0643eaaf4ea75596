"""The backward pass of attention, as FlashAttention-2 computes it (Dao 2023, arXiv 2307.08691, algorithm 2): P again
from lse, delta = rowsum(dO * O), dP = dO V^T, dS = P * (dP - delta), and from these dQ, dK and dV.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from workbench.operations.backward_inputs import DISTRIBUTIONS, OPTIONAL, by_place, distances, rule, seen
from workbench.operations.backward_steps import OfGroups, OwnLse, StoredBetween, Widened, of_groups, where_one
from workbench.operations.operation import Operation, Setting, Sizes
from workbench.reference.stage import Stage, Table
from workbench.reference.steps.neutral import CastTo, Map, Sum, Total, difference, one, product, scaled

#: terms of a block at least, after which a sum may be rounded: torch's flash on a CPU takes 32, 64 or 256 queries
LEAST_BLOCK = 32
#: inputs that say which keys are seen
_HIDING = ("mask", "seqlens_k")


def _zero(*read: Any) -> float:
    """The slope by what has no error."""
    return 0.0


def _shape(of: Setting, axes: str) -> tuple[int, ...]:
    return tuple(of.sizes[axis] for axis in axes)


def _casts(of: Setting) -> dict[str, Table]:
    """Of what is stored, or meets the next product, in 16 bits: its cast; empty where it is in float32."""

    def cast(name: str, convention: str, axes: str = "bhqk", least: float = 1.0) -> Table:
        if of.dtype == "float32" or of.conventions[f"{convention}_dtype"] == "float32":
            return {}
        return {f"{name}_cast": Stage(axes, CastTo(name, of.dtype, least))}

    found = {name: cast(name, name) for name in ("qk", "probs", "dprobs")}
    # dS may be stored times the scale, as torch's operations do
    least = min(1.0, abs(of.numbers["scale"]) or 1.0)
    found |= {name: cast(name, "dscores", least=least) for name in ("dscores", "dscaled")}
    if "dropout_mask" in of.optional:
        # what dropout leaves meets dout in the dtype of probs; torch's own operation reads and stores 16 bits
        found |= {"dropped": cast("dropped", "probs"), "dkept": cast("dkept", "dropped")}
    found |= {"dk_sum": cast("dk_sum", "dk_sum", "bhkd"), "dv_sum": cast("dv_sum", "dv_sum", "bhke"), "dq_sum": {}}
    if of.dtype != "float32" and of.conventions["accumulation_dtype"] == "inputs":
        for name, axes, terms in (("dq_sum", "bhqd", "k"), ("dk_sum", "bhkd", "q"), ("dv_sum", "bhke", "q")):
            step = StoredBetween(name, of.dtype, -(-of.sizes[terms] // LEAST_BLOCK))
            found[name] = {f"{name}_stored": Stage(axes, step, dumped=False)}
    return found


def _scores(of: Setting, qk: str) -> Table:
    """From products to what is compared with lse: scaled, capped, with what is added, in order; the last are scores."""
    scale = of.numbers["scale"]
    table = {"scores": Stage("bhqk", scaled(qk, scale, ulps=1.0))}
    if cap := of.numbers.get("softcap"):
        # tanhf is within 2 ulps of the nearest, tanh.approx within 2^-11; a quotient before it
        ulps = 3.0 if of.conventions["tanh"] == "float32" else 2.0**12 + 1
        table["tanh"] = Stage("bhqk", Map(
            ("scores",), lambda s: np.tanh(s / cap), (lambda s: (1 - np.tanh(s / cap) ** 2) / cap,),
            f"tanh({{0}} / {cap:g})", ulps=ulps,
        ))  # fmt: skip
        table["capped"] = Stage("bhqk", scaled("tanh", cap, ulps=1.0))
    terms = ["capped" if cap else "scores"]
    if "bias" in of.optional:
        table["wide_bias"] = Stage("bhqk", Widened("bias", _shape(of, "bhqk")), dumped=False)
        terms.append("wide_bias")
    if "alibi_slopes" in of.optional:
        lengths = ("seqlens_k",) if "seqlens_k" in of.optional else ()
        whole = _shape(of, "bhqk")
        table["alibi"] = Stage("bhqk", Map(
            ("alibi_slopes", *lengths), lambda slopes, *n: np.broadcast_to(slopes * distances(of, *n), whole),
            (_zero, *(_zero for _ in lengths)), "{0} * " + ("key" if of.numbers.get("alibi_column") else "-distance"),
        ))  # fmt: skip
        terms.append("alibi")
    if len(terms) > 1:
        table["biased"] = Stage("bhqk", Total(tuple(terms), (1.0,) * len(terms)))
    return table


def _probs(of: Setting, scores: str) -> Table:
    """P again, from scores and lse, 0 where a key is hidden."""
    hides = tuple(name for name in _HIDING if name in of.optional)
    table: Table = {}
    still = by_place(of)
    if hides:
        given = dict(enumerate(hides))

        def found(*read: np.ndarray) -> np.ndarray:
            return np.broadcast_to(_seen(of, {given[n]: x for n, x in enumerate(read)}), _shape(of, "bhqk")) + 0.0

        table["visible"] = Stage(
            "bhqk", Map(hides, found, (_zero,) * len(hides), "1 where a key is seen", ulps=0.0), dumped=False
        )
    also = ("visible",) if hides else ()
    lse = "lse"
    if "lse" in of.own:
        sinks = "sinks" if "sinks" in of.optional else ""
        table["own_lse"] = Stage("bhq", OwnLse(scores, sinks, also, lambda at: at("visible") != 0 if hides else still))
        lse = "own_lse"

    def weight(shifted: np.ndarray, *visible: np.ndarray) -> np.ndarray:
        some = visible[0] != 0 if visible else still
        return np.where(some, np.exp(np.where(some, shifted, 0.0)), 0.0)

    def shifted(s: np.ndarray, lse: np.ndarray, *visible: np.ndarray) -> np.ndarray:
        return np.where(visible[0] != 0 if visible else still, s - lse, 0.0)

    def moved(s: np.ndarray, lse: np.ndarray, *visible: np.ndarray) -> np.ndarray:
        return visible[0] if visible else still

    rest = (_zero,) * len(also)
    return {
        **table,
        # in base 2 a product with log2(e), of a constant that is rounded: one error of a row, whatever is left of it
        "row_lse": Stage("bhq", Map((lse,), lambda x: np.where(np.isfinite(x), x, 0.0), (one,), "{0}, 0 where -inf",
                                    ulps=1.0), dumped=False),
        "shifted": Stage("bhqk", Map((scores, "row_lse", *also), shifted, (moved, moved, *rest), "{0} - {1}", ulps=2.0),
                         dumped=False),
        "probs": Stage("bhqk", Map(("shifted", *also), weight, (weight, *rest), "e^({0}), 0 where hidden", ulps=2.0,
                                   grown=np.expm1)),
    }  # fmt: skip


def _seen(of: Setting, read: Mapping[str, np.ndarray]) -> np.ndarray:
    """As `seen`, of lengths that lie [b, 1, 1, 1]."""
    return seen(of, {name: x.reshape(-1) if name == "seqlens_k" else x for name, x in read.items()})


def _kept(of: Setting, what: str) -> Stage:
    """What dropout leaves of something, over what it keeps on average."""
    factor = 1 / (1 - of.numbers["dropout_p"])
    slopes = (lambda x, kept: kept * factor, _zero)
    return Stage("bhqk", Map((what, "dropout_mask"), lambda x, kept: x * kept * factor, slopes,
                             f"{factor:g} * {{0}} where kept, else 0", ulps=1.5))  # fmt: skip


def _dscores(of: Setting, last: Mapping[str, str], casts: Mapping[str, Table]) -> Table:
    """The gradients of scores, from dP and delta, and through a softcap."""
    table: Table = {}
    dprobs = last["dprobs"]
    if "dropout_mask" in of.optional:
        table |= {"dkept": _kept(of, dprobs), **casts["dkept"]}
        dprobs = last["dkept"]
    weights = last["probs"] if of.conventions["dscores_of"] == "cast probs" else "probs"
    if of.conventions["delta"] == "probs":
        delta = Sum("bhqk,bhqk->bhq", (weights, dprobs))
    elif "out" in of.own:
        # of the weights of the forward pass, which met V in the dtype of probs, stored or not
        values = last["dropped"] if "dropout_mask" in of.optional else last["probs"]
        table["own_sum"] = Stage("bhqe", Sum("bhqk,bhke->bhqe", (values, "v_rows")), dumped=False)
        table["own_out"] = Stage("bhqe", CastTo("own_sum", of.dtype))
        delta = Sum("bhqe,bhqe->bhq", ("dout", "own_out"))
    else:
        delta = Sum("bhqe,bhqe->bhq", ("dout", "out"))
    table["delta"] = Stage("bhq", delta)
    of_lse = "dlse" in of.optional
    centred = Total((dprobs, "delta", "dlse"), (1.0, -1.0, 1.0)) if of_lse else difference(dprobs, "delta")
    table["centred"] = Stage("bhqk", centred, dumped=False)
    table |= {"dscores": Stage("bhqk", product(weights, "centred")), **casts["dscores"]}
    if "softcap" in of.numbers:
        table["tanh_squared"] = Stage("bhqk", Map(("tanh",), np.square, (lambda t: 2 * t,), "{0}^2"), dumped=False)
        table["cap_slope"] = Stage("bhqk", Map(("tanh_squared",), lambda x: 1 - x, (one,), "1 - {0}"), dumped=False)
        table |= {"dscaled": Stage("bhqk", product("dscores", "cap_slope")), **casts["dscaled"]}
    if "sinks" in of.optional:
        table["sink_shifted"] = Stage("bhq", Map(("sinks", "row_lse"), np.subtract, (one, one), "{0} - {1}", ulps=2.0),
                                      dumped=False)  # fmt: skip
        table["sink_probs"] = Stage(
            "bhq", Map(("sink_shifted",), np.exp, (np.exp,), "e^({0})", ulps=2.0, grown=np.expm1)
        )
        offset = "delta"
        if of_lse:
            table["delta_of_sink"] = Stage("bhq", difference("delta", "dlse"), dumped=False)
            offset = "delta_of_sink"
        slopes = (lambda p, d: d, lambda p, d: p)
        of_rows = Map(("sink_probs", offset), lambda p, d: -p * d, slopes, "-{0} * {1}")
        table["dsink_rows"] = Stage("bhq", of_rows, dumped=False)
    return table


def _table(of: Setting) -> Table:
    scale, group, casts = of.numbers["scale"], of.sizes["h"] // of.sizes["g"], _casts(of)
    last = {name: next(iter(made), name) for name, made in casts.items()}
    scores = _scores(of, last["qk"])
    dropout, softcap = "dropout_mask" in of.optional, "softcap" in of.numbers
    dscaled, values = last["dscaled" if softcap else "dscores"], last["dropped" if dropout else "probs"]
    kept: Table = {}
    if dropout:
        read = last["probs"] if of.conventions["dropped_dtype"] == "inputs" else "probs"
        kept = {"dropped": _kept(of, read), **casts["dropped"]}
    dbias: Table = {}
    if "bias" in of.optional:
        step = where_one(last["dscores"], _shape(of, "bhqk"), _shape(of, OPTIONAL["bias"]), "bhqk")
        dbias = {"dbias": Stage(OPTIONAL["bias"], step)}
    dsink = {"dsink": Stage("h", Sum("bhq->h", ("dsink_rows",)))} if "sinks" in of.optional else {}
    of_heads = {axes: _shape(of, axes) for axes in ("bhkd", "bhke")}
    return {
        "k_rows": Stage("bhkd", OfGroups("k", group), dumped=False),
        "v_rows": Stage("bhke", OfGroups("v", group), dumped=False),
        "qk": Stage("bhqk", Sum("bhqd,bhkd->bhqk", ("q", "k_rows"))),
        **casts["qk"],
        **scores,
        **_probs(of, next(reversed(scores))),
        **casts["probs"],
        **kept,
        "dprobs": Stage("bhqk", Sum("bhqe,bhke->bhqk", ("dout", "v_rows"))),
        **casts["dprobs"],
        **_dscores(of, last, casts),
        "dq_sum": Stage("bhqd", Sum("bhqk,bhkd->bhqd", (dscaled, "k_rows")), dumped=False),
        **casts["dq_sum"],
        "dk_sum": Stage("bhkd", Sum("bhqk,bhqd->bhkd", (dscaled, "q")), dumped=False),
        **casts["dk_sum"],
        "dk_group": Stage("bgkd", of_groups(last["dk_sum"], of_heads["bhkd"], group), dumped=False),
        "dv_sum": Stage("bhke", Sum("bhqk,bhqe->bhke", (values, "dout")), dumped=False),
        **casts["dv_sum"],
        "dq": Stage("bhqd", scaled(last["dq_sum"], scale, ulps=1.0)),
        "dk": Stage("bgkd", scaled("dk_group", scale, ulps=1.0)),
        "dv": Stage("bgke", of_groups(last["dv_sum"], of_heads["bhke"], group)),
        **dsink,
        **dbias,
    }


def _free(of: Setting, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What hidden keys have before P, which is 0 there; what dropout leaves of dP is multiplied by it."""
    names = ("qk", "qk_cast", "scores", "tanh", "capped", "alibi", "biased", "dprobs", "dprobs_cast", "dkept",
             "dkept_cast")  # fmt: skip
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
    if "tanh" in made:
        of_scaled = found["dscaled"] = of_scaled * (1 - made["tanh"] ** 2)
    keys = np.repeat(abs(made["k"]), group, 1)
    found["dq"] = scale * np.einsum("bhqk,bhkd->bhqd", of_scaled, keys)
    found["dk"] = scale * per_group(np.einsum("bhqk,bhqd->bhkd", of_scaled, abs(made["q"])))
    return found


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
    table=_table,
    results=("dq", "dk", "dv", "dsink", "dbias"),
    distributions=DISTRIBUTIONS,
    numbers={
        "scale": _scale, "causal": False, "softcap": float, "window_left": int, "window_right": int,
        "dropout_p": float, "alibi_column": bool,
    },
    # the usual: those of FlashAttention
    conventions={
        "delta": ("out", "probs"),
        "qk_dtype": ("float32", "inputs"),
        "probs_dtype": ("inputs", "float32"),
        "dprobs_dtype": ("float32", "inputs"),
        "dscores_of": ("probs", "cast probs"),
        "dscores_dtype": ("inputs", "float32"),
        "dk_sum_dtype": ("float32", "inputs"),
        "dv_sum_dtype": ("float32", "inputs"),
        "accumulation_dtype": ("float32", "inputs"),
        "dropped_dtype": ("float32", "inputs"),
        "tanh": ("float32", "approximate"),
    },
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
