"""Small faults of kernels that are exact otherwise: what the plain function gives with one, under the same contract."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from campaigns.plain import functions as plain
from campaigns.plain.functions import LOG2E, Units
from campaigns.plain.sayable import Said
from campaigns.plain.stages import RESULTS
from workbench.floats import to_float64
from workbench.reference.graph import Contract, Expected, budgets
from workbench.reference.graph import trace as graph_of
from workbench.trace.trace import Trace

FAULTS = (
    *("one key dropped", "an element of q an ulp off", "an element of k an ulp off", "an element of v an ulp off"),
    *("probs in 16 bits", "acc in 16 bits", "1.4427"),
)
#: in place of log2(e), 1.442695
ROUGH = 1.4427


def faulty(trace: Trace, found: Said, random: np.random.Generator) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each fault that the run may have, with out and lse."""
    inputs, how, contract = {x: trace.inputs[x] for x in "qkv"}, found.how, found.contract
    if (mask := _dropped(trace, how["mask"], random)) is not None:
        yield "one key dropped", _made(found, inputs, {**how, "mask": mask}, contract)
    for name in "qkv":
        changed = {**inputs, name: _an_ulp_off(inputs[name], random)}
        yield f"an element of {name} an ulp off", _made(found, changed, how, contract)
    dtype = trace.case.dtype if trace.case.dtype != "float32" else "bfloat16"
    for stage in ("probs", "acc"):
        name = f"{found.prefix}{stage}"
        if _wide(found, stage):
            worse = replace(contract, stored={**contract.stored, name: dtype})
            yield f"{stage} in 16 bits", _made(found, inputs, how, worse)
    yield "1.4427", _made(found, inputs, {**how, "units": rough(how["units"])}, contract)


def rough(units: Units) -> Units:
    """With 1.4427 for log2(e), in exp alone."""
    if units.weigh in (plain.natural, plain.product):
        return units._replace(weigh=partial(plain.product, log2_e=ROUGH))
    if isinstance(units.weigh, partial):
        return units._replace(weigh=partial(units.weigh, log2_e=ROUGH))
    of_q, of_scores = (tuple(ROUGH if x == LOG2E else x for x in some) for some in (units.of_q, units.of_scores))
    return units._replace(of_q=of_q, of_scores=of_scores)


def _wide(found: Said, stage: str) -> bool:
    """Whether a stage is in float32 by what is declared, and there is one."""
    c = found.contract
    if stage == "probs":
        return c.operands == "float32" and not {"probs_cast", f"{found.prefix}probs"} & {*c.stored}
    return c.accumulate == "float32" and found.f is not plain.softmax


def _dropped(trace: Trace, mask: np.ndarray, random: np.random.Generator) -> np.ndarray | None:
    """The mask without one of the keys that a row sees, of a row with several."""
    case = trace.case
    whole = np.broadcast_to(mask, (case.batch, case.heads, case.seqlen_q, case.seqlen_k)).copy()
    several = np.argwhere(whole.sum(axis=-1) > 1)
    if not len(several):
        return None
    row = tuple(several[random.integers(len(several))])
    key = random.choice(np.flatnonzero(whole[row]))
    whole[(*row, key)] = False
    return whole


def _an_ulp_off(x: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """One element as the next number of its dtype, away from 0."""
    changed = x.copy()
    index = tuple(int(random.integers(n)) for n in x.shape)
    changed[index] = np.nextafter(x[index], x.dtype.type(np.inf if to_float64(x[index]) >= 0 else -np.inf))
    return changed


def _made(found: Said, inputs: Mapping[str, Any], how: Mapping[str, Any], contract: Contract) -> dict[str, Any]:
    made: dict[str, Expected] = budgets(graph_of(found.f, {**inputs, **how}), contract, names=RESULTS)
    return {name: one.value for name, one in made.items()}
