"""Tables of the campaign: bugs before and after their fix, counts of them, and today's kernels."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from campaigns.real.rows import NUMBERS, WRONG

Row = Mapping[str, Any]
Table = list[dict[str, Any]]


def tables(found: Mapping[str, Any]) -> list[Table]:
    """Each bug's runs, before and after, and counts; of an audit its cases, and counts."""
    rows = found["rows"]
    made = [[_audited(row) for row in rows], _of_audit(rows)] if found["audit"] else [*_bugs(rows), counts(rows)]
    return [some for some in made if some]


def pairs(rows: Iterable[Row]) -> list[tuple[Row | None, Row | None]]:
    """The runs of a bug before and after its fix, by bug, dtype and what is run; None where one is not there."""
    found: dict[tuple[Any, ...], dict[bool, Row]] = {}
    for row in rows:
        found.setdefault((row["wrong"], row["dtype"], row["what"]), {})[row["before"]] = row
    by_number = sorted(found.items(), key=lambda x: (NUMBERS[x[0][0]], x[0][1:]))
    return [(one.get(True), one.get(False)) for _, one in by_number]


def _bugs(rows: Iterable[Row]) -> list[Table]:
    """Verdicts, then causes beside truths, then what could not run."""
    both = pairs(rows)
    late = [row for one in both for row in one if row is not None and "error" in row]
    return [
        [_verdict(before, after) for before, after in both if is_judged(before) or is_judged(after)],
        [_cause(one) for one, _ in both if one is not None and "cause" in one],
        [_of(row) | {"half": "before" if row["before"] else "after", "cannot run": row["error"][:300]} for row in late],
    ]


def _of(row: Row) -> dict[str, Any]:
    bug = WRONG[row["wrong"]]
    said = {"row": NUMBERS[row["wrong"]], "project": bug.project, "fix": bug.after or "none"}
    return said | {"operation": row["operation"], "dtype": row["dtype"], "what": row["what"]}


def _verdict(before: Row | None, after: Row | None) -> dict[str, Any]:
    one = before or after
    assert one is not None
    return _of(one) | {
        "before": _said(before), "after": _said(after), "first wrong": (before or {}).get("origin") or "",
        "shows": " ".join(WRONG[one["wrong"]].shows), "times": f"{(before or {}).get('times', float('nan')):.3g}",
        "own tests": _both(before, after, "own_test"), "assert_close": _both(before, after, "assert_close"),
        "s": " ".join(f"{sum(x['seconds'].values()):.0f}" for x in (before, after) if x is not None and "seconds" in x),
    }  # fmt: skip


def _cause(row: Row) -> dict[str, Any]:
    truth = WRONG[row["wrong"]].truth
    return _of(row) | {
        "truth": f"{truth.kind}: {truth.line}", "cause": row["cause"],
        "says": "; ".join(" or ".join(cause["names"]) for cause in row["causes"])[:400],
    }  # fmt: skip


def _said(row: Row | None) -> str:
    """The verdict, and what a doubt is; none where it could not run."""
    if row is None or "error" in row:
        return "" if row is None else "cannot run"
    doubt = f" ({row['doubt']})" if row["doubt"] else ""
    return f"{row['verdict']}{doubt}"


def _both(before: Row | None, after: Row | None, key: str) -> str:
    return "/".join({None: "-", True: "passes", False: "fails"}[(row or {}).get(key)] for row in (before, after))


def is_judged(row: Row | None) -> bool:
    """Whether there is a verdict."""
    return row is not None and "error" not in row


def counts(rows: Iterable[Row]) -> Table:
    """What the whole says: of runs, and of bugs, of which one run is enough."""
    both = pairs(rows)
    before = [one for one, _ in both if one is not None and is_judged(one)]
    after = [one for _, one in both if one is not None and is_judged(one)]
    differ = [one for one in before if one.get("differs")]
    alike = [one for one in before if one.get("differs") is False]
    staged = [one for one in differ if WRONG[one["wrong"]].stage]
    edits = [one for one in differ if WRONG[one["wrong"]].truth.kind != "no edit"]
    first = [one for one in edits if not WRONG[one["wrong"]].truth.changed]
    caused = [one for one in differ if one["fails"]]

    mild = {one["wrong"] for one in differ if not one["extreme"]}

    def of(some: Sequence[Row], right: Iterable[Row]) -> dict[str, Any]:
        good = [*right]
        return {"runs": f"{len(good)} of {len(some)}",
                "bugs": f"{len({x['wrong'] for x in good})} of {len({x['wrong'] for x in some})}"}  # fmt: skip

    said = {
        "wrong half judged": of([x for x, _ in both if x is not None], before),
        "right half judged": of([x for _, x in both if x is not None], after),
        "wrong half differs, of those with both": of(differ + alike, differ),
        "before: bug, where it differs": of(differ, (x for x in differ if x["verdict"] in FOUND)),
        "before: fails, where it differs": of(differ, (x for x in differ if x["fails"])),
        "before: bug with nothing declared": of(differ, (x for x in differ if x["bare"]["verdict"] in FOUND)),
        "after: exit code 0": of(after, (x for x in after if not x["fails"])),
        "after: exit code 0 with nothing declared": of(after, (x for x in after if not x["bare"]["fails"])),
        "wrong results are those that show": of(differ, filter(_shows, differ)),
        "stage right": of(staged, (x for x in staged if (x["origin"] or "").split("[")[0] == WRONG[x["wrong"]].stage)),
        "cause named, of all": of(differ, (x for x in differ if x.get("cause") == "named")),
        "cause named, where the truth is an edit": of(edits, (x for x in edits if x.get("cause") == "named")),
        "cause named, but for truths changed behind a run": of(first, (x for x in first if x.get("cause") == "named")),
        "cause among several": of(edits, (x for x in edits if x.get("cause") == "among")),
        "cause false": of(caused, (x for x in caused if x.get("cause") == "false")),
        "assert_close fails before": of(differ, (x for x in differ if x["assert_close"] is False)),
        "assert_close passes after": of(after, (x for x in after if x["assert_close"])),
        "own tests fail before": of(differ, (x for x in differ if x["own_test"] is False)),
        "own tests pass after": of(after, (x for x in after if x["own_test"])),
        "NaN, infinity or over 1,000 times, in all runs": of(differ, (x for x in differ if x["wrong"] not in mild)),
    }
    return [{"count": name, **one} for name, one in said.items()]


#: verdicts on what is wrong: over budget, or never written
FOUND = ("bug", "missing")


def _shows(row: Row) -> bool:
    """Whether nothing is called wrong but what shows the bug."""
    names = {name.split("[")[0] for name in row["wrong_stages"]}
    return bool(names) and names <= {x.split("[")[0] for x in WRONG[row["wrong"]].shows}


def _audited(row: Row) -> dict[str, Any]:
    said = {"project": row["project"], "operation": row["operation"], "dtype": row["dtype"], "what": row["what"]}
    if "error" in row:
        return said | dict.fromkeys(_AUDITED, "") | {"verdict": "none", "about": row["error"][:160]}
    return said | {
        "verdict": row["verdict"], "doubt": row["doubt"], "declared": row["declared"]["verdict"],
        "error / budget": f"{row['over_budget']:.3g}", "first wrong": row["origin"] or "", "about": about(row),
        "beside torch's": beside(row), "own tests": _passes(row["own_test"]),
        "assert_close": _passes(row["assert_close"]), "s": f"{sum(row['seconds'].values()):.0f}",
    }  # fmt: skip


_AUDITED = ("verdict", "doubt", "declared", "error / budget", "first wrong", "about", "beside torch's", "own tests",
            "assert_close", "s")  # fmt: skip


def _passes(found: bool | None) -> str:
    return "" if found is None else "passes" if found else "fails"


def about(row: Row) -> str:
    """What a verdict other than right is about."""
    if row["verdict"] in ("exact", "rounding"):
        return ""
    return "; ".join([*row["gates"], *row["reasons"], *([row["line"]] if row["line"] else [])])


def beside(row: Row) -> str:
    """The kernel's relative error over that of the naive reference in torch, of the worst result."""
    times = [x["kernel"] / x["torch"] for x in row["accuracy"].values() if x["torch"]]
    return f"{max(times, key=lambda x: (x != x, x)):.3g}" if times else ""


def _of_audit(rows: Sequence[Row]) -> Table:
    judged = [row for row in rows if "error" not in row]
    said = {
        "runs": len(rows), "judged": len(judged),
        "functions": len({(x["project"], x["operation"]) for x in judged}),
        "right": sum(x["verdict"] in ("exact", "rounding") for x in judged),
        "exit code 0": sum(not x["fails"] for x in judged),
        "exit code 0, declared": sum(not x["declared"]["fails"] for x in judged),
        "bug": sum(x["verdict"] in FOUND for x in judged),
        "bug, declared": sum(x["declared"]["verdict"] in FOUND for x in judged),
        "suspicious": sum(x["verdict"] == "suspicious" for x in judged),
        "untestable": sum(x["verdict"] == "untestable" for x in judged),
        "own tests fail": sum(x["own_test"] is False for x in judged),
        "assert_close fails": sum(x["assert_close"] is False for x in judged),
    }  # fmt: skip
    return [{"count": name, "n": n} for name, n in said.items()]


def wrong(found: Mapping[str, Any]) -> list[Row]:
    """Runs whose verdict is not as the truth says: a wrong half that differs and is no bug, a right half that fails;
    none where nothing was judged is wrong, too.
    """
    judged = [row for row in found["rows"] if "error" not in row]
    if found["audit"]:
        odd = [row for row in judged if row["verdict"] in FOUND]
    else:
        odd = [row for row in judged if row["before"] and row.get("differs") and row["verdict"] not in FOUND]
        odd += [row for row in judged if not row["before"] and row["fails"]]
    return odd or ([] if judged else [{"error": "nothing was judged"}])
