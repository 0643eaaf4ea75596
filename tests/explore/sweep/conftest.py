"""Kernels that sweeps run, in files, and threads whose processes judge, which all tests share: to start one takes 2 s."""

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import pytest

#: right but where FAULTS says
ATTENTION = """
import ctypes, os, time
import numpy as np
FAULTS = {faults}
def attention(q, k, v, *, scale, causal):
    n = k.shape[2]
    if "slow" in FAULTS: time.sleep(0.1)
    if "raises" in FAULTS and n == 7: raise ValueError(f"no length {{n}}")
    if "crashes" in FAULTS and n == 8: print("the last words"), ctypes.string_at(0)
    if "hangs" in FAULTS and n == 9: time.sleep(3600)
    if "grows" in FAULTS and n == 10:
        held = [np.ones(2**20) for _ in range(2**14)]
    q, k, v = (x.astype(np.float32) for x in (q, k, v))
    scores = q @ np.swapaxes(k, -1, -2) * np.float32(scale)
    if "scale" in FAULTS and causal: scores = scores * np.float32(scale)
    if causal: scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, np.float32(-np.inf))
    top = scores.max(-1)
    probs = np.exp(scores - top[..., None])
    total = probs.sum(-1)
    lse = (top + np.log(total)) * np.float32(1.4426950408889634 if "base 2" in FAULTS and n % 4 else 1)
    order = slice(None, None, -1 if "order" in FAULTS else 1)
    out = probs[..., order] @ v[..., order, :] / total[..., None]
    return {{"scores": scores, "out": out, "lse": lse}}
"""


def kernel(folder: Path, *faults: str) -> str:
    """The TARGET of a kernel with some faults, in a file of its own."""
    folder.mkdir(exist_ok=True)
    (folder / "mine.py").write_text(ATTENTION.format(faults=faults))
    return f"{folder}/mine.py:attention"


@pytest.fixture(scope="session")
def pool() -> Iterator[Executor]:
    with ThreadPoolExecutor(2) as made:
        yield made
