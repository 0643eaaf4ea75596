"""The command line as a user meets it: results, exit codes, and whole messages for every mistake."""

import json
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from tests.stored import from_files, stored
from workbench import Case, progress, save
from workbench.cli import main as cli
from workbench.cuda.faults.catalogue import CATALOGUE, elsewhere
from workbench.cuda.faults.catalogue import OF_OPERATIONS as FAULTS_OF_OPERATIONS
from workbench.cuda.kernels import KERNELS, OF_OPERATIONS
from workbench.report import text

SMALL = ["--seqlen", "20", "--head-dim", "8", "--block-q", "16", "--block-k", "16", "--backend", "emulator"]
FAULTY = ["diff", "split_k", "--fault", "reduce-double-counts-sum", *SMALL]


def workbench(*words: str) -> Result:
    """Run the command in this process, on stored traces; a Refusal comes back as the exit code and message of `main`."""
    runner = CliRunner()
    with (
        from_files(),
        runner.isolation() as (out, err, _),
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(SystemExit) as stop,
    ):
        patch.setattr(sys, "argv", ["workbench", *words])
        cli.main()
    return Result(runner, out.getvalue(), err.getvalue(), b"", None, stop.value.code, None)


def message(*words: str) -> str:
    """The message of a refused command, which says nothing on stdout."""
    result = workbench(*words)
    assert result.exit_code == 2 and result.stdout == ""
    return result.stderr.removeprefix("workbench: ").rstrip("\n")


def test_a_bug_exits_with_1_and_names_its_origin() -> None:
    result = workbench(*FAULTY)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert any("merge_weight" in line and "bug <- origin" in line for line in lines)
    assert (
        "verdict: bug; first wrong stage: merge_weight, should be exp(partial_max - merge_max); 0 where partial_max is -inf"
        in lines
    )
    cause = "  cause: weights of partial_O are multiplied by partial_sum, but partial_O is unnormalised; reproduces 40 of 40"
    assert any(line.startswith(cause) for line in lines)
    assert "victim: out (right given its inputs; the row shows the inherited error)" in lines
    assert (
        "repeat: workbench diff split_k --fault reduce-double-counts-sum --seqlen 20 --head-dim 8 --splits 2 --block-q 16 --block-k 16"
        in lines
    )


def test_no_bug_exits_with_0() -> None:
    result = workbench("diff", "flash", *SMALL)
    assert result.exit_code == 0 and "verdict: rounding: every judged element is within its budget" in result.stdout


def test_what_a_report_computes_shows_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []
    original = text.report

    def report(*words: Any, **options: Any) -> Any:
        shown.append(progress._shown.get() is not None)
        return original(*words, **options)

    monkeypatch.setattr(text, "report", report)
    assert workbench("diff", "flash", *SMALL).exit_code == 0
    assert shown == [True]


def test_json_is_one_document_with_the_fields_of_the_schema() -> None:
    result = workbench(*FAULTY, "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert (
        document["schema"] == "workbench.diff/1"
        and document["target"] == "split_k"
        and document["backend"] == "emulator"
    )
    assert document["faults"] == ["reduce-double-counts-sum"]
    assert (document["verdict"], document["origin"], document["origins"]) == ("bug", "merge_weight", ["merge_weight"])
    assert document["victims"] == ["out"] and document["not_judged"] == []
    assert Case(**document["case"]) == Case(seqlen=20, head_dim=8, block_q=16, block_k=16, splits=2)
    stages = {stage["name"]: stage for stage in document["stages"]}
    weight = stages["merge_weight"]["isolated"]
    assert weight["outside"] > 0 and weight["size"] == 40 and set(weight["worst"]) == {"b", "h", "s", "q"}
    assert weight["over_budget"] > 1 and weight["actual"] != weight["expected"]
    assert {"max_abs", "max_ulp", "mean_signed", "poisoned"} <= set(weight)
    (cause,) = document["explanations"]
    assert cause["id"] == "merge.weight-times-sum" and cause["stage"] == "merge_weight" and cause["falsifier"] is None
    assert stages["out"]["isolated"]["outside"] == 0 and stages["out"]["propagated"]["outside"] > 0
    assert [rule["name"] for rule in document["rules"]] == ["assert_close", "atol 1e-2", "FlashAttention 2x"]
    assert all(rule["passes"] is False and rule["value"] > rule["limit"] for rule in document["rules"])
    assert list(document["bits_lost"]) == ["qk", "row_sum", "acc", "merge_sum", "out"]
    assert document["bits_lost"]["row_sum"] == {"max": 0.0, "median": 0.0, "below_4_good_bits": 0, "size": 40}
    assert document["bits_lost"]["qk"]["max"] > document["bits_lost"]["qk"]["median"] > 0


def test_non_finite_numbers_are_strings_in_json() -> None:
    result = workbench(
        "diff", "split_k", "--fault", "partial-no-masked-tile-guard", "--seqlen", "40", *SMALL[2:], "--json"
    )
    document = json.loads(result.stdout, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    stages = {stage["name"]: stage for stage in document["stages"]}
    assert (
        stages["correction"]["isolated"]["over_budget"] == "inf" and stages["correction"]["isolated"]["actual"] == "nan"
    )


def test_a_folder_that_cannot_be_made_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    wanted = tmp_path / "file" / "o"
    assert message("diff", "flash", "--backend", "emulator", "--out", str(wanted)) == f"--out {wanted}: Not a directory"


@pytest.mark.campaign
def test_lists_give_a_row_for_each_case_and_mark_where_it_starts_to_fail() -> None:
    command = ["diff", "flash", "--fault", "flash-no-correction", "--seqlen", "16,17,40", *SMALL[2:]]
    result = workbench(*command)
    assert result.exit_code == 1
    rows = [line for line in result.stdout.splitlines() if line.startswith("flash --")]
    assert [("<- last passing" in row, "<- first failing" in row) for row in rows] == [
        (True, False),
        (False, True),
        (False, False),
    ]
    assert result.stdout.splitlines()[-1] == "3 runs: 1 without a bug, 2 with one or untestable"
    document = json.loads(workbench(*command, "--json").stdout)
    assert document["schema"] == "workbench.diffs/1" and [run["origin"] for run in document["runs"]] == [
        None,
        "acc",
        "acc",
    ]


def test_causal_and_full_and_several_kernels_make_a_product() -> None:
    document = json.loads(workbench("diff", "flash,split_k", *SMALL, "--causal", "no,yes", "--json").stdout)
    assert [(run["target"], run["case"]["causal"]) for run in document["runs"]] == [
        ("flash", False), ("flash", True), ("split_k", False), ("split_k", True),
    ]  # fmt: skip


def test_a_fault_brings_the_options_that_it_needs() -> None:
    faulty = ["diff", "flash", "--fault", "flash-no-causal-mask", *SMALL, "--json"]
    said, silent = workbench(*faulty), workbench(*faulty, "--causal")
    document = json.loads(said.stdout)
    assert document["case"]["causal"] is True and document["origin"] == "scores"
    assert said.stderr.splitlines()[0] == "set for --fault flash-no-causal-mask: --causal"  # a slow machine tells more
    assert silent.stdout == said.stdout and "set for" not in silent.stderr


@pytest.mark.campaign
def test_out_holds_pictures_and_a_trace_that_can_be_judged_again(tmp_path: Path) -> None:
    result = workbench(*FAULTY, "--probes", "merge_weight,merge_sum,out", "--out", str(tmp_path / "o"))
    assert result.exit_code == 1
    names = sorted(path.name for path in (tmp_path / "o").iterdir())
    kinds = ("histogram", "errors", "heatmap")
    assert {"overview.png", "cancellation.png", *(f"01-merge_weight-{kind}.png" for kind in kinds)} <= set(names)
    again = workbench("diff", str(tmp_path / "o" / "trace.safetensors"), "--json")
    assert again.exit_code == 1 and json.loads(again.stdout)["origin"] == "merge_weight"


def test_pictures_of_a_run_of_which_nothing_could_be_judged(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def attention(q, k, v, *, scale, causal):\n    return {'row_max': q[..., :1].copy()}\n")
    result = workbench("diff", f"{path}:attention", "--seqlen", "8", "--out", str(tmp_path / "o"), "--json")
    assert (result.exit_code, json.loads(result.stdout)["verdict"]) == (1, "untestable")
    assert sorted(file.name for file in (tmp_path / "o").iterdir()) == ["overview.png", "trace.safetensors"]


def test_a_length_that_no_machine_has_is_refused_before_its_time_is_told() -> None:
    assert message("diff", "flash", "--seqlen", "10000000000").startswith("q [1, 1, 10000000000, 64], k and v ")


@pytest.mark.campaign
def test_a_contract_that_is_none_is_refused_before_the_kernel_runs(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from pathlib import Path\n"
        "def attention(q, k, v, *, scale, causal):\n"
        "    Path(__file__).with_name('ran').touch()\n"
        "    return q * 0\n"
    )
    said = message("diff", f"{path}:attention", "--seqlen", "8", "--contract", "blok_k=3")
    assert (
        said.startswith("\"contract\" has no field 'blok_k'; did you mean block_k? Use one of ")
        and not path.with_name("ran").exists()
    )
    assert workbench("diff", f"{path}:attention", "--seqlen", "8", "--contract", "probs_dtype=bf16").exit_code == 1
    assert path.with_name("ran").exists()


@pytest.mark.usefixtures("without_causes")
def test_a_foreign_kernel(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "import numpy as np\n"
        "def attention(q, k, v, *, scale, causal):\n"
        "    s = q @ k.swapaxes(-1, -2) * np.float32(scale)\n"
        "    p = np.exp(s - s.max(-1, keepdims=True))\n"
        "    return p @ v / p.sum(-1, keepdims=True)\n"
        "def wrong(q, k, v, *, scale, causal):\n"
        "    return attention(q, k, v, scale=1.0, causal=causal)\n"
    )
    options = ["--seqlen", "20", "--head-dim", "8"]
    assert workbench("diff", f"{path}:attention", *options).exit_code == 0
    result = workbench("diff", f"{path}:wrong", *options)
    assert result.exit_code == 1
    assert "verdict: bug; first wrong stage: out or one before it (only out was given)" in result.stdout.splitlines()
    assert "arithmetic settings are undeclared; the loosest value of each is assumed (-v lists them)" in result.stdout
    result = workbench("diff", f"{path}:wrong", *options, "-v")
    assert (
        "arithmetic settings are undeclared; the loosest value of each is assumed: block_k=None, splits=None, scores_dtype="
        in result.stdout
    )


def test_untestable_exits_with_1() -> None:
    """Dot products that overflow float32 may rightly be inf or NaN: no bug, and no reason to be content either."""
    result = workbench("diff", "flash", *SMALL, "--distribution", "std=3e37", "--json")
    document = json.loads(result.stdout)
    assert (document["verdict"], document["origin"], result.exit_code) == ("untestable", None, 1)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["flsh"],
            "unknown kernel 'flsh'; kernels are flash, flash_tensor, flash_mma, flash_wgmma, split_k, split_mma, fp8, fp8_mma, fp8_wgmma; pass your own as path.py:function, a trace as FILE.safetensors, arrays as FILE.npz or .pt",
        ),
        (
            ["flash", "--fault", "reduce-double-counts-sum"],
            "fault reduce-double-counts-sum belongs to kernel split_k, not to flash; faults of flash: "
            + ", ".join(fault.id for fault in CATALOGUE.values() if fault.kernel == "flash"),
        ),
        (
            ["flash_wgmma", "--fault", "wgmma-v-emptied-too-early", "--seqlen", "64"],
            "fault wgmma-v-emptied-too-early shows only with --seqlen-k 300; got --seqlen-k 64",
        ),
        (["flash", "--fault", "nope"], "unknown fault 'nope'; `workbench faults` lists them"),
        (["flash", "--head-dim", "0"], "--head-dim must be a whole number of at least 1; got 0"),
        (["flash", "--head-dim", "600"], "kernel flash takes head_dim 1 to 576; got 600"),
        (["flash", "--distribution", "std=nan"], "--distribution std= must be a finite number; got nan"),
        (["flash", "--splits", "2"], "kernel flash takes no splits; got splits=2"),
        (
            ["flash", "--seqlen", "4", "--seqlen-q", "4", "--seqlen-k", "4"],
            "give at most two of seqlen, seqlen_q and seqlen_k; got all three",
        ),
        (["flash", "--dtype", "float8"], "--dtype must be one of float32, float16, bfloat16; got 'float8'"),
        (["flash", "--block-q", "48"], "block_q must be one of 16, 32, 64, 128; got 48"),
        (["flash", "--backend", "gpu"], "backend must be one of auto, emulator, cuda; got 'gpu'"),
        (
            ["flash", "--probes", "most"],
            "probes must be one of all, lean, output, or some of the stages qk, scores, row_max, correction, probs, probs_cast, "
            "row_sum, acc, out, lse; got 'most'",
        ),
        (
            ["fp8", "--codes", "decode=direct", "--probes", "out,lut_k"],
            "fp8 with decode=direct has no stage lut_k; got probes=out,lut_k",
        ),
        (
            ["flash", "--fail-on", "rounding"],
            "--fail-on must be one of bug, biased, evidence, suspicious; got 'rounding'",
        ),
        (["flash", "--arrays", "layout=bshd"], "--arrays layout is for your own kernels; flash is built in"),
        (["nowhere.safetensors"], "nowhere.safetensors: no such file"),
        (["x.safetensors", "--seed", "3"], "a trace brings its own case and takes no option but --where; got --seed"),
        (
            ["x.safetensors", "--probes", "lean,limit_gb=0", "--backend", "emulator"],
            "a trace brings its own case and takes no option but --where; got --backend, --probes, --probes limit_gb",
        ),
        (["mine.py:attention"], "mine.py: no such file"),
        (
            ["mine.py:attention", "--probes", "limit_gb=1"],
            "--probes limit_gb is for built-in kernels (flash, flash_tensor, flash_mma, flash_wgmma, split_k, split_mma, fp8, fp8_mma, fp8_wgmma); mine.py:attention is not built in",
        ),
        (
            ["flash", "--causal", "no", "--fault", "flash-no-causal-mask"],
            "fault flash-no-causal-mask shows only with --causal; got --causal no",
        ),
        (
            ["split_k", "--fault", "partial-cache-lengths-ignored", "--seqlen-k", "1+63+64"],
            "fault partial-cache-lengths-ignored shows only with --seqlen-k 33+100+70; got --seqlen-k 1+63+64",
        ),
    ],
)
def test_wrong_usage_is_refused(words: list[str], expected: str) -> None:
    assert message("diff", *words) == expected


def test_wrong_words_show_the_usage() -> None:
    result = workbench("diff", "flash", "--seqlen", "four")
    assert result.exit_code == 2
    assert (
        result.stderr.splitlines()[-1]
        == "Error: Invalid value for '--seqlen': 'four' is not a comma-separated list of lengths"
    )
    assert workbench("diff").exit_code == 2 and workbench("dif").exit_code == 2


def test_a_trace_with_a_hole_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    save(stored("flash", Case(seqlen=20, head_dim=8, block_q=16, block_k=16)), path)
    path.write_bytes(path.read_bytes()[:-8])
    assert message("diff", str(path)).startswith(f"{path}: not a complete safetensors file (")


def test_a_gpu_that_is_not_there_exits_with_3() -> None:
    from workbench.cuda.gpu import gpu

    if gpu() is not None:
        pytest.skip("there is a GPU")
    result = workbench("diff", "flash", "--backend", "cuda")
    assert result.exit_code == 3
    assert result.stderr == (
        "workbench: backend cuda needs an NVIDIA GPU and its driver; none was found. `--backend emulator` runs on the CPU\n"
    )


def test_memory_that_a_machine_lacks_exits_with_3(monkeypatch: pytest.MonkeyPatch) -> None:
    def large(*_: object, **__: object) -> None:
        np.empty(10**18)

    monkeypatch.setattr("workbench.judge.diff.diff", large)
    result = workbench("diff", "flash", *SMALL)
    assert result.exit_code == 3 and result.stderr.startswith(
        "workbench: this machine has too little memory for this run: "
    )


def test_a_defect_of_ours_is_not_taken_for_a_bug_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.judge.diff.diff", lambda trace, **_: 1 / 0)
    result = workbench("diff", "flash", *SMALL)
    assert (
        result.exit_code == 70
        and "a defect of the workbench itself" in result.stderr
        and "ZeroDivisionError" in result.stderr
    )


def test_faults_and_kernels_are_listed() -> None:
    faults = json.loads(workbench("faults", "--json").stdout)
    assert [fault["id"] for fault in faults["faults"]] == [*CATALOGUE, *FAULTS_OF_OPERATIONS]
    assert faults["schema"] == "workbench.faults/1"
    kernels = json.loads(workbench("kernels", "--json").stdout)
    assert [kernel["name"] for kernel in kernels["kernels"]] == [*KERNELS]
    assert [kernel["name"] for kernel in kernels["of_operations"]] == [*OF_OPERATIONS]
    outs = [stage for stage in kernels["stages"] if stage["stage"] == "out"]
    assert [(one["axes"], one["of"]) for one in outs] == [
        ("bhqd", ["flash", "fp8", "block_scaled"]),
        ("bhqd", ["split_k", "fp8_split_k", "block_scaled_split_k"]),
    ]
    of_blocks = {f"{what}_{x}" for what in ("zero", "global") for x in "qkv"}
    of_kernels = {name for k in kernels["kernels"] for name in k["stages"]}
    assert {one["stage"] for one in kernels["stages"]} == of_kernels | of_blocks
    lines = [" ".join(line.split()) for line in workbench("kernels").stdout.splitlines()]
    assert "merge_max b h q max over splits split_k, fp8_split_k, block_scaled_split_k" in lines
    assert (
        "axes: b batch, h head, q query, k key, d dim, t tile, s split, c code, g block; h of k and v is the kv head"
        in lines
    )
    listed = " ".join(workbench("faults").stdout.split())
    assert listed.endswith(
        f"{len(elsewhere())} more are in campaigns/faults/: `python -m campaigns.faults faults` lists all"
    )
    assert "flash-scale-twice flash scores the scale is applied twice" in listed
    assert "v[j, d] = 16 * (j % 16) + d % 16." in " ".join(workbench("kernels").stdout.split())


def test_doctor_has_a_line_for_each_check() -> None:
    result = workbench("doctor")
    assert result.exit_code == 0
    for name in ("Python", "numpy", "numba", "numba-cuda", "numba.cuda", "GPU", "compile cache"):
        assert any(line[7:].startswith(f"{name}:") for line in result.stdout.splitlines()), name
    document = json.loads(workbench("doctor", "--json").stdout)
    assert document["schema"] == "workbench.doctor/1" and all(
        {"name", "ok", "detail", "fix"} <= set(check) for check in document["checks"]
    )


def test_the_console_script_is_installed_and_help_is_light() -> None:
    if not entry_points(group="console_scripts", name="workbench"):
        pytest.skip("the workbench is on the path, and not installed")
    script = Path(sys.executable).with_name("workbench")
    result = subprocess.run([script, "--help"], capture_output=True, text=True, check=False)
    assert result.returncode == 0 and "diff" in result.stdout and "doctor" in result.stdout


# ---- check


CHECK = [
    "check",
    "flash",
    "--seqlen",
    "20",
    "--head-dim",
    "8",
    "--block-q",
    "16",
    "--block-k",
    "16",
]


def test_check_finds_nothing_and_exits_with_0() -> None:
    result = workbench(*CHECK)
    assert (result.exit_code, result.stdout) == (
        0,
        "workbench check flash --seqlen 20 --head-dim 8 --block-q 16 --block-k 16: nothing found in 1 launch of 2 blocks\n",
    )


def test_check_names_lines_and_exits_with_1() -> None:
    result = workbench(*CHECK, "--fault", "flash-barrier-in-branch")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0] == (
        "workbench check flash --fault flash-barrier-in-branch --seqlen 20 --head-dim 8 --block-q 16 --block-k 16: 3 findings"
    )
    assert lines[1] == "divergent-barrier: flash_forward: divergent barrier in block (1, 0, 0)"
    assert re.fullmatch(
        r"  workbench/cuda/flash\.py:\d+  if row < seqlen_q: cuda\.syncthreads\(\)  # V is complete .*", lines[2]
    )
    assert any(re.fullmatch(r"race: s_kv\[\d+, \d+\] is accessed by two threads, .*", line) for line in lines)
    assert any(re.fullmatch(r"  first in block \(1, 0, 0\), threads \d+ and \d+; \d+ times", line) for line in lines)


def test_check_json_has_the_fields_of_the_schema() -> None:
    result = workbench(*CHECK, "--fault", "flash-barrier-in-branch", "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert (document["schema"], document["target"], document["faults"]) == (
        "workbench.check/1",
        "flash",
        ["flash-barrier-in-branch"],
    )
    assert document["case"]["seqlen_q"] == 20
    fields = {"kind", "array", "file", "line", "other_line", "block", "threads", "index", "count"}
    assert document["findings"] and all(fields <= set(finding) for finding in document["findings"])
    assert all(isinstance(finding["line"], int) for finding in document["findings"])


def test_check_takes_lists_and_kernels() -> None:
    words = [*CHECK, "--causal", "no,yes", "--heads", "2,kv=1", "--schedules", "3"]
    result = workbench(*words)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert len(lines) == 3 and lines[-1] == "2 runs: 2 without findings, 0 with findings"
    assert all(line.endswith("nothing found in 1 launch of 4 blocks, 3 schedules") for line in lines[:2])
    document = json.loads(workbench(*words, "--json").stdout)
    assert document["schema"] == "workbench.checks/1" and [run["findings"] for run in document["runs"]] == [[], []]
    assert len(document["runs"][0]["schedules"]) == 3


@pytest.mark.campaign
def test_a_fault_brings_the_length_at_which_it_shows() -> None:
    words = ["check", "flash", "--head-dim", "8", "--block-q", "16", "--block-k", "16", "--probes", "output"]
    fault = ["--fault", "flash-reads-past-keys", "--json"]
    assert json.loads(workbench(*words, *fault).stdout)["case"]["seqlen_k"] == 100
    assert json.loads(workbench(*words, *fault, "--seqlen", "20").stdout)["case"]["seqlen_k"] == 20


def test_check_refuses_what_it_cannot_run() -> None:
    assert message("check", "my.py:kernel") == "my.py: no such file"
    assert message("check", "run.safetensors") == (
        "run.safetensors is a trace, which cannot be run: read it with `workbench.load`"
    )
    refused = workbench(*CHECK, "--schedules", "0")
    assert refused.exit_code == 2 and "Invalid value for '--schedules': 0 is not in the range x>=1." in refused.stderr
    assert message(*CHECK, "--fault", "reduce-double-counts-sum").startswith(
        "fault reduce-double-counts-sum belongs to kernel split_k, not to flash"
    )


def test_help_keeps_the_lines_of_its_examples() -> None:
    assert "\n  workbench diff run.safetensors   " in workbench("--help").stdout


def test_probs_dtype_is_that_of_a_kernel_of_ours() -> None:
    words = ["diff", "flash", *SMALL, "--dtype"]
    result = workbench(*words, "bfloat16,probs=bfloat16", "--json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["contract"]["probs_dtype"] == "bfloat16" == document["case"]["probs_dtype"]
    assert message(*words, "bfloat16,probs=float16") == (
        "kernel flash casts probs to float32 or its input dtype, bfloat16; got probs_dtype=float16"
    )
    assert (
        message(*words, "bfloat16,probs=int8") == "--dtype probs= must be one of float32, float16, bfloat16; got 'int8'"
    )
    assert "--dtype bfloat16,probs=bfloat16" in workbench(*words, "bfloat16,probs=bfloat16").stdout
