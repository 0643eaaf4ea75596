"""What foreign functions return, in the forms in which attention functions of others do."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.refusals import refusal
from tests.test_foreign import CASE, attention
from workbench import diff, run

FORMS = "return out, (out, lse), or a dict of stage name -> array"


def giving(form: Callable[[np.ndarray, np.ndarray], Any]) -> Callable[..., Any]:
    def kernel(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> Any:
        stages = attention(q, k, v, scale=scale, causal=causal)
        return form(stages["out"], stages["lse"])

    return kernel


@pytest.mark.parametrize(
    ("form", "stages"),
    [
        (lambda out, lse: (out, None), ["out"]),
        (lambda out, lse: (out,), ["out"]),
        (lambda out, lse: (out, lse, None), ["out", "lse"]),
        (lambda out, lse: (out, lse, out, {"rng": 3}), ["out", "lse"]),
        (lambda out, lse: (out, None, out), ["out"]),
        (lambda out, lse: [out, lse], ["out", "lse"]),
        (lambda out, lse: {"out": out, "lse": None}, ["out"]),
        (lambda out, lse: {"lse": lse, "acc": None}, ["lse"]),
    ],
)
def test_what_is_none_was_not_given_and_what_stands_behind_lse_is_not_read(form: Any, stages: list[str]) -> None:
    judged = diff(run(giving(form), CASE))
    assert [stage.name for stage in judged] == stages and judged.verdict == "rounding"


def test_none_and_what_has_not_run_are_refused() -> None:
    assert refusal(run, giving(lambda out, lse: None), CASE) == (
        f"kernel returned None; {FORMS}: what it wrote into an array of its own is returned, too"
    )
    assert refusal(run, giving(lambda out, lse: (None, None)), CASE) == f"kernel returned no stage; {FORMS}"

    def generator(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> Iterator[Any]:
        yield attention(q, k, v, scale=scale, causal=causal)

    async def coroutine(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> Any:
        return attention(q, k, v, scale=scale, causal=causal)

    assert refusal(run, generator, CASE) == f"generator returned a generator, of which nothing ran; {FORMS}"
    assert refusal(run, coroutine, CASE) == f"coroutine returned a coroutine, of which nothing ran; {FORMS}"
