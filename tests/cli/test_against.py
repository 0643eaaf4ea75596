"""`workbench diff --against` as a user meets it: what it runs, exit codes, JSON, and whole messages for every mistake."""

import json
import shlex
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.refusals import invoked, refused
from tests.stored import stored
from workbench import Case, save

EMULATOR = ["--backend", "emulator"]
SMALL = ["--seqlen", "64", "--head-dim", "16", "--block-q", "16", "--block-k", "16", *EMULATOR]
CASE = Case(seqlen=64, head_dim=16, block_q=16, block_k=16)
KERNEL = """
import numpy as np
def attention(q, k, v, *, scale, causal):
    s = q @ k.swapaxes(-1, -2) * np.float32(scale)
    p = np.exp(s - s.max(-1, keepdims=True))
    return {"scores": s, "out": p @ v / p.sum(-1, keepdims=True)}
def broken(q, k, v, *, scale, causal):
    return attention(q, k, v, scale=2 * scale, causal=causal)
"""


diff, message = partial(invoked, "diff"), partial(refused, "diff")


def document(*words: str) -> dict[str, Any]:
    result = diff(*words, "--json")
    assert result.stdout, result.exception
    return json.loads(result.stdout) | {"exit_code": result.exit_code}


@pytest.fixture
def mine(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(KERNEL)
    return str(path)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "run.safetensors"
    save(stored("split_k", CASE.but(splits=3)), path)
    return str(path)


def test_a_fault_beside_a_good_kernel() -> None:
    """The splits go to the kernel that has them, and the fault to TARGET."""
    result = diff("split_k", "--fault", "reduce-double-counts-sum", "--splits", "4", "--against", "flash", *SMALL)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert (
        lines[0].startswith("A: split_k with reduce-double-counts-sum on emulator: float32") and "4 splits" in lines[0]
    )
    assert lines[1].startswith("B: flash on emulator: float32") and "splits" not in lines[1]
    assert (
        "first divergence at out = sum_s merge_weight * partial_O / merge_sum, cast to the output dtype; 0 where merge_sum is 0"
        in lines
    )
    assert lines[-1] == (
        "repeat: workbench diff split_k --fault reduce-double-counts-sum --against flash --seqlen 64 --head-dim 16 "
        "--splits 4 --block-q 16 --block-k 16"
    )


@pytest.mark.parametrize("order", [("flash", "split_k"), ("split_k", "flash")])
def test_two_good_kernels_exit_with_0(order: tuple[str, str]) -> None:
    found = document(order[0], "--against", order[1], "--splits", "3", *SMALL)
    assert (found["schema"], found["verdict"], found["exit_code"]) == ("workbench.against/1", "rounding", 0)
    assert {side: found[side]["case"]["splits"] for side in "ab"} == {
        "a": 3 if order[0] == "split_k" else None,
        "b": 3 if order[1] == "split_k" else None,
    }


def test_they_part_with_1_though_target_is_right(mine: str) -> None:
    found = document(f"{mine}:attention", "--against", f"{mine}:broken", "--seqlen", "20", "--head-dim", "8")
    assert (found["exit_code"], found["verdict"], found["parts_at"]) == (1, "diverges", "scores")
    assert (found["a"]["verdict"], found["b"]["verdict"]) == ("rounding", "bug")


def test_a_bug_of_target_exits_with_1_though_they_do_not_part() -> None:
    found = document("split_k", "--fault", "reduce-double-counts-sum", "--against", "block_q=32", *SMALL)
    assert (found["exit_code"], found["verdict"], found["parts_at"]) == (1, "identical", None)
    assert found["b"]["faults"] == found["a"]["faults"] == ["reduce-double-counts-sum"]


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize(
    ("field", "value"),
    [("splits", 4), ("block_k", 32), ("block_q", 32)],
)
def test_one_kernel_with_two_settings(field: str, value: int) -> None:
    found = document("split_k", "--against", f"{field}={value}", *SMALL)
    assert (found["exit_code"], found["parts_at"]) == (0, None)
    assert found["a"]["target"] == found["b"]["target"] == "split_k"
    assert found["b"]["case"] == found["a"]["case"] | {field: value} != found["a"]["case"]


def test_a_setting_of_another_kernel_and_backends() -> None:
    found = document("flash", "--against", "split_k,splits=4,backend=emulator", *SMALL)
    assert found["b"]["case"]["splits"] == 4 and found["b"]["backend"] == "emulator"


def test_lists_of_cases_get_a_row_each_and_one_document() -> None:
    words = [
        "flash",
        "--against",
        "split_k",
        "--seqlen",
        "20,40",
        "--head-dim",
        "8",
        "--block-q",
        "16",
        "--block-k",
        "16",
    ]
    result = diff(*words, *EMULATOR)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "2 pairs: 0 diverge by more than both budgets"
    found = document(*words, *EMULATOR)
    assert found["schema"] == "workbench.againsts/1"
    assert [pair["a"]["case"]["seqlen_q"] for pair in found["pairs"]] == [20, 40]


def test_a_quantised_kernel_beside_one_on_floats() -> None:
    """The options about codes are for the one that has them; probs_dtype too, float16 being none of the other's."""
    found = document(
        "fp8", "--codes", "e4m3", "--dtype", "probs=float16", "--against", "split_k", "--splits", "3", *SMALL
    )
    assert (found["exit_code"], found["parts_at"]) == (0, None)
    assert found["a"]["case"]["codes"] == "e4m3" and found["b"]["case"]["codes"] is None
    assert (found["b"]["case"]["splits"], found["b"]["case"]["probs_dtype"]) == (3, None)
    assert set(found["inputs_differ_by"]) == {"q", "k", "v"}


def test_options_go_to_the_side_that_takes_them(mine: str) -> None:
    words = [f"{mine}:attention", "--arrays", "numpy", "--probes", "output", "--against", "flash", *SMALL]
    found = document(*words)
    assert [stage["name"] for stage in found["stages"]] == ["out"]
    assert {"name": "scores", "reason": "B did not return it"} in found["not_comparable"]


@pytest.mark.campaign
def test_traces(trace: str, tmp_path: Path, mine: str) -> None:
    """A trace brings the case and its inputs for the other side."""
    assert document(trace, "--against", trace)["verdict"] == "identical"
    for words in (
        [trace, "--against", "flash"],
        ["flash", "--against", trace],
        [trace, "--against", f"{mine}:attention"],
    ):
        found = document(*words)
        assert (found["exit_code"], found["parts_at"]) == (0, None)
        cases = [found[side]["case"] for side in "ab"]
        assert {case["seqlen_q"] for case in cases} == {64} and {case["head_dim"] for case in cases} == {16}
        assert diff(*words).stdout.splitlines()[-1] == f"repeat: workbench diff {' '.join(words)}"
    assert document(trace, "--against", "split_k,splits=2")["b"]["case"]["splits"] == 2
    assert document(trace, "--against", f"{mine}:broken")["parts_at"] == "scores"
    assert message("flash", "--against", f"split_k,since={trace}") == (
        f"--against split_k,since={trace}: since=FILE compares one run with an earlier one, other settings "
        "compare two runs; got both"
    )


@pytest.mark.campaign
def test_a_log_of_printed_values(tmp_path: Path) -> None:
    scores = stored("flash", CASE).stages["scores"]
    log = tmp_path / "run.log"

    def written(factor: float) -> str:
        lines = [f"WB scores 0 0 {q} 3 {factor * scores[0, 0, q, 3]:.6g}\n" for q in range(20)]
        log.write_text("".join(lines))
        return str(log)

    words = ["--against", "flash", "--seqlen", "64", "--head-dim", "16", "--block-k", "16", *EMULATOR]
    found = document("--values", written(1.0), *words)
    assert (found["exit_code"], found["parts_at"], found["stages"][0]["size"]) == (0, None, 20)
    found = document("--values", written(1.1), *words)
    assert (found["exit_code"], found["parts_at"]) == (1, "scores") and found["stages"][0]["wrong"] == [20, 0]


def test_a_window_is_one_of_both_and_a_fed_stage_is_one_of_target() -> None:
    words = ["split_k", "--splits", "2", "--against", "flash", *SMALL]
    found = document(*words, "--where", "q=8:24")
    assert (found["parts_at"], found["exit_code"], found["stages"][0]["size"]) == (None, 0, 16 * 64)
    faults = ["--fault", "partial-O-float16", "--feed", "partial_O,partial_max,partial_sum=reference"]
    found = document(*words, *faults)
    assert (found["parts_at"], found["exit_code"]) == (None, 0)
    assert message(*words, "--by-head") == (
        "--by-head and --against exclude each other; compare a part of two runs with --where"
    )


@pytest.mark.campaign
def test_pictures_and_traces_of_both(tmp_path: Path) -> None:
    result = diff("flash", "--against", "split_k", *SMALL, "--probes", "output", "--out", str(tmp_path / "o"))
    assert result.exit_code == 0 and result.stdout.splitlines()[-1] == (
        f"pictures and traces: {tmp_path}/o/a/ and {tmp_path}/o/b/"
    )
    for side in "ab":
        assert (tmp_path / "o" / side / "trace.safetensors").is_file() and (
            tmp_path / "o" / side / "overview.png"
        ).is_file()


@pytest.mark.parametrize("words", ["--against flash", "--against flash,pack_gqa=yes --heads 2,kv=1"])
def test_the_repeat_line_of_a_function_beside_a_kernel_of_ours_runs(mine: str, words: str) -> None:
    path = mine.replace("mine.py", "grouped.py")
    Path(path).write_text(
        KERNEL.replace("    s =", "    k, v = (np.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))\n    s =")
    )
    asked = [f"{path}:attention", *words.split(), "--seqlen", "16", "--head-dim", "16", *EMULATOR]
    line = diff(*asked).stdout.splitlines()[-1]
    assert line.startswith("repeat: workbench diff ") and ("pack_gqa=yes" in line) == ("pack_gqa=yes" in words)
    first, again = document(*asked), document(*shlex.split(line.removeprefix("repeat: workbench diff ")), *EMULATOR)
    assert first["b"]["case"]["pack_gqa"] is ("pack_gqa=yes" in words)
    assert first == again


def test_rows_of_tiles_of_the_second_run_are_yes_or_no() -> None:
    assert message("flash", "--against", "pack_gqa=2", *SMALL) == (
        "--against pack_gqa=2: pack_gqa takes yes or no; got '2'"
    )


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("words", "exit_code"),
    [
        ("split_k --fault reduce-double-counts-sum --against flash", 1),
        ("flash --against split_k,splits=3", 0),
        ("split_k --against splits=4", 0),
        ("flash --heads 2,kv=1,pack_gqa --against pack_gqa=no", 0),
        ("split_k --fault reduce-double-counts-sum --against splits=4", 1),
        ("fp8 --codes e5m2 --against flash", 0),
        ("flash --against fp8 --codes e4m3", 0),
    ],
)
def test_the_repeat_line_repeats_the_pair(words: str, exit_code: int) -> None:
    asked = [*shlex.split(words), *SMALL]
    line = diff(*asked).stdout.splitlines()[-1]
    assert line.startswith("repeat: workbench diff ")
    first, again = document(*asked), document(*shlex.split(line.removeprefix("repeat: workbench diff ")), *EMULATOR)
    assert first["exit_code"] == exit_code and first == again


def test_settings_that_the_second_run_has_not(mine: str, trace: str) -> None:
    assert message("flash", "--against", "splits=4", *SMALL) == (
        "--against splits=N is for kernels that split the keys (split_k, split_mma); flash does not"
    )
    assert message("split_k", "--against", f"{mine}:attention,block_k=16", *SMALL) == (
        f"--against block_k=16 is for built-in kernels (flash, flash_tensor, flash_mma, flash_wgmma, split_k, split_mma, fp8, fp8_mma, fp8_wgmma); {mine}:attention is your kernel"
    )
    assert message("flash", "--against", f"{trace},backend=emulator") == (
        f"--against backend=emulator is for built-in kernels (flash, flash_tensor, flash_mma, flash_wgmma, split_k, split_mma, fp8, fp8_mma, fp8_wgmma); {trace} is a trace"
    )
    assert message("flash", "--against", "block_k=17", *SMALL) == "block_k must be one of 16, 32, 64, 128; got 17"
    assert (
        message("flash", "--against", "backend=tpu", *SMALL) == "backend must be one of auto, emulator, cuda; got 'tpu'"
    )


def test_options_that_neither_side_takes(mine: str) -> None:
    assert message("flash", "--against", "flash", "--splits", "3", *SMALL) == (
        "kernel flash takes no splits; got splits=3"
    )
    assert message("flash", "--against", "split_k", "--codes", "e4m3", *SMALL) == (
        "kernel flash reads no quantised codes and takes no codes; got e4m3"
    )
    assert message("flash", "--against", "split_k", "--arrays", "torch", *SMALL) == (
        "--arrays is for your own kernels; flash is built in"
    )
    assert message(f"{mine}:attention", "--against", f"{mine}:broken", "--probes", "lean", "--seqlen", "8") == (
        f"--probes is for built-in kernels (flash, flash_tensor, flash_mma, flash_wgmma, split_k, split_mma, fp8, fp8_mma, fp8_wgmma); {mine}:attention is not built in"
    )


def test_a_trace_brings_its_own_case_and_is_not_run(trace: str) -> None:
    assert message(trace, "--against", "splits=4") == (
        "--against splits=4 runs TARGET again, but a trace cannot be run; name a kernel: --against KERNEL"
    )
    assert message(trace, "--against", "flash", "--seqlen", "4", "--causal", "--fault", "flash-lse-base-2") == (
        f"a trace brings its own case; {trace} against flash takes no --seqlen, --causal, --fault"
    )
    assert message(trace, "--against", trace, "--probes", "lean", "--arrays", "torch") == (
        f"a trace brings its own case; {trace} against {trace} takes no --arrays, --probes"
    )
    assert message("flash", "--against", "nowhere.safetensors") == "nowhere.safetensors: no such file"
    ours = ("--probes", "out,limit_gb=1", "--backend", "emulator")
    assert document(trace, "--against", "flash", *ours)["exit_code"] == 0


def test_what_is_no_target() -> None:
    assert message("flash", "--against", "flesh", *SMALL) == (
        "unknown kernel 'flesh'; kernels are flash, flash_tensor, flash_mma, flash_wgmma, split_k, split_mma, fp8, fp8_mma, fp8_wgmma; pass your own as path.py:function, a trace as "
        "FILE.safetensors, arrays as FILE.npz or .pt"
    )
    assert (
        message("--against", "flash", *SMALL)
        == "TARGET is missing: a built-in kernel, FILE.py:FUNCTION or a trace; `diff` and `explain` also take --values LOG"
    )
    assert message("flash", "--values", "run.log", "--against", "flash") == ("--values replaces TARGET; got 'flash'")
    assert message("--values", "run.log", "--against", "block_k=16") == (
        "--against block_k=16 runs TARGET again, but a log cannot be run; name a kernel: --against KERNEL"
    )


def test_traces_of_other_problems(trace: str, tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    save(stored("flash", CASE.but(seed=1)), other)
    assert message(trace, "--against", str(other)).startswith(
        "split_k against flash: q (both float32) must be bit-identical; 1024 of 1024 elements differ, first at [0, 0, 0, 0]: "
    )
    save(stored("flash", CASE.but(seqlen_k=20)), other)
    assert message(trace, "--against", str(other)) == (
        "split_k against flash: both must run the same problem; they differ in seqlen_k: 64 and 20"
    )


def test_a_trace_in_a_folder_and_its_inputs(tmp_path: Path, mine: str) -> None:
    for h in range(2):
        save(
            stored("flash", CASE.but(heads=2, kv_heads=2), where=f"h={h}"),
            tmp_path / f"{h}.safetensors",
        )
    for pair in ([str(tmp_path), "--against", "flash"], ["flash", "--against", str(tmp_path)]):
        found = document(*pair, *EMULATOR)
        assert (found["exit_code"], found["verdict"]) == (0, "identical")
    assert document(f"{mine}:attention", "--against", str(tmp_path))["verdict"] == "rounding"
    empty = tmp_path / "empty"
    empty.mkdir()
    assert message(str(empty), "--against", "flash") == f"{empty}: no .safetensors file there"
