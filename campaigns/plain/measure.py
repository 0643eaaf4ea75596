"""Right runs under the budgets of plain functions: none may be outside. Beside them, under the same settings, what is
found of small faults.

Kernels of ours and the correct styles that declare what they do are judged by the plain function that does the same
(`functions`), by what they declare (`sayable`): out and lse from the inputs on, and in reverse mode where an
error is large for its forward budget; stages of the same names each alone.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from campaigns.plain.counts import Missed, Part, compared, shown, size_of
from campaigns.plain.faults import FAULTS, faulty
from campaigns.plain.sayable import Said, said
from campaigns.plain.stages import RESULTS, dumped
from campaigns.spread import spread
from campaigns.styles import CORRECT, Style, declared
from campaigns.styles.style import drawn, every_row_has_keys
from workbench.bench.harness import gathered
from workbench.case.case import Case
from workbench.explore.draw import Among
from workbench.explore.sample import sample
from workbench.floats import DTYPES, to_float64
from workbench.foreign.run import run
from workbench.reference.bound import Budget
from workbench.reference.graph import Expected, Graph, budget_at, budgets
from workbench.reference.graph import trace as graph_of
from workbench.refusal import Refusal
from workbench.trace.trace import Trace

SCHEMA = "workbench.bench-plain/1"
KERNELS = ("flash", "split_k")
#: elements of a result that are bounded in reverse: the farthest off, and some drawn
FARTHEST, DRAWN = 16, 8
#: share of the forward budget from which on an error may be outside of the reverse one
LARGE = 0.01
#: at most so many are bounded in one pass, which keeps an adjoint of each
AT_ONCE = 12
#: of a fault, elements that are bounded in reverse
OF_FAULT = 3
#: of a style's case, multiplications of q k^T
WORK = 1 << 21
#: what styles are tried on beside normal inputs
_DISTRIBUTIONS = ("normal", "uniform", "outlier-channels", "near-cancelling", "peaked", "constant-v", "zero-head",
                  "one-hot")  # fmt: skip
#: a case of any style, on which it says what it declares
_SMALL: Mapping[str, Any] = {"seqlen": 4, "head_dim": 16}
# seconds of a run and of a cold build, measured on 2 cores, for estimates only
RUN_S, BUILD_S = 1.0, 40.0


def measure(runs: int = 2000, seed: int = 0, jobs: int = 1) -> dict[str, Any]:
    """The JSON document of one campaign, the same for any number of `jobs` (processes).

    `rows`: for each kernel and style, of out, lse and dumped stages how many elements, how many of them `judged`, how
    many `outside` the worst case and `beyond` the statistical budget, and the largest error by each (`worst`,
    `likely`); `reverse` the same of elements bounded in reverse mode. `outside` lists every run with an element outside
    or beyond, and where. `faults`: in how many of the runs with it each fault was found beyond each of the two, and
    how large the least one found was, and the largest one missed: as a change of lse, or of out by its largest element.
    `left_out`: field -> styles whose declaration has no word in a plain function or the graph's contract.
    """
    sayable, left_out = _sayable()
    items = _items(runs, seed, sayable)
    estimate_s = RUN_S * runs / jobs + BUILD_S
    rows = gathered(f"judge {runs} right runs", estimate_s, spread(_row, items, jobs), _told)
    for row in rows:
        if "left_out" in row:
            left_out.setdefault(row["left_out"], []).append(f"{row['kernel']}: {row['case']}")
    judged = [row for row in rows if "parts" in row]
    return {
        "schema": SCHEMA,
        "seed": seed,
        "runs": len(judged),
        "left_out": left_out,
        "rows": [_summed(name, [row for row in judged if row["kernel"] == name]) for name in _names(judged)],
        "all": _summed("all", judged),
        "outside": [
            {"kernel": row["kernel"], "case": row["case"], "where": row["found"]} for row in judged if row["found"]
        ],
        "faults": _faults(judged),
    }


def tables(results: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The document as tables for a screen: rows of equal columns."""
    rows = [
        {"kernel": row["kernel"], "runs": row["runs"], "of": of, **shown(row[of])}
        for row in (*results["rows"], results["all"])
        for of in PARTS
        if of in row
    ]
    outside = [
        {"kernel": one["kernel"], "case": one["case"], "what": what, "how far": how}
        for one in results["outside"]
        for what, how in one["where"].items()
    ]
    left_out = [{"left out": field, "styles": ", ".join(names)} for field, names in results["left_out"].items()]
    return [table for table in (rows, outside, results["faults"], left_out) if table]


def wrong(results: dict[str, Any]) -> bool:
    """Whether a right run was outside, or too few elements were judged to say so."""
    every = results["all"]
    few = any(every[name]["judged"] < 0.99 * every[name]["elements"] for name in (*RESULTS, "stages") if name in every)
    return bool(results["outside"]) or not results["runs"] or few


PARTS = (*RESULTS, "stages", "reverse")


def _row(item: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """One right run."""
    name, fields = item
    case = Case(**fields)
    target = name if name in KERNELS else declared(_STYLES[name], "full")
    trace = run(target, case, backend="emulator") if name in KERNELS else run(target, case)
    found = said(trace)
    row = {"kernel": name, "case": str(case)}
    if isinstance(found, str):
        return row | {"left_out": found}
    inputs = {x: trace.inputs[x] for x in "qkv"}
    graph = graph_of(found.f, {**inputs, **found.how})
    random = np.random.default_rng(case.seed)
    made = budgets(graph, found.contract, names=RESULTS)
    parts: dict[str, Part] = {"reverse": Part()}
    wrongs, tried = list(faulty(trace, found, random)), dict[str, Missed]()
    where: dict[str, str] = {}
    for result in RESULTS:
        actual, expected = trace.stages[result], made[result]
        parts[result], worst, likely = compared(actual, expected.value, expected.budget)
        if parts[result].beyond:
            where[result] = _at(worst, likely, actual, expected)
        elements = _elements(likely, random)
        others = [(fault, compared(values[result], expected.value, expected.budget)) for fault, values in wrongs]
        farthest = [(fault, _far(part[2], OF_FAULT)) for fault, part in others]
        at = _in_reverse(graph, found, result, [*elements, *(e for _, some in farthest for e in some)])
        part = _part_of(actual, expected, elements, at[: len(elements)])
        parts["reverse"].add(part)
        if part.beyond:
            where[f"{result} in reverse"] = f"{part.worst:.3g} of the worst case, {part.likely:.3g} of the statistical"
        place = len(elements)
        for (fault, (forward, _, _)), (_, some), (_, values) in zip(others, farthest, wrongs, strict=True):
            back = _part_of(values[result], expected, some, at[place : place + len(some)])
            place += len(some)
            one = tried.setdefault(fault, Missed())
            one.outside |= forward.outside + back.outside > 0
            one.beyond |= forward.beyond + back.beyond > 0
            one.size = max(one.size, size_of(values[result], expected.value, relative=result == "out"))
    stages = _stages(trace, found, graph, where)
    if stages is not None:
        parts["stages"] = stages
    return row | {
        "parts": {name: vars(part) for name, part in parts.items()},
        "found": where,
        "dtype": case.dtype,
        "faults": {fault: vars(one) for fault, one in tried.items()},
    }


def _at(worst: Any, likely: Any, actual: Any, expected: Expected) -> str:
    """The element that is farthest off."""
    index = np.unravel_index(int(np.argmax(likely)), likely.shape)
    value = to_float64(actual)[index]
    return (
        f"{worst[index]:.3g} of the worst case, {likely[index]:.3g} of the statistical at"
        f" {[int(i) for i in index]}: {value!r}, expected {expected.value[index]!r}"
    )


def _elements(likely: Any, random: np.random.Generator) -> list[tuple[int, ...]]:
    """Those far off for their forward budget, and some drawn."""
    large = [e for e in _far(likely, FARTHEST) if likely[e] >= LARGE]
    return large + [tuple(int(random.integers(n)) for n in likely.shape) for _ in range(DRAWN)]


def _far(likely: Any, n: int) -> list[tuple[int, ...]]:
    """The `n` elements with the largest errors by their budget."""
    order = np.argsort(likely, axis=None)[-n:]
    some = [tuple(int(i) for i in np.unravel_index(place, likely.shape)) for place in order]
    return [e for e in some if likely[e] > 0]


def _in_reverse(graph: Graph, found: Said, name: str, elements: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
    """The worst case, the statistical budget and the size of each element."""
    made: list[tuple[float, ...]] = []
    for first in range(0, len(elements), AT_ONCE):
        one = budget_at(graph, found.contract, name, elements[first : first + AT_ONCE])
        sizes = np.broadcast_to(one.size, one.bound.shape)
        made += list(zip(one.bound, one.statistical, sizes, strict=True))
    return made


def _part_of(actual: Any, expected: Expected, elements: Sequence[tuple[int, ...]], at: Sequence[Any]) -> Part:
    if not elements:
        return Part()
    index = tuple(np.array(elements).T)
    budget = Budget(*(np.array(one) for one in zip(*at, strict=True)))
    return compared(to_float64(actual)[index], expected.value[index], budget)[0]


def _stages(trace: Trace, found: Said, graph: Graph, where: dict[str, str]) -> Part | None:
    """Every dumped stage of the plain function alone, from the stages before it; None where it has none."""
    if found.tiling is None:
        return None
    # what is not dumped is bounded from what is
    dumps = dumped(trace, found, graph)
    made = budgets(graph, found.alone, dumps, names=tuple(dumps))
    whole = Part()
    for name, x in dumps.items():
        part, worst, likely = compared(x, made[name].value, made[name].budget)
        if part.beyond:
            where[f"{name} alone"] = _at(worst, likely, x, made[name])
        whole.add(part)
    return whole


_STYLES: Mapping[str, Style] = {style.name: style for style in CORRECT}


def _sayable() -> tuple[list[tuple[str, str]], dict[str, list[str]]]:
    """Styles and dtypes whose declaration can be said; field -> those of which it cannot."""
    found, left_out = [], dict[str, list[str]]()
    for style in CORRECT:
        for dtype in style.dtypes:
            why = said(run(declared(style, "full"), Case(**_SMALL, dtype=dtype)))
            if isinstance(why, str):
                left_out.setdefault(why, []).append(f"{style.name} {dtype}")
            else:
                found.append((style.name, dtype))
    return found, left_out


def _items(runs: int, seed: int, sayable: Sequence[tuple[str, str]]) -> list[tuple[str, dict[str, Any]]]:
    """Kernels of ours and styles by turns, each with a case."""
    random = np.random.default_rng(seed)
    found: list[tuple[str, dict[str, Any]]] = []
    for number in range(runs):
        if number % 2 == 0:
            name = KERNELS[number // 2 % len(KERNELS)]
            case = sample(random, name, empty_rows=False, feature=Among((None, None, None, "alibi")))
            found.append((name, case.as_dict()))
        else:
            name, dtype = sayable[number // 2 % len(sayable)]
            found.append((name, _case(_STYLES[name], dtype, random)))
    return found


def _case(style: Style, dtype: str, random: np.random.Generator) -> dict[str, Any]:
    def fits(case: Mapping[str, Any]) -> bool:
        work = case["batch"] * case["heads"] * case["seqlen_q"] * case["seqlen_k"] * case["head_dim"]
        return work <= WORK and every_row_has_keys(case) and style.fits(case)

    (fields,) = drawn((dtype,), fits, 1, int(random.integers(1 << 31)))
    fields["distribution"] = str(random.choice(_DISTRIBUTIONS))
    try:
        return Case(**fields).as_dict()
    except Refusal:
        return Case(**fields | {"distribution": "normal"}).as_dict()


def _told(rows: Sequence[dict[str, Any]]) -> str:
    return f", {sum(bool(row.get('found')) for row in rows)} outside"


def _names(rows: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["kernel"] for row in rows))


def _summed(name: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {"kernel": name, "runs": len(rows)}
    for of in PARTS:
        parts = [Part(**row["parts"][of]) for row in rows if of in row["parts"]]
        if parts:
            whole = Part()
            for part in parts:
                whole.add(part)
            found[of] = vars(whole)
    return found


def _faults(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each fault and dtype: runs with it, those that either bound finds, and sizes of what is found."""
    found = []
    for fault, dtype in itertools.product(FAULTS, DTYPES):
        tried = [Missed(**row["faults"][fault]) for row in rows if row["dtype"] == dtype and fault in row["faults"]]
        if tried:
            counts = {name: sum(getattr(one, name) for one in tried) for name in ("outside", "beyond")}
            least = min((one.size for one in tried if one.beyond), default=np.inf)
            most = max((one.size for one in tried if not one.beyond), default=0.0)
            sizes = {"least found": f"{least:.2g}", "most missed": f"{most:.2g}"}
            found.append({"fault": fault, "dtype": dtype, "runs": len(tried), **counts, **sizes})
    return found
