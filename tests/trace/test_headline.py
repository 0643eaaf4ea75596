"""What was run, in a line: what a mask hides among it."""

from typing import Any

import numpy as np
import pytest

from workbench import Case, run
from workbench.trace.headline import headline

CASE = Case(batch=2, heads=1, seqlen_q=6, seqlen_k=9, head_dim=4)
BEFORE = np.arange(6)[:, None] + 3 - np.arange(9)
LATER = (np.arange(9) >= np.array([0, 2])[:, None])[:, None, None]
MASKS = {
    "no mask": None,
    "mask: causal": BEFORE >= 0,
    "mask: causal top-left": BEFORE >= 3,
    "mask: window 2 causal": (BEFORE >= 0) & (BEFORE <= 2),
    "mask: window 1,1": abs(BEFORE) <= 1,
    "mask: causal, padding of the first keys": LATER & (BEFORE >= 0),
    "mask: padding of the last keys": np.broadcast_to(LATER[..., ::-1], (2, 1, 6, 9)),
    "mask: none": np.ones((6, 9), bool),
    "masked": BEFORE % 3 > 0,
}


@pytest.mark.parametrize("words", MASKS)
def test_a_mask_is_named(words: str) -> None:
    def attend(q: Any, k: Any, v: Any, *, scale: float, causal: bool, mask: Any = None) -> Any:
        return q

    inputs: dict[str, Any] = dict(zip("qkv", CASE.inputs(), strict=True))
    if MASKS[words] is not None:
        inputs["mask"] = MASKS[words]
    assert f" d=4, {words}, inputs given" in headline(run(attend, CASE, inputs=inputs))


def test_beside_what_the_case_masks() -> None:
    def attend(q: Any, k: Any, v: Any, *, scale: float, causal: bool, mask: Any = None) -> Any:
        return q

    inputs = dict(zip("qkv", CASE.inputs(), strict=True)) | {"mask": np.broadcast_to(LATER, (2, 1, 6, 9)).copy()}
    said = headline(run(attend, CASE.but(causal=True), inputs=inputs))
    assert " d=4, causal bottom-right, mask: padding of the first keys, inputs given" in said
