"""The table of stages of the backward pass of attention, with what a case has."""

from collections.abc import Mapping
from functools import partial

import numpy as np

from workbench.operations.backward_inputs import OPTIONAL, by_place, distances, mod_slope, modified, seen
from workbench.operations.backward_steps import (
    Joined,
    Modified,
    OfGroups,
    OwnLse,
    Widened,
    of_groups,
    where_one,
)
from workbench.operations.operation import Setting
from workbench.reference.stage import Stage, Table
from workbench.reference.steps.neutral import CastTo, Map, Sum, Total, difference, product, scaled

#: inputs that say which keys are seen
_HIDING = ("mask", "seqlens_k")


def _shape(of: Setting, axes: str) -> tuple[int, ...]:
    return tuple(of.sizes[axis] for axis in axes)


def _casts(of: Setting) -> dict[str, Table]:
    """Of what is stored, or meets the next product, in 16 bits: its cast; empty where it is in float32."""

    def cast(name: str, convention: str, axes: str = "bhqk") -> Table:
        if of.dtype == "float32" or of.conventions[f"{convention}_dtype"] == "float32":
            return {}
        return {f"{name}_cast": Stage(axes, CastTo(name, of.dtype))}

    found = {name: cast(name, name) for name in ("qk", "probs", "dprobs")} | {"biased": cast("biased", "qk")}
    found |= {name: cast(name, "dscores") for name in ("dscores", "dmodded", "dscaled")}
    if "dropout_mask" in of.optional:
        # what dropout leaves meets dout in the dtype of probs; torch's own operation reads and stores 16 bits
        found |= {"dropped": cast("dropped", "probs"), "dkept": cast("dkept", "dropped")}
    found |= {"delta": cast("delta", "delta", "bhq")}
    if of.numbers.get("shared_kv"):
        found |= {"dk": cast("dk", "parts", "bgkd"), "dv": cast("dv", "parts", "bgke")}
    return found | {"dk_sum": cast("dk_sum", "dk_sum", "bhkd"), "dv_sum": cast("dv_sum", "dv_sum", "bhke")}


def _scores(of: Setting, qk: str, biased: Table) -> Table:
    """From products to what is compared with lse: scaled, capped, with what is added, and the cast of that, in order;
    the last are scores.
    """
    scale = of.numbers["scale"]
    table = {"scores": Stage("bhqk", scaled(qk, scale))}
    if cap := of.numbers.get("softcap"):
        table["tanh"] = Stage("bhqk", Map(("scores",), lambda s: np.tanh(s / cap), f"tanh({{0}} / {cap:g})"))
        table["capped"] = Stage("bhqk", scaled("tanh", cap))
    terms = ["capped" if cap else "scores"]
    if "score_mod" in of.functions:
        table["modded"] = Stage("bhqk", Modified(terms[0], partial(modified, of), "score_mod"))
        terms = ["modded"]
    if "bias" in of.optional:
        table["wide_bias"] = Stage("bhqk", Widened("bias", _shape(of, "bhqk")), dumped=False)
        terms.append("wide_bias")
    if "alibi_slopes" in of.optional:
        lengths = ("seqlens_k",) if "seqlens_k" in of.optional else ()
        whole, said = _shape(of, "bhqk"), "key" if of.numbers.get("alibi_column") else "-distance"
        table["alibi"] = Stage("bhqk", Map(
            ("alibi_slopes", *lengths), lambda slopes, *n: np.broadcast_to(slopes * distances(of, *n), whole),
            f"{{0}} * {said}",
        ))  # fmt: skip
        table["distances"] = Stage("bhqk", Map(
            lengths, lambda *n: np.broadcast_to(distances(of, *n), whole), said,
        ), dumped=False)  # fmt: skip
        terms.append("alibi")
    if len(terms) > 1:
        table |= {"biased": Stage("bhqk", Total(tuple(terms), (1.0,) * len(terms))), **biased}
    return table


def _probs(of: Setting, scores: str) -> Table:
    """P again, from scores and lse, 0 where a key is hidden."""
    hides = tuple(name for name in _HIDING if name in of.optional)
    table: Table = {}
    still = np.broadcast_to(by_place(of), _shape(of, "bhqk")) if "score_mod" in of.functions else by_place(of)
    if hides:
        given = dict(enumerate(hides))

        def found(*read: np.ndarray) -> np.ndarray:
            return np.broadcast_to(seen(of, {given[n]: x for n, x in enumerate(read)}), _shape(of, "bhqk")) + 0.0

        table["visible"] = Stage("bhqk", Map(hides, found, "1 where a key is visible"), dumped=False)
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

    return {
        **table,
        "row_lse": Stage("bhq", Map((lse,), lambda x: np.where(np.isfinite(x), x, 0.0), "{0}"), dumped=False),
        "shifted": Stage("bhqk", Map((scores, "row_lse", *also), shifted, "{0} - {1}"), dumped=False),
        "probs": Stage("bhqk", Map(("shifted", *also), weight, "e^({0}), 0 where masked")),
    }


def _kept(of: Setting, what: str) -> Stage:
    """What dropout leaves of something, over what it keeps on average."""
    factor = 1 / (1 - of.numbers["dropout_p"])
    said = f"{factor:g} * {{0}} where kept, else 0"
    return Stage("bhqk", Map((what, "dropout_mask"), lambda x, kept: x * kept * factor, said))


def _dscores(of: Setting, last: Mapping[str, str], casts: Mapping[str, Table]) -> Table:
    """Stages from dP and delta to dS, through the derivative of the softcap."""
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
    table |= {"delta": Stage("bhq", delta), **casts["delta"]}
    of_lse, offset = "dlse" in of.optional, last["delta"]
    centred = Total((dprobs, offset, "dlse"), (1.0, -1.0, 1.0)) if of_lse else difference(dprobs, offset)
    table["centred"] = Stage("bhqk", centred, dumped=False)
    table |= {"dscores": Stage("bhqk", product(weights, "centred")), **casts["dscores"]}
    through = "dscores"
    if "score_mod" in of.functions:
        read = "capped" if "softcap" in of.numbers else "scores"
        slope = Modified(read, partial(mod_slope, of), "the derivative of score_mod")
        table |= {"mod_slope": Stage("bhqk", slope, dumped=False)}
        table |= {"dmodded": Stage("bhqk", product("dscores", "mod_slope")), **casts["dmodded"]}
        through = "dmodded"
    if "softcap" in of.numbers:
        table["tanh_squared"] = Stage("bhqk", Map(("tanh",), np.square, "{0}^2"), dumped=False)
        table["cap_slope"] = Stage("bhqk", Map(("tanh_squared",), lambda x: 1 - x, "1 - {0}"), dumped=False)
        table |= {"dscaled": Stage("bhqk", product(through, "cap_slope")), **casts["dscaled"]}
    if "sinks" in of.optional:
        table["sink_shifted"] = Stage("bhq", difference("sinks", "row_lse"), dumped=False)
        table["sink_probs"] = Stage("bhq", Map(("sink_shifted",), np.exp, "e^({0})"))
        if of_lse:
            table["delta_of_sink"] = Stage("bhq", difference(offset, "dlse"), dumped=False)
            offset = "delta_of_sink"
        of_rows = Map(("sink_probs", offset), lambda p, d: -p * d, "-{0} * {1}")
        table["dsink_rows"] = Stage("bhq", of_rows, dumped=False)
    return table


def of_scaled(of: Setting) -> str:
    """The name of the stage that is the gradient of the loss by the scaled scores, before it is cast."""
    return "dscaled" if "softcap" in of.numbers else "dmodded" if "score_mod" in of.functions else "dscores"


def table(of: Setting) -> Table:
    """Every stage of a setting, in data-flow order."""
    scale, group, casts = of.numbers["scale"], of.sizes["h"] // of.sizes["g"], _casts(of)
    last = {name: next(iter(made), name) for name, made in casts.items()}
    scores = _scores(of, last["qk"], casts["biased"])
    dropout = "dropout_mask" in of.optional
    dscaled, values = last[of_scaled(of)], last["dropped" if dropout else "probs"]
    kept: Table = {}
    if dropout:
        read = last["probs"] if of.conventions["dropped_dtype"] == "inputs" else "probs"
        kept = {"dropped": _kept(of, read), **casts["dropped"]}
    dbias: Table = {}
    if "bias" in of.optional:
        step = where_one(last["dscores"], _shape(of, "bhqk"), _shape(of, OPTIONAL["bias"]), "bhqk")
        dbias = {"dbias": Stage(OPTIONAL["bias"], step)}
    dslopes: Table = {}
    if "alibi_slopes" in of.optional:
        dslopes = {"dslopes": Stage("h", Sum("bhqk,bhqk->h", (last["dscores"], "distances")))}
    dsink = {"dsink": Stage("h", Sum("bhq->h", ("dsink_rows",)))} if "sinks" in of.optional else {}
    shared = bool(of.numbers.get("shared_kv"))
    dkv: Table = {}
    if shared:
        dkv = {**casts["dk"], **casts["dv"], "dkv": Stage("bgkd", Joined(last["dk"], last["dv"]))}
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
        "dk_sum": Stage("bhkd", Sum("bhqk,bhqd->bhkd", (dscaled, "q")), dumped=False),
        **casts["dk_sum"],
        "dk_group": Stage("bgkd", of_groups(last["dk_sum"], of_heads["bhkd"], group), dumped=False),
        "dv_sum": Stage("bhke", Sum("bhqk,bhqe->bhke", (values, "dout")), dumped=False),
        **casts["dv_sum"],
        "dq": Stage("bhqd", scaled("dq_sum", scale)),
        "dk": Stage("bgkd", scaled("dk_group", scale), dumped=not shared),
        "dv": Stage("bgke", of_groups(last["dv_sum"], of_heads["bhke"], group), dumped=not shared),
        **dkv,
        **dsink,
        **dbias,
        **dslopes,
    }
