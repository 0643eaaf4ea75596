"""A part of a run: it holds what the whole run holds there, is judged as it is, and needs no more memory."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.refusals import invoked as workbench
from workbench import Case, Diff, Refusal, Trace, diff, load, run, save
from workbench.case.box import Box, parse
from workbench.case.options import Options
from workbench.case.stages import ALGORITHMS
from workbench.cuda.plan import plan
from workbench.trace.headline import headline
from workbench.trace.trace import unwritten

CASE = Case(batch=2, heads=4, kv_heads=2, seqlen=50, head_dim=32, block_q=16, block_k=16, causal=True)
WHERE = "b=1,h=3,q=15:35"
KERNELS: dict[str, Case] = {"flash": CASE, "split_k": CASE.but(splits=2), "fp8": CASE}


@pytest.fixture(
    scope="module",
    # two builds of 5 seconds
    params=[pytest.param(name, marks=pytest.mark.campaign if name == "fp8" else ()) for name in KERNELS],
)
def runs(request: pytest.FixtureRequest) -> tuple[Trace, Trace]:
    """A whole run, and a part of it."""
    case = KERNELS[request.param]
    return tuple(run(request.param, case, where=where, backend="emulator") for where in (None, WHERE))  # type: ignore[return-value]


def part(stage: np.ndarray, axes: str, bounds: dict[str, tuple[int, int]]) -> np.ndarray:
    return stage[tuple(slice(*bounds[axis]) if axis in bounds else slice(None) for axis in axes)]


def test_a_window_holds_what_the_whole_run_holds_there(runs: tuple[Trace, Trace]) -> None:
    whole, window = runs
    known = ALGORITHMS[whole.algorithm]
    assert tuple(window.stages) == tuple(whole.stages) == window.requested
    for name, stage in whole.stages.items():
        box = Box(slice(1, 2), slice(3, 4), slice(15, 35))
        bounds = {"b": (1, 2), "h": box.of_kv(CASE).edges()["h"] if known[name].of_kv else (3, 4)}
        wanted = part(stage, known[name].axes, bounds | {"q": (15, 35)})
        assert window.stages[name].size and not unwritten(window.stages[name]).any()
        assert window.stages[name].tobytes() == wanted.tobytes(), name
    assert window.case_run == whole.case and window.case.seqlen_q == 20


def test_a_window_is_judged_as_the_whole_run_is(runs: tuple[Trace, Trace]) -> None:
    whole, window = (diff(trace) for trace in runs)
    assert (window.verdict, window.origins, window.victims) == ("rounding", (), ())
    of_window = {stage.name for stage in whole if not stage.name.startswith("scale_")}
    assert {stage.name for stage in window} == of_window
    for name in ("acc", "out", "lse"):
        mine, theirs = window[name].judged, whole[name].judged
        bounds = {"b": (1, 2), "h": (3, 4), "q": (15, 35)}
        axes = window[name].axes
        assert np.array_equal(mine.state, part(theirs.state, axes, bounds))
        np.testing.assert_allclose(mine.budget, part(theirs.budget, axes, bounds), rtol=1e-12)


@pytest.mark.campaign
@pytest.mark.parametrize(
    "where",
    [
        "b=0:2,h=0:4,q=0:50",
        *(pytest.param(x, marks=pytest.mark.campaign) for x in ("q=0:32", "b=0", "h=2:4", "h=1", "q=49")),
    ],
)
def test_any_window_is_right(where: str) -> None:
    for name, case in KERNELS.items():
        judged = diff(run(name, case, where=where, backend="emulator"))
        assert (judged.verdict, judged.origins, judged.victims) == ("rounding", (), ())


@pytest.mark.campaign
def test_places_are_those_of_the_whole_run() -> None:
    """The kernel runs whole: a fault of one head is seen in its own window, and in no other."""
    case = Case(heads=4, seqlen=64, head_dim=32, block_q=16, block_k=16)
    faulty = {
        h: diff(run("fp8", case, faults=["scale-of-head-0"], where=f"h={h},q=32:64", backend="emulator"))
        for h in (0, 3)
    }
    assert faulty[0].origins == () and faulty[3].origin == "lut_k"
    place = faulty[3]["lut_k"].worst(1)[0].index
    assert place["h"] == 3
    grouped = run("fp8", case.but(kv_heads=2), faults=["scale-of-head-0"], where="h=3,q=32:64", backend="emulator")
    assert diff(grouped)["lut_k"].worst(1)[0].index["h"] == 1  # the kv head
    wrong = diff(run("flash", CASE, faults=["flash-causal-off-by-one"], where=WHERE, backend="emulator"))
    (worst,) = wrong["scores"].worst(1)
    assert worst.index["b"] == 1 and worst.index["h"] == 3 and 15 <= worst.index["q"] < 35
    at = wrong["scores"].at(**{axis: worst.index[axis] for axis in "bhq"})
    assert np.asarray(at.judged.actual)[worst.index["k"]] == worst.actual
    assert wrong["scores"].select(b=1, h=3, q=slice(30, 200)).indices["q"] == range(30, 35)
    for index, message in [
        ({"q": 5}, "stage scores: query q must be 15 to 34; got 5"),
        ({"h": slice(0, 2)}, "stage scores: head h runs from 3 to 3; 0:2 selects none of them"),
    ]:
        with pytest.raises(Refusal) as refused:
            wrong["scores"].select(**index)
        assert str(refused.value) == message


def test_a_window_at_rest_is_a_window(tmp_path: Path, runs: tuple[Trace, Trace]) -> None:
    whole, window = runs
    save(window, tmp_path / "window.safetensors")
    again = load(tmp_path / "window.safetensors")
    assert (again.box, again.case_run) == (window.box, whole.case) and diff(again).verdict == "rounding"
    assert headline(again) == headline(window).replace(" with", " with")
    save(whole, tmp_path / "whole.safetensors")
    done = workbench("diff", tmp_path / "whole.safetensors", "--where", WHERE)
    assert done.exit_code == 0 and "only b=1:2,h=3:4,q=15:35" in done.output
    twice = workbench("diff", tmp_path / "window.safetensors", "--where", "q=0")
    assert str(twice.exception) == f"{window.target} is already limited to b=1:2,h=3:4,q=15:35"


def test_foreign_kernels_and_masks_are_narrowed_too() -> None:
    def kernel(q: Any, k: Any, v: Any, *, scale: float, causal: bool, mask: Any, bias: Any) -> Any:
        k, v = np.repeat(k, 2, 1), np.repeat(v, 2, 1)
        scores = np.where(mask & np.tri(50, dtype=bool), q @ k.swapaxes(-1, -2) * np.float32(scale) + bias, -np.inf)
        shifted = np.exp(scores - np.maximum(scores.max(-1, keepdims=True), -1e30))
        total = shifted.sum(-1, keepdims=True)
        scores[1, 2, 40, 3] += 1 if mask[0, 0, 40, 3] else 0
        return {"scores": scores.astype(np.float32), "out": (shifted / np.maximum(total, 1e-30) @ v).astype(np.float32)}

    rng = np.random.default_rng(0)
    inputs = dict(zip("qkv", CASE.inputs(), strict=True))
    inputs |= {
        "mask": rng.random((1, 1, 50, 50)) < 0.7,
        "bias": rng.standard_normal((2, 4, 1, 50)).astype(np.float32),
    }
    inputs["mask"][..., 40, 3] = True
    case = CASE.but(block_q=None, block_k=None)
    verdicts: dict[str, Diff] = {
        where: diff(run(kernel, case, inputs=inputs, where=where))
        for where in ("b=1,h=2", "b=1,h=3", "b=1,h=2,q=41:50")
    }
    assert [judged.origin for judged in verdicts.values()] == ["scores", None, None]
    assert verdicts["b=1,h=2"]["scores"].worst(1)[0].index == {"b": 1, "h": 2, "q": 40, "k": 3}


@pytest.mark.parametrize("stage", ["out", "codes_k", "dequant_v", "scores"])
def test_a_window_does_not_cut_through_a_scale_that_nobody_saw(stage: str) -> None:
    """What is in the window has another max|x|, by which a right kernel would be called wrong."""
    case = Case(batch=2, heads=2, seqlen=40, codes="simulated")
    told = run("fp8", case, backend="emulator").stages

    def judged(where: str, *names: str) -> Diff:
        stages = {name: told[name] for name in (stage, *names)}
        return diff(run(lambda q, k, v, *, scale, causal: stages, case, where=where))

    for where in ("b=1", "q=3:9"):
        with pytest.raises(Refusal) as refused:
            judged(where)
        missing, window = (
            ("scale_q, scale_k, scale_v", "b=1:2,h=0:2,q=0:40") if where == "b=1" else ("scale_q", "b=0:2,h=0:2,q=3:9")
        )
        assert str(refused.value) == (
            f"<lambda> did not return {missing}, which depend on all batches and rows: choose whole heads; got {window}"
        )
        assert judged(where, "scale_q", "scale_k", "scale_v").verdict in ("exact", "rounding")
    assert judged("h=1").verdict in ("exact", "rounding")


@pytest.mark.campaign
def test_codes_of_a_window_are_those_of_the_whole_run() -> None:
    case = CASE.but(seqlen=40)
    whole, window = (diff(run("fp8", case, where=where, backend="emulator")) for where in (None, "b=1,q=3:9"))
    one, other = (judged.truth("codes_q", b=1, q=slice(3, 9)).expected for judged in (whole, window))
    assert one is not None and other is not None and one.size and np.array_equal(one, other)


def test_dumps_beyond_the_limit_are_refused_with_a_window_that_fits() -> None:
    case = Case(heads=8, seqlen=4096, head_dim=128)
    with pytest.raises(Refusal) as refused:
        run("flash", case, probes="acc", limit_gb=0.3)
    assert str(refused.value) == (
        "the dumps of this run take 2.16 GB; the limit is 0.3 GB (--probes limit_gb). --where b=0:1,h=0:1,q=0:4096 (0.29 GB) "
        "fits; --by-head dumps one head at a time; fewer --probes take less"
    )
    made = plan("flash", case, Options(probes="acc", where="b=0,h=0,q=0:64", limit_gb=0.3))
    assert made.arrays["acc"].shape == (1, 1, 64, 128, 128)
    with pytest.raises(Refusal, match="17.2 GB; the limit is 4 GB"):
        run("flash", case.but(seqlen=8192, heads=16), probes="acc")


@pytest.mark.campaign
def test_head_by_head_is_one_row_each() -> None:
    tiles = ("--head-dim", "32", "--block-q", "16", "--block-k", "16")  # a build of tests above
    words = ["diff", "flash", "--batch", "2", "--heads", "2", "--seqlen", "64", "--by-head", "--probes", "acc,out"]
    done = workbench(*words)
    assert done.exit_code == 0 and "4 runs: 4 without a bug" in done.output
    assert "--where b=1:2,h=0:1,q=0:64" in done.output
    faulty = workbench("diff", "fp8", "--heads", "3", *tiles, "--fault", "scale-of-head-0", "--by-head", "--json")
    assert faulty.exit_code == 1
    import json

    found = json.loads(faulty.stdout)["runs"]
    assert [one["origin"] for one in found] == [None, "lut_k", "lut_k"]
    assert [one["where"]["h"] for one in found] == [[0, 1], [1, 2], [2, 3]] and found[0]["case"]["heads"] == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("k=3", "a part of a run gives b, h and q, each once, as I or FIRST:END, such as b=0,q=64:128; got 'k=3'"),
        ("b=0,b=1", "a part of a run gives b, h and q, each once, as I or FIRST:END, such as b=0,q=64:128; got 'b=1'"),
        ("q=5:", "a part of a run gives b, h and q, each once, as I or FIRST:END, such as b=0,q=64:128; got 'q=5:'"),
        ("q=40:30", "query q must be 0 to 49 in this case; got q=40:30"),
        ("h=4", "head h must be 0 to 3 in this case; got h=4"),
        ("b=0,h=1:3", "h of a part must be whole groups of 2 heads, or lie within one group; got h=1:3"),
    ],
)
def test_windows_that_are_none_are_refused(text: str, message: str) -> None:
    with pytest.raises(Refusal) as refused:
        parse(text, CASE)
    assert str(refused.value) == message


def test_options_that_exclude_each_other_are_refused() -> None:
    both = workbench("diff", "flash", "--by-head", "--where", "b=0")
    assert str(both.exception) == "--by-head takes every head, but --where only some; got both"
