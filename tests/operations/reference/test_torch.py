"""References in torch, and what is mixed."""

import numpy as np
import pytest

from workbench.operations.reference.call import diff_reference, diff_results
from workbench.reference.graph import trace
from workbench.refusal import Refusal

torch = pytest.importorskip("torch")


def naive(x, weight):
    x32 = x.float()
    normed = x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (normed * weight.float()).to(x.dtype)


def inputs(seed, dtype, rows=16, dim=64):
    g, dtype = torch.Generator().manual_seed(seed), getattr(torch, dtype)
    return {"x": torch.randn(rows, dim, generator=g).to(dtype), "weight": torch.randn(dim, generator=g).to(dtype)}


@pytest.fixture(autouse=True)
def front_end() -> None:
    try:
        trace(naive, inputs(0, "float32"))
    except Refusal:
        pytest.skip("this checkout has no front end of torch")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_right_kernel_is_right(dtype: str) -> None:
    def kernel(x, weight):
        out = torch.empty_like(x)
        x32 = x.float()
        out[:] = x32 / ((x32 * x32).sum(-1, keepdim=True) / x.shape[-1] + 1e-6).sqrt() * weight.float()
        return out

    found = diff_reference(kernel, naive, inputs, dtype=dtype)
    assert found.verdict in ("exact", "rounding") and found.stages[0].decisive.summary.judged == 16 * 64


def test_wrong_ones_are_bugs() -> None:
    def unbiased(x, weight):
        x32 = x.float()
        return (x32 * torch.rsqrt(x32.pow(2).sum(-1, keepdim=True) / 63 + 1e-6) * weight.float()).to(x.dtype)

    def unwritten(x, weight):
        out = torch.empty_like(x)
        out[:, :-1] = naive(x, weight)[:, :-1]
        return out

    assert diff_reference(unbiased, naive, inputs, dtype="bfloat16").verdict == "bug"
    assert diff_reference(unwritten, naive, inputs, dtype="bfloat16").verdict == "missing"


def test_a_stage_rounded_to_the_inputs_dtype_is_named() -> None:
    def kernel(x, weight):
        return torch.nn.functional.rms_norm(x, x.shape[-1:], eps=1e-6) * weight

    found = diff_reference(kernel, naive, inputs, dtype="bfloat16")
    assert found.verdict == "suspicious" and "stored=normed:bfloat16" in found.stages[0].reason
    assert diff_reference(kernel, naive, inputs, dtype="bfloat16", contract="stored=normed").verdict in (
        "exact",
        "rounding",
    )


def test_stages_of_a_kernel_in_torch_take_the_place_of_the_reference_s() -> None:
    def kernel(x, weight):
        x32 = x.float()
        normed = x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + 1e-6)
        normed[3] *= 1.001
        return {"normed": normed, "result": (normed * weight.float()).to(x.dtype)}

    found = diff_reference(kernel, naive, inputs)
    assert found.origins == ("normed",) and found.victims == ("result",)


def test_arrays_alone() -> None:
    given = inputs(0, "bfloat16")
    assert diff_results(naive(**given), naive, given).verdict in ("exact", "rounding")
    assert diff_results(np.zeros((16, 64), np.float32), naive, given).verdict == "bug"


def test_a_reference_in_torch_gets_tensors_where_inputs_are_numpy_s() -> None:
    given = {name: x.numpy() for name, x in inputs(0, "float32").items()}
    assert diff_results(naive(**inputs(0, "float32")), naive, given).verdict in ("exact", "rounding")
    assert diff_reference(naive, naive, given).verdict in ("exact", "rounding")


def test_a_polynomial_for_erf_is_told_from_a_bug() -> None:
    """Abramowitz and Stegun 7.1.26, in float32, within gelu: torch's own on a CPU."""

    def naive(x):
        return 0.5 * x * (1 + torch.erf(x * 0.5**0.5))

    def kernel(x, last=1.061405429):
        y = (x * 0.5**0.5).abs()
        t = 1 / (1 + 0.3275911 * y)
        sum_ = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * last))))
        return 0.5 * x * (1 + x.sign() * (1 - sum_ * torch.exp(-y * y)))

    x = 2 * torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    found = diff_reference(kernel, naive, {"x": x})
    assert (found.verdict, found.fails) == ("suspicious", False) and "pass with --contract fast=erf" in str(found)
    assert diff_reference(kernel, naive, {"x": x}, contract="fast=erf").verdict == "rounding"
    assert diff_reference(lambda x: kernel(x, 1.0615), naive, {"x": x}).verdict == "bug"


def test_a_fast_tanh_is_declared() -> None:
    """tanh.approx.f32 is 2^-11 off, which undeclared is a failure."""
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    given = {"x": x}

    def kernel(x):
        return torch.tanh(x) * (1 + 2.0**-11 * torch.sin(1000 * x))

    found = diff_reference(kernel, torch.tanh, given)
    assert found.fails and "fast=tanh" in str(found)
    assert diff_reference(kernel, torch.tanh, given, contract="fast=tanh").verdict == "rounding"


def routed(logits, x, w):
    top, places = torch.topk(logits, 2, dim=-1)
    return (torch.softmax(top, -1)[..., None] * (x[:, None] * w[places])).sum(1)


def of_equals_the_last(logits, x, w, shown=False, scale=1.0):
    places = logits.shape[-1] - 1 - torch.argsort(logits.flip(-1), dim=-1, descending=True, stable=True)[:, :2]
    weights = torch.softmax(torch.gather(logits, 1, places), -1) * scale
    out = (weights[..., None] * (x[:, None] * w[places])).sum(1)
    return {"result": out, "places": places} if shown else out


def routing():
    """Logits of which the second and the third are equal in one row of 200."""
    g = torch.Generator().manual_seed(0)
    logits = torch.stack([torch.randperm(8, generator=g) for _ in range(200)]).float()
    logits[7] = torch.tensor([0.0, 3, 2, 2, 1, 0, 0, 0])
    return {"logits": logits, "x": torch.randn(200, 4, generator=g), "w": torch.randn(8, 4, generator=g)}


def test_equal_values_may_be_taken_in_any_order() -> None:
    found = diff_reference(of_equals_the_last, routed, routing())
    assert found.verdict in ("exact", "rounding") and "return the kernel's indices as a stage" in str(found)
    assert found.stages[0].decisive.summary.judged == 199 * 4
    assert diff_reference(lambda **x: of_equals_the_last(**x, scale=1.01), routed, routing()).verdict == "bug"
    shown = diff_reference(lambda **x: of_equals_the_last(**x, shown=True), routed, routing())
    assert shown.verdict == "rounding" and shown.stages[1].decisive.summary.judged == 200 * 4


MAXIMA = {
    "amax": lambda x: x.amax(-1), "max": lambda x: x.max(-1).values, "topk": lambda x: x.topk(1).values[:, 0],
    "sort": lambda x: x.sort(-1).values[:, -1],
}  # fmt: skip


@pytest.mark.parametrize("reference", MAXIMA)
@pytest.mark.parametrize("kernel", MAXIMA)
def test_the_gradient_of_a_maximum_goes_to_any_of_equal_elements(kernel: str, reference: str) -> None:
    of, by = MAXIMA[kernel], MAXIMA[reference]
    x = torch.tensor([[1.0, 2, 2, 0], [3, 3, 3, 3], [0, 1, 2, 3]])
    assert diff_reference(of, by, {"x": x}, gradients=True).verdict in ("exact", "rounding", "untestable")
    assert diff_reference(lambda x: 2 * of(x), by, {"x": x}, gradients=True).verdict == "bug"
