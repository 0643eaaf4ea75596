"""Large runs, measured in part: of more than 2^22 scores some rows of one head, the one farthest from float64."""

from dataclasses import replace

import numpy as np

from workbench.case.box import parse
from workbench.readings.model import right
from workbench.readings.reader import Measured, measured
from workbench.readings.target import LARGEST, Target
from workbench.refusal import Refusal
from workbench.trace.rows import of_rows
from workbench.trace.trace import Trace

#: rows of every head whose weights are read to find the head that is farthest off
LOOKED_AT = 64
#: scores of the rows of one head that is then measured: a walk in float64 takes a tenth of a second
SCORES = 2**19
#: scores of the rows that are looked at, at most
SEEN = 2**23


def measured_in_part(trace: Trace, where: str | None = None, *, effort: float = 1.0) -> Measured:
    """What the function of a trace computes, measured on the heads and rows of `where` (`box.parse`); without it on the
    whole run if that has at most LARGEST scores, else on some rows of one head. Raises Refusal as `measured` and
    `of_rows` do. `effort`: as of `measured`.
    """
    if where is None and trace.case.score_count <= LARGEST:
        return measured(trace, effort=effort)
    case = trace.case
    if where is not None:
        box = parse(where, case)
        rows = np.arange(case.seqlen_q)[box.q]
        part = of_rows(trace, box.b, box.h, rows)
        if part.case.score_count > LARGEST:
            raise Refusal(
                f"{trace.target}: {where} has {part.case.score_count:,} scores; the limit is {LARGEST:,}. Choose "
                "fewer heads or rows: --where b=0,h=0,q=0:64"
            )
        return replace(measured(part, effort=effort), part=f"{box} alone")
    batch, group = farthest(trace)
    heads = case.heads // case.kv_heads
    rows = spread(case.seqlen_q, SCORES // (case.seqlen_k * heads))
    own = slice(group * heads, (group + 1) * heads)
    part = of_rows(trace, slice(batch, batch + 1), own, rows)
    said = f"head {own.start}" if heads == 1 else f"heads {own.start} to {own.stop - 1}"
    told = f"{len(rows):,} of {case.seqlen_q:,} rows of batch {batch}, {said}"
    chosen = f"where weights are farthest from float64, among {_looked_at(trace)} rows per head"
    return replace(measured(part, effort=effort), part=f"{told}, {chosen}")


def spread(count: int, some: int) -> np.ndarray:
    """Indices of at most `some` of `count` rows, the first and the last among them, at uneven distances: even ones may
    hit the same row of every tile.
    """
    if some >= count:
        return np.arange(count)
    even = np.linspace(0, count - 1, max(2, some))
    shifted = even + np.random.default_rng(23).uniform(-0.4, 0.4, len(even)) * (even[1] - even[0])
    return np.unique(np.clip(np.round(shifted), 0, count - 1).astype(int))


def looked_at(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """The weights of some rows of all heads [b, h, q, k], as they were read and in float64."""
    case = trace.case
    rows = spread(case.seqlen_q, _looked_at(trace))
    part = of_rows(trace, slice(0, case.batch), slice(0, case.heads), rows)
    target = Target(part, most=SEEN)
    return target.identity.read, right(target).of_run(target.natural)


def _looked_at(trace: Trace) -> int:
    """How many rows of each head are compared to choose one; Refusal if two are more than SEEN scores."""
    of_one = trace.case.batch * trace.case.heads * trace.case.seqlen_k
    if 2 * of_one > SEEN:
        raise Refusal(
            f"{trace.target}: two rows of all heads have more than {SEEN:,} weights; use --where b=0,h=0,q=0:2"
        )
    return min(LOOKED_AT, SEEN // of_one)


def farthest(trace: Trace) -> tuple[int, int]:
    """The batch and the kv head whose weights are farthest from float64, for their size."""
    read, made = looked_at(trace)
    with np.errstate(invalid="ignore"):
        off = np.sqrt(np.mean((read - made) ** 2, axis=(2, 3)) / np.mean(made**2, axis=(2, 3)))
    off = np.where(np.isfinite(off), off, np.inf)
    of_groups = off.reshape(len(off), trace.case.kv_heads, -1).max(-1)
    batch, group = np.unravel_index(of_groups.argmax(), of_groups.shape)
    return int(batch), int(group)
