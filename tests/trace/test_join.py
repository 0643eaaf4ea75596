"""One run in several files: it comes back whole, and windows that do not fit together are refused by name."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

from tests.stored import stored
from workbench import Case, Refusal, Trace, diff, run, save
from workbench.case.box import parse
from workbench.cli.main import commands
from workbench.trace.join import concatenated, load_all
from workbench.trace.narrow import narrowed

CASE = Case(batch=2, heads=4, kv_heads=2, seqlen=50, head_dim=16, causal=True, block_k=16, block_q=16)


@pytest.fixture(scope="module", params=["flash", "split_k", "fp8"])
def whole(request: pytest.FixtureRequest) -> Trace:
    return stored(request.param, CASE)


def parts(trace: Trace, *windows: str) -> dict[str, Trace]:
    return {window: narrowed(trace, parse(window, trace.case)) for window in windows}


@pytest.mark.campaign(but=4)
@pytest.mark.parametrize(
    "windows",
    [
        ["b=0", "b=1"],
        ["h=0", "h=1", "h=2:4"],
        ["q=20:50", "q=0:20"],
        ["b=0", "b=1,h=0:2", "b=1,h=2:4,q=0:33", "b=1,h=2:4,q=33:50"],
    ],
    ids=["batches", "heads", "queries", "mixed"],
)
def test_what_was_taken_apart_comes_back(whole: Trace, tmp_path: Path, windows: list[str]) -> None:
    for i, part in enumerate(parts(whole, *windows).values()):
        save(part, tmp_path / f"run.{i}.safetensors")
    again = load_all(str(tmp_path))
    assert (again.case, again.box, again.whole) == (whole.case, None, None)
    for before, after in ((whole.inputs, again.inputs), (whole.stages, again.stages)):
        assert list(before) == list(after)
        for name, array in before.items():
            assert array.dtype == after[name].dtype and array.tobytes() == after[name].tobytes(), name
    assert diff(again).verdict == "rounding"


def test_masks_and_biases_come_back() -> None:
    def kernel(q, k, v, *, scale, causal, mask, bias):
        return q

    rng = np.random.default_rng(0)
    inputs = dict(zip("qkv", CASE.inputs(), strict=True))
    inputs |= {"mask": rng.random((1, 1, 50, 50)) < 0.7, "bias": rng.random((2, 4, 1, 50), np.float32)}
    trace = run(kernel, CASE, inputs=inputs)
    again = concatenated(parts(trace, "q=0:9,b=0", "q=9:50,b=0", "b=1"))
    visible = inputs["mask"] & CASE.mask()
    assert np.array_equal(again.inputs["mask"], np.broadcast_to(visible, (2, 4, 50, 50)))
    assert np.array_equal(again.inputs["bias"], np.broadcast_to(inputs["bias"], (2, 4, 50, 50)))


def refused(traces: dict[str, Trace]) -> str:
    with pytest.raises(Refusal) as refusal:
        concatenated(traces)
    return str(refusal.value)


@pytest.fixture(scope="module")
def flash() -> Trace:
    return stored("flash", CASE)


def test_overlaps_and_gaps_are_refused_by_name(flash: Trace) -> None:
    assert refused(parts(flash, "q=0:30", "q=20:50")) == ("q=0:30 and q=20:50 overlap: both hold b=0:2,h=0:4,q=20:30")
    assert refused(parts(flash, "b=0", "b=1,h=0:2", "b=1,h=3")) == (
        "no file covers b=1:2,h=2:3,q=0:50; the files cover b=0:1,h=0:4,q=0:50; b=1:2,h=0:2,q=0:50; b=1:2,h=3:4,q=0:50"
    )
    assert refused(parts(flash, "b=0", "b=1,h=0:2,q=0:9", "b=1,h=2:4")).startswith("no file covers b=1:2,h=0:2,q=9:50;")


def test_what_is_not_one_run_is_refused(flash: Trace) -> None:
    one, two = parts(flash, "b=0", "b=1").items()

    def of(**changes) -> str:
        return refused(dict([one, (two[0], replace(two[1], **changes))]))

    assert of(box=None) == 'b=1: each of 2 files must state its "window" of the run; this one states none'
    assert of(target="other") == "b=0 and b=1 are not of one run: target differs"
    assert of(whole=CASE.but(seed=1)) == "b=0 and b=1 are not of one run: case differs"
    fewer = {name: stage for name, stage in two[1].stages.items() if name != "qk"}
    assert of(stages=fewer) == "b=0 and b=1 are not of one run: qk is in only one of them"
    wide = two[1].stages | {"out": two[1].stages["out"].astype(np.float64)}
    assert of(stages=wide) == "b=0 and b=1 are not of one run: out differs in shape or dtype"
    a, b = parts(flash, "h=0", "h=1").items()
    other = replace(b[1], inputs=b[1].inputs | {"k": b[1].inputs["k"] * np.float32(2)})
    rest = parts(flash, "h=2:4")
    assert refused(dict([a, (b[0], other)]) | rest) == (
        "h=0 and h=1 are not of one run: both hold a part of k, which differs"
    )


@pytest.mark.campaign
def test_the_command_takes_files_a_pattern_and_a_folder(flash: Trace, tmp_path: Path) -> None:
    broken = stored("flash", CASE, faults=["flash-causal-off-by-one"])
    files = []
    for window, part in parts(broken, "b=0", "b=1").items():
        files.append(str(tmp_path / f"run.{window}.safetensors"))
        save(part, Path(files[-1]))
    for words in (files, [",".join(files)], [str(tmp_path)], [str(tmp_path / "run.*.safetensors")]):
        said = CliRunner().invoke(commands, ["diff", *words])
        assert said.exit_code == 1 and "first wrong stage: scores" in said.stdout
        assert said.stdout.splitlines()[0].endswith(
            "flash with flash-causal-off-by-one on emulator: float32 b=2 h=4 (kv 2) q=50 k=50 d=16, causal bottom-right, tiles 16x16, normal inputs, seed 0"
        )
    several = CliRunner().invoke(commands, ["diff", files[0], "flash"])
    assert (
        several.exit_code == 2
        and f"give one TARGET, or several .safetensors files of one run; got {files[0]} flash" in several.output
    )
    (tmp_path / "empty").mkdir()
    for target in (str(tmp_path / "empty"), str(tmp_path / "no*.safetensors")):
        assert str(CliRunner().invoke(commands, ["diff", target]).exception) == f"{target}: no .safetensors file there"


def test_another_program_appends_tile_by_tile(tmp_path: Path) -> None:
    """Each file says no more than the whole case and its window; causal needs no mask."""
    whole = stored("flash", CASE)
    stated = {name: getattr(CASE, name) for name in ("batch", "heads", "kv_heads", "seqlen_q", "causal")}
    for name, part in parts(whole, "b=0,h=0:2", "b=0,h=2:4", "b=1,q=0:16", "b=1,q=16:50").items():
        manifest = {"schema": "workbench.trace/2", "target": "mine.cu", "case": stated, "window": name}
        manifest |= {"stages": {"out": {"axes": "bhqd"}, "lse": {"axes": "bhq"}}}
        arrays = {x: part.inputs[x] for x in "qkv"} | {x: part.stages[x] for x in ("out", "lse")}
        arrays = {x: np.ascontiguousarray(array) for x, array in arrays.items()}
        save_file(arrays, tmp_path / f"{name}.safetensors", {"workbench": json.dumps(manifest)})
        assert diff(load_all(str(tmp_path / f"{name}.safetensors"))).verdict == "rounding"
    judged = diff(load_all(str(tmp_path)))
    assert judged.verdict == "rounding" and judged["out"].judged.summary.size == 2 * 4 * 50 * 16
    assert list(judged.trace.inputs) == ["q", "k", "v"] and judged.trace.case.causal
