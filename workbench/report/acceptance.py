"""A verdict of `workbench accept`: in lines, as a document, as JUnit for CI."""

import re
import shlex
from typing import Any
from xml.etree import ElementTree

from workbench.explore.acceptance.failure import Failure
from workbench.explore.acceptance.reference_families import ReferenceProblem
from workbench.explore.acceptance.reference_spec import ReferenceSpec
from workbench.explore.acceptance.run import FAIL, PASS, UNFINISHED, Acceptance
from workbench.explore.reference_shrink import ReferenceShrunk
from workbench.explore.shrink.shrink import Shrunk
from workbench.judge.explain.explain import Explained
from workbench.judge.reference.diff import ReferenceDiff
from workbench.operations.reference.case import ReferenceCase
from workbench.records import number
from workbench.report import causes, shrunk
from workbench.report import reference as of_reference
from workbench.report.compared import printable
from workbench.report.numbers import ratio, times, value
from workbench.report.text import place
from workbench.suggested import command

#: what is said of a function without the keyword of what a case has
_LACKS = re.compile(r"takes no \w+, which the case has")


def lines(found: Acceptance) -> list[str]:
    """The verdict, what it rests on, and of a failing case what failed and how it is repeated."""
    passed = f"{_of(found.cases, 'case')} passed"
    if found.failure is not None:
        passed = f"{passed} before one failed" if found.cases else "the first judged case failed"
    taken = f"{passed} ({found.seconds:.1f} s, {_of(found.calls, 'call')})"
    made = [f"{found.target}: {found.verdict}: {taken}", *(f"  {line}" for line in _counts(found))]
    if found.failure is not None:
        made += _failure(found.failure)
        made.append(f"repeat: {repeat(found) or 'in Python: workbench.accept(...' + _place(found) + ')'}")
        made += [f"why: {repeat(found)} --explain"] if repeat(found) and found.failure.judged is not None else []
        made += [f"in full: {command}"] if (command := _in_full(found.failure)) else []
    return made


def _in_full(failure: Failure) -> str:
    """The command that reports on the failing call, where its result does not depend on calls before or on how its
    inputs lie; empty of others.
    """
    one, judged = failure.problem, failure.judged
    if not isinstance(one, ReferenceProblem) or not isinstance(judged, ReferenceDiff):
        return ""
    return "" if one.again or one.nudged or one.lying.words else judged.repeat


def _counts(found: Acceptance) -> list[str]:
    """What else is to be known, a line each."""
    made = [f"families: {', '.join(f'{name} {n}' for name, n in found.families.items())}"] if found.families else []
    if found.worst is not None:
        made.append(f"largest error / budget in the passed cases: {ratio(found.worst)}")
    if found.lacking and found.failure is None:
        made.append(f"out of time, not run: {', '.join(found.lacking)}; raise --seconds")
    if found.untestable:
        whole = f", among them all of {', '.join(found.unjudged)}" if found.unjudged else ""
        why = found.why or "undeclared arithmetic may overflow. Set `contract` in the spec"
        made.append(f"untestable: {_of(sum(found.untestable.values()), 'case')}{whole}: {why}")
    if found.suspicious:
        made.append(f"suspicious: {_of(found.suspicious, 'case')} within budget only because arithmetic is undeclared")
    if found.deterministic is not None:
        made.append(
            "deterministic: two calls gave the same bits"
            if found.deterministic
            else "not deterministic: two calls gave different bits"
        )
    made.append("ran in a process with network access (--unsafe)" if found.options["unsafe"] else
                "ran in an isolated process without network")  # fmt: skip
    return made


def _of(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def _failure(failure: Failure) -> list[str]:
    """What failed, a line each."""
    one = failure.problem
    made = [f"failed: {failure.words.rstrip()}", f"  family {one.family}, {one.words}"]
    if isinstance(one, ReferenceProblem) and one.lying.words:
        made.append("  if its inputs always lie contiguously, say so in the spec: `contiguous = true`")
    judged = failure.judged
    if judged is None:
        return [*made, *_not_taken(failure)]
    stages = [judged[name] for name in judged.origins] or [x for x in judged.stages if x.verdict == judged.verdict]
    for stage in stages:
        if stage.decisive is None:
            continue
        summary = stage.decisive.summary
        outside = f"{summary.outside} of {summary.size} elements over budget"
        made.append(f"  {stage.name}: {stage.verdict}, {outside}")
        made += [f"    {stage.reason}"] if stage.reason else []
        if isinstance(judged, ReferenceDiff):
            made.append(f"    should be {judged.definition(stage.name)}")
        for worst in stage.worst(1):
            where = of_reference.place(worst) if isinstance(judged, ReferenceDiff) else place(worst)
            made.append(
                f"    worst at {where}: actual {value(worst.actual)}, expected {value(worst.expected)}, budget "
                f"{worst.budget:.3g}, error {times(worst.over_budget)}"
            )
    return made


def _not_taken(failure: Failure) -> list[str]:
    """How a spec spares a function what it raised at, by what that was; empty where that is unknown."""
    case = failure.problem.case
    if failure.kind != "raised":
        return []
    if isinstance(case, ReferenceCase):
        return ["  if it need not take this case, leave its sizes out of [axes], or its family out by `without`"]
    if _LACKS.search(failure.words):
        return ["  remove it from [case] in the spec, or give the function the keyword"]
    if case.heads != case.kv_heads:
        return ["  exclude it in [case] of the spec: `group = 1` means as many K heads as Q heads"]
    return []


def repeat(found: Acceptance) -> str:
    """The command that judges the failing case again; empty where its spec lies in no file."""
    spec = found.spec
    if found.spec_file is None and (isinstance(spec, ReferenceSpec) or spec.case.keys() - {"dtype"} or spec.shapes):
        return ""
    options = found.options
    words = ["--spec", found.spec_file] if found.spec_file else []
    words += ["--dtype", options["dtype"]] if options["dtype"] else []
    words += ["--unsafe"] if options["unsafe"] else []
    index = found.failure.index if found.failure is not None else 0
    return command("accept", found.target, map(shlex.quote, [*words, "--seed", str(found.seed), "--only", str(index)]))


def _place(found: Acceptance) -> str:
    assert found.failure is not None
    return f", seed={found.seed}, only={found.failure.index}"


def explained(found: Explained | Shrunk | ReferenceShrunk | None) -> list[str]:
    """What was found of why a case fails, a line each."""
    if found is None:
        return ["no cause was searched for: the case does not fail again when run alone"]
    if isinstance(found, ReferenceShrunk):
        return of_reference.shrunk_in_short(found).splitlines()
    if isinstance(found, Shrunk):
        return [*causes.lines(found.start, found.explained), *shrunk.lines(found)]
    return causes.lines(found.judged, found) if found.judged is not None else []


def document(found: Acceptance) -> dict[str, Any]:
    """The document `workbench.accept/1`.

    - `spec`, `options`: its file; the options of the call
    - `verdict`: `pass`, `fail` or `unfinished`
    - `cases`, `families`, `lacking`: cases judged, in all and by family; families that ran out of time
    - `untestable`, `suspicious`, `over_budget`: cases without a verdict by family; right cases that are suspicious;
      largest error / budget
    - `deterministic`, `calls`: whether repeated calls gave the same bits; calls of the function
    - `seconds`, `loading_seconds`, `seed`: time for cases; time before the first answer; repeats the run
    - `failure`: the first wrong case: `family`, `index`, `kind` (`wrong`, `raised`, `overwritten`, `dtype`, `bits`,
      `time`, `memory`, `ended`), `text`, `case`, `lying` (the memory layout of the inputs), `verdict`, `origins`,
      `over_budget`, `command`. With a reference `case` has `axes`, `dtype`, `seed`, `distribution`, `calls_before` and
      `nudged` (calls before the judged one)
    - `explained`: lines of `--explain`
    """
    failure = found.failure
    failed = None
    if failure is not None:
        one, judged = failure.problem, failure.judged
        failed = {
            "family": one.family, "index": failure.index, "kind": failure.kind, "text": "\n".join(_failure(failure)),
            "case": one.as_dict(),
            "lying": one.lying.words, "verdict": None if judged is None else judged.verdict,
            "origins": [] if judged is None else [*judged.origins],
            "over_budget": None if judged is None else _over(failure), "command": repeat(found),
        }  # fmt: skip
    made = {
        "schema": "workbench.accept/1", "target": found.target, "spec": found.spec_file, "verdict": found.verdict,
        "cases": found.cases, "families": dict(found.families), "lacking": [*found.lacking],
        "untestable": dict(found.untestable), "suspicious": found.suspicious, "over_budget": found.worst,
        "deterministic": found.deterministic, "calls": found.calls, "seconds": found.seconds,
        "loading_seconds": found.loading, "seed": found.seed, "options": dict(found.options), "failure": failed,
    }  # fmt: skip
    document_: dict[str, Any] = number(made)
    return document_


def _over(failure: Failure) -> float | None:
    assert failure.judged is not None
    found = [stage.decisive.summary.worst for stage in failure.judged.stages if stage.decisive is not None]
    return max((worst.over_budget for worst in found if worst is not None), default=None)


def junit(found: Acceptance) -> bytes:
    """A suite of JUnit with a test for each family: one that failed, those that time was too short for were skipped."""
    failure = found.failure
    failed = {failure.problem.family} if failure is not None else set()
    names = list(dict.fromkeys(found.due))
    too_little = found.verdict == UNFINISHED and not found.lacking
    numbers = {"tests": str(len(names) + 1), "failures": str(len(failed) + (found.verdict != PASS and not failed))}
    root = ElementTree.Element("testsuites")
    whole = {"name": f"workbench accept {found.target}", **numbers, "errors": "0", "skipped": str(len(found.lacking))}
    suite = ElementTree.SubElement(root, "testsuite", {**whole, "time": f"{found.seconds:.3f}"})
    verdict = ElementTree.SubElement(suite, "testcase", {"classname": found.target, "name": "verdict"})
    if found.verdict == UNFINISHED:
        why = "too little could be judged" if too_little else "out of time"
        ElementTree.SubElement(verdict, "failure", {"message": why}).text = printable("\n".join(lines(found)))
    for name in names:
        case = ElementTree.SubElement(suite, "testcase", {"classname": found.target, "name": name})
        if found.verdict == FAIL and failure is not None and name in failed:
            said = printable(failure.words.strip().splitlines()[-1] if failure.words.strip() else failure.kind)
            ElementTree.SubElement(case, "failure", {"message": said}).text = printable("\n".join(lines(found)))
        elif name in found.lacking:
            ElementTree.SubElement(case, "skipped", {"message": "not run"})
    ElementTree.indent(root)
    return ElementTree.tostring(root, "utf-8", xml_declaration=True) + b"\n"
