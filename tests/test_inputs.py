"""Inputs from outside: what a file holds is what a kernel reads, and what does not fit is refused by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner, Result
from safetensors.numpy import save_file

from workbench import Case, Diff, Refusal, diff, load, run, save
from workbench.cli import commands
from workbench.inputs import case_of, normalised
from workbench.inputs import load as load_inputs
from workbench.mask import bias
from workbench.quantize import quantize
from workbench.stages import INPUTS, QUANTISED_INPUTS

CASE = Case(batch=2, heads=4, kv_heads=2, seqlen_q=20, seqlen_k=30)


def floats(case: Case = CASE) -> dict[str, np.ndarray]:
    return dict(zip("qkv", case.inputs(), strict=True))


def quantised(kind: str = "simulated", case: Case = CASE) -> dict[str, np.ndarray]:
    made: dict[str, np.ndarray] = {}
    for x, array in floats(case).items():
        codes, scale = quantize(array, kind, saturate=True)
        made |= {f"codes_{x}": codes, f"scale_{x}": scale}
    return made


def written(folder: Path, arrays: dict[str, np.ndarray], suffix: str) -> Path:
    path = folder / f"inputs{suffix}"
    if suffix == ".npz":
        np.savez(path, **arrays)  # type: ignore[arg-type]
    elif suffix == ".safetensors":
        save_file(arrays, path)
    else:
        torch = pytest.importorskip("torch", reason="torch is not installed")
        torch.save({name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in arrays.items()}, path)
    return path


def workbench(*words: Any) -> Result:
    return CliRunner().invoke(commands, [str(word) for word in words], catch_exceptions=True)


def refusal(call: Callable[..., object], *arguments: Any, **options: Any) -> str:
    with pytest.raises(Refusal) as refused:
        call(*arguments, **options)
    return str(refused.value)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pt"])
def test_a_run_on_a_file_is_the_run_on_its_arrays(tmp_path: Path, suffix: str) -> None:
    path = written(tmp_path, floats(), suffix)
    case = case_of(load_inputs(path), "file", causal=True)
    assert case == CASE.but(causal=True, distribution="given")
    made, wanted = run("flash", case, inputs=path, backend="emulator"), run("flash", CASE.but(causal=True))
    assert all(np.array_equal(made.stages[name], stage) for name, stage in wanted.stages.items())
    assert made.called_with == {"inputs": str(path)} and made.rerun is None
    assert diff(made).verdict == "rounding"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_dtypes_come_from_the_file(tmp_path: Path, dtype: str) -> None:
    arrays = floats(CASE.but(dtype=dtype))
    path = written(tmp_path, arrays, ".safetensors")
    made = run("flash", case_of(load_inputs(path), "file"), inputs=path, backend="emulator")
    assert made.case.dtype == dtype and all(np.array_equal(made.inputs[x], arrays[x]) for x in INPUTS)
    # the quantiser takes float32, which holds any of them
    assert diff(run("fp8", case_of(load_inputs(path), "file"), inputs=path, backend="emulator")).verdict == "rounding"


@pytest.mark.parametrize("kind", ["simulated", "e4m3", "e5m2"])
def test_codes_and_scales_from_outside_are_read_and_not_judged(tmp_path: Path, kind: str) -> None:
    given = quantised(kind)
    given["scale_k"] *= np.float32(1.25)  # another quantiser's
    path = written(tmp_path, given, ".safetensors")
    made = run("fp8", case_of(load_inputs(path), "file", codes=kind), inputs=path, backend="emulator")
    assert made.inputs == {} and made.put_in == QUANTISED_INPUTS
    assert all(np.array_equal(made.stages[name], given[name]) for name in QUANTISED_INPUTS)
    judged = diff(made)
    assert (judged.verdict, judged.origins, judged.loss) == ("rounding", (), None)
    assert {stage.name: stage.reason for stage in judged.not_judged} == dict.fromkeys(QUANTISED_INPUTS, "it was put in")
    with_floats = run("fp8", made.case, inputs={**given, **floats()}, backend="emulator")
    lost = diff(with_floats).loss
    assert lost is not None and np.abs(lost.inputs["k"]).max() > 0.1  # seen, as no kernel's error
    faulty = run("fp8", made.case, inputs=path, faults=["v-uses-k-scale"], backend="emulator")
    assert diff(faulty).origin == "lut_v"


def test_float8_tensors_tell_their_format(tmp_path: Path) -> None:
    given = quantised("e5m2") | floats()
    for x in INPUTS:
        given[f"codes_{x}"] = given[f"codes_{x}"].view(ml_dtypes.float8_e5m2)
    path = written(tmp_path, given, ".safetensors")
    case = case_of(load_inputs(path), "file")
    assert case.codes == "e5m2" and diff(run("fp8", case, inputs=path, backend="emulator")).verdict == "rounding"
    assert refusal(run, "fp8", case.but(codes="e4m3"), inputs=path) == (
        f"{path}: codes are e5m2, and the case says e4m3"
    )
    torch = pytest.importorskip("torch", reason="torch is not installed")
    tensors = {name: torch.from_numpy(x.view(np.uint8) if "codes" in name else x) for name, x in given.items()}
    tensors |= {name: x.view(torch.float8_e5m2) for name, x in tensors.items() if "codes" in name}
    torch.save(tensors, tmp_path / "inputs.pt")
    again = load_inputs(tmp_path / "inputs.pt")
    assert all(again[name].tobytes() == x.tobytes() and again[name].dtype == x.dtype for name, x in given.items())


def test_some_inputs_may_be_codes_and_one_scale_may_serve_all_heads() -> None:
    given = floats() | {name: x for name, x in quantised().items() if name.endswith("v")}
    given["scale_v"] = np.float32(0.01)
    made = run("fp8", CASE, inputs=given, backend="emulator")
    assert made.put_in == ("scale_v", "codes_v") and made.stages["scale_v"].tolist() == [np.float32(0.01)] * 2
    judged = diff(made)
    assert judged.verdict == "rounding" and judged["codes_q"].verdict == "exact"


def test_a_trace_gives_what_its_kernel_read(tmp_path: Path) -> None:
    first = run("fp8", CASE, inputs=quantised(), backend="emulator")
    save(first, tmp_path / "trace.safetensors")
    again = load(tmp_path / "trace.safetensors")
    assert (again.put_in, again.inputs) == (QUANTISED_INPUTS, {}) and diff(again).verdict == "rounding"
    assert set(load_inputs(tmp_path / "trace.safetensors")) == set(QUANTISED_INPUTS)
    save(run("flash", CASE, backend="emulator"), tmp_path / "f.safetensors")
    found = load_inputs(tmp_path / "f.safetensors")
    assert list(found) == list(INPUTS) and all(np.array_equal(found[x], floats()[x]) for x in INPUTS)


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = written(Path(), quantised(), ".npz")
    done = workbench("diff", "fp8", "--inputs", path, "--causal", "--backend", "emulator")
    assert done.exit_code == 0, done.output
    assert f"inputs {path}" in done.output and "repeat: workbench diff fp8" in done.output
    assert f"--inputs {path}" in done.output and "--seed" not in done.output.partition("repeat:")[2]
    assert "scale_q (it was put in)" in done.output
    both = workbench("diff", "fp8", "--inputs", path, "--causal", "--full", "--decode", "table,direct")
    assert both.exit_code == 0 and "4 runs: 4 without a bug" in both.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--heads", "8"], "FILE has heads=4; got heads=8"),
        (["--seqlen", "20"], "FILE has seqlen_k=30; got seqlen_k=20"),
        (["--seed", "3"], "seed is for inputs that are drawn; these come from FILE"),
        (["--distribution", "peaked"], "distribution is for inputs that are drawn; these come from FILE"),
        (["--dtype", "float16"], "FILE has dtype=float32; got dtype=float16"),
    ],
)
def test_options_that_contradict_the_file_are_refused(tmp_path: Path, words: list[str], message: str) -> None:
    path = written(tmp_path, floats(), ".npz")
    done = workbench("diff", "flash", "--inputs", path, *words)
    assert isinstance(done.exception, Refusal) and str(done.exception).replace(str(path), "FILE") == message
    assert workbench("diff", "flash", "--inputs", path, "--heads", "4", "--seqlen-q", "20").exit_code == 0


def test_what_does_not_fit_is_refused() -> None:
    arrays, codes = floats(), quantised()
    spoilt = codes | {"scale_q": np.float32([1, np.nan, 1, 1])}
    for given, message in [
        ({"q": arrays["q"], "k": arrays["k"]}, "here: v is missing; give v, or codes_v and scale_v"),
        (arrays | {"out": arrays["q"]}, f"here: inputs are {', '.join((*INPUTS, *QUANTISED_INPUTS))}, mask, bias; got out"),
        (arrays | {"codes_q": codes["codes_q"]}, "here: codes and scales come in pairs; codes_q is alone"),
        (arrays | {"q": arrays["q"][0]}, "here: q must have axes [batch head row dim]; got shape [4, 20, 64]"),
        (
            arrays | {"q": arrays["q"].astype(np.float64)},
            "here: q must be an array of float32, float16 or bfloat16; got float64",
        ),
        (arrays | {"q": arrays["q"].astype(np.float16)}, "here: q, k and v must have one dtype; got float16, float32"),
        (
            codes | {"codes_k": codes["codes_k"].view(np.int8)},
            "here: codes_k must be an array of uint8, float8_e4m3fn or float8_e5m2; got int8",
        ),
        (
            codes | {"codes_k": codes["codes_k"].view(ml_dtypes.float8_e4m3fn), "codes_v": codes["codes_v"].view(ml_dtypes.float8_e5m2)},
            "here: codes must have one format; got e4m3, e5m2",
        ),
        (
            codes | {"scale_k": np.ones((2, 2), np.float32)},
            "here: scale_k is one number a head, [head], or one for all; got shape [2, 2]",
        ),
        (spoilt, "here: scale_q must hold finite numbers of float32, 0 or more; got [1.0, nan, 1.0, 1.0]"),
    ]:  # fmt: skip
        assert refusal(normalised, given, "here") == message
    assert refusal(run, "flash", CASE, inputs=codes) == (
        f"kernel flash reads no 8-bit codes; among the inputs are {', '.join(QUANTISED_INPUTS)}"
    )
    assert refusal(run, "fp8", CASE, inputs=codes | {"scale_k": np.ones(3, np.float32)}) == (
        "fp8: stage scale_k has axes [h] and must have shape [2] for this case; got [3]"
    )
    assert refusal(run, "fp8", CASE, inputs=codes, faults=["no-saturation"]) == (
        "fault no-saturation is in the quantiser, which does not run on codes from outside"
    )
    assert refusal(CASE.but(distribution="given").inputs) == (
        "a case of distribution given draws no inputs: they are put in (--inputs FILE)"
    )


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    def message(name: str, content: bytes | None = None) -> str:
        if content is not None:
            (tmp_path / name).write_bytes(content)
        return refusal(load_inputs, tmp_path / name).replace(str(tmp_path / name), "FILE")

    assert message("no.npz") == "FILE: no such file"
    assert message("x.bin", b"1") == "FILE: arrays are read from .safetensors, .npz, .pt; got .bin"
    assert message("x.safetensors", b"1").startswith("FILE: not a complete safetensors file (")
    assert message("x.npz", b"PK1").startswith("FILE: not a complete npz file of plain arrays (")
    np.savez(tmp_path / "objects.npz", q=np.array([{}], object))
    assert message("objects.npz").startswith("FILE: not a complete npz file of plain arrays (Object arrays cannot be")
    torch = pytest.importorskip("torch", reason="torch is not installed")
    assert message("x.pt", b"1").startswith("FILE: torch could not load it with weights_only (")
    torch.save(torch.zeros(3), tmp_path / "tensor.pt")
    assert message("tensor.pt") == "FILE: must hold a dict of name -> tensor; got Tensor"
    torch.save({"q": Path("x")}, tmp_path / "code.pt")
    assert message("code.pt").startswith("FILE: torch could not load it with weights_only (UnpicklingError")


# ---- masks and biases


def masked(rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """A mask of half the keys, of which the first query of several sees none, and a bias."""
    seen = rng.random(shape) < 0.5
    seen[..., 0, :] &= shape[-2] == 1
    return {"mask": seen, "bias": (2 * rng.standard_normal(shape)).astype(np.float32)}


def torch_attention(uses_bias: bool, *names: str) -> Callable[..., Any]:
    def kernel(q: Any, k: Any, v: Any, *, scale: float, causal: bool, mask: Any = None, bias: Any = None) -> Any:
        import torch

        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        qk = q @ k.mT
        scores = qk * scale
        if bias is not None and uses_bias:
            scores = scores + bias
        if causal:
            scores = scores.masked_fill(
                torch.ones_like(scores, dtype=torch.bool).triu(1 + k.shape[2] - q.shape[2]), -torch.inf
            )
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        out = torch.nan_to_num(torch.softmax(scores, -1)) @ v
        stages = {"qk": qk, "scores": scores, "out": out, "lse": torch.logsumexp(scores, -1)}
        return {name: stages[name] for name in names}

    return kernel


@pytest.mark.parametrize("shape", [(20, 30), (2, 4, 20, 30), (1, 4, 1, 30), (2, 1, 20, 1)], ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_a_mask_and_a_bias_are_part_of_the_reference(shape: tuple[int, ...], causal: bool) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    inputs = floats() | masked(np.random.default_rng(0), shape)
    every = ("qk", "scores", "out", "lse")
    options: dict[str, Any] = {"inputs": inputs, "arrays": "torch"}
    case = CASE.but(causal=causal)
    right = diff(run(torch_attention(True, *every), case, **options))
    assert (right.verdict, right.origins, right.victims) == ("rounding", (), ())
    lse = right["lse"].decisive
    assert lse is not None and np.all((lse.expected == -np.inf)[:, :, 0]) == (shape[-2] > 1)
    ignored = diff(run(torch_attention(False, *every), case, **options))
    assert ignored.origins == ("scores",) and "lse" in ignored.victims
    alone = diff(run(torch_attention(False, "out"), case, **options))
    if shape[-1] == 1:  # a bias that all keys of a row share leaves out as it is
        assert ignored.victims == ("lse",) and alone.origins == ()
        return
    assert "out" in ignored.victims and alone.origins == ("out",) and {"qk", "scores"} <= set(alone["out"].upstream)
    assert diff(run(torch_attention(True, "out"), case, **options)).verdict in ("rounding", "exact")


def test_a_bias_may_hide_keys_and_either_may_come_alone() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    both = masked(np.random.default_rng(1), (2, 4, 20, 30))
    hiding = np.where(both["mask"], both["bias"], -np.inf).astype(np.float32)
    for beside in ({"mask": both["mask"]}, {"bias": both["bias"]}, {"bias": hiding}):
        made = run(torch_attention(True, "qk", "scores", "out", "lse"), CASE, inputs=floats() | beside, arrays="torch")
        assert diff(made).verdict == "rounding"
        scores = diff(made)["scores"].decisive
        assert scores is not None and np.isfinite(scores.summary.max_abs)


def test_a_bias_as_low_as_the_sentinel_is_refused() -> None:
    """Nobody could tell its scores from masked ones."""
    inputs = dict(zip("qkv", CASE.inputs(), strict=True)) | {"bias": np.zeros((20, 30), np.float32)}
    inputs["bias"][3, 5] = -1e9

    def judged(sentinel: float) -> Diff:
        def kernel(*args: Any, **options: Any) -> Any:
            stages = torch_attention(True, "scores", "out")(*args, **options)
            return stages | {"contract": {"mask_sentinel": sentinel}}

        return diff(run(kernel, case_of(inputs), inputs=inputs, arrays="torch"))

    pytest.importorskip("torch", reason="torch is not installed")
    assert judged(-1e30).verdict == "rounding"
    with pytest.raises(Refusal) as refused:
        judged(-1e9)
    assert str(refused.value) == (
        "kernel: scores of the contract's mask_sentinel=-1e+09 or less are masked ones, and the bias holds -1e+09: give "
        "-inf or a mask in its place"
    )


def test_a_bias_of_one_row_stays_one_row() -> None:
    """It is read for every part of a run, and would take 8 bytes for each score."""
    inputs = dict(zip("qkv", CASE.inputs(), strict=True)) | {"bias": np.ones((1, 30), np.float16)}
    trace = run(lambda q, k, v, *, scale, causal, bias: q, case_of(inputs), inputs=inputs)
    added = bias(trace)
    assert added is not None and added.shape == (CASE.batch, CASE.heads, 20, 30)
    assert np.shares_memory(added, trace.inputs["bias"])


def test_a_trace_keeps_its_mask_and_bias(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    inputs = floats() | masked(np.random.default_rng(0), (20, 30))
    made = run(torch_attention(False, "scores", "out"), CASE, inputs=inputs, arrays="torch")
    save(made, tmp_path / "t.safetensors")
    again = load(tmp_path / "t.safetensors")
    assert all(np.array_equal(again.inputs[name], inputs[name]) for name in inputs)
    assert diff(again).origins == ("scores",)
    assert set(load_inputs(tmp_path / "t.safetensors")) == set(inputs)


def test_what_takes_no_mask_or_bias_says_so() -> None:
    given = floats() | masked(np.random.default_rng(0), (20, 30))
    assert refusal(run, "flash", CASE, inputs=given) == (
        "kernel flash takes no mask and no bias; among the inputs are mask, bias"
    )

    def kernel(q: Any, k: Any, v: Any, *, scale: float, causal: bool, mask: Any) -> Any:
        return q

    assert (
        refusal(run, kernel, CASE, inputs=given) == "kernel takes no bias, which the inputs hold: give it the keyword"
    )
    for change, message in [
        ({"mask": np.ones((20, 30))}, "here: mask must be an array of bool; got float64"),
        (
            {"mask": np.ones(30, bool)},
            "here: mask must have axes [query key] or [batch head query key]; got shape [30]",
        ),
        ({"bias": np.full((20, 30), np.inf, np.float32)}, "here: bias must hold finite numbers or -inf; it holds inf"),
    ]:
        assert refusal(normalised, given | change, "here") == message
    wrong = given | {"mask": np.ones((20, 29), bool)}
    assert refusal(run, torch_attention(True, "out"), CASE, inputs=wrong, arrays="torch") == (
        "kernel: mask must have shape [2, 4, 20, 30] or [20, 30] for this case, or 1 in places; got [20, 29]"
    )
