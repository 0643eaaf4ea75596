"""What is read of the contracts of kernels in the styles of the wild, which tell nothing, and what that does to
verdicts on them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from campaigns.spread import spread
from campaigns.styles import CORRECT, Style, cases, declared
from campaigns.tally import counted
from workbench import Case, Refusal, diff, run
from workbench.bench.harness import gathered
from workbench.readings.contract.measured import MeasuredContract, measured_contract

SCHEMA = "workbench.contracts/1"
#: seconds that a case takes, for the estimate
ROW_S = 4.0
#: keys without which tiles and sums have no parts
KEYS = 16
#: ulps of exp below which an lse in float32 tells none
ULPS = 30.0
STATUS = ("right", "not read", "wrong")
_STYLES = {style.name: style for style in CORRECT}


def measure(per_style: int = 2, seed: int = 0, jobs: int = 1, names: Sequence[str] = ()) -> dict[str, Any]:
    """The JSON document: a row for each style and each of `per_style` random cases, with each field of its contract
    that is looked at (`status`, and whether it is `readable`), and the verdicts without a contract and with the one
    that was read.
    """
    asked = [(name, at) for name in names or _STYLES for at in range(per_style)]
    rows = spread(partial(row, per_style=per_style, seed=seed), asked, jobs)
    return {
        "schema": SCHEMA,
        "seed": seed,
        "cases": gathered("read contracts", ROW_S * len(asked) / jobs, rows, _wrong),
    }


def _wrong(rows: list[dict[str, Any]]) -> str:
    return f", {sum(len(one['wrong']) for one in rows)} fields wrong"


def row(asked: tuple[str, int], *, per_style: int, seed: int) -> dict[str, Any]:
    """One style on one case."""
    name, at = asked
    style = _STYLES[name]
    # other cases for each style
    case = Case(**cases(style, per_style, seed + [*_STYLES].index(name))[at])
    trace = run(declared(style, "silent"), case)
    found = measured_contract(trace)
    truth = _truth(style, case, found)
    status = {one.name: _status(one.name, one.value, one.is_read, truth) for one in found.every if one.name in truth}
    wrong = [
        {"field": field, "read": str(found.fields[field]), "truth": str(truth[field]), "why": found.evidence[field]}
        for field, how in status.items()
        if how == "wrong"
    ]
    return {
        "style": name,
        "case": str(case),
        "status": status,
        "readable": [field for field in status if readable(field, truth, case)],
        "wrong": wrong,
        "undeclared": diff(trace).verdict,
        "measured": _judged(style, case, found),
        "calls": found.calls,
        "seconds": round(found.seconds, 2),
    }


def _judged(style: Style, case: Case, found: MeasuredContract) -> str:
    """The verdict with what was read; refused, where it contradicts what is declared or does not fit the case."""
    try:
        return diff(run(declared(style, "silent"), case, contract=dict(found.fields))).verdict
    except Refusal:
        return "refused"


def _truth(style: Style, case: Case, found: MeasuredContract) -> dict[str, Any]:
    """What the style declares, with what it means where it is silent."""
    q, k, _ = case.inputs()
    told = style.contract(q, k, "full")
    usual: dict[str, Any] = {"scaled_q_dtype": "float32", "out_dtype": case.dtype}
    if "block_k" in told:
        usual["tile_order"] = "ascending"
    return usual | told


def _status(field: str, value: Any, is_read: bool, truth: Mapping[str, Any]) -> str:
    if not is_read:
        return "not read"
    told = truth[field]
    if field == "exp_ulps":  # a bound, which the style rounds up as it likes
        return "right" if 0.5 <= value / told <= 2 else "wrong"
    told = tuple(told) if isinstance(told, list) else told
    if field == "tile_order" and told == tuple(range(len(told))):
        told = "ascending"
    return "right" if value == told or (value != value and told != told) else "wrong"


def readable(field: str, truth: Mapping[str, Any], case: Case) -> bool:
    """Whether a field makes a difference to out or lse of some inputs of this shape."""
    keys, block = case.seqlen_k, truth.get("block_k")
    if keys < KEYS:
        return False
    tiles = 1 if block is None else -(-keys // block)
    empty = not case.mask().any(-1).all()
    rules = {
        "block_k": tiles > 1,
        "tile_order": tiles > 2 and "block_k" in truth,
        "splits": tiles > 1,
        "partials_dtype": tiles > 1 and ("splits" in truth or "split_bounds" in truth),
        "normalisation": tiles > 1 or truth["normalisation"] == "lse",
        "probs_rounding": truth["probs_dtype"] != "float32",
        "row_sum_of_cast": truth["probs_dtype"] != "float32",
        "out_rounding": case.dtype != "float32",
        "input_precision": case.dtype == "float32",
        "exp_floor": case.dtype != "float16",
        "exp_flushes": case.dtype != "float16" and truth["exp_floor"] is None,
        "exp_ulps": truth["exp_ulps"] >= ULPS,
        "empty_out": empty,
        "empty_lse": empty,
    }
    return rules.get(field, True)


def tables(results: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The document as tables for a screen: rows of equal columns."""
    rows = results["cases"]
    fields = dict.fromkeys(field for one in rows for field in one["status"])
    read = [_counted(field, [one for one in rows if field in one["status"]], (field,)) for field in sorted(fields)]
    read.append(_counted("all", rows, tuple(fields)))
    verdicts: list[dict[str, Any]] = [
        {"contract": how, "runs": len(rows), **counted(Counter(one[how] for one in rows))}
        for how in ("undeclared", "measured")
    ]
    times = sorted(one["seconds"] for one in rows) or [0.0]
    cost = [
        {
            "median calls": sorted(one["calls"] for one in rows)[len(rows) // 2] if rows else 0,
            "most calls": max((one["calls"] for one in rows), default=0),
            "median s": times[len(times) // 2],
            "95 % s": times[int(0.95 * (len(times) - 1))],
        }
    ]
    wrong = [{"style": one["style"], "case": one["case"], **which} for one in rows for which in one["wrong"]]
    odd = [
        {"style": one["style"], "case": one["case"], "undeclared": one["undeclared"], "measured": one["measured"]}
        for one in rows
        if one["measured"] not in ("exact", "rounding")
    ]
    return [table for table in (read, verdicts, cost, wrong, odd) if table]


def _counted(name: str, rows: Sequence[Mapping[str, Any]], fields: Sequence[str]) -> dict[str, Any]:
    """How often some fields are right, where they are readable and elsewhere."""
    within: Counter[str] = Counter()
    beyond: Counter[str] = Counter()
    for one in rows:
        for field in fields:
            if field in one["status"]:
                (within if field in one["readable"] else beyond)[one["status"][field]] += 1
    total = within.total()
    return {
        "field": name,
        "readable": total,
        **{how: within[how] for how in STATUS},
        "% right": round(100 * within["right"] / total, 1) if total else "",
        "others": beyond.total(),
        "of these right": beyond["right"],
        "of these wrong": beyond["wrong"],
    }
