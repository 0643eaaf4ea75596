"""Laws of kernels on codes of every format: a right one keeps them, however coarse the codes, and whatever shares a scale;
one that decodes wrongly breaks them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from workbench import Case
from workbench.case.formats import FORMATS
from workbench.explore.laws import codes
from workbench.explore.laws.every import LAWS, asked, subject
from workbench.explore.laws.subject import Subject

F32 = np.float32
#: columns in blocks of 16, 32 and 64 and a shorter one behind; an uneven scale
CASE = Case(heads=2, seqlen_q=6, seqlen_k=9, head_dim=80, dtype="float32", quantiser_scale="dynamic", seed=5)
#: laws that put another order and other signs through the quantiser
OF_CODES = (
    "v-times-power-of-two", "v-negated", "columns-of-v-permuted", "q-and-k-times-power-of-two",
    "scale-times-power-of-two",
)  # fmt: skip


def on(case: Case, wrong: str = "") -> Callable[..., Any]:
    """Attention on codes of q, k and v of a case's format, with something wrong."""
    form = FORMATS[str(case.codes)]

    def decoded(x: Any, scale: Any, zero: Any, over: Any) -> Any:
        size = form.block if case.scale_of == "block" else x.shape[-1]
        wide = form.values[x].astype(F32)
        if wrong == "scale of the next block":
            scale = np.roll(scale, 1, -1)
        spread = [None if one is None else np.repeat(one, size, -1)[..., : x.shape[-1]] for one in (scale, zero)]
        wide = wide if zero is None or wrong == "no zero point" else wide - spread[1]
        wide = wide * spread[0]
        return wide if over is None or wrong == "no scale of the tensor" else wide * over[:, None, None]

    def attention(
        q: Any, k: Any, v: Any, *, scale_q: Any, scale_k: Any, scale_v: Any, zero_q: Any = None, zero_k: Any = None,
        zero_v: Any = None, global_q: Any = None, global_k: Any = None, global_v: Any = None, scale: float, causal: bool,
    ) -> Any:  # fmt: skip
        q, k, v = (
            decoded(x.view(np.uint8), *beside)
            for x, *beside in (
                (q, scale_q, zero_q, global_q), (k, scale_k, zero_k, global_k), (v, scale_v, zero_v, global_v)
            )
        )  # fmt: skip
        scores = q @ k.swapaxes(-1, -2) * F32(scale)
        top = scores.max(-1, keepdims=True)
        probs = np.exp(scores - top)
        total = probs.sum(-1, keepdims=True)
        rows = {f"dequant_{x}": rows for x, rows in zip("qkv", (q, k, v), strict=True)}
        return {**rows, "out": probs @ v / total, "lse": (top + np.log(total))[..., 0]}

    return attention


def of(
    name: str, scale_of: str, scaling: str = "dynamic", wrong: str = "", declared: Any = None, **changes: Any
) -> Subject:
    case = CASE.but(codes=name, codes_of="qkv", scale_of=scale_of, quantiser_scale=scaling, **changes)
    return subject(on(case, wrong), case, contract=declared)


BLOCKS = [(name, scale_of) for name, form in FORMATS.items() for scale_of in form.scales if scale_of != "head"]


@pytest.mark.campaign(but=6)
@pytest.mark.parametrize("scaling", ["dynamic", "static"])
@pytest.mark.parametrize(("name", "scale_of"), BLOCKS)
def test_a_right_kernel_keeps_the_laws_whatever_shares_a_scale(name: str, scale_of: str, scaling: str) -> None:
    found = asked(of(name, scale_of, scaling), [LAWS[law] for law in OF_CODES])
    assert found.signature == dict.fromkeys(OF_CODES, True), [
        one.lacking or (one.broke and one.broke.words) for one in found.findings
    ]


@pytest.mark.campaign(but=2)
@pytest.mark.parametrize(
    ("name", "wrong", "broken"),
    [
        ("int4", "no zero point", {"v-negated", "q-and-k-times-power-of-two"}),
        ("mxfp8-e4m3", "scale of the next block", {"columns-of-v-permuted"}),
        ("nvfp4", "scale of the next block", {"columns-of-v-permuted"}),
        ("nvfp4", "no scale of the tensor", {"v-times-power-of-two", "scale-times-power-of-two"}),
    ],
)
def test_a_wrong_one_breaks_them(name: str, wrong: str, broken: set[str]) -> None:
    # of who does not say what is subtracted from scores, weights may be so small that any out is allowed
    found = asked(of(name, "block", wrong=wrong, declared={"row_max": "running"}), [LAWS[law] for law in OF_CODES])
    assert broken <= {one.law.name for one in found.broken}, found.signature


def test_dims_of_a_block_stay_together() -> None:
    s = of("nvfp4", "block", head_dim=72)
    dims = codes.in_another_order(s, range(72))
    assert sorted(dims.tolist()) == [*range(72)] and dims.tolist() != [*range(72)]
    assert [{*(dims[first : first + 16] // 16).tolist()} for first in range(0, 72, 16)] == [{3}, {2}, {1}, {0}, {4}]
    in_rows = codes.in_another_order(of("int4", "token", head_dim=72), range(8, 72))
    assert sorted(in_rows.tolist()) == [*range(8, 72)] and {*(in_rows[:16] // 16).tolist()} != {0}


def test_the_opposite_of_k_is_that_of_v_where_v_is_a_part_of_it() -> None:
    s = of("int4", "block", "static", shared_kv=True, head_dim_v=80, scale=0.3)
    names = ("v-negated", "q-and-k-times-power-of-two")
    assert asked(s, [LAWS[name] for name in names]).signature == dict.fromkeys(names, True)


def test_no_law_asks_for_parts_of_tiles() -> None:
    """A part may begin in the middle of a tile, whose rows then are no longer alike in every 128."""
    case = CASE.but(codes="e4m3", scale_of="tile", seqlen_q=130, seqlen_k=140)
    s = subject(on(case), case)
    names = ("heads-alone", "rows-alone", "place-in-batch")
    assert asked(s, [LAWS[name] for name in names]).signature == dict.fromkeys(names)
