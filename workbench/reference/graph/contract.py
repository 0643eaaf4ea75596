"""The few words in which a kernel says how it computes: `operands=bfloat16,stored=probs,exp_ulps=2`."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

from workbench.floats import smallest_normal, smallest_subnormal, unit_roundoff
from workbench.reference.arithmetic import Arithmetic, gamma
from workbench.refusal import Refusal, unknown

#: dtype of operands -> relative error of one, and whether it is cut off. TF32 keeps 11 significant bits and the
#: hardware may cut the rest off (PTX ISA, mma with .tf32): 2^-10, all to one side
OPERANDS: Mapping[str, tuple[float, bool]] = {
    "float32": (0.0, False),
    "tf32": (2.0**-10, True),
    "float16": (unit_roundoff("float16"), False),
    "bfloat16": (unit_roundoff("bfloat16"), False),
    "e4m3": (unit_roundoff("float8_e4m3fn"), False),
    "e5m2": (unit_roundoff("float8_e5m2"), False),
    "scaled-tf32": (2.0**-10, True),
    "scaled-float16": (unit_roundoff("float16"), False),
    "scaled-bfloat16": (unit_roundoff("bfloat16"), False),
}
#: significant bits that each of them holds. A kernel that multiplies operands by a scale or a gate before it rounds
#: them, q exp(G) of chunked linear attention, rounds those too that the dtype would hold: 0 bits
BITS: Mapping[str, int] = {"float32": 24, "tf32": 11, "float16": 11, "bfloat16": 8, "e4m3": 4, "e5m2": 3,
                           "scaled-tf32": 0, "scaled-float16": 0, "scaled-bfloat16": 0}  # fmt: skip
#: dtype of each of them whose normal numbers begin above float32's
NARROW: Mapping[str, str] = {"float16": "float16", "scaled-float16": "float16", "e4m3": "float8_e4m3fn",
                             "e5m2": "float8_e5m2"}  # fmt: skip
#: how sums are added: name -> relative error of one addition, and whether it is cut off. A tensor core aligns products
#: to the largest and cuts them off at 2^-23 of it (Fasi et al. 2021, PeerJ CS 330), an ulp of float32
ADDITIONS: Mapping[str, tuple[float, bool]] = {
    "float32": (unit_roundoff("float32"), False),
    "tensor-core": (2 * unit_roundoff("float32"), True),
    "float16": (unit_roundoff("float16"), False),
    "bfloat16": (unit_roundoff("bfloat16"), False),
}
#: functions that kernels approximate -> errors beyond those of a library: of any value, in unit roundoffs of float32,
#: and relative to it. erf as a polynomial in 1 / (1 + p x) times e^(-x^2) (Abramowitz and Stegun 7.1.26), as gelu of
#: torch takes on a CPU: 1.5e-7, and 23.9 unit roundoffs where five products, the quotient and exp are rounded to
#: float32, most of them at x = 0. tanh.approx.f32: 2^-10.987 (PTX ISA, tanh)
FAST: Mapping[str, tuple[float, float]] = {"erf": (1.5e-7 * 2.0**24 + 23.9, 0.0), "tanh": (0.0, 2.0**-10.987)}
#: in which base exp may be computed: as it stands, or also as 2^(x log2(e)), as every GPU kernel does
EXPS = ("natural", "base2")
#: which results are rounded to fewer bits, each with those before it: what the forward pass keeps for the backward; of
#: every operation, as plain torch does; also within norms, softmax and whatever else is one call of a library
ROUNDS = ("saved", "eager", "inside")
STORED = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
#: the stage of `stored` that stands for every cast that the reference notes
CASTS = "casts"
_FORM = "--contract operands=bfloat16,stored=probs:bfloat16+out:bfloat16,accumulate=float32,exp_ulps=2"


@dataclass(frozen=True)
class Contract:
    """How a kernel computes. Elementwise work and sums are in float32 unless it says otherwise."""

    operands: str = "float32"  #: dtype to which operands of matrix products may be rounded, one of OPERANDS
    accumulate: str = "float32"  #: how sums of products are added, one of ADDITIONS
    #: stage -> the dtype to which it is rounded, one of STORED; `casts`: wherever the reference casts
    stored: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    exp: str = "natural"  #: in which base exp may be computed, one of EXPS
    exp_ulps: float = 2.0  #: error of exp, in ulps of float32
    #: unit roundoffs of a division: 2 where it is a reciprocal and a product
    division: float = 2.0
    fast: tuple[str, ...] = ()  #: which functions are approximated, of FAST
    round: str = ""  #: which other results may be rounded, one of ROUNDS, and to which dtype: `eager:bfloat16`

    @property
    def unit(self) -> float:
        """Unit roundoff u of float32, 2^-24."""
        return unit_roundoff("float32")

    @property
    def floor(self) -> float:
        """What one operation may lose to underflow: below the smallest normal number results may be flushed to 0."""
        return smallest_normal("float32")

    @property
    def least(self) -> tuple[float, float]:
        """The size below which an operand of a contraction loses more than its digits, and how much then: half the
        smallest subnormal number. Twice the smallest normal one, since an operand may be off itself.
        """
        dtype = NARROW.get(self.operands)
        return (0.0, 0.0) if dtype is None else (2 * smallest_normal(dtype), smallest_subnormal(dtype) / 2)

    @property
    def floor_of_addition(self) -> float:
        """What an addition of products may lose to underflow."""
        dtype = NARROW.get(self.accumulate)
        return self.floor if dtype is None else smallest_subnormal(dtype) / 2

    def sum(self, n: int) -> float:
        """Relative error of n operations in any order, of the sum of magnitudes."""
        return gamma(n, self.unit)

    @property
    def rounds(self) -> tuple[str, str]:
        """Which results may be rounded, one of ROUNDS or empty, and to which dtype."""
        which, _, dtype = self.round.partition(":")
        return which, dtype

    def site(self, stage: str) -> Arithmetic | None:
        """How a stage is stored; None where nothing is lost."""
        dtype = self.stored.get(stage, "float32")
        return None if dtype == "float32" else Arithmetic(dtype=dtype)


def usual(dtype: str) -> Contract:
    """What kernels on inputs of `dtype` usually do: operands as the inputs, exp in base 2, the rest in float32."""
    return Contract(operands=dtype if dtype in OPERANDS else "float32", exp="base2")


def parse(words: str, dtype: str = "float32") -> Contract:
    """The contract that `words` declare, `usual(dtype)` where they say nothing.

    `operands=inputs` is `dtype` itself; a stage of `stored` without a dtype is stored in `dtype`, and so is what
    `round=eager` rounds.

    Refusal for a setting or a value that there is not, and for one that is said twice.

    >>> parse("operands=tf32,stored=probs:float16+out,exp_ulps=3", "bfloat16").stored
    {'probs': 'float16', 'out': 'bfloat16'}
    """
    found: dict[str, Any] = {}
    known = [one.name for one in fields(Contract)]
    for word in filter(None, (part.strip() for part in words.split(","))):
        name, equals, value = word.partition("=")
        if not equals or name not in known:
            raise Refusal(f"{unknown('contract setting', name, known)}. Write {_FORM}")
        if name in found:
            raise Refusal(f"contract says {name} twice: {words}")
        found[name] = _value(name, value, dtype)
    return replace(usual(dtype), **found)


def _value(name: str, value: str, dtype: str) -> Any:
    if name == "stored":
        stages = dict(_stored(one, dtype) for one in value.split("+"))
        return stages
    if name in ("exp_ulps", "division"):
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 0 <= number < 2**23:
            raise Refusal(f"contract {name} is a number of at least 0; got {value!r}")
        return number
    if name == "fast":
        functions = tuple(dict.fromkeys(value.split("+")))
        for one in functions:
            if one not in FAST:
                raise Refusal(unknown("contract fast", one, FAST))
        return functions
    if name == "round":
        which, named = _stored(value, dtype)
        if which not in ROUNDS:
            raise Refusal(unknown(f"contract {name}", which, ROUNDS))
        return f"{which}:{named}"
    known: Collection[str] = {"operands": OPERANDS, "accumulate": ADDITIONS, "exp": EXPS}[name]
    value = dtype if value == "inputs" else value
    if value not in known:
        raise Refusal(unknown(f"contract {name}", value, known))
    return value


def _stored(words: str, dtype: str) -> tuple[str, str]:
    stage, _, named = words.partition(":")
    named = named or dtype
    if not stage or named not in STORED:
        raise Refusal(f"contract stored is STAGE:DTYPE+..., DTYPE one of {', '.join(STORED)}; got {words!r}")
    return stage, named
