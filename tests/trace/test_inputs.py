"""Inputs from outside: what a file holds is what a kernel reads, and what does not fit is refused by name."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.refusals import invoked as workbench
from tests.refusals import refusal
from workbench import Case, Refusal, diff, load, run, save
from workbench.case.inputs import by_name, normalised
from workbench.case.options import Options
from workbench.case.stages import INPUTS, OF_QUANTISER, QUANTISED_INPUTS
from workbench.cuda.quantize import quantize
from workbench.trace.inputs import case_of
from workbench.trace.inputs import load as load_inputs

#: tiles on which other tests compile, too; a file does not tell them
TILES: dict[str, int] = {"block_q": 16, "block_k": 16}
CASE = Case(batch=2, heads=4, kv_heads=2, seqlen_q=20, seqlen_k=30, head_dim=32, **TILES)
Q = np.zeros((1, 1, 4, 8), np.float32)


def quantised(kind: str = "simulated", case: Case = CASE) -> dict[str, np.ndarray]:
    made: dict[str, np.ndarray] = {}
    for x, array in by_name(case).items():
        codes, scale = quantize(array, kind)
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


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pt"])
def test_a_run_on_a_file_is_the_run_on_its_arrays(tmp_path: Path, suffix: str) -> None:
    path = written(tmp_path, by_name(CASE), suffix)
    case = case_of(load_inputs(path), "file", causal=True, **TILES)
    assert case == CASE.but(causal=True, distribution="given")
    made = run("flash", case, inputs=path, backend="emulator")
    wanted = run("flash", CASE.but(causal=True), backend="emulator")
    assert all(np.array_equal(made.stages[name], stage) for name, stage in wanted.stages.items())
    assert made.called_with == Options(inputs=str(path)) and made.rerun is not None
    again = made.rerun(case.but(seed=1))
    assert again.case.distribution == "normal" and again.case.input_std == pytest.approx(1, abs=0.1)
    assert not np.array_equal(again.stages["out"], made.stages["out"])
    assert diff(made).verdict == "rounding"


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", pytest.param("float16", marks=pytest.mark.campaign)])
def test_dtypes_come_from_the_file(tmp_path: Path, dtype: str) -> None:
    arrays = by_name(CASE.but(dtype=dtype))
    path = written(tmp_path, arrays, ".safetensors")
    tiles = TILES | ({"block_q": 32} if dtype == "bfloat16" else {})
    made = run("flash", case_of(load_inputs(path), "file", **tiles), inputs=path, backend="emulator")
    assert made.case.dtype == dtype and all(np.array_equal(made.inputs[x], arrays[x]) for x in INPUTS)
    # the quantiser takes float32, which holds any of them
    assert (
        diff(run("fp8", case_of(load_inputs(path), "file", **TILES), inputs=path, backend="emulator")).verdict
        == "rounding"
    )


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("kind", "more"),  # builds of other tests
    [("simulated", {}), ("e4m3", {"probs_dtype": "float32"}), ("e5m2", {"scores": "scalar"})],
    ids=str,
)
def test_codes_and_scales_from_outside_are_read_and_not_judged(tmp_path: Path, kind: str, more: dict[str, str]) -> None:
    given = quantised(kind)
    given["scale_k"] *= np.float32(1.25)  # another quantiser's
    path = written(tmp_path, given, ".safetensors")
    made = run("fp8", case_of(load_inputs(path), "file", codes=kind, **TILES, **more), inputs=path, backend="emulator")
    assert made.inputs == {} and made.put_in == QUANTISED_INPUTS
    assert all(np.array_equal(made.stages[name], given[name]) for name in QUANTISED_INPUTS)
    judged = diff(made)
    assert (judged.verdict, judged.origins, judged.loss) == ("rounding", (), None)
    assert {stage.name: stage.reason for stage in judged.not_judged} == dict.fromkeys(
        QUANTISED_INPUTS, "it was fed into the run"
    )
    with_floats = run("fp8", made.case, inputs={**given, **by_name(CASE)}, backend="emulator")
    lost = diff(with_floats).loss
    assert lost is not None and np.abs(lost.inputs["k"]).max() > 0.1  # seen, as no kernel's error
    if kind == "simulated":
        faulty = run("fp8", made.case, inputs=path, faults=["v-uses-k-scale"], backend="emulator")
        assert diff(faulty).origin == "lut_v"


@pytest.mark.campaign
def test_float8_tensors_tell_their_format(tmp_path: Path) -> None:
    given = quantised("e5m2") | by_name(CASE)
    for x in INPUTS:
        given[f"codes_{x}"] = given[f"codes_{x}"].view(ml_dtypes.float8_e5m2)
    path = written(tmp_path, given, ".safetensors")
    case = case_of(load_inputs(path), "file", scores="scalar", **TILES)
    assert case.codes == "e5m2" and diff(run("fp8", case, inputs=path, backend="emulator")).verdict == "rounding"
    assert refusal(run, "fp8", case.but(codes="e4m3"), inputs=path) == (
        f"{path}: quantised codes are e5m2, but the case has e4m3"
    )
    torch = pytest.importorskip("torch", reason="torch is not installed")
    tensors = {name: torch.from_numpy(x.view(np.uint8) if "codes" in name else x) for name, x in given.items()}
    tensors |= {name: x.view(torch.float8_e5m2) for name, x in tensors.items() if "codes" in name}
    torch.save(tensors, tmp_path / "inputs.pt")
    again = load_inputs(tmp_path / "inputs.pt")
    assert all(again[name].tobytes() == x.tobytes() and again[name].dtype == x.dtype for name, x in given.items())


def test_some_inputs_may_be_codes_and_one_scale_may_serve_all_heads() -> None:
    given = by_name(CASE) | {name: x for name, x in quantised().items() if name.endswith("v")}
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
    assert list(found) == list(INPUTS) and all(np.array_equal(found[x], by_name(CASE)[x]) for x in INPUTS)


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = written(Path(), quantised(), ".npz")
    tiles = ("--block-q", "16", "--block-k", "16")
    done = workbench("diff", "fp8", "--inputs", path, "--causal", *tiles, "--backend", "emulator")
    assert done.exit_code == 0, done.output
    assert f"inputs {path}" in done.output and "repeat: workbench diff fp8" in done.output
    assert f"--inputs {path}" in done.output and "--seed" not in done.output.partition("repeat:")[2]
    assert "scale_q (it was fed into the run)" in done.output
    both = workbench("diff", "fp8", "--inputs", path, "--causal", "no,yes", *tiles)
    assert both.exit_code == 0 and "2 runs: 2 without a bug" in both.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--heads", "8"], "FILE has heads=4; got heads=8"),
        (["--seqlen", "20"], "FILE has seqlen_k=30; got seqlen_k=20"),
        (["--seed", "3"], "seed is for drawn inputs; these come from FILE"),
        (["--distribution", "peaked"], "distribution is for drawn inputs; these come from FILE"),
        (["--dtype", "float16"], "FILE has dtype=float32; got dtype=float16"),
    ],
)
def test_options_that_contradict_the_file_are_refused(tmp_path: Path, words: list[str], message: str) -> None:
    path = written(tmp_path, by_name(CASE), ".npz")
    done = workbench("diff", "flash", "--inputs", path, *words)
    assert isinstance(done.exception, Refusal) and str(done.exception).replace(str(path), "FILE") == message
    words = ["--heads", "4", "--seqlen-q", "20", "--block-q", "16", "--block-k", "16"]
    assert workbench("diff", "flash", "--inputs", path, *words).exit_code == 0


def test_what_does_not_fit_is_refused() -> None:
    arrays, codes = by_name(CASE), quantised()
    spoilt = codes | {"scale_q": np.float32([1, np.nan, 1, 1])}
    for given, message in [
        ({"q": arrays["q"], "k": arrays["k"]}, "here: v is missing; give v, or codes_v and scale_v"),
        (arrays | {"out": arrays["q"]}, (
            f"here: inputs must be among {', '.join((*INPUTS, *OF_QUANTISER))}, mask, bias, "
            "dropout_mask, alibi_slopes, sinks; got out"
        )),
        (arrays | {"codes_q": codes["codes_q"]}, "here: quantised codes and scales come in pairs; codes_q is alone"),
        (arrays | {"q": arrays["q"][0]}, "here: q must have axes [batch head row dim]; got shape [4, 20, 32]"),
        (
            arrays | {"q": arrays["q"].astype(np.float64)},
            "here: q must be an array of float32, float16 or bfloat16; got float64",
        ),
        (arrays | {"q": arrays["q"].astype(np.float16)}, "here: q, k and v must have one dtype; got float16, float32"),
        (
            codes | {"codes_k": codes["codes_k"].astype(np.int16)},
            "here: codes_k must be an array of uint8, int8, float4_e2m1fn, float8_e5m2 or float8_e4m3fn; got int16",
        ),
        (
            codes | {"codes_k": codes["codes_k"].view(ml_dtypes.float8_e4m3fn), "codes_v": codes["codes_v"].view(ml_dtypes.float8_e5m2)},
            "here: quantised codes must have one format; got e4m3, e5m2",
        ),
        (
            codes | {"scale_k": np.ones((2, 2), np.float32)},
            "here: scale_k must have shape [head], be one number, or have axes [batch head row block]; got shape [2, 2]",
        ),
        (spoilt, "here: scale_q must be finite float32 numbers of at least 0; got [1.0, nan, 1.0, 1.0]"),
    ]:  # fmt: skip
        assert refusal(normalised, given, "here") == message
    assert refusal(run, "flash", CASE, inputs=codes) == (
        f"kernel flash takes no quantised codes; got {', '.join(QUANTISED_INPUTS)}"
    )
    assert refusal(run, "fp8", CASE, inputs=codes | {"scale_k": np.ones(3, np.float32)}) == (
        "kernel fp8: scale_k has axes [h] and must have shape [2] for this case; got [3]"
    )
    assert refusal(run, "fp8", CASE, inputs=codes, faults=["no-saturation"]) == (
        "fault no-saturation is in the quantiser, which does not run when codes are given"
    )
    assert refusal(CASE.but(distribution="given").inputs) == (
        "distribution given draws no inputs: pass them with --inputs FILE"
    )


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    def message(name: str, content: bytes | None = None) -> str:
        if content is not None:
            (tmp_path / name).write_bytes(content)
        return refusal(load_inputs, tmp_path / name).replace(str(tmp_path / name), "FILE")

    assert message("no.npz") == "FILE: no such file"
    assert message("x.bin", b"1") == "FILE: arrays must be in .safetensors, .npz, .pt; got .bin"
    assert message("x.safetensors", b"1").startswith("FILE: not a complete safetensors file (")
    assert message("x.npz", b"PK1").startswith("FILE: not a complete npz file of plain arrays (")
    np.savez(tmp_path / "objects.npz", q=np.array([{}], object))
    assert message("objects.npz").startswith("FILE: not a complete npz file of plain arrays (Object arrays cannot be")
    torch = pytest.importorskip("torch", reason="torch is not installed")
    whole = tmp_path / "whole.pt"
    torch.save({name: torch.zeros(1, 1, 4, 8) for name in "qkv"}, whole)
    for damaged in (b"", b"1", b"corrupt", whole.read_bytes()[:-100]):
        assert message("x.pt", damaged) == "FILE: not a complete .pt file as torch.save writes it"
    torch.save(torch.zeros(3), tmp_path / "tensor.pt")
    assert message("tensor.pt") == "FILE: must hold a dict of name -> tensor; got Tensor"
    torch.save({"q": Fraction(1)}, tmp_path / "code.pt")
    assert message("code.pt") == "FILE: must hold only a dict of name -> tensor; it holds a fractions.Fraction"


@pytest.mark.parametrize(("given", "got"), [((Q, Q), "2 of them"), ([Q] * 4, "4 of them"), (3, "int")])
def test_what_is_neither_three_arrays_nor_a_mapping_is_refused(given: Any, got: str) -> None:
    assert refusal(run, "flash", CASE, inputs=given) == (
        f"flash: inputs must be a file, (q, k, v), or a mapping of names to arrays; got {got}"
    )


def test_a_trace_in_several_files_gives_what_its_kernel_read(tmp_path: Path) -> None:
    case = Case(seqlen=16, heads=2, head_dim=16, block_q=16, block_k=16)
    for h in range(2):
        save(run("flash", case, backend="emulator", where=f"h={h}"), tmp_path / f"{h}.safetensors")
    for x, drawn in zip("qkv", case.inputs(), strict=True):
        assert np.array_equal(load_inputs(tmp_path)[x], drawn)
