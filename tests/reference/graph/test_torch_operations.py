"""Every operation of ATen that naive references use: values, dtypes and shapes of torch itself, or a refusal by name."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.reference.graph.wide import flat, wide
from workbench.reference.graph import Contract, budgets, trace
from workbench.reference.graph.torch_tensor import DTYPES
from workbench.refusal import Refusal

torch.manual_seed(0)
X, Y, POSITIVE = torch.randn(4, 6), torch.randn(4, 6), torch.rand(4, 6) + 0.5
SQUARE, BATCH, VECTOR = torch.randn(4, 4), torch.randn(3, 4, 6), torch.randn(6)
PLACES = torch.tensor([[0, 2, 1, 3, 0, 1], [3, 3, 0, 1, 2, 2]])
TARGET, MASK = torch.tensor([2, 0, 5, 1]), torch.rand(4, 6) > 0.5
INF = float("inf")

#: f(x, y), of tensors of (4, 6)
BINARY: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y, "add alpha": lambda x, y: torch.add(x, y, alpha=2), "sub": lambda x, y: x - y,
    "sub alpha": lambda x, y: torch.sub(x, y, alpha=0.5), "rsub": lambda x, y: 1 - x, "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y, "div floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "floor_divide": lambda x, y: x // 0.3, "remainder": lambda x, y: x % 0.7, "fmod": lambda x, y: torch.fmod(x, 0.7),
    "maximum": torch.maximum, "minimum": torch.minimum, "max of two": torch.max, "eq": lambda x, y: (x == y).float(),
    "lt": lambda x, y: x < y, "ge and not": lambda x, y: (x >= y) & ~(x > 1), "or xor": lambda x, y: (x > y) | (x > 0) ^ (y > 0),
    "logical": lambda x, y: torch.logical_and(x > 0, torch.logical_not(y > 0)), "where": lambda x, y: torch.where(x > y, x, y),
    "where number": lambda x, y: torch.where(x > 0, x, 0.0), "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.5), "addcdiv": lambda x, y: torch.addcdiv(x, x, y),
    "logaddexp": torch.logaddexp, "mm": lambda x, y: x @ y.t(), "outer": lambda x, y: torch.outer(x[0], y[:, 0]),
    "dot": lambda x, y: torch.dot(x[0], y[0]), "mv": lambda x, y: x @ y[0], "bmm": lambda x, y: x[None] @ y.t()[None],
    "matmul": lambda x, y: torch.matmul(x.expand(2, 3, 4, 6), y.t()), "addmm": lambda x, y: torch.addmm(x[:, :4], x, y.t(), beta=0.5, alpha=2),
    "baddbmm": lambda x, y: torch.baddbmm(x[None, :, :4], x[None], y.t()[None]), "linear": lambda x, y: F.linear(x, y, y[:, 0]),
    "einsum": lambda x, y: torch.einsum("id,jd->ij", x, y), "einsum outer": lambda x, y: torch.einsum("i,j->ij", x[0], y[0]),
    "einsum batch": lambda x, y: torch.einsum("bd,bv->bdv", x, y), "einsum trace": lambda x, y: torch.einsum("ij,ij->i", x, y),
    "tensordot": lambda x, y: torch.tensordot(x, y, dims=([1], [1])), "kron": lambda x, y: torch.kron(x[:2, :2], y[:2, :2]),
    "cat": lambda x, y: torch.cat([x, y], -1), "stack": lambda x, y: torch.stack([x, y], 1), "mse": F.mse_loss, "l1": F.l1_loss,
    "bce": lambda x, y: F.binary_cross_entropy_with_logits(x, y), "cosine": lambda x, y: F.cosine_similarity(x, y, dim=-1),
    "conv1d": lambda x, y: F.conv1d(x[None], y.reshape(3, 4, 2), padding=1), "conv1d bias stride": lambda x, y: F.conv1d(x[None], y.reshape(3, 4, 2), y[0, :3], stride=2, dilation=2),
    "conv1d depthwise": lambda x, y: F.conv1d(F.pad(x[None], (2, 0)), y[:, None, :3], groups=4),
    "sdpa": lambda x, y: F.scaled_dot_product_attention(x[None, None], y[None, None], x[None, None], is_causal=True),
    "rotate half": lambda x, y: x * y.cos() + torch.cat([-x[..., 3:], x[..., :3]], -1) * y.sin(), "swiglu": lambda x, y: F.silu(x) * y,
    "addmv": lambda x, y: torch.addmv(x[:, 0], x, y[0]), "cdist by hand": lambda x, y: (x[:, None] - y[None]).square().sum(-1).sqrt(),
    "clamp tensor": lambda x, y: torch.clamp(x, min=y), "vdot": lambda x, y: torch.vdot(x[0], y[0]), "addr": lambda x, y: torch.addr(x, x[:, 0], y[0]),
    "copy_": lambda x, y: x.clone().copy_(y), "type_as": lambda x, y: x.type_as(y.half()), "bilinear": lambda x, y: torch.einsum("bi,ij,bj->b", x, y.t() @ x, y),
}  # fmt: skip
#: f(x)
UNARY: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in
       "neg abs square sign sgn floor ceil trunc round exp exp2 expm1 sin cos tanh sinh cosh atan asinh relu sigmoid isnan "
       "isinf isfinite deg2rad rad2deg erf logical_not reciprocal nan_to_num sum mean var std amax amin max min argmax argmin "
       "tril triu t flatten clone isneginf isposinf".split()},
    "pow 2": lambda x: x**2, "pow 3": lambda x: x.pow(3), "pow of": lambda x: 2.0**x, "pow tensor": lambda x: x.abs().pow(x), "pow root": lambda x: x.abs() ** 0.5, "pow -0.5": lambda x: (x * x + 1).pow(-0.5),
    "clamp": lambda x: x.clamp(-0.5, 0.5), "clamp_min": lambda x: x.clamp_min(0.1), "clamp_max": lambda x: x.clamp(max=0.1), "round decimals": lambda x: torch.round(x, decimals=1),
    "masked_fill": lambda x: x.masked_fill(x > 0, -1e9), "silu": F.silu, "gelu": F.gelu, "gelu tanh": lambda x: F.gelu(x, approximate="tanh"), "softplus": F.softplus, "softplus beta": lambda x: F.softplus(x * 30, 2.0),
    "logsigmoid": F.logsigmoid, "leaky_relu": F.leaky_relu, "elu": lambda x: F.elu(x) + 1, "softmax": lambda x: x.softmax(-1), "softmax float": lambda x: F.softmax(x, -1, dtype=torch.float32),
    "log_softmax": lambda x: x.log_softmax(0), "logsumexp infinite": lambda x: x.masked_fill(torch.ones(4, 6).triu(0).bool(), -INF).logsumexp(-1),
    "logsumexp": lambda x: x.logsumexp(-1), "logsumexp keep": lambda x: torch.logsumexp(x, (0, 1), keepdim=True), "softmax infinite": lambda x: x.masked_fill(torch.ones(4, 6).triu(1).bool(), -INF).softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, (6,)), "layer_norm affine": lambda x: F.layer_norm(x, (6,), x[0], x[1], 1e-3), "rms_norm": lambda x: F.rms_norm(x, (6,), x[0], 1e-6), "group_norm": lambda x: F.group_norm(x.reshape(2, 4, 3), 2, x[0, :4], x[1, :4]), "normalize": lambda x: F.normalize(x, dim=-1),
    "sum dims": lambda x: x.sum((0, -1)), "sum keep": lambda x: x.sum(-1, keepdim=True), "sum dtype": lambda x: x.sum(0, dtype=torch.float64), "sum of truths": lambda x: (x > 0).sum(-1), "mean dim": lambda x: x.mean(-1, keepdim=True),
    "var": lambda x: x.var(-1, unbiased=False), "var keep": lambda x: x.var(-1, keepdim=True), "std": lambda x: x.std(-1), "var_mean": lambda x: torch.var_mean(x, -1), "max dim": lambda x: tuple(x.max(-1)), "min dim": lambda x: tuple(x.min(0, keepdim=True)),
    "aminmax": lambda x: tuple(torch.aminmax(x, dim=-1)), "argmax dim": lambda x: x.argmax(-1), "argmin keep": lambda x: x.argmin(0, keepdim=True), "all": lambda x: (x > -9).all(), "any dim": lambda x: (x > 1).any(-1), "cumsum": lambda x: x.cumsum(-1), "reverse cumsum": lambda x: x.flip(0).cumsum(0).flip(0), "cumsum of truths": lambda x: (x > 0).cumsum(1),
    "norm": lambda x: x.norm(dim=-1), "norm p": lambda x: torch.norm(x, p=2, dim=-1, keepdim=True), "vector norm 1": lambda x: torch.linalg.vector_norm(x, 1, dim=-1), "norm inf": lambda x: torch.linalg.vector_norm(x, INF),
    "view": lambda x: x.view(2, 2, 6), "reshape": lambda x: x.t().reshape(-1), "permute": lambda x: x.reshape(2, 2, 6).permute(2, 0, 1), "transpose": lambda x: x.transpose(0, 1), "mT": lambda x: x.mT, "expand": lambda x: x[None].expand(3, -1, -1), "broadcast_to": lambda x: x[0].broadcast_to(3, 6), "expand_as": lambda x: x[:, :1].expand_as(x),
    "unsqueeze": lambda x: x.unsqueeze(-1), "squeeze": lambda x: x[None, :, None].squeeze(), "squeeze dim": lambda x: x[None].squeeze(0), "movedim": lambda x: x[None].movedim(0, -1), "unflatten": lambda x: x.unflatten(-1, (2, 3)), "flatten some": lambda x: x.reshape(2, 2, 6).flatten(1), "contiguous": lambda x: x.t().contiguous(),
    "slice": lambda x: x[1:, ::2], "select": lambda x: x[1], "narrow": lambda x: x.narrow(1, 1, 3), "ellipsis": lambda x: x[..., None, 1:], "list index": lambda x: x[:, [0, 2, 2]], "two lists": lambda x: x[[0, 1], [2, 3]], "mask index": lambda x: x[x > 0], "mask rows": lambda x: x[torch.tensor([True, False, True, True])], "masked_select": lambda x: x.masked_select(x > 0),
    "unbind": lambda x: torch.unbind(x, 1), "split": lambda x: x.split(4, -1), "split sizes": lambda x: x.split([1, 2, 3], 1), "chunk": lambda x: x.chunk(3, -1), "tensor_split": lambda x: x.tensor_split(4, 1), "hstack": lambda x: torch.hstack([x, x]), "vstack": lambda x: torch.vstack([x, x]), "repeat": lambda x: x.repeat(2, 1, 2), "tile": lambda x: x.tile(2), "repeat_interleave": lambda x: x.repeat_interleave(3, dim=0), "repeat_interleave tensor": lambda x: x.repeat_interleave(torch.tensor([1, 0, 2, 1]), dim=0),
    "flip": lambda x: x.flip(-1), "roll": lambda x: x.roll(1, 0), "roll flat": lambda x: torch.roll(x, 3), "tril k": lambda x: x.tril(-1), "triu batch": lambda x: x.reshape(2, 2, 6).triu(1), "diagonal": lambda x: x.diagonal(1), "diag": lambda x: torch.diag(x[0]), "diag_embed": lambda x: torch.diag_embed(x), "trace": lambda x: x[:, :4].trace(), "unfold": lambda x: x.unfold(-1, 3, 2),
    "pad": lambda x: F.pad(x, (1, 2)), "pad value": lambda x: F.pad(x, (0, 0, 1, 0), value=-1.0), "pad cut": lambda x: F.pad(x, (-1, 1)), "block_diag": lambda x: torch.block_diag(x, x), "meshgrid": lambda x: torch.meshgrid(x[0], x[1], indexing="ij"), "rot90": lambda x: torch.rot90(x), "swapdims": lambda x: x.swapdims(0, 1),
    "sort": lambda x: tuple(x.sort(-1)), "sort descending": lambda x: tuple(x.sort(0, descending=True)), "argsort": lambda x: x.argsort(-1, descending=True), "sort stable": lambda x: torch.sort(x, stable=True, dim=-1)[1], "topk": lambda x: tuple(x.topk(3, -1)), "topk smallest": lambda x: tuple(torch.topk(x, 2, 0, largest=False)), "topk mask": lambda x: x.masked_fill(x < x.topk(2, -1)[0][:, -1:], -INF),
    "gather": lambda x: x.gather(1, PLACES[:, :4].t()), "gather computed": lambda x: x.gather(-1, x.topk(2, -1)[1]), "index_fill tensor": lambda x: x.index_fill(1, torch.tensor([2, 0]), x[0, 0]),
    "cumprod": lambda x: x.exp().cumprod(0),
    "cumprod row": lambda x: (1 + x.exp()).cumprod(-1)[:, -1],
    "prod": lambda x: x.prod(),
    "prod dim": lambda x: x.prod(1, keepdim=True),
    "counts": lambda x: x * torch.bincount(TARGET, minlength=6),
    "members": lambda x: x * torch.isin(torch.arange(6), TARGET) + torch.unique(TARGET).sum(),
    "segments": lambda x: x * torch.searchsorted(torch.tensor([1, 3]), torch.arange(6)),
    "index computed from behind": lambda x: x[:, x[0].argsort() - 6],
    "groups of places": lambda x: (x.topk(2, -1)[1] // 3, x.topk(2, -1)[1] % 4, x.argmax(-1) % 5),
    "index computed": lambda x: x[x[:, 0].argsort()], "index computed axis": lambda x: x[:, x[0].argsort()], "index two computed": lambda x: x[x[:, :4].argmax(-1), x.argmax(-1)], "index_select": lambda x: x.index_select(1, torch.tensor([2, 0])), "index_select computed": lambda x: x.index_select(1, x[0].argsort()), "take_along_dim": lambda x: torch.take_along_dim(x, x.argsort(-1), dim=-1), "embedding": lambda x: F.embedding(TARGET[[1, 3, 3]], x),
    "scatter": lambda x: torch.zeros(4, 6).scatter(0, PLACES[:1], x[:1]), "scatter value": lambda x: x.scatter(1, PLACES[:1, :1], 7.0), "scatter computed": lambda x: torch.zeros_like(x).scatter(-1, x.topk(2, -1)[1], x.topk(2, -1)[0].softmax(-1)), "scatter_add": lambda x: torch.zeros(4, 6).scatter_add(0, PLACES, x[:2]), "scatter_add_": lambda x: torch.ones(3, 6).scatter_add_(0, PLACES % 3, x[1:3]), "scatter_add computed": lambda x: torch.zeros(4, 9).scatter_add(1, x.argsort(-1), x), "index_add": lambda x: torch.zeros(2, 6).index_add(0, torch.tensor([0, 1, 0, 0]), x), "index_add_ alpha": lambda x: x.clone().index_add_(1, torch.tensor([0, 0]), x[:, 2:4], alpha=2), "index_copy": lambda x: x.index_copy(0, torch.tensor([2, 0]), x[:2] * 2), "index_fill": lambda x: x.index_fill(1, torch.tensor([2, 0]), 3.0), "scatter_reduce": lambda x: torch.zeros(4, 6).scatter_reduce(0, PLACES, x[:2], "sum"),
    "index_put": lambda x: x.index_put((torch.tensor([0, 1]),), torch.tensor(2.0)), "index_put accumulate": lambda x: x.index_put((torch.tensor([0, 1, 0]),), x[1:], accumulate=True), "index_put computed": lambda x: torch.zeros_like(x).index_put((x[:, 0].argsort(),), x), "mask write": lambda x: _written(x, lambda y: y.__setitem__(y > 0, 0.0)), "one_hot": lambda x: F.one_hot(x.argmax(-1), 6), "one_hot mask": lambda x: F.one_hot(x.topk(2, -1)[1], 6).sum(1) * x, "bucketize by hand": lambda x: (x[..., None] > torch.tensor([-1.0, 0.0, 1.0])).sum(-1), "nonzero": lambda x: torch.nonzero(x > 0), "where one": lambda x: torch.where(x > 0)[1], "count_nonzero": lambda x: (x > 0).sum(),
    "cross_entropy": lambda x: F.cross_entropy(x, TARGET), "cross_entropy none": lambda x: F.cross_entropy(x, TARGET, reduction="none"), "cross_entropy sum ignore": lambda x: F.cross_entropy(x, TARGET, ignore_index=5, reduction="sum"), "cross_entropy ignore": lambda x: F.cross_entropy(x, TARGET, ignore_index=5), "cross_entropy weight": lambda x: F.cross_entropy(x, TARGET, weight=x[0].exp()), "cross_entropy smooth": lambda x: F.cross_entropy(x, TARGET, label_smoothing=0.1), "nll_loss": lambda x: F.nll_loss(x.log_softmax(-1), TARGET), "cross_entropy soft": lambda x: F.cross_entropy(x, x.softmax(-1)), "kl_div": lambda x: F.kl_div(x.log_softmax(-1), x.flip(0).softmax(-1), reduction="batchmean"), "z loss": lambda x: x.logsumexp(-1).square().mean(),
    "float": lambda x: x.float(), "half": lambda x: x.half(), "bfloat16": lambda x: x.bfloat16() + 1, "to": lambda x: x.to(torch.float16) * 2.0, "double": lambda x: x.double() + x, "to int": lambda x: (x * 10).to(torch.int32), "long": lambda x: (x * 3).long() + 1, "bool": lambda x: (x > 0).bool(), "from int": lambda x: TARGET[:, None] * x, "from bool": lambda x: (x > 0).to(x.dtype) * x, "int division": lambda x: (torch.arange(6) / 4) * x, "int power": lambda x: 10000.0 ** (-torch.arange(0, 6, 2) / 6) * x[:, :3], "zero dims": lambda x: x * torch.tensor(2.0, dtype=torch.float64), "half and float": lambda x: x.half() * x.bfloat16(),
    "rope": lambda x: _rope(x), "silu gate": lambda x: x * torch.sigmoid(x), "alibi": lambda x: x - (torch.arange(4)[:, None] - torch.arange(6)).abs() * 0.5, "decay": lambda x: (x.abs().neg().cumsum(0)[:, None] - x.abs().neg().cumsum(0)[None]).exp().masked_fill(torch.ones(4, 4).triu(1).bool()[..., None], 0), "is_tensor": lambda x: x * torch.is_tensor(x) * x.is_floating_point() * x.dim() * x.size(0) * x.numel(), "device": lambda x: x + torch.ones(6, device=x.device, dtype=x.dtype), "dot of rows": lambda x: (x * x).sum(-1) @ x, "T": lambda x: x.T, "ravel": lambda x: x.ravel(), "glu": lambda x: F.glu(x, -1), "softsign": lambda x: x / (1 + x.abs()), "mish": F.mish, "hardswish": F.hardswish, "relu6": F.relu6, "smooth_l1": lambda x: F.smooth_l1_loss(x, x.flip(0)), "softmin": lambda x: F.softmin(x, -1), "tanhshrink": F.tanhshrink, "softcap": lambda x: 30 * torch.tanh(x / 30), "logit": lambda x: torch.logit(torch.sigmoid(x)), "celu": F.celu, "var dims": lambda x: torch.var(x, (0, 1), correction=0), "amax dims": lambda x: x.amax((0, 1)), "square_": lambda x: _written(x, lambda y: y.square_()), "hadamard": lambda x: torch.addcmul(x, x, x), "rsqrt": lambda x: torch.rsqrt(x * x + 1e-6), "log": lambda x: x.exp().log(), "log2": lambda x: x.exp2().log2(), "log1p": lambda x: x.exp().log1p(), "log10": lambda x: x.exp().log10(), "sqrt": lambda x: x.exp().sqrt(), "cumsum dtype": lambda x: x.cumsum(0, dtype=torch.float32), "dist": lambda x: torch.dist(x, x.flip(0)), "inner": lambda x: torch.inner(x, x), "chain_matmul": lambda x: torch.linalg.multi_dot([x, x.t(), x]), "cumulative decay": lambda x: F.logsigmoid(x).cumsum(-1).exp(), "argwhere": lambda x: torch.argwhere(x > 0), "ne sum": lambda x: (x != 0).sum(), "full_like": lambda x: torch.full_like(x, 0.3) * x, "is_inf mask": lambda x: x.masked_fill(torch.isinf(x), 0),
}  # fmt: skip


def _written(x, f):
    y = x.clone()
    f(y)
    return y


def _rope(x):
    inv = 1.0 / (10000.0 ** (torch.arange(0, 6, 2, dtype=torch.float32) / 6))
    angle = torch.outer(torch.arange(4).float(), inv)
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1).flatten(-2)


DEFAULT = Contract()


def by_keyword(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda **x: f(*x.values())


def check(f: Callable[..., Any], *inputs: torch.Tensor, contract: Contract = DEFAULT) -> None:
    names = ["x", "y"][: len(inputs)]
    graph = trace(by_keyword(f), dict(zip(names, inputs, strict=True)))
    found = list(budgets(graph, contract, names=list(graph.results)).values())
    noted, right = flat(f(*inputs)), wide(by_keyword(f), dict(zip("xy", inputs, strict=False)))
    assert len(found) == len(right) > 0
    narrow = any(str(node.dtype) in ("float16", "bfloat16") for node in graph.nodes)
    for one, node, plain, value in zip(found, graph.results.values(), noted, right, strict=True):
        assert graph.nodes[node].dtype == DTYPES[plain.dtype]
        assert one.value.shape == tuple(plain.shape)
        np.testing.assert_allclose(np.asarray(one.value, float), value.numpy(), rtol=1e-13, atol=1e-13)
        assert np.all(one.budget.bound >= 0) and np.all(np.isfinite(one.budget.bound))
        if not narrow:
            with np.errstate(invalid="ignore"):
                off = np.where(plain.numpy() == one.value, 0.0, abs(plain.double().numpy() - one.value))
            assert off.size and np.all(off <= one.budget.bound)


@pytest.mark.parametrize("name", BINARY)
def test_of_two_as_torch(name: str) -> None:
    check(BINARY[name], X, Y)


def written_after(f: Callable[..., Any]) -> Callable[..., Any]:
    def g(x):
        y = f(x)
        y += 1
        return x * 1

    return g


def test_results_share_memory_as_torchs_do() -> None:
    seen = []
    for name, f in UNARY.items():
        try:
            right = written_after(f)(X.clone())
        except (RuntimeError, TypeError):  # a tuple, a truth, or what stands in several places
            continue
        try:
            graph = trace(written_after(f), {"x": X})
        except Refusal as refused:
            assert "a view that a run copies" in str(refused), name
            continue
        value = budgets(graph, Contract())["result"].value
        np.testing.assert_allclose(value, right.numpy(), rtol=1e-5, atol=1e-6, err_msg=name)
        seen.append(not np.array_equal(value, X.double().numpy()))
    assert sum(seen) > 15 and len(seen) > 150


@pytest.mark.parametrize("name", UNARY)
def test_of_one_as_torch(name: str) -> None:
    # torch approximates erf by a polynomial in gelu on a CPU
    check(UNARY[name], X, contract=Contract(fast=("erf",)) if name == "gelu" else DEFAULT)


#: called with other shapes than they take; in torch with a constant in float32
STRANGE = {"_weight_norm_interface", "hardsigmoid_backward"}


def unary_and_binary() -> list[Any]:
    """Overloads of ATen that take one or two tensors, and need nothing else."""
    found = []
    for name in sorted({*dir(torch.ops.aten)} - STRANGE):
        packet = getattr(torch.ops.aten, name)
        for overload in getattr(packet, "overloads", list)():
            func = getattr(packet, overload)
            needed = [one for one in func._schema.arguments if not one.has_default_value()]
            if (
                1 <= len(needed) <= 2
                and all(str(one.type) == "Tensor" for one in needed)
                and not func._schema.is_mutable
            ):
                found.append((func, len(needed)))
    return found


def test_no_operation_of_aten_passes_for_another() -> None:
    """What has no rule is refused; what is not refused has torch's values and dtypes."""
    judged, refused = [], []
    for func, n in unary_and_binary():
        inputs = [POSITIVE[:, :4].contiguous(), SQUARE][:n]
        try:
            noted = flat(func(*inputs))
            if not all(isinstance(one, torch.Tensor) and one.dtype in DTYPES for one in noted):
                continue
            right = wide(by_keyword(func), dict(zip("xy", inputs, strict=False)))
        except (RuntimeError, NotImplementedError, TypeError, IndexError):
            continue
        try:
            graph = trace(by_keyword(func), dict(zip("xy", inputs, strict=False)))
        except Refusal:
            refused.append(str(func))
            continue
        except (AssertionError, RuntimeError, TypeError, NotImplementedError) as broken:
            raise AssertionError(f"{func}: {broken!r}") from broken
        values = budgets(graph, Contract(), names=list(graph.results)).values()
        for one, node, plain, value in zip(values, graph.results.values(), noted, right, strict=True):
            assert graph.nodes[node].dtype == DTYPES[plain.dtype], str(func)
            np.testing.assert_allclose(one.value, value.numpy(), rtol=1e-12, atol=1e-13, err_msg=str(func))
        judged.append(str(func))
    assert len(judged) > 150 and {"aten.erfinv.default", "aten.tan.default", "aten.linalg_qr.default"} <= {*refused}
