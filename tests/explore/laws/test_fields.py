"""Laws with all that a case may have: a right kernel keeps them, and one in which something of it is wrong breaks some."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.explore.laws.fields import WRONG, boxes, packed, pages
from workbench.case.case import Case
from workbench.explore.laws.every import LAWS, held_to, laws, subject
from workbench.explore.laws.part import each, own, part_of, sequences, taken

PLAIN: dict[str, Any] = {
    "batch": 2,
    "heads": 4,
    "kv_heads": 2,
    "seqlen_q": 9,
    "seqlen_k": 12,
    "head_dim": 16,
    "seed": 3,
}


def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score * (1 + 0.3 * h) - 0.05 * abs(q_idx - kv_idx) * (b + 1)


def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return (q_idx + kv_idx + h + b) % 4 > 0


SINKS = Case(**PLAIN, sinks=(0.5, -1.0, 2.0, 3.0))
ALIBI = Case(**PLAIN, alibi_slopes="geometric")
MODS = Case(**PLAIN, score_mod=score_mod, mask_mod=mask_mod)
RAGGED = Case(**PLAIN, seqlens_q=(5, 9), seqlens_k=(12, 7), causal=True)
PAGED = Case(**PLAIN, seqlens_k=(11, 6), page_size=4)
NARROW = Case(**PLAIN, head_dim_v=8)
SHARED = Case(**PLAIN, shared_kv=True, head_dim_v=8, scale=0.3)
#: what goes wrong -> a case in which it shows
SHOWS = {
    "sink of the next head": SINKS,
    **{name: MODS for name in WRONG if "mod" in name},
    "ALiBi from the first key on": ALIBI,
    "slope of the next head": ALIBI,
    "keys of the next sequence": RAGGED,
    "diagonal of the longest": RAGGED,
    "pages in order": PAGED,
    "last page read whole": PAGED,
    "v as wide as k": NARROW,
}


def kernel(case: Case, wrong: str = "") -> Callable[..., Any]:
    made = pages if case.page_size else packed if wrong == "keys of the next sequence" else boxes
    return made(wrong)


@pytest.mark.campaign(but=5)
@pytest.mark.parametrize("wrong", WRONG)
def test_what_goes_wrong_breaks_its_laws(wrong: str) -> None:
    case = SHOWS[wrong]
    for name in WRONG[wrong]:
        assert held_to(LAWS[name], subject(kernel(case, wrong), case)).held is False, name


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize(
    ("function", "case", "asked"),
    [
        (
            boxes(),
            SINKS.but(softcap=4.0, window=(5, -1)),
            {"hidden-keys-changed", "scale-times-power-of-two"},
        ),
        (boxes(), SINKS, {"heads-alone", "q-and-k-times-power-of-two"}),
        (boxes(), ALIBI.but(dropout_p=0.5, causal=True), {"rows-alone", "batches-alone", "hidden-keys-changed"}),
        (boxes(), MODS, {"heads-alone", "rows-alone", "place-in-batch"}),
        (boxes(), SHARED.but(sinks="normal"), {"v-times-power-of-two", "v-negated", "columns-of-v-permuted"}),
        (packed(), RAGGED.but(head_dim_v=5), {"other-sequences-beside-it", "memory-of-no-sequence"}),
        (packed(), RAGGED.but(causal=False, sinks="normal"), {"batches-alone", "rows-alone"}),
        (pages(), PAGED.but(dtype="float16"), {"pages-in-another-order", "memory-of-no-sequence", "batches-alone"}),
    ],
    ids=["sinks,softcap,window", "sinks", "alibi,dropout", "mods", "shared_kv", "packed", "packed,sinks", "pages"],
)
def test_a_right_kernel_keeps_all_laws(function: Callable[..., Any], case: Case, asked: set[str]) -> None:
    found = laws(function, case)
    assert not found.broken, [one.broke and one.broke.words for one in found.broken]
    assert {name for name, held in found.signature.items() if held} >= asked


def test_bits_are_asked_of_sequences_where_it_is_claimed() -> None:
    found = held_to(LAWS["batches-alone"], subject(packed(), RAGGED, invariant=True))
    assert found.held is True


def test_a_part_of_a_case_has_its_own_of_all_that_is_of_heads_and_sequences() -> None:
    case = RAGGED.but(sinks=(1.0, 2.0, 3.0, 4.0), alibi_slopes="geometric")
    part = part_of(case, b=[1], h=[2, 3], g=[1])
    assert (part.batch, part.heads, part.kv_heads, part.sinks) == (1, 2, 1, (3.0, 4.0))
    assert (part.seqlens_q, part.seqlens_k, part.seqlen_k) == ((9,), (7,), 12)
    assert part.alibi_slopes == tuple(case.slopes[2:].tolist())
    turned = part_of(MODS, h=[3, 2, 1, 0], q=[8, 7])
    scores = np.zeros((2, 4, 2, 12))
    b, h, q, k = np.ix_(*map(np.arange, scores.shape))
    assert np.array_equal(turned.score_mod(scores + 1, b, h, q, k), score_mod(scores + 1, b, 3 - h, 8 - q, k))
    assert turned.mask_mod.__name__ == "mask_mod" and part_of(MODS, q=range(4)).score_mod is score_mod


def test_indices_of_each_sequence_are_its_own() -> None:
    last = each(RAGGED, "k", lambda n: range(n)[-3:])
    assert last.tolist() == [[9, 10, 11], [4, 5, 6]]
    some = own(RAGGED, [range(2), range(0)])
    assert some.tolist() == [[0, 1], [-1, -1]] and part_of(RAGGED, k=some).seqlens_k == (2, 0)
    k = RAGGED.inputs()[1]
    assert np.array_equal(taken({"k": k}, k=last)["k"][1], k[1][:, 4:7])
    assert [(list(one.b), one.q, one.k) for one in sequences(RAGGED)] == [([0], 5, 12), ([1], 9, 7)]
    assert [(list(one.b), one.q, one.k) for one in sequences(SINKS)] == [([0, 1], 9, 12)]
