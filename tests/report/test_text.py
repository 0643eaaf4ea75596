"""The report of one run: short, in full, and on screens of every width."""

import re
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from tests.stored import stored
from workbench import Case, diff, run
from workbench.expectation.elements import Elements, State, whole
from workbench.judge.stage import StageDiff
from workbench.judge.table import run_row
from workbench.report import text
from workbench.report.summary import summary
from workbench.report.tables import Table

CASE = Case(seqlen=20, head_dim=8, block_q=16, block_k=16)
FAULT = "reduce-double-counts-sum"


def attention(q, k, v, *, scale, causal):
    q, k, v = (x.astype(np.float32) for x in (q, k, v))
    scores = q @ np.swapaxes(k, -1, -2) * np.float32(scale)
    row_max = scores.max(-1)
    probs = np.exp(scores - row_max[..., None])
    row_sum = probs.sum(-1)
    return {"out": probs @ v / row_sum[..., None], "lse": row_max + np.log(row_sum)}


def wrong(q, k, v, *, scale, causal):
    return attention(q, k, v[..., ::-1, :], scale=scale, causal=causal)


@pytest.fixture(scope="module")
def judged():
    runs = {
        "fault": stored("split_k", CASE, faults=[FAULT]),
        "right": stored("split_k", CASE),
        "foreign": run(wrong, Case(seqlen=48, batch=2, heads=12, head_dim=64)),
        "fp8": stored("fp8", Case(heads=2, seqlen=20, head_dim=64)),
    }
    return {name: diff(trace) for name, trace in runs.items()}


def shown(part, width, terminal=True):
    """The lines on a screen, without colours."""
    screen = Console(file=(written := StringIO()), width=width, highlight=False, force_terminal=terminal)
    screen.no_color, screen._color_system = True, None
    screen.print(part, crop=False)
    return [line.rstrip() for line in re.sub(r"\x1b\[[\d;]*m", "", written.getvalue()).splitlines()]


def table_of(lines):
    """Header and rows of the table: what lies above and below has single spaces between words."""
    start = next(i for i, line in enumerate(lines) if line.split()[:1] == ["stage"])
    rows = [line for line in lines[start:] if re.match(r" ?(\w+|\d+ more stages)  ", line)]
    return [re.split(r"\s{2,}", line.strip()) for line in rows]


# --- widths


@pytest.mark.campaign(but=16)
@pytest.mark.parametrize("full", [False, True], ids=["short", "full"])
@pytest.mark.parametrize("terminal", [False, True], ids=["plain", "terminal"])
@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
@pytest.mark.parametrize("name", ["fault", "right", "foreign", "fp8"])
def test_no_number_is_cut_and_no_line_is_too_long(judged, name, width, terminal, full):
    one = judged[name]
    lines = shown(text.report(one, unicode=terminal, width=width, full=full), width, terminal)
    assert not any("\u2026" in line for line in lines)
    rows = table_of(lines)
    header = rows[0]
    every = text.stage_table(one, full)
    assert len(rows) == 1 + len(every.rows) and (not full or len(every.rows) == len(one.stages))
    for all_cells, row in zip(every.rows, rows[1:], strict=True):
        cells = dict(zip(every.columns, all_cells, strict=True))
        assert row == [cells[column] for column in header if cells[column]], "every cell is there whole"
    if width >= 80:
        assert {"error / budget", "over budget"} <= {*header}
    if terminal:
        assert all(len(line) <= width for line in lines if not line.startswith(("repeat:", text.RACES)))


def test_all_columns_are_there_where_the_screen_is_wide_enough(judged):
    short = [column for column in text.COLUMNS if column not in ("max ulp", "mean error", "bits lost")]
    assert table_of(shown(text.report(judged["fault"], unicode=True, width=200), 200))[0] == short
    assert table_of(shown(text.report(judged["fault"], unicode=True, width=200, full=True), 200))[0] == [*text.COLUMNS]


def test_on_80_columns_a_stage_of_a_billion_elements_keeps_its_counts():
    """Five axes, the widest counts and numbers, and a victim among them."""
    elements = Elements(*(np.zeros((1, 1, 1, 1, 1)) for _ in range(5)), np.zeros((1, 1, 1, 1, 1), np.uint8))
    stage = StageDiff("merge_weight", "bhqtd", "bug", whole(elements), None)
    cells = {"stage": stage.name, "verdict": "suspicious", "error / budget": "1.00000012", "max abs error": "9.45e-123"}
    cells |= {"over budget": "1073741824/1073741824", "worst at": "b=0 h=127 q=65535 t=1023 d=127"}
    cells |= {"actual": "-1.23457e-38", "expected": "-1.23457e-38"}
    for unicode in (False, True):
        table = Table([*cells], [[*cells.values()]], [""], spare=text.SPARE).screen(unicode=unicode, width=80)
        assert {"error / budget", "over budget"} <= {column.header for column in table.columns}
        lines = shown(table, 80, unicode)
        assert any("1.00000012" in line and "1073741824/1073741824" in line for line in lines)


def test_several_runs_keep_their_numbers_on_a_narrow_screen(judged):
    rows = [run_row(one) for one in judged.values()]
    lines = shown(summary(rows, unicode=True), 70)
    numbers = [text.ratio(row.over_budget) for row in rows]
    assert all(any(number in line.split() for line in lines) for number in numbers)
    assert not any("\u2026" in line for line in lines)


def test_where_a_gate_failed_the_summary_calls_nothing_right(judged):
    row = replace(run_row(judged["right"]), gates=("was replaced",))
    lines = shown(summary([row], unicode=False), 120, False)
    assert lines[0] == "gate failed: was replaced"
    assert "gate failed" in lines[2] and "<- first failing" in lines[2] and "rounding" not in lines[2]


# --- short and in full


def below(lines):
    """The lines below the table."""
    last = max(i for i, line in enumerate(lines) if re.match(r"(\w+|\d+ more stages)  ", line))
    return [line for line in lines[last + 1 :] if line]


def over_budget_of_cause(judged):
    (cause,) = judged.explained.causes
    return cause.fit.over_budget


def test_short(judged):
    lines = below(shown(text.report(judged["fault"], unicode=False, width=200), 200, False))
    n = judged["fault"]["merge_weight"].isolated.summary.outside
    options = f"split_k --fault {FAULT} --seqlen 20 --head-dim 8 --splits 2 --block-q 16 --block-k 16"
    assert lines == [
        "verdict: bug; first wrong stage: merge_weight, should be exp(partial_max - merge_max); 0 where partial_max is -inf",
        "  cause: weights of partial_O are multiplied by partial_sum, but partial_O is unnormalised; reproduces "
        f"{n} of {n} elements within budget (error / budget at most {over_budget_of_cause(judged['fault']):.3g}); "
        f"not proved: it changes {n} elements; fewer than 100 may fit by chance",
        f"  look at: {judged['fault'].trace.lines['merge_weight']}",
        "victim: out (right given its inputs; the row shows the inherited error)",
        f"check for races and uninitialised reads: workbench check {options}",
        f"repeat: workbench diff {options}",
    ]


def test_right_stages_of_a_wrong_run_share_a_row_and_its_results_have_their_own(judged):
    one = judged["fault"]
    table = text.stage_table(one, full=False)
    assert [row[0] for row in table.rows] == ["merge_weight", "out", "lse", "13 more stages"]
    cells = dict(zip(table.columns, table.rows[-1], strict=True))
    right = [stage.reported for stage in one if stage.name not in ("merge_weight", "out", "lse")]
    assert cells["verdict"] == "right" and cells["over budget"] == f"0/{sum(x.summary.size for x in right)}"
    worst = max(x.summary.worst.over_budget for x in right if x.summary.worst is not None)
    assert cells["error / budget"] == text.ratio(worst)
    assert len(text.stage_table(judged["right"], full=False).rows) == len(judged["right"].stages)


@pytest.mark.campaign
def test_in_full_every_line_of_the_short_one_is_there_and_more(judged):
    for one in judged.values():
        short, full = (below(shown(text.report(one, unicode=False, width=200, full=f), 200, False)) for f in (0, 1))
        assert {line for line in short if "-v lists them" not in line} < {*full}
        assert any(line.startswith("other rules on out: ") for line in full)
        assert any(line.strip().startswith("its budget: ") for line in full)
        assert not any(line.startswith(("other rules", "  its budget", "correctly rounded")) for line in short)


def test_short_costs_neither_the_pass_of_bits_lost_nor_the_other_rules(monkeypatch):
    judged = diff(stored("flash", CASE))

    def never(*args, **kwargs):
        raise AssertionError("nobody asked for it")

    monkeypatch.setattr("workbench.judge.diff.diagnostics", never)
    assert shown(text.report(judged, unicode=False, width=200), 200, False)
    with pytest.raises(AssertionError, match="nobody asked for it"):
        text.report(judged, unicode=False, width=200, full=True)


def test_of_a_foreign_kernel_it_says_what_was_not_given_and_how_much_is_assumed(judged):
    lines = below(shown(text.report(diff(run(attention, CASE)), unicode=False, width=200), 200, False))
    assert lines[0] == "verdict: rounding: every judged element is within its budget"
    assert lines[1] == "  not given: qk, scores, row_max, correction, probs, probs_cast, row_sum, acc"
    assert re.fullmatch(
        r"contract: \d+ arithmetic settings are undeclared; the loosest value of each is assumed \(-v lists them\)",
        lines[-1],
    )
    assert "upstream" not in "".join(lines) and len(lines) == 3


def test_jupyter_folds_away_what_only_the_full_one_has(judged):
    page = judged["fault"]._repr_html_()
    short, _, full = page.partition("<details>")
    assert "first wrong stage: merge_weight" in short and "other rules" not in short and "bits lost" not in short
    assert "other rules on out" in full and "bits lost" in full


# --- words


def test_a_verdict_in_the_table_is_not_green_beside_an_error(judged):
    rows = table_of(shown(text.report(judged["fault"], unicode=False, width=200), 200, False))
    verdicts = {row[0]: row[1] for row in rows}
    assert verdicts["merge_weight"] == "bug <- origin" and verdicts["out"] == "victim" and verdicts["lse"] == "rounding"


def test_a_verdict_that_is_not_plainly_right_is_not_green(judged):
    right = judged["right"]
    doubtful = replace(right["lse"], verdict="suspicious", reason="for some reason")
    one = replace(right, stages=(*right.stages[:-1], doubtful))
    table = text.report(one, unicode=True, width=200).renderables[1]
    assert {row.style for row in table.rows[:-1]} == {"green"} and table.rows[-1].style == "yellow"
    assert "color:#946200" in one._repr_html_() and "color:#946200" not in right._repr_html_()
    rows = summary([run_row(one), run_row(right)], unicode=True).renderables[0].rows
    assert [row.style for row in rows] == ["yellow", "green"]


@pytest.mark.campaign
def test_a_later_origin_is_called_wrong_by_itself_only_where_it_was_judged_so():
    def both(q, k, v, *, scale, causal):
        found = attention(q, k, v, scale=scale, causal=causal)
        return {"out": found["out"] * 2, "lse": found["lse"] * 2}

    lines = text.sentences(diff(run(both, CASE)), full=False)
    assert [re.split(" =|, should be", line)[0] for line in lines if "wrong" in line] == [
        "verdict: bug; first wrong stage: out or one before it (only out and lse were given)",
        "also wrong: lse",
    ]
    faults = ["partial-no-masked-tile-guard", FAULT]
    judged = diff(stored("split_k", CASE.but(causal=True), faults=faults))
    named = [
        re.split(", should be", line)[0]
        for line in text.sentences(judged, full=False)
        if "wrong" in line.partition(", should be")[0]
    ]
    assert named[0].startswith("verdict: bug; first wrong stage: ") and "also wrong: merge_weight" in named


@pytest.mark.campaign
def test_a_stage_whose_line_is_not_known_says_none(judged):
    lines = {name: [x for x in text.sentences(one, full=False) if "look at: " in x] for name, one in judged.items()}
    assert {name: len(found) for name, found in lines.items()} == {"fault": 1, "right": 0, "foreign": 0, "fp8": 0}
    at_rest = diff(replace(judged["fault"].trace, find_lines=dict))
    assert not [line for line in text.sentences(at_rest, full=True) if "look at: " in line]
    documents = (judged["fault"].as_dict()["stages"], at_rest.as_dict()["stages"])
    named = ({stage["name"]: stage["line"] for stage in stages} for stages in documents)
    given, absent = named
    assert given["merge_weight"]["path"].endswith("workbench/cuda/split_k.py") and given["merge_weight"]["line"] > 0
    assert given["merge_weight"]["text"] == judged["fault"].trace.lines["merge_weight"].text
    assert set(absent.values()) == {None} and None not in given.values()


def test_ranges_of_x_of_budget_can_be_read():
    over = np.array([0, 0.001, 0.02, 0.3, 0.7, 1.5, 5, 40, np.inf], np.float32)
    state = np.where(over > 1, State.OUTSIDE, State.ROUNDING).astype(np.uint8)
    ones = np.ones(over.shape)
    from workbench.report.origin import bins

    assert bins(whole(Elements(ones.astype(np.float32), ones, ones, ones, over, state))) == (
        "elements by error / budget: 1 at 0, 1 at 0 to 0.01, 1 at 0.01 to 0.1, 1 at 0.1 to 0.5, 1 at 0.5 to 1, "
        "1 at 1 to 2, 1 at 2 to 10, 1 above 10, 1 at inf"
    )


def test_listings_fold_words_and_no_numbers():
    entries = [{"id": "one", "seconds": 0.00123456, "summary": "many words " * 20} for _ in range(2)]
    lines = shown(text.listing(entries, ("id", "seconds", "summary"), unicode=True), 60)
    assert sum("0.00123" in line for line in lines) == 2 and not any("\u2026" in line for line in lines)
    assert len(lines) > 8 and all(len(line) <= 60 for line in lines)


def test_what_is_printed_has_no_colours_whatever_the_environment_asks_for(monkeypatch):
    """Jupyter's kernel sets FORCE_COLOR for all programs."""
    judged = diff(stored("flash", Case(seqlen=8, head_dim=8, block_q=16, block_k=16)))
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "first wrong" not in str(judged) and "\x1b" not in str(judged) and "scores" in str(judged)
