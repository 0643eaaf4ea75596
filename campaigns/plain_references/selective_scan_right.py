"""Right kernels of the selective scan. Steps, states and sums are float32; the final state is returned in float32.

style       what it rounds
sequential  token by token in float32; softplus as x + log1p(exp(-x)) for x > 0, else log1p(exp(x)); out rounded
            once
base2       sequential, exp2(delta (A log2 e)) with A log2 e rounded once to float32 before the loop; softplus by
            torch
tree        an associative scan: log2(T) rounds of (a1 a2, a2 b1 + b2), as tl.associative_scan (tile: unused)
chunk       chunks of `tile` tokens: a local scan from zero, then the carried state times the product of the decays
segments    chunks of `tile` tokens: decays between two tokens as exp(A (sum of deltas)), all float32
operands    sequential whose products' operands are in the inputs' dtype: delta x (times B, added to the state) and
            the state (times C, summed over N); the state itself stays float32
staged      sequential that returns delta, state[t] for t = 0, 7, 15 and the last, out and state
half_delta  sequential whose delta is stored in the dtype: --contract stored=delta:DTYPE
stored      sequential whose state is rounded to the dtype each token: --contract stored=state:DTYPE
"""

import torch
import torch.nn.functional as F

LOG2E = 1.4426950408889634


def steps(dt, dt_bias):
    a = dt.float() + dt_bias.float()
    return a.clamp(min=0) + torch.log1p(torch.exp(-a.abs()))


def sequential(x, delta, A, B, C, D, style, dtype):
    narrow = (lambda a: a.to(dtype).float()) if style == "operands" else (lambda a: a)
    A2 = A * LOG2E
    state, outs, seen = torch.zeros_like(A), [], {}
    for t in range(x.shape[0]):
        step = delta[t][:, None]
        decay = torch.exp2(step * A2) if style == "base2" else torch.exp(step * A)
        state = decay * state + narrow(delta[t] * x[t])[:, None] * B[t]
        if style == "stored":
            state = state.to(dtype).float()
        outs.append((narrow(state) * C[t]).sum(-1) + D * x[t])
        if t in (0, 7, 15, x.shape[0] - 1):
            seen[f"state[{t}]"] = state
    return torch.stack(outs), state, seen


def tree_states(decay, update):
    """All states by doubling: after a round of distance d, (a, b) cover 2 d tokens."""
    a, b, distance = decay.clone(), update.clone(), 1
    while distance < a.shape[0]:
        head_a, head_b = a[:-distance], b[:-distance]
        b = torch.cat([b[:distance], a[distance:] * head_b + b[distance:]])
        a = torch.cat([a[:distance], a[distance:] * head_a])
        distance *= 2
    return a, b


def chunk_states(decay, update, tile):
    carried, all_states = torch.zeros_like(update[0]), []
    for at in range(0, decay.shape[0], tile):
        a, b = tree_states(decay[at : at + tile], update[at : at + tile])
        states = a * carried + b
        all_states.append(states)
        carried = states[-1]
    return torch.cat(all_states)


def segment_states(delta, update, A, tile):
    carried, all_states = torch.zeros_like(update[0]), []
    for at in range(0, delta.shape[0], tile):
        total = delta[at : at + tile].cumsum(0)
        between = torch.exp((total[:, None] - total[None, :])[..., None].clamp(min=0) * A)
        seen = torch.ones(total.shape[0], total.shape[0]).tril()[:, :, None, None]
        states = (between * seen * update[None, at : at + tile]).sum(1) + torch.exp(total[..., None] * A) * carried
        all_states.append(states)
        carried = states[-1]
    return torch.cat(all_states)


def right(style, tile):
    def kernel(x, dt, dt_bias, A, B, C, D):
        dtype = x.dtype
        delta = F.softplus(dt.float() + dt_bias.float()) if style == "base2" else steps(dt, dt_bias)
        if style == "half_delta":
            delta = delta.to(dtype).float()
        x, A, B, C, D = (a.float() for a in (x, A, B, C, D))
        if style in ("tree", "chunk", "segments"):
            decay = torch.exp(delta[..., None] * A)
            update = (delta * x)[..., None] * B[:, None, :]
            if style == "tree":
                states = tree_states(decay, update)[1]
            elif style == "chunk":
                states = chunk_states(decay, update, tile)
            else:
                states = segment_states(delta, update, A, tile)
            out = torch.einsum("tcn,tn->tc", states, C) + D * x
            return out.to(dtype), states[-1]
        out, state, seen = sequential(x, delta, A, B, C, D, style, dtype)
        if style == "staged":
            return {"delta": delta, **seen, "out": out.to(dtype), "state": state}
        return out.to(dtype), state

    kernel.__name__ = kernel.__qualname__ = f"{style}_{tile}"
    return kernel


ALL, HALF = ("float32", "float16", "bfloat16"), ("float16", "bfloat16")
STYLES = {  # style: tiles, contract, dtypes, a second reference in its form
    "sequential": ((1,), "", ALL),
    "base2": ((1,), "", ALL),
    "tree": ((1,), "", ALL),
    "chunk": ((4, 8, 16), "", ALL),
    "segments": ((8, 16), "", ALL),
    "operands": ((1,), "", ALL),
    "staged": ((1,), "", ALL),
    "half_delta": ((1,), "stored=delta:{dtype}", HALF),
    "stored": ((1,), "stored=state:{dtype}", HALF),
}
AXES = (
    {"T": 32},
    {"T": 27, "channels": 16, "N": 4},
    {"T": 40, "channels": 12, "N": 16},
    {"T": 19, "channels": 40, "N": 8},
)
OTHER = ("tree", "chunk", "segments")  # not the recurrence of the reference
KERNELS = {f"{style}_{tile}": row[1:] for style, row in STYLES.items() for tile in row[0]}
globals().update({f"{style}_{tile}": right(style, tile) for style, row in STYLES.items() for tile in row[0]})
