"""Passes of a model joined: a prompt read in one pass or in several, training in one and inference token by token, are
the same tokens. The calls of one layer become one, whose keys are those of the last.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from workbench.case.fields import GIVEN
from workbench.case.masks import spread, visible
from workbench.case.stages import LSE, OUT
from workbench.refusal import Refusal
from workbench.trace.hidden import with_mask
from workbench.trace.trace import Trace

#: what a capture notes of a call of which it has all
WHOLE = "all rows"


class Named(NamedTuple):
    """Where in a model a call was made."""

    layer: str
    step: int


def told(notes: Sequence[str]) -> tuple[str, str]:
    """Which call of a model a trace is, "layer 7, step 3", and which part of it; "" where its notes do not say."""
    for note in notes:
        if found := re.fullmatch(r"call \d+(?:, (?P<place>[^:]*))?: (?P<part>.*)", note):
            return found["place"] or "", found["part"]
    return "", ""


def named(trace: Trace) -> Named | None:
    """Where a call was made, as its notes tell; None where they tell no layer and step, or it is a part of a call."""
    place, part = told(trace.notes)
    found = re.fullmatch(r"(?P<layer>.*), step (?P<step>\d+)", place)
    return Named(found["layer"], int(found["step"])) if found and part == WHOLE else None


def differ(a: Mapping[int, Trace], b: Mapping[int, Trace]) -> bool:
    """Whether two runs made other passes: the calls of each are named, their layers the same, and their queries of a
    pass not.
    """
    layers = []
    for run in (a, b):
        places = {call: named(trace) for call, trace in run.items()}
        if not places or None in places.values():
            return False
        rows: dict[str, list[int]] = {}
        for call, place in places.items():
            assert place is not None
            rows.setdefault(place.layer, []).append(run[call].case.seqlen_q)
        layers.append(rows)
    return layers[0] != layers[1] and {name: sum(x) for name, x in layers[0].items()} == {
        name: sum(x) for name, x in layers[1].items()
    }


def joined(run: Mapping[int, Trace], side: str) -> dict[int, Trace]:
    """One call for each layer, in the order of the layers, under a number for each. Refusal where a call reads other
    keys than the last one of its layer has in their place: of a cache that changes, or drops rows.
    """
    layers: dict[str, list[Trace]] = {}
    for trace in run.values():
        if (place := named(trace)) is not None:
            layers.setdefault(place.layer, []).append(with_mask(trace))
    return {call: _joined(call, name, one, side) for call, (name, one) in enumerate(layers.items())}


def _joined(call: int, layer: str, traces: list[Trace], side: str) -> Trace:
    last = traces[-1]
    keys = last.case.seqlen_k
    for step, one in enumerate(traces):
        read = spread(one.case, visible(one.case, one.inputs)).any((0, 1, 2))
        for name in "kv":
            now, then = last.inputs[name][:, :, : one.case.seqlen_k], one.inputs[name]
            if now.shape != then.shape:
                raise Refusal(f"{side}: {layer} has {one.case.seqlen_k} keys in step {step} and {keys} in the last one")
            same = (now == then).all((0, 1, 3)) | ~read
            if not same.all():
                raise Refusal(
                    f"{side}: in {layer}, row {int(np.argmin(same))} of {name} differs between step {step} and the "
                    "last step. The cache changed, so passes of different lengths cannot be joined"
                )
    fields = ("causal", "window", "alibi_slopes", "score_mod", "dropout_p", "codes")
    plain = last.case.but(causal=False, window=None)
    if any(getattr(plain, name) != getattr(type(plain)(), name) for name in fields):
        raise Refusal(f"{side}: {layer}: passes with ALiBi, a score_mod, dropout or codes are not joined")

    def rows(name: str) -> np.ndarray:
        return np.concatenate([one.inputs[name] if name == "q" else one.stages[name] for one in traces], axis=2)

    def of_scores(one: Trace, x: np.ndarray) -> np.ndarray:
        return np.pad(spread(one.case, x), [(0, 0)] * 3 + [(0, keys - one.case.seqlen_k)])

    inputs = {
        "q": rows("q"), "k": last.inputs["k"], "v": last.inputs["v"],
        "mask": np.concatenate([of_scores(one, visible(one.case, one.inputs)) for one in traces], axis=2),
    }  # fmt: skip
    if any("bias" in one.inputs for one in traces):
        nothing = np.zeros((1, 1, 1, 1), np.float32)
        inputs["bias"] = np.concatenate([of_scores(one, one.inputs.get("bias", nothing)) for one in traces], axis=2)
    stages = {name: rows(name) for name in (OUT, LSE) if all(name in one.stages for one in traces)}
    case = plain.but(seqlen_q=inputs["q"].shape[2], distribution=GIVEN)
    note = f"call {call}, {layer}, all steps: all rows"
    return replace(
        last, case=case, inputs=inputs, stages=stages, notes=(note,), rerun=None, as_given=None, requested=()
    )
