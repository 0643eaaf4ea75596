"""Sinks, ALiBi, ragged batches, dropout, score_mod and a v of its own width: the reference against the referee, correct
kernels within their budgets, wrong ones outside them at the stage that is wrong.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from tests.online import judged, promise
from workbench import Case
from workbench.case import contract, masks
from workbench.case.inputs import by_name
from workbench.floats import to_float64, unit_roundoff
from workbench.foreign.feed import reference
from workbench.reference import dense
from workbench.reference.forward import PLAIN
from workbench.reference.losses import losses_of


def modified(score, b, h, q_idx, kv_idx):
    return score + 0.1 * (kv_idx - q_idx) * (h + 1)


SHAPE = {"heads": 4, "kv_heads": 2, "head_dim": 24, "seed": 3}
SQUARE = SHAPE | {"seqlen_q": 37, "seqlen_k": 45}
LENGTHS = {"seqlens_q": (5, 40, 1), "seqlens_k": (30, 17, 33)}
FIELDS = {
    "alibi": SQUARE | {"alibi_slopes": "geometric", "causal": True},
    "alibi by column": SQUARE | {"alibi_slopes": "geometric", "alibi_form": "column"},
    "sinks": SQUARE | {"sinks": "normal", "window": (9, 0)},
    "sinks far above": SQUARE | {"sinks": (130.0, 95.0, 0.0, -60.0)},
    "v of its own width": SQUARE | {"head_dim_v": 40},
    "shared": SQUARE | {"head_dim": 40, "head_dim_v": 32, "shared_kv": True, "scale": 0.2},
    "dropout": SQUARE | {"dropout_p": 0.3},
    "score_mod": SQUARE | {"score_mod": modified, "softcap": 5.0},
    "mask_mod": SQUARE | {"mask_mod": lambda b, h, q_idx, kv_idx: (q_idx // 7 == kv_idx // 7) | (kv_idx % 5 == h)},
    "ragged": SHAPE | LENGTHS,
    "all": SHAPE | LENGTHS | {"causal": True, "alibi_slopes": "geometric", "sinks": "normal", "dropout_p": 0.2},
    "decoding": SHAPE | {"seqlen_q": 1, "seqlens_k": (1, 63, 64, 100), "sinks": "normal"},
}


@pytest.mark.parametrize("enter", ["first", "last"])
@pytest.mark.parametrize("name", FIELDS)
def test_the_reference_agrees_with_the_referee(name, enter):
    case = Case(**FIELDS[name])
    inputs, added = by_name(case), masks.attn_bias(case, {})
    right = dense.attention(
        *(to_float64(inputs[x]) for x in "qkv"),
        **case.numbers,
        mask=masks.visible(case, inputs),
        attn_bias=None if added is None else added.bias,
        sinks=case.sink_logits,
        dropout_mask=inputs.get("dropout_mask"),
        score_mod=None if case.score_mod is None else partial(masks.modified, case),
    )
    for algorithm, splits in (("flash", None), ("split_k", 3)):
        made = reference(algorithm, case, inputs, "", replace(PLAIN, block_k=16, splits=splits, sinks=enter))
        for stage in ("out", "lse"):
            np.testing.assert_allclose(made[stage], right[stage], rtol=1e-13, atol=1e-14)


@pytest.mark.campaign(but=4)
@pytest.mark.campaign(but=12)
@pytest.mark.parametrize("enter", ["first", "last"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", FIELDS)
def test_correct_kernels_are_within_their_budgets(name, dtype, enter):
    case = Case(**FIELDS[name], dtype=dtype)
    if enter == "last" and case.sinks is None:
        return
    for splits in (1, 3):
        assert judged(case, splits=splits, enter=enter).verdict == "rounding"
    assert judged(case, only=("out", "lse"), declared={}, enter=enter).verdict in ("rounding", "suspicious")


@pytest.mark.parametrize("enter", ["first", "last"])
def test_a_kernel_that_does_not_say_what_sinks_do_is_not_wrong_for_it(enter):
    """What it does is named, and asked for."""
    case = Case(**FIELDS["sinks"])
    found = judged(case, only=("scores", "row_max", "row_sum", "out", "lse"), declared={"block_k": 16}, enter=enter)
    assert found.verdict == ("suspicious" if enter == "first" else "rounding")
    if enter == "first":
        assert "within budget only with sinks=first" in found["row_max"].reason


def test_a_sink_is_rounded_where_its_units_may_not_be_natural():
    """One by one unit of rounding more is wrong of a kernel that says that it converts nothing, and of no other."""
    case, natural = Case(**FIELDS["sinks far above"]), {"base2": False, "scores_scaled": True}
    said = [natural, *({name: value} for name, value in natural.items()), {}, {"base2": True}, {"scores_scaled": False}]
    units = [losses_of(contract.of_foreign(one, case)).units for one in said]
    assert units == [0.0] + 5 * [2 * unit_roundoff("float32")]
    moved = {"sinks": lambda x: x * np.float32(1 + 2.0**-23)}
    assert judged(case, declared=promise(case), **moved).verdict == "rounding"
    wrong = judged(case, declared=promise(case) | natural, **moved)
    assert (wrong.verdict, wrong.origin) == ("bug", "row_max")


def test_lse_without_its_sink_is_right_of_a_kernel_that_says_so():
    case = Case(**FIELDS["sinks"])
    bare = Case(**FIELDS["sinks"] | {"sinks": None})
    read = by_name(case)
    without = judged(bare, inputs=read)["lse"].isolated.elements.actual
    with_sink = judged(case, enter="last")
    trace = with_sink.trace
    trace = replace(trace, stages={"out": trace.stages["out"], "lse": without.astype(np.float32)})
    from workbench import diff

    said = {name: diff(replace(trace, contract=contract.of_foreign(x, case))) for name, x in {
        "nothing": {}, "so": {"lse_includes_sink": False}, "otherwise": {"lse_includes_sink": True},
    }.items()}  # fmt: skip
    assert said["nothing"].verdict == "suspicious"
    assert "within budget only with lse_includes_sink=false" in said["nothing"]["lse"].reason
    assert said["so"].verdict == "rounding"
    assert (said["otherwise"].verdict, said["otherwise"].origins) == ("bug", ("lse",))


FAULTS = {
    "sink of the wrong head": ("sinks", {"sinks": lambda x: np.roll(x, 1)}, "row_max"),
    "sink scaled": ("sinks", {"sinks": lambda x: x / np.float32(24**0.5)}, "row_max"),
    "sink in every split": ("sinks", {"sink_in": (0, 1, 2)}, "row_max"),
    "sink in no split": ("sinks", {"sink_in": ()}, "row_max"),
    "slopes of the wrong head": ("alibi", {"slopes": lambda x: np.roll(x, 1)}, "scores"),
    "slopes of the wrong sign": ("alibi", {"slopes": lambda x: -x}, "scores"),
    "column for distance": ("alibi", {"distance": lambda x: x + 3}, "scores"),
    "dropout's mask inverted": ("dropout", {"kept": np.logical_not}, "probs_cast"),
    "one key behind the end": ("ragged", {"seen": lambda x: np.roll(x, 1, -1)}, "scores"),
}


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found_at_their_stage(name):
    fields, changes, stage = FAULTS[name]
    for seed in range(5):
        case = Case(**FIELDS[fields] | {"seed": seed})
        found = judged(case, splits=3, **changes)
        assert found.verdict == "bug" and found.origins[0] == stage
        assert judged(case, only=("out", "lse"), declared={}, splits=3, **changes).verdict == "bug"


def test_a_part_of_a_run_is_judged_as_the_whole():
    """ALiBi, sinks, lengths and score_mod of a box are those of its place in the run."""
    from workbench import diff
    from workbench.trace.narrow import narrowed

    case = Case(**SHAPE | LENGTHS, causal=True, alibi_slopes="geometric", sinks="normal", score_mod=modified)
    trace = judged(case).trace
    for part in ("b=1,h=2,q=9:25", "b=0", "b=2,h=2:4"):
        assert diff(narrowed(trace, part)).verdict == "rounding"
    wrong = judged(case, slopes=lambda x: np.roll(x, 1)).trace
    assert diff(narrowed(wrong, "b=1,h=2,q=9:25")).origins[0] == "scores"
