"""Traces at rest: what is saved comes back, a small one is enough, and what is no trace is refused with its reason."""

import hashlib
import json
import pickle
import re
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from tests.stored import stored
from workbench import Case, Refusal, Trace, diff, load, run, save
from workbench.case.contract import Contract, of_foreign
from workbench.case.fields import FIELDS as CASE_FIELDS
from workbench.case.stages import ALGORITHMS, STAGES
from workbench.trace.trace import blank

CASE = Case(seqlen=20, heads=2, head_dim=8, block_q=16, block_k=16, splits=2, causal=True)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def trace(request: pytest.FixtureRequest) -> Trace:
    return stored("split_k", CASE.but(dtype=request.param), faults=["reduce-double-counts-sum"])


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
    assert {*again.lines} == {*trace.stages} and again.lines == trace.lines


def test_unwritten_slots_survive_the_file(trace: Trace, tmp_path: Path) -> None:
    holes = trace.stages["merge_max"].copy()
    holes[0, 1, 3] = blank((), holes.dtype)
    save(replace(trace, stages={**trace.stages, "merge_max": holes}), tmp_path / "t.safetensors")
    assert diff(load(tmp_path / "t.safetensors"))["merge_max"].verdict == "missing"


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
    manifest.pop("checksum", None)
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


def test_infinite_inputs_are_refused(saved: Path) -> None:
    rewritten(saved, lambda arrays, _: arrays["k"].__setitem__((0, 1, 7, 3), np.inf))
    assert refused(saved) == "FILE: inputs must be finite, or NaN; k holds inf at b=0, h=1, k=7, d=3"


def test_misshaped_inputs_are_refused(saved: Path) -> None:
    rewritten(saved, lambda arrays, _: arrays.update(q=arrays["q"][:, :, :-1].copy()))
    assert refused(saved) == "FILE: q must have shape [1, 2, 20, 8] for this case; got [1, 2, 19, 8]"


def test_a_truncated_file_is_refused(saved: Path) -> None:
    saved.write_bytes(saved.read_bytes()[:-100])
    assert refused(saved).startswith("FILE: not a complete safetensors file (")


def test_a_file_of_which_a_byte_changed_is_refused(saved: Path) -> None:
    """Of every part: the header with the manifest, an input, a stage."""
    whole = saved.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    with safe_open(saved, framework="numpy") as file:
        stated = json.loads(file.metadata()["workbench"])["checksum"]
    for place in (whole.index(rb"\"seed\": 0") + 10, header + 3, len(whole) - 1):
        saved.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        said = refused(saved)
        found = re.search("its checksum is ([0-9a-f]{64}), ", said)
        assert found is not None and said == (
            f"FILE: damaged, or changed since it was written: its checksum is {found[1]}, its manifest states {stated}; if "
            'you changed it on purpose, delete "checksum" from its manifest'
        )
    saved.write_bytes(whole)
    assert load(saved).case.seed == CASE.seed
    unstated = whole.replace(stated.encode(), b"0" * 64)  # as docs/reference/trace-format.md says
    assert hashlib.sha256(unstated).hexdigest() == stated
    rewritten(saved, lambda arrays, _: arrays["out"].__setitem__((0, 0, 0, 0), 7))
    assert b"checksum" not in saved.read_bytes() and diff(load(saved)).verdict == "bug"


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    assert refused(path) == "FILE: no such file"
    path.write_bytes(b"")
    assert refused(path).startswith("FILE: not a complete safetensors file (")
    path.write_bytes(b"\x80\x04\x95pickle")
    assert refused(path).startswith("FILE: not a complete safetensors file (")
    save_file({"q": np.zeros(3)}, path)
    assert refused(path).startswith("FILE: k, v are missing; it holds q.")  # arrays that nobody wrote a manifest of


def test_a_trace_is_not_written_under_the_suffix_of_another_format(trace: Trace, tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=r"a.npz: a trace must be written as .safetensors; got .npz"):
        save(trace, tmp_path / "a.npz")
    assert not (tmp_path / "a.npz").exists()


FIELDS = (
    "target, checksum, stages, algorithm, case, contract, window, requested, put_in, sparse, backend, faults, versions, notes, "
    "gates, provenance, ranks, lines"
)
PROMISES = [field.name for field in fields(Contract) if field.metadata]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda m: m.update(schema="workbench.trace/1"),
            "FILE: the manifest must have schema 'workbench.trace/2'; got 'workbench.trace/1'",
        ),
        (lambda m: m.pop("schema"), "FILE: the manifest must have schema 'workbench.trace/2'; got None"),
        (lambda m: m.pop("target"), "FILE: the manifest lacks 'target', a string: the kernel's name"),
        (
            lambda m: m.pop("stages"),
            "FILE: the manifest lacks 'stages', an object of stage name -> {\"axes\": letters}, with at least one stage",
        ),
        (
            lambda m: m.update(stages={}),
            "FILE: the manifest's 'stages' must be an object of stage name -> {\"axes\": letters}, with at least one "
            "stage; got {}",
        ),
        (
            lambda m: m.update(stages={"out": {"axes": "bhqd", "colour": "red"}}),
            "FILE: the manifest's 'stages' must be an object of stage name -> {\"axes\": letters}, with at least one "
            'stage; got {"out": {"axes": "bhqd", "colour": "red"}}',
        ),
        (
            lambda m: m["stages"]["acc"].update(statistics={"dtype": "float32", "count": 5120, "max": 3.25}),
            "FILE: statistics of acc are no longer judged: write the elements (of a large stage, those in a "
            '"window" of the run), or leave the stage out',
        ),
        (lambda m: m.update(colour="red"), f"FILE: the manifest has unknown fields colour; its fields are {FIELDS}"),
        (
            lambda m: m.update(backend="tpu"),
            "FILE: the manifest's 'backend' must be one of foreign, emulator, cuda; got \"tpu\"",
        ),
        (
            lambda m: m.update(algorithm="ring"),
            f"FILE: algorithm must be one of {', '.join(ALGORITHMS)}; got 'ring'",
        ),
        (
            lambda m: m["case"].update(colour="red"),
            f"FILE: the case has unknown fields colour; its fields are {', '.join(CASE_FIELDS)}",
        ),
        (lambda m: m["case"].update(head_dim=0), "FILE: head_dim must be a whole number of at least 1; got 0"),
        (
            lambda m: m["contract"].update(colour="red"),
            f"FILE: \"contract\" has no field 'colour'; use one of {', '.join(PROMISES)}",
        ),
        (
            lambda m: m["contract"].update(empty_lse="none"),
            "FILE: \"contract\" field empty_lse must be a number, inf, nan or libraries; got 'none'",
        ),
        (
            lambda m: m["contract"].pop("block_k"),
            'FILE: a "contract" with "assumed" must list every field; it lacks block_k',
        ),
        (
            lambda m: m["contract"].update(assumed=["colour"]),
            'FILE: "assumed" of a "contract" must list its fields; got [\'colour\']',
        ),
        (
            lambda m: m["stages"].update(qq={"axes": "b"}),
            "FILE: the manifest names qq, which the file does not hold",
        ),
        (
            lambda m: m["stages"].pop("acc"),
            "FILE: the file holds acc, which the manifest does not name",
        ),
        (
            lambda m: m["stages"]["acc"].update(axes="bhqdt"),
            "FILE: stage acc has axes 'bhqtd', outermost first; got 'bhqdt'",
        ),
        (
            lambda m: m["stages"]["acc"].pop("axes"),
            "FILE: the manifest's 'stages' must be an object of stage name -> {\"axes\": letters}, with at least one "
            "stage; got STAGES",
        ),
        (
            lambda m: m.update(window="h=1"),
            "FILE: q must have shape [1, 1, 20, 8] for this case; got [1, 2, 20, 8]",
        ),
        (lambda m: m.update(window="h=2"), "FILE: head h must be 0 to 1 in this case; got h=2"),
        (
            lambda m: m.update(provenance={"files": []}),
            "FILE: the manifest's 'provenance' must have the fields files, device, driver, versions, runs, identical, "
            "plain_agrees, and each of its files the fields path, sha256, modified, loaded; got {'files': []}",
        ),
        (
            lambda m: m.update(lines={"qk": {"path": "a.cu", "line": "7", "text": ""}}),
            """FILE: the manifest's 'lines' must be an object of stage -> {"path": text, "line": number, "text": text}; """
            "got STAGES",
        ),
    ],
)
def test_a_wrong_manifest_is_refused(saved: Path, change: Callable[[Any], Any], message: str) -> None:
    rewritten(saved, lambda _, manifest: change(manifest))
    said = re.sub(r'got \{"qk".*', "got STAGES", refused(saved))
    assert said == message


@pytest.mark.parametrize("text", ["{", "[1]", "[" * 100_000])
def test_a_manifest_that_is_no_object_is_refused(saved: Path, text: str) -> None:
    save_file(load_file(saved), saved, {"workbench": text})
    found = refused(saved)
    start = "the manifest must have schema" if text == "[1]" else "the manifest is not JSON ("
    assert found.startswith(f"FILE: {start}")


def test_a_pickle_is_refused_and_not_executed(tmp_path: Path) -> None:
    """It would make a file if anybody loaded it."""

    class Maker:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "made",))

    path = tmp_path / "x.safetensors"
    path.write_bytes(pickle.dumps(Maker()))
    assert refused(path).startswith("FILE: not a complete safetensors file (")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda x: x.update(acc=x["acc"].astype(np.int32)),
            "FILE: acc has dtype I32; it must have F16 or BF16 or F32 or F64",
        ),
        (
            lambda x: x.update(colour=np.zeros(3, np.float32)),
            "FILE: the file holds colour, which the manifest does not name",
        ),
        (lambda x: x.pop("k"), "FILE: k is missing, and so are its quantised codes and scales"),
    ],
)
def test_wrong_arrays_are_refused(saved: Path, change: Callable[[Any], Any], message: str) -> None:
    rewritten(saved, lambda arrays, _: change(arrays))
    assert refused(saved) == message


def small(path: Path, trace: Trace, stages: dict[str, np.ndarray], **more: Any) -> Path:
    """A trace as another program would write it: nothing but what is needed."""
    manifest = {"schema": "workbench.trace/2", "target": "mine.cpp"}
    manifest |= {"stages": {name: {"axes": {"out": "bhqd", "lse": "bhq"}.get(name, "bhqk")} for name in stages}, **more}
    save_file({**trace.inputs, **stages}, path, {"workbench": json.dumps(manifest)})
    return path


@pytest.mark.campaign
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_little_is_enough(tmp_path: Path, dtype: str) -> None:
    """Sizes and dtype are told by q, k and v; the contract is the weakest but for what is declared."""
    ours = run("flash", Case(batch=2, heads=4, kv_heads=2, seqlen_q=20, seqlen_k=30, head_dim=8, dtype=dtype))
    stages = {name: ours.stages[name] for name in ("scores", "out", "lse")}
    found = load(small(tmp_path / "x.safetensors", ours, stages, contract={"exp_ulps": 2, "empty_lse": "nan"}))
    sizes = [getattr(found.case, name) for name in ("batch", "heads", "kv_heads", "seqlen_q", "seqlen_k", "head_dim")]
    assert sizes == [2, 4, 2, 20, 30, 8]
    assert (found.algorithm, found.case.dtype, found.case.distribution, found.backend) == (
        "flash",
        dtype,
        "given",
        "foreign",
    )
    assert np.isnan(found.contract.empty_lse) and found.contract.exp_ulps == 2
    # scores that float16 does not have tell that they were not rounded to it
    told = {"out_dtype": dtype} | ({} if dtype == "float32" else {"scores_dtype": "float32"})
    weakest = of_foreign({"exp_ulps": 2, "empty_lse": 0} | told, found.case)
    assert found.contract.assumed == weakest.assumed and "exp_ulps_per_x" in weakest.assumed
    assert diff(found).verdict == "rounding"
    save(found, tmp_path / "again.safetensors")
    assert load(tmp_path / "again.safetensors").contract.assumed == weakest.assumed
    wrong = stages | {"lse": stages["lse"] + np.float32(1)}
    assert diff(load(small(tmp_path / "y.safetensors", ours, wrong))).origins == ("lse",)


@pytest.mark.parametrize("where", ["case", "contract"])
def test_splits_tell_the_algorithm_where_the_stages_do_not(tmp_path: Path, where: str) -> None:
    """out and lse are of every algorithm, and one without partial results cannot merge splits."""
    ours = run("split_k", CASE.but(causal=False))
    stages = {name: ours.stages[name] for name in ("out", "lse")}
    path = small(tmp_path / "x.safetensors", ours, stages, **{where: {"splits": 2, "block_k": 16}})
    assert load(path).algorithm == "split_k" and diff(load(path)).verdict == "rounding"
    rewritten(path, lambda _, m: m.update(algorithm="flash"))
    assert refused(path) == (
        "FILE: flash does not split keys, but its contract has splits=2; kernels that split keys have the algorithm split_k"
    )
    rewritten(path, lambda _, m: m[where].update(splits=1))
    assert load(path).algorithm == "flash" and diff(load(path)).verdict == "rounding"


def test_a_mask_with_too_many_axes_is_refused(tmp_path: Path) -> None:
    ours = run("flash", Case(seqlen=4, head_dim=8, block_q=16, block_k=16))
    path = small(tmp_path / "x.safetensors", ours, {"out": ours.stages["out"]})
    rewritten(path, lambda arrays, _: arrays.update(mask=np.ones((1, 1, 1, 4, 4), bool)))
    assert refused(path) == (
        "FILE: mask must have shape [1, 1, 4, 4] or [4, 4] for this case, or 1 in places; got [1, 1, 1, 4, 4]"
    )


@pytest.mark.parametrize("error", [np.nan, -1.0])
def test_elements_given_in_part_are_some_and_off_by_at_least_0(tmp_path: Path, error: float) -> None:
    ours = run("flash", Case(seqlen=4, head_dim=8, block_q=16, block_k=16))
    out = ours.stages["out"]
    path = small(tmp_path / "x.safetensors", ours, {"out": out}, sparse=["out"])
    rewritten(path, lambda arrays, _: arrays.update({"sparse.out": np.full(out.shape, error)}))
    assert refused(path) == (
        "FILE: the tolerances of out must be at least 0, or NaN where no element was given; at least one must not be "
        "NaN"
    )


def test_a_kernel_on_codes_that_tells_no_scaling_has_the_usual_one(tmp_path: Path) -> None:
    ours = stored("fp8", Case(seqlen=16, head_dim=16, codes="e4m3"))
    path = small(tmp_path / "x.safetensors", ours, {"out": ours.stages["out"]}, case={"codes": "e4m3"})
    found = load(path)
    assert found.case.quantiser_scale == "dynamic" and diff(found).verdict == "rounding"


def test_the_algorithm_is_told_by_the_stages(tmp_path: Path) -> None:
    ours = run("split_k", CASE)
    stages = {name: ours.stages[name] for name in ("out", "merge_max")}
    path = small(tmp_path / "x.safetensors", ours, stages)
    rewritten(path, lambda _, m: m["stages"]["merge_max"].update(axes="bhq") or m.update(case={"causal": True}))
    assert load(path).algorithm == "split_k" and diff(load(path)).verdict == "rounding"
    lut_k = np.zeros((CASE.heads, 256), np.float32)
    rewritten(path, lambda arrays, m: m["stages"].update(lut_k={"axes": "hc"}) or arrays.update(lut_k=lut_k))
    assert load(path).algorithm == "fp8_split_k"
    rewritten(path, lambda arrays, m: m["stages"].update(lut={"axes": "hc"}) or arrays.update(lut=lut_k))
    assert refused(path) == f"FILE: unknown stage 'lut'; stages are: {', '.join(STAGES)}"


def test_a_contract_outside_its_rules_is_refused(tmp_path: Path) -> None:
    ours = run("flash", CASE.but(splits=None))
    path = small(tmp_path / "x.safetensors", ours, {"out": ours.stages["out"]}, contract={"exp_ulps": -1})
    assert refused(path) == 'FILE: "contract" field exp_ulps must be a number of at least 0; got -1'
