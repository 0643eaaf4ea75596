"""The referee of the backward pass: torch's autograd, in float64, of attention written down densely."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from workbench.operations.operation import Setting

#: input -> the stage that is its gradient
GRADIENTS = {"q": "dq", "k": "dk", "v": "dv", "sinks": "dsink", "bias": "dbias", "alibi_slopes": "dslopes"}


def gradients_of(numbers: Mapping[str, Any]) -> dict[str, str]:
    """The same of a case: where v is a part of k both have one."""
    if not numbers.get("shared_kv"):
        return GRADIENTS
    return {name: "dkv" if name == "k" else stage for name, stage in GRADIENTS.items() if name != "v"}


def dense(of: Mapping[str, Any], numbers: Mapping[str, Any], score_mod: Any = None) -> tuple[Any, Any]:
    """Out and lse of inputs in torch, from the definition; rows without keys have 0 and -inf."""
    import torch

    q, k, v = (of[name] for name in "qkv")
    group, rows, keys = q.shape[1] // k.shape[1], q.shape[2], k.shape[2]
    wide_k, wide_v = (x.repeat_interleave(group, 1) for x in (k, v))
    x = numbers["scale"] * (q @ wide_k.transpose(-1, -2))
    if "softcap" in numbers:
        x = numbers["softcap"] * torch.tanh(x / numbers["softcap"])
    if score_mod is not None:
        sizes = enumerate(x.shape)
        x = score_mod(x, *(torch.arange(n).reshape([-1 if m == axis else 1 for m in range(4)]) for axis, n in sizes))
    lengths = of.get("seqlens_k", torch.full((q.shape[0],), keys))[:, None, None, None]
    at, column = torch.arange(rows)[:, None] + lengths - rows, torch.arange(keys)
    seen = column < lengths
    if numbers["causal"]:
        seen = seen & (column <= at)
    if (left := numbers.get("window_left", -1)) >= 0:
        seen = seen & (column >= at - left)
    if (right := numbers.get("window_right", -1)) >= 0:
        seen = seen & (column <= at + right)
    if "mask" in of:
        seen = seen & of["mask"]
    if "bias" in of:
        x = x + of["bias"]
    if "alibi_slopes" in of:
        x = x + of["alibi_slopes"][:, None, None] * (column if numbers.get("alibi_column") else -abs(column - at))
    x = torch.where(seen, x, torch.tensor(-torch.inf, dtype=x.dtype))
    if "sinks" in of:
        x = torch.cat([x, of["sinks"][None, :, None, None].expand(*x.shape[:-1], 1)], -1)
    some = ~torch.isinf(x).all(-1, keepdim=True)
    p = torch.where(some, torch.softmax(torch.where(some, x, 0.0), -1), 0.0)
    lse = torch.where(some, torch.logsumexp(torch.where(some, x, 0.0), -1, keepdim=True), -torch.inf)[..., 0]
    p = p[..., :keys]
    if "dropout_mask" in of:
        p = p * of["dropout_mask"] / (1 - numbers["dropout_p"])
    return p @ wide_v, lse


def gradients(of: Setting, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every gradient, by its stage, and out and lse; in float64."""
    import torch

    wide = {name: torch.from_numpy(x if x.dtype == bool else x.astype(np.float64)) for name, x in inputs.items()}
    gradients = gradients_of(of.numbers)
    leaves = {name: wide[name].requires_grad_() for name in gradients if name in wide}
    if of.numbers.get("shared_kv"):
        wide["v"] = wide["k"][..., : of.sizes["e"]]
    out, lse = dense(wide, of.numbers, of.functions.get("score_mod"))
    total = (out * wide["dout"]).sum()
    if "dlse" in wide:
        total = total + torch.where(torch.isinf(lse), 0.0, lse * wide["dlse"]).sum()
    total.backward()
    found = {gradients[name]: x.grad.numpy() for name, x in leaves.items()}
    return found | {"out": out.detach().numpy(), "lse": lse.detach().numpy()}
