"""Right kernels that give their stages, in three dtypes: nothing is said of them."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.reference.graph import plain_operations as plain
from tests.reference.graph.test_operations import INPUTS, drawn
from workbench.floats import DTYPES
from workbench.judge.reference.contracts import judged
from workbench.judge.reference.given import matched
from workbench.reference.graph import trace

LOG2E = np.float32(np.log2(np.e))


class Base2:
    """NumPy, whose exp is what GPUs compute."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def exp(self, x: np.ndarray) -> np.ndarray:
        return np.exp2(x * LOG2E)


@np.errstate(all="ignore")
def run(f: Callable[..., Any], inputs: dict[str, Any]) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Results, and local variables as they were last."""
    local: dict[str, Any] = {}

    def seen(frame: Any, event: str, _: Any) -> None:
        if event == "return" and frame.f_code is f.__code__:
            local.update(frame.f_locals)

    sys.setprofile(seen)
    try:
        made = f(**inputs)
    finally:
        sys.setprofile(None)
    return list(made) if isinstance(made, tuple) else [made], local


@pytest.mark.campaign(but=20)
@pytest.mark.parametrize("number", range(600))
def test_right_kernels_that_give_their_stages_are_right(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    name = sorted(INPUTS)[number % len(INPUTS)]
    f, dtype = getattr(plain, name), [*DTYPES][number // len(INPUTS) % 3]
    given = drawn(name, np.random.default_rng([number, 58]))
    given = {key: x.astype(DTYPES[dtype]) if np.asarray(x).dtype == np.float32 else x for key, x in given.items()}
    graph = trace(f, {key: x.copy() for key, x in given.items()})
    if number // len(INPUTS) % 2:
        monkeypatch.setattr(plain, "np", Base2())
    wide = {key: x.astype(np.float32) if x.dtype.kind not in "iu" else x.copy() for key, x in given.items()}
    results, local = run(f, wide)
    made = {
        key: np.asarray(x)
        for key, x in local.items()
        if key in graph.stages and np.shape(x) == graph.nodes[graph.stages[key][-1]].shape and key not in given
    }
    nodes = {node for key in made for node in graph.stages[key]}
    pairs = zip(graph.results.items(), results, strict=True)
    made |= {key: np.asarray(x) for (key, node), x in pairs if node not in nodes}
    empty = {key: np.zeros(x.shape, bool) for key, x in made.items()}
    found = judged(graph, matched(graph, made, empty, name), None, dtype)
    assert found.stages and found.words in ("", "exp=base2")
    assert [(one.name, one.verdict) for one in found.stages if one.verdict not in ("exact", "rounding")] == []
    assert all(one.role == "clean" for one in found.stages)
