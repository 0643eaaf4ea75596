"""The formula of readings is that of the referee."""

import numpy as np
import pytest

from workbench.readings.beyond import Beyond
from workbench.readings.parts import Parts, plain
from workbench.readings.regions import WithoutSinks
from workbench.reference.dense import attention

B, HEADS, GROUPS, ROWS, KEYS, DIM = 2, 4, 2, 5, 12, 8
SINKS = np.array([0.5, -1.0, 2.0, 0.0])


def drawn() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return (
        rng.standard_normal((B, HEADS, ROWS, DIM)),
        rng.standard_normal((B, GROUPS, KEYS, DIM)),
        rng.standard_normal((B, GROUPS, KEYS, DIM)),
    )


def parts(seen: np.ndarray, sinks: np.ndarray | None) -> Parts:
    q, k, v = drawn()
    wide = [np.repeat(x, HEADS // GROUPS, axis=1) for x in (k, v)]
    start = np.broadcast_to(np.where(seen, 0.0, -np.inf), (B, HEADS, ROWS, KEYS))
    told = None if sinks is None else sinks[None, :, None]
    return Parts(q, *wide, 0.3, 1.0, lambda x: x, start, None, told, GROUPS, "float32")


@pytest.mark.parametrize("sinks", [None, SINKS], ids=["no sinks", "sinks"])
@pytest.mark.parametrize("causal", [False, True])
def test_the_formula_is_that_of_the_referee(sinks: np.ndarray | None, causal: bool) -> None:
    # of the first row nothing is seen
    seen = np.tri(ROWS, KEYS, -1, dtype=bool) if causal else np.ones((ROWS, KEYS), bool)
    out, lse = plain(parts(seen, sinks))
    right = attention(*drawn(), scale=0.3, mask=seen, sinks=sinks)
    assert np.allclose(out, right["out"], rtol=1e-13, atol=1e-15) and np.allclose(lse, right["lse"], rtol=1e-13)
    assert out.size > 0 and np.isfinite(lse).all() == (not causal or sinks is not None)


def test_sinks_that_are_left_out_are_none() -> None:
    seen = np.ones((ROWS, KEYS), bool)
    without, alone = WithoutSinks()(parts(seen, SINKS)), plain(parts(seen, None))
    assert all(np.array_equal(a, b) for a, b in zip(without, alone, strict=True))
    assert not np.allclose(without[0], plain(parts(seen, SINKS))[0])


def test_keys_behind_the_last_one_are_those_of_the_next_head() -> None:
    q, k, v = drawn()
    seen = np.ones((ROWS, KEYS), bool)
    out, lse = Beyond(3)(parts(seen, SINKS))
    flat = [np.concatenate([x.reshape(-1, DIM)] * 2) for x in (k, v)]
    longer = [
        np.stack([x[n * KEYS : n * KEYS + KEYS + 3] for n in range(B * GROUPS)]).reshape(B, GROUPS, KEYS + 3, DIM)
        for x in flat
    ]
    right = attention(q, *longer, scale=0.3, mask=np.ones((ROWS, KEYS + 3), bool), sinks=SINKS)
    assert np.allclose(out, right["out"], rtol=1e-13, atol=1e-15) and np.allclose(lse, right["lse"], rtol=1e-13)
