"""Losses over logits [tokens, classes], from their definitions. A label of -100 does not count.

What a kernel has no gradient for, such as a teacher, is detached.
"""

import math

import torch
from torch.nn import functional as F

IGNORED = -100


def cross_entropy(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """A loss for each token."""
    x = x.float()
    return torch.logsumexp(x, -1) - x.gather(-1, labels[:, None])[:, 0]


def mean_cross_entropy(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean over tokens."""
    x = x.float()
    return (torch.logsumexp(x, -1) - x.gather(-1, labels[:, None])[:, 0]).mean()


def linear_cross_entropy(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """A loss for each token, of a linear layer's output."""
    logits = x @ weight.T + bias
    return torch.logsumexp(logits, -1) - logits.gather(-1, labels[:, None])[:, 0]


def kl_mean(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """KL(y || exp(x)), the mean over all elements, as torch has it; y are probabilities, x logarithms of some."""
    return (y * (y.log() - x)).mean()


def linear_kl(
    x: torch.Tensor, teacher: torch.Tensor, weight: torch.Tensor, teacher_weight: torch.Tensor
) -> torch.Tensor:
    """KL(teacher || student), the mean over tokens, of two linear layers' outputs."""
    logits = x @ weight.T
    teacher_logits = teacher.detach() @ teacher_weight.detach().T
    student, target = F.log_softmax(logits.float(), -1), F.log_softmax(teacher_logits.float(), -1)
    return (target.exp() * (target - student)).sum() / x.shape[0]


def linear_jsd(
    x: torch.Tensor,
    weight: torch.Tensor,
    teacher: torch.Tensor,
    teacher_weight: torch.Tensor,
    labels: torch.Tensor,
    beta: float,
) -> torch.Tensor:
    """The generalised Jensen-Shannon divergence of two linear layers' outputs, the mean over tokens that count."""
    student = F.log_softmax(x @ weight.T, -1)
    target = F.log_softmax(teacher.detach() @ teacher_weight.detach().T, -1)
    counted = labels != IGNORED
    return torch.where(counted, divergence(student, target, beta), 0.0).sum() / counted.sum()


def distilled(
    x: torch.Tensor,
    weight: torch.Tensor,
    teacher: torch.Tensor,
    teacher_weight: torch.Tensor,
    labels: torch.Tensor,
    beta: float,
) -> torch.Tensor:
    """Half of the cross-entropy with the labels, and half of the divergence from the teacher."""
    student = F.log_softmax(x @ weight.T, -1)
    target = F.log_softmax(teacher.detach() @ teacher_weight.detach().T, -1)
    hard = -student.gather(-1, labels.clamp(min=0)[:, None])[:, 0]
    soft = divergence(student, target, beta)
    counted = labels != IGNORED
    return torch.where(counted, (hard + soft) / 2, 0.0).sum() / counted.sum()


def divergence(student: torch.Tensor, target: torch.Tensor, beta: float) -> torch.Tensor:
    """beta KL(target || mean) + (1 - beta) KL(student || mean), of logarithms of probabilities, for each token."""
    mean = torch.logsumexp(torch.stack([student + math.log(1 - beta), target + math.log(beta)]), 0)
    to_target, to_student = target.exp() * (target - mean), student.exp() * (student - mean)
    return beta * to_target.sum(-1) + (1 - beta) * to_student.sum(-1)


def l2_wrapped(loss: torch.Tensor, logits: torch.Tensor, factor: float) -> torch.Tensor:
    """The loss, with the gradient of a penalty on the square of each token's largest logit, [batch, time, classes]."""
    penalty = factor / 2 * (logits.max(-1).values ** 2).mean()
    return loss + (penalty - penalty.detach())


def grpo(
    logps: torch.Tensor,
    ref_logps: torch.Tensor,
    old_logps: torch.Tensor,
    kept: torch.Tensor,
    rewards: torch.Tensor,
    beta: float,
    epsilon: float,
) -> torch.Tensor:
    """The loss of group relative policy optimisation, one group, [generations, tokens]."""
    advantage = ((rewards - rewards.mean()) / (rewards.std() + 1e-8))[:, None]
    kl = torch.exp(ref_logps - logps) - (ref_logps - logps) - 1
    ratio = torch.exp(logps - old_logps)
    gain = torch.minimum(advantage * ratio, advantage * ratio.clamp(1 - epsilon, 1 + epsilon)) - beta * kl
    return -(gain * kept).sum() / kept.sum()


def jsd(x: torch.Tensor, y: torch.Tensor, beta: float) -> torch.Tensor:
    """The generalised Jensen-Shannon divergence, the mean over tokens, of logarithms of probabilities."""
    return divergence(x.float(), y.detach().float(), beta).sum() / x.shape[0]


def tvd(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Half of the sum of distances of probabilities, the mean over tokens."""
    return (x.float() - y.detach().float()).abs().sum() / 2 / x.shape[0]
