"""What readings say of attention functions that were written without a look at them, and whether that is so."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from campaigns.blackbox import BOXES
from campaigns.known import cut
from campaigns.spread import spread
from workbench import Case, run
from workbench.bench.harness import gathered
from workbench.readings.proof import lse_predicted, predicted, rms
from workbench.readings.reader import Measured, measured
from workbench.readings.target import Answer, Target

SCHEMA = "workbench.measured/1"
KNOWN = {"out": ("out",), "out and lse": ("out", "lse")}
#: seeds that no reading and no proof of it saw
SEEDS = (4099, 8209)
#: seconds that a function takes, for the estimate
ROW_S = 4.0
_BOXES = {box.name: box for box in BOXES}


def measure(jobs: int = 1, names: Sequence[str] = ()) -> dict[str, Any]:
    """The JSON document: a row for each function, wrong and right, and each of KNOWN."""
    asked = [(name, known, wrong) for known in KNOWN for wrong in (True, False) for name in names or _BOXES]
    rows = gathered("measure functions", ROW_S * len(asked) / jobs, spread(row, asked, jobs))
    return {"schema": SCHEMA, "functions": rows}


def row(asked: tuple[str, str, bool]) -> dict[str, Any]:
    """One function with so much known."""
    name, known, wrong = asked
    box = _BOXES[name]
    options = {"window" if key == "window_size" else key: x for key, x in box.options.items()}
    case = Case(**options)
    trace = cut(run(box.wrong if wrong else box.right, case), KNOWN[known])
    found = measured(trace)
    sound = Target(cut(run(box.right, case), KNOWN[known])).natural
    told = found.proved or bool(found.arithmetic)
    return {
        "function": name,
        "known": known,
        "wrong": wrong,
        "faults": box.faults,
        "visible": wrong and _rms(found.target.natural) > 2 * _rms(sound),
        "findings": [one.text for one in (*found.findings, *found.arithmetic)],
        "told": told,
        "so": told and all(map(partial(_is_so, found), SEEDS)),
        "calls": found.calls,
        "seconds": round(found.seconds, 2),
        "truth": box.truth,
    }


def _rms(answer: Answer) -> float:
    """Error of out; infinite where something is not finite that should be."""
    off = np.isfinite(answer.out) != np.isfinite(answer.expected)
    return np.inf if off.any() else rms(answer, answer.expected)


def _is_so(found: Measured, seed: int) -> bool:
    """Whether what was found predicts out, and lse where it is returned and wrong, of another run."""
    answer = found.target.drawn(found.target.case.seed + seed)
    return predicted(answer, found.model, found.right) and lse_predicted(answer, found.model, found.right, found.lse)


def tables(results: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The document as tables for a screen: rows of equal columns."""
    totals = []
    for known in KNOWN:
        rows = [one for one in results["functions"] if one["known"] == known]
        seen, right = [one for one in rows if one["visible"]], [one for one in rows if not one["wrong"]]
        times = sorted(one["seconds"] for one in seen) or [0.0]
        totals.append(
            {
                "known": known,
                "visible": len(seen),
                "so": sum(one["so"] for one in seen),
                "false": sum(one["told"] and not one["so"] for one in seen),
                "not told": sum(not one["told"] for one in seen),
                "most calls": max((one["calls"] for one in seen), default=0),
                "median s": times[len(times) // 2],
                "95 % s": times[int(0.95 * (len(times) - 1))],
                "right": len(right),
                "found in right": sum(bool(one["findings"]) for one in right),
            }
        )
    left = [
        {"function": one["function"], "known": one["known"], "said": "; ".join(one["findings"]), "truth": one["truth"]}
        for one in results["functions"]
        if one["visible"] and not one["so"]
    ]
    return [table for table in (totals, left) if table]
