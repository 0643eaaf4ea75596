"""What readings say of attention functions that were written without a look at them, and whether that is so."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from campaigns.blackbox import BOXES
from campaigns.known import cut
from campaigns.spread import spread
from workbench import Case, diff, run
from workbench.bench.harness import gathered
from workbench.readings.proof import lse_predicted, predicted, rms
from workbench.readings.reader import Measured, measured
from workbench.readings.target import Answer, Target
from workbench.trace.trace import Trace

SCHEMA = "workbench.measured/1"
KNOWN = {"out": ("out",), "out and lse": ("out", "lse")}
#: seeds that no reading and no proof of it saw
SEEDS = (4099, 8209)
#: seconds that a function takes, for the estimate, and of those that one with `explain` alone does
ROW_S, EXPLAIN_S = 4.0, 3.0
_BOXES = {box.name: box for box in BOXES}


def measure(jobs: int = 1, names: Sequence[str] = (), *, explain: bool = False) -> dict[str, Any]:
    """The JSON document: a row for each function, wrong and right, and each of KNOWN. `explain`: `explained`, a row for
    each wrong function, of its out alone, in place of these.
    """
    if explain:
        of = names or [*_BOXES]
        rows = gathered("explain functions", EXPLAIN_S * len(of) / jobs, spread(explained, of, jobs))
        return {"schema": SCHEMA, "explained": rows}
    asked = [(name, known, wrong) for known in KNOWN for wrong in (True, False) for name in names or _BOXES]
    rows = gathered("measure functions", ROW_S * len(asked) / jobs, spread(row, asked, jobs))
    return {"schema": SCHEMA, "functions": rows}


def explained(name: str) -> dict[str, Any]:
    """What `explain` says of a wrong function, of out alone, and its seconds on a core."""
    box = _BOXES[name]
    judged = diff(_trace(name, "out", wrong=True))
    begun = time.process_time()
    found = judged.explain()
    return {
        "function": name,
        "verdict": judged.verdict,
        "causes": [cause.text for cause in found.causes],
        "unknown": [*found.unexplained],
        "hypotheses": found.tried,
        "ended_by": found.ended_by,
        "seconds": round(time.process_time() - begun, 2),
        "truth": box.truth,
    }


def _trace(name: str, known: str, *, wrong: bool) -> Trace:
    """A run of a function, with so much known."""
    box = _BOXES[name]
    options = {"window" if key == "window_size" else key: x for key, x in box.options.items()}
    return cut(run(box.wrong if wrong else box.right, Case(**options)), KNOWN[known])


def row(asked: tuple[str, str, bool]) -> dict[str, Any]:
    """One function with so much known."""
    name, known, wrong = asked
    box = _BOXES[name]
    found = measured(_trace(name, known, wrong=wrong))
    sound = Target(_trace(name, known, wrong=False)).natural
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
    if "explained" in results:
        return _of_explained(results["explained"])
    totals = []
    for known in KNOWN:
        rows = [one for one in results["functions"] if one["known"] == known]
        seen, right = [one for one in rows if one["visible"]], [one for one in rows if not one["wrong"]]
        times = [one["seconds"] for one in seen]
        totals.append(
            {
                "known": known,
                "visible": len(seen),
                "so": sum(one["so"] for one in seen),
                "false": sum(one["told"] and not one["so"] for one in seen),
                "not told": sum(not one["told"] for one in seen),
                "most calls": max((one["calls"] for one in seen), default=0),
                **_spread(times),
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


def _of_explained(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """How long `explain` took, of all and of those that it knows no cause of, and the latter."""
    wrong = [one for one in rows if one["causes"] or one["unknown"]]
    unknown = [one for one in wrong if one["unknown"]]
    totals = [
        {"functions": name, "count": len(some), **_spread([one["seconds"] for one in some])}
        for name, some in (("all", wrong), ("unknown", unknown))
    ]
    left = [{key: one[key] for key in ("function", "seconds", "hypotheses", "truth")} for one in unknown]
    return [table for table in (totals, left) if table]


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    """Median and 95th percentile; 0 of none."""
    median, high = np.percentile(seconds or [0.0], (50, 95))
    return {"median s": round(float(median), 2), "95 % s": round(float(high), 2)}
