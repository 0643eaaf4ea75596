"""The file of a sweep: rows come back as they were, whatever they hold; traces stay within their bytes."""

import json
import math
import sqlite3
from pathlib import Path

import pytest

from workbench import Case
from workbench.explore.sweep.kept import Kept
from workbench.explore.sweep.plan import Plan, random_cases
from workbench.explore.sweep.row import Named, Row, case_id, of_dict
from workbench.explore.sweep.store import Store, created
from workbench.explore.sweep.sweep import load as load_sweep

CASE = Case(seqlens_q=(3, 0, 5), causal=True, window=(4, 0), heads=2, alibi_slopes=(0.5, 0.25), head_dim=8)


def test_a_row_comes_back_as_it_was(tmp_path: Path) -> None:
    causes = {"acc": Named("layout.rows-64-v", "rows of v", (64, 2), True, False), "out": None}
    stages = {"acc": ("bug", math.inf), "out": ("untestable", None)}
    row = Row(CASE, "bug", {"block_q": 16}, ("acc",), stages, "ab", "why", causes, 0.25, {"code": "c", "versions": {}})
    assert of_dict(json.loads(json.dumps(row.as_dict()))) == row
    with created(tmp_path / "s.sqlite", Plan("flash", (CASE,), {"faults": ("x",)})) as store:
        store.add(Row(CASE, "refused"))
        store.add(row)
    found = load_sweep(tmp_path / "s.sqlite")
    assert found.rows == (row,) and found.left == 0 and found.plan.cases == (CASE,)
    assert found.rows[0].over_budget == math.inf and found.fails


def test_sql_reads_the_columns(tmp_path: Path) -> None:
    with created(tmp_path / "s.sqlite", Plan("flash", (CASE,))) as store:
        store.add(Row(CASE, "bug", origins=("lse",), causes={"lse": Named("a.b", "c")}, stages={"lse": ("bug", 7.5)}))
    with sqlite3.connect(tmp_path / "s.sqlite") as connection:
        (found,) = connection.execute("SELECT id, outcome, origin, cause, over_budget, bits FROM rows")
    connection.close()
    assert found == (case_id(CASE), "bug", "lse", "a.b", 7.5, None)


def test_ids_are_of_the_case_alone_and_stay() -> None:
    assert case_id(Case(seqlen=65, causal=True)) == case_id(Case(seqlen_q=65, seqlen_k=65, causal=True, head_dim=64))
    assert case_id(Case(seqlen=65, causal=True)) == "4c41ff614beb", "files of earlier sweeps have these ids"
    assert len({case_id(case) for case in random_cases("flash", 500)}) == 500


def test_random_cases_are_the_same_for_a_seed() -> None:
    assert random_cases("flash", 5, 7) == random_cases("flash", 9, 7)[:5] != random_cases("flash", 5, 8)
    limited = random_cases("flash", 20, dtype=("float16",), causal=(True,))
    assert {(case.dtype, case.causal) for case in limited} == {("float16", True)}
    assert len(random_cases("torch:scaled_dot_product_attention", 3)) == 3


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return created(tmp_path / "s.sqlite", Plan("flash", (CASE,)))


def test_traces_of_the_first_of_groups_take_the_room_of_others(store: Store, tmp_path: Path) -> None:
    with store:
        kept = Kept(store, 250)
        kept.add("a", b"x" * 100)
        kept.add("b", b"x" * 100)
        assert not kept.full
        kept.add("c", b"x" * 100)
        assert kept.full and not kept.has("c") and not (tmp_path / "s.traces/c.safetensors").exists()
        kept.mark_first("a")
        kept.add("d", b"x" * 120, first=True)
        assert sorted(path.stem for path in (tmp_path / "s.traces").iterdir()) == ["a", "d"]
        kept.add("e", b"x" * 200, first=True)
        assert not kept.has("e") and kept.has("a") and kept.has("d"), "the first of a group goes for nothing"
        assert store.traces() == {"a": (100, True), "d": (120, True)} == Kept(store, 250)._sizes
