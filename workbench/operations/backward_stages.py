"""The stages of the backward pass of attention, with what a case has."""

from workbench.operations.backward_inputs import OPTIONAL
from workbench.operations.operation import Setting


def of_scaled(of: Setting) -> str:
    """The name of the stage that is the gradient of the loss by the scaled scores, before it is cast."""
    return "dscaled" if "softcap" in of.numbers else "dmodded" if "score_mod" in of.functions else "dscores"


def stages(of: Setting) -> dict[str, str]:
    """Name -> axes, in data-flow order."""
    has, dropout, mod = of.optional, "dropout_mask" in of.optional, "score_mod" in of.functions
    cap, shared = bool(of.numbers.get("softcap")), bool(of.numbers.get("shared_kv"))
    found: dict[str, str] = {}

    def add(name: str, axes: str = "bhqk", *, cast: str = "", where: bool = True) -> None:
        """A stage, and its cast where a convention of this name says that it is stored in 16 bits."""
        if where:
            found[name] = axes
            if cast and of.dtype != "float32" and of.conventions[f"{cast}_dtype"] != "float32":
                found[f"{name}_cast"] = axes

    add("qk", cast="qk")
    add("scores")
    add("tanh", where=cap)
    add("capped", where=cap)
    add("modded", where=mod)
    add("alibi", where="alibi_slopes" in has)
    add("biased", cast="qk", where="bias" in has or "alibi_slopes" in has)
    add("own_lse", "bhq", where="lse" in of.own)
    add("probs", cast="probs")
    add("dropped", cast="probs", where=dropout)
    add("dprobs", cast="dprobs")
    add("dkept", cast="dropped", where=dropout)
    add("own_out", "bhqe", where="out" in of.own and of.conventions["delta"] == "out")
    add("delta", "bhq", cast="delta")
    add("dscores", cast="dscores")
    add("mod_slope", where=mod)
    add("dmodded", cast="dscores", where=mod)
    add("dscaled", cast="dscores", where=cap)
    add("sink_probs", "bhq", where="sinks" in has)
    add("dq", "bhqd")
    add("dk", "bgkd", where=not shared)
    add("dv", "bgke", where=not shared)
    add("dkv", "bgkd", where=shared)
    add("dsink", "h", where="sinks" in has)
    add("dbias", OPTIONAL["bias"], where="bias" in has)
    add("dslopes", "h", where="alibi_slopes" in has)
    return found
