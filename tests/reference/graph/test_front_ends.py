"""What is written in NumPy and in torch gives the same values and budgets, at every stage."""

import numpy as np
import pytest
import torch

from tests.reference.graph import plain_pairs
from workbench.reference.graph import Contract, budget_at, budgets, trace

CONTRACTS = {"strict": Contract(), "operands": Contract(operands="bfloat16")}


@pytest.mark.parametrize("contract", CONTRACTS.values(), ids=CONTRACTS)
@pytest.mark.parametrize("name", plain_pairs.NAMES)
def test_numpy_and_torch_agree_at_every_stage(name: str, contract: Contract) -> None:
    given = plain_pairs.inputs(name)
    of_numpy = trace(getattr(plain_pairs.OfNumpy, name), given)
    of_torch = trace(getattr(plain_pairs.OfTorch, name), {key: torch.from_numpy(x) for key, x in given.items()})
    found, other = budgets(of_numpy, contract), budgets(of_torch, contract)
    assert found.keys() == other.keys() and len(found) >= 2
    for stage, one in found.items():
        same(one.value, other[stage].value)
        for part in ("bound", "statistical", "size"):
            same(getattr(one.budget, part), getattr(other[stage].budget, part))
    element = (0,) * found["result" if "result" in found else "result[0]"].value.ndim
    asked = "result" if "result" in found else "result[0]"
    at, of_other = (budget_at(graph, contract, asked, [element]) for graph in (of_numpy, of_torch))
    same(at.bound, of_other.bound)
    same(at.statistical, of_other.statistical)


EINSUMS = {
    "bthd,bth->bthd": ((2, 3, 4, 5), (2, 3, 4)), "i,j->ij": ((3,), (4,)), "bhk,bhv->bhkv": ((2, 3, 4), (2, 3, 5)),
    "bqhd,bkhd,hqk->bhqk": ((2, 3, 4, 5), (2, 3, 4, 5), (4, 3, 3)), "ij,jk->ik": ((2, 3), (3, 4)),
    "bhkv,bhk->bhv": ((2, 3, 4, 5), (2, 3, 4)), "ij->ji": ((2, 3),), "ij->i": ((2, 3),), "bld,d->bl": ((2, 3, 4), (4,)),
    "...ij,...jk->...ik": ((2, 3, 4), (2, 4, 5)),
}  # fmt: skip


@pytest.mark.parametrize("letters", EINSUMS)
def test_einsum_is_the_same_products(letters: str) -> None:
    """What is a contraction, whose operands a contract rounds, and what is scaling, whose it does not."""
    rng = np.random.default_rng(2)
    arrays = {f"x{i}": rng.standard_normal(shape).astype(np.float32) for i, shape in enumerate(EINSUMS[letters])}
    tensors = {name: torch.from_numpy(x) for name, x in arrays.items()}
    for contract in CONTRACTS.values():
        one = budgets(trace(lambda **x: np.einsum(letters, *x.values()), arrays), contract)["result"]
        other = budgets(trace(lambda **x: torch.einsum(letters, *x.values()), tensors), contract)["result"]
        same(one.value, other.value)
        same(one.budget.bound, other.budget.bound)


def same(a, b):
    a, b = np.asarray(a, float), np.asarray(b, float)
    assert a.shape == b.shape and a.size
    np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-300)
