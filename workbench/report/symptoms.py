"""What explains a table of largest errors, in lines for a screen."""

import math
from collections.abc import Sequence

from workbench.case.command_line import case_options
from workbench.judge.explain.plausible import Plausible, Range, Values
from workbench.judge.explain.symptom_table import SymptomTable
from workbench.judge.explain.symptoms import Symptoms
from workbench.report.numbers import number
from workbench.suggested import command

#: sentences of one cause that are shown
_NAMES = 6
_RIGHT = "rounding alone may explain all of these errors"


def lines(found: Symptoms) -> list[str]:
    """The verdict, the set of causes with values of what was left open, and the measurement that would decide."""
    table = found.table
    inputs = "inputs of a known seed" if table.seeded else "random inputs"
    open_ = f", {_listed(list(table.unknown))} unknown" if table.unknown else ""
    head = f"{table.stage} of {table.kernel}: {len(table.entries)} errors in {len(table.cases)} cases, {inputs}{open_}"
    if found.stopped:
        told = " and ".join([*table.unknown, "the errors of a smaller case"])
        return [head, f"not finished: raise --effort, or give {told}"]
    if not found.plausible:
        return [head, *(_right(found) if found.rounding else _nothing(found))]
    count = len(found.plausible) + found.more
    few = f"; the likeliest {len(found.plausible)} are shown" if found.more else ""
    said = "one cause predicts" if count == 1 else f"{count} causes predict"
    made = [head, *([f"{_RIGHT} if {_values(found.rounding, table)}; else"] if found.rounding else [])]
    made.append(f"{said} every number{'' if table.seeded else ' (inputs are random, so this is approximate)'}{few}")
    for n, cause in enumerate(found.plausible, 1):
        made += _cause(n, cause, table)
    return [*made, *_deciding(found)]


def _right(found: Symptoms) -> list[str]:
    table = found.table
    line = f"nothing to explain: {_RIGHT}"
    told = _values(found.rounding, table)
    if not told or len(found.rounding) == math.prod(map(len, table.unknown.values())):
        return [line]
    return [f"{line}, if {told}", "with other values it may not explain them: give the value and run again"]


def _nothing(found: Symptoms) -> list[str]:
    return [
        f"no known fault explains it: none of {found.tried} predicts these numbers",
        "check first: a binary older than its source, two kernels or cases mixed up, a wrong reference",
    ]


def _cause(n: int, cause: Plausible, table: SymptomTable) -> list[str]:
    first, *others = cause.names
    told = _values(cause.values, table)
    made = [f"{n:3}. {first}{f' ({told})' if told else ''}"]
    made += [f"     equivalent: {name}" for name in others[: _NAMES - 1]]
    if len(others) >= _NAMES:
        made.append(f"     and {len(others) - _NAMES + 1} more equivalents")
    return made


def _deciding(found: Symptoms) -> list[str]:
    if len(found.plausible) < 2:
        return []
    if found.measurement is None:
        return ["no tried measurement separates these causes"]
    one = found.measurement
    what = f"the largest error of {found.table.stage}" + ("" if one.row is None else f" in query {one.row}")
    told = [f"{n:3}. {_range(x)}" for n, x in enumerate(one.predicted, 1)]
    words = command("inputs", "", [*case_options(one.case, own=False), "--out", "inputs.safetensors"])
    asked = f"{what} with scale {one.case.scale:.6g}"
    return [
        f"to decide, measure {asked}, on the q, k and v that this command writes:",
        f"     {words}",
        "the causes predict",
        *told,
    ]


def _range(x: Range) -> str:
    if x.high != x.high:
        return "NaN"
    low, high = number(x.low), number(x.high)
    return (low if low == high else f"{low} to {high}") + (", or NaN" if x.nan else "")


def _values(values: Sequence[Values], table: SymptomTable) -> str:
    """The values of each unknown, "any" where these are all that were tried."""
    told = []
    for name, tried in table.unknown.items():
        found = sorted({one[name] for one in values})
        told.append(f"{name} {'any' if len(found) == len(tried) else _listed([f'{x:g}' for x in found], 'or')}")
    return ", ".join(told)


def _listed(words: Sequence[str], last: str = "and") -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"
