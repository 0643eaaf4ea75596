"""A case: one attention problem, and the q, k, v that belong to it.

Everything downstream (kernel, reference, budgets, report) reads the same frozen record, so a run can be repeated from
its text.
"""

import math
from collections.abc import Callable
from dataclasses import InitVar, asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from workbench.case.distributions import DISTRIBUTIONS, FIXED, shapes
from workbench.case.fields import FIELDS, GIVEN, SEQLEN, name_of
from workbench.case.formats import blocks_of
from workbench.case.resolved import OF_LENGTHS, check_fixed, check_heads, lengths_of, scale_of
from workbench.case.stages import OF_HEADS, axis_sizes
from workbench.floats import DTYPES, array_namespace
from workbench.machine import memory_bytes
from workbench.refusal import Refusal

#: a field that is derived from others when it is not given; a case that exists has a value there
_SETTLED: Any = None


@dataclass(frozen=True, repr=False)
class Case:
    """One problem. `seqlen` sets both lengths, or the one that is not given beside it; of seqlen_q and seqlen_k one
    alone sets both, as does seqlens_q alone; seqlens are the lengths of the sequences of a ragged batch, of which
    seqlen_q and seqlen_k are the largest.

    What is None is resolved by `__post_init__` (batch, kv_heads, head_dim_v, scale) or by the kernel that runs the case
    (splits, block_q, block_k). Raises Refusal for a value outside its rule.

    >>> case = Case(seqlen=100, heads=8, kv_heads=2, dtype="bfloat16", causal=True)
    >>> case.seqlen_k, case.head_dim, case.scale  # what is not given has a default
    (100, 64, 0.125)
    >>> [x.shape for x in case.inputs()]
    [(1, 8, 100, 64), (1, 2, 100, 64), (1, 2, 100, 64)]
    """

    batch: int = _SETTLED  #: 1, or as many as seqlens
    heads: int = 1
    kv_heads: int = _SETTLED  #: as many as heads when not given; must divide heads
    seqlen_q: int = _SETTLED
    seqlen_k: int = _SETTLED
    #: lengths of each sequence, whose queries and keys are the first ones of its batch; None: all as long as the others
    seqlens_q: tuple[int, ...] | None = None
    seqlens_k: tuple[int, ...] | None = None
    head_dim: int = 64
    head_dim_v: int = _SETTLED  #: of v and out; head_dim when not given
    #: v is the first head_dim_v dims of k, in the same memory, as in absorbed MLA (DeepSeek-AI, DeepSeek-V2, 2024,
    #: section 2.1.2); its scale is that of the head before it was absorbed, and must be given
    shared_kv: bool = False
    dtype: str = "float32"
    causal: bool = False
    causal_alignment: str = "bottom-right"  #: FlashAttention-2's; "top-left" is torch's is_causal
    scale: float = _SETTLED  #: 1 / sqrt(head_dim) when not given; rounded to float32, in which kernels take it
    #: scaled scores s become softcap * tanh(s / softcap), before bias and mask; rounded to float32; None: no cap
    softcap: float | None = None
    #: (left, right), flash-attn's window_size: query i sees the keys i + diagonal - left to i + diagonal + right, both
    #: included, -1 for no limit; causal sets right to 0; None where it hides nothing that causal does not
    window: tuple[int, int] | None = None
    #: added to scaled scores, slope * -|key - diagonal| or slope * key (Press et al. 2022, ALiBi, arXiv 2108.12409)
    alibi_slopes: str | tuple[float, ...] | None = None
    alibi_form: str = "distance"
    #: a logit for each query head, in the denominator alone: a key whose v is 0 (Xiao et al. 2024, arXiv 2309.17453)
    sinks: str | tuple[float, ...] | None = None
    dropout_p: float | None = None  #: probs are kept where `dropout_mask` says, divided by 1 - dropout_p
    score_mod: str | Callable[..., Any] | None = None  #: of scaled, capped scores, before bias and mask
    mask_mod: str | Callable[..., Any] | None = None
    page_size: int | None = None  #: keys in a page of k and v; None: not paged
    kv_layout: str = "NHD"  #: of a page
    splits: int | None = None  #: None: 2 in kernels that split the keys
    block_q: int | None = None  #: queries in a tile; None: chosen by head_dim
    block_k: int | None = None  #: keys in a tile; None: chosen by head_dim
    #: FlashAttention-3's: rows of a tile are the queries of all heads that share a kv head, head after head
    pack_gqa: bool = False
    #: to which a kernel of ours casts probs before they meet V; None: float32, no cast (float16 in quantised kernels)
    probs_dtype: str | None = None
    codes: str | None = None  #: format of the codes of q, k and v
    #: which of them have codes: qkv, also where it is None, or kv, a KV cache, whose q is read in the case's dtype
    codes_of: str | None = None
    scores: str | None = None  #: how q @ k^T is computed: on tensor cores, or by scalar products
    decode: str | None = None  #: whether codes of k and v are looked up in a table or decoded one by one
    quantiser_scale: str | None = None  #: dynamic: max|x| has the largest code; static: half of that, so codes saturate
    #: what shares a scale of codes: a head over all batches, a token (a row of a head), or a block of a token's dims,
    #: as many as the format says; what the format has first when not given
    scale_of: str | None = None
    seed: int = 0
    distribution: str = "normal"
    input_std: float = 1.0
    seqlen: InitVar[int | None] = None

    def __post_init__(self, seqlen: int | None) -> None:
        if seqlen is not None:
            lacking = [name for name in ("seqlen_q", "seqlen_k") if getattr(self, name) is None]
            if not lacking:
                raise Refusal("give at most two of seqlen, seqlen_q and seqlen_k; got all three")
            for name in lacking:
                self._resolve(name, SEQLEN.rule.resolved("seqlen", seqlen))
        for name, value in lengths_of({name: getattr(self, name) for name in OF_LENGTHS}).items():
            self._resolve(name, value)
        if self.shared_kv and (self.scale is None or self.head_dim_v is None):
            raise Refusal(
                "shared_kv (absorbed MLA) needs head_dim_v and scale, such as --head-dim 576,v=512,shared_kv --scale "
                "0.0722: v is the first 512 dims of k, and the scale is 1 / sqrt(head dimension before absorption), "
                "here 192**-0.5"
            )
        self._resolve("head_dim", FIELDS["head_dim"].rule.resolved("head_dim", self.head_dim))
        derived = {"kv_heads": self.heads, "head_dim_v": self.head_dim, "scale": self.head_dim**-0.5}
        for name, value in derived.items():
            if getattr(self, name) is None:
                self._resolve(name, value)
        for field in fields(self):
            if (value := getattr(self, field.name)) is not None or field.default is not None:
                self._resolve(field.name, FIELDS[field.name].rule.resolved(field.name, value))
        check_heads(self)
        if self.codes is not None:
            self._resolve("scale_of", scale_of(self.codes, self.scale_of))
        if self.window is not None:
            hides_nothing = (-1, 0 if self.causal else -1)
            window = (self.window[0], 0 if self.causal else self.window[1])
            self._resolve("window", None if window == hides_nothing else window)
        if self.distribution in FIXED:
            check_fixed(self)

    def _resolve(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def but(self, **changes: Any) -> "Case":
        """The same case with `changes`; a new head_dim or heads keeps scale and kv_heads unless they are given.

        `seqlen` sets both lengths here too, and a new head_dim that of v where they are equal.
        """
        if "head_dim" in changes and self.head_dim_v == self.head_dim:
            changes.setdefault("head_dim_v", changes["head_dim"])
        if (seqlen := changes.pop("seqlen", None)) is not None:
            changes = {"seqlen_q": seqlen, "seqlen_k": seqlen} | changes
        return replace(self, **changes, seqlen=None)

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain Python values, for JSON; `Case(**case.as_dict())` is the same case, but for functions
        that no module has under their name.
        """
        return {name: name_of(x) if callable(x) else x for name, x in asdict(self).items()}

    def __repr__(self) -> str:
        """The expression that makes this case, with the fields alone that are not as usual.

        >>> Case(heads=4, kv_heads=2, seqlen=65, causal=True, scale=None)
        Case(heads=4, kv_heads=2, seqlen=65, causal=True)
        """
        words = {name: getattr(value, "__name__", repr(value)) for name, value in self.unusual.items()}
        return f"Case({', '.join(f'{name}={word}' for name, word in words.items())})"

    @property
    def unusual(self) -> dict[str, Any]:
        """The fields that make this case, those alone that are not as usual; equal lengths as seqlen, others both."""
        square, follows = self.seqlen_q == self.seqlen_k, self._follows
        usual = Case(heads=self.heads, head_dim=self.head_dim)
        found = {}
        for name in FIELDS:
            value = getattr(self, name)
            if name in follows:
                continue
            if name in ("seqlen_q", "seqlen_k") and not square:  # one length alone would set both
                found[name] = value
            elif name in ("heads", "head_dim"):
                found |= {} if value == getattr(Case, name) else {name: value}
            elif value != getattr(usual, name) and name != "seqlen_k":
                found["seqlen" if name == "seqlen_q" else name] = value
        return found

    @property
    def _follows(self) -> set[str]:
        """Fields that the lengths of sequences tell."""
        if not self.ragged:
            return set()
        lengths = {f"seqlen_{x}": getattr(self, f"seqlens_{x}") for x in "qk"}
        found = {name for name, x in lengths.items() if x is not None and max(*x, 1) == getattr(self, name)}
        return found | {"batch"} | ({"seqlens_k"} if self.seqlens_k == self.seqlens_q and len(found) == 2 else set())

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """The same for IPython and hypothesis, which would list all fields."""
        printer.text(repr(self))

    @property
    def sizes(self) -> dict[str, int]:
        """As `stages.axis_sizes`, without t and s where tiles and splits are not resolved."""
        q, k, v = shapes(self)
        found = axis_sizes(q, k, v, self.block_k, self.splits)
        blocks = {} if self.codes is None else {"g": blocks_of(self.codes, self.scale_of, self.head_dim)}
        return found | blocks

    @property
    def coded(self) -> str:
        """The inputs that have codes, where a kernel reads codes: qkv or kv."""
        return self.codes_of or "qkv"

    @property
    def score_count(self) -> int:
        """How many scores there are, of every query and key, masked or not."""
        return self.batch * self.heads * self.seqlen_q * self.seqlen_k

    @property
    def diagonal(self) -> int:
        """A causal query row i sees the keys j <= i + diagonal (bottom-right: the last query sees every key); the
        window of row i is around it. Of a ragged batch each sequence has its own: `diagonals`.
        """
        return self.seqlen_k - self.seqlen_q if self.causal_alignment == "bottom-right" else 0

    @property
    def ragged(self) -> bool:
        """Whether sequences have lengths of their own."""
        return self.seqlens_q is not None or self.seqlens_k is not None

    @property
    def lengths_q(self) -> np.ndarray:
        """Queries of each sequence, int64 [b]."""
        return np.array(self.seqlens_q or [self.seqlen_q] * self.batch, np.int64)

    @property
    def lengths_k(self) -> np.ndarray:
        """Keys of each sequence, int64 [b]."""
        return np.array(self.seqlens_k or [self.seqlen_k] * self.batch, np.int64)

    @property
    def diagonals(self) -> np.ndarray:
        """The diagonal of each sequence, int64 [b]."""
        bottom_right = self.causal_alignment == "bottom-right"
        return (self.lengths_k - self.lengths_q) * bottom_right

    @property
    def sides(self) -> tuple[int, int]:
        """How far a row sees to the left and to the right of its diagonal, -1 for no limit."""
        return self.window or (-1, 0 if self.causal else -1)

    @property
    def of_heads(self) -> dict[str, np.ndarray]:
        """What each query head has a number of, float32 [heads]: OF_HEADS, those that there are."""
        given = zip(OF_HEADS, (self.slopes, self.sink_logits), strict=True)
        return {name: x for name, x in given if x is not None}

    @property
    def slopes(self) -> np.ndarray | None:
        """Slopes of ALiBi, float32 [heads]; geometric as Press et al. 2022 have them for a power of two of heads."""
        if self.alibi_slopes == "geometric":
            return (2.0 ** (-8.0 * np.arange(1, self.heads + 1) / self.heads)).astype(np.float32)
        return None if self.alibi_slopes is None else np.array(self.alibi_slopes, np.float32)

    @property
    def sink_logits(self) -> np.ndarray | None:
        """Logits of sinks in natural units, float32 [heads]; -inf is none."""
        if self.sinks == "normal":
            return np.random.default_rng((self.seed, 1)).standard_normal(self.heads).astype(np.float32)
        return None if self.sinks is None else np.array(self.sinks, np.float32)

    def dropout_mask(self) -> np.ndarray | None:
        """Which probs are kept, bool [b, h, q, k], drawn from the seed; None without dropout."""
        if self.dropout_p is None:
            return None
        shape = (self.batch, self.heads, self.seqlen_q, self.seqlen_k)
        return np.random.default_rng((self.seed, 2)).random(shape, np.float32) >= self.dropout_p

    @property
    def draws_beside(self) -> bool:
        """Whether the seed draws more than q, k and v: sinks, which probs are kept, the order of pages, what stands
        behind the end of a sequence.
        """
        return self.sinks == "normal" or self.dropout_p is not None or self.page_size is not None or self.ragged

    @property
    def numbers(self) -> dict[str, float]:
        """What stages are made with: the scale, and the softcap and dropout_p where there are any."""
        beside = {name: x for name in ("softcap", "dropout_p") if (x := getattr(self, name)) is not None}
        return {"scale": self.scale} | beside

    def places(self, queries: slice | np.ndarray = slice(None)) -> tuple[np.ndarray, np.ndarray]:
        """Key indices [seqlen_k], and for some queries that of the key on their causal diagonal, [queries, 1]
        ([b, 1, queries, 1] of a ragged batch), as `in_window` takes them.
        """
        diagonal: Any = self.diagonals[:, None, None, None] if self.ragged else self.diagonal
        return np.arange(self.seqlen_k), np.arange(self.seqlen_q)[queries][:, None] + diagonal

    def mask(self, queries: slice | np.ndarray = slice(None)) -> np.ndarray:
        """Which keys some queries see, bool [queries, seqlen_k]; [b, 1, queries, seqlen_k] of a ragged batch, in which
        rows that do not exist see none. What `mask_mod` hides is not in it.
        """
        seen = in_window(*self.places(queries), *self.sides)
        if not self.ragged:
            return seen
        rows = np.arange(self.seqlen_q)[queries]
        q, k = (x[:, None, None, None] for x in (self.lengths_q, self.lengths_k))
        return seen & (rows[:, None] < q) & (np.arange(self.seqlen_k) < k)

    def cut(self, name: str, x: np.ndarray) -> np.ndarray:
        """An input [b, h, rows, d] that is 0 behind the end of each sequence."""
        lengths = self.lengths_q if name == "q" else self.lengths_k
        there = np.arange(x.shape[2]) < lengths[:, None]
        return np.where(there[:, None, :, None], x, np.zeros((), x.dtype))

    def check_memory(self) -> None:
        """Refusal where q, k and v alone, drawn in float64, do not fit in the memory of this machine."""
        needed, memory = 8 * sum(map(math.prod, shapes(self))), memory_bytes()
        if needed > memory:
            q, k, v = map(list, shapes(self))
            keys = f"k and v {k}" if k == v else f"k {k}, v {v}"
            raise Refusal(
                f"q {q}, {keys} are drawn in float64 and need {needed / 1e9:.3g} GB; this "
                f"machine has {memory / 1e9:.3g} GB: choose smaller lengths"
            )

    def inputs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """q [b, heads, seqlen_q, d], k [b, kv_heads, seqlen_k, d] and v [b, kv_heads, seqlen_k, head_dim_v] in the
        case's dtype, contiguous, rounded before anyone sees them; 0 behind the end of a sequence.
        """
        if self.distribution == GIVEN:
            raise Refusal("distribution given draws no inputs: pass them with --inputs FILE")
        self.check_memory()
        rng = np.random.default_rng(self.seed)
        arrays = list(DISTRIBUTIONS[self.distribution](self, rng))
        if self.shared_kv:
            arrays[2] = arrays[1][..., : self.head_dim_v]
        if self.ragged:
            arrays = [self.cut(name, x) for name, x in zip("qkv", arrays, strict=True)]
        # by way of float32, so that a 16-bit case has the inputs of the float32 case, rounded once
        with np.errstate(over="ignore"):
            q, k, v = (x.astype(np.float32, order="C").astype(DTYPES[self.dtype]) for x in arrays)
        for name, x in (("q", q), ("k", k), ("v", v)):
            if not np.all(np.isfinite(x.astype(np.float32))):
                raise Refusal(
                    f"inputs must be finite in {self.dtype}; {self.distribution} with input_std={self.input_std!r} "
                    f"overflows in {name}"
                )
        return q, k, v


def in_window(keys: np.ndarray, own: np.ndarray, left: int, right: int) -> np.ndarray:
    """Whether keys lie in a window of two sides around their row's own; -1: a side has no end. Indices, of NumPy or
    torch, which broadcast against each other.
    """
    xp = array_namespace(keys)
    # 64 million of them are 16,384 queries and 4,096 keys: half the memory, and one pass for each side
    keys, own = (xp.astype(x, xp.int32) for x in (keys, own))
    from_left = None if left == -1 else keys >= own - left
    to_right = None if right == -1 else keys <= own + right
    if from_left is None or to_right is None:
        one = to_right if from_left is None else from_left
        return (
            xp.ones(np.broadcast_shapes(keys.shape, own.shape), dtype=xp.bool, device=keys.device)
            if one is None
            else one
        )
    from_left &= to_right
    return from_left
