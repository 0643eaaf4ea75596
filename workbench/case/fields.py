"""The fields of a case: what each is for, the rule of its values, and what the command line says of it.

From this table are made the rules of `case.Case`, the options of the command line, its words that repeat a run, and
what two runs of one problem have alike. It imports no NumPy, so that `workbench --help` is quick.
"""

import math
import re
import struct
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any, NamedTuple

from workbench.refusal import Refusal
from workbench.suggested import command

ALIGNMENTS = ("bottom-right", "top-left")
#: the distribution of a case whose inputs were put in, from a file or by a caller: it draws none
GIVEN = "given"
#: a float32's least number, least normal and largest one
TINIEST, SMALLEST_NORMAL, LARGEST = 2.0**-149, 2.0**-126, (2 - 2.0**-23) * 2.0**127

#: what a field is for: the mathematical problem; how keys and values lie in memory; what inputs are drawn from; how
#: these become codes; how a kernel cuts the problem; how kernels of ours compute it
PROBLEM, LAID, DRAWN, QUANTISER = "problem", "laid", "drawn", "quantiser"
TILES, ARITHMETIC = "tiles", "arithmetic"


class Whole(NamedTuple):
    """A whole number."""

    at_least: int = 1

    def resolved(self, name: str, value: Any) -> int:
        """The value as Python's own; Refusal where it breaks the rule, here as in the other rules."""
        if isinstance(value, bool) or not isinstance(value, Integral) or value < self.at_least:
            raise Refusal(f"{name} must be a whole number of at least {self.at_least}; got {value!r}")
        return int(value)


class Number(NamedTuple):
    """A finite number with a property."""

    words: str  #: as in "must be above 0"
    holds: Callable[[float], bool]
    float32: bool = False  #: rounded to float32, in which kernels take it

    def resolved(self, name: str, value: Any) -> float:
        """As of `Whole`."""
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            raise Refusal(f"{name} must be a finite number; got {value!r}")
        if not self.holds(number := float(value)):
            raise Refusal(f"{name} must {self.words}; got {number!r}")
        return struct.unpack("f", struct.pack("f", number))[0] if self.float32 else number


class Word(NamedTuple):
    """One of some words."""

    words: Callable[[], tuple[str, ...]]  #: imported when asked for
    besides: tuple[str, ...] = ()  #: words that nobody types
    aliases: Mapping[str, str] = {}  #: other words, in any case -> those that they stand for

    def resolved(self, name: str, value: Any) -> str:
        """As of `Whole`."""
        value = self.aliases.get(value.lower(), value) if isinstance(value, str) else value
        accepted = (*self.words(), *self.besides)
        if not isinstance(value, str) or value not in accepted:
            raise Refusal(f"{name} must be one of {', '.join(accepted)}; got {value!r}")
        return value


class Truth(NamedTuple):
    """True or false."""

    def resolved(self, name: str, value: Any) -> bool:
        """As of `Whole`."""
        if not isinstance(value, bool) and str(getattr(value, "dtype", "")) != "bool":  # NumPy's
            raise Refusal(f"{name} must be True or False; got {value!r}")
        return bool(value)


class Sides(NamedTuple):
    """How far to the left and to the right, each a whole number, -1 for no limit."""

    def resolved(self, name: str, value: Any) -> tuple[int, int]:
        """As of `Whole`."""
        sides = tuple(value) if isinstance(value, list | tuple) else ()
        if len(sides) != 2 or any(isinstance(x, bool) or not isinstance(x, Integral) or x < -1 for x in sides):
            raise Refusal(f"{name} must be two whole numbers, left and right, of at least -1; got {value!r}")
        return int(sides[0]), int(sides[1])


class Lengths(NamedTuple):
    """A length for each sequence of a batch, 0 or more."""

    def resolved(self, name: str, value: Any) -> tuple[int, ...]:
        """As of `Whole`."""
        given = tuple(value.tolist() if hasattr(value, "tolist") else value) if _is_sequence(value) else ()
        if not given or any(isinstance(x, bool) or not isinstance(x, Integral) or x < 0 for x in given):
            raise Refusal(f"{name} must be whole numbers of at least 0, one for each sequence; got {value!r}")
        return tuple(map(int, given))


class OfHeads(NamedTuple):
    """A number for each query head, rounded to float32, in which kernels take it; or a word that stands for some."""

    words: tuple[str, ...]

    def resolved(self, name: str, value: Any) -> str | tuple[float, ...]:
        """As of `Whole`."""
        if isinstance(value, str) and value in self.words:
            return value
        given = tuple(value.tolist() if hasattr(value, "tolist") else value) if _is_sequence(value) else ()
        if not given or not all(isinstance(x, Real) and not isinstance(x, bool) and math.isfinite(x) for x in given):
            raise Refusal(
                f"{name} must be {' or '.join(self.words)}, or finite numbers, one for each query head; got {value!r}"
            )
        return tuple(struct.unpack("f", struct.pack("f", float(x)))[0] for x in given)


class Function(NamedTuple):
    """A function of Python's, itself, as path.py:name or as module:name."""

    def resolved(self, name: str, value: Any) -> Any:
        """As of `Whole`."""
        text = isinstance(value, str) and re.fullmatch(r"(.+\.py|[\w.]+):\w+", value)
        if not text and not callable(value):
            raise Refusal(f"{name} must be a function, or path.py:name or module:name of one; got {value!r}")
        return value


def _is_sequence(value: Any) -> bool:
    return not isinstance(value, str) and (isinstance(value, list | tuple) or hasattr(value, "tolist"))


Rule = Whole | Number | Word | Truth | Sides | Lengths | OfHeads | Function


class Field(NamedTuple):
    """One field."""

    role: str
    rule: Rule
    help: str  #: of its option
    on_codes: bool = False  #: whether it is of kernels on codes alone
    keywords: tuple[str, ...] = ()  #: of a foreign function that is called with it where a case has one, in libraries


#: what libraries call dtypes -> what NumPy does
SHORT = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def _dtypes() -> tuple[str, ...]:
    from workbench.floats import DTYPES

    return tuple(DTYPES)


def _distributions() -> tuple[str, ...]:
    from workbench.case.distributions import DISTRIBUTIONS

    return tuple(DISTRIBUTIONS)


def _one_of(*words: str) -> Word:
    return Word(lambda: words)


_COUNT = Whole()
_SCALE = Number("fit in float32, as kernels take it", lambda x: x == 0 or TINIEST <= abs(x) <= LARGEST, True)
_CAP = Number("be a normal float32 above 0", lambda x: SMALLEST_NORMAL <= x <= LARGEST, True)

#: both lengths, which are fields of their own
SEQLEN = Field(PROBLEM, _COUNT, "Both sequence lengths [128]")
#: every field of a case, in its order
FIELDS: Mapping[str, Field] = {
    "batch": Field(PROBLEM, _COUNT, "Batch size [1]"),
    "heads": Field(PROBLEM, _COUNT, "Query heads [1]"),
    "kv_heads": Field(PROBLEM, _COUNT, "Key and value heads, a divisor of heads [same as heads]"),
    "seqlen_q": Field(PROBLEM, _COUNT, "Query length, or lengths of a ragged batch: 5+64+1 [as --seqlen-k]"),
    "seqlen_k": Field(PROBLEM, _COUNT, "Key length, or lengths of a ragged batch: 1+63+1000 [as --seqlen-q]"),
    "seqlens_q": Field(PROBLEM, Lengths(), "Queries of each sequence of a ragged batch"),
    "seqlens_k": Field(PROBLEM, Lengths(), "Keys of each sequence of a ragged batch"),
    "head_dim": Field(PROBLEM, _COUNT, "Head dimension of q and k [64]"),
    "head_dim_v": Field(PROBLEM, _COUNT, "Head dimension of v and out [same as q and k]"),
    "shared_kv": Field(PROBLEM, Truth(), "v is the first dims of k, in the same memory: absorbed MLA"),
    "dtype": Field(PROBLEM, Word(_dtypes, aliases=SHORT), "float32, float16 or bfloat16 [float32]"),
    "causal": Field(PROBLEM, Truth(), "Apply a causal mask; no,yes runs both"),
    "causal_alignment": Field(
        PROBLEM,
        _one_of(*ALIGNMENTS),
        "bottom-right (FlashAttention-2) or top-left (torch's is_causal) [bottom-right]",
    ),
    "scale": Field(PROBLEM, _SCALE, "Scale of the scores [1/sqrt(head_dim)]"),
    "softcap": Field(
        PROBLEM,
        _CAP,
        "Cap scores s: softcap * tanh(s / softcap) [no cap]",
        keywords=("softcap", "logits_soft_cap"),
    ),
    "window": Field(
        PROBLEM,
        Sides(),
        "Visible keys left and right of the query's own; -1: all; such as 16,0 [all]",
        keywords=("window_size", "sliding_window"),
    ),
    "alibi_slopes": Field(
        PROBLEM,
        OfHeads(("geometric",)),
        "ALiBi slopes, one per query head, or geometric: 2^(-8 (h + 1) / heads) [none]",
        keywords=("alibi_slopes",),
    ),
    "alibi_form": Field(
        PROBLEM,
        _one_of("distance", "column"),
        "distance adds slope * -|key - diagonal|; column adds slope * key, as causal FlashAttention-2 [distance]",
    ),
    "sinks": Field(
        PROBLEM,
        OfHeads(("normal",)),
        "Attention sinks: one logit per query head, or normal: drawn from the seed [none]",
        keywords=("sinks", "sink", "s_aux", "learnable_sink"),
    ),
    "dropout_p": Field(
        PROBLEM,
        Number("be above 0 and below 1", lambda x: 0 < x < 1, True),
        "Fraction of probs to drop; the function receives the mask [none]",
    ),
    "score_mod": Field(
        PROBLEM,
        Function(),
        "Modify scaled scores as in FlexAttention: FUNCTION(score, b, h, q_idx, kv_idx); also MODULE:FUNCTION",
    ),
    "mask_mod": Field(
        PROBLEM,
        Function(),
        "Mask keys as in FlexAttention: FUNCTION(b, h, q_idx, kv_idx) is True for a visible key; also MODULE:FUNCTION",
    ),
    "page_size": Field(LAID, _COUNT, "Keys per page of a paged KV cache with shuffled pages [not paged]"),
    "kv_layout": Field(
        LAID,
        Word(lambda: ("NHD", "HND"), aliases={"nhd": "NHD", "hnd": "HND"}),
        "Axes of a page: NHD (key, head, dim) or HND (head, key, dim) [NHD]",
    ),
    "splits": Field(TILES, _COUNT, "Number of key splits, in kernels that split keys [2]"),
    "block_q": Field(TILES, _COUNT, "Queries in a tile: 16, 32, 64 or 128 [by head_dim]"),
    "block_k": Field(TILES, _COUNT, "Keys in a tile: 16, 32, 64 or 128 [by head_dim]"),
    "pack_gqa": Field(
        TILES,
        Truth(),
        "Pack the query heads of a group into the rows of a tile, in built-in kernels",
    ),
    "probs_dtype": Field(
        ARITHMETIC,
        Word(_dtypes, aliases=SHORT),
        "Dtype of probs in PV, in built-in kernels: float32 or the inputs' [float32]; fp8: [float16] or float32",
    ),
    "codes": Field(
        QUANTISER,
        _one_of("simulated", "e4m3", "e5m2", "mxfp8-e4m3", "mxfp8-e5m2", "nvfp4", "int8", "int4"),
        "Quantised codes; fp8 takes simulated, e4m3, e5m2, mxfp8-e4m3, mxfp8-e5m2, nvfp4, int8 or int4 [simulated]",
        on_codes=True,
    ),
    "codes_of": Field(
        QUANTISER,
        _one_of("qkv", "kv"),
        "What is quantised: qkv, or kv, a KV cache with unquantised q [qkv, or by the function's keywords]",
        on_codes=True,
    ),
    "scores": Field(
        ARITHMETIC,
        _one_of("mma", "scalar"),
        "How fp8 computes scores: mma (tensor cores) or scalar [mma; scalar with of=kv]",
        on_codes=True,
    ),
    "decode": Field(
        ARITHMETIC, _one_of("table", "direct"), "How fp8 decodes K and V: table or direct [table]", on_codes=True
    ),
    "quantiser_scale": Field(
        QUANTISER,
        _one_of("dynamic", "static"),
        "Scales of fp8: dynamic, or static, where larger values saturate [dynamic]",
        on_codes=True,
    ),
    "scale_of": Field(
        QUANTISER,
        _one_of("head", "token", "block", "tile"),
        "What shares a scale: head, token (a row), block (of a row's dims) or tile (128 tokens) [by codes]",
        on_codes=True,
    ),
    "seed": Field(DRAWN, Whole(at_least=0), "Seed of the inputs [0]"),
    "distribution": Field(
        DRAWN, Word(_distributions, (GIVEN,)), f"Distribution of the inputs [normal]; `{command('kernels')}` lists them"
    ),
    "input_std": Field(DRAWN, Number("be above 0", lambda x: x > 0), "Standard deviation of the inputs [1]"),
}


def of_role(*roles: str) -> tuple[str, ...]:
    """The fields of some roles, in their order."""
    return tuple(name for name, field in FIELDS.items() if field.role in roles)


#: fields of quantised kernels, None elsewhere -> values; a quantised kernel takes the first where none is given
QUANTISED: Mapping[str, tuple[str, ...]] = {
    name: field.rule.words() for name, field in FIELDS.items() if field.on_codes and isinstance(field.rule, Word)
}

#: fields that a foreign function is called with -> what libraries call the keyword
KEYWORDS: Mapping[str, tuple[str, ...]] = {name: field.keywords for name, field in FIELDS.items() if field.keywords}


def typed(value: Any) -> str:
    """A value of a field as the command line takes it."""
    if callable(value):
        return name_of(value)
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def name_of(function: Any) -> str:
    """A function that is the value of a field, as text: path.py:name or module:name."""
    return function if isinstance(function, str) else f"{function.__module__}:{function.__qualname__}"
