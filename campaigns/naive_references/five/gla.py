"""Gated linear attention: chunks against the recurrence, token by token; the output and the final state."""
import torch


def naive(q, k, v, g, h0):
    decay = torch.exp(g.float())
    state = h0.float()
    steps = []
    for t in range(q.shape[0]):
        state = decay[t][..., None] * state + k[t].float()[..., None] * v[t].float()[..., None, :]
        steps.append(state)
    states = torch.stack(steps)
    out = torch.einsum("thk,thkv->thv", q.float() * q.shape[-1] ** -0.5, states).to(v.dtype)
    final = states[-1]
    return out, final


def inputs(seed, dtype, T=50, H=2, K=16, V=16):
    r, dtype = torch.Generator().manual_seed(seed), getattr(torch, dtype)
    q, k, v = (torch.randn(T, H, d, generator=r).to(dtype) for d in (K, K, V))
    g = torch.nn.functional.logsigmoid(torch.randn(T, H, K, generator=r)) / 16
    return {"q": q, "k": k, "v": v, "g": g, "h0": torch.randn(H, K, V, generator=r)}


def chunked(q, k, v, g, h0, size, low=False):
    """q exp(G) and k exp(-G) within a chunk, as flash-linear-attention; operands in q's dtype if `low`."""
    operand = (lambda x: x.to(q.dtype).float()) if low else (lambda x: x)
    state, outs = h0.float(), []
    for s in range(0, q.shape[0], size):
        qc, kc, vc = (x[s:s + size].float().transpose(0, 1) for x in (q, k, v))
        G = g[s:s + size].float().cumsum(0).transpose(0, 1)
        qg = operand(qc * q.shape[-1] ** -0.5 * torch.exp(G))
        A = (qg @ operand(kc * torch.exp(-G)).mT).tril()
        outs.append((qg @ operand(state) + operand(A) @ vc).transpose(0, 1))
        end = G[:, -1:]
        state = torch.exp(end).mT * state + operand(kc * torch.exp(end - G)).mT @ vc
    return torch.cat(outs).to(v.dtype), state


def right_chunk16(q, k, v, g, h0):
    return chunked(q, k, v, g, h0, 16)


def right_operands(q, k, v, g, h0):
    """Chunks of 32; with 16-bit inputs the operands of all four matrix products are rounded to their dtype."""
    return chunked(q, k, v, g, h0, 32, low=True)


def right_recurrent(q, k, v, g, h0):
    """The recurrence on a transposed state, halves of the key dimension summed apart, scale at the end."""
    state, outs, half = h0.float().mT.contiguous(), [], q.shape[-1] // 2
    for t in range(q.shape[0]):
        state = torch.exp2(g[t].float() * 1.4426950408889634)[:, None] * state + v[t].float()[..., None] * k[t].float()[:, None]
        terms = q[t].float()[:, None] * state
        outs.append((terms[..., half:].sum(-1) + terms[..., :half].sum(-1)) * q.shape[-1] ** -0.5)
    return torch.stack(outs).to(v.dtype), state.mT.contiguous()


def pairwise(q, k, v, g, h0, mistake, size=16):
    """Chunks with exp(G[i] - G[j]) for every pair of tokens; the state of every token as well."""
    state, states, outs = h0.float(), [], []
    for s in range(0, q.shape[0], size):
        qc, kc, vc = (x[s:s + size].float().transpose(0, 1) for x in (q, k, v))
        G = g[s:s + size].float().cumsum(0).transpose(0, 1)
        n = G.shape[1]
        seen = torch.ones(n, n).tril(-1 if mistake == "mask" else 0)[None, :, :, None]
        w = torch.exp((G[:, :, None] - G[:, None]).clamp(max=0)) * seen  # head, i, j, key
        inside = torch.einsum("hijk,hjk,hjv->hikv", w, kc, vc) + torch.exp(G)[..., None] * state[:, None]
        end = G[:, -2:-1] if mistake == "gate" else G[:, -1:]
        state = torch.exp(end).mT * state + (kc * torch.exp(end - G)).mT @ vc
        if mistake == "fp16":
            state = state.half().float()
        outs.append(torch.einsum("hik,hikv->ihv", qc * q.shape[-1] ** -0.5, inside))
        inside[:, -1] = state
        states.append(inside.transpose(0, 1))
    return {"decay": torch.exp(g.float()), "states": torch.cat(states), "out": torch.cat(outs).to(v.dtype), "final": state}


def wrong_state_fp16_staged(q, k, v, g, h0):
    return pairwise(q, k, v, g, h0, "fp16")


def wrong_state_fp16(q, k, v, g, h0):
    """The state is kept in float16 from chunk to chunk."""
    got = pairwise(q, k, v, g, h0, "fp16")
    return got["out"], got["final"]


def wrong_gate_staged(q, k, v, g, h0):
    return pairwise(q, k, v, g, h0, "gate")


def wrong_gate(q, k, v, g, h0):
    """A chunk's state is decayed up to the last token but one: the last gate is forgotten."""
    got = pairwise(q, k, v, g, h0, "gate")
    return got["out"], got["final"]


def wrong_mask(q, k, v, g, h0):
    """The mask within a chunk is strict: a token does not see itself (the state is right)."""
    got = pairwise(q, k, v, g, h0, "mask")
    return got["out"], got["final"]


if __name__ == "__main__":
    import sys
    sys.path.insert(0, ".")
    import check
    check.main(globals())
