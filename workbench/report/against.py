"""Two runs held against each other, as a table and sentences for a terminal and for Jupyter, and as a JSON document."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from workbench.case.command_line import case_options
from workbench.case.stages import ALGORITHMS
from workbench.judge.against.alike import ORDER
from workbench.judge.against.pair import Against
from workbench.judge.against.stage import StageAgainst
from workbench.judge.diff import Diff
from workbench.readings.finding import spans
from workbench.records import number as plain
from workbench.report import ranks, tables
from workbench.report.command import against_command
from workbench.report.document import diff_document, largest
from workbench.report.numbers import number, ratio, value
from workbench.report.tables import Table
from workbench.report.text import WIDTH, gates, headline, verdict, wrapped
from workbench.report.text import plain as on_screen

COLUMNS = (
    "stage",
    "A",
    "B",
    "A against B",
    "difference / budgets",
    "differ",
    "max abs diff",
    "own difference",
    "max ulp",
    "worst at",
    "value in A",
    "value in B",
)
#: columns that a narrow screen does without, the most telling first
_SPARE = (
    "difference / budgets",
    "worst at",
    "value in B",
    "value in A",
    "max abs diff",
    "differ",
    "max ulp",
    "own difference",
)
_LEFT = ("stage", "A", "B", "A against B", "worst at")
#: how the sentence begins that says where two runs diverge
OF_DIVERGENCE = ("first divergence", "no divergence", "nothing was compared")
#: verdict -> kind of a row
_KINDS = {"diverges": "origin", "carried": "victim", "rounding": "clean", "identical": "clean"}


def report(pair: Against, *, unicode: bool, width: int) -> RenderableType:
    """The whole comparison of two runs: what was run, a row for each stage, in words where they diverge, how to repeat
    it.

    On a screen narrower than the table (`width`, in characters) the columns that say least are left out.
    """
    table = stage_table(pair).screen(unicode=unicode, width=width)
    fold = width if unicode else None
    above = [part for line in _above(pair) for part in wrapped(line, "", fold)]
    below = [part for line in findings(pair) for part in wrapped(line, "" if line.startswith(" ") else "bold", fold)]
    repeat = wrapped(f"repeat: {command}", "dim", None) if (command := against_command(pair)) else []
    return Group(*above, table, *below, *repeat)


def summary(pairs: Sequence[Against], *, unicode: bool) -> RenderableType:
    """One row for each pair: case, verdicts of A and B, where they diverge, the largest x of both budgets."""
    table, total = pairs_table(pairs)
    return Group(table.screen(unicode=unicode), Text(total, style="bold"))


def pairs_table(pairs: Sequence[Against]) -> tuple[Table, str]:
    """The table of `summary`, and the line below it."""
    columns = ("A", "B", "verdict of A", "verdict of B", "part at", "difference / budgets")
    rows = [
        (
            " ".join([pair.a.trace.target, *case_options(pair.a.trace.case, own=False)]),
            pair.b.trace.target,
            pair.a.verdict,
            pair.b.verdict,
            pair.parts_at or ("-" if pair.verdict != "untestable" else "untestable"),
            ratio(max((stage.over_budgets for stage in pair if stage.judged), default=None)),
        )
        for pair in pairs
    ]
    kinds = ["origin" if pair.parts_at else "clean" for pair in pairs]
    parted = sum(pair.parts_at is not None for pair in pairs)
    total = f"{len(pairs)} pairs: {parted} diverge by more than both budgets"
    return Table(columns, rows, kinds, left=columns[:-1], folds=("A", "B")), total


def in_short(pair: Against) -> str:
    """What `report` shows, for `print`."""
    return on_screen(report(pair, unicode=False, width=WIDTH))


def html_table(pair: Against) -> str:
    """What `report` shows as HTML, for Jupyter."""
    return tables.lines(_above(pair)) + stage_table(pair).html() + tables.lines(findings(pair))


def document(pair: Against) -> dict[str, Any]:
    """The document `workbench.against/1` of two runs.

    - `verdict`, `parts_at`, `differs_at`: of the pair; the first stage that diverges; the first whose bits differ
    - `stages`: as `workbench diff --against` prints them
    - `not_comparable`: stages of which only one side has values: `name`, `reason`
    - `inputs_differ_by`: input -> what the runs read differently
    - `a`, `b`: both as `workbench.diff/1`
    """
    return {
        "schema": "workbench.against/1",
        "verdict": pair.verdict,
        "parts_at": pair.parts_at,
        "differs_at": pair.differs_at,
        "stages": [plain(_stage(stage)) for stage in pair],
        "not_comparable": [{"name": name, "reason": reason} for name, reason in pair.apart.items()],
        "inputs_differ_by": dict(pair.moved),
        "a": diff_document(pair.a),
        "b": diff_document(pair.b),
    }


def documents(pairs: Sequence[Against]) -> dict[str, Any]:
    """The document `workbench.againsts/1` of a list of pairs."""
    return {"schema": "workbench.againsts/1", "pairs": [document(pair) for pair in pairs]}


def _stage(stage: StageAgainst) -> dict[str, Any]:
    fields = {**asdict(stage), "verdict": stage.verdict}
    measures = ("over_budgets", "max_abs", "max_own", "max_ulp")
    return {**fields, **{name: largest(fields[name]) for name in measures}}


def headlines(pair: Against) -> list[str]:
    """What was run, a line each."""
    return [f"{letter}: {headline(one.trace)}" for letter, one in (("A", pair.a), ("B", pair.b))]


def _above(pair: Against) -> list[str]:
    """What stands above the table: the gates that failed, and what was run."""
    return [*(line.plain for line in gates([pair.a.trace, pair.b.trace])), *headlines(pair)]


def _alone(pair: Against) -> list[str]:
    """Stages that are dumped, but not compared."""
    compared = {stage.name for stage in pair}
    return [name for name in ORDER if name in pair.apart and name not in compared]


def stage_table(pair: Against) -> Table:
    """A row for every stage that either dumped, in data-flow order."""
    compared = {stage.name: stage for stage in pair}
    names = [name for name in ORDER if name in compared or name in pair.apart]
    rows = []
    for name in names:
        cells = (name, _verdict(pair.a, name), _verdict(pair.b, name))
        rest = _cells(compared[name]) if name in compared else ("not comparable", *[""] * (len(COLUMNS) - 4))
        rows.append((*cells, *rest))
    return Table(COLUMNS, rows, [kind(pair, name) for name in names], left=_LEFT, spare=_SPARE)


def _verdict(judged: Diff, name: str) -> str:
    """A stage's verdict against float64, and its role."""
    if name not in ALGORITHMS[judged.trace.algorithm]:
        return "-"
    return verdict(judged[name])


def _cells(stage: StageAgainst) -> tuple[str, ...]:
    worst = stage.worst if stage.verdict != "identical" else None
    tiles = "" if stage.tiles is None else f" ({_tiles(stage)})"
    return (
        f"{stage.verdict}{tiles}",
        ratio(largest(stage.over_budgets)),
        f"{stage.differing}/{stage.size}",
        *(number(largest(measure)) for measure in (stage.max_abs, stage.max_own, stage.max_ulp)),
        " ".join(f"{axis}={i}" for axis, i in worst.index.items()) if worst else "",
        *((value(worst.a), value(worst.b)) if worst else ("", "")),
    )


def _tiles(stage: StageAgainst) -> str:
    """The key tiles that are compared: "tile 0", or "tiles 0-1,4-5"."""
    tiles = np.array(stage.tiles or ())
    return f"tile{'s' * (len(tiles) > 1)} {spans(tiles, most=len(tiles)).replace(', ', ',')}"


def kind(pair: Against, name: str) -> str:
    """The kind of a stage's row, of `tables.KINDS`."""
    return "not judged" if name in _alone(pair) else _KINDS.get(pair[name].verdict, "")


def findings(pair: Against) -> list[str]:
    """The comparison in words: each run against float64, where they diverge or what explains that they differ."""
    lines = [f"{letter} against float64: {_judged(judged)}" for letter, judged in (("A", pair.a), ("B", pair.b))]
    if pair.moved:
        by = ", ".join(f"{x} by at most {number(most)}" for x, most in pair.moved.items())
        lines.append(f"the inputs of A and B differ: {by}")
        lines.append("  each run is judged from its own inputs, so this difference counts against neither")
    lines += _parting(pair, pair[pair.parts_at]) if pair.parts_at else _explained(pair)
    reasons: dict[str, list[str]] = {}
    for name, reason in pair.apart.items():
        reasons.setdefault(reason, []).append(name)
    if in_part := [stage for stage in pair if stage.tiles is not None]:
        where = f"{_tiles(in_part[0])} only: in later tiles the running states cover different keys"
        lines.append(f"  compared in part: {', '.join(stage.name for stage in in_part)} ({where})")
    return [*lines, *(f"  not comparable: {', '.join(names)} ({reason})" for reason, names in reasons.items())]


def _judged(judged: Diff) -> str:
    origin = f", first wrong stage {judged.origin}" if judged.origin else ""
    return f"{judged.verdict}{origin}" + (f"; victims {', '.join(judged.victims)}" if judged.victims else "")


def _parting(pair: Against, stage: StageAgainst) -> list[str]:
    """Where they diverge first, and who is wrong there."""
    definitions = list(dict.fromkeys(one.run.definition(stage.name) for one in (pair.a, pair.b)))
    lines = [f"first divergence at {stage.name} = {definitions[0]}"]
    lines += [f"  in B: {other}" for other in definitions[1:]]
    if stage.worst is not None:
        worst = stage.worst
        axes = ", ".join(ranks.index(pair.a.trace, axis, i) for axis, i in worst.index.items())
        values = ((worst.a, worst.expected_a), (worst.b, worst.expected_b))
        one, other = (f"{value(actual)}, expected {value(expected)}" for actual, expected in values)
        lines.append(f"  worst at {axes}: A {one}; B {other}; budget of the difference {number(worst.budget)}")
    if stage.outside:
        share = f"{stage.outside} of {stage.size} ({stage.outside / stage.size:.1%})"
        lines.append(f"  over both budgets: {share}; A is wrong at {stage.wrong[0]} of them, B at {stage.wrong[1]}")
    nearest = f"{', '.join(stage.given)}, the nearest stages that both dumped" if stage.given else "q, k and v"
    lines.append(f"  judged from {nearest}")
    for parting, words in (("diverges", "also diverge"), ("carried", "differ only because their inputs do")):
        if names := [other.name for other in pair if other.verdict == parting and other.name != stage.name]:
            lines.append(f"  {words}: {', '.join(names)}")
    return [*lines, *_same_before(pair)]


def _same_before(pair: Against) -> list[str]:
    """The stages before the first that differs."""
    names = [stage.name for stage in pair]
    same = names[: names.index(pair.differs_at)] if pair.differs_at else names
    return [f"  bit-identical before {pair.differs_at}: {', '.join(same)}"] if same and pair.differs_at else []


def _explained(pair: Against) -> list[str]:
    """What explains the differences of two runs without a divergence."""
    if pair.verdict == "untestable":
        return ["nothing was compared: no stage could be judged in both"]
    if wrong := [f"{letter} at {judged.origin}" for letter, judged in (("A", pair.a), ("B", pair.b)) if judged.origin]:
        return [f"no divergence over both budgets, but wrong against float64: {' and '.join(wrong)}"]
    if pair.differs_at is None:
        return ["no divergence: every compared stage is bit-identical"]
    first, nearest = pair[pair.differs_at], max(pair, key=lambda stage: largest(stage.over_budgets) or 0.0)
    how = "summation order explains" if _same_arithmetic(pair) else "rounding explains"
    if pair.moved:
        how = "their inputs and rounding explain"
    apart = f"max abs diff {number(largest(first.max_abs))}"
    own = f", {number(largest(first.max_own))} of it from this stage" if pair.moved else ""
    return [
        f"no divergence: {how} every difference",
        f"  first difference: {first.name}, {first.differing} of {first.size} elements, {apart}{own}, "
        f"max {number(largest(first.max_ulp))} ulp, difference / budgets {ratio(largest(first.over_budgets))}",
        *_same_before(pair),
        f"  largest difference / budgets: {ratio(largest(nearest.over_budgets))}, in {nearest.name}",
    ]


def _same_arithmetic(pair: Against) -> bool:
    """Whether both promise the same roundings, in tiles and splits of their own."""
    one, other = (replace(judged.trace.contract, block_k=None, splits=None) for judged in (pair.a, pair.b))
    return one == other and not one.assumed and not pair.moved and pair.a.trace.backend == pair.b.trace.backend
