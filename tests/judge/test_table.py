"""Several runs as a table: which passes last, which fails first, and that no trace is kept."""

import gc
import re
import weakref
from collections.abc import Iterator

import pytest

from tests.stored import stored
from workbench import Case, Diff, diff
from workbench.judge.table import table

CASE = Case(head_dim=8, block_q=16, block_k=16)


def judged(seqlen: int, *faults: str, **options: str) -> Diff:
    return diff(stored("flash", CASE.but(seqlen=seqlen), faults=faults, **options))


def test_the_last_passing_and_the_first_failing_run() -> None:
    rows = table(judged(n, "flash-v-tile-stale") for n in (8, 16, 17, 40))
    assert [row.passed for row in rows] == [True, True, False, False]
    assert rows.last_passing is rows.rows[1] and rows.first_failing is rows.rows[2]
    first = rows.first_failing
    assert (first.target, first.case.seqlen_k, first.verdict, first.origins) == ("flash", 17, "bug", ("acc",))
    assert first.over_budget > 1 and first.max_abs > 0


@pytest.mark.parametrize(("faults", "passing", "failing"), [((), 8, None), (("flash-scale-twice",), None, 4)])
def test_runs_that_all_pass_or_all_fail(faults: tuple[str, ...], passing: int | None, failing: int | None) -> None:
    rows = table([judged(4, *faults), judged(8, *faults)])
    found = [row and row.case.seqlen_k for row in (rows.last_passing, rows.first_failing)]
    assert found == [passing, failing]


def test_html() -> None:
    rows = table([judged(16, "flash-v-tile-stale"), judged(17, "flash-v-tile-stale", where="q=3:5")])
    page = rows._repr_html_()
    assert page.count("color:#b00020") == 1
    said = re.sub(r" style='[^']*'", "", page)
    columns = ("case", "verdict", "origin", "error / budget", "max abs error", "")
    assert said.startswith("<table><tr>" + "".join(f"<th>{name}</th>" for name in columns))
    runs = ("flash --seqlen 16 --head-dim 8", "flash --seqlen 17 --head-dim 8 --where b=0:1,h=0:1,q=3:5")
    assert re.findall(r"<tr><td>(.*?)</td>", said) == [*runs]
    assert "<td>&lt;- last passing</td>" in said and "<td>&lt;- first failing</td>" in said
    assert said.endswith("<div>2 runs: 1 without a bug, 1 with one or untestable</div>")


def test_one_trace_at_a_time_is_kept() -> None:
    made: list[weakref.ref] = []
    gc.freeze()  # what other tests left behind is not looked through three times

    def runs() -> Iterator[Diff]:
        for n in (4, 5, 6):
            gc.collect()
            assert all(one() is None for one in made[:-1])
            one = judged(n)
            made.append(weakref.ref(one.trace))
            yield one

    assert [row.case.seqlen_k for row in table(runs())] == [4, 5, 6]
