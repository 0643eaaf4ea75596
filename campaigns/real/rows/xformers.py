"""xformers: attention from building blocks and their softmax, in torch on a CPU: its Triton is of 2021, and its
split-K kernels unroll arguments in a way that Triton 3 refuses.
"""

import torch

from campaigns.real import inputs as of
from campaigns.real.call import Call, takes
from campaigns.real.case import Case
from campaigns.real.project import Project, Tolerance
from campaigns.real.wrong import Truth, Wrong

PROJECT = Project(
    name="xformers", owner="facebookresearch", newest="ca6d2aa0", paths=("xformers",),
    tolerance={"": Tolerance(atol=1e-3, rtol=1e-3)},
    device="cpu", stubs=("xformers", "xformers.components"), says={"_is_sparse_available": False},
)  # fmt: skip
EXACT = {"float32": "operands=float32", "bfloat16": "operands=bfloat16,round=eager:bfloat16"}


def _causal(block: type, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Heads are batches of the block."""
    made = block(causal=True, seq_len=q.shape[1])
    found = made(*(x.transpose(1, 2).flatten(0, 1) for x in (q, k, v)))
    return found.unflatten(0, (q.shape[0], -1)).transpose(1, 2)


def _scores(seed: int, dtype: torch.dtype, T: int) -> of.Tensors:
    return {"x": of.drawn(seed)(2, T, T).to(dtype)}


CASES: tuple[Case, ...] = ()
WRONG = (
    Wrong(PROJECT.name, "199686cd", "1328ba7c", "the causal mask is dropped where no other mask is given",
          Case("scaled dot product",
               Call("xformers.components.attention.scaled_dot_product:ScaledDotProduct", takes("q", "k", "v"),
                    adapter=_causal),
               (Call("plain/attention:attention", takes("q", "k", "v"), {"causal": True}),), of.plain, EXACT, T=40),
          # `also` is the line above, which makes the mask
          ("out",), Truth("masked_fill(~seen", "mask", "seen = torch.ones", changed=True), "all but the last token"),
    Wrong(PROJECT.name, "143318fc", "31c22927", "softmax in torch ignores causal",
          Case("causal softmax", Call("xformers.triton.softmax:softmax", takes("x"), {"causal": True}),
               (Call("plain/attention:softmax", takes("x")),), _scores, EXACT, T=40),
          ("result",), Truth("masked_fill(~seen", "mask", "seen = torch.ones", changed=True), "all but the last row"),
)  # fmt: skip
