"""What single operations of a kernel may lose, from its contract; and which of them a budget owes most to."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import log
from typing import Any

import numpy as np

from workbench.case.contract import Contract
from workbench.case.promises import EXP_POLYNOMIALS
from workbench.case.tensor_cores import Accumulation
from workbench.floats import smallest_subnormal, unit_roundoff
from workbench.reference.arithmetic import gamma
from workbench.reference.sites import Sites, sites_of

U = unit_roundoff("float32")
LN2 = log(2)
#: ulps of an accurate float32 log. CUDA's logf: 1 (CUDA programming guide, mathematical functions); one ulp is at most
#: 2u
LOG_ULPS = 2.0
#: CUDA's __logf is off by 2^-21.41 near 1 and else by 3 ulp, its __fdividef by 2 (CUDA programming guide, intrinsic
#: functions), counted from the nearest float32; half an ulp more counts from the exact result: an H200 takes 3.34 for
#: the log (`workbench calibrate`)
FAST_LOG, FAST_LOG_ULPS, FAST_DIVISION_ULPS = 2.0**-21.41, 3.5, 2.5
#: accumulator of a tensor core -> unit roundoffs that it loses when a sum is stored in it: float16 rounds to nearest on
#: every generation (arXiv 2511.10909); none has bfloat16, which may be cut off. `Accumulation` has float32's
_STORES: Mapping[str, int] = {"float32": 0, "float16": 1, "bfloat16": 2}
#: what the scale is multiplied into -> operands of a product of q and k that this rounds; none of scores
_SCALED_OPERANDS: Mapping[str, int] = {"q": 1, "k": 1, "both": 2, "any": 2}


@dataclass(frozen=True)
class Losses:
    """Unit roundoffs and ulps of single operations; 0 (or float32, for a cast) where nothing is lost."""

    sums: float  #: relative error of an addition
    sites: Sites
    tensor_cores: Accumulation
    accumulators: float  #: relative error of an addition of products
    accumulator_store: float  #: of a tensor core's sum, where it is stored in fewer bits than float32's
    accumulator_floor: float  #: what it may lose to underflow, beside `floor`
    operand: float  #: relative error of a float32 operand of a product
    terms_of_product: int  #: products that make up one
    scaled_operands: float  #: relative error of a product of q and k, one or both of which hold the scale
    products: float  #: relative error of a product that does not fit into float32, and of the scale
    units: float  #: relative error of a change of units: of a product with a factor that is rounded; 0 of natural ones
    argument: float  #: relative error of the argument of exp
    argument_of_max: float  #: error of the argument of probs relative to the maximum: the rounding of max_scaled
    rescaling_of_max: float  #: the same of the arguments of correction and merge_weight
    fused: float  #: error of dumped scores and maxima relative to what the argument is made of, which fma rounds once
    exp_ulps: float
    exp_ulps_per_x: float
    polynomial: float  #: relative error of exp in probs beyond its ulps
    offset: float  #: what is added to the argument of exp of probs, in natural units
    offset_of_row_sum: float  #: natural log of what row_sum is multiplied by
    division: float  #: relative error of a quotient
    log_ulps: float
    log_absolute: float
    floor: float  #: what one operation may lose to underflow
    clamped: float  #: what exp may give instead of less
    functions: Mapping[str, float]  #: relative errors of other functions, by name

    @property
    def narrow(self) -> bool:
        """Whether what accumulates products is narrower than other sums."""
        return self.accumulators > self.sums

    @property
    def product(self) -> float:
        """Relative error of a product that is accumulated."""
        return max(self.products, self.accumulators if self.narrow else 0.0)

    def sum(self, n: int) -> float:
        """Relative error of a sum of n + 1 terms in any order: g(n) = n u / (1 - n u) of the sum of magnitudes (Higham
        2002, section 4.2); inf from n u = 1 on.
        """
        return gamma(n, self.sums)

    def sum_of_products(self, products: int, additions: int, accumulation: str) -> float:
        """As `sum`, of so many products that take so many additions, which tensor cores may do.

        A tensor core loses for each block what `tensor_cores.Accumulation` says, of the magnitudes so far, and what a
        16-bit accumulator does.
        """
        one_by_one = self.rescalings(additions)
        if accumulation == "nearest":
            return one_by_one
        blocks = -(-products // self.tensor_cores.block)
        truncated = gamma(1, blocks * (self.tensor_cores.ulps * 2 * self.sums + self.accumulator_store))
        return truncated if accumulation == "tensor-core" else max(truncated, one_by_one)

    def rescalings(self, n: int) -> float:
        """As `sum`, of n operations that each round to what accumulates products."""
        return gamma(n, self.accumulators)

    def operands(self, n: int) -> float:
        """Relative error of a product of which `n` operands, 1 or 2, are float32 and are rounded to fewer bits.

        TF32 has 11 significant bits: r = 2^-11 where the others are rounded to nearest (PTX ISA, cvt.rna.tf32), 2^-10
        where hardware may cut them off (mma with .tf32), (1 + r)^n - 1. 3xTF32 (CUTLASS; Ootomo and Yokota 2022, arXiv
        2203.03341) splits x into high + low with |low| <= r |x|, drops low low (r^2) and rounds each low (r^2 |x|,
        times the other's high).
        """
        if self.terms_of_product == 1:
            return (1 + self.operand) ** n - 1
        return float(self.operand**2 * (1 if n == 1 else 1 + 2 * (1 + self.operand)))

    def exp(self, x: np.ndarray | float, calls: int = 1) -> np.ndarray | float:
        """Relative error of `calls` exps whose arguments' magnitudes add up to `x`; an ulp is at most 2u."""
        return 2 * U * (calls * self.exp_ulps + self.exp_ulps_per_x * x)


def losses_of(contract: Contract, numbers: Collection[str] = ()) -> Losses:
    """The losses of a kernel that keeps `contract`, in a case with these `numbers` (`Case.numbers`).

    The argument of exp is rounded once: fl(score - max), or fma(score, c, -max_scaled) with max_scaled = fl(max c), off
    by u |max c| (FlashAttention-2's own). Scores of natural units meet log2(e) in it where the base may be 2: a
    constant in float32 (off by 0.224u) and a product. Raw ones meet the scale: u for it, 2u for c = scale log2(e), u
    for the product. Dumped scores and maxima that hold the scale are roundings of the products that fma does not round.
    """
    raw = not contract.scores_scaled or ("scores_scaled" in contract.open and not contract.base2)
    unknown_base = "base2" in contract.open
    natural = contract.scores_scaled and not contract.base2 and not {"base2", "scores_scaled"} & contract.open
    fma, narrow = contract.exp_argument != "difference", contract.accumulator_dtype
    nearest = contract.input_rounding == "nearest"
    return Losses(
        sums=U,
        sites=sites_of(contract),
        accumulators=unit_roundoff(narrow),
        accumulator_store=_STORES[narrow] * unit_roundoff(narrow),
        accumulator_floor=0.0 if narrow == "float32" else smallest_subnormal(narrow) / 2,
        operand=0.0 if contract.input_precision == "ieee" else 2.0**-11 if nearest else 2.0**-10,
        terms_of_product=3 if contract.input_precision == "tf32x3" else 1,
        scaled_operands=(1 + U) ** (_SCALED_OPERANDS.get(contract.scale_in, 0) * contract.scores_scaled) - 1,
        tensor_cores=Accumulation(contract.mma_block, contract.mma_extra_bits),
        products=U,
        units=0.0 if natural else 2 * U,
        argument=5 * U if raw else 3 * U if unknown_base else U,
        argument_of_max=U if fma else 0.0,
        # FlashAttention-2 rescales by exp2((previous - max) c)
        rescaling_of_max=U if contract.exp_argument == "any" else 0.0,
        fused=U if fma and contract.scores_scaled else 0.0,
        exp_ulps=contract.exp_ulps,
        exp_ulps_per_x=contract.exp_ulps_per_x,
        polynomial=0.0 if contract.exp_polynomial is None else polynomial_error(contract.exp_polynomial),
        offset=contract.probs_offset * LN2 if contract.offset_in == "exp" else 0.0,
        offset_of_row_sum=contract.offset_of_row_sum * LN2,
        # the division, or a reciprocal and a product
        division=2 * U * (1 + FAST_DIVISION_ULPS * contract.fast_math),
        log_ulps=FAST_LOG_ULPS if contract.fast_math else LOG_ULPS,
        log_absolute=FAST_LOG if contract.fast_math else 0.0,
        # an ulp of a subnormal is 2^-149, of which exp may be off by several
        floor=2.0**-126 if contract.exp_flushes else max(0.5, contract.exp_ulps) * 2.0**-149,
        clamped=0.0 if contract.exp_floor is None else 2.0**contract.exp_floor,
        functions=contract.functions(numbers),
    )


@cache
def polynomial_error(degree: int) -> float:
    """Largest relative error of 2^x by the polynomial of that degree (EXP_POLYNOMIALS), 8.8e-5 of degree 3: its own on
    a grid, which has both ends and misses 2^-34 of a flat extremum; and Horner's scheme, n operations, fused, that each
    lose u of numbers below 2 (Higham 2002, section 5.1), of a result of at least 1.
    """
    part = np.linspace(0.0, 1.0, 2**16 + 1)
    off = np.polyval(EXP_POLYNOMIALS[degree][::-1], part) / np.exp2(part) - 1
    return float(np.max(abs(off))) + 2 * degree * U


_NOTHING: Mapping[str, Any] = {
    "functions": {},
    **dict.fromkeys(("sums", "products", "exp_ulps", "exp_ulps_per_x", "accumulators", "accumulator_floor"), 0.0),
    **dict.fromkeys(("polynomial", "accumulator_store", "operand", "scaled_operands", "clamped", "units"), 0.0),
    **dict.fromkeys(("argument", "argument_of_max", "rescaling_of_max", "fused"), 0.0),
    **dict.fromkeys(("division", "log_ulps", "log_absolute", "floor"), 0.0),
}
#: source of error in words -> the losses that make it up
_SOURCES: Mapping[str, tuple[str, ...]] = {
    "the additions": ("sums", "accumulators", "accumulator_store", "accumulator_floor"),
    "the rounding of operands": ("operand", "scaled_operands"),
    "the rounding of products": ("products", "units"),
    "exp": ("exp_ulps", "exp_ulps_per_x"),
    "the polynomial for exp": ("polynomial",),
    "the argument of exp": ("argument", "argument_of_max", "rescaling_of_max", "fused"),
    "the division": ("division",),
    "log": ("log_ulps", "log_absolute"),
    "underflow": ("floor", "clamped"),
}


def alone(losses: Losses) -> dict[str, Losses]:
    """Each source of error in words -> losses with nothing but that source, where there is one."""
    found, nothing = {}, without(losses)
    for words, names in _SOURCES.items():
        kept = {name: getattr(losses, name) for name in names}
        if any(kept.values()):
            found[words] = replace(nothing, **kept)
    found |= {words: replace(nothing, sites=sites) for words, sites in losses.sites.casts()}
    for name, error in losses.functions.items():
        found[name] = replace(nothing, functions={name: error})
    return found


def without(losses: Losses) -> Losses:
    """The losses of a kernel that loses nothing."""
    return replace(losses, **_NOTHING, sites=losses.sites.sums)
