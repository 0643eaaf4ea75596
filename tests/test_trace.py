"""Traces at rest: what is saved comes back, and what is not a trace is refused with its reason."""

import json
import re
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from workbench import Case, Refusal, Trace, diff, load, run, save
from workbench.trace import blank, to_float64, unwritten, write_atomically

CASE = Case(seqlen=20, heads=2, head_dim=8, block_q=16, block_k=16, splits=2, causal=True)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def trace(request: pytest.FixtureRequest) -> Trace:
    return run("split_k", CASE.but(dtype=request.param), faults=["reduce-double-counts-sum"], backend="emulator")


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_a_blank_slot_is_unwritten_and_no_computed_value_is(dtype: type) -> None:
    slots = blank((3, 4), np.dtype(dtype))
    assert unwritten(slots).all() and np.isnan(to_float64(slots)).all()
    slots[1] = [0.0, np.nan, np.inf, 1.5]
    assert not unwritten(slots)[1].any() and unwritten(slots)[[0, 2]].all()
    with np.errstate(invalid="ignore"):
        assert not unwritten((blank((4,), np.dtype(dtype)).astype(np.float32) + np.float32(1)).astype(dtype)).any()


def test_what_is_saved_comes_back(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "folder" / "run.safetensors"
    save(trace, path)
    again = load(path)
    assert replace(again, inputs={}, stages={}) == replace(trace, inputs={}, stages={})
    for part in ("inputs", "stages"):
        before, after = getattr(trace, part), getattr(again, part)
        assert list(before) == list(after)
        assert all(
            before[name].dtype == after[name].dtype and before[name].tobytes() == after[name].tobytes()
            for name in before
        )
    assert diff(again).origins == diff(trace).origins == ("merge_weight",)


def test_unwritten_slots_survive_the_file(trace: Trace, tmp_path: Path) -> None:
    holes = trace.stages["merge_max"].copy()
    holes[0, 1, 3] = blank((), holes.dtype)
    save(replace(trace, stages={**trace.stages, "merge_max": holes}), tmp_path / "t.safetensors")
    assert diff(load(tmp_path / "t.safetensors"))["merge_max"].verdict == "missing"


def test_a_failed_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="no space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old" and [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.fixture
def saved(trace: Trace, tmp_path: Path) -> Path:
    save(trace, tmp_path / "t.safetensors")
    return tmp_path / "t.safetensors"


def rewritten(path: Path, change) -> Path:  # noqa: ANN001
    """The file again after change(arrays, manifest)."""
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        manifest = json.loads(file.metadata()["workbench"])
    arrays = load_file(path)
    change(arrays, manifest)
    save_file(arrays, path, {"workbench": json.dumps(manifest)})
    return path


def refused(path: Path) -> str:
    with pytest.raises(Refusal) as refusal:
        load(path)
    return str(refusal.value).replace(str(path), "FILE")


def test_numbers_of_a_contract_that_json_does_not_have_come_back(trace: Trace, tmp_path: Path) -> None:
    promise = replace(trace.contract, empty_out=float("nan"), empty_lse=float("inf"), mask_sentinel=-1e30)
    save(replace(trace, contract=promise), tmp_path / "run.safetensors")
    again = load(tmp_path / "run.safetensors").contract
    assert np.isnan(again.empty_out) and (again.empty_lse, again.mask_sentinel) == (np.inf, -1e30)
    with safe_open(tmp_path / "run.safetensors", framework="numpy") as file:
        assert not {"NaN", "Infinity"} & set(re.findall(r"\w+", file.metadata()["workbench"]))


def test_a_missing_stage_is_refused(saved: Path) -> None:
    rewritten(saved, lambda arrays, _: arrays.pop("acc"))
    assert refused(saved) == "FILE: the manifest names acc, which the file does not hold"


def test_a_misshaped_stage_is_refused(saved: Path) -> None:
    rewritten(saved, lambda arrays, _: arrays.update(acc=arrays["acc"][..., :-1].copy()))
    assert (
        refused(saved)
        == "FILE: stage acc has axes [b h q t d] and must have shape [1, 2, 20, 2, 8] for this case; got [1, 2, 20, 2, 7]"
    )


def test_nan_inputs_are_refused(saved: Path) -> None:
    rewritten(saved, lambda arrays, _: arrays["k"].__setitem__((0, 1, 7, 3), np.nan))
    assert refused(saved) == "FILE: inputs must be finite; k holds nan at b=0, h=1, k=7, d=3"


def test_misshaped_inputs_are_refused(saved: Path) -> None:
    rewritten(saved, lambda arrays, _: arrays.update(q=arrays["q"][:, :, :-1].copy()))
    assert refused(saved) == "FILE: q must have shape [1, 2, 20, 8] for this case; got [1, 2, 19, 8]"


def test_a_truncated_file_is_refused(saved: Path) -> None:
    saved.write_bytes(saved.read_bytes()[:-100])
    assert refused(saved).startswith("FILE: not a complete safetensors file (")


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    assert refused(path) == "FILE: no such file"
    path.write_bytes(b"")
    assert refused(path).startswith("FILE: not a complete safetensors file (")
    path.write_bytes(b"\x80\x04\x95pickle")
    assert refused(path).startswith("FILE: not a complete safetensors file (")
    save_file({"q": np.zeros(3)}, path)
    assert refused(path) == "FILE: a trace carries its manifest as metadata 'workbench'; this file has no metadata"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda m: m.update(schema="other/1"),
            "FILE: the manifest must have schema 'workbench.trace/1'; got 'other/1'",
        ),
        (lambda m: m.pop("case"), "FILE: the manifest lacks 'case'"),
        (lambda m: m.update(algorithm="ring"), "FILE: algorithm is one of flash, split_k, fp8; got 'ring'"),
        (lambda m: m["case"].update(colour="red"), "FILE: the case has unknown fields colour"),
        (lambda m: m["case"].update(head_dim=0), "FILE: head_dim must be a whole number of at least 1; got 0"),
        (lambda m: m["contract"].update(colour="red"), "FILE: the contract has unknown fields colour"),
        (
            lambda m: m["contract"].update(empty_lse="none"),
            "FILE: contract field empty_lse must be a number, inf or nan; got 'none'",
        ),
        (lambda m: m["contract"].pop("block_k"), "FILE: the contract lacks block_k"),
        (lambda m: m["stages"].update(qq={"axes": "b"}), "FILE: the manifest names qq, which the file does not hold"),
    ],
)
def test_a_wrong_manifest_is_refused(saved: Path, change, message: str) -> None:  # noqa: ANN001
    rewritten(saved, lambda _, manifest: change(manifest))
    assert refused(saved) == message
