"""What foreign functions return, in the forms in which attention functions of others do."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.foreign.test_call import CASE, attention
from tests.refusals import refusal
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
        f"kernel returned None; {FORMS}, including arrays that it wrote in place"
    )
    assert refusal(run, giving(lambda out, lse: (None, None)), CASE) == f"kernel returned no stage; {FORMS}"

    def generator(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> Iterator[Any]:
        yield attention(q, k, v, scale=scale, causal=causal)

    async def coroutine(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> Any:
        return attention(q, k, v, scale=scale, causal=causal)

    assert refusal(run, generator, CASE) == f"generator returned a generator, which never ran; {FORMS}"
    assert refusal(run, coroutine, CASE) == f"coroutine returned a coroutine, which never ran; {FORMS}"


def test_keys_of_a_dict_are_names() -> None:
    assert refusal(run, giving(lambda out, lse: {1: out}), CASE) == f"kernel returned a dict with the key 1; {FORMS}"


def test_a_contract_may_be_none_or_words() -> None:
    assert run(giving(lambda out, lse: {"out": out, "contract": None}), CASE).contract.block_k is None
    said = run(giving(lambda out, lse: {"out": out, "contract": "torch-sdpa,block_k=24"}), CASE).contract
    assert (said.block_k, said.scores_dtype) == (24, "float32") and "probs_dtype" not in said.assumed


def test_stages_of_no_splits_are_refused() -> None:
    none = np.zeros((1, 4, 0, 24), np.float32)
    assert refusal(run, giving(lambda out, lse: {"out": out, "partial_max": none}), CASE) == (
        "kernel: stage partial_max has axes [b h s q] and must have shape [1, 4, 1, 24] for this case; got [1, 4, 0, 24]"
    )


def test_tensors_with_strides_gradients_and_signs_of_their_own_are_read() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    form = giving(lambda out, lse: (torch._neg_view(torch.from_numpy(-out)), torch.from_numpy(lse).requires_grad_()))
    assert diff(run(form, CASE)).verdict == "rounding"
