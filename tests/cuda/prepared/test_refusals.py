"""Kernels called with torch tensors: what is refused, before anything is launched."""

import pytest

import workbench
from tests.refusals import refusal
from workbench import Unavailable
from workbench.cuda import prepared

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.cuda.prepared.driver import BFLOAT16, FLOAT16, FLOAT32, given, tensor, tensors  # noqa: E402 - needs torch


def refused(driver, name, *given, **options):
    said = refusal(prepared.kernel(name), *given, **options)
    assert driver.launches == []
    return said


def test_other_kernels_are_refused():
    assert (
        refusal(workbench.kernel, "fp8")
        == "callable kernels are flash, flash_tensor, flash_mma, flash_wgmma, split_mma; got 'fp8'"
    )


@pytest.mark.skipif(hasattr(torch._C, "_cuda_getDevice"), reason="this torch is built for GPUs")
def test_a_torch_for_cpus_is_not_enough():
    with pytest.raises(Unavailable) as raised:
        workbench.kernel("flash_mma")
    expected = "calling a kernel needs torch with CUDA; this torch is CPU-only"
    assert str(raised.value) == expected


ARRAYS = "must be a GPU tensor [batch, heads, rows, d] of float32, float16, bfloat16 with stride 1 in d; got"
Q, K, V = tensors()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((Q[0], K, V), f"q {ARRAYS} float16 [4, 5, 64], strides [320, 64, 1] on cuda:0"),
        ((Q, K.double(), V), f"k {ARRAYS} float64 [2, 2, 7, 64], strides [896, 448, 64, 1] on cuda:0"),
        (
            (Q, K, torch.zeros(2, 2, 7, 64, dtype=FLOAT16)),
            f"v {ARRAYS} float16 [2, 2, 7, 64], strides [896, 448, 64, 1] on cpu",
        ),
        (
            (Q, K, V.transpose(2, 3).contiguous().transpose(2, 3)),
            f"v {ARRAYS} float16 [2, 2, 7, 64], strides [896, 448, 1, 7] on cuda:0",
        ),
        (
            (Q, K.to(BFLOAT16), V),
            "q, k, v and out must have one dtype on one GPU; k is bfloat16 [2, 2, 7, 64] on cuda:0, q is float16 [2, 4, 5, 64] on cuda:0",
        ),
        (
            (Q, K, tensor(2, 2, 7, 64, gpu=1)),
            "q, k, v and out must have one dtype on one GPU; v is float16 [2, 2, 7, 64] on cuda:1, q is float16 [2, 4, 5, 64] on cuda:0",
        ),
        ((Q, K, V[:, :, :6]), "k and v must be [2, kv_heads, rows, 64]; got [2, 2, 7, 64] and [2, 2, 6, 64]"),
        ((Q, K[:1], V[:1]), "k and v must be [2, kv_heads, rows, 64]; got [1, 2, 7, 64] and [1, 2, 7, 64]"),
        ((Q[:, :3].contiguous(), K, V), "heads must be a multiple of kv_heads; got heads=3, kv_heads=2"),
        ((Q[:0], K[:0], V[:0]), "batch must be a whole number of at least 1; got 0"),
        ((Q[:, :, :0], K, V), "seqlen_q must be a whole number of at least 1; got 0"),
        ((Q, K[:, :, :0], V[:, :, :0]), "seqlen_k must be a whole number of at least 1; got 0"),
        ((Q[:, :0], K[:, :0], V[:, :0]), "heads must be a whole number of at least 1; got 0"),
        (
            tuple(x.float() for x in (Q, K, V)),
            "kernel flash_mma takes float16 or bfloat16; got float32",
        ),
        (
            tuple(x[..., :60].contiguous() for x in (Q, K, V)),
            "flash_mma copies 8 dims at once, so strides must be multiples of 8; those of q are [1200, 300, 60, 1]",
        ),
        (
            (Q, tensor(2, 2, 7, 68)[..., :64], V),
            "flash_mma copies 8 dims at once, so strides must be multiples of 8; those of k are [952, 476, 68, 1]",
        ),
        (
            ([0.0], K, V),
            "flash_mma takes torch tensors and options that are numbers or pairs: 'list' object has no "
            "attribute 'shape'",
        ),
    ],
)
def test_tensors_that_are_refused(given, message, driver):
    assert refused(driver, "flash_mma", *given) == message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"out": Q[..., :32]}, "out must match q: float16 [2, 4, 5, 64]; got float16 [2, 4, 5, 32]"),
        (
            {"out": tensor(2, 4, 5, 64, dtype=FLOAT32)},
            "q, k, v and out must have one dtype on one GPU; out is float32 [2, 4, 5, 64] on cuda:0, q is float16 [2, 4, 5, 64] on cuda:0",
        ),
        (
            {"out": tensor(1, 4, 5, 64).expand(2, 4, 5, 64)},
            "out must not have overlapping elements; got float16 [2, 4, 5, 64], strides [0, 320, 64, 1]",
        ),
        (
            {"lse": tensor(2, 4, 6, dtype=FLOAT32)},
            "lse must be float32 [2, 4, 5] on cuda:0; got float32 [2, 4, 6] on cuda:0",
        ),
        ({"lse": tensor(2, 4, 5)}, "lse must be float32 [2, 4, 5] on cuda:0; got float16 [2, 4, 5] on cuda:0"),
        (
            {"lse": tensor(2, 4, 5, dtype=FLOAT32, gpu=1)},
            "lse must be float32 [2, 4, 5] on cuda:0; got float32 [2, 4, 5] on cuda:1",
        ),
        (
            {"lse": tensor(2, 5, 4, dtype=FLOAT32).transpose(1, 2)},
            "lse must be contiguous; got strides [20, 1, 4]",
        ),
        ({"softcap": -1.0}, "softcap must be a normal float32 above 0; got -1.0"),
        (
            {"window": [3, 4]},
            "flash_mma takes torch tensors and options that are numbers or pairs: unhashable type: 'list'",
        ),
    ],
)
def test_options_that_are_refused(options, message, driver):
    assert refused(driver, "flash_mma", Q, K, V, **options) == message


@pytest.mark.parametrize(
    "others",
    [
        {"k": tensor(2, 2, 7, 64, gpu=1)},
        {"v": tensor(2, 2, 7, 64, gpu=1)},
        {"k": K.to(BFLOAT16)},
        {"v": V.to(BFLOAT16)},
        {"v": tensor(2, 2, 7, 65)[..., :64]},
        {"v": V[:, :, :6]},
        {"out": tensor(2, 4, 5, 64, gpu=1)},
        {"out": tensor(2, 4, 5, 64, dtype=BFLOAT16)},
        {"out": tensor(2, 4, 4, 64)},
        {"lse": tensor(2, 4, 5, dtype=FLOAT32, gpu=1)},
        {"lse": tensor(2, 4, 5, dtype=torch.float64)},
        {"lse": tensor(2, 4, 10, dtype=FLOAT32)[..., ::2]},
    ],
    ids=lambda others: ", ".join(f"{x} {one.dtype} {[*one.shape]} {one.device}" for x, one in others.items()),
)
def test_what_was_taken_before_is_looked_at_again(others, driver):
    """Arguments of a call are found by all that was checked."""
    attention = prepared.kernel("flash_mma")
    given = {"q": Q, "k": K, "v": V, "out": tensor(2, 4, 5, 64), "lse": tensor(2, 4, 5, dtype=FLOAT32)}
    attention(**given)
    refusal(attention, **given | others)
    assert len(driver.launches) == 1


@pytest.mark.parametrize("which", ["q", "k", "v", "out"])
def test_an_address_between_16_bytes_is_never_launched(which, driver):
    """A copy of 16 bytes from elsewhere ends the context; the shapes have been launched before."""
    attention = prepared.kernel("flash_mma")
    given = dict(zip("qkv", tensors(), strict=True)) | {"out": tensor(2, 4, 5, 64)}
    attention(**given)
    flat = tensor(given[which].numel() + 4)
    given[which] = flat[4:].view(given[which].shape)
    said = refusal(attention, **given)
    at = flat.data_ptr() + 8
    assert said == f"flash_mma copies 16 bytes at once, so {which} must be aligned to 16 bytes; got {at:#x}"
    assert len(driver.launches) == 1


def test_flash_takes_any_element(driver):
    flat = tensor(1 * 2 * 6 * 31 + 1, dtype=FLOAT32)
    x = flat[1:].view(1, 2, 6, 31)[..., :30]
    prepared.kernel("flash")(x, x, x)
    (one,) = driver.launches
    assert given(one)["q"][4] == flat.data_ptr() + 4 and given(one)["q"][9:] == [1488, 744, 124, 4]


def test_one_row_may_have_any_stride(driver):
    """torch gives an axis of size 1 any stride: it is never taken."""
    q, k, v = tensors(batch=1)
    prepared.kernel("flash_mma")(q.as_strided(q.shape, (3, 320, 64, 1)), k, v)
    assert len(driver.launches) == 1


@pytest.mark.parametrize("which", ["q", "k", "v", "out", "lse"])
def test_gradients_are_refused(which, driver):
    attention = prepared.kernel("flash_mma")
    given = dict(zip("qkv", tensors(), strict=True)) | {
        "out": tensor(2, 4, 5, 64),
        "lse": tensor(2, 4, 5, dtype=FLOAT32),
    }
    given[which].requires_grad_()
    expected = "flash_mma has no backward: call it within torch.no_grad()"
    assert refused(driver, "flash_mma", **given) == expected
    with torch.no_grad():
        attention(**given)
    assert len(driver.launches) == 1
