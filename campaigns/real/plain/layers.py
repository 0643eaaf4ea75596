"""Products and element-wise functions, from their definitions."""

import torch
from torch.nn import functional as F


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Softmax attention of [batch, heads, time, dim]."""
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    probs = scores.softmax(-1)
    return probs @ v


def addmm(bias: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A product of matrices plus a matrix."""
    return x @ y + bias


def elu_backward(grad: torch.Tensor, result: torch.Tensor, alpha: float) -> torch.Tensor:
    """The gradient of an ELU, from its result."""
    return grad * torch.where(result > 0, 1.0, result + alpha)


def largest_of_even(x: torch.Tensor) -> torch.Tensor:
    """The largest number of every second column."""
    return x[:, ::2].amax()


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Over the last dimension."""
    return x.softmax(-1)


def geglu(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """GELU(a) b, by tanh."""
    return (F.gelu(a.float(), approximate="tanh") * b.float()).to(a.dtype)


def gelu_and_mul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """GELU(a) b, by the error function."""
    return (F.gelu(a.float()) * b.float()).to(a.dtype)


def swiglu(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a sigmoid(a) b."""
    return (F.silu(a.float()) * b.float()).to(a.dtype)


def halves_swiglu(x: torch.Tensor) -> torch.Tensor:
    """The same of the two halves of the last dimension."""
    a, b = x.float().chunk(2, -1)
    return (F.silu(a) * b).to(x.dtype)


def dynamic_tanh(x: torch.Tensor, alpha: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    """gamma tanh(alpha x) + beta."""
    return (gamma.float() * torch.tanh(alpha.float() * x.float()) + beta.float()).to(x.dtype)


def relu_squared(x: torch.Tensor) -> torch.Tensor:
    """The square of what is positive."""
    return (x.float().relu() ** 2).to(x.dtype)


def log_sigmoid(x: torch.Tensor) -> torch.Tensor:
    """The logarithm of a sigmoid."""
    return F.logsigmoid(x.float()).to(x.dtype)


def softplus(x: torch.Tensor) -> torch.Tensor:
    """log(1 + exp(x))."""
    return F.softplus(x.float()).to(x.dtype)


def deviation(x: torch.Tensor) -> torch.Tensor:
    """The standard deviation of all elements, over n - 1."""
    centered = x.float() - x.float().mean()
    return ((centered * centered).sum() / (x.numel() - 1)).sqrt().to(x.dtype)


def cumulative_sum(x: torch.Tensor) -> torch.Tensor:
    """Over the last dimension."""
    return x.float().cumsum(-1).to(x.dtype)


def length(x: torch.Tensor) -> torch.Tensor:
    """The root of the sum of squares of all elements."""
    return (x.float() ** 2).sum().sqrt().to(x.dtype)
