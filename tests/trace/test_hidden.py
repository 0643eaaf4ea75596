"""Numbers that hide keys, as a mask that is judged: the function still gets numbers, and a file still holds them."""

from pathlib import Path
from typing import Any

import numpy as np

from workbench import Case, diff, load, run, save
from workbench.case.box import Box
from workbench.case.inputs import anew
from workbench.trace.hidden import told_apart, with_mask
from workbench.trace.narrow import narrowed

CASE = Case(batch=2, heads=2, seqlen=12, head_dim=8)
PADDING = np.arange(12) >= np.array([0, 3])[:, None, None, None]
SEEN = np.tril(np.ones((12, 12), bool)) & PADDING
LOW = np.float32(np.finfo(np.float32).min)
INPUTS = {**dict(zip("qkv", CASE.inputs(), strict=True)), "bias": np.where(SEEN, np.float32(0), LOW)}


def eager(q: Any, k: Any, v: Any, *, bias: Any, scale: float, causal: bool) -> Any:
    scores = q @ k.swapaxes(-1, -2) * np.float32(scale) + bias
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def test_a_function_is_run_again_on_numbers() -> None:
    given: list[np.ndarray] = []

    def watched(q: Any, k: Any, v: Any, *, bias: Any, scale: float, causal: bool) -> Any:
        given.append(bias)
        return eager(q, k, v, bias=bias, scale=scale, causal=causal)

    trace = with_mask(run(watched, CASE, inputs=INPUTS))
    assert "bias" not in trace.inputs and np.array_equal(trace.inputs["mask"], SEEN)
    assert trace.rerun is not None
    again = trace.rerun(*anew(trace.case, trace.inputs))
    assert np.array_equal(given[1], INPUTS["bias"])
    assert np.array_equal(again.inputs["mask"], SEEN) and again.as_given is not None
    assert not np.array_equal(again.inputs["q"], trace.inputs["q"])
    assert diff(again).verdict == "rounding"


def test_a_file_holds_what_was_given(tmp_path: Path) -> None:
    trace = with_mask(run(eager, CASE, inputs=INPUTS))
    save(trace, tmp_path / "a.safetensors")
    found = load(tmp_path / "a.safetensors")
    assert "mask" not in found.inputs and np.array_equal(found.inputs["bias"], INPUTS["bias"])
    assert diff(found).verdict == "rounding"


def test_a_part_knows_the_numbers_of_its_rows() -> None:
    part = narrowed(with_mask(run(eager, CASE, inputs=INPUTS)), Box(slice(1, 2), slice(0, 2), slice(0, 12)))
    assert part.as_given is not None and part.as_given.inputs["bias"].shape == (1, 1, 12, 12)
    assert diff(part).verdict == "rounding"  # of its rows without keys the mean is right


def test_a_trace_at_rest_has_its_band_in_its_case(tmp_path: Path) -> None:
    trace = run(eager, CASE, inputs=INPUTS)
    assert told_apart(with_mask(trace)).case == trace.case  # it takes what it was given
    save(trace, tmp_path / "a.safetensors")
    found = told_apart(with_mask(load(tmp_path / "a.safetensors")))
    assert found.case.causal and np.array_equal(found.inputs["mask"], PADDING)
