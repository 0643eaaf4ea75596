"""Dumps in a convention of their own are set apart where they are right in it, and judged where they are not."""

from typing import Any

import numpy as np
import pytest

from tests.numpy_kernels import LOG2E, Style, kernel
from workbench import Case, Diff, diff, run
from workbench.judge.stage import RIGHT_VERDICTS

CASE = Case(seqlen=96, head_dim=32, dtype="float16", causal=True, heads=2)
NAMES = ("scores", "row_max", "probs", "out", "lse")
TILES = "block_k=32"

Change = Any


def final(x: dict[str, Any]) -> np.ndarray:
    """Probs below the maximum of the row."""
    return np.exp(x["scores"] - x["scores"].max(-1, keepdims=True))


def shares(x: dict[str, Any]) -> np.ndarray:
    """Probs that add up to 1."""
    return np.exp(x["scores"] - x["lse"][..., None])


def judged(contract: str | None, names: tuple[str, ...] = NAMES, **changes: Change) -> Diff:
    made = kernel(Style(block_k=32), {})

    def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> dict[str, Any]:
        found = made(q, k, v, scale=scale, causal=causal)
        found["raw scale"] = np.float32(1 / scale)
        changed = {name: change(found) for name, change in changes.items()}
        return {name: x for name, x in (found | changed).items() if name in names}

    return diff(run(attention, CASE, contract=contract))


#: convention -> the stage that has it, and what it is then
OWN: dict[str, tuple[str, Change]] = {
    "below the last maximum": ("probs", final),
    "shares": ("probs", shares),
    "shares in float16": ("probs", lambda x: shares(x).astype(np.float16)),
    "maxima in base 2": ("row_max", lambda x: x["row_max"] * LOG2E),
    "raw maxima": ("row_max", lambda x: x["row_max"] * x["raw scale"]),
    "scores in base 2": ("scores", lambda x: x["scores"] * LOG2E),
}


@pytest.mark.campaign(but=8)
@pytest.mark.parametrize("own", [*OWN])
@pytest.mark.parametrize("contract", [f"triton,{TILES}", TILES, f"torch-eager,{TILES}", f"flash-attention-2,{TILES}"])
def test_a_true_block_k_makes_no_dump_red_that_is_right_otherwise(contract: str, own: str) -> None:
    stage, change = OWN[own]
    found = judged(contract, **{stage: change})
    (apart,) = {*NAMES} - {x.name for x in found}
    assert found.verdict in RIGHT_VERDICTS and apart in (["probs"] if stage == "probs" else ["row_max", "scores"])
    assert any(note.startswith(f"{apart}: not judged: ") for note in found.trace.notes)


def one_off(x: np.ndarray) -> np.ndarray:
    """One element is larger by a fiftieth."""
    x = x.copy()
    x[0, 1, 70, 2] *= np.asarray(1.02, x.dtype)
    return x


def test_what_is_wrong_in_its_own_convention_stays_wrong() -> None:
    for change in (lambda x: one_off(final(x)), lambda x: one_off(shares(x)), lambda x: 2 * shares(x)):
        assert "probs" in judged(TILES, probs=change).origins


@pytest.mark.parametrize("change", [final, shares])
def test_another_wrong_stage_beside_it_stays_wrong(change: Change) -> None:
    wrong: dict[str, Change] = {
        "out": lambda x: one_off(x["out"]),
        "lse": lambda x: x["lse"] * LOG2E,
        "scores": lambda x: one_off(x["scores"]),
        "row_max": lambda x: x["row_max"] + np.float32(0.5),
    }
    for stage, other in wrong.items():
        assert stage in judged(TILES, **{"probs": change, stage: other}).origins, stage


def test_probs_that_hold_nan_are_no_shares() -> None:
    def holed(x: dict[str, Any]) -> np.ndarray:
        found = shares(x)
        found[0, 0, 5, 2] = np.nan
        return found

    assert "probs" in judged(TILES, probs=holed).origins


def test_units_that_the_user_said_are_asked_of_every_stage() -> None:
    assert judged(f"base2=false,{TILES}", row_max=lambda x: x["row_max"] * LOG2E).verdict == "bug"
