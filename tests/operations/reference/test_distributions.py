"""Other values of inputs stay in what the values show of their domain."""

import numpy as np
import pytest

from tests.refusals import refusal
from workbench.operations.reference.distributions import (
    ANY,
    DISTRIBUTIONS,
    FIXED,
    GATES,
    LOG_GATES,
    POSITIVE,
    changed,
    domain_of,
)

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((40, 16)).astype(np.float32)
GATE = 1 / (1 + np.exp(-X))
PROBS = np.exp(X) / np.exp(X).sum(-1, keepdims=True)


@pytest.mark.parametrize(
    ("x", "domain"),
    [
        (X, ANY),
        (abs(X), POSITIVE),
        (GATE, GATES),
        (np.log(GATE), LOG_GATES),
        (PROBS, FIXED),
        (PROBS.astype("float16"), FIXED),
        (PROBS.T, FIXED),
        (X / np.linalg.norm(X, axis=-1, keepdims=True), FIXED),
        (np.cumsum(np.log(GATE), 0), FIXED),
        (X > 0, FIXED),
        ((X > 0).astype(np.float32), FIXED),
        (np.where(X > 0, 0, -np.inf), FIXED),
        (np.arange(640.0).reshape(40, 16), FIXED),
        (np.float32([0.5, 0.75, 1.5, 6.0])[RANDOM.integers(4, size=(40, 16))], FIXED),
        (np.ones(16, np.float32), FIXED),
        (np.float32(1e-6).reshape(1), FIXED),
    ],
)
def test_a_domain_is_read_off_values(x: np.ndarray, domain: str) -> None:
    assert domain_of(x) == domain


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_no_distribution_leaves_a_domain(name: str, dtype: str) -> None:
    before = {"x": X, "p": abs(X), "gate": GATE, "log": np.log(GATE), "probs": PROBS, "mask": (X > 0) * np.float32(1)}
    before = {key: x.astype(dtype) for key, x in before.items()}
    before["x"][::3] = 0
    found = changed(name, before, 3)
    again = changed(name, before, 3)
    for key, x in found.items():
        assert (x.dtype, x.shape) == (before[key].dtype, before[key].shape) and (x == again[key]).all()
    wide = {key: x.astype(np.float64) for key, x in found.items()}
    assert all(np.isfinite(x).all() for x in wide.values())
    assert ((wide["x"] == 0) == (before["x"] == 0)).all() and (wide["p"] > 0).all() and (wide["log"] < 0).all()
    assert (wide["gate"] > 0).all() and (wide["gate"] < 1).all()
    assert (found["probs"] == before["probs"]).all() and (found["mask"] == before["mask"]).all()
    assert any((found[key] != before[key]).any() for key in ("x", "p", "gate", "log"))


def test_what_a_distribution_does() -> None:
    assert (changed("large", {"x": X}, 0)["x"] == 4 * X).all() and (changed("", {"x": X}, 0)["x"] == X).all()
    assert (changed("equal-rows", {"x": X}, 0)["x"] == X[:1]).all()
    far = abs(changed("outliers", {"x": X}, 0)["x"] / X)
    assert (far.max(0) == 16).sum() == 1 and (far.min(0) == far.max(0)).all()
    assert (changed("gates-open", {"gate": GATE}, 0)["gate"] >= 1 - 2.0**-3).all()
    assert (changed("gates-shut", {"log": np.log(GATE)}, 0)["log"] <= -3 * np.log(2)).all()
    assert (changed("large", {"x": X}, 0, fixed=["x"])["x"] == X).all()
    assert "distribution 'larg'" in refusal(changed, "larg", {"x": X}, 0)


def test_tensors_stay_tensors() -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(X).to(torch.bfloat16)
    found = changed("tiny", {"x": x, "n": torch.arange(3), "eps": 1e-6}, 0)
    assert found["x"].dtype == torch.bfloat16 and torch.equal(found["x"], x * 2.0**-8)
    assert torch.equal(found["n"], torch.arange(3)) and found["eps"] == 1e-6
