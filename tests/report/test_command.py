"""The command that repeats a run is the command that made it."""

import shlex
from pathlib import Path

import numpy as np
import pytest

from tests.refusals import invoked
from tests.stored import stored
from workbench import Case, diff, load, run, save
from workbench.case.options import Options
from workbench.cuda.check import Checked
from workbench.judge.against.pair import against
from workbench.judge.table import table
from workbench.report.command import against_command, check_command, diff_command, watch_command

pytestmark = pytest.mark.usefixtures("without_causes")


def test_a_foreign_run_is_repeated_with_the_arrays_and_the_layout_it_was_called_with(tmp_path: Path) -> None:
    path = tmp_path / "my kernel.py"
    path.write_text("def attention(q, k, v, *, scale, causal):\n    return v\n")
    case = Case(seqlen=8, head_dim=4, dtype="float16")
    usual = diff(run(f"{path}:attention", case, arrays="numpy", layout="bhsd"))
    assert shlex.split(diff_command(usual))[2:] == [
        f"{path}:attention", "--seqlen", "8", "--head-dim", "4", "--dtype", "float16"
    ]  # fmt: skip
    other = diff(run(f"{path}:attention", case, layout="bshd"))
    assert shlex.split(diff_command(other))[-2:] == ["--arrays", "layout=bshd"]
    assert np.array_equal(other.trace.stages["out"], usual.trace.stages["out"])


KERNELS = """
import numpy as np
def reduce(partial_O, partial_max, partial_sum, *, scale, causal):
    weight = np.exp(partial_max - partial_max.max(axis=2, keepdims=True))[..., None]
    return {"out": (weight * partial_O).sum(axis=2) / (weight * partial_sum[..., None]).sum(axis=2)}
"""


def test_what_a_function_reads_is_made_with_the_same_tiles_again(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(KERNELS)
    judged = diff(run(f"{path}:reduce", Case(seqlen=48, head_dim=4, splits=3, block_k=16)))
    assert judged.verdict == "rounding"
    assert diff_command(judged) == f"workbench diff {path}:reduce --seqlen 48 --head-dim 4 --splits 3 --block-k 16"


def test_a_window_is_repeated_as_a_window(tmp_path: Path) -> None:
    made = stored("flash", Case(seqlen=20, head_dim=8), where="q=3:9")
    assert diff_command(diff(made)) == (
        "workbench diff flash --seqlen 20 --head-dim 8 --block-q 64 --block-k 64 --where q=3:9"
    )
    save(made, tmp_path / "run.safetensors")  # which holds the window alone
    assert diff_command(diff(load(tmp_path / "run.safetensors"))) == f"workbench diff {tmp_path}/run.safetensors"


def test_no_command_repeats_what_has_no_name_there() -> None:
    case = Case(seqlen=8, head_dim=4)
    of_python = diff(run(lambda q, k, v, *, scale, causal: v, case))
    on_arrays = diff(stored("flash", case, inputs=case.inputs()))
    assert diff_command(of_python) == diff_command(on_arrays) == ""
    assert "repeat:" not in str(of_python) + str(on_arrays)
    both = against(on_arrays, on_arrays)
    assert against_command(both) == "" and "repeat:" not in str(both)


def test_a_path_with_a_space_can_be_pasted(tmp_path: Path) -> None:
    folder = tmp_path / "my kernels"
    folder.mkdir()
    (folder / "mine.py").write_text(KERNELS)
    target = f"{folder}/mine.py:reduce"
    judged = diff(run(target, Case(seqlen=16, head_dim=4)))
    assert shlex.split(diff_command(judged))[2] == target and f"'{target}' --seqlen 16" in str(table([judged]))
    calibration = str(tmp_path / "of this machine.json")
    checked = Checked(target, (), Case(), (), 1, 1, (), called_with=Options(backend="cuda", calibration=calibration))
    assert shlex.split(check_command(checked))[-2:] == ["--calibration", calibration]


SEEN = """
import pathlib
import numpy as np
def attention(q, k, v, *, scale, causal, {takes}):
    given = dict(q=q, k=k, v=v, {gives})
    seen = pathlib.Path(__file__).parent / "seen.npz"
    if not seen.exists():  # `diff` calls it on inputs of its own, too
        np.savez(seen, **given)
    return np.zeros((2, 2, 8, 4), np.float32)
"""


def test_what_is_drawn_beside_inputs_of_a_file_is_drawn_again(tmp_path: Path) -> None:
    fields = {"sinks": "normal", "dropout_p": 0.5, "page_size": 4, "seqlens_q": (8, 3)}
    takes = ("sinks", "dropout_p", "dropout_mask", "block_table", "seqlens_q", "seqlens_k")
    words = {"takes": ", ".join(takes), "gives": ", ".join(f"{x}={x}" for x in takes)}
    (tmp_path / "mine.py").write_text(SEEN.format(**words))
    case = Case(batch=2, heads=2, seqlen=8, head_dim=4, seed=7, **fields)
    np.savez(tmp_path / "inputs.npz", **dict(zip("qkv", case.inputs(), strict=True)))
    judged = diff(run(f"{tmp_path}/mine.py:attention", case, inputs=tmp_path / "inputs.npz"))
    with np.load(tmp_path / "seen.npz") as file:
        first = dict(file)
    assert "seed 7" in str(judged)
    (tmp_path / "seen.npz").unlink()
    invoked(*shlex.split(diff_command(judged))[1:])
    with np.load(tmp_path / "seen.npz") as again:
        assert {*again} == {*first} and all(again[x].tobytes() == first[x].tobytes() for x in first)


def test_a_seed_of_which_nothing_is_drawn_is_not_said(tmp_path: Path) -> None:
    case = Case(seqlen=8, head_dim=4, seed=7)
    np.savez(tmp_path / "inputs.npz", **dict(zip("qkv", case.inputs(), strict=True)))
    judged = diff(stored("flash", case, inputs=tmp_path / "inputs.npz"))
    assert "--seed" not in diff_command(judged) and "seed 7" not in str(judged)


@pytest.mark.campaign
def test_the_command_that_watches_a_run_takes_its_options_and_finds_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(NUMBA)
    case = Case(seqlen=8, head_dim=4, causal=True)
    made = stored(f"{path}:attention", case, layout="bshd", contract="triton", where="q=1:3")
    command = f"workbench check {path}:attention --seqlen 8 --head-dim 4 --causal --arrays layout=bshd"
    assert watch_command(made) == command
    assert f"check for races and uninitialised reads: {command}\n" in str(diff(made))
    assert invoked(*shlex.split(command)[1:]).stdout == f"{command}: nothing found in 1 launch of 1 block\n"
    ours = stored("split_k", Case(seqlen=20, splits=2, block_k=16), faults=[FAULT])
    assert watch_command(ours) == (
        f"workbench check split_k --fault {FAULT} --seqlen 20 --splits 2 --block-q 64 --block-k 16"
    )


def test_what_cannot_be_watched_has_no_such_command(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def attention(q, k, v, *, scale, causal):\n    return v\n")
    assert watch_command(run(f"{path}:attention", Case(seqlen=8, head_dim=4))) == "", "it launches nothing"
    flash = stored("flash", Case(seqlen=8, head_dim=4))
    assert watch_command(flash) != "" and "races" not in str(diff(flash)), "nothing is wrong there"
    save(flash, tmp_path / "run.safetensors")
    assert watch_command(load(tmp_path / "run.safetensors")) == ""
    assert watch_command(stored("flash", Case(seqlen=8, head_dim=4), inputs=flash.case.inputs())) == ""


FAULT = "reduce-double-counts-sum"
NUMBA = """
import numpy as np
from numba import cuda

@cuda.jit
def double(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = 2 * x[i]

def attention(q, k, v, *, scale, causal):
    out = cuda.device_array(v.size, np.float32)
    double[1, 32](cuda.to_device(v.ravel()), out)
    return out.copy_to_host().reshape(v.shape)
"""
