"""Cross-entropy with label smoothing and a z-loss: a loss a token."""

import torch

SMOOTHING, Z = 0.1, 1e-3


def cross_entropy(logits, target):
    row_max = logits.max(-1, keepdim=True).values
    row_sum = torch.exp(logits - row_max).sum(-1)
    lse = row_max[:, 0] + torch.log(row_sum)
    picked = torch.gather(logits, 1, target[:, None])[:, 0]
    nll = lse - picked
    smooth = lse - logits.mean(-1)
    z_loss = Z * lse**2
    loss = (1 - SMOOTHING) * nll + SMOOTHING * smooth + z_loss
    return loss


def inputs(seed, dtype, tokens=48, vocab=300):
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(tokens, vocab, generator=g) * (1.0, 3.0, 2.0)[seed % 3] + (0.0, 2.0, -3.0)[seed % 3]
    return {"logits": logits.to(getattr(torch, dtype)), "target": torch.randint(0, vocab, (tokens,), generator=g)}
