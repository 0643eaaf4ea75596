"""Where kernels on floats find the arrays of a case: views of what lies in memory, with poison where nobody may look."""

import numpy as np
import pytest

from workbench import Case
from workbench.case.memory import POISONS
from workbench.cuda.arrays import laid, results, unpack, viewed
from workbench.floats import to_float64

SIZES = dict(heads=4, kv_heads=2, head_dim=8)
# of this case NumPy leaves q in another order
PEAKED = Case(
    batch=2, heads=6, kv_heads=2, head_dim=48, distribution="peaked", dtype="float16", seqlen_q=69, seqlen_k=133
)
LENGTHS = dict(seqlens_q=(3, 0, 5), seqlens_k=(9, 4, 2))


def read(case):
    inputs = dict(zip("qkv", case.inputs(), strict=True))
    arrays, views = laid(case, inputs)
    assert all(x.flags.c_contiguous for x in arrays.values())
    return inputs, arrays, viewed(arrays, views)


def test_what_a_case_draws_and_what_was_put_in_is_contiguous():
    _, arrays, _ = read(PEAKED)
    assert all(x.flags.c_contiguous for x in PEAKED.inputs())
    turned = {name: x.swapaxes(2, 3).copy().swapaxes(2, 3) for name, x in arrays.items()}
    assert all(x.flags.c_contiguous for x in laid(PEAKED, turned)[0].values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_packed_sequences_begin_where_cu_seqlens_says(dtype):
    case = Case(**SIZES, **LENGTHS, dtype=dtype)
    inputs, arrays, seen = read(case)
    assert arrays["q"].shape == (8, 4, 8) and arrays["k"].shape == arrays["v"].shape == (15, 2, 8)
    for name, lengths, starts in (("q", (3, 0, 5), "cu_seqlens_q"), ("k", (9, 4, 2), "cu_seqlens_k")):
        assert seen[starts].tolist() == [0, *np.cumsum(lengths)] and seen[name].shape[0] == 3
        for b, (first, n) in enumerate(zip(seen[starts], lengths, strict=False)):
            found, given = seen[name][b, :, first : first + n], inputs[name][b, :, :n]
            assert to_float64(found).tolist() == to_float64(given).tolist()
    assert np.shares_memory(seen["q"], arrays["q"]) and seen["q"].strides[0] == 0


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("seed", range(len(POISONS)))
def test_pages_are_found_by_the_block_table(seed, layout):
    case = Case(**SIZES, seqlen_q=2, seqlens_k=(9, 4, 2), page_size=4, kv_layout=layout, seed=seed)
    inputs, arrays, seen = read(case)
    assert arrays["k"].shape[1:] == ((4, 2, 8) if layout == "NHD" else (2, 4, 8))
    assert seen["cache_seqlens"].tolist() == [9, 4, 2]
    looked_at = np.zeros(seen["k"].shape[0:3:2], bool)
    for b, n in enumerate((9, 4, 2)):
        for key in range(n):
            page, slot = seen["block_table"][b, key // 4], key % 4
            assert not looked_at[page, slot]
            looked_at[page, slot] = True
            for name in "kv":
                assert np.array_equal(seen[name][page, :, slot], inputs[name][b, :, key])
    rest = seen["k"].swapaxes(1, 2)[~looked_at]
    assert rest.size and not np.any(rest == 0)
    assert np.all(np.isnan(rest)) == (seed == 0) and np.all(np.isinf(rest)) == (seed == 1)


def test_lengths_of_keys_alone_are_those_of_a_cache():
    case = Case(**SIZES, seqlen_q=2, seqlens_k=(9, 4), seqlen_k=12)
    inputs, arrays, seen = read(case)
    assert "block_table" not in seen and "cu_seqlens_k" not in seen and seen["cache_seqlens"].tolist() == [9, 4]
    assert np.array_equal(seen["k"][1, :, :4], inputs["k"][1, :, :4]) and np.all(np.isnan(seen["k"][1, :, 4:]))


@pytest.mark.parametrize("options", [{}, {"page_size": 4}, LENGTHS, {**LENGTHS, "page_size": 4}])
def test_shared_v_is_some_dims_of_k(options):
    case = Case(**SIZES, **({"seqlen": 6} if "seqlens_q" not in options else {}), **options, shared_kv=True,
                head_dim_v=5, scale=0.3)  # fmt: skip
    _, arrays, seen = read(case)
    assert "v" not in arrays and seen["v"].shape == (*seen["k"].shape[:3], 5)
    assert seen["v"].ctypes.data == seen["k"].ctypes.data and seen["v"].strides == seen["k"].strides


def test_masks_have_four_axes_and_no_bools():
    case = Case(**SIZES, seqlen_q=3, seqlen_k=4)
    inputs = dict(zip("qkv", case.inputs(), strict=True))
    beside = {"mask": np.eye(3, 4, dtype=bool), "bias": np.ones((1, 4, 3, 1), np.float16)}
    arrays, _ = laid(case, {**inputs, **beside})
    assert arrays["mask"].dtype == np.uint8 and arrays["mask"].tolist() == np.eye(3, 4).reshape(1, 1, 3, 4).tolist()
    assert arrays["bias"].dtype == np.float32 and arrays["bias"].shape == (1, 4, 3, 1)


def test_results_come_back_in_boxes():
    case = Case(**SIZES, **LENGTHS)
    out = np.arange(3 * 4 * 5 * 8, dtype=np.float32).reshape(3, 4, 5, 8)
    lse = np.arange(3 * 4 * 5, dtype=np.float32).reshape(3, 4, 5)
    packed, views = results(case, out, lse)
    assert all(x.flags.c_contiguous for x in packed.values())
    assert packed["out"].shape == (8, 4, 8) and packed["lse"].shape == (4, 8)
    seen = viewed(packed, views)
    assert np.array_equal(seen["out"][2, :, 3:8], out[2]) and np.array_equal(seen["lse"][2, :, 3:8], lse[2])
    boxes = {"out": np.full_like(out, 7), "lse": np.full_like(lse, 7)}
    unpack(case, packed, boxes)
    for b, n in enumerate((3, 0, 5)):
        assert np.array_equal(boxes["out"][b, :, :n], out[b, :, :n]) and np.all(boxes["out"][b, :, n:] == 0)
        assert np.array_equal(boxes["lse"][b, :, :n], lse[b, :, :n]) and np.all(boxes["lse"][b, :, n:] == -np.inf)
