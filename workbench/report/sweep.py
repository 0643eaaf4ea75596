"""A sweep in lines and as a document: what came of the cases, and the failures that belong together."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from workbench.case.command_line import case_options, fault_options
from workbench.case.fields import typed
from workbench.explore.sweep.groups import UNEXPLAINED, Group
from workbench.explore.sweep.plan import Plan
from workbench.explore.sweep.row import CRASHED, MEMORY, TIMEOUT, Row
from workbench.explore.sweep.rules import Boundary, Rule
from workbench.explore.sweep.sweep import Sweep
from workbench.records import number
from workbench.suggested import command

#: values of a field that are listed one by one
FEW = 8


def lines(found: Sweep) -> list[str]:
    """All that was found, a line each; of a traceback more."""
    made = heads(found)
    for one in found.groups:
        made += ["", *group_lines(found, one)]
    return [*made, "", total(found)]


def heads(found: Sweep) -> list[str]:
    """What was run, and what is not judged, a line each; of a traceback more."""
    done = len(found.rows)
    outcomes = ", ".join(f"{n} {outcome}" for outcome, n in found.outcomes.items())
    made = [f"{target_of(found.plan)}: {done} case{'s' * (done != 1)}: {outcomes}"]
    if found.left:
        made.append(f"{found.left} of {len(found.plan.cases)} cases have not run; --resume runs them")
    if found.codes > 1:
        made.append(f"the code changed during the sweep: {found.codes} versions were judged")
    made += [f"{n} refused: {why}" for why, n in found.refused.items()]
    return made + [line for row in found.defects[:1] for line in ("internal error of the workbench:", row.reason)]


def total(found: Sweep) -> str:
    """How many cases fail."""
    failing = sum(row.fails for row in found.rows)
    many = len(found.groups)
    return f"{failing} of {len(found.rows)} cases fail" + (f", in {many} group{'s' * (many != 1)}" if failing else "")


def document(found: Sweep) -> dict[str, Any]:
    """The document `workbench.sweep/1`.

    - `file`: the SQLite file with all rows
    - `options`, `timeout`, `memory_gb`: of each run
    - `cases`, `rows`, `failing`: cases asked, done and failing
    - `outcomes`, `refused`, `codes`: counts by outcome; by refusal; versions of the code
    - `groups`: failures that belong together, the largest first
    """
    return {
        "schema": "workbench.sweep/1",
        "file": str(found.path),
        "target": found.plan.target,
        "options": {name: list(x) if isinstance(x, tuple) else x for name, x in found.plan.given.items()},
        "timeout": found.plan.timeout,
        "memory_gb": found.plan.memory_gb,
        "cases": len(found.plan.cases),
        "rows": len(found.rows),
        "outcomes": found.outcomes,
        "failing": sum(row.fails for row in found.rows),
        "refused": found.refused,
        "codes": found.codes,
        "groups": [_group_document(found, one) for one in found.groups],
    }


def repeat(plan: Plan, row: Row) -> str:
    """The command that judges the case of a row again; a function that may end its process in one of its own."""
    options = plan.options
    if not plan.is_ours and row.outcome in (CRASHED, TIMEOUT, MEMORY):
        timeout = plan.timeout if row.outcome == TIMEOUT else None
        options = replace(options, isolate=True, timeout=timeout, memory_gb=plan.memory_gb)
    backend = ["--backend", options.backend] if options.backend != "auto" else []
    words = [*case_options(row.case, own=plan.is_ours), *backend, *options.printable().words()]
    return command("diff", plan.target, [*fault_options(options.faults), *words])


def target_of(plan: Plan) -> str:
    """What was run, in a few words."""
    return plan.target + (f" with {', '.join(plan.options.faults)}" if plan.options.faults else "")


def group_lines(found: Sweep, one: Group, *, command: bool = True) -> Iterator[str]:
    """What is known of a group, a line each; `command`: with the line that judges its smallest case again."""
    many = f"{len(one.rows)} case{'s' * (len(one.rows) != 1)}"
    yield f"{one.origin}: {many}: {_cause(one)}" if one.origin else f"{one.kind}: {many}: {one.text}"
    yield f"  {_rule(one.rule)}"
    tells = [boundary for boundary in one.boundaries if boundary.tells]
    yield from (f"    {_boundary(boundary)}" for boundary in tells)
    yield f"  smallest: {one.smallest.case!r}"
    if (trace := found.trace_of(one.smallest)) is not None:
        yield f"  trace: {trace}"
    if command:
        yield f"  repeat: {repeat(found.plan, one.smallest)}"


def _cause(one: Group) -> str:
    if one.kind != UNEXPLAINED:
        cause = one.smallest.causes.get(one.origin or "")
        return one.text + ("" if cause is None or cause.stands else " (not confirmed on fresh cases)")
    return f"{one.text} ({one.searched} of {len(one.rows)} searched)"


def _rule(rule: Rule | None) -> str:
    """Where a group fails, in words; never more than was seen."""
    if rule is None:
        return "no rule with up to three terms separates these from the other cases"
    more = [*rule.beside, *([f"{rule.more} more"] if rule.more else [])]
    beside = f"; equally possible: {'; '.join(more)}" if more else ""
    certain = "fails where" if rule.certain else "too few cases to rule out chance: fails where"
    seen = f"all {rule.failing} of these, none of {rule.others} others"
    return f"{certain} {rule.text} ({seen}{beside})"


def _boundary(one: Boundary) -> str:
    """What of a field fails: always, sometimes, never."""
    always = [x for x, n, of in one.values if n == of]
    never = [x for x, n, of in one.values if n == 0]
    sometimes = [x for x, n, of in one.values if 0 < n < of]
    each = (("always", always), ("sometimes", sometimes), ("never", never))
    return f"{one.field}: " + "; ".join(f"{word} {_values(some)}" for word, some in each if some)


def _values(values: list[Any]) -> str:
    if len(values) <= FEW:
        return ", ".join("none" if x is None else typed(x) for x in values)
    if all(isinstance(x, int) for x in values):
        return f"{len(values)} values from {min(values)} to {max(values)}"
    return f"{len(values)} values"


def _group_document(found: Sweep, one: Group) -> dict[str, Any]:
    """Each of `groups` of `workbench.sweep/1`.

    - `origin`, `kind`, `text`: the first wrong stage; the class of the cause; the cause in words
    - `cases`, `searched`: cases of the group; those whose cause was sought
    - `rule`: `terms` that hold in `failing` cases and in none of `others`; `beside` and `more` are equivalent rules;
      `certain`: not chance
    - `boundaries`: for each `field` its `values`: how many of the cases with a `value` are `failing`, `of` how many
    - `smallest`, `trace`, `command`: the row of the smallest case; the file of its trace; judges it again
    """
    rule, trace = one.rule, found.trace_of(one.smallest)
    return {
        "origin": one.origin,
        "kind": one.kind,
        "text": one.text,
        "cases": len(one.rows),
        "searched": one.searched,
        "rule": None
        if rule is None
        else {
            "terms": list(rule.terms),
            "failing": rule.failing,
            "others": rule.others,
            "beside": list(rule.beside),
            "more": rule.more,
            "certain": rule.certain,
        },
        "boundaries": [
            {"field": x.field, "values": [{"value": number(v), "failing": n, "of": of} for v, n, of in x.values]}
            for x in one.boundaries
        ],
        "smallest": one.smallest.as_dict(),
        "trace": None if trace is None else str(trace),
        "command": repeat(found.plan, one.smallest),
    }
