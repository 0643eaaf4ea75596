"""Logs of printed values: what a line may look like, what its digits tell, and what a few lines are enough to find."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.stored import stored
from workbench import Case, Diff, Refusal, diff, load, save
from workbench.expectation.elements import State
from workbench.floats import to_float64
from workbench.report.words import findings
from workbench.trace.printed import half_units, load_log, number, read

CASE = Case(seqlen=24, head_dim=16)


def attention(case: Case, **faults: float) -> dict[str, np.ndarray]:
    """The stages of plain float32 attention in NumPy on the case's own inputs."""
    q, k, v = (x.astype(np.float32) for x in case.inputs())
    qk = q @ k.swapaxes(-1, -2)
    scores = qk * np.float32(case.scale * faults.get("scale_by", 1))
    row_max = scores.max(-1)
    probs = np.exp(scores - row_max[..., None])
    row_sum = probs.sum(-1)
    out = probs @ v / row_sum[..., None]
    return {"qk": qk, "scores": scores, "out": out, "lse": row_max + np.log(row_sum)}


def lines(stages: dict[str, np.ndarray], each: int, form: str = "%g") -> Iterator[str]:
    """`each` lines for each stage, at random places, as a kernel's printf would write them."""
    rng = np.random.default_rng(0)
    for name, stage in stages.items():
        for flat in rng.choice(stage.size, each, replace=False):
            place = np.unravel_index(flat, stage.shape)
            x = float(to_float64(stage[place]))
            yield f"WB {name} {' '.join(map(str, place))} {x.hex() if form == '%a' else form % x}"


def judged(tmp_path: Path, text: str, case: Case = CASE) -> Diff:
    path = tmp_path / "run.log"
    path.write_text(text)
    return diff(load_log(path, case))


def message(tmp_path: Path, text: str, case: Case = CASE) -> str:
    with pytest.raises(Refusal) as refused:
        judged(tmp_path, text, case)
    return str(refused.value).replace(f"{tmp_path}/", "")


def test_forty_lines_of_a_kernel_with_a_wrong_scale_name_scores(tmp_path: Path) -> None:
    stages = attention(CASE, scale_by=1.01)
    for names in (("qk", "scores", "out", "lse"), ("scores", "out")):
        text = "\n".join(["starting kernel", *lines({name: stages[name] for name in names}, 40 // len(names)), "done"])
        found = judged(tmp_path, text)
        assert len(text.splitlines()) == 42 and found.origins == ("scores",) and found.verdict == "bug"
        assert "qk" not in names or found["qk"].verdict == "rounding"
        assert found.victims == names[names.index("scores") + 1 :]
    assert found.trace.notes == ("40 lines give 40 elements; other lines, ignored: 2",)


def test_what_is_said_of_it(tmp_path: Path) -> None:
    found = judged(tmp_path, "\n".join(lines(attention(CASE, scale_by=1.01), 10, "%.4g")))
    said = findings(found)
    assert said[0] == "verdict: bug; first wrong stage: scores, should be qk * scale, -inf where masked"
    assert "victim?: out, lse (cannot be judged apart from an earlier wrong stage)" in said
    full = findings(found, full=True)
    assert not any("not dumped, so the bug may be there too" in line for line in [*said, *full])
    assert "  over budget: 10 of 10 (100.0%)" in full
    assert "  judged from q, k and v alone: the bug may be anywhere up to scores" in full
    assert "  earlier stages that are right (of those dumped): qk" in full
    assert any(line.endswith("% the printed digits") for line in full)


@pytest.mark.parametrize("form", ["%f", "%g", "%e", "%a", "%.9g", "%.2f", "%.3g", "%.12f"])
@pytest.mark.parametrize(("kernel", "dtype"), [("flash", "float32"), ("flash", "float16"), ("split_k", "bfloat16")])
def test_values_of_a_correct_kernel_are_within_rounding_in_any_format(
    kernel: str, dtype: str, form: str, tmp_path: Path
) -> None:
    case = Case(seqlen=40, heads=2, kv_heads=1, head_dim=16, dtype=dtype, block_q=32, block_k=16, causal=True)
    trace = stored(kernel, case)
    found = judged(tmp_path, "\n".join(lines(dict(trace.stages), 8, form)), trace.case)
    assert found.verdict == "rounding" and [stage.name for stage in found] == list(trace.stages)
    assert all(stage.decisive is not None and stage.decisive.summary.size == 8 for stage in found)


@pytest.mark.parametrize("form", ["%f", "%g", "%a", "%.4g"])
def test_a_wrong_value_is_found_in_any_format(form: str, tmp_path: Path) -> None:
    """One value in ten is off by half of a percent."""
    stages = attention(CASE)
    text = list(lines({"scores": stages["scores"]}, 10, form))
    right = judged(tmp_path, "\n".join(text))
    assert right.verdict == "rounding" and right["scores"].decisive is not None
    place = tuple(map(int, text[4].split()[2:6]))
    wrong = float(stages["scores"][place]) * 1.005
    text[4] = " ".join([*text[4].split()[:-1], wrong.hex() if form == "%a" else form % wrong])
    found = judged(tmp_path, "\n".join(text))["scores"]
    assert found.verdict == "bug" and tuple(found.worst(1)[0].index.values()) == place
    assert found.decisive is not None and found.decisive.summary.outside == 1


def test_only_what_was_printed_is_judged_and_counted(tmp_path: Path) -> None:
    found = judged(tmp_path, "WB lse 0 0 5 1.5\nWB lse 0 0 7 nan")
    comparison = found["lse"].decisive
    assert comparison is not None and comparison.summary.size == 2 == comparison.summary.outside
    assert np.flatnonzero(comparison.state != State.ABSENT).tolist() == [5, 7]
    assert np.isnan(comparison.error[0, 0, [0, 7]]).all() and comparison.error[0, 0, 5] != 0
    assert found["lse"].profile("q").outside.tolist() == [0] * 5 + [1, 0, 1] + [0] * 16
    assert [row["index"]["q"] for row in found["lse"][...].worst(9)] == [7, 5]
    assert found["out"].verdict == "not judged" and found["out"].reason == "not given"


def test_splits_and_tiles_are_told_by_the_case(tmp_path: Path) -> None:
    case = CASE.but(block_k=8, splits=2)
    q, k, _ = (x.astype(np.float64) for x in case.inputs())
    scores = (q @ k.swapaxes(-1, -2))[0, 0] * case.scale
    tile, split = scores[3, 16:].max(), scores[3, :16].max()
    # the running maximum starts anew at the second split
    found = judged(tmp_path, f"WB row_max 0 0 3 2 {tile:.9g}\nWB partial_max[0,0,0,3] {split:.9g}", case)
    assert found.verdict in ("exact", "rounding") and found.trace.algorithm == "split_k"
    assert {stage.name for stage in found} == {"row_max", "partial_max"}
    contract = found.trace.contract
    assert (contract.block_k, contract.splits) == (8, 2) and "exp_ulps" in contract.assumed


def test_it_survives_the_file(tmp_path: Path) -> None:
    before = judged(tmp_path, "\n".join(["", "hello", *lines(attention(CASE, scale_by=1.01), 10)]))
    save(before.trace, tmp_path / "t.safetensors")
    after = diff(load(tmp_path / "t.safetensors"))
    assert (after.origins, after.victims, after.trace.notes) == (before.origins, before.victims, before.trace.notes)
    assert after["qk"].decisive is not None and after["qk"].decisive.summary.size == 10


@pytest.mark.parametrize(
    "line",
    [
        "WB qk 0 0 5 17 -1.25",
        "  WB\tqk 0,0,5,17 -1.25\r",
        "WB qk[0,0,5,17] -1.25",
        "WB qk [0, 0, 5, 17] = -1.25",
        "WB qk(0, 0, 5, 17): -1.25",
        "WB qk[0][0][5][17] -1.25",
        "WB qk 0 0 5 17, -1.25",
    ],
)
def test_shapes_of_a_line(line: str, tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(f"{line}\nother WB line\nWBS\n")
    log = read(tmp_path / "run.log")
    assert [(one.stage, one.place, one.value) for one in log.printed] == [("qk", (0, 0, 5, 17), -1.25)]
    assert log.ignored == 2


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1.0),
        ("-0", -0.0),
        (".5", 0.5),
        ("+1.e-3", 1e-3),
        ("1E+20", 1e20),
        ("inf", np.inf),
        ("-Infinity", -np.inf),
        ("nan", np.nan),
        ("-nan", np.nan),
        ("-nan(ind)", np.nan),
        ("0x1.8p+1", 3.0),
        ("-0X1P-2", -0.25),
    ],
)
def test_numbers_as_printf_writes_them(text: str, value: float) -> None:
    found = number(text)
    assert found is not None and np.array_equal(found, value, equal_nan=True)
    assert np.signbit(found) == np.signbit(value) or np.isnan(value)


@pytest.mark.parametrize("text", ["", ".", "-", "1_0", "1,5", "0.5f", "1e", "0x", "infinite", "nan(", "none", "--1"])
def test_what_is_no_number(text: str) -> None:
    assert number(text) is None


@pytest.mark.parametrize(
    ("texts", "half"),
    [
        (["0.123457", "10.000000", "-0.000000"], [5e-7, 5e-7, 5e-7]),  # %f
        (["1.234560e-03", "0.000000e+00"], [5e-10, 5e-7]),  # %e
        (["0.123457", "0.5", "1", "1e-05", "123457", "0"], [5e-7, 5e-7, 5e-6, 5e-11, 0.5, 0.0]),  # %g
        (["2.5", "0.25"], [0.05, 0.005]),  # %.2g, of which nobody can tell more
        (["1", "1"], [0.5, 0.5]),
        (["0x1.8p+0", "nan", "-inf", "2.50", "3.25"], [0, 0, 0, 5e-3, 5e-3]),
        (["inf"], [0]),
    ],
)
def test_what_the_digits_leave_open(texts: list[str], half: list[float]) -> None:
    assert half_units(texts) == pytest.approx(half, rel=1e-12, abs=0)


def test_digits_that_tell_a_float_from_its_neighbours_leave_nothing_open(tmp_path: Path) -> None:
    scores = attention(CASE)["scores"]
    for form, exact in (("%.9g", True), ("%a", True), ("%.6g", False)):
        trace = judged(tmp_path, "\n".join(lines({"scores": scores}, 200, form))).trace
        given = ~np.isnan(trace.sparse["scores"])
        assert given.sum() == 200 and np.all(trace.sparse["scores"][given] == 0) == exact
        assert np.array_equal(trace.stages["scores"][given], scores[given]) == exact
        # what is left open covers what was lost, with half of a unit to spare at most
        off = np.abs(to_float64(trace.stages["scores"][given]) - to_float64(scores[given]))
        assert np.all(off <= trace.sparse["scores"][given])


def test_an_output_is_held_in_the_dtype_of_the_case_where_that_is_what_was_printed(tmp_path: Path) -> None:
    case = CASE.but(dtype="float16")
    for value, dtype in (("0.333252", "float16"), ("0.333333", "float32")):
        assert judged(tmp_path, f"WB out 0 0 0 0 {value}", case).trace.stages["out"].dtype == dtype


def test_elements_printed_twice(tmp_path: Path) -> None:
    scores = attention(CASE)["scores"]
    x, y = (f"{scores[0, 0, 1, j]:.9g}" for j in (2, 3))
    text = f"WB scores 0 0 1 2 7.5\nWB scores 0 0 1 2 {x}\nWB scores 0 0 1 3 {y}\nWB scores 0 0 1 3 {y}\n"
    found = judged(tmp_path, text)
    assert found.verdict in ("exact", "rounding") and found.trace.notes == (
        "4 lines give 2 elements; other lines, ignored: 0",
        f"scores: 1 element printed with different values; the last is judged: [0, 0, 1, 2] is 7.5 (line 1), "
        f"{x} (line 2)",
    )


STAGES = "qk, scores, row_max, correction, probs, probs_cast, row_sum, acc"


@pytest.mark.parametrize(
    ("text", "case", "expected"),
    [
        ("hello\n\nqk 0 0 0 0 1\n", CASE, "run.log: none of its 2 lines is `WB <stage> <indices> <value>`"),
        ("", CASE, "run.log: none of its 0 lines is `WB <stage> <indices> <value>`"),
        ("a\nWB qk 0 0 5\n", CASE, "run.log, line 2: stage qk has 4 axes, b h q k; got 2 indices"),
        ("WB qk", CASE, "run.log, line 1: a value must be `WB <stage> <indices> <value>`; got 'WB qk'"),
        ("WB", CASE, "run.log, line 1: a value must be `WB <stage> <indices> <value>`; got 'WB'"),
        (
            "WB qk 0 0 5 17 abc",
            CASE,
            "run.log, line 1: a value must be `WB <stage> <indices> <value>`; got 'WB qk 0 0 5 17 abc'",
        ),
        (
            "WB qk 0 0 5 17 1.25 lane 3",
            CASE,
            "run.log, line 1: a value must be `WB <stage> <indices> <value>`; got 'WB qk 0 0 5 17 1.25 lane 3'",
        ),
        ("WB qk 0 0 24 0 1", CASE, "run.log, line 1: stage qk: query q must be 0 to 23; got 24"),
        ("WB qk 0 -1 0 0 1", CASE, "run.log, line 1: stage qk: head h must be 0 to 0; got -1"),
        ("WB kq 0 0 0 0 1", CASE, f"run.log, line 1: unknown stage 'kq'; stages are {STAGES}, partial_max, partial_sum, "
         "partial_O, merge_max, merge_weight, merge_sum, out, lse"),
        (
            "WB row_max 0 0 0 0 1",
            CASE,
            "run.log, line 1: stage row_max has the axis t (tile), which needs block_k: pass --block-k for a log, or return "
            'block_k in the "contract"',
        ),
        (
            "WB partial_max 0 0 0 0 1",
            CASE,
            "run.log, line 1: stage partial_max has the axis s (split), which needs splits: pass --splits for a log, or "
            'return splits in the "contract"',
        ),
        (
            "WB qk 0 0 0 0 1",
            Case(seqlen=8192),
            "run.log, line 1: a stage given in part may have at most 33554432 elements; qk has 67108864 (b=1, h=1, "
            "q=8192, k=8192) here: use a smaller case",
        ),
        ("WB qk 0 0 0 0 1", CASE.but(probs_dtype="float32"), "--dtype probs is for built-in kernels; run.log comes from another kernel"),
    ],
)  # fmt: skip
def test_what_is_refused(text: str, case: Case, expected: str, tmp_path: Path) -> None:
    assert message(tmp_path, text, case) == expected


def test_tiles_and_splits_are_said_once(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text("WB qk 0 0 0 0 1\n")
    case = CASE.but(block_k=8, splits=2)
    assert load_log(tmp_path / "run.log", case, {"block_k": 8}).contract.block_k == 8
    with pytest.raises(Refusal) as refused:
        load_log(tmp_path / "run.log", case, {"splits": 3})
    assert str(refused.value) == f"{tmp_path}/run.log: the case has splits=2, and the contract splits=3"


def test_a_log_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Refusal) as refused:
        load_log(tmp_path / "none.log", CASE)
    assert str(refused.value) == f"{tmp_path}/none.log: no such file"


def test_inputs_of_ones_own(tmp_path: Path) -> None:
    """q, k and v from a file, and a mask, which the kernel of the log forgot at one of the places."""
    q, k, v = (x * 2 for x in CASE.inputs())
    mask = np.ones((24, 24), bool)
    mask[3, 5] = mask[4, 5] = False
    np.savez(tmp_path / "mine.npz", q=q, k=k, v=v, mask=mask)
    score = (q @ k.swapaxes(-1, -2))[0, 0, :, 5] * CASE.scale
    text = f"WB scores 0 0 2 5 {score[2]:g}\nWB scores 0 0 3 5 -inf\nWB scores 0 0 4 5 {score[4]:g}\n"
    (tmp_path / "run.log").write_text(text)
    found = diff(load_log(tmp_path / "run.log", CASE, inputs=tmp_path / "mine.npz"))["scores"]
    assert found.verdict == "bug" and [row["index"]["q"] for row in found[...].worst(3) if row["over_budget"] > 1] == [
        4
    ]
    np.savez(tmp_path / "codes.npz", v=v, **{f"{n}_{x}": y for x in "qk" for n, y in _quantised().items()})
    with pytest.raises(Refusal) as refused:
        load_log(tmp_path / "run.log", CASE, inputs=tmp_path / "codes.npz")
    assert str(refused.value) == (f"{tmp_path}/codes.npz: a log is judged from q, k and v; the inputs hold scale_q")


def _quantised() -> dict[str, np.ndarray]:
    return {"codes": np.zeros((1, 1, 24, 16), np.uint8), "scale": np.ones(1, np.float32)}
