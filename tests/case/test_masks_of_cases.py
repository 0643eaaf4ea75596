"""Which keys are seen, what is added to scores, and what lies where, of cases with sequences of several lengths."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench import Case, Refusal, run
from workbench.case import masks
from workbench.case.box import Box, case_of, parse, with_causal
from workbench.case.inputs import by_name
from workbench.case.memory import POISONS, packed, padded, paged, poison_of, unpacked

LENGTHS = st.lists(st.integers(0, 9), min_size=1, max_size=3)


def seen_by_hand(case, b, i, j):
    n_q = case.seqlens_q[b] if case.seqlens_q else case.seqlen_q
    n_k = case.seqlens_k[b] if case.seqlens_k else case.seqlen_k
    if i >= n_q or j >= n_k:
        return False
    place = i + (n_k - n_q if case.causal_alignment == "bottom-right" else 0)
    left, right = case.window or (-1, 0 if case.causal else -1)
    return (left == -1 or j >= place - left) and (right == -1 or j <= place + right)


@settings(max_examples=60)
@given(LENGTHS, st.data())
def test_each_sequence_has_its_own_end_and_diagonal(lengths_k, data):
    lengths_q = data.draw(st.none() | st.lists(st.integers(0, 9), min_size=len(lengths_k), max_size=len(lengths_k)))
    case = Case(
        seqlens_q=None if lengths_q is None else tuple(lengths_q),
        seqlens_k=tuple(lengths_k),
        seqlen_q=7 if lengths_q is None else None,
        causal=data.draw(st.booleans()),
        causal_alignment=data.draw(st.sampled_from(["bottom-right", "top-left"])),
        window=data.draw(st.none() | st.tuples(st.integers(-1, 4), st.integers(-1, 4))),
    )
    mask = case.mask()
    assert mask.shape == (case.batch, 1, case.seqlen_q, case.seqlen_k)
    for (b, _, i, j), seen in np.ndenumerate(mask):
        assert seen == seen_by_hand(case, b, i, j)


def test_lengths_settle_each_other():
    case = Case(seqlens_k=(1, 63, 64, 1000), seqlen_q=1)
    assert (case.batch, case.seqlen_q, case.seqlen_k) == (4, 1, 1000)
    assert Case(seqlens_q=(3, 5)).seqlens_k == (3, 5)
    for one in (case, Case(seqlens_q=(3, 5)), Case(seqlens_q=(3, 5), seqlens_k=(9, 0), head_dim_v=32)):
        assert eval(repr(one)) == one
        assert Case(**one.as_dict()) == one
    assert Case(head_dim=96).but(head_dim=32).head_dim_v == 32
    assert Case(head_dim=96, head_dim_v=8).but(head_dim=32).head_dim_v == 8


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            dict(seqlens_q=(3, 5), batch=3),
            "seqlens_q must have one length per sequence (batch=3); got 2: 3,5",
        ),
        (dict(seqlens_q=(3, 5), seqlen_q=4), "seqlen_q=4 must be the largest of seqlens_q; got 3,5"),
        (
            dict(shared_kv=True),
            "shared_kv (absorbed MLA) needs head_dim_v and scale, such as --head-dim 576,v=512,shared_kv --scale 0.0722: v "
            "is the first 512 dims of k, and the scale is 1 / sqrt(head dimension before absorption), here 192**-0.5",
        ),
        (
            dict(shared_kv=True, head_dim=8, head_dim_v=9, scale=1.0),
            "shared_kv: v is the first head_dim_v dims of k, so head_dim_v must be at most head_dim=8; got head_dim_v=9",
        ),
        (dict(sinks=(1.0, 2.0)), "sinks must have one number per head (heads=1); got 2: 1.0,2.0"),
        (
            dict(alibi_slopes=(float("nan"),)),
            "alibi_slopes must be geometric, or finite numbers, one for each query head; got (nan,)",
        ),
        (dict(score_mod="mod"), "score_mod must be a function, or path.py:name or module:name of one; got 'mod'"),
        (dict(dropout_p=1.0), "dropout_p must be above 0 and below 1; got 1.0"),
        (dict(seqlens_q=(3, -1)), "seqlens_q must be whole numbers of at least 0, one for each sequence; got (3, -1)"),
        (
            dict(distribution="exact", sinks="normal"),
            "distribution exact leaves one score per row, which sinks would change",
        ),
    ],
)
def test_refusals(fields, message):
    with pytest.raises(Refusal) as refused:
        Case(**fields)
    assert str(refused.value) == message


def test_alibi_is_the_distance_from_the_diagonal_or_the_column():
    case = Case(heads=2, seqlens_q=(3, 2), seqlens_k=(5, 4), alibi_slopes=(0.5, 2.0))
    found = masks.alibi(case)
    for b, h, i, j in np.ndindex(2, 2, 3, 5):
        place = i + case.seqlens_k[b] - case.seqlens_q[b]
        assert found[b, h, i, j] == -(0.5, 2.0)[h] * abs(j - place)
    assert np.array_equal(masks.alibi(case.but(alibi_form="column"))[0, 1, 0], 2.0 * np.arange(5))
    assert masks.alibi(case, h=slice(1, 2), q=np.array([2])).shape == (2, 1, 1, 5)
    geometric = Case(heads=8, alibi_slopes="geometric").slopes
    assert np.array_equal(geometric, 2.0 ** -np.arange(1.0, 9.0))  # Press et al. 2022, section 3


def test_a_box_has_its_sequences_heads_and_rows():
    case = Case(heads=4, seqlens_q=(3, 6), seqlens_k=(7, 5), alibi_slopes="geometric", sinks="normal", causal=True)
    box = parse("b=1,h=2:4,q=2:5", case)
    own = case_of(case, box)
    assert (own.seqlens_q, own.seqlens_k) == ((3,), (5,))
    assert own.sinks == tuple(case.sink_logits[2:4].tolist())
    assert own.alibi_slopes == tuple(case.slopes[2:4].tolist())
    assert np.array_equal(with_causal({}, case, box)["mask"], case.mask()[1:2, :, 2:5])
    assert Box(slice(0, 1), slice(1, 2), np.array([0, 2])).within(box).q.tolist() == [2, 4]


def test_packed_and_unpacked_are_each_other_s_reverse():
    case = Case(seqlens_q=(3, 0, 5), heads=2, head_dim=4)
    q, _, _ = case.inputs()
    rows = packed(q, case.lengths_q)
    assert rows.shape == (8, 2, 4)
    assert np.array_equal(rows[3:], np.moveaxis(q[2], 1, 0))
    assert np.array_equal(unpacked(rows, case.lengths_q, 5), q)
    assert np.isneginf(unpacked(rows[..., 0], case.lengths_q, 5, -np.inf)[0, :, 3:]).all()


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("kind", POISONS)
def test_pages_hold_each_key_once_and_poison_elsewhere(kind, layout):
    lengths, sizes = (1, 15, 16, 0, 33), {"stale": 8, "benign": 1}
    case = Case(seqlens_k=lengths, seqlen_q=1, kv_heads=2, heads=2, head_dim=4, page_size=16, kv_layout=layout)
    _, k, v = case.inputs()
    found = paged(case, k, v, kind)
    by_page = found.k if layout == "NHD" else found.k.swapaxes(1, 2)
    used = np.zeros(by_page.shape[:2], bool)
    for b, n in enumerate(lengths):
        pages = found.indices[found.indptr[b] : found.indptr[b + 1]]
        assert np.array_equal(found.block_table[b, : len(pages)], pages)
        assert np.all(found.block_table[b, len(pages) :] == -1)
        assert found.last_page_len[b] == (n - 16 * (len(pages) - 1) if n else 0)
        for j in range(n):
            assert np.array_equal(by_page[pages[j // 16], j % 16], k[b, :, j])
            assert not used[pages[j // 16], j % 16]
            used[pages[j // 16], j % 16] = True
    rest = by_page[~used]
    assert rest.size > 0
    stale = np.isfinite(rest) & (abs(rest) > 0)
    told = {"nan": np.isnan(rest), "inf": np.isinf(rest), "stale": stale, "benign": stale}
    assert np.all(told[kind])
    if kind in sizes:
        assert 0.9 * sizes[kind] < rest.astype(np.float64).std() < 1.1 * sizes[kind]
    assert {poison_of(case.but(seed=seed)) for seed in range(len(POISONS))} == {*POISONS}


def test_a_shared_v_is_the_memory_of_k():
    case = Case(
        seqlens_k=(5, 20), seqlen_q=1, head_dim=12, head_dim_v=8, shared_kv=True, scale=0.3, page_size=4, seed=2
    )
    _, k, v = case.inputs()
    assert np.array_equal(v, k[..., :8])
    found = paged(case, k, v, "nan")
    assert np.shares_memory(found.k, found.v) and found.v.shape[-1] == 8
    assert np.isnan(padded(k, case.lengths_k, "nan", 0)[0, :, 5:]).all()


def bigger_half(score, b, h, q_idx, kv_idx):
    return np.where(kv_idx >= q_idx, 2 * score, score - h)


def test_mods_are_read_from_a_file_or_given(tmp_path: Path):
    case = Case(heads=2, seqlen=4, score_mod=bigger_half)
    scores = np.arange(32.0).reshape(1, 2, 4, 4)
    found = masks.modified(case, scores)
    for (b, h, i, j), x in np.ndenumerate(scores):
        assert found[b, h, i, j] == (2 * x if j >= i else x - h)
    assert np.array_equal(masks.modified(case, scores[:, 1:, 2:], h=slice(1, 2), q=slice(2, 4)), found[:, 1:, 2:])

    file = tmp_path / "mods.py"
    file.write_text("def document(b, h, q_idx, kv_idx):\n    return q_idx // 3 == kv_idx // 3\n")
    case = Case(heads=2, seqlen=4, mask_mod=f"{file}:document")
    i, j = np.indices((4, 4))
    assert np.array_equal(by_name(case)["mask"], np.broadcast_to(i // 3 == j // 3, (1, 2, 4, 4)))

    def wrong(b, h, q_idx):
        return q_idx

    for mod, message in (
        (f"{tmp_path}/none.py:f", f"mask_mod={tmp_path}/none.py:f: no such file: {tmp_path}/none.py"),
        (
            f"{file}:other",
            f"mask_mod={file}:other: {file} defines no function 'other'; it defines: document",
        ),
        (
            wrong,
            f"mask_mod={__name__}:test_mods_are_read_from_a_file_or_given.<locals>.wrong is called with (b, h, q_idx, "
            "kv_idx), arrays that broadcast to [1, 2, 4, 4], and must return such an array: TypeError: "
            "test_mods_are_read_from_a_file_or_given.<locals>.wrong() takes 3 positional arguments but 4 were "
            "given",
        ),
    ):
        with pytest.raises(Refusal) as refused:
            by_name(case.but(mask_mod=mod))
        assert str(refused.value) == message


def test_a_file_of_mods_imports_the_files_beside_it_and_is_read_anew_when_it_was_edited(tmp_path: Path):
    file, beside = tmp_path / "mods.py", tmp_path / "sizes.py"
    file.write_text(
        "from sizes import SIZE\n"
        "def document(b, h, q_idx, kv_idx):\n"
        "    import offsets\n"
        "    return q_idx // SIZE == (kv_idx + offsets.OFFSET) // SIZE\n"
    )
    beside.write_text("SIZE = 3\n")
    (tmp_path / "offsets.py").write_text("OFFSET = 0\n")
    case, (i, j) = Case(seqlen=6, mask_mod=f"{file}:document"), np.indices((6, 6))
    assert np.array_equal(by_name(case)["mask"][0, 0], i // 3 == j // 3)
    beside.write_text("SIZE = 2\n")
    assert np.array_equal(by_name(case)["mask"][0, 0], i // 2 == j // 2)
    file.write_text(file.read_text().replace("==", "!="))
    assert np.array_equal(by_name(case)["mask"][0, 0], i // 2 != j // 2)
    assert "sizes" not in sys.modules and "offsets" not in sys.modules
    file.write_text("1 / 0\n")
    with pytest.raises(Refusal, match="^mask_mod=.*mods.py:document: .*mods.py could not be imported:\nTraceback"):
        by_name(case)


def test_dropout_keeps_what_the_seed_says_and_inputs_may_say_it():
    case = Case(heads=3, seqlen=40, dropout_p=0.25)
    kept = by_name(case)["dropout_mask"]
    assert kept.shape == (1, 3, 40, 40) and abs(kept.mean() - 0.75) < 0.03
    assert np.array_equal(by_name(case)["dropout_mask"], kept)
    q, k, v = case.inputs()
    assert by_name(case, {"q": q, "k": k, "v": v, "dropout_mask": ~kept})["dropout_mask"].mean() < 0.3


def test_what_is_behind_the_end_of_a_sequence_is_zero():
    case = Case(seqlens_q=(2, 5), seqlens_k=(4, 1), seed=3)
    q, k, v = case.inputs()
    assert np.all(q[0, :, 2:] == 0) and np.all(k[1, :, 1:] == 0) and np.all(v[1, :, 1:] == 0) and np.all(q[1] != 0)
    given_too = by_name(case, {"q": np.ones_like(q), "k": np.ones_like(k), "v": np.ones_like(v)})
    assert given_too["k"].sum() == 64 * 5


def test_a_v_that_is_not_k_s_is_refused_where_they_share_memory():
    case = Case(seqlen=4, head_dim=6, head_dim_v=4, shared_kv=True, scale=0.5)
    q, k, v = case.inputs()
    v[0, 0, 2, 1] = 7
    with pytest.raises(Refusal) as refused:
        run(lambda *qkv, **more: qkv[0], case, inputs={"q": q, "k": k, "v": v})
    assert str(refused.value) == (
        f"<lambda>: with shared_kv, v is the first 4 dims of k; at [0, 0, 2, 1] v holds 7.0 and k {k[0, 0, 2, 1]}"
    )
