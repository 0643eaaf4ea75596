"""Functions that give other numbers when they are run again: by random numbers, by a race, by state."""

from typing import Any

import numpy as np
import pytest

from tests.judge.explain.kernels import attention
from workbench import Case, diff, run
from workbench.judge.explain.unstable import RANDOM, unstable

CASE = Case(heads=2, seqlen_q=16, seqlen_k=16, head_dim=8)
RACE = iter(np.random.default_rng(0).random, None)


def right(q: Any, k: Any, v: Any, **more: Any) -> Any:
    return attention(dump=False)(q, k, v, **more)["out"]


def dropped(q: Any, k: Any, v: Any, **more: Any) -> Any:
    """Half of its 32 rows: of a tenth it would drop none, and be right, in one run of 30 (0.9^32)."""
    return right(q, k, v, **more) * (np.random.random(q.shape[:3])[..., None] < 0.5)


def noisy(q: Any, k: Any, v: Any, **more: Any) -> Any:
    return right(q, k, v, **more) + np.random.normal(size=v.shape).astype(np.float32)


def raced(q: Any, k: Any, v: Any, **more: Any) -> Any:
    return right(q, k, v, **more) * np.float32(1 + next(RACE))


def late() -> Any:
    """Wrong in its first call."""
    turns = iter([3.0])
    return lambda q, k, v, **more: right(q, k, v, **more) * np.float32(next(turns, 1.0))


def doubled(q: Any, k: Any, v: Any, **more: Any) -> Any:
    return 2 * right(q, k, v, **more)


@pytest.mark.parametrize(
    ("function", "begins"),
    [
        (lambda: dropped, f"{RANDOM}: dropout is on"),
        (lambda: noisy, f"{RANDOM}: dropout is on"),
        (lambda: raced, "two runs on the same inputs differ in 256 of 256 elements of out"),
        (late, "two runs on the same inputs differ in 256 of 256 elements of out"),
        (lambda: doubled, ""),
    ],
)
@pytest.mark.parametrize("given", [False, True])
def test_what_differs_is_told_from_random_numbers(function: Any, begins: str, given: bool) -> None:
    inputs = dict(zip("qkv", CASE.inputs(), strict=True)) if given else None
    found = diff(run(function(), CASE, inputs=inputs))
    assert found.verdict == "bug"
    made = unstable(found.run, [stage for stage in found.stages if stage.role == "origin"])
    assert made.startswith(begins) and bool(made) == bool(begins)


def test_of_random_numbers_no_other_cause_is_looked_for() -> None:
    found = diff(run(dropped, CASE)).explain()
    assert found.unstable.startswith(RANDOM) and (found.causes, found.tried, found.unexplained) == ((), 0, ("out",))
