"""Elements of a stage as a table, a matrix, a JSON document, and HTML for Jupyter."""

from collections.abc import Sequence
from dataclasses import fields
from io import StringIO
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from workbench.case.ranks import spoken
from workbench.case.stages import AXIS_NAMES, AXIS_PLURALS, INPUTS, MEASURED, OF_QUANTISER
from workbench.expectation.elements import WRONG, State
from workbench.expectation.observed import Observed
from workbench.judge.diff import Diff
from workbench.judge.selection import Selection
from workbench.judge.stage import Profile, StageDiff
from workbench.records import number
from workbench.reference.dataflow import direct
from workbench.refusal import Refusal
from workbench.report import tables
from workbench.report.numbers import number as short
from workbench.report.numbers import ratio
from workbench.report.origin import beginning
from workbench.report.text import WIDTH, headline, listing, plain
from workbench.report.text import verdict as verdict_of
from workbench.trace.trace import Trace

#: elements that are printed at once, and of a stage without a choice
LIMIT, WORST = 256, 5
#: more elements than these make a matrix where they lie along two axes
ROWS = 32
#: digits that tell any two float32 apart; those of a matrix, of which 16 columns fit into 200 characters
DIGITS, FEWER_DIGITS = 9, 4
#: the verdict on an element in a word; None: the stage was not judged
STATES: dict[State | None, str] = {
    State.EXACT: "exact",
    State.ROUNDING: "rounding",
    State.SUSPICIOUS: "suspicious",
    State.OUTSIDE: "bug",
    State.NAN: "bug",
    State.UNWRITTEN: "unwritten",
    State.POISONED: "poisoned",
    State.VACUOUS: "untestable",
    State.ABSENT: "not given",
    State.EMPTY: "bug",
    None: "not judged",
}
#: columns of a profile whose heading is not the name of the field
_HEADINGS = {
    "outside": "over budget",
    "share_outside": "share over budget",
    "over_budget": "error / budget",
    "mean_signed": "mean error",
}
_QUANTITIES = ("actual", "expected", "error", "budget", "over_budget")

Rows = Sequence[dict[str, Any]]


def report(diff: Diff, stage: StageDiff, selection: Selection, rows: Rows | None, screen: Console) -> RenderableType:
    """Chosen elements of a judged run: what was run, what the stage is, and the elements; `rows` in place of all."""
    verdict = verdict_of(stage) if stage.role == "victim" else stage.verdict
    reason = f" ({stage.reason})" if stage.reason else ""
    source = f"; expected: float64 from {expected_from(diff, stage)}" if stage.reported is not None else ""
    lines = [headline(diff.trace), definition(diff.run, stage.name), f"{verdict}{reason}{source}"]
    return Group(*map(Text, lines), *elements(selection, rows, screen))


def reference_report(run: Observed, selection: Selection, screen: Console) -> RenderableType:
    """What chosen elements should be, without what the kernel made of them."""
    source = "q, k and v" if selection.stage in OF_QUANTISER else beginning(run.trace)
    lines = [headline(run.trace), definition(run, selection.stage), f"expected: float64 from {source}"]
    return Group(*map(Text, lines), *elements(selection, None, screen))


def definition(run: Observed, name: str) -> str:
    """A stage, its axes and what it is, in a line."""
    axes = MEASURED[name].axes if name in MEASURED else run.table[name].axes
    return f"{name} [{' '.join(axes)}] = {run.definition(name)}"


def expected_from(diff: Diff, stage: StageDiff) -> str:
    """What the expectations of a judged stage were computed from."""
    if stage.reported is not stage.isolated:
        return beginning(diff.trace)
    read = stage.judged_from or direct(diff.run.table, stage.name)
    inputs, own = [name for name in read if name in INPUTS], [name for name in read if name not in INPUTS]
    return " and ".join([*inputs, *([f"the kernel's {', '.join(own)}"] if own else [])])


def checked(selection: Selection, text: str) -> Selection:
    """`selection` itself, which `text` chose; Refusal where it is too large to be printed."""
    if selection.size <= LIMIT:
        return selection
    sizes = " x ".join(
        f"{n} {spoken(AXIS_PLURALS.get(axis, 'elements'), selection.of_ranks)}" for axis, n in _long(selection).items()
    )
    worst = "" if selection.actual is None else ", or use --worst N"
    raise Refusal(
        f"show prints at most {LIMIT} elements; {text} selects {selection.size} ({sizes}): narrow the indices{worst}"
    )


def document(trace: Trace, stage: StageDiff | None, selection: Selection, rows: Rows | None) -> dict[str, Any]:
    """The document `workbench.show/1`; of the reference alone, `verdict` and actual values are null.

    - `stage`, `verdict`: of the stage
    - `elements`: `index`, `actual`, `expected`, `error`, `budget`, `state` of each
    """
    return {
        "schema": "workbench.show/1",
        "target": trace.target,
        "faults": list(trace.faults),
        "backend": trace.backend,
        "case": number(trace.case_run.as_dict()),
        "stage": selection.stage,
        "verdict": None if stage is None else stage.verdict,
        "elements": [
            number({**row, "state": None if stage is None else STATES[row["state"]]})
            for row in (selection.rows() if rows is None else rows)
        ],
    }


def plain_table(selection: Selection) -> str:
    """The elements as a screen shows them, for `print`."""
    if selection.size > LIMIT:
        return f"{selection.stage}\n{_too_many(selection)}"
    return plain(Group(Text(selection.stage), *elements(selection, None, Console(width=WIDTH, file=StringIO()))))


def html_table(selection: Selection) -> str:
    """The elements as HTML, for Jupyter, in a table or a matrix as on a screen; none of more than can be printed."""
    title = tables.lines([selection.stage])
    if selection.size > LIMIT:
        return title + tables.lines([_too_many(selection)])
    if _is_matrix(selection):
        matrices = (_matrix(selection, quantity, FEWER_DIGITS) for quantity in _quantities(selection))
        parts = (tables.lines([said]) + tables.table(*_html((columns, rows))) for said, columns, rows in matrices)
        return title + "".join(parts)
    return title + tables.table(*_html(_cells(selection, selection.rows())), left=("verdict",))


def html_stage(stage: StageDiff) -> str:
    """The judgement of a stage and its worst elements, for Jupyter."""
    role = {"origin": " <- origin", "victim": " (victim)"}.get(stage.role, "")
    title = f"{stage.name} [{' '.join(stage.axes)}]: {stage.verdict}{role}"
    if stage.reported is None:
        return tables.lines([f"{title} ({stage.reason})"])
    found = stage.reported.summary
    worst = [element for element in stage.worst_of(stage.reported, WORST) if element.over_budget > 0]
    end = ", from q, k and v" if stage.role == "victim" else ""
    said = f"{title}, {found.outside} of {found.size} elements over budget{end}"
    if not worst:
        return tables.lines([said])
    rows = [{**vars(element), "error": element.actual - element.expected} for element in worst]
    known = ("actual", "expected", "error", "budget", "over_budget")
    columns, cells = _html(_columns(stage.axes, known, rows, verdict=True))
    return tables.lines([f"{said}; the worst:"]) + tables.table(columns, cells, left=("verdict",))


def html_profile(profile: Profile) -> str:
    """A profile as a table for Jupyter, a row for each index of its axis, as far as it can be printed."""
    names = [one.name for one in fields(profile) if one.name not in ("axis", "first")]
    columns = [profile.axis, *(_HEADINGS.get(name, name.replace("_", " ")) for name in names)]
    shown, size = min(LIMIT, len(profile.outside)), len(profile.outside)
    values = [[_cell(name, float(getattr(profile, name)[i])) for name in names] for i in range(shown)]
    rows = [[str(profile.first + i), *cells] for i, cells in enumerate(values)]
    return tables.table(columns, rows) + tables.lines([f"{size} rows; {LIMIT} are shown"] if size > shown else [])


def _too_many(selection: Selection) -> str:
    return f"{selection.size} elements; at most {LIMIT} are shown"


def elements(selection: Selection, rows: Rows | None, screen: Console) -> list[RenderableType]:
    """A table with a row for each element, or a matrix where there are many along two axes and the screen is wide
    enough.
    """
    unicode = screen.is_terminal
    if rows is None and _is_matrix(selection):
        for digits in (DIGITS, FEWER_DIGITS):
            parts: list[RenderableType] = []
            for quantity in _quantities(selection):
                title, columns, cells = _matrix(selection, quantity, digits)
                parts += [Text(title, style="bold"), listing(cells, columns, unicode=unicode, right=columns)]
            if all(_fits(part, screen) for part in parts):
                return parts
    columns, cells = _cells(selection, selection.rows() if rows is None else rows)
    for spare in ("", "budget", "error"):  # what says least goes where the screen is narrow
        columns = [column for column in columns if column != spare]
        table = listing(cells, columns, unicode=unicode, right=columns[:-1])
        if _fits(table, screen):
            break
    return [table]


def _fits(part: RenderableType, screen: Console) -> bool:
    """Whether a table is no wider than the screen, so that no number is cut."""
    return screen.measure(part, options=screen.options.update(max_width=10**4)).maximum <= screen.width


def _is_matrix(selection: Selection) -> bool:
    """Whether the elements are many and lie along two axes; one quantity makes a readable matrix however small."""
    return len(_long(selection)) == 2 and (selection.actual is None or selection.size > ROWS)


def _quantities(selection: Selection) -> tuple[str, ...]:
    """What matrices are made of."""
    if selection.actual is None:
        return ("expected",)
    return ("actual",) if selection.state is None else ("actual", "over_budget")


def _html(listed: tuple[list[str], list[dict[str, str]]]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells as `tables.table` takes them."""
    columns, rows = listed
    return columns, [[row[column] for column in columns] for row in rows]


def _cells(selection: Selection, rows: Rows) -> tuple[list[str], list[dict[str, str]]]:
    """The columns of a table of elements and its cells: the axes, and the quantities that are known."""
    known = [name for name in _QUANTITIES if getattr(selection, name, None) is not None]
    if {"actual", "expected"} <= {*known}:
        known.insert(known.index("expected") + 1, "error")
    return _columns([*selection.indices], known, rows, verdict=selection.actual is not None)


def _columns(
    axes: Sequence[str], known: Sequence[str], rows: Rows, *, verdict: bool
) -> tuple[list[str], list[dict[str, str]]]:
    """As `_cells`, of elements with the given axes and `known` quantities."""
    names = {"over_budget": "error / budget"}
    cells = [
        {axis: str(i) for axis, i in row["index"].items()}
        | {names.get(name, name): _cell(name, row[name]) for name in known}
        | {"verdict": STATES[row["state"]]}
        for row in rows
    ]
    return [*axes, *(names.get(name, name) for name in known), *(["verdict"] if verdict else [])], cells


def _matrix(selection: Selection, quantity: str, digits: int) -> tuple[str, list[str], list[dict[str, str]]]:
    """One quantity over the two axes along which several elements were chosen: title, columns and cells."""
    down, across = _long(selection)
    single = {axis: one[0] for axis, one in selection.indices.items() if len(one) == 1}
    fixed = [f"{spoken(AXIS_NAMES[axis], selection.of_ranks)} {axis}={i}" for axis, i in single.items()]
    said = {"over_budget": "error / budget"}.get(quantity, quantity)
    corner = f"{down} \\ {across}"
    rows: dict[int, dict[str, str]] = {}
    for row in selection.rows():
        line = rows.setdefault(row["index"][down], {corner: str(row["index"][down])})
        wrong = quantity == "actual" and row["state"] in WRONG
        line[str(row["index"][across])] = _cell(quantity, row[quantity], digits) + "*" * wrong
    columns = [corner, *map(str, selection.indices[across])]
    marked = " (* over budget)" if any("*" in cell for line in rows.values() for cell in line.values()) else ""
    return f"{said}{marked}{' at ' if fixed else ''}{', '.join(fixed)}", columns, [*rows.values()]


def _long(selection: Selection) -> dict[str, int]:
    """The axes along which more than one element was chosen -> how many."""
    return {axis: len(one) for axis, one in selection.indices.items() if len(one) > 1}


def _cell(quantity: str, x: float | None, digits: int = DIGITS) -> str:
    """Errors and budgets have three digits."""
    if x is None:
        return ""
    if quantity in ("actual", "expected"):
        return f"{x:.{digits}g}"
    return "-" if x != x else ratio(x) if quantity == "over_budget" else short(x)
