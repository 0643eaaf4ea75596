"""The judgement of a kernel by a plain reference: a table and sentences, and its document."""

from typing import Any

from rich.console import Group, RenderableType

from workbench.expectation.elements import Element, State
from workbench.explore.reference_shrink import ReferenceShrunk
from workbench.judge.reference.causes.cause import Cause, Explained
from workbench.judge.reference.diff import ReferenceDiff
from workbench.judge.reference.lines import code, short
from workbench.judge.stage import ASSUMPTION, EVIDENCE, StageDiff
from workbench.records import number as plain_number
from workbench.report.numbers import mismatches, ratio, value
from workbench.report.reference_budget import budget_lines
from workbench.report.tables import Table
from workbench.report.tables import lines as lines_html
from workbench.report.text import LEFT, SPARE, WIDTH, cells, columns_of, gates, kind, plain, row_of, wrapped
from workbench.suggested import instead
from workbench.work import ENDED

SCHEMA = "workbench.reference/1"
#: stages that a short report shows a row each, at most
SHOWN = 4
#: edits that fresh inputs contradict, of which a long search says so many
WITHDRAWN = 3
_MEANING = {
    "exact": ": every judged element is correctly rounded",
    "rounding": ": every judged element is within its budget",
    "untestable": ": too few elements could be judged; treated as a failure",
}
_DOUBT = {
    EVIDENCE: ": no bug is proved, but default arithmetic does not explain the errors; treated as a failure",
    ASSUMPTION: ": no bug is proved, but default arithmetic does not explain the errors",
}


def report(diff: ReferenceDiff, *, unicode: bool, width: int, full: bool = False) -> RenderableType:
    """What was run, a row for each stage, and what they add up to; `full`: every stage, the contract, and what budgets
    come from.
    """
    fold = width if unicode else None
    head = wrapped(diff.headline, "", fold)
    below = [line for text in sentences(diff, full) for line in wrapped(text, "", fold)]
    return Group(*gates([diff]), *head, table(diff, full).screen(unicode=unicode, width=width), *below)


def table(diff: ReferenceDiff, full: bool) -> Table:
    """A row for every stage; in short the wrong ones and the results, and one row for the others."""
    shown = [*diff.stages] if full else _shown(diff)
    rows = [_cells(stage) for stage in shown]
    kinds = [kind(stage) for stage in shown]
    rest = [stage for stage in diff.stages if stage not in shown]
    for right in (False, True):
        some = [stage for stage in rest if stage.is_right is right]
        if some:
            rows.append(row_of(some, "right" if right else "not right (-v)"))
            kinds.append("clean" if right else "victim")
    columns = columns_of(full=False)
    return Table(columns, [[row[name] for name in columns] for row in rows], kinds, left=LEFT, spare=SPARE)


def _shown(diff: ReferenceDiff) -> list[StageDiff]:
    """The stages that tell most: origins, then results, then what else is not right; the others where they are few."""
    results = {one.name for one in diff.given if one.result}
    rank = sorted(
        diff.stages,
        key=lambda one: (one.role != "origin", one.name not in results, one.is_right),
    )
    if len(rank) <= SHOWN:
        return [*diff.stages]
    chosen = [one for one in rank[:SHOWN] if not one.is_right or one.name in results]
    return [one for one in diff.stages if one in chosen]


def _cells(stage: StageDiff) -> dict[str, str]:
    """As of attention, but that axes have no names."""
    assert stage.reported is not None
    worst = stage.worst_of(stage.reported, 1)
    found = cells(stage)
    return found | {"worst at": place(worst[0]) if found["worst at"] else ""}


def place(element: Element) -> str:
    """Its index, as NumPy takes it."""
    return f"[{', '.join(map(str, element.place))}]"


def sentences(diff: ReferenceDiff, full: bool = False) -> list[str]:
    """What stands below the table."""
    said = [*_verdict(diff)]
    if diff.origin is not None:
        said += _of_origin(diff, diff[diff.origin])
    said += [f"also wrong: {', '.join(diff.origins[1:])}"] if len(diff.origins) > 1 else []
    if diff.victims:
        said.append(
            f"victim: {', '.join(diff.victims)} (right given {'its' if len(diff.victims) == 1 else 'their'} inputs)"
        )
    said += cause_lines(diff)
    reasons = [f"  {one.name}: {one.reason}" for one in diff.stages if one.reason and one.name != diff.origin]
    said += reasons if full else reasons[:1] + ([f"  {len(reasons) - 1} more remarks (-v)"] if len(reasons) > 1 else [])
    said += _of_contract(diff)
    said += [f"  {note}" for note in diff.notes]
    if diff.others:
        said.append(f"  not given: {', '.join(diff.others)}")
    if diff.tried:
        said.append(f"  {'also ' * diff.fails}wrong by {', '.join(diff.tried)}")
    said += _in_full(diff) if full else []
    return said + ([f"repeat: {diff.repeat}"] if diff.repeat else [])


def _verdict(diff: ReferenceDiff) -> list[str]:
    if diff.origin is None:
        return [f"verdict: {diff.verdict}{_MEANING.get(diff.verdict) or _DOUBT.get(diff.doubt, '')}"]
    return [f"verdict: {diff.verdict}; first wrong stage: {diff.origin}, should be {diff.definition(diff.origin)}"]


def _of_origin(diff: ReferenceDiff, stage: StageDiff) -> list[str]:
    found = stage.decisive
    assert found is not None
    total, nan, missing = found.summary, found.summary.count(State.NAN), found.summary.count(State.UNWRITTEN)
    counted = [f"over budget: {total.outside} of {total.size} ({total.outside / max(total.size, 1):.1%})"]
    counted += [mismatches(nan)] if nan else []
    counted += [f"{missing} never written"] if missing else []
    read = f"; judged from {', '.join(stage.judged_from)}" if stage.judged_from else ""
    said = [f"  {', '.join(counted)}{read}"]
    said += [f"  {stage.reason}"] if stage.reason else []
    said += [f"  {stage.if_declared.words}"] if stage.if_declared is not None else []
    names = [one.name for one in diff.given]
    if all(one.result for one in diff.given) and len(diff.graph.stages) > len(names):
        were = "was" if len(names) == 1 else "were"
        said.append(f"  only {', '.join(names)} {were} given: return stages by name, and the first wrong one is found")
    return said


def cause_lines(diff: ReferenceDiff) -> list[str]:
    """The causes of wrong stages, with what proves them, and what else it may be."""
    if diff.origin is None:
        return []
    found, said = diff.explained, list[str]()
    for one in found.causes:
        first, *others = (f"{name.text} ({short(name.line)})" for name in one.names)
        of = "" if {*diff.origins} == {*one.stages} else f" of {', '.join(one.stages)}"
        said.append(f"  cause{of}: {'' if one.proved else 'perhaps '}{first}; {_proof(one)}")
        said += [f"    or: {name}" for name in others]
    if found.ended_by == "size":
        return [*said, "  causes were not searched for: the reference holds too many numbers; take a smaller case"]
    if found.unexplained and (found.tried or found.ended_by):
        of = "" if {*found.unexplained} == {*diff.origins} else f" of {', '.join(found.unexplained)}"
        said.append(f"  no cause{of} found among {found.tried} edits of the reference{_more(diff, found)}")
    if diff.of_search is not None:
        said += [f"  withdrawn: {one.text} ({short(one.line)}); fresh inputs contradict it"
                 for one in found.withdrawn[:WITHDRAWN]]  # fmt: skip
    return said


def _more(diff: ReferenceDiff, found: Explained) -> str:
    """What tries more edits, where some are left."""
    if not found.ended_by or diff.of_search is not None:
        return ENDED[found.ended_by]
    again = instead(diff.repeat, "explain") if diff.repeat else ""
    return f"; `{again}` tries more" if again else "; explain() tries more"


def _proof(cause: Cause) -> str:
    """What it reproduces."""
    here = f"reproduces {cause.elements - cause.undefined} of {cause.elements} elements within budget"
    here += " (of the others the edited reference is NaN)" if cause.undefined else ""
    if not cause.fresh:
        return f"{here}; not tried on fresh inputs"
    few = "" if cause.proved else f"; {cause.moved} wrong elements in all are few"
    return f"{here}, and on {cause.fresh} fresh inputs{few}"


def _of_contract(diff: ReferenceDiff) -> list[str]:
    """Under which arithmetic it was judged, where that is not plain float32."""
    if diff.declared:
        return [f"  contract: {diff.said or 'float32'} (declared)"]
    beyond = {} if diff.fails else diff.beyond_strict
    found = [
        f"{one.elements} elements of {name} (worst {ratio(one.over_budget)}x at [{', '.join(map(str, one.place))}])"
        for name, one in beyond.items()
    ]
    if not found:
        return [f"  contract: {diff.said} (default)"] if diff.said else []
    return [f"  contract: {diff.said} (default); strict float32 does not explain {', '.join(found)}"]


def _in_full(diff: ReferenceDiff) -> list[str]:
    """What budgets come from, and what the reference decided."""
    said = [] if diff.said else ["  contract: float32"]
    name = diff.origin or _nearest(diff)
    worst = None if name is None else next(iter(diff[name].worst(1)), None)
    if name is not None and worst is not None:
        said.append(f"  the budget of {name}{place(worst)}, {value(worst.budget)}, comes from")
        said += [f"    {line}" for line in budget_lines(diff, name, worst.place)]
    lines = dict.fromkeys(f"{one.words} ({short(one.line)})" for one in diff.graph.decisions)
    said += [f"  the reference goes on by values: {', '.join([*lines][:3])}"] if lines else []
    return said


def _nearest(diff: ReferenceDiff) -> str | None:
    """The stage that comes nearest to its budget."""
    found = [(one.decisive.summary.worst, one.name) for one in diff.stages if one.decisive is not None]
    return max(((one.over_budget, name) for one, name in found if one is not None), default=(0.0, None))[1]


def in_short(diff: ReferenceDiff) -> str:
    """The report as plain text."""
    return plain(report(diff, unicode=False, width=WIDTH))


def shrunk(found: ReferenceShrunk) -> str:
    """What stands above the report of the smallest case."""
    return f"smallest of {found.tried} tried cases{ENDED[found.ended_by]}:"


def shrunk_in_short(found: ReferenceShrunk) -> str:
    """What `workbench shrink --reference` shows, for `print`."""
    return f"{shrunk(found)}\n{in_short(found.diff)}"


def html(diff: ReferenceDiff) -> str:
    """The report for Jupyter."""
    above = lines_html([*(line.plain for line in gates([diff])), diff.headline])
    return above + table(diff, full=False).html() + lines_html(sentences(diff))


def document(diff: ReferenceDiff) -> dict[str, Any]:
    """The document `workbench.reference/1` of `workbench diff --reference --json`, of plain Python values.

    - `reference`, `wrong_by`: the reference that fits best; others by which it is wrong
    - `contract`, `declared`: as `--contract` takes it; whether somebody declared it
    - `verdict`, `doubt`, `fails`: as of `workbench.diff/1`; whether it counts as a failure
    - `gates`, `notes`: defects of the run; remarks
    - `origin`, `origins`, `victims`: the first origin or `null`; all origins; stages wrong only through others
    - `explained`: the causes, or why there are none
    - `stages`: a record for each
    - `not_given`: results that the kernel does not return
    - `beyond_float32`: stage -> `elements` that only the usual contract of 16-bit inputs allows, `index` and
      `over_budget` of the worst
    - `repeat`: the command; of `shrink` also `tried` and `complete`
    """
    return {
        "schema": SCHEMA,
        "target": diff.target,
        "reference": diff.reference,
        "wrong_by": list(diff.tried),
        "case": diff.case,
        "contract": diff.said,
        "declared": diff.declared,
        "verdict": diff.verdict,
        "doubt": diff.doubt or None,
        "fails": diff.fails,
        "gates": list(diff.gates),
        "notes": list(diff.notes),
        "origin": diff.origin,
        "origins": list(diff.origins),
        "victims": list(diff.victims),
        "explained": _explained(diff.explained),
        "stages": [_stage(diff, stage) for stage in diff.stages],
        "not_given": list(diff.others),
        "beyond_float32": {
            name: {"elements": one.elements, "index": list(one.place), "over_budget": plain_number(one.over_budget)}
            for name, one in diff.beyond_strict.items()
        },
        "repeat": diff.repeat,
    }


def _explained(found: Explained) -> dict[str, Any]:
    """`explained` of `workbench.reference/1`.

    - `causes`: `names` (`text`, `line`, `code`), `stages`, `proved`, `elements`, `undefined`, `fresh_inputs`,
      `wrong_in_all`, `left`
    - `unexplained`, `withdrawn`: stages without a cause; causes that fresh inputs contradict
    - `tried`, `complete`, `ended_by`: as of `workbench.explain/1`
    """
    return {
        "causes": [
            {
                "names": [{"text": name.text, "line": short(name.line), "code": code(name.line)} for name in one.names],
                "stages": list(one.stages),
                "proved": one.proved,
                "elements": one.elements,
                "undefined": one.undefined,
                "fresh_inputs": one.fresh,
                "wrong_in_all": one.moved,
                "left": one.left,
            }
            for one in found.causes
        ],
        "unexplained": list(found.unexplained),
        "withdrawn": [{"text": name.text, "line": short(name.line)} for name in found.withdrawn],
        "tried": found.tried,
        "complete": found.complete,
        "ended_by": found.ended_by,
    }


def _stage(diff: ReferenceDiff, stage: StageDiff) -> dict[str, Any]:
    """Each of `stages` of `workbench.reference/1`.

    - `stage`, `verdict`, `role`, `doubt`, `reason`: as of `workbench.diff/1`
    - `line`, `code`: of the reference
    - `judged_from`: stages it was recomputed from
    - `outside`, `size`, `judged`: elements over budget, all, and with a budget
    - `worst`: `index`, `actual`, `expected`, `budget`, `over_budget`
    """
    found = stage.reported
    assert found is not None
    worst = next(iter(stage.worst_of(found, 1)), None)
    line = diff.line(stage.name)
    return {
        "stage": stage.name,
        "verdict": stage.verdict,
        "role": stage.role,
        "doubt": stage.doubt or None,
        "reason": stage.reason,
        "line": short(line),
        "code": code(line),
        "judged_from": list(stage.judged_from),
        "outside": found.summary.outside,
        "size": found.summary.size,
        "judged": found.summary.judged,
        "worst": None if worst is None else _element(worst),
    }


def _element(one: Element) -> dict[str, Any]:
    names = ("actual", "expected", "budget", "over_budget")
    return {"index": list(one.place), **plain_number({name: getattr(one, name) for name in names})}
