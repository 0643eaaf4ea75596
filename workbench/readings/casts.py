"""Numbers of few bits: a kernel in float64 that rounds at one site more than it should."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from workbench.readings.parts import Parts, divided, finite

#: dims of a step of mma, or of a vector that is loaded
SLICES = (16, 8, 32, 4, 1)
#: fixed maxima that kernels take
FIXED = tuple(range(-20, 31))


def _cut(x: np.ndarray, bits: int) -> np.ndarray:
    """float32 without its lowest bits."""
    whole = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32) & np.uint32(0xFFFFFFFF << bits & 0xFFFFFFFF)
    return whole.view(np.float32).astype(np.float64)


def _nearest(x: np.ndarray, bits: int) -> np.ndarray:
    """float32 rounded to nearest, ties to even, of so many bits less."""
    raw = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    up = (raw + np.uint32((1 << bits - 1) - 1) + (raw >> np.uint32(bits) & np.uint32(1))).view(np.float32)
    return np.where(np.isfinite(x), _cut(up, bits), x)


def _as(dtype: type) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: x.astype(np.float32).astype(dtype).astype(np.float64)


#: name -> what rounds to it
FORMATS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "TF32": lambda x: _nearest(x, 13),
    "float16": _as(np.float16),
    "bfloat16": _as(ml_dtypes.bfloat16),
    "e4m3": _as(ml_dtypes.float8_e4m3fn),
    "e5m2": _as(ml_dtypes.float8_e5m2),
    "TF32 (truncated)": lambda x: _cut(x, 13),
    "bfloat16 (truncated)": lambda x: _cut(x, 16),
    "13 mantissa bits (truncated)": lambda x: _cut(x, 10),  # of the tensor cores' sums of products of 8 bits
}
#: sites that a loop over tiles has, in words
SITES = {
    "none": "only P and out are rounded",
    "q and k": "q and k are rounded to {0}",
    "q": "q is rounded to {0}",
    "k": "k is rounded to {0}",
    "v": "v is rounded to {0}",
    "operands": "q, k, v and P are rounded to {0} before both matmuls",
    "q scaled": "scale * q is rounded to {0}",
    "q scaled for exp2": "scale * log2(e) is rounded to {0}, and so is its product with q",
    "dot": "q.k is accumulated in {0}, in slices of {1} dims",
    "raw": "q.k is rounded to {0} before scaling",
    "scores": "scores are rounded to {0}",
    "scores of P": "P uses scores rounded to {0}, but lse uses unrounded ones",
    "k of P": "P uses scale * log2(e) * k rounded to {0}, but lse uses it unrounded",
    "maximum from 0": "row maxima start at 0, not -inf, and P is rounded to {0} for P @ V",
    "below maximum": "score - maximum is rounded to {0}",
    "probs": "probs are rounded to {0} for P @ V",
    "probs and sum": "probs are rounded to {0} for P @ V and for the row sum",
    "correction": "the correction of the accumulator is rounded to {0}",
    "acc": "the accumulator is rounded to {0} after each tile",
    "sum": "the row sum is rounded to {0} after each tile",
    "sum of keys": "the row sum is accumulated key by key in {0}",
    "out": "out is rounded to {0}",
    "lse": "lse is rounded to {0} before P is computed from it",
    "partials": "partial results of splits are rounded to {0}",
    "partial acc": "partial results of splits are rounded to {0} before normalisation",
    "partial lse": "the lse of splits is rounded to {0} before the merge",
    "fixed maximum": "P is e^(score - {1}), not e^(score - maximum), and is rounded to {0} for P @ V",
}
#: sites at which a tile changes nothing but the usual casts
_WITHOUT_TILES = (
    "q and k", "q", "k", "v", "out", "sum of keys", "q scaled", "q scaled for exp2", "dot", "raw", "scores", "lse",
    "fixed maximum", "scores of P", "k of P", "maximum from 0",
)  # fmt: skip
#: sites that are rounded once a tile
OF_TILES = ("correction", "acc", "sum", "partials", "partial acc", "partial lse")
#: and of several alone: of one split these are out, the accumulator or lse
OF_SPLITS = ("correction", "partials", "partial acc", "partial lse")


@dataclass(frozen=True)
class Narrow:
    """A loop over tiles of keys with a rounding at one site; P and out are cast to the dtype of q, as usual."""

    site: str  #: a key of SITES
    format: str  #: a key of FORMATS
    size: int  #: keys of a tile
    number: int = 0  #: dims of a slice, or the fixed maximum

    def round(self, x: np.ndarray, *sites: str) -> np.ndarray:
        """It, in fewer bits at one of these sites."""
        return FORMATS[self.format](x) if self.site in sites else x

    def __call__(self, of: Parts) -> tuple[np.ndarray, np.ndarray]:
        """out and lse."""
        usual = FORMATS.get(of.dtype, lambda x: x)
        with np.errstate(all="ignore"):
            scores = self.round(of.finished(self._raw(of)), "scores")
            v = self.round(of.values, "v", "operands")
            if self.site in ("partials", "partial acc", "partial lse"):
                out, lse = self._merged(scores, v, usual)
            else:
                out, lse = self._loop(scores, v, usual)
            if self.site in ("lse", "scores of P", "k of P"):
                if self.site == "k of P":
                    k = self.round(of.k * (of.scale / np.log(2)), "k of P")
                    scores = of.finished(of.q @ k.swapaxes(-1, -2) * np.log(2))
                of_p = self.round(scores, "scores of P")
                out = usual(np.exp(of_p - finite(self.round(lse, "lse"))[..., None])) @ v
                lse = self.round(lse, "lse")
        return usual(self.round(out, "out")), lse

    def _raw(self, of: Parts) -> np.ndarray:
        if self.site == "dot":
            raw = np.zeros(of.scores.shape)
            for d in range(0, of.q.shape[-1], self.number):
                at = slice(d, d + self.number)
                more = of.q[..., at] @ of.k[..., at].swapaxes(-1, -2)
                raw = self.round(raw + (more if self.number > 1 else self.round(more, "dot")), "dot")
            return raw * of.scale
        q, k = self.round(of.q, "q and k", "q", "operands"), self.round(of.k, "q and k", "k", "operands")
        if self.site == "q scaled":
            return self.round(q * of.scale, "q scaled") @ k.swapaxes(-1, -2)
        if self.site == "q scaled for exp2":
            factor = self.round(np.float64(of.scale / np.log(2)).reshape(1), self.site)
            return self.round(q * factor, self.site) @ k.swapaxes(-1, -2) * np.log(2)
        if self.site == "raw":  # of products in float32, as kernels have them: at a tie these decide
            q, k = q.astype(np.float32), k.astype(np.float32)
        return self.round((q @ k.swapaxes(-1, -2)).astype(np.float64), "raw") * of.scale

    def _loop(
        self, scores: np.ndarray, v: np.ndarray, usual: Callable[[np.ndarray], np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        m = np.full(scores.shape[:-1], -np.inf)
        total, acc = np.zeros_like(m), np.zeros((*m.shape, v.shape[-1]))
        for first in range(0, scores.shape[-1], self.size):
            at = slice(first, first + self.size)
            new = (
                np.full_like(m, self.number) if self.site == "fixed maximum" else np.maximum(m, scores[..., at].max(-1))
            )
            if self.site == "maximum from 0":
                new = np.maximum(new, 0.0)
            shrink = np.exp(m - finite(new)) if self.site != "fixed maximum" else np.ones_like(m)
            p = np.exp(self.round(scores[..., at] - finite(new)[..., None], "below maximum"))
            p = self.round(p, "probs and sum")
            total = self.round(total * shrink + p.sum(-1), "sum")
            if self.site == "sum of keys" and self.size >= scores.shape[-1]:
                total = np.zeros_like(m)
                for j in range(scores.shape[-1]):
                    total = self.round(total + p[..., j], "sum of keys")
            p = usual(self.round(p, "probs", "fixed maximum", "maximum from 0", "operands"))
            acc = acc * self.round(shrink, "correction")[..., None] + p @ v[..., at, :]
            acc = self.round(acc, "acc")
            m = new
        return divided(acc, total), finite(m) + np.log(total)

    def _merged(
        self, scores: np.ndarray, v: np.ndarray, usual: Callable[[np.ndarray], np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        outs, lses = list[np.ndarray](), list[np.ndarray]()
        for first in range(0, scores.shape[-1], self.size):
            mine = scores[..., first : first + self.size]
            top = finite(mine.max(-1))
            p = np.exp(mine - top[..., None])
            total = p.sum(-1)
            acc = self.round(usual(p) @ v[..., first : first + self.size, :], "partial acc")
            outs.append(self.round(divided(acc, total), "partials"))
            lses.append(self.round(top + np.log(total), "partial lse"))
        lse = np.logaddexp.reduce(np.stack(lses), 0)
        shares = np.exp(np.stack(lses) - finite(lse))
        return (shares[..., None] * np.stack(outs)).sum(0), lse

    @property
    def words(self) -> str:
        """What is rounded."""
        said = SITES[self.site].format(self.format, self.number)
        return said if self.site in _WITHOUT_TILES else f"{said} (tiles of {self.size} keys)"


def narrow(dtype: str, dims: int, keys: int, size: int) -> Iterator[Narrow]:
    """Roundings to fewer bits than the dtype of a case needs, at each site; `size`: of tiles."""
    wide = dtype == "float32"
    formats = [name for name in FORMATS if wide or (name != dtype and "TF32" not in name)]
    eight = [name for name in FORMATS if name in ("e4m3", "e5m2")]
    half = ["float16", "bfloat16"]
    for name in formats if wide else eight:
        for site in ("q and k", "q", "k", "v"):
            yield Narrow(site, name, size)
    for name in half:
        for site in (
            "q scaled", "q scaled for exp2", "raw", "scores", "scores of P", "k of P", "below maximum", "lse",
            "probs and sum",
        ):  # fmt: skip
            yield Narrow(site, name, size)
        for site in OF_TILES:
            if size < keys or site not in OF_SPLITS:
                yield Narrow(site, name, size)
        if size >= keys:
            yield Narrow("sum of keys", name, size)
        for n in SLICES:
            if n < dims:
                yield Narrow("dot", name, size, n)
    for name in formats:
        yield Narrow("probs", name, size)
        yield Narrow("operands", name, size)
        yield Narrow("out", name, size)
    # which is P in 16 bits, where no row has a maximum below 0
    yield from (Narrow("maximum from 0", name, size) for name in half)
    yield Narrow("acc", "13 mantissa bits (truncated)", size)
    for name in ("e4m3", "e5m2"):
        if size < keys:
            yield Narrow("correction", name, size)
        yield Narrow("probs and sum", name, size)
        yield Narrow("scores", name, size)


def usual(sizes: Sequence[int]) -> list[Narrow]:
    """Loops that round what every kernel does: what they leave is what another cast has to explain."""
    return [Narrow("none", "float16", size) for size in sizes]


def fixed(dtype: str, size: int) -> Iterator[Narrow]:
    """Fixed maxima, which show where P has few bits."""
    for name in dict.fromkeys((*((dtype,) if dtype != "float32" else ()), "float16")):
        for number in FIXED:
            yield Narrow("fixed maximum", name, size, number)


def with_sizes(one: Narrow, sizes: Sequence[int], dtype: str) -> list[Narrow]:
    """The same with other tiles, where they change anything; `sizes`: that of all keys first."""
    if one.site in _WITHOUT_TILES and dtype == "float32":
        return [one]
    some = [size for size in sizes if size < sizes[0]] if one.site in OF_SPLITS else sizes
    return [Narrow(one.site, one.format, size, one.number) for size in some]
