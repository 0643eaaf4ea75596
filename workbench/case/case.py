"""A case: one attention problem, and the q, k, v that belong to it.

Everything downstream (kernel, reference, budgets, report) reads the same frozen record, so a run can be repeated from
its text.
"""

import math
from dataclasses import InitVar, asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from workbench.case.distributions import DISTRIBUTIONS, EXACT, FIXED, SMALLEST_CAP, SMALLEST_SCALE, shapes
from workbench.case.fields import FIELDS, GIVEN, SEQLEN
from workbench.case.stages import axis_sizes
from workbench.floats import DTYPES
from workbench.machine import memory_bytes
from workbench.refusal import Refusal

#: a field that is derived from others when it is not given; a case that exists has a value there
_SETTLED: Any = None


@dataclass(frozen=True, repr=False)
class Case:
    """One problem. `seqlen` sets both lengths; of seqlen_q and seqlen_k one alone sets both.

    What is None is settled by `__post_init__` (kv_heads, scale) or by the kernel that runs the case (splits, block_q,
    block_k). Raises Refusal for a value outside its rule.
    """

    batch: int = 1
    heads: int = 1
    kv_heads: int = _SETTLED  #: as many as heads when not given; must divide heads
    seqlen_q: int = _SETTLED
    seqlen_k: int = _SETTLED
    head_dim: int = 64
    dtype: str = "float32"
    causal: bool = False
    causal_alignment: str = "bottom-right"  #: FlashAttention-2's; "top-left" is torch's is_causal
    scale: float = _SETTLED  #: 1 / sqrt(head_dim) when not given; rounded to float32, in which kernels take it
    #: scaled scores s become softcap * tanh(s / softcap), before bias and mask; rounded to float32; None: no cap
    softcap: float | None = None
    #: (left, right), flash-attn's window_size: query i sees the keys i + diagonal - left to i + diagonal + right, both
    #: included, -1 for no limit; causal sets right to 0; None where it hides nothing that causal does not
    window: tuple[int, int] | None = None
    splits: int | None = None  #: None: 2 in kernels that split the keys
    block_q: int | None = None  #: queries in a tile; None: chosen by head_dim
    block_k: int | None = None  #: keys in a tile; None: chosen by head_dim
    #: to which a kernel of ours casts probs before they meet V; None: float32, no cast (float16 in quantised kernels)
    probs_dtype: str | None = None
    codes: str | None = None  #: format of the 8-bit codes of q, k and v
    scores: str | None = None  #: how q @ k^T is computed: on tensor cores, or by scalar products
    decode: str | None = None  #: whether codes of k and v are looked up in a table or decoded one by one
    quantiser_scale: str | None = None  #: dynamic: max|x| has the largest code; static: half of that, so codes saturate
    seed: int = 0
    distribution: str = "normal"
    input_std: float = 1.0
    seqlen: InitVar[int | None] = None

    def __post_init__(self, seqlen: int | None) -> None:
        if seqlen is not None and (self.seqlen_q is not None or self.seqlen_k is not None):
            raise Refusal(
                "seqlen sets both lengths and excludes seqlen_q and seqlen_k; give seqlen alone, or the two others"
            )
        if seqlen is not None:
            self._settle("seqlen_q", SEQLEN.rule.settled("seqlen", seqlen))
        given = [n for n in (self.seqlen_q, self.seqlen_k) if n is not None] or [128]
        self._settle("head_dim", FIELDS["head_dim"].rule.settled("head_dim", self.head_dim))
        derived = {"kv_heads": self.heads, "seqlen_q": given[0], "seqlen_k": given[0], "scale": self.head_dim**-0.5}
        for name, value in derived.items():
            if getattr(self, name) is None:
                self._settle(name, value)
        for field in fields(self):
            if (value := getattr(self, field.name)) is not None or field.default is not None:
                self._settle(field.name, FIELDS[field.name].rule.settled(field.name, value))
        if self.heads % self.kv_heads:
            raise Refusal(f"heads must be a multiple of kv_heads; got heads={self.heads}, kv_heads={self.kv_heads}")
        if self.window is not None:
            hides_nothing = (-1, 0 if self.causal else -1)
            window = (self.window[0], 0 if self.causal else self.window[1])
            self._settle("window", None if window == hides_nothing else window)
        if self.distribution in FIXED:
            self._check_fixed()

    def _check_fixed(self) -> None:
        """Refusal where a distribution of fixed values does not fit the case."""
        if self.input_std != 1:
            raise Refusal(
                f"distribution {self.distribution} has fixed values and takes no input_std; got {self.input_std!r}"
            )
        needed = FIXED[self.distribution](self.seqlen_k)
        if self.head_dim < needed:
            raise Refusal(
                f"distribution {self.distribution} writes the key's index in binary over head_dim: seqlen_k="
                f"{self.seqlen_k} needs head_dim >= {needed}; got {self.head_dim}"
            )
        if self.distribution not in EXACT:
            return
        if not SMALLEST_SCALE <= abs(self.scale):
            raise Refusal(
                f"distribution {self.distribution} needs a scale of at least {SMALLEST_SCALE} or at most "
                f"-{SMALLEST_SCALE}, so that scores reach below -200; got {self.scale!r}"
            )
        if self.softcap is not None and self.softcap < SMALLEST_CAP:
            raise Refusal(
                f"distribution {self.distribution} needs scores below -200, and so a softcap of at least "
                f"{SMALLEST_CAP:g}; got {self.softcap!r}"
            )

    def _settle(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def but(self, **changes: Any) -> "Case":
        """The same case with `changes`; a new head_dim or heads keeps scale and kv_heads unless they are given.

        `seqlen` sets both lengths here too.
        """
        if (seqlen := changes.pop("seqlen", None)) is not None:
            changes = {"seqlen_q": seqlen, "seqlen_k": seqlen} | changes
        return replace(self, **changes, seqlen=None)

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain Python values, for JSON; `Case(**case.as_dict())` is the same case."""
        return asdict(self)

    def __repr__(self) -> str:
        """The expression that makes this case, with the fields alone that are not as usual.

        >>> Case(heads=4, kv_heads=2, seqlen=65, causal=True, scale=None)
        Case(heads=4, kv_heads=2, seqlen=65, causal=True)
        """
        return f"Case({', '.join(f'{name}={value!r}' for name, value in self.unusual.items())})"

    @property
    def unusual(self) -> dict[str, Any]:
        """The fields that make this case, those alone that are not as usual; equal lengths as seqlen, others both."""
        square, usual = self.seqlen_q == self.seqlen_k, Case(heads=self.heads, head_dim=self.head_dim)
        found = {}
        for name in FIELDS:
            value = getattr(self, name)
            if name in ("seqlen_q", "seqlen_k") and not square:  # one length alone would set both
                found[name] = value
            elif name in ("heads", "head_dim"):
                found |= {} if value == getattr(Case, name) else {name: value}
            elif value != getattr(usual, name) and name != "seqlen_k":
                found["seqlen" if name == "seqlen_q" else name] = value
        return found

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """The same for IPython and hypothesis, which would list all fields."""
        printer.text(repr(self))

    @property
    def sizes(self) -> dict[str, int]:
        """As `stages.axis_sizes`, without t and s where tiles and splits are not settled."""
        q, k, _ = shapes(self)
        return axis_sizes(q, k, self.block_k, self.splits)

    @property
    def diagonal(self) -> int:
        """A causal query row i sees the keys j <= i + diagonal (bottom-right: the last query sees every key); the
        window of row i is around it.
        """
        return self.seqlen_k - self.seqlen_q if self.causal_alignment == "bottom-right" else 0

    @property
    def numbers(self) -> dict[str, float]:
        """What scores are made with: the scale, and the softcap where there is one."""
        return {"scale": self.scale} | ({} if self.softcap is None else {"softcap": self.softcap})

    def mask(self, queries: slice | np.ndarray = slice(None)) -> np.ndarray:
        """Which keys some queries see, bool [queries, seqlen_k]."""
        rows = np.arange(self.seqlen_q)[queries]
        beyond = np.arange(self.seqlen_k) - (rows[:, None] + self.diagonal)  # keys after the row's own
        left, right = self.window or (-1, 0 if self.causal else -1)
        return ((beyond >= -left) | (left == -1)) & ((beyond <= right) | (right == -1))

    def check_memory(self) -> None:
        """Refusal where q, k and v alone, drawn in float64, do not fit in the memory of this machine."""
        needed, memory = 8 * sum(map(math.prod, shapes(self))), memory_bytes()
        if needed > memory:
            q, k, _ = shapes(self)
            raise Refusal(
                f"q {list(q)}, k and v {list(k)} are drawn in float64, in which they take {needed / 1e9:.3g} GB; this "
                f"machine has {memory / 1e9:.3g} GB: choose smaller lengths"
            )

    def inputs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """q [b, heads, seqlen_q, d] and k, v [b, kv_heads, seqlen_k, d] in the case's dtype, rounded before anyone sees
        them.
        """
        if self.distribution == GIVEN:
            raise Refusal("a case of distribution given draws no inputs: they are put in (--inputs FILE)")
        self.check_memory()
        rng = np.random.default_rng(self.seed)
        arrays = DISTRIBUTIONS[self.distribution](self, rng)
        # by way of float32, so that a 16-bit case has the inputs of the float32 case, rounded once
        with np.errstate(over="ignore"):
            q, k, v = (x.astype(np.float32).astype(DTYPES[self.dtype]) for x in arrays)
        for name, x in (("q", q), ("k", k), ("v", v)):
            if not np.all(np.isfinite(x.astype(np.float32))):
                raise Refusal(
                    f"inputs must be finite in {self.dtype}; {self.distribution} with input_std={self.input_std!r} "
                    f"overflows in {name}"
                )
        return q, k, v
