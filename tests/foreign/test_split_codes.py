"""A foreign kernel that quantises q, k and v, splits the keys, and tells every stage of it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.test_main import workbench
from workbench import Case, diff, load, run, save
from workbench.case.formats import FORMATS
from workbench.case.stages import ALGORITHMS, QUANTISED_INPUTS, stages_of
from workbench.cuda.quantize import quantize

F32 = np.float32
#: 3 tiles of 16 keys and a ragged one, in splits of 2 tiles
CASE = Case(batch=2, heads=4, kv_heads=2, seqlen_q=21, seqlen_k=57, head_dim=16, causal=True, codes="e4m3")
TILE, SPLITS = 16, 2
DECLARED = {
    "block_k": TILE, "splits": SPLITS, "probs_dtype": "float32", "partials_dtype": "float32",
    "scores_dtype": "float32", "accumulation": "nearest", "operands_dtype": "float16",
}  # fmt: skip
PARTIALS = ("partial_max", "partial_sum", "partial_O")
ENDS = ("out", "lse")


def kernel(fault: str = "", *, only: tuple[str, ...] = (), declared: Any = None) -> Callable[..., Any]:
    """float32 in NumPy, in tiles and splits; `only`: the stages that it tells."""

    def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> dict[str, Any]:
        x: dict[str, Any] = {}
        for name, array in zip("qkv", (q, k, v), strict=True):
            x[f"codes_{name}"], x[f"scale_{name}"] = quantize(array, "e4m3")
            lut = FORMATS["e4m3"].values.astype(F32) * x[f"scale_{name}"][:, None]
            if name != "q":
                x[f"lut_{name}"] = lut
            heads = np.arange(array.shape[1])[:, None, None]
            rows = lut[heads, x[f"codes_{name}"]]
            if name == "v" and fault == "zero point":
                rows = rows + x["scale_v"][:, None, None]
            x[f"dequant_{name}"] = rows.astype(np.float16)
        group = q.shape[1] // k.shape[1]
        wide = {n: x[f"dequant_{n}"].astype(F32) for n in "qkv"}
        keys, values = (np.repeat(wide[n], group, axis=1) for n in "kv")
        x["qk"] = wide["q"] @ keys.swapaxes(-1, -2)
        rows_, cols = np.arange(q.shape[2])[:, None], np.arange(k.shape[2])
        seen = (cols <= rows_ + k.shape[2] - q.shape[2]) if causal else np.ones((q.shape[2], k.shape[2]), bool)
        x["scores"] = np.where(seen, x["qk"] * F32(scale), F32(-np.inf))
        tiles = [slice(a, min(a + TILE, k.shape[2])) for a in range(0, k.shape[2], TILE)]
        per_split = -(-len(tiles) // SPLITS)
        state = (*q.shape[:3], len(tiles))
        for name, shape in (
            ("row_max", state),
            ("correction", state),
            ("row_sum", state),
            ("acc", (*state, q.shape[3])),
        ):
            x[name] = np.zeros(shape, F32)
        x["probs"] = np.zeros_like(x["scores"])
        for t, tile in enumerate(tiles):
            first = t % per_split == 0
            before = np.full(state[:-1], -np.inf, F32) if first else x["row_max"][..., t - 1]
            x["row_max"][..., t] = highest = np.maximum(before, x["scores"][..., tile].max(axis=-1))
            top = np.where(highest == -np.inf, F32(0), highest)
            x["correction"][..., t] = c = np.exp(before - top)
            x["probs"][..., tile] = p = np.exp(x["scores"][..., tile] - top[..., None])
            x["row_sum"][..., t] = (0 if first else c * x["row_sum"][..., t - 1]) + p.sum(axis=-1)
            x["acc"][..., t, :] = (0 if first else c[..., None] * x["acc"][..., t - 1, :]) + p @ values[:, :, tile]
        x["probs_cast"] = x["probs"]
        last = [min((s + 1) * per_split, len(tiles)) - 1 for s in range(SPLITS)]
        for own, of in zip(PARTIALS, ("row_max", "row_sum", "acc"), strict=True):
            x[own] = np.moveaxis(x[of][:, :, :, last], 3, 2)
        x["merge_max"] = x["partial_max"].max(axis=2)
        weight = np.exp(x["partial_max"] - x["merge_max"][:, :, None])
        x["merge_weight"] = weight * x["partial_sum"] if fault == "weight has the sum" else weight
        twice = x["partial_sum"] if fault == "sum counted twice" else 1
        x["merge_sum"] = (weight * twice * x["partial_sum"]).sum(axis=2)
        merged = (x["merge_weight"][..., None] * x["partial_O"]).sum(axis=2)
        x["out"] = merged / x["merge_sum"][..., None]
        x["lse"] = x["merge_max"] + np.log(x["merge_sum"])
        told = {name: x[name] for name in (only or x)}
        return told | {"contract": DECLARED if declared is None else declared}

    return attention


STAGES = list(stages_of("fp8_split_k"))


@pytest.mark.parametrize("causal", [True, False])
def test_every_stage_of_a_right_kernel_is_judged_right(causal: bool) -> None:
    judged = diff(run(kernel(), CASE.but(causal=causal)))
    assert judged.trace.algorithm == "fp8_split_k"
    assert [stage.name for stage in judged] == STAGES and judged.not_judged == ()
    assert {stage.verdict for stage in judged} == {"exact", "rounding"} and judged.verdict == "rounding"
    assert all(stage.isolated is not None and stage.propagated is not None for stage in judged)


@pytest.mark.parametrize(
    "only", [PARTIALS, ENDS, (*PARTIALS, *ENDS), ("dequant_v", "out"), ("codes_k", "scale_k", *ENDS)]
)
def test_some_stages_of_a_right_kernel(only: tuple[str, ...]) -> None:
    judged = diff(run(kernel(only=only), CASE))
    assert judged.trace.algorithm == "fp8_split_k"
    assert {stage.name for stage in judged} == set(only) and judged.verdict in ("exact", "rounding")


@pytest.mark.parametrize(
    ("fault", "origin"),
    [("zero point", "dequant_v"), ("weight has the sum", "merge_weight"), ("sum counted twice", "merge_sum")],
)
def test_a_fault_is_named_at_its_stage(fault: str, origin: str) -> None:
    judged = diff(run(kernel(fault), CASE))
    assert (judged.verdict, judged.origins) == ("bug", (origin,))
    assert judged.victims and set(judged.victims) <= set(STAGES[STAGES.index(origin) + 1 :])


@pytest.mark.parametrize(
    ("fault", "only", "origins"),
    [
        ("zero point", (*PARTIALS, *ENDS), ("partial_O",)),
        ("zero point", ENDS, ("out",)),
        ("weight has the sum", (*PARTIALS, *ENDS), ("out",)),
        ("sum counted twice", (*PARTIALS, *ENDS), ("out", "lse")),
        ("sum counted twice", ENDS, ("out", "lse")),
    ],
)
def test_of_what_was_not_told_a_fault_shows_at_the_next_stage(
    fault: str, only: tuple[str, ...], origins: tuple[str, ...]
) -> None:
    judged = diff(run(kernel(fault, only=(*QUANTISED_INPUTS, *only)), CASE))
    assert judged.origins == origins


def test_a_contract_that_tells_no_splits() -> None:
    """Stages that merge tell the algorithm; their keys are unknown."""
    said = {name: value for name, value in DECLARED.items() if name not in ("block_k", "splits")}
    judged = diff(run(kernel(declared=said), CASE))
    assert judged.trace.algorithm == "fp8_split_k" and judged.verdict in ("exact", "rounding")
    assert {stage.name for stage in judged.not_judged} == {
        *PARTIALS,
        *(name for name, stage in ALGORITHMS["fp8_split_k"].items() if stage.by_tile),
    }
    wrong = diff(run(kernel("sum counted twice", declared=said), CASE))
    assert "merge_sum" in wrong.origins


def test_a_trace_of_it_survives_a_file_and_its_algorithm_is_told(tmp_path: Path) -> None:
    trace = run(kernel(), CASE)
    save(trace, tmp_path / "a.safetensors")
    loaded = load(tmp_path / "a.safetensors")
    assert loaded.algorithm == "fp8_split_k" and list(loaded.stages) == list(trace.stages) == STAGES
    assert diff(loaded).verdict == "rounding"


SOURCE = """
from tests.foreign.test_split_codes import kernel

right = kernel()
wrong = kernel("sum counted twice")
"""


def test_from_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "split_codes.py"
    path.write_text(SOURCE)
    options = "--batch 2 --heads 4,kv=2 --seqlen-q 21 --seqlen-k 57 --head-dim 16 --causal --codes e4m3 --json"
    for name, code, origins in (("right", 0, []), ("wrong", 1, ["merge_sum"])):
        ran = workbench("diff", f"{path}:{name}", *options.split())
        assert ran.exit_code == code, ran.stderr
        found = json.loads(ran.stdout)
        assert [stage["name"] for stage in found["stages"]] == STAGES
        assert found["origins"] == origins
