"""FlashKDA 16: gated delta rule (KDA); bit equality in bfloat16 asked of one kernel under two compilers."""
import torch

DTYPE = "bfloat16"
CONTRACT = ""


def naive(q, k, v, g, beta):
    decay = torch.exp(g.float())
    state = torch.zeros(q.shape[1], q.shape[2], v.shape[2])
    outs = []
    for t in range(q.shape[0]):
        state = decay[t][..., None] * state
        error = v[t].float() - (k[t].float()[..., None] * state).sum(-2)
        state = state + beta[t].float()[:, None, None] * k[t].float()[..., None] * error[:, None]
        outs.append((q[t].float()[..., None] * state).sum(-2) * q.shape[2] ** -0.5)
    out = torch.stack(outs).to(v.dtype)
    return out


def inputs(seed, dtype, T=32, H=2, K=16, V=16):
    r, dtype = torch.Generator().manual_seed(seed), getattr(torch, dtype)
    q, k = (torch.nn.functional.normalize(torch.randn(T, H, K, generator=r), dim=-1).to(dtype) for _ in range(2))
    return {"q": q, "k": k, "v": torch.randn(T, H, V, generator=r).to(dtype),
            "g": torch.nn.functional.logsigmoid(torch.randn(T, H, K, generator=r)) / 8,
            "beta": torch.rand(T, H, generator=r).to(dtype)}


def fma(a, b, c):
    return (a.double() * b.double() + c.double()).float()


def recurrence(q, k, v, g, beta, terms):
    T, H, K = q.shape
    q, k, x, beta = q.float() * K ** -0.5, k.float(), v.float(), beta.float()
    state, outs = torch.zeros(H, K, v.shape[2]), []
    for t in range(T):
        state = torch.exp2(g[t].float() * 1.4426950408889634)[..., None] * state
        error = x[t]
        for i in range(terms):
            error = fma(-k[t, :, i, None], state[:, i], error)
        state = fma(k[t][..., None], (beta[t][:, None] * error)[:, None], state)
        o = torch.zeros_like(error)
        for i in reversed(range(K)):
            o = fma(q[t, :, i, None], state[:, i], o)
        outs.append(o)
    return torch.stack(outs).to(v.dtype)


def right(q, k, v, g, beta):
    """Multiplications and additions contracted to FMAs, sums one by one, exp as exp2."""
    return recurrence(q, k, v, g, beta, q.shape[2])


def wrong(q, k, v, g, beta):
    """The sum over k * state forgets its last term."""
    return recurrence(q, k, v, g, beta, q.shape[2] - 1)


if __name__ == "__main__":
    import sys
    sys.path.insert(0, ".")
    import check
    check.main(globals())
