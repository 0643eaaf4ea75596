"""`workbench show` as a user meets it: tables, matrices, JSON, and whole messages for every mistake."""

import json
from functools import partial
from pathlib import Path

import pytest
from click.testing import Result
from rich.console import Console

from tests.refusals import invoked, refused
from tests.stored import stored
from workbench import Case, save
from workbench.expectation.elements import State
from workbench.report.values import STATES

SMALL = ["--seqlen", "20", "--head-dim", "8", "--block-q", "16", "--block-k", "16", "--backend", "emulator"]
KERNEL = """
import numpy as np
def attention(q, k, v, *, scale, causal):
    s = q @ k.swapaxes(-1, -2) * np.float32(scale)
    p = np.exp(s - s.max(-1, keepdims=True))
    return {"scores": s, "row_max": s.max(-1)[..., None], "out": p @ v / p.sum(-1, keepdims=True)}
"""


show, message = partial(invoked, "show"), partial(refused, "show")


@pytest.fixture
def mine(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(KERNEL)
    return f"{path}:attention"


def cells(result: Result) -> list[list[str]]:
    assert result.exit_code == 0, result.exception
    return [line.split() for line in result.stdout.splitlines()]


def test_a_row_for_each_element() -> None:
    lines = cells(show("flash", "qk[0,0,1:3,-1]", *SMALL))
    assert " ".join(lines[0]).startswith("flash on emulator: float32 b=1 h=1 q=20 k=20 d=8, no mask, ")
    assert " ".join(lines[1]) == "qk [b h q k] = sum_d q k, before scale and mask"
    assert " ".join(lines[2]) == "rounding; expected: float64 from q and k"
    assert lines[3] == ["b", "h", "q", "k", "actual", "expected", "error", "budget", "error", "/", "budget", "verdict"]
    assert [line[:4] for line in lines[4:]] == [["0", "0", "1", "19"], ["0", "0", "2", "19"]]
    for *_, actual, expected, error, budget, over, verdict in lines[4:]:
        # as printed: nine digits of the values, three of the rest
        assert abs(float(actual) - float(expected) - float(error)) <= 1e-8 * abs(float(actual))
        assert float(over) == pytest.approx(abs(float(error)) / float(budget), rel=0.02)
        assert verdict in ("exact", "rounding")


def test_by_name_and_the_worst_of_a_faulty_stage() -> None:
    faulty = ["split_k", "--fault", "reduce-double-counts-sum", *SMALL]
    lines = cells(show(*faulty[:1], "merge_weight[s=0]", *faulty[1:], "--worst", "3"))
    assert " ".join(lines[2]) == "bug; expected: float64 from the kernel's partial_max, merge_max"
    assert len(lines) == 7 and all(line[2] == "0" and line[-1] == "bug" for line in lines[4:])
    over = [float(line[-2]) for line in lines[4:]]
    assert over == sorted(over, reverse=True) and over[-1] > 1
    lines = cells(show("split_k", "out", *faulty[1:], "--worst", "1"))
    assert " ".join(lines[2]) == "victim; expected: float64 from q, k and v"
    assert lines[4][-1] == "bug"


def test_many_elements_along_two_axes_make_a_matrix() -> None:
    lines = cells(show("flash", "scores[0,0,0:20,4:12]", "--causal", "--fault", "flash-scale-twice", *SMALL))
    assert " ".join(lines[3]) == "actual (* over budget) at batch b=0, head h=0"
    assert lines[4] == ["q", "\\", "k", *map(str, range(4, 12))]
    assert lines[5] == ["0", *["-inf"] * 8]  # hidden, as they should be
    assert all(cell.endswith("*") for cell in lines[24][1:]) and lines[24][0] == "19"
    assert " ".join(lines[25]) == "error / budget at batch b=0, head h=0"
    assert len(lines) == 47 and all(float(cell) > 1 for cell in lines[46][1:])


def test_numbers_are_never_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a narrow screen a matrix becomes a list, and a list loses the columns that say least."""

    def printed(width: int, *words: str) -> list[list[str]]:
        monkeypatch.setattr("workbench.report.text.console", lambda: Console(highlight=False, width=width))
        result = show("flash", *words, *SMALL)
        assert "\u2026" not in result.stdout and "..." not in result.stdout
        return cells(result)

    matrix = printed(220, "qk[0,0,0:3]", "--expected")
    assert matrix[4] == ["q", "\\", "k", *map(str, range(20))] and len(matrix) == 8
    assert all(len(cell.lstrip("-0.").replace(".", "")) <= 9 for cell in matrix[5][1:])
    rows = printed(120, "qk[0,0,0:3]", "--expected")
    assert rows[3] == ["b", "h", "q", "k", "expected"] and len(rows) == 64
    wide, narrow, narrower = (
        next(line for line in printed(width, "qk[0,0,0,0:3]") if line[:4] == ["b", "h", "q", "k"])
        for width in (100, 76, 66)
    )
    assert wide[5:] == ["expected", "error", "budget", "error", "/", "budget", "verdict"]
    assert narrow[5:] == ["expected", "error", "error", "/", "budget", "verdict"]
    assert narrower[5:] == ["expected", "error", "/", "budget", "verdict"]


def test_the_reference_alone_of_stages_that_nobody_dumped(mine: str) -> None:
    options = ["--seqlen", "6", "--head-dim", "8"]
    lines = cells(show(mine, "qk[0,0,2:4,:2]", *options, "--expected"))
    assert " ".join(lines[2]) == "expected: float64 from q, k and v"
    q, k, _ = (x.astype(float) for x in Case(seqlen=6, head_dim=8).inputs())
    expected = q[0, 0, 2:4] @ k[0, 0, :2].T
    assert [line[0] for line in lines[5:]] == ["2", "3"]
    assert [[float(cell) for cell in line[1:]] for line in lines[5:]] == pytest.approx(expected, rel=1e-8)


def test_values_of_stages_that_were_not_judged(mine: str) -> None:
    lines = cells(show(mine, "row_max[q=2]", "--seqlen", "6", "--head-dim", "8"))
    assert " ".join(lines[2]) == "not judged (the contract does not declare block_k, so its key tiles are unknown)"
    assert lines[3] == ["b", "h", "q", "t", "actual", "verdict"] and lines[4][-2:] == ["not", "judged"]


def test_codes_of_a_quantised_kernel() -> None:
    lines = cells(show("fp8", "codes_q[0,0,0,:2]", "--seqlen", "20", "--head-dim", "16", "--backend", "emulator"))
    assert " ".join(lines[2]) == "exact; expected: float64 from q and the kernel's scale_q"
    assert all(line[4] == line[5] and line[-1] == "exact" for line in lines[4:])


def test_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    save(stored("flash", Case(seqlen=20, head_dim=8, block_q=16, block_k=16)), path)
    assert cells(show(str(path), "lse[q=3]"))[4][:3] == ["0", "0", "3"]


def test_json() -> None:
    document = json.loads(show("flash", "scores[q=3:5,k=19]", "--causal", *SMALL, "--json").stdout)
    assert (document["schema"], document["target"], document["stage"]) == ("workbench.show/1", "flash", "scores")
    assert document["verdict"] == "exact" and document["case"]["causal"] is True and document["faults"] == []
    first, second = document["elements"]
    assert first["index"] == {"b": 0, "h": 0, "q": 3, "k": 19} and second["index"]["q"] == 4
    assert set(first) == {"index", "actual", "expected", "error", "budget", "over_budget", "state"}
    assert (first["actual"], first["expected"], first["error"], first["state"]) == ("-inf", "-inf", 0.0, "exact")
    alone = json.loads(show("flash", "lse[q=3]", *SMALL, "--expected", "--json").stdout)
    assert alone["verdict"] is None and alone["elements"][0]["actual"] is None is alone["elements"][0]["state"]
    assert isinstance(alone["elements"][0]["expected"], float)
    worst = json.loads(show("flash", "qk", *SMALL, "--worst", "2", "--json").stdout)
    assert len(worst["elements"]) == 2 and worst["elements"][0]["over_budget"] >= worst["elements"][1]["over_budget"]


def test_every_state_has_a_word() -> None:
    assert set(STATES) == {*State, None}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["flash", "kq[0]"],
            "flash has no stage 'kq'; its stages: qk, scores, row_max, correction, probs, probs_cast, row_sum, acc, out, lse",
        ),
        (
            ["flash", "partial_max", "--expected"],
            "flash has no stage 'partial_max'; its stages: qk, scores, row_max, correction, probs, probs_cast, row_sum, acc, "
            "out, lse",
        ),
        (
            ["flash", "acc", "--probes", "output"],
            "flash returned no acc; it returned out, lse; --expected shows the expected acc",
        ),
        (["flash", "qk[0,0,20,0]"], "stage qk: query q must be 0 to 19; got 20"),
        (["flash", "qk[0,0,20,0]", "--expected"], "stage qk: query q must be 0 to 19; got 20"),
        (["flash", "qk[0,0,0,0,0]"], "stage qk has 4 axes, b h q k; got 5 indices"),
        (["flash", "qk[d=0]"], "stage qk has the axes b h q k; got 'd'"),
        (
            ["flash", "qk[0"],
            "a selection is a stage and, in brackets, an index or a slice for each axis, in order or by name: qk, "
            "qk[0,0,0:3,0:3], qk[...,-1], qk[q=5,k=0:3]; got 'qk[0'",
        ),
        (
            ["flash", "qk"],
            "show prints at most 256 elements; qk selects 400 (20 queries x 20 keys): narrow the indices, or use --worst N",
        ),
        (
            ["flash", "qk[:]", "--expected"],
            "show prints at most 256 elements; qk[:] selects 400 (20 queries x 20 keys): narrow the indices",
        ),
        (["flash", "qk", "--worst", "257"], "show prints at most 256 elements; got --worst 257"),
        (
            ["flash", "qk", "--worst", "2", "--expected"],
            "--expected shows only expected values, which have no worst; leave out --worst",
        ),
        (["flash,split_k", "qk[q=0]"], "show takes one run; the target and the case options make 2"),
        (["flash", "qk[q=0]", "--causal", "no,yes"], "show takes one run; the target and the case options make 2"),
        (
            ["flsh", "qk"],
            "unknown kernel 'flsh'; kernels are flash, flash_tensor, flash_mma, flash_wgmma, split_k, split_mma, fp8, fp8_mma, fp8_wgmma; pass your own as path.py:function, a trace as FILE.safetensors, arrays as FILE.npz or .pt",
        ),
    ],
)
def test_wrong_usage_is_refused(words: list[str], expected: str) -> None:
    assert message(*words, *SMALL) == expected


def test_what_has_no_worst_and_what_cannot_be_known(mine: str) -> None:
    options = ["--seqlen", "6", "--head-dim", "8"]
    assert message(mine, "row_max", *options, "--worst", "1") == (
        "stage row_max was not judged, so it has no worst element"
    )
    assert message(mine, "row_max", *options, "--expected") == (
        f"stage row_max of {mine}: the contract does not declare block_k, so its key tiles are unknown"
    )
    assert message(mine, "lse", *options) == (
        f"{mine} returned no lse; it returned scores, row_max, out; --expected shows the expected lse"
    )


def test_words_that_are_missing_show_the_usage() -> None:
    result = show("flash")
    assert result.exit_code == 2 and result.stderr.splitlines()[-1] == "Error: Missing argument 'STAGE[INDICES]'."
    result = show("flash", "qk", "--worst", "0")
    assert result.exit_code == 2 and "Invalid value for '--worst': 0 is not in the range x>=1." in result.stderr


def test_a_stage_that_a_way_of_decoding_does_not_have() -> None:
    rest = (
        "scale_q, scale_k, scale_v, codes_q, codes_k, codes_v, dequant_q, dequant_k, dequant_v, qk, scores, row_max, "
        "correction, probs, probs_cast, row_sum, acc, out, lse"
    )
    assert message("fp8", "lut_k", "--seqlen", "16", "--codes", "decode=direct", "--backend", "emulator") == (
        f"fp8 with decode=direct has no stage lut_k; it has {rest}"
    )
