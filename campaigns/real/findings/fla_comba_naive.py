"""flash-linear-attention bc3b101d: naive_recurrent_comba and naive_chunk_comba are two operations.

Usage: fla_comba_naive.py CHECKOUT. The recurrence reads the state behind a token's decay, the chunked form before it,
as the kernels do. Both are held against both recurrences in float64.
"""

import importlib
import sys

import torch

sys.path.insert(0, f"{sys.argv[1]}/fla/ops/comba")
naive = importlib.import_module("naive")
torch.manual_seed(0)
q, k, v, p = (torch.nn.functional.normalize(torch.randn(1, 64, 2, 16), dim=-1) for _ in "qkvp")
beta, g = torch.rand(1, 64, 2), torch.nn.functional.logsigmoid(torch.randn(1, 64, 2))
names = ("naive_recurrent_comba", "naive_chunk_comba")
made = {name: getattr(naive, name)(q=q, k=k, v=v, p=p, beta=beta, g=g)[0] for name in names}
for read in ("before", "behind"):
    S, out = torch.zeros(1, 2, 16, 16, dtype=torch.float64), []
    for t in range(64):
        decayed = S * g[:, t, :, None, None].double().exp()
        seen = ((decayed if read == "behind" else S) * p[:, t, :, :, None]).sum(-2)
        S = decayed + k[:, t, :, :, None] * (beta[:, t, :, None] * (v[:, t] - seen))[:, :, None]
        out.append((q[:, t, :, :, None] * 16**-0.5 * S).sum(-2))
    exact = torch.stack(out, 1)
    said = {name: f"{float((x - exact).norm() / exact.norm()):.2g}" for name, x in made.items()}
    print(f"the state read {read} the decay, relative errors: {said}")
