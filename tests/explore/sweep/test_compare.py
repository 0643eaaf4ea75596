"""Two sweeps beside each other: exactly what got worse, better, and what has other bits."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.refusals import refusal
from workbench import Case
from workbench.explore.sweep.compare import compare
from workbench.explore.sweep.plan import Plan
from workbench.explore.sweep.row import Row
from workbench.explore.sweep.store import created

CASES = [Case(seqlen=n) for n in range(1, 9)]


def written(path: Path, rows: Sequence[Row]) -> Path:
    with created(path, Plan("flash", tuple(row.case for row in rows))) as store:
        for row in rows:
            store.add(row)
    return path


def row(n: int, outcome: str, bits: str | None = "a", origin: str | None = None) -> Row:
    ran = {"machine": "m", "device": "emulator", "versions": {"numpy": "2"}, "code": "0" * 64}
    origins = () if origin is None else (origin,)
    return Row(CASES[n], outcome, bits=bits, origins=origins, stages={"out": (outcome, 0.5)}, ran=ran)


OUTCOMES = ("rounding", "suspicious", "biased", "refused", "bug")


@pytest.mark.parametrize("before", range(5), ids=OUTCOMES)
@pytest.mark.parametrize("now", range(5), ids=OUTCOMES)
def test_a_case_is_worse_where_its_class_is(before: int, now: int, tmp_path: Path) -> None:
    old, new = (written(tmp_path / f"{name}.sqlite", [row(0, OUTCOMES[i])]) for name, i in (("o", before), ("n", now)))
    (pair,) = compare(old, new).pairs
    assert pair.change == ("same" if now == before else "worse" if now > before else "better")


def test_each_case_is_one_change(tmp_path: Path) -> None:
    old = [
        row(0, "exact"),
        row(1, "rounding"),
        row(2, "bug", "b", "lse"),
        row(3, "rounding"),
        row(4, "bug", "b", "lse"),
    ]
    old += [row(5, "crashed", None), row(6, "bug", "b", "lse")]
    new = [row(0, "rounding"), row(1, "rounding", "c"), row(2, "rounding"), row(3, "bug", "b", "out")]
    new += [row(4, "bug", "b", "out"), row(5, "timeout", None), row(7, "exact")]
    found = compare(written(tmp_path / "old.sqlite", old), written(tmp_path / "new.sqlite", new))
    assert {pair.case.seqlen_k - 1: pair.change for pair in found.pairs} == {
        0: "same",
        1: "changed",
        2: "better",
        3: "worse",
        4: "changed",
        5: "changed",
        6: "only in OLD",
        7: "only in NEW",
    }
    assert found.counts == {"worse": 1, "better": 1, "changed": 3, "same": 1, "only in OLD": 1, "only in NEW": 1}
    assert [pair.case for pair in found.worse] == [CASES[3]] and [pair.case for pair in found.better] == [CASES[2]]
    assert found.conditions == {}


def test_what_has_no_case_in_common_is_refused(tmp_path: Path) -> None:
    old, new = (written(tmp_path / f"{n}.sqlite", [row(n, "exact")]) for n in (1, 2))
    said = f"{old} and {new} have no case in common: there is nothing to compare"
    assert refusal(compare, old, new) == said
    assert "no such file; a sweep writes one" in refusal(compare, old, tmp_path / "none")
