"""Laws of the backward pass: torch's autograd keeps them all, and each is broken by a function that is wrong."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.operations.backwards import backward
from tests.operations.dense_backward import dense
from tests.refusals import invoked
from workbench.explore.laws.backward_every import GRADIENT_LAWS, gradient_laws

SIZES = {"batch": 2, "heads": 4, "kv_heads": 2, "queries": 20, "keys": 24, "dim": 16, "dim_v": 8}
HIDDEN = {"window_left": 3, "window_right": -1}
#: law -> the fault that breaks it, and what its case has
BROKEN: dict[str, tuple[str, dict[str, Any]]] = {
    "directional-derivative": ("delta of dout alone", {}),
    "dout-times-power-of-two": ("clipped", {}),
    "dq-of-a-row-without-keys-is-0": ("mask left out", {"numbers": {"causal": 1}, "axes": {"queries": 30}}),
    "gradients-of-a-key-that-nobody-sees-are-0": ("mask left out", {"numbers": HIDDEN, "axes": {"keys": 60}}),
}


def faulty(fault: str) -> Callable[..., Any]:
    if fault != "clipped":
        return backward(fault)
    right = backward(dumps=False)

    def clipped(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, **numbers: Any) -> Any:
        return right(q, k, v, out, lse, np.clip(dout, -2, 2), **numbers)

    return clipped


def test_each_law_has_a_function_that_breaks_it() -> None:
    assert {*BROKEN} == {*GRADIENT_LAWS}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("law", BROKEN)
def test_a_wrong_function_breaks_the_law(law: str, dtype: str) -> None:
    fault, has = BROKEN[law]
    case = {**has, "axes": {**SIZES, **has.get("axes", {})}, "dtype": dtype}
    found = gradient_laws(faulty(fault), **case)
    assert found.signature[law] is False, found.signature
    assert gradient_laws(backward(), **case).signature[law] is True


DERIVATIVE, ROW, KEY = "directional-derivative", "dq-of-a-row-without-keys-is-0", [*GRADIENT_LAWS][-1]
#: case -> what it has, and the laws that are asked of it beside that of dout, which float16 may not hold
CASES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "plain": ({}, {DERIVATIVE}),
    "causal, more queries than keys": ({"numbers": {"causal": 1}, "axes": {"queries": 30}}, {DERIVATIVE, ROW}),
    "softcap, window": ({"numbers": {"softcap": 2.0, **HIDDEN}, "axes": {"keys": 60}}, {KEY}),
    "sinks, bias": ({"optional": ("sinks", "bias"), "axes": {"bias_heads": 1}}, {DERIVATIVE}),
    "dlse, lengths": ({"optional": ("dlse", "seqlens_k")}, {DERIVATIVE, KEY}),
    "v in k, window": ({"numbers": {"shared_kv": 1, **HIDDEN}, "axes": {"keys": 60}}, {DERIVATIVE, KEY}),
    "dropout, alibi": (
        {"numbers": {"dropout_p": 0.25}, "optional": ("dropout_mask", "alibi_slopes")},
        {DERIVATIVE},
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_autograd_keeps_all_laws(name: str, dtype: str) -> None:
    def attention(
        q: Any, k: Any, v: Any, *, scale: float, causal: bool, window_size: Any = None, mask: Any = None, **beside: Any
    ) -> Any:
        numbers: dict[str, Any] = {"scale": scale, "causal": causal}
        numbers |= {} if window_size is None else dict(zip(("window_left", "window_right"), window_size, strict=True))
        numbers |= {one: beside.pop(one) for one in ("softcap", "dropout_p") if one in beside}
        beside |= {} if mask is None else {"mask": mask}
        wide = {one: x.float() for one, x in {"q": q, "k": k, "v": v}.items()}
        out, lse = dense({**wide, **beside}, numbers)
        return out.to(q.dtype), lse

    has, asked = CASES[name]
    case = {**has, "axes": {**SIZES, **has.get("axes", {})}}
    found = gradient_laws(attention, dtype=dtype, gradients=True, arrays="torch", **case)
    assert not found.broken, [(one.law.name, one.broke) for one in found.broken]
    held = {one.law.name for one in found.findings if one.held}
    assert held - {"dout-times-power-of-two"} == asked and ("dout-times-power-of-two" in held) is (dtype != "float16")


@pytest.mark.parametrize("distribution", ["one-hot", "along-out", "mean-of-4", "equal-scores", "outliers"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_torch_keeps_all_laws_on_inputs_that_cancel(distribution: str, dtype: str) -> None:
    found = gradient_laws("torch:scaled_dot_product_attention", axes=SIZES, dtype=dtype, distribution=distribution,
                          gradients=True, arrays="torch", numbers={"causal": 1})  # fmt: skip
    assert not found.broken, [(one.law.name, one.broke) for one in found.broken]


def test_the_command_says_what_is_broken(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\n\n\ndef f(q, k, v, *, scale, causal):\n    p = torch.softmax(scale * q @ k.mT, -1)\n"
        "    return (p + (p - p.detach())) @ v\n"
    )
    words = [
        "laws",
        f"{tmp_path}/mine.py:f",
        "--operation",
        "attention_backward,gradients",
        "--axes",
        "queries=16",
    ]
    done = invoked(*words)
    assert done.exit_code == 1 and "BROKEN" in done.stdout
    assert "directional-derivative: <dQ, D>, <dK, D>" in done.stdout and "3 laws held" not in done.stdout
    assert f"repeat: workbench laws {tmp_path}/mine.py:f --operation attention_backward" in done.stdout
    document = json.loads(invoked(*words, "--json").stdout)
    assert document["schema"] == "workbench.gradient-laws/1" and document["broken"] >= 1
