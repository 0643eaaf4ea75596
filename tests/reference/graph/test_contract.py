"""The words of a contract."""

from dataclasses import replace

import numpy as np
import pytest

from workbench.reference.graph import Contract, Gradients, budgets, parse, trace
from workbench.refusal import Refusal

torch = pytest.importorskip("torch")


def test_nothing_said_is_what_kernels_on_such_inputs_usually_do() -> None:
    assert parse("") == Contract(exp="base2") and parse("exp=natural") == Contract()
    assert parse("", "bfloat16") == Contract(operands="bfloat16", exp="base2")


def test_what_is_said_is_taken() -> None:
    said = parse("operands=inputs, stored=probs+out:float32,accumulate=tensor-core,exp_ulps=3.5,division=1", "float16")
    stored = {"probs": "float16", "out": "float32"}
    assert said == Contract("float16", "tensor-core", stored, "base2", exp_ulps=3.5, division=1.0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("operand=tf32", "contract setting 'operand'; did you mean operands"),
        ("operands=int3", "contract operands 'int3'"),
        ("operands=tf32,operands=tf32", "says operands twice"),
        ("exp=base3", "contract exp 'base3'"),
        ("exp_ulps=-1", "exp_ulps is a number of at least 0; got '-1'"),
        ("exp_ulps=nan", "exp_ulps is a number of at least 0; got 'nan'"),
        ("stored=:float16", "stored is STAGE:DTYPE"),
        ("stored=probs:int4", "stored is STAGE:DTYPE"),
        ("tf32", "contract setting 'tf32'"),
    ],
)
def test_what_is_no_contract_is_refused(words: str, said: str) -> None:
    with pytest.raises(Refusal, match=said):
        parse(words)


def test_results_that_are_rounded_have_a_dtype() -> None:
    assert parse("round=eager", "bfloat16").rounds == ("eager", "bfloat16")
    assert parse("round=inside:float16", "bfloat16").round == "inside:float16"
    for words in ("round=always", "round=eager:int8", "operands=scaled-e4m3"):
        with pytest.raises(Refusal):
            parse(words, "bfloat16")


def test_gradients_alone_are_rounded_once_more() -> None:
    graph = trace(lambda x: (x**3).sum(), {"x": torch.linspace(1, 2, 8)}, gradients=Gradients(0))
    names = ["result", "dx"]
    before, after = (
        budgets(graph, parse(words, "bfloat16"), names=names) for words in ("", "round=gradients")
    )  # fmt: skip
    assert np.array_equal(before["result"].budget.bound, after["result"].budget.bound)
    more = after["dx"].budget.bound - before["dx"].budget.bound
    np.testing.assert_allclose(more, 2.0**-8 * abs(after["dx"].value), rtol=1e-3)


def test_what_is_inside_one_call_is_rounded_by_inside_alone() -> None:
    def norm(x):
        return x / np.var(x, axis=-1, keepdims=True)

    graph = trace(norm, {"x": np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)})
    seen = [node.op for i, node in enumerate(graph.nodes) if node.reads and i not in graph.inside]
    assert seen == ["divide", "divide"] and len(graph.inside) > 3
    result = graph.results["result"]
    bounds = [
        budgets(graph, parse(f"round={one}:bfloat16"), names=["result"])["result"].budget.bound.max()
        for one in ("saved", "eager", "inside")
    ]
    assert 100 * bounds[0] < bounds[1] < bounds[2] < 100 * bounds[1]
    kept = replace(graph, saved=frozenset([graph.nodes[result].reads[1]]))
    assert budgets(kept, parse("round=saved:bfloat16"), names=["result"])["result"].budget.bound.max() > 50 * bounds[0]
