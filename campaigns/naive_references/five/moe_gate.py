"""MoE gate: softmax of the router's logits, the 4 best experts and their weights, normalised."""
import torch


def naive(logits):
    probs = torch.softmax(logits.float(), -1)
    top, indices = torch.topk(probs, 4)
    weights = top / top.sum(-1, keepdim=True)
    return weights, indices


def inputs(seed, dtype, tokens=64, experts=64):
    g = torch.Generator().manual_seed(seed)
    return {"logits": torch.randn(tokens, experts, generator=g).to(getattr(torch, dtype))}


def right_iterative(logits):
    """Four rounds of argmax; the best so far is masked with -1."""
    e = torch.exp(logits.float() - logits.float().amax(-1, keepdim=True))
    probs = e * (1 / e.sum(-1, keepdim=True))
    rest, best, where = probs.clone(), [], []
    for _ in range(4):
        at = rest.argmax(-1, keepdim=True)
        best.append(rest.gather(-1, at))
        where.append(at)
        rest.scatter_(-1, at, -1.0)
    total = (best[3] + best[2]) + (best[1] + best[0])
    return torch.cat(best, -1) / total, torch.cat(where, -1)


def right_logits_first(logits):
    """The 4 best logits, then a softmax of these alone."""
    best, where = torch.topk(logits.float(), 4)
    e = torch.exp2((best - best[:, :1]) * 1.4426950408889634)
    return e * (1 / e.sum(-1, keepdim=True)), where


def right_sorted(logits):
    """A stable sort of each half of the experts, then of the 8 candidates; the denominator in tiles of 16."""
    x = logits.float()
    half = x.shape[-1] // 2
    lo, hi = (torch.sort(p, dim=-1, descending=True, stable=True) for p in (x[:, :half], x[:, half:]))
    values = torch.cat([lo.values[:, :4], hi.values[:, :4]], -1)
    where = torch.cat([lo.indices[:, :4], hi.indices[:, :4] + half], -1)
    order = torch.sort(values, dim=-1, descending=True, stable=True).indices[:, :4]
    best, m = values.gather(-1, order), x.amax(-1, keepdim=True)
    total = sum(torch.exp(tile - m).sum(-1, keepdim=True) for tile in x.split(16, -1))
    top = torch.exp(best - m) / total
    return top / top.sum(-1, keepdim=True), where.gather(-1, order)


def staged(logits, mistake):
    e = torch.exp(logits.float() - logits.float().amax(-1, keepdim=True))
    probs = e / e.sum(-1, keepdim=True)
    top, indices = torch.topk(probs, 4)
    if mistake == "index":
        indices = torch.where(indices >= 48, indices - 48, indices)
    total = top[:, : 3 if mistake == "last" else 4].sum(-1, keepdim=True)
    weights = top / (total + (1e-5 if mistake == "eps" else 0))
    return {"probs": probs, "top": top, "indices": indices, "weights": weights}


def wrong_eps_staged(logits):
    return staged(logits, "eps")


def wrong_eps(logits):
    """1e-5 is added to the sum of the 4 weights before the division."""
    got = staged(logits, "eps")
    return got["weights"], got["indices"]


def wrong_index_staged(logits):
    return staged(logits, "index")


def wrong_index(logits):
    """Experts of the last tile of 16 are numbered from the tile's start: 48 is not added."""
    got = staged(logits, "index")
    return got["weights"], got["indices"]


def wrong_last(logits):
    """The normalising sum forgets the fourth weight."""
    got = staged(logits, "last")
    return got["weights"], got["indices"]


if __name__ == "__main__":
    import sys
    sys.path.insert(0, ".")
    import check
    check.main(globals())
