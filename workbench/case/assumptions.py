"""What is assumed of a kernel that does not say: the usual choice of a flash kernel, and what else it might have done.

The weakest contract (`contract.of_foreign`) holds of nearly any kernel, and hides bugs for that. A run can be held
against the usual one as well; what is wrong under it may be right under one other choice, which is then worth naming.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple

from workbench.case.case import Case
from workbench.case.contract import WEAKEST_MMA, Contract, of_foreign
from workbench.case.promises import BY_LSE, FLOAT8, PARTIAL_STATS
from workbench.case.tensor_cores import GENERATIONS
from workbench.floats import DTYPES

#: field -> what nearly every flash kernel does. Sums, scores and partial results are float32, probs are cast once, to
#: the storage dtype (`usual`), and every cast rounds to nearest, CUDA's and torch's default. row_sum adds probs before
#: that cast (FlashAttention-2 and 3, Triton's tutorial): if it might add either, lse could be off by 2^-9 in bfloat16,
#: where it is otherwise off by 2^-20. One division at the end normalises
_USUAL: Mapping[str, Any] = {
    "scores_dtype": "float32",
    "scale_in": "scores",
    "partials_dtype": "float32",
    "row_sum_of_cast": False,
    "probs_normalised": False,
    "normalisation": "division",
    # no tighter than "difference": FlashAttention-2's, which Triton's contraction of products and differences makes too
    "exp_argument": "fma",
    "probs_rounding": "nearest",
    "partials_rounding": "nearest",
    "out_rounding": "nearest",
    **GENERATIONS["ampere"]["float16"].fields(),  # the weakest since Volta's
}
#: the least argument to which FlashAttention-4 clamps that of its exp2, so that a subtraction can build the exponent
FLOOR = -127.0
#: ulps of an exponential of degree 3: 2.4e-4, twice and a half the 8.8e-5 of the best polynomial for 2^x on [0, 1),
#: which FlashAttention-4 has
POLYNOMIAL_ULPS = 2000.0
#: and of degree 2: 2^-9 and a little, half an ulp of bfloat16, which is all that probs in it keep
QUADRATIC_ULPS = 40000.0


class Library(NamedTuple):
    """What known libraries do that a usual kernel does not, all of it at once: it excuses what is not usual."""

    fields: tuple[str, ...]  #: that have the weakest choice
    source: str  #: library and file
    dtypes: tuple[str, ...] = ("float16", "bfloat16")  #: of q, k and v
    others: Mapping[str, str] = {}  #: fields that have another value; inputs: the dtype of q, k and v
    narrow: bool = False  #: whether it sums, carries partial results or scales q in 16 bits, as few do without a word


#: what excuses: what no known library does is a bug of a kernel that does not declare it, and what narrow ones alone do
#: is evidence of one. Every one of them may be run on Volta's tensor cores, scale q and k, and give exp a difference
#: that was rounded
LIBRARIES = (
    Library((), "FlashAttention-2 (csrc/flash_attn/src/softmax.h)", ("float32", "float16", "bfloat16")),
    Library(
        ("scores_dtype", "probs_normalised"),
        "Hugging Face transformers, eager_attention_forward (models/llama/modeling_llama.py)",
    ),
    Library(
        ("probs_normalised", "normalisation"),
        "PyTorch, _scaled_dot_product_attention_math (aten/src/ATen/native/transformers/attention.cpp)",
        ("float32", "float16", "bfloat16"),
    ),
    Library(
        ("row_sum_of_cast", "normalisation"),
        "FlashInfer, m16k16_rowsum (include/flashinfer/mma.cuh) and merge_state (attention/cascade.cuh)",
        ("float32", "float16", "bfloat16"),
    ),
    Library(
        ("probs_rounding", "partials_rounding", "out_rounding"),
        "Composable Kernel, bfloat16 cut off (ck_tile/core/numeric/bfloat16.hpp, CK_TILE_FLOAT_TO_BFLOAT16_DEFAULT)",
        ("bfloat16",),
    ),
    Library(
        ("partials_dtype", "normalisation"),
        "vLLM, paged_attention_v2 (csrc/attention/paged_attention_v2.cu), whose partial results have the dtype of out",
        narrow=True,
    ),
    Library(
        (),
        "llama.cpp, half2 sums of its vector kernels (ggml/src/ggml-cuda/fattn-vec-f16.cuh)",
        ("float16",),
        {"accumulator_dtype": "float16"},
        narrow=True,
    ),
    Library(
        (),
        "Fairseq, q times its scale in its own dtype (fairseq/modules/multihead_attention.py)",
        others={"scaled_q_dtype": "inputs"},
        narrow=True,
    ),
)
#: fields with the weakest choice in every one of them
_ANYWHERE = ("scale_in", "exp_argument", "mma_block", "mma_extra_bits")


class Choice(NamedTuple):
    """One field of a contract, chosen."""

    field: str
    contract: Contract
    also: tuple[str, ...] = ()  #: fields without which that choice does not say all

    def __str__(self) -> str:
        return ",".join(map(self._said, (self.field, *self.also)))

    def _said(self, field: str) -> str:
        value = getattr(self.contract, field)
        return f"{field}={str(value).lower() if isinstance(value, bool | None) else value}"


def usual(promise: Contract) -> Contract:
    """The contract of `contract.of_foreign` with the usual choice of a flash kernel for what nobody declared."""
    chosen = {**_USUAL, "probs_dtype": _storage(promise)} if _storage(promise) != "float32" else _USUAL
    return replace(promise, **{name: value for name, value in chosen.items() if name in promise.assumed})


def weaker(promise: Contract) -> list[str]:
    """The fields that nobody declared and in which the contract is not the `usual` one."""
    base = usual(promise)
    return [name for name in promise.assumed if getattr(promise, name) != getattr(base, name)]


def of_libraries(promise: Contract) -> Iterator[tuple[Library, Contract]]:
    """LIBRARIES, narrow ones last, with what a kernel promises that is one of them where nobody declared otherwise:
    casts of scores, which the weakest contract lets cut off, round to nearest there.
    """
    base = usual(promise)
    for library in LIBRARIES:
        if _storage(promise) in library.dtypes:
            open_fields = [name for name in (*_ANYWHERE, *library.fields) if name in promise.assumed]
            assumed = tuple(name for name in promise.assumed if name != "scores_dtype")
            weak = {name: getattr(promise, name) for name in open_fields}
            said = {name: _storage(promise) if x == "inputs" else x for name, x in library.others.items()}
            others: dict[str, Any] = {name: x for name, x in said.items() if name in promise.assumed}
            yield library, replace(base, assumed=assumed, **weak, **others)


def alternatives(promise: Contract) -> Iterator[Choice]:
    """Choices for fields that nobody declared of the contract of `contract.of_foreign`, each in the `usual` contract in
    which that field alone is another, a weaker one first; a field may come more than once.
    """
    base, open_fields = usual(promise), weaker(promise)
    for name in _USUAL:
        if name in open_fields and name not in ("mma_block", "mma_extra_bits"):
            yield Choice(name, replace(base, **{name: getattr(promise, name)}))
    yield from _of_splits(promise, base)  # an lse may pass for a maximum that is larger than need be
    for name, value, with_it in _wild(promise):
        if name in promise.assumed or name == "lse_base2":
            more = {key: other for key, other in with_it.items() if key in promise.assumed}
            yield Choice(name, replace(base, **{name: value}, **more))


def _of_splits(promise: Contract, base: Contract) -> Iterator[Choice]:
    """What results of splits, and weights of a merge, may be: of FlashDecoding's combine these add up to 1."""
    by_lse: dict[str, Any] = {"normalisation": BY_LSE} if "normalisation" in promise.assumed else {}
    if "partial_stats" in promise.assumed:
        for stats in PARTIAL_STATS[1:]:
            if "partials" in promise.assumed or promise.partials == "normalised":
                chosen = replace(base, partials="normalised", partial_stats=stats)
                yield Choice("partial_stats", chosen)
                if by_lse:
                    yield Choice("partial_stats", replace(chosen, **by_lse), (*by_lse,))
    elif promise.stores_lse and by_lse:
        yield Choice("normalisation", replace(base, **by_lse))
    if "partials" in promise.assumed and not promise.stores_lse:
        yield Choice("partials", replace(base, partials="normalised"))


def _wild(promise: Contract) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """Choices of kernels found in the wild: a field, its value, and what goes with it."""
    storage, narrow = _storage(promise), ("float16", "bfloat16")
    if storage == "float32":
        # Triton's words; tensor cores add up what they round
        for precision in ("tf32x3", "tf32"):
            yield "input_precision", precision, {"accumulation": "any", **WEAKEST_MMA}
        for dtype in narrow:
            yield "probs_dtype", dtype, {}
    else:
        # mma with float16 accumulators (PTX ISA, mma.m16n8k16), sums of bfloat16 tensors
        for dtype in narrow:
            yield "accumulator_dtype", dtype, {}
        yield "scaled_q_dtype", storage, {}
        for dtype in (*(other for other in narrow if other != storage), *FLOAT8.values()):
            yield "probs_dtype", dtype, {}
        yield "mma_extra_bits", promise.mma_extra_bits, {"mma_block": promise.mma_block}
    for ulps in (POLYNOMIAL_ULPS, QUADRATIC_ULPS):
        yield "exp_ulps", ulps, {"exp_floor": FLOOR}  # which goes with it
    yield "exp_floor", FLOOR, {}
    # of what is dumped: its units, what stands for -inf, maxima, tiles
    yield "base2", True, {}
    # lse may be in base 2 where scores are in base 2, by what the dump shows or the preset says
    if "base2" in promise.open and (promise.base2 or "lse_base2" in promise.assumed):
        yield "lse_base2", True, {}
    yield "scores_scaled", False, {}
    yield "lse_includes_sink", False, {}
    yield "sinks", "first", {}
    yield "row_max", "upper_bound", {}
    yield "row_max", "lagging", {}
    yield "row_max", "any", {}
    yield "tile_order", "descending", {}
    yield "skips_masked_tiles", True, {}


def _storage(promise: Contract) -> str:
    """The dtype in which q, k and v are stored, which the weakest choices are made of; of codes what they decode to."""
    weakest = (getattr(promise, name) for name in ("scores_dtype", "partials_dtype") if name in promise.assumed)
    return next(weakest, promise.out_dtype)


def listing() -> list[dict[str, Any]]:
    """Every field: its name, the rule of its values, what it means, and what is assumed where nobody says it, by the
    dtype of q, k and v, or the format of their codes.
    """
    kinds = {dtype: Case(dtype=dtype) for dtype in DTYPES} | {f"{kind} codes": Case(codes=kind) for kind in FLOAT8}
    unsaid = {kind: of_foreign({}, case) for kind, case in kinds.items()}
    return [
        {
            "name": one.name,
            "values": one.metadata["rule"].words,
            "meaning": one.metadata["meaning"],
            "assumed": {kind: getattr(promise, one.name) for kind, promise in unsaid.items()},
        }
        for one in fields(Contract)
        if one.metadata
    ]
