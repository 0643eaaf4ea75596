"""`workbench inputs`: what it writes is what a kernel reads, and the commands that it prints judge what comes of it."""

import json
import shlex
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.refusals import invoked, refused
from workbench import Case, run, save
from workbench.case.formats import FORMATS
from workbench.case.stages import INPUTS
from workbench.foreign.arguments import drawn
from workbench.trace.inputs import load as load_inputs
from workbench.trace.inputs import save as save_inputs

inputs, message = partial(invoked, "inputs"), partial(refused, "inputs")
CASE = Case(seqlen=12, heads=2, kv_heads=1, head_dim=16, scale=0.3, causal=True)
WORDS = ("--seqlen", 12, "--heads", "2,kv=1", "--head-dim", 16, "--scale", 0.3, "--causal")


@pytest.mark.parametrize(("suffix", "dtype"), [(".npz", "float16"), (".safetensors", "bfloat16"), (".npz", "float32")])
def test_what_is_written_is_what_the_case_draws(tmp_path: Path, suffix: str, dtype: str) -> None:
    path = tmp_path / f"in{suffix}"
    assert inputs("--out", path, *WORDS, "--dtype", dtype).exit_code == 0
    written = load_inputs(path)
    assert list(written) == list(INPUTS)
    for x, array in zip(written.values(), CASE.but(dtype=dtype).inputs(), strict=True):
        assert x.dtype == array.dtype and np.array_equal(x, array)


@pytest.mark.parametrize("kind", [*FORMATS])
def test_codes_are_those_that_a_function_under_test_is_given(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "in.safetensors"
    document = json.loads(inputs("--out", path, *WORDS, "--codes", kind, "--json").stdout)
    assert document["inputs"]["codes_k"] == {"shape": [1, 1, 12, 16], "dtype": "uint8"}
    scales = [2] if "head" in FORMATS[kind].scales else [1, 2, 12, 1]
    assert document["inputs"]["scale_q"] == {"shape": scales, "dtype": "float32"}

    def on_codes(  # type: ignore[no-untyped-def]
        q, k, v, *, scale_q, scale_k, scale_v, zero_q=None, zero_k=None, zero_v=None, global_q=None, global_k=None,
        global_v=None, scale, causal,
    ):  # fmt: skip
        return np.zeros((1, 2, 12, 16), np.float16)

    given, written = run(on_codes, CASE.but(codes=kind)), load_inputs(path)
    assert {*given.stages} - {"out"} == {*written} - {*INPUTS}
    assert given.put_in and all(
        np.array_equal(written[name].ravel(), given.stages[name].ravel()) for name in given.put_in
    )
    assert not any("--values" in command for command in document["commands"])


def test_of_a_cache_q_is_written_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "in.safetensors"
    assert inputs("--out", path, *WORDS, "--codes", "int8,of=kv", "--dtype", "float16").exit_code == 0
    written = load_inputs(path)
    assert {*written} == {*INPUTS, "codes_k", "codes_v", "scale_k", "scale_v"} and written["q"].dtype == np.float16


def test_the_commands_judge_what_comes_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = inputs("--out", "my inputs.npz", *WORDS).stdout.splitlines()
    assert lines == [
        "q        float32 [1, 2, 12, 16]",
        "k        float32 [1, 1, 12, 16]",
        "v        float32 [1, 1, 12, 16]",
        "written: my inputs.npz; call the kernel with scale 0.30000001192092896, causal bottom-right; to judge",
        "  lines that it prints:",
        "    workbench diff --values run.log --seqlen 12 --heads 2,kv=1 --head-dim 16 --scale 0.30000001192092896 "
        "--causal --inputs 'my inputs.npz'",
        "  a trace that it writes, with these inputs:",
        "    workbench diff run.safetensors",
        "  a function that runs it:",
        "    workbench diff mine.py:attention --seqlen 12 --heads 2,kv=1 --head-dim 16 --scale 0.30000001192092896 "
        "--causal --inputs 'my inputs.npz'",
    ]
    Path("mine.py").write_text(
        "import numpy as np\n"
        "def attention(q, k, v, *, scale, causal):\n"
        "    s = np.where(np.tri(12, dtype=bool), q @ k.swapaxes(-1, -2) * np.float32(scale), -np.inf)\n"
        "    p = np.exp(s - s.max(-1, keepdims=True))\n"
        "    return {'scores': s, 'out': p @ v / p.sum(-1, keepdims=True)}\n"
    )
    trace = run("mine.py:attention", CASE, inputs="my inputs.npz")
    save(trace, "run.safetensors")
    Path("run.log").write_text(f"WB scores 0 1 11 0 {trace.stages['scores'][0, 1, 11, 0]:.9g}\n")
    for line in lines:
        if line.startswith("    workbench"):
            result = invoked(*shlex.split(line)[1:], "--json")
            assert json.loads(result.stdout)["verdict"] == "rounding" and result.exit_code == 0


def test_what_is_not_written(tmp_path: Path) -> None:
    assert message("--out", "in.bin") == "in.bin: inputs must be written as .safetensors or .npz; got .bin"
    assert message("--out", "in.npz", "--dtype", "bfloat16") == (
        "in.npz: .npz has no bfloat16, which q is: write .safetensors"
    )
    assert message("--out", "in.npz", "--seqlen", "4,5") == ("inputs writes one case; the case options make 2")
    assert message("--out", "in.npz", "--splits", 4, "--block-k", 64) == (
        "inputs writes only what kernels read; leave out --splits, --block-k, which does not change it"
    )
    other = tmp_path / "other.npz"
    np.savez(other, weights=np.zeros(3))
    assert message("--out", other) == (
        f"inputs may overwrite only a file of inputs; give another file\n{other}: inputs must be among q, k, v, scale_q, "
        "scale_k, scale_v, codes_q, codes_k, codes_v, zero_q, zero_k, zero_v, global_q, global_k, global_v, mask, "
        "bias, dropout_mask, alibi_slopes, sinks; got weights"
    )
    assert message("--out", "/proc/none/in.npz") == "/proc/none/in.npz cannot be written: No such file or directory"
    save_inputs(drawn(CASE), tmp_path / "in.npz")
    save_inputs(drawn(CASE.but(seed=1)), tmp_path / "in.npz")  # as often as one likes
    assert np.array_equal(load_inputs(tmp_path / "in.npz")["q"], CASE.but(seed=1).inputs()[0])
