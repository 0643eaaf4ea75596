"""A function of a project, right as far as is known, and the references that it is judged by.

`contract` is read off a kernel's source, dtype by dtype:
- DOTS: products by `tl.dot`, whose operands are in the inputs' dtype, float32 sums. Of float32 inputs Triton takes
  TF32, unless a call says `input_precision` or `allow_tf32=False`.
- SCALED: the same, of operands that are multiplied by a gate or a step size before they are cast:
  `(b_k * exp2(b_g_last - b_g)).to(b_k.dtype)`.
- EAGER: torch's own operations on tensors of 16 bits behind the kernel (`o / denom`), or tiles that are cast to 16 bits
  between its steps, as DeltaFormer's `u = v - acc.to(v_ptr.dtype.element_ty)`.
- FLOAT32: everything in float32 (`tl.load(...).to(tl.float32)`), no `tl.dot`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from campaigns.real.call import Call
from campaigns.real.inputs import Tensors
from campaigns.real.project import Tolerance

DTYPES = ("float32", "bfloat16")
NARROW = ("float16", "bfloat16")  #: of kernels that refuse float32
DOTS: Mapping[str, str] = MappingProxyType({"float32": "operands=tf32"} | {x: f"operands={x}" for x in NARROW})
SCALED: Mapping[str, str] = MappingProxyType({key: x.replace("=", "=scaled-") for key, x in DOTS.items()})
EAGER: Mapping[str, str] = MappingProxyType(
    {"float32": DOTS["float32"]} | {x: f"{DOTS[x]},round=eager:{x}" for x in NARROW}
)
FLOAT32: Mapping[str, str] = MappingProxyType(dict.fromkeys(("float32", *NARROW), "operands=float32"))
#: tokens: a last chunk of 64 that is partial; a multiple of 64 for what takes no other, and a shorter one of 32
PARTIAL, WHOLE, SHORT = 200, 192, 96


@dataclass(frozen=True)
class Case:
    """One kernel."""

    operation: str
    kernel: Call
    references: tuple[
        Call, ...
    ]  #: the project's naive one; then the same algorithm as the kernel's, where there is one
    inputs: Callable[..., Tensors]  #: inputs(seed, dtype, T)
    contract: Mapping[str, str] = field(default_factory=lambda: DOTS)
    gradients: bool = False  #: whether those of the first result are judged; not where there is no backward pass
    T: int = PARTIAL
    back: int = 100  #: T of gradients
    #: what the backward pass reads in 16 bits: "saved": what the forward pass stored, as out of attention, HGRN's
    #: `o = torch.empty_like(x)` and the delta rule's `u = torch.empty_like(v)`, or stores again, as the convolution's
    #: `y = torch.empty_like(x)` before its activation; "eager": also gradients on the way, as the gated norm's
    #: `dy = F.linear(dout, linear_weight.t())`
    rounds: str = ""
    dtypes: tuple[str, ...] = DTYPES
    tolerance: Mapping[str, Tolerance] | None = None  #: of the project's tests of it, by dtype, "" for any; None: usual
