"""Factors of rows of K and V in the user's own run, and whose scale makes them."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TypeAlias

import numpy as np

from workbench.readings.finding import Finding
from workbench.readings.model import Model, right
from workbench.readings.of_scores import logs
from workbench.readings.proof import rms
from workbench.readings.scales import Constant, Rescaled, candidates, constants
from workbench.readings.target import Answer, Target

Scaled: TypeAlias = Rescaled | Constant
#: dims of the narrowest block that shares a scale
STEP = 16
#: share of the factors' logarithms that a formula may leave, and how small a factor counts as none
LEFT, NONE = 0.1, 0.002
#: standard error above which a factor is not known
UNSURE = 0.02
#: share of the factors that has to be known
KNOWN = 0.25
#: ln of a factor, above which an error counts no more
OFF = 0.5
#: seed of the run that tells apart what is alike in the user's, beside the case's own; formulas of which it does
TELLING, TRIED = 1, 32
#: rows of Q of which factors of K are fitted, at most, in all heads of a group
ROWS = 160


def readable(target: Target) -> tuple[np.ndarray, np.ndarray]:
    """Weights of the user's own q and k, read by signs in V, of which every block has the same largest element, where
    zeros in V make NaN; and how far off each may be.
    """
    keys, width = target.trace.inputs["v"].shape[2:]
    count = 1 << (keys - 1).bit_length()
    at = np.arange(count)
    signs = 1.0 - 2.0 * (np.bitwise_count(at[:keys, None] & at) & 1)
    outs, allowed = [], []
    for first in range(0, count, width):
        v = np.ones((keys, width))
        some = signs[:, first : first + width]
        v[:, : some.shape[1]] = some
        answer = target(v=v)
        outs.append(answer.out[..., : some.shape[1]])
        allowed.append(answer.allowed[..., : some.shape[1]])
    read = np.concatenate(outs, -1) @ signs.T / count
    off = np.sqrt((np.concatenate(allowed, -1) ** 2).sum(-1, keepdims=True)) / count
    return read, np.broadcast_to(off, read.shape)


def of_k(target: Target, model: Model, read: np.ndarray, allowed: np.ndarray) -> np.ndarray | None:
    """What scores of each key are multiplied with, [b, kv head, key, dims / STEP]: of ln P, which is linear in them but
    for a number a key and one a row. None where that is not so.
    """
    memory = model.memory(target.natural)
    k = memory["k"]
    batches, kv_heads, keys, dims = k.shape
    group, steps = target.case.heads // kv_heads, dims // STEP
    y = logs(read, allowed) - np.where(np.isfinite(model.start), model.start, np.nan)
    found = np.ones((batches, kv_heads, keys, steps))
    for parts in (1, steps):
        left, whole = 0.0, 0.0
        for b, g in np.ndindex(batches, kv_heads):
            heads = slice(g * group, (g + 1) * group)
            q = memory["q"][b, heads].reshape(-1, dims)
            s = np.stack([x @ z.T for x, z in zip(np.split(q, parts, 1), np.split(k[b, g], parts, 1), strict=True)], -1)
            one = y[b, heads].reshape(-1, keys)
            some = np.flatnonzero(np.isfinite(one).sum(1) > 4)[:ROWS]
            got, off, size = _slopes(one[some], s[some] * model.scale)
            found[b, g] = np.repeat(got, steps // parts, 1)
            left, whole = left + off, whole + size
        if left < LEFT**2 * whole:
            return found
    return None


def _slopes(y: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, float, float]:
    """Slopes [key, part] of y [row, key] by s [row, key, part] with a constant a key and one a row, by least squares;
    the squares that are left, and those that slopes of 1 would leave.
    """
    rows, keys, parts = s.shape
    known = np.isfinite(y)
    i, j = np.nonzero(known)
    n = len(i)
    matrix = np.zeros((n, keys * (parts + 1) + rows))
    at = np.arange(n)
    for p in range(parts):
        matrix[at, j * parts + p] = s[i, j, p]
    matrix[at, keys * parts + j] = 1.0
    matrix[at, keys * (parts + 1) + i] = -1.0
    gram = matrix.T @ matrix
    gram[np.diag_indices(len(gram))] += 1e-9 * max(float(np.trace(gram)) / len(gram), 1e-300)
    numbers, left = _sure(gram, matrix.T @ y[known], lambda x: float(np.sum((matrix @ x - y[known]) ** 2)), n)
    of_one = y[known] - s[i, j].sum(-1)
    for index, count in ((i, rows), (j, keys), (i, rows)):
        sums, each = np.bincount(index, of_one, count), np.maximum(np.bincount(index, minlength=count), 1)
        of_one = of_one - (sums / each)[index]
    return numbers[: keys * parts].reshape(keys, parts), left, float(np.sum(of_one**2))


def _sure(
    gram: np.ndarray, to: np.ndarray, left: Callable[[np.ndarray], float], count: int
) -> tuple[np.ndarray, float]:
    """Numbers of least squares, NaN where their standard error is above UNSURE; and the squares that they leave."""
    inverse = np.linalg.inv(gram)
    numbers = inverse @ to
    rest = left(numbers)
    error = np.sqrt(np.maximum(np.diag(inverse), 0.0) * rest / max(count - len(to), 1))
    return np.where(error <= UNSURE, numbers, np.nan), rest


def of_v(target: Target, model: Model) -> np.ndarray | None:
    """What values of each key are multiplied with, [b, kv head, key, dims / STEP], by least squares."""
    answer = target.natural
    weights, v = model.of_run(answer), model.memory(answer)["v"]
    batches, kv_heads, keys, dims = v.shape
    group = target.case.heads // kv_heads
    out = model.result(answer.out)
    if not np.isfinite(out).all() or not np.isfinite(weights).all():
        return None
    found = np.ones((batches, kv_heads, keys, dims // STEP))
    for b, g in np.ndindex(batches, kv_heads):
        p = weights[b, g * group : (g + 1) * group]
        of_p = np.einsum("hqk,hql->kl", p, p)
        for n in range(dims // STEP):
            at = slice(n * STEP, (n + 1) * STEP)
            x = v[b, g, :, at]
            gram = of_p * (x @ x.T)
            gram[np.diag_indices(keys)] += 1e-10 * max(float(np.trace(gram)) / keys, 1e-300)
            made = out[b, g * group : (g + 1) * group, :, at]
            to = np.einsum("hqk,hqd,kd->k", p, made, x)
            whole = float(np.sum(made**2))

            def left(f: np.ndarray, gram: np.ndarray = gram, to: np.ndarray = to, whole: float = whole) -> float:
                return max(whole - 2 * float(f @ to) + float(f @ gram @ f), 0.0)

            found[b, g, :, n] = _sure(gram, to, left, made.size)[0]
    return found


def rescaled(target: Target, name: str, factors: np.ndarray | None) -> list[Scaled]:
    """The scales that make the factors of K or V, the plainest first."""
    if factors is None:
        return []
    with np.errstate(all="ignore"):
        y = np.log(factors)
    known = np.isfinite(y)
    wrong = known & (abs(y) > NONE)
    if known.mean() < KNOWN or wrong.sum() < 4:
        return []
    target.computes("rescaled")
    memory = target.natural.memory
    keys = np.flatnonzero(wrong.any((0, 1, 3)))
    some = (int(keys.min()), int(keys.max()) + 1)
    ranges = [None] if some == (0, y.shape[2]) else [None, some]
    size = _size(abs(y), known)
    told: list[tuple[float, Scaled]] = [
        (_size(abs(y - np.log(abs(one(memory)))), known), one) for one in constants(name, factors)
    ]
    told = [(left, one) for left, one in told if left < LEFT * size]
    for own, used in candidates(name, *y.shape[:2]):
        for among in ranges:
            one = Rescaled(name, own, used, keys=among)
            if not (used.of and own.of):
                inside = known & (np.isin(np.arange(y.shape[2]), keys)[:, None])
                one = _with_number(one, y, inside, memory)
            with np.errstate(all="ignore"):
                off = abs(y - np.log(one(memory, STEP)))
            left = _size(off, known)
            if left < LEFT * size:
                told.append((left, one))
    least = min((left for left, _ in told), default=0.0)
    return [one for left, one in told if left <= 2 * least + NONE]


def may_be_read(target: Target) -> bool:
    """Whether the function takes numbers, all of which are known, in dims that are whole blocks of STEP."""
    whole = all(target.trace.inputs[name].shape[3] % STEP == 0 for name in "kv")
    return whole and not target.books and not target.behind and target.some is None


def scaled(target: Target, read: np.ndarray, allowed: np.ndarray) -> tuple[Model, list[Finding]]:
    """With whose scales blocks of K and V are multiplied. Of formulas that make the same factors in the user's run the
    plainest that makes another one.
    """
    model = right(target)
    several: dict[str, list[Scaled]] = {}
    told: dict[str, Scaled] = {}
    runs = _runs(target)
    for name in ("k", "v"):
        some = rescaled(target, name, of_k(target, model, read, allowed) if name == "k" else of_v(target, model))
        if some:
            several[name] = _apart(some, runs())
            model, told[name] = _nearest(model, name, several[name], runs())
    if len(several) > 1:  # which is K's was told while V was wrong
        for name, some in several.items():
            model, told[name] = _nearest(model, name, some, runs())
    return model, [_found(name, one, target.natural.wrong) for name, one in told.items()]


def of_scores(target: Target, model: Model, read: np.ndarray, allowed: np.ndarray) -> tuple[Model, list[Finding]]:
    """The same of K alone, where scores are not as they should be but for what else was found."""
    if not may_be_read(target) or "k" in model.rescaled or "k" in model.sources:
        return model, []
    some = rescaled(target, "k", of_k(target, model, read, allowed))
    if not some:
        return model, []
    runs = _runs(target)()
    model, one = _nearest(model, "k", _apart(some, runs), runs)
    return model, [_found("k", one, target.identity.wrong)]


def _runs(target: Target) -> Callable[[], list[Answer]]:
    """The user's run and one on other numbers, which is made once it is asked for."""
    return cache(lambda: [target.natural, target.drawn(target.case.seed + TELLING)])


def _found(name: str, one: Scaled, wrong: np.ndarray) -> Finding:
    stage = "out" if name == "v" else "scores"
    return Finding("rescaled", stage, one.words, int(wrong.sum()), wrong.size, {name: one})


def _apart(some: list[Scaled], runs: list[Answer]) -> list[Scaled]:
    """Of those that make the same factors in all runs the plainest."""
    apart: dict[bytes, Scaled] = {}
    for one in some:
        apart.setdefault(b"".join(one(run.memory, STEP).tobytes() for run in runs), one)
    return [*apart.values()][:TRIED]


def _nearest(model: Model, name: str, some: list[Scaled], runs: list[Answer]) -> tuple[Model, Scaled]:
    """The first of some scales that is as near to the runs as any, and the model with it."""
    ways = [(model.but(rescaled={**model.rescaled, name: one}), one) for one in some]
    off = [sum(rms(run, way.predicted(run)) for run in runs) for way, _ in ways]
    return next(way for way, left in zip(ways, off, strict=True) if left <= 1.02 * min(off))


def _with_number(one: Rescaled, y: np.ndarray, inside: np.ndarray, memory: dict[str, np.ndarray]) -> Rescaled:
    with np.errstate(all="ignore"):
        times = float(np.exp(np.median((y - np.log(one(memory, STEP)))[inside])))
    near = round(times) if times > 0.5 and abs(times - round(times)) < 0.01 * times else times
    near = 1 / round(1 / times) if times < 0.5 and abs(1 / times - round(1 / times)) < 0.01 / times else near
    return replace(one, times=float(near))


def _size(of: np.ndarray, where: np.ndarray) -> float:
    """The root of the mean square of errors, of large ones as OFF."""
    found = np.minimum(of[where], OFF)
    return float(np.sqrt(np.mean(found**2))) if found.size else np.inf
