"""The Python of three how-to pages on testing does what they say; test_readme.py holds their screens."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, settings

from workbench.testing import AttentionError
from workbench.testing.settings import Settings, current

PAGES = Path(__file__).parents[2] / "docs/how-to"
KERNEL, PROPERTIES, WORKERS = (
    block
    for page in ("testing", "properties", "continuous-integration")
    for block in re.findall(r"```python\n(.*?)```", (PAGES / f"{page}.md").read_text(), re.DOTALL)
)


@pytest.fixture
def names(monkeypatch):
    """The names of the first block, and its kernel without its bug, for rows without keys too."""
    monkeypatch.setattr("workbench.judge.diff.QUICK", 0.0)
    made = {"__name__": "page"}
    exec(KERNEL, made)

    def right(q, k, v, *, scale, causal):
        with np.errstate(invalid="ignore"):
            found = made["attention"](q, k, v, scale=scale, causal=causal)
        scores = found["scores"].astype(np.float64)
        row_max = np.maximum(scores.max(-1), np.finfo(np.float64).min)
        with np.errstate(divide="ignore"):
            lse = row_max + np.log(np.exp(scores - row_max[..., None]).sum(-1))
        return {"scores": found["scores"], "out": np.nan_to_num(found["out"], nan=0.0), "lse": lse.astype(np.float32)}

    return made | {"right": right}


@pytest.mark.campaign
def test_its_properties_hold_for_a_right_kernel_alone(names):
    attention = names["attention"]
    exec(PROPERTIES, names)
    few = settings(max_examples=10, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
    tests = [few(names[name]) for name in ("test_any_case", "test_awkward_tensors")]
    names["attention"] = names["right"]
    for test in tests:
        test()
    names["attention"] = attention
    for test in tests:
        with pytest.raises(AttentionError), np.errstate(invalid="ignore"):
            test()


def test_its_first_tests_fail_as_it_shows(names):
    token = current.set(Settings(shrink_effort=0))
    try:
        with pytest.raises(AttentionError, match="bug in lse"):
            names["test_the_kernel"]()
        with pytest.raises(AttentionError, match="it passes with causal=True"):
            names["test_its_output"]()
    finally:
        current.reset(token)


@pytest.mark.parametrize(
    ("worker", "visible", "gpu"), [(None, None, "0"), ("gw5", None, "1"), ("gw1", "2,7", "7"), ("gw2", "2,7", "2")]
)
def test_its_workers_have_a_gpu_each(worker, visible, gpu, monkeypatch):
    import os

    for name, value in (("PYTEST_XDIST_WORKER", worker), ("CUDA_VISIBLE_DEVICES", visible)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    exec(WORKERS, {})
    assert os.environ["CUDA_VISIBLE_DEVICES"] == gpu
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpu)  # so that it is as before, afterwards
