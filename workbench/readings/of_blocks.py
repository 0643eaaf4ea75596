"""What is alike in all blocks: P that stands elsewhere, factors of scores, exponentials of tiles."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from workbench.readings.finding import Finding
from workbench.readings.maps import in_words
from workbench.readings.model import Model
from workbench.readings.of_scores import logs, room
from workbench.readings.of_values import solved
from workbench.readings.parts import Parts, divided
from workbench.readings.sets import of_keys
from workbench.readings.steps import sizes
from workbench.readings.target import Target

#: rows and keys of a block of P, the smallest first
BLOCKS = (8, 16, 32)
#: rows and keys of a block of scores that may have a factor of its own
FACTORED = 8
#: factors nearer than this are the same
SAME = 0.02


@dataclass(frozen=True, eq=False)
class Moved:
    """P stands elsewhere in each whole block for P @ V, below the maximum so far of its own row; sums are right."""

    block: int
    size: int  #: keys of a tile
    map: np.ndarray  #: [block, block] of the index within a block

    def __call__(self, of: Parts) -> tuple[np.ndarray, np.ndarray]:
        """out and lse."""
        with np.errstate(all="ignore"):
            p, rest = so_far(of.scores, self.size)
            total = (p * rest).sum(-1)
            n = self.block
            rows, keys = (x // n * n for x in p.shape[2:])
            cut = in_blocks(p[:, :, :rows, :keys], n)[..., self.map.reshape(-1)]
            cut = cut.reshape(*cut.shape[:4], n, n).swapaxes(3, 4)
            p[:, :, :rows, :keys] = cut.reshape(*p.shape[:2], rows, keys)
            return divided((p * rest) @ of.values, total), of.top + np.log(total)


def so_far(scores: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """e^(score - the running maximum) and e^(running maximum - the row's), [b, h, q, k], of tiles of keys."""
    edges = list(range(0, scores.shape[-1], size))
    running = np.maximum.accumulate(np.maximum.reduceat(scores, edges, axis=-1), -1)
    wide = np.repeat(np.where(np.isfinite(running), running, 0.0), np.diff([*edges, scores.shape[-1]]), -1)
    last = np.where(np.isfinite(running[..., -1:]), running[..., -1:], 0.0)
    return np.exp(scores - wide), np.exp(np.minimum(wide - last, 0.0))


def in_blocks(x: np.ndarray, n: int) -> np.ndarray:
    """[b, h, row block, key block, n * n]."""
    b, h, rows, keys = x.shape
    return x.reshape(b, h, rows // n, n, keys // n, n).swapaxes(3, 4).reshape(b, h, rows // n, keys // n, n * n)


def moved(target: Target, model: Model, read: np.ndarray) -> Iterator[tuple[Model, list[Finding]]]:
    """Which P stands at each place of a block, by what all heads and blocks have there."""
    scores, _, plain = model.exponentials(target.natural)
    if not np.isfinite(read).all():
        return
    actual = read * model.total(scores, plain, target.natural.sinks)[..., None]
    for size in (plain.shape[3], *sizes(target)):
        for n in BLOCKS:
            rows, keys = (x // n * n for x in plain.shape[2:])
            if not rows or not keys or (size % n and size < plain.shape[3]):
                continue
            p, rest = so_far(scores, size)
            with np.errstate(all="ignore"):
                below = np.where(rest > 0, actual / rest, 0.0)
            x, y = (in_blocks(one[:, :, :rows, :keys], n).reshape(-1, n * n) for one in (p, below))
            if len(x) < 4:
                continue
            off = (x * x).sum(0)[None] - 2 * y.T @ x  # [place, source]
            source = off.argmin(1)
            own = np.arange(n * n)
            # what is not told by more than rounding stays
            gain = off[own, own] - off[own, source]
            source = np.where(gain > 1e-3 * (y * y).sum(0), source, own)
            if (source == own).all() or len(np.unique(source)) < n * n:
                continue
            index = source.reshape(n, n)
            text = f"P @ V uses P rearranged within {n} x {n} blocks: {in_words(index, n)}"
            text += "" if size == plain.shape[3] else f" (tiles of {size} keys)"
            wrong = int((source != own).sum()) * len(x)
            data = {"block": n, "map": index, "tile": size}
            yield model.but(kernel=Moved(n, size, index)), [Finding("moved", "probs", text, wrong, plain.size, data)]


def factors(target: Target, model: Model, read: np.ndarray) -> Iterator[tuple[Model, list[Finding]]]:
    """Factors of scores that blocks of queries and keys have, by keys that are numbers along one vector."""
    shape_q, shape_k = target.trace.inputs["q"].shape, target.trace.inputs["k"].shape
    dims, rows, keys = shape_q[3], shape_q[2], shape_k[2]
    if rows < FACTORED or keys < 2 * FACTORED or model.heads["k"].size == 0:
        return
    scale = model.scale or 1.0
    rng = np.random.default_rng(23)
    x = rng.permutation(np.linspace(-1, 1, keys))
    size = 1 / np.sqrt(abs(scale) * dims)
    q, k = np.full((rows, dims), size * np.sign(scale)), x[:, None] * np.full(dims, size)
    weights = target.weights(model.v_dims, q=q, k=k)
    y = logs(solved(model, weights), room(target.identity, np.zeros(1))) - np.where(
        np.isfinite(model.start), model.start, np.nan
    )
    n = FACTORED
    cut_rows, cut_keys = -(-rows // n), -(-keys // n)
    slope = np.full((cut_rows, cut_keys), np.nan)
    with np.errstate(all="ignore"):
        for i in range(cut_rows):
            for j in range(cut_keys):
                at = slice(j * n, min(j * n + n, keys))
                part = y[:, :, i * n : i * n + n, at]
                part = part - np.nanmean(part, -1, keepdims=True)
                known = np.isfinite(part)
                s = np.where(known, x[at], np.nan)
                s = s - np.nanmean(s, -1, keepdims=True)
                if known.sum() > 4:
                    slope[i, j] = np.nansum(part * s) / np.nansum(s * s)
    told = slope[np.isfinite(slope)]
    if told.size < 4 or np.ptp(told) < SAME * np.median(abs(told)):
        return
    groups: list[float] = []
    for one in np.sort(told):
        if not groups or abs(one - groups[-1]) > SAME * max(abs(one), 1.0):
            groups.append(float(one))
    if len(groups) > 4:
        return
    means = [float(np.median(told[abs(told - g) <= 2 * SAME * max(abs(g), 1.0)])) for g in groups]
    nearest = np.array(
        [min(means, key=lambda g: abs(g - one)) if np.isfinite(one) else 1.0 for one in slope.reshape(-1)]
    )
    whole = np.repeat(np.repeat(nearest.reshape(slope.shape), n, 0), n, 1)[:rows, :keys]
    off = abs(whole - 1) > SAME
    said = ", ".join(f"{g:.6g}" for g in means if abs(g - 1) > SAME)
    seen = np.isfinite(model.start).any((0, 1), keepdims=True)
    text = f"scores of {of_keys(off & seen, seen)} are multiplied by {said}; the others are right"
    found = Finding("response", "scores", text, int(off.sum()), off.size, {"factor": whole})
    yield model.but(factor=np.broadcast_to(whole, model.start.shape)), [found]


@dataclass(frozen=True, eq=False)
class Polynomial:
    """exp2 by a polynomial of the fraction of its argument, in a loop over tiles of keys."""

    size: int
    terms: tuple[float, ...]  #: of 1, f, f^2 ..
    whole: bool  #: in tiles alone of which the mask hides nothing
    in_sum: bool = True

    def __call__(self, of: Parts) -> tuple[np.ndarray, np.ndarray]:
        """out and lse."""
        with np.errstate(all="ignore"):
            bases = self.bases(of)
            p = np.tensordot(np.array(self.terms), np.stack(bases), 1)
            total = (p if self.in_sum else exact(of)).sum(-1)
            return divided(p @ of.values, total), of.top + np.log(total)

    def bases(self, of: Parts) -> list[np.ndarray]:
        """What each term multiplies, [b, h, q, k], below the maximum of the row."""
        keys = of.scores.shape[-1]
        edges = list(range(0, keys, self.size))
        new = np.maximum.accumulate(np.maximum.reduceat(of.scores, edges, axis=-1), -1)
        below = np.repeat(np.where(np.isfinite(new), new, 0.0), np.diff([*edges, keys]), -1)
        x = (of.scores - below) / np.log(2)
        low = np.floor(np.where(np.isfinite(x), x, 0.0))
        f = np.where(np.isfinite(x), x - low, 0.0)
        scale = np.where(np.isfinite(x), np.exp(low * np.log(2) + below - of.top[..., None]), 0.0)
        found = [scale * f**n for n in range(len(self.terms))]
        if self.whole:
            seen = np.isfinite(of.start).all((0, 1, 2))
            tiles = np.repeat(np.minimum.reduceat(seen, edges), np.diff([*edges, keys]))
            found = [np.where(tiles, one, exact(of) if n == 0 else 0.0) for n, one in enumerate(found)]
        return found

    @property
    def words(self) -> str:
        """What is wrong in it."""
        said = " + ".join(
            f"{a:.4f}" + ("" if n == 0 else f" f^{n}" if n > 1 else " f") for n, a in enumerate(self.terms)
        )
        where = ", only without masked keys" if self.whole else ""
        return (
            f"exp2 computes 2^f, where f is the fraction of the exponent, as {said} (tiles of {self.size} keys{where})"
        )


def exact(of: Parts) -> np.ndarray:
    """e^(score - maximum of the row)."""
    return np.exp(of.scores - of.top[..., None])


def polynomials(target: Target, model: Model, read: np.ndarray) -> Iterator[tuple[Model, list[Finding]]]:
    """Polynomials that make the weights that were read, by least squares, for tiles of each size."""
    if not np.isfinite(read).all():
        return
    of = model.parts(target.natural)
    with np.errstate(all="ignore"):
        seen = exact(of)
    masked = not np.isfinite(of.start).all()
    for size in [target.case.seqlen_k, *sizes(target)]:
        for whole in (False, True) if masked else (False,):
            for degree in (2, 3):
                one = Polynomial(size, (1.0,) + (0.0,) * degree, whole)
                bases = one.bases(of)
                # read * (sum of all) = own, homogeneous in the terms; that of 1 is known to be 1
                rows = [base - read * base.sum(-1, keepdims=True) for base in bases]
                flat = [x[seen > 1e-4].reshape(-1) for x in rows]
                terms, *_ = np.linalg.lstsq(np.stack(flat[1:], 1), -flat[0], rcond=None)
                kernel = Polynomial(size, (1.0, *(float(x) for x in terms)), whole)
                data = {"terms": kernel.terms, "tile": size}
                yield model.but(kernel=kernel), [Finding("exponential", "probs", kernel.words, 0, seen.size, data)]
