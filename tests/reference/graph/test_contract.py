"""The words of a contract."""

import pytest

from workbench.reference.graph import Contract, parse
from workbench.refusal import Refusal


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
