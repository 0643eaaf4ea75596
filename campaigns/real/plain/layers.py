"""Products and element-wise functions, from their definitions."""

import torch


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
