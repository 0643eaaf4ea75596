"""Runs that nobody wrote for the workbench: arrays under its names in .npz, .pt and .safetensors files and in dicts."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

from workbench import Case, Refusal, diff, load, run
from workbench.cli.main import commands

torch = pytest.importorskip("torch", reason="torch is not installed")

CASE = Case(seqlen=20, heads=4, kv_heads=2, head_dim=8, causal=True)
NAMES = {"q": "query", "k": "key", "v": "value", "out": "o", "lse": "softmax_lse"}


def arrays(case: Case = CASE, *, base2: bool = False) -> dict[str, np.ndarray]:
    """What a run of a kernel read and left: q, k, v, out, lse and scores; with `base2` an lse in base 2."""
    q, k, v = case.inputs()
    deep = [np.repeat(x, case.heads // case.kv_heads, 1).astype(np.float32) for x in (k, v)]
    scores = q.astype(np.float32) @ deep[0].swapaxes(-1, -2) * np.float32(case.scale)
    if case.causal:
        seen = np.tri(case.seqlen_q, case.seqlen_k, case.seqlen_k - case.seqlen_q, dtype=bool)
        scores = np.where(seen, scores, np.float32(-np.inf))
    row_max = scores.max(-1)
    probs = np.exp(scores - row_max[..., None])
    row_sum = probs.sum(-1)
    lse = (row_max + np.log(row_sum)) * np.float32(1.4426950408889634 if base2 else 1)
    out = (probs @ deep[1] / row_sum[..., None]).astype(q.dtype)
    return {"q": q, "k": k, "v": v, "out": out, "lse": lse, "scores": scores}


def in_torch(held: Mapping[str, Any]) -> dict[str, Any]:
    return {name: torch.tensor(x) if isinstance(x, np.ndarray) else x for name, x in held.items()}


WRITERS: dict[str, Callable[[Mapping[str, Any], Path], Any]] = {
    "run.npz": lambda held, path: np.savez(path, **held),
    "run.pt": lambda held, path: torch.save(in_torch(held), path),
    "run.safetensors": lambda held, path: save_file(dict(held), path, {"format": "pt"}),
}


def written(name: str, held: Mapping[str, Any], folder: Path) -> str:
    WRITERS[name](held, folder / name)
    return str(folder / name)


def said(*words: str) -> Any:
    """What the command line does."""
    return CliRunner().invoke(commands, words, catch_exceptions=False)


def refused(*words: str) -> str:
    with pytest.raises(Refusal) as found:
        said(*words)
    return str(found.value)


@pytest.mark.usefixtures("without_causes")
@pytest.mark.parametrize("name", WRITERS)
def test_arrays_in_a_file_are_judged(name: str, tmp_path: Path) -> None:
    right = diff(load(written(name, arrays(), tmp_path), case=CASE))
    assert right.verdict == "rounding" and {*right.trace.stages} == {"out", "lse", "scores"}
    wrong = said("diff", written(name, arrays(base2=True), tmp_path), "--causal")
    assert wrong.exit_code == 1
    assert "lse     bug <- origin" in wrong.stdout
    assert (
        f"{tmp_path / name}: float32 b=1 h=4 (kv 2) q=20 k=20 d=8, causal bottom-right, inputs given\n" in wrong.stdout
    )


def test_a_dict_of_arrays_is_judged() -> None:
    assert diff(load(arrays(), case=CASE)).verdict == "rounding"
    assert diff(load(in_torch(arrays(base2=True)), case=CASE)).origin == "lse"
    # fields that arrays do not tell are enough, and what is not said is as usual
    assert diff(load(arrays(), case={"causal": True})).verdict == "rounding"
    assert diff(load(arrays(CASE.but(causal=False)))).verdict == "rounding"
    # what a function returns lies beside what it was given
    told = {**arrays(), "contract": {"probs_dtype": "float32"}, "row_max": None}
    assert load(told, case=CASE).contract.probs_dtype == "float32"
    assert load(told, case=CASE, contract="block_k=16").contract.probs_dtype == "float32"
    with pytest.raises(Refusal, match='arrays says probs_dtype=float32 in its "contract", but --contract says'):
        load(told, case=CASE, contract="probs_dtype=float16")


@pytest.mark.usefixtures("without_causes")
def test_what_is_left_out_is_as_usual_and_wrong_without(tmp_path: Path) -> None:
    assert said("diff", written("run.npz", arrays(), tmp_path)).exit_code == 1
    scaled = written("run.npz", arrays(CASE.but(scale=0.5, causal=False)), tmp_path)
    assert said("diff", scaled).exit_code == 1 and said("diff", scaled, "--scale", "0.5").exit_code == 0
    both = said("diff", scaled, "--scale", "0.5,0.25", "--json")  # a list makes a row each
    assert [one["verdict"] for one in json.loads(both.stdout)["runs"]] == ["rounding", "bug"] and both.exit_code == 1


@pytest.mark.parametrize("name", ["run.npz", "run.pt"])
def test_facts_beside_the_arrays_are_facts_of_the_case(name: str, tmp_path: Path) -> None:
    path = written(name, {**arrays(CASE.but(scale=0.5)), "scale": 0.5, "causal": True}, tmp_path)
    assert diff(load(path)).verdict == "rounding"
    assert said("diff", path).exit_code == 0 and said("diff", path, "--scale", "0.5").exit_code == 0
    assert refused("diff", path, "--causal", "no") == f"{path} has causal=True; got causal=False"
    with pytest.raises(Refusal, match=r"run\.\w+ has scale=0\.5; got scale=0\.3"):
        load(path, case=CASE.but(scale=0.35))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_judged_as_such(dtype: str, tmp_path: Path) -> None:
    case = CASE.but(dtype=dtype)
    for name in WRITERS if dtype == "float16" else ("run.npz", "run.safetensors"):  # .npz has no name for bfloat16
        trace = load(written(name, arrays(case), tmp_path), case=case)
        assert (trace.case.dtype, trace.inputs["q"].dtype.name, diff(trace).verdict) == (dtype, dtype, "rounding")


@pytest.mark.parametrize(("layout", "axes"), [("bshd", (0, 2, 1, 3)), ("hsd", None), ("shd", (1, 0, 2))])
def test_arrays_in_another_layout(layout: str, axes: tuple[int, ...] | None, tmp_path: Path) -> None:
    held = arrays()
    for x in ("q", "k", "v", "out"):
        one = held[x] if "b" in layout else held[x][0]
        held[x] = one if axes is None else one.transpose(axes)
    held |= {} if "b" in layout else {"lse": held["lse"][0]}
    path = written("run.npz", held, tmp_path)
    assert diff(load(path, case=CASE, layout=layout)).verdict == "rounding"
    found = said("diff", path, "--causal", "--arrays", f"layout={layout}", "--json")
    assert found.exit_code == 0 and json.loads(found.stdout)["verdict"] == "rounding"
    told = refused("diff", path, "--causal")
    assert ("layout=bshd" in told and "[1, 20, 4, 8]" in told) if layout == "bshd" else "layout=hsd" in told


def test_a_ragged_batch_and_a_mask_of_its_own() -> None:
    case = Case(batch=2, seqlens_q=(5, 20), seqlens_k=(5, 20), head_dim=8)
    held = arrays(Case(batch=2, seqlen=20, head_dim=8))
    short = arrays(Case(batch=2, seqlen=20, head_dim=8))
    scores = short["scores"][:1, :, :5, :5]
    probs = np.exp(scores - scores.max(-1, keepdims=True))
    held["out"][0, :, :5] = (probs @ held["v"][:1, :, :5] / probs.sum(-1, keepdims=True))[0]
    held["out"][0, :, 5:] = 0
    held = {x: held[x] for x in ("q", "k", "v", "out")}
    assert diff(load(held, case={"seqlens_q": (5, 20), "seqlens_k": (5, 20)})).verdict == "rounding"
    assert diff(load(held, case=case)).verdict == "rounding" and diff(load(held)).verdict == "bug"
    masked = {**arrays(), "mask": np.tri(20, dtype=bool)}
    assert diff(load(masked)).verdict == "rounding"


def test_codes_are_what_the_kernel_was_given() -> None:
    case = CASE.but(kv_heads=4)
    q, k, v = case.inputs()
    scales = {x: (np.abs(of).max((0, 2, 3)) / 448).astype(np.float32) for x, of in zip("qkv", (q, k, v), strict=True)}
    codes = {
        x: (of / scales[x][:, None, None]).astype(ml_dtypes.float8_e4m3fn)
        for x, of in zip("qkv", (q, k, v), strict=True)
    }
    read = {x: codes[x].astype(np.float32) * scales[x][:, None, None] for x in "qkv"}
    scores = np.where(np.tri(20, dtype=bool), read["q"] @ read["k"].swapaxes(-1, -2) * np.float32(case.scale), -np.inf)
    probs = np.exp(scores - scores.max(-1, keepdims=True))
    made = {"out": probs @ read["v"] / probs.sum(-1, keepdims=True)}
    made |= {f"codes_{x}": codes[x].view(np.uint8) for x in "qkv"} | {f"scale_{x}": scales[x] for x in "qkv"}
    told = {"codes": "e4m3", "causal": True, "dtype": "float32"}
    found = load(made, case=told)
    assert {*found.put_in} == {*made} - {"out"} and diff(found).verdict == "rounding"
    assert diff(load({**made, "scale_v": made["scale_v"] * np.float32(1.5)}, case=told)).verdict == "bug"
    with pytest.raises(Refusal, match="^arrays: codes need their format: pass --codes e4m3"):
        load(made, case={"causal": True})


@pytest.mark.usefixtures("without_causes")
def test_the_command_that_a_report_prints_repeats_it(tmp_path: Path) -> None:
    held = arrays(base2=True)
    held |= {x: held[x].swapaxes(1, 2) for x in ("q", "k", "v", "out")}
    path = written("run.npz", held, tmp_path)
    told = ["--arrays", "layout=bshd", "--contract", "probs_dtype=float32", "--causal"]
    first = said("diff", path, *told).stdout
    repeat = first.splitlines()[-1].removeprefix("repeat: workbench ").split()
    assert repeat[:2] == ["diff", path] and {*repeat[2:]} == {*told}  # and no lengths, which the arrays tell
    assert said(*repeat).stdout == first


def test_the_other_commands_take_it(tmp_path: Path) -> None:
    path = written("run.npz", arrays(base2=True), tmp_path)
    told = said("explain", path, "--causal")
    assert told.exit_code == 1 and "lse is in base 2, not in base e" in told.stdout
    shown = said("show", path, "lse[0,0,19]", "--causal", "--json")
    (row,) = json.loads(shown.stdout)["elements"]
    assert row["actual"] == pytest.approx(1.4426950408889634 * row["expected"], rel=1e-5)
    part = said("diff", path, "--causal", "--where", "h=1,q=3:9", "--json")
    assert json.loads(part.stdout)["where"]["q"] == [3, 9] and part.exit_code == 1
    pair = said("diff", path, "--against", "flash", "--causal", "--json")
    assert (json.loads(pair.stdout)["a"]["verdict"], json.loads(pair.stdout)["b"]["verdict"]) == ("bug", "rounding")
    assert said("diff", "flash", "--inputs", path, "--causal", "--backend", "emulator").exit_code == 0


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["measure", "RUN", "--causal"], "measure must call its target"),
        (["diff", "RUN", "--causal", "--measure"], "measure must call its target"),
        (["show", "RUN", "weights", "--measure"], "measure must call its target"),
        (["contract", "RUN", "--measure"], "a contract can only be measured on"),
        (["laws", "RUN"], "laws compare runs"),
        (["sweep", "RUN"], "a sweep runs its target"),
        (["check", "RUN"], "which cannot be run"),
    ],
)
def test_what_needs_a_function_says_so(words: list[str], what: str, tmp_path: Path) -> None:
    path = written("run.npz", arrays(), tmp_path)
    told = refused(*(path if word == "RUN" else word for word in words))
    assert what in told and path in told
    assert "unknown kernel" not in told


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": None}, "k is missing; it holds q, v, out, lse, scores"),
        ({"k": None, "key": 1}, "k is missing; it holds q, v, out, lse, scores, key"),
        ({"probz": 1}, "it holds 'probz', which is no input, stage or field of a case; did you mean probs?"),
        ({"out": None, "lse": None, "scores": None}, "it holds only inputs: q, k, v"),
        ({"v": 3.0}, "v is a float, no array"),
        ({"q": np.ones((1, 4, 20, 8), np.int64)}, "q must be an array of float32, float16 or bfloat16; got int64"),
        ({"lse": np.ones((1, 20, 4), np.float32)}, "stage lse has axes [b h q] and must have shape [1, 4, 20]"),
        ({"k": np.ones((1, 3, 20, 8), np.float32)}, "kv_heads"),
        ({"out": np.ones((1, 4, 20, 9), np.float32)}, "stage out has axes [b h q d]"),
        ({"dropout_p": 0.5}, "dropout_p=0.5 needs dropout_mask, which marks the probs to keep"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    held = {name: x for name, x in {**arrays(), **change}.items() if x is not None}
    with pytest.raises(Refusal) as found:
        load(held, case={"causal": True})
    assert message in str(found.value) and str(found.value).startswith("arrays")


def test_a_case_that_contradicts_the_arrays_is_refused(tmp_path: Path) -> None:
    path = written("run.npz", arrays(), tmp_path)
    with pytest.raises(Refusal, match=r"run\.npz has seqlen_q=20; got seqlen_q=24"):
        load(path, case=CASE.but(seqlen=24))
    assert refused("diff", path, "--seqlen", "24") == f"{path} has seqlen_q=20; got seqlen_q=24"
    assert refused("diff", path, "--runs", "2").startswith(f"{path} cannot be run: it takes the options of a case")
    assert refused("diff", str(tmp_path / "none.npz"), "--causal") == f"{tmp_path}/none.npz: no such file"
    (tmp_path / "half.pt").write_bytes(b"PK")
    assert "not a complete .pt file" in refused("diff", str(tmp_path / "half.pt"))
    assert "run.npy" in refused("diff", "run.npy") and "FILE.npz" in refused("diff", "run.npy")


def mapped(folder: Path, more: str = "", key: str = "{}") -> str:
    path = folder / "names.toml"
    path.write_text("[tensors]\n" + "".join(f'{x} = "{key.format(of)}"\n' for x, of in NAMES.items()) + more)
    return str(path)


@pytest.mark.usefixtures("without_causes")
@pytest.mark.parametrize("name", WRITERS)
def test_a_mapping_names_the_arrays_of_a_file(name: str, tmp_path: Path) -> None:
    held = arrays(base2=True)
    path = written(name, {of: held[x] for x, of in NAMES.items()} | {"step": np.arange(3)}, tmp_path)
    words = ["--mapping", mapped(tmp_path), "--causal"]
    told = said("diff", path, *words)
    assert told.exit_code == 1 and f"repeat: workbench diff {path} --causal --mapping {words[1]}" in told.stdout
    if name == "run.npz":
        assert "lse is in base 2, not in base e" in said("explain", path, *words).stdout
        shown = json.loads(said("show", path, "lse[0,0,18:]", *words, "--json").stdout)["elements"]
        assert [row["actual"] for row in shown] == pytest.approx(held["lse"][0, 0, 18:].tolist())
    found = load(path, case={"causal": True}, mapping={"tensors": NAMES})
    assert diff(found).origin == "lse"


def test_a_mapping_goes_into_a_file_and_says_the_case(tmp_path: Path) -> None:
    held = {of: arrays()[x] for x, of in NAMES.items()}
    torch.save({"layers": [{"attn": in_torch(held)}], "step": 3}, tmp_path / "run.pt")
    inside = mapped(tmp_path, "[case]\ncausal = true\n", "layers.0.attn.{}")
    assert said("diff", str(tmp_path / "run.pt"), "--mapping", inside).exit_code == 0
    np.savez(tmp_path / "run.npz", **{f"layers.0.attn.{name}": x for name, x in held.items()})  # a name with dots
    assert said("diff", str(tmp_path / "run.npz"), "--mapping", inside).exit_code == 0
    told = refused("diff", str(tmp_path / "run.npz"), "--mapping", inside, "--causal", "no")
    assert told.endswith("[case] has causal=True; got causal=False")
    assert diff(load(held, mapping={"tensors": NAMES, "case": {"causal": True}})).verdict == "rounding"


def test_a_mapping_that_misses_says_what_is_there(tmp_path: Path) -> None:
    path = written("run.npz", arrays(), tmp_path)
    told = refused("diff", path, "--mapping", mapped(tmp_path))
    assert told == f"{path}: nothing under 'query'; there is q, k, v, out, lse and 1 more"
    (tmp_path / "names.toml").write_text('[tensors]\nq = "q"\nk = "k"\nout = "out"\n')
    assert "it lacks v" in refused("diff", path, "--mapping", str(tmp_path / "names.toml"))


def test_a_run_is_read_as_the_function_that_left_it() -> None:
    def function(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> dict[str, Any]:
        held = arrays(base2=True)
        return {x: held[x] for x in ("out", "lse", "scores")}

    called, at_rest = diff(run(function, CASE)), diff(load(arrays(base2=True), case=CASE))
    assert [(one.name, one.verdict) for one in at_rest] == [(one.name, one.verdict) for one in called]


def test_bfloat16_of_npz_is_what_numpy_calls_two_bytes(tmp_path: Path) -> None:
    np.savez(tmp_path / "run.npz", q=np.ones(3, ml_dtypes.bfloat16))
    assert np.load(tmp_path / "run.npz")["q"].dtype == "V2"
