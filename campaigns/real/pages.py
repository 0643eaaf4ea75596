"""Pages of documents of the campaign: `python -m campaigns.real.pages audit|bugs FILE.json ...` prints Markdown."""

import ast
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from campaigns.real.rows import CASES, PROJECTS, WRONG
from campaigns.real.tables import about, beside, counts, is_judged, pairs

Row = Mapping[str, Any]
FINDINGS = Path(__file__).parent / "findings"


def audit(documents: Sequence[Mapping[str, Any]]) -> str:
    """docs/trust/audit.md, of audits with several seeds: findings, and a line for each function and dtype. The last
    document with a seed that judged a run says what it was.
    """
    every: dict[tuple[str, ...], list[Row]] = {}
    for key, row in _last(documents, ("project", "operation", "dtype", "what")).items():
        every.setdefault(key[1:], []).append(row)
    judged = {key: rows for key, some in every.items() if (rows := [row for row in some if is_judged(row)])}
    passes: dict[tuple[str, ...], dict[str, list[Row]]] = {}
    failed: dict[tuple[str, ...], list[str]] = {}
    for key, some in every.items():
        if key in judged:
            passes.setdefault(key[:3], {})[key[3]] = judged[key]
        else:
            failed.setdefault((*key[:2], some[0]["error"][:160]), []).append(f"{key[2]} {key[3]}")
    seeds = " and ".join(map(str, sorted({one["seed"] for one in documents})))
    runs = [row for rows in judged.values() for row in rows]
    lines = [
        "# An audit of today's kernels", "",
        f"`python -m campaigns real --checkouts DIR --audit` judged {len({key[:2] for key in judged})} functions of "
        f"{len({key[0] for key in judged})} projects, with nothing declared, on inputs of seeds {seeds}: "
        f"{sum(not x['fails'] for x in runs)} of {len(runs)} runs pass. `declared`: the verdict under the arithmetic "
        "that the kernel's source shows.", "",
        "## Findings", "",
        "Each script shows its finding against float64, without the workbench.", "",
        *(f"- [{file.name}](../../campaigns/real/findings/{file.name}): {said}" for file, said in findings()), "",
        "## Functions", "",
        *_table([_line(key, some) for key, some in passes.items()]), "",
    ]  # fmt: skip
    if failed:
        rows = [{"project": key[0], "function": key[1], "runs": ", ".join(of), "cannot run": key[2]}
                for key, of in failed.items()]  # fmt: skip
        lines += ["## What could not run", "", *_table(rows), ""]
    return "\n".join(lines)


def findings() -> list[tuple[Path, str]]:
    """The scripts, and the first line of what each says."""
    return [
        (x, (ast.get_docstring(ast.parse(x.read_text())) or "").splitlines()[0]) for x in sorted(FINDINGS.glob("*.py"))
    ]


def _line(key: tuple[str, ...], passes: Mapping[str, Sequence[Row]]) -> dict[str, str]:
    project, operation, dtype = key
    path = next(case.kernel.path for case in CASES[project] if case.operation == operation)
    rows = [row for some in passes.values() for row in some]
    worst = max(rows, key=lambda x: (x["fails"], x["over_budget"]))
    said = {what: _each(f"{x['verdict']} {x['doubt']}".strip() for x in some) for what, some in passes.items()}
    return {
        "project": project, "commit": PROJECTS[project].newest[:8],
        "function": f"`{path.rpartition(':')[2]}` ({operation})", "dtype": dtype,
        "forward": said.get("forward", ""), "gradients": said.get("gradients", ""),
        "declared": _each(x["declared"]["verdict"] for x in rows), "error / budget": f"{worst['over_budget']:.3g}",
        "error / torch's": beside(worst), "about": about(worst)[:160],
    }  # fmt: skip


def bugs(documents: Sequence[Mapping[str, Any]]) -> str:
    """docs/trust/real-bugs.md: counts, and a line for each bug. Of several documents the last that judged a run says
    what it was.
    """
    rows = [*_last(documents, ("wrong", "dtype", "what", "before")).values()]
    every: dict[str, list[tuple[Row | None, Row | None]]] = {}
    for before, after in pairs(rows):
        every.setdefault((before or after or {})["wrong"], []).append((before, after))
    return "\n".join([
        "# Real bugs", "",
        "Kernels of public projects at the commit before a fix, and at the fix: `python -m campaigns real --checkouts "
        "DIR`. Truths were written down before the first run; those that were changed behind one are counted apart. "
        "Autotuning takes the first configuration that compiles. `cause`: whether `explain` names the line of the "
        "reference that the kernel does otherwise, and how.", "",
        "## Counts", "", *_table(counts(rows)), "",
        "## Each bug", "", *_table([_bug(name, some) for name, some in every.items()]), "",
    ])  # fmt: skip


def _last(documents: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[tuple[Any, ...], Row]:
    """By seed and fields of these names the row of the last document that judged it; else of the first that has it."""
    found: dict[tuple[Any, ...], Row] = {}
    for document in documents:
        for row in document["rows"]:
            key = (document.get("seed"), *(row[name] for name in names))
            if is_judged(row) or key not in found:
                found[key] = row
    return found


def _bug(name: str, runs: Sequence[tuple[Row | None, Row | None]]) -> dict[str, str]:
    bug, project = WRONG[name], PROJECTS[WRONG[name].project]
    commit = bug.after or bug.before
    before = [one for one, _ in runs if one is not None and is_judged(one)]
    after = [one for _, one in runs if one is not None and is_judged(one)]
    why = next((one["error"] for both in runs for one in both if one is not None and not is_judged(one)), "")
    return {
        "project": project.name, "fix": f"[{commit[:8]}](https://github.com/{project.owner}/{project.name}/commit/{commit})",
        "bug": bug.what, "dtypes": " ".join(dict.fromkeys(x["dtype"] for x in before or after)),
        "before": _each(x["verdict"] for x in before) or f"cannot run: {why[:120]}",
        "after": _each(x["verdict"] for x in after), "first wrong": _each(x["origin"] or "none" for x in before),
        "cause": _each(x.get("cause", "none") for x in before),
        "assert_close": _both(before, after, "assert_close"), "its own tests": _both(before, after, "own_test"),
    }  # fmt: skip


def _both(before: Sequence[Row], after: Sequence[Row], key: str) -> str:
    """What a tolerance says of the wrong half, and of the right one."""
    words = {True: "pass", False: "fail", None: "none"}
    return ", then ".join(filter(None, (_each(words[x[key]] for x in some) for some in (before, after))))


def _each(words: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(words))


def _table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of Markdown."""
    if not rows:
        return []
    cells = [[*rows[0]], *([str(x) for x in row.values()] for row in rows)]
    head, *others = ["| " + " | ".join(map(_cell, row)) + " |" for row in cells]
    return [head, "|" + "---|" * len(rows[0]), *others]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


PAGES: Mapping[str, Callable[[Sequence[Mapping[str, Any]]], str]] = {"audit": audit, "bugs": bugs}

if __name__ == "__main__":
    print(PAGES[sys.argv[1]]([json.loads(Path(file).read_text()) for file in sys.argv[2:]]))
