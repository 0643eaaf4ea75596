"""FlashAttention in NumPy's float32 with every field of a case, of which any part may be another: a fault."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from workbench import Case, Diff, diff
from workbench.case import masks
from workbench.case.contract import of_foreign
from workbench.case.inputs import by_name
from workbench.floats import DTYPES
from workbench.judge.explain.library import OF_FIELDS, library
from workbench.judge.explain.scene import Scene
from workbench.judge.explain.search import singles
from workbench.trace.trace import Trace, check
from workbench.work import SEARCH, Work

SECONDS = 20.0
F32 = np.float32
BLOCK = 16
#: part of the kernel -> what a faulty one has there, of the case, the inputs and what the right one has
Fault = Mapping[str, Callable[..., Any]]
Arrays = Mapping[str, np.ndarray]


def judged(case: Case, fault: Fault, *, dump: bool = True, inputs: Arrays | None = None, **contract: Any) -> Diff:
    """The judgement of a run of the kernel with a fault, which can be run again where it was given no inputs."""
    return diff(traced(case, fault, dump, inputs, contract))


def named(case: Case, fault: Fault, **options: Any) -> set[str]:
    """The hypotheses of these families that reproduce all that is wrong of a faulty run, as near as any."""
    return fitting(judged(case, fault, **options), OF_FIELDS)


def fitting(d: Diff, families: Collection[str]) -> set[str]:
    """The hypotheses of some families that reproduce all that is wrong in a bug, as near as any."""
    assert d.verdict == "bug"
    scene = Scene.of(d.run)
    wrong = {name: d[name].decisive.outside for name in d.origins}
    with np.errstate(all="ignore"):
        among = library([name for name in scene.families if name in families])
        fits = singles(scene, wrong, Work(SEARCH), among).fits
    whole = [one for one in fits if {*one.stages} == {*wrong}]
    nearest = min((one.residual for one in whole), default=0.0)
    # as `explain` takes rivals together
    return {one.hypothesis.id for one in whole if one.residual <= 4 * nearest + 0.02}


def traced(case: Case, fault: Fault, dump: bool, inputs: Arrays | None, contract: Mapping[str, Any]) -> Trace:
    read = by_name(case, inputs)
    with np.errstate(all="ignore"):
        stages = _run(case, read, fault, contract)
    told = {"block_k": BLOCK, "scores_dtype": "float32", "probs_dtype": "float32", "normalisation": "division"}
    told |= {"row_sum_of_cast": False, "probs_normalised": False}
    stages = stages if dump else {name: stages[name] for name in ("out", "lse")}

    def again(other: Case, given: Arrays | None = None) -> Trace:
        return traced(other.but(block_k=None), fault, dump, given, contract)

    made = Trace(
        "mine", "flash", case.but(block_k=BLOCK), of_foreign({**told, **contract}, case), read, stages, (),
        rerun=again if inputs is None else None,
    )  # fmt: skip
    return check(made, "mine")


def _run(case: Case, read: Arrays, fault: Fault, contract: Mapping[str, Any]) -> dict[str, np.ndarray]:
    def part(name: str, right: Any) -> Any:
        return fault[name](case, read, right) if name in fault else right

    first = contract.get("sinks") == "first"
    group = case.heads // case.kv_heads
    q = part("q", read["q"].astype(F32))
    k, v = (np.repeat(part(x, read[x].astype(F32)), group, 1) for x in "kv")
    qk = q @ k.swapaxes(-1, -2)
    scaled = qk * F32(part("scale", case.scale))
    stages = {"qk": qk}
    if case.softcap is not None:
        scaled = stages["capped"] = part("capped", F32(case.softcap) * np.tanh(scaled / F32(case.softcap)))
    if case.score_mod is not None:
        scaled = part("modified", masks.modified(case, scaled).astype(F32))
    for name, own in (("bias", read.get("bias")), ("alibi", masks.alibi(case))):
        if own is not None:
            scaled = scaled + np.asarray(part(name, own), F32)
    s = stages["scores"] = part("scores", np.where(part("visible", masks.visible(case, read)), scaled, F32(-np.inf)))
    b, h, m, n = s.shape
    d, tiles = v.shape[-1], -(-n // BLOCK)
    sinks = None if case.sink_logits is None else part("sinks", case.sink_logits[None, :, None]).astype(F32)
    top, total, acc = np.full((b, h, m), -np.inf, F32), np.zeros((b, h, m), F32), np.zeros((b, h, m, d), F32)
    if sinks is not None and first:
        top, total = top.clip(sinks), total + part("unit", np.where(sinks == -np.inf, F32(0), F32(1)))
    states: dict[str, list[np.ndarray]] = {name: [] for name in ("row_max", "correction", "row_sum", "acc")}
    probs, cast = np.zeros_like(s), np.zeros_like(s)
    for t in range(tiles):
        keys = slice(t * BLOCK, (t + 1) * BLOCK)
        new = np.maximum(top, s[..., keys].max(-1))
        safe = np.where(new == -np.inf, F32(0), new)
        c, p = np.exp(top - safe), np.exp(s[..., keys] - safe[..., None])
        kept = p
        if case.dropout_p is not None:
            chosen = np.broadcast_to(part("kept", read["dropout_mask"]), s.shape)[..., keys]
            kept = np.where(chosen, p / F32(1 - F32(case.dropout_p)), F32(0))
            kept = fault["dropped"](case, p, kept) if "dropped" in fault else kept
        total = total * c + (fault["summed"](case, p, kept) if "summed" in fault else p).sum(-1, dtype=F32)
        acc, top = acc * c[..., None] + kept @ v[:, :, keys], new
        probs[..., keys], cast[..., keys] = p, kept
        for name, x in (("row_max", top), ("correction", c), ("row_sum", total), ("acc", acc)):
            states[name].append(x)
    stages |= {name: np.stack(x, 3).astype(F32) for name, x in states.items()} | {"probs": probs, "probs_cast": cast}
    keys_lse = np.where(total == 0, F32(-np.inf), top + np.log(total))
    over, lse = total, keys_lse
    if sinks is not None and not first:
        safe = np.where(top == -np.inf, F32(0), top)
        over = total + part("term", lambda s, top: np.exp(s - top))(part("sinks_of_out", sinks), safe)
        of_lse = total + part("term", lambda s, top: np.exp(s - top))(part("sinks_of_lse", sinks), safe)
        lse = safe + np.log(of_lse) if contract.get("lse_includes_sink", True) else keys_lse
    stages["out"] = part("out", np.where(over[..., None] == 0, F32(0), acc / over[..., None])).astype(
        DTYPES[case.dtype]
    )
    stages["lse"] = part("lse", lse).astype(F32)
    return {name: _present(case, name, x) for name, x in stages.items()}


def _present(case: Case, name: str, x: np.ndarray) -> np.ndarray:
    """NaN where a sequence has no query or key."""
    rows = np.arange(case.seqlen_q) < case.lengths_q[:, None]
    keys = np.arange(case.seqlen_k) < case.lengths_k[:, None]
    there = rows.reshape(len(rows), 1, -1, *[1] * (x.ndim - 3))
    if name in ("qk", "capped", "scores", "probs", "probs_cast"):
        there = there & keys[:, None, None]
    if name in ("row_max", "correction", "row_sum", "acc"):
        of_tiles = np.stack([keys[:, i : i + BLOCK].any(-1) for i in range(0, keys.shape[1], BLOCK)], -1)
        there = there & of_tiles.reshape(len(keys), 1, 1, -1, *[1] * (x.ndim - 4))
    return np.where(there, x, np.array(np.nan, x.dtype))
