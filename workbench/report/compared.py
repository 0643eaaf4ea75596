"""Two sweeps beside each other: in lines, as Markdown for a pull request, as JUnit for CI, and as a document."""

from typing import Any
from xml.etree import ElementTree

from workbench.explore.sweep.compare import BETTER, CHANGED, ONLY_NEW, ONLY_OLD, SAME, WORSE, Comparison, Pair
from workbench.explore.sweep.row import Row
from workbench.records import number
from workbench.report.numbers import ratio
from workbench.report.sweep import repeat

#: cases of a change that are listed, at most; the document has all
LISTED = 20
_LISTED = (WORSE, BETTER, CHANGED, ONLY_OLD, ONLY_NEW)


def lines(found: Comparison) -> list[str]:
    """The counts, what else differs, and the cases of each change."""
    made = [f"{found.old.path} -> {found.new.path}: {_counts(found)}"]
    made += [f"  {name}: {before or 'none'} -> {now or 'none'}" for name, (before, now) in found.conditions.items()]
    for change in _LISTED:
        pairs = found.of(change)
        made += [f"{change}:"] if pairs else []
        made += [f"  {_said(pair)}: {pair.case!r}" for pair in pairs[:LISTED]]
        made += [f"  and {len(pairs) - LISTED} more"] if len(pairs) > LISTED else []
    if found.worse and (row := found.worse[0].new) is not None:
        made.append(f"repeat: {repeat(found.new.plan, row)}")
    return made


def markdown(found: Comparison) -> list[str]:
    """The same as GitHub-flavoured Markdown; text of cases is code, so that nothing in it is taken for markup."""
    verdict = "Something got worse" if found.worse else "Nothing got worse"
    made = [f"### {verdict}: {_code(found.old.plan.target)}", "", "| change | cases |", "|---|---:|"]
    made += [f"| {change} | {n} |" for change, n in found.counts.items()]
    if found.conditions:
        made += ["", "| condition | OLD | NEW |", "|---|---|---|"]
        made += [f"| {name} | {_code(a)} | {_code(b)} |" for name, (a, b) in found.conditions.items()]
    for change in _LISTED:
        if not (pairs := found.of(change)):
            continue
        made += ["", f"<details><summary>{change}: {len(pairs)}</summary>", "", "| case | OLD | NEW |", "|---|---|---|"]
        made += [
            f"| {_code(repr(pair.case))} | {_code(_row(pair.old))} | {_code(_row(pair.new))} |"
            for pair in pairs[:LISTED]
        ]
        made += [f"| and {len(pairs) - LISTED} more | | |"] if len(pairs) > LISTED else []
        made += ["", "</details>"]
    return made


def junit(found: Comparison) -> bytes:
    """A suite of JUnit with a test for each case of both: one that got worse failed, one of one sweep was skipped."""
    counts, target = found.counts, found.new.plan.target
    only = counts[ONLY_OLD] + counts[ONLY_NEW]
    numbers = {"tests": str(len(found.pairs)), "failures": str(counts[WORSE]), "skipped": str(only), "errors": "0"}
    root = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(root, "testsuite", {"name": f"workbench compare {target}", **numbers})
    for pair in found.pairs:
        seconds = f"{pair.new.seconds:.3f}" if pair.new is not None else "0"
        of_case = {"classname": target, "name": repr(pair.case), "time": seconds}
        case = ElementTree.SubElement(suite, "testcase", of_case)
        if pair.change == WORSE and pair.new is not None:
            failed = ElementTree.SubElement(case, "failure", {"message": printable(_said(pair))})
            failed.text = printable("\n".join(filter(None, (pair.new.reason, repeat(found.new.plan, pair.new)))))
        elif pair.change in (ONLY_OLD, ONLY_NEW):
            ElementTree.SubElement(case, "skipped", {"message": pair.change})
    ElementTree.indent(root)
    return ElementTree.tostring(root, "utf-8", xml_declaration=True) + b"\n"


def document(found: Comparison) -> dict[str, Any]:
    """The document `workbench.compare/1` of two sweeps.

    - `old`, `new`: their files
    - `counts`: cases that are `worse`, `better`, `changed`, `same`, `only_in_old`, `only_in_new`
    - `conditions`: other differences between the files
    - `cases`: those that differ: `id`, `change`, `case`, and for `old` and `new` the `outcome`, `origins`,
      `over_budget`, `bits`, `reason`
    """
    return {
        "schema": "workbench.compare/1",
        "old": str(found.old.path),
        "new": str(found.new.path),
        "counts": {change.lower().replace(" ", "_"): n for change, n in found.counts.items()},
        "conditions": {name: {"old": before, "new": now} for name, (before, now) in found.conditions.items()},
        "cases": [_pair(pair) for pair in found.pairs if pair.change != SAME],
    }


def _pair(pair: Pair) -> dict[str, Any]:
    rows = {"old": pair.old, "new": pair.new}
    figures = {name: None if row is None else _figures(row) for name, row in rows.items()}
    return {
        "id": pair.id,
        "change": pair.change.lower().replace(" ", "_"),
        "case": number(pair.case.as_dict()),
        **figures,
    }


def _figures(row: Row) -> dict[str, Any]:
    return number(
        {
            "outcome": row.outcome,
            "origins": list(row.origins),
            "over_budget": row.over_budget,
            "bits": row.bits,
            "reason": row.reason,
        }
    )


def _counts(found: Comparison) -> str:
    return ", ".join(f"{n} {change}" for change, n in found.counts.items() if n or change == WORSE)


def _said(pair: Pair) -> str:
    return f"{_row(pair.old)} -> {_row(pair.new)}"


def _row(row: Row | None) -> str:
    """What came of a case, in a few words."""
    if row is None:
        return "not there"
    at = f" at {', '.join(row.origins)}" if row.origins else ""
    of_budget = "" if row.over_budget is None else f", error {ratio(row.over_budget)}x budget"
    return f"{row.outcome}{at}{of_budget}"


def _code(text: str) -> str:
    """Text as code in a cell of a table; a bar would end the cell, a backtick the code, also within one."""
    return "`" + " ".join(text.split()).replace("|", "\\|").replace("`", "'") + "`" if text else ""


def printable(text: str) -> str:
    """Text without the characters that XML 1.0 has no way to say."""
    return "".join(
        x if x in "\t\n\r" or " " <= x <= "\ud7ff" or "\ue000" <= x <= "\ufffd" or x > "\uffff" else "?" for x in text
    )
