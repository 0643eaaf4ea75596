"""Hypotheses that any table has: stages times factors, operands of elsewhere, sums over less."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from workbench.floats import round_to
from workbench.judge.explain.hypothesis import Change, Edit, Hypothesis, altered, read_as
from workbench.operations.operation import Setting
from workbench.reference.stage import Step, Table, reads
from workbench.reference.steps.neutral import Sum, Total

LOG2E, LN2 = math.log2(math.e), math.log(2)
#: queries, keys or dims that kernels take at once
TILES = (8, 16, 32, 64, 128)


def hypotheses(of: Setting, table: Table, axes: dict[str, str], names: Mapping[str, str]) -> Iterator[Hypothesis]:
    """All of them, the cheap and likely first; `axes`: of inputs and stages; `names`: of axes."""
    numbers = {name: x for name, x in of.numbers.items() if not isinstance(x, bool) and x not in (0, 1)}
    yield from _factors(table, numbers)
    yield from _operands_times(table, numbers, axes)
    yield from _sums_over_less(of, table, names)
    yield from _rounded(of, table, axes)
    yield from _of_elsewhere(of, table, axes)
    yield from _moved(of, table, axes, names)


def _of(id: str, text: str, *edits: Any) -> Hypothesis:
    return Hypothesis(id, text, edits)


def times(factor: float) -> Change:
    """x times a factor, NaN and infinities too."""
    return lambda at, x: factor * x


def plus(off: float) -> Change:
    """x and a number."""
    return lambda at, x: x + off


def _known(numbers: dict[str, float]) -> dict[str, float]:
    """Factors that have a name: of any kernel, and the numbers of this one."""
    inverse = {f"1/{name}": 1 / x for name, x in numbers.items()}
    return {"-1": -1.0, "2": 2.0, "log2(e)": LOG2E, "ln(2)": LN2, **numbers, **inverse}


def _factors(table: Table, numbers: dict[str, float]) -> Iterator[Hypothesis]:
    """Results of steps times what may be left out, or put in twice."""
    known = {"0": 0.0, "1/2": 0.5, **_known(numbers)}
    for name in reversed(table):
        for said, x in known.items():
            text = f"{name} is left out (0 in its place)" if x == 0 else f"{name} is multiplied by {said}"
            yield _of(f"factor.{name}.{said}", text, altered(name, times(x)))
        yield _of(f"factor.{name}.itself", f"{name} is squared", altered(name, lambda at, x: x * x))


def _operands(table: Table, axes: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Each step and what it reads, as it names it; the last steps first."""
    for name in reversed(table):
        step = table[name].step
        for ref in getattr(step, "also", None) or reads(step):
            if ref.lstrip("-") in axes:
                yield name, ref


def _operands_times(table: Table, numbers: dict[str, float], axes: dict[str, str]) -> Iterator[Hypothesis]:
    """What one step reads of what others read, too."""
    for name, ref in dict.fromkeys(_operands(table, axes)):
        yield _of(f"read.{name}.{ref}.0", f"{name} reads 0 in place of {ref}",
                  read_as(name, ref, lambda at, x: 0.0 * np.nan_to_num(x)))  # fmt: skip
        if not isinstance(table[name].step, Total):
            yield _of(f"read.{name}.{ref}.1", f"{name} reads 1 in place of {ref}",
                      read_as(name, ref, lambda at, x: np.ones_like(x)))  # fmt: skip
        for said, x in _known(numbers).items():
            yield _of(f"read.{name}.{ref}.times.{said}", f"{name} reads {ref} times {said}",
                      read_as(name, ref, times(x)))  # fmt: skip
        for off in (1, -1):
            yield _of(f"read.{name}.{ref}.plus.{off}", f"{name} reads {ref} {off:+d}",
                      read_as(name, ref, plus(off)))  # fmt: skip
        yield _of(f"read.{name}.{ref}.squared", f"{name} reads {ref} squared", read_as(name, ref, lambda at, x: x * x))


def kept_alone(kept: np.ndarray, axis: int) -> Change:
    """x where a place of an axis is `kept`, 0 elsewhere, whatever stands there."""

    def change(at: Any, x: np.ndarray) -> np.ndarray:
        shape = [1] * x.ndim
        shape[axis] = len(kept)
        return np.where(kept.reshape(shape), x, 0.0)

    return change


def parts(n: int, others: Mapping[str, int]) -> dict[str, np.ndarray]:
    """What of an axis of length n a loop may see, in words: tiles rounded down, the first or last lost, or alone."""
    places = np.arange(n)
    found: list[tuple[str, str, np.ndarray]] = []
    for tile in TILES:
        count, said = -(-n // tile), str(tile)
        if n % tile and n > tile:
            found.append(("tiles of {} are rounded down: the remainder is left out", said, places < n // tile * tile))
        if count > 1:
            last = (count - 1) * tile
            found += [
                ("the last tile of {} is left out", said, places < last),
                ("the first tile of {} is left out", said, places >= tile),
                ("only the last tile of {} counts", said, places >= last),
                ("only the first tile of {} counts", said, places < tile),
            ]
    found += [
        ("only the first half counts", "", places < n // 2),
        ("only the second half counts", "", places >= n // 2),
        ("the last element is left out", "", places < n - 1),
        ("the first element is left out", "", places > 0),
        ("only the last element counts", "", places == n - 1),
        ("only the first element counts", "", places == 0),
    ]
    found += [("only the first {} count", f"{m} (the number of {name})", places < m) for name, m in others.items()]
    return dict(told_once(found))


def told_once(found: Iterable[tuple[str, str, np.ndarray]]) -> Iterator[tuple[str, np.ndarray]]:
    """Of (sentence, what stands in its braces, what is kept): each that leaves something out once, with all sentences
    and sizes of tiles that keep the same.
    """
    same: dict[bytes, tuple[np.ndarray, dict[str, list[str]]]] = {}
    for text, said, kept in found:
        if not kept.all():
            same.setdefault(kept.tobytes(), (kept, {}))[1].setdefault(text, []).append(said)
    for kept, texts in same.values():
        yield ", or ".join(text.format(" or ".join(sizes)) for text, sizes in texts.items()), kept


def _sums_over_less(of: Setting, table: Table, names: Mapping[str, str]) -> Iterator[Hypothesis]:
    for name in reversed(table):
        step = table[name].step
        if not isinstance(step, Sum):
            continue
        operands, result = step.spec.split("->")
        for axis in dict.fromkeys("".join(operands.split(","))):
            if axis in result or axis not in of.sizes:
                continue
            ref, own = next((r, o) for r, o in zip(step.of, operands.split(","), strict=True) if axis in o)
            others = {names[letter]: n for letter, n in of.sizes.items() if letter != axis and n > 1}
            for said, kept in parts(of.sizes[axis], others).items():
                yield _of(f"less.{name}.{axis}.{said}", f"{name}, sum over {names[axis]}: {said}",
                          read_as(name, ref, kept_alone(kept, own.index(axis))))  # fmt: skip


def cast_to(dtype: str) -> Change:
    """x rounded to a dtype."""
    return lambda at, x: round_to(x, dtype)


def _rounded(of: Setting, table: Table, axes: dict[str, str]) -> Iterator[Hypothesis]:
    """What is read, or made, in fewer bits."""
    narrow = ("bfloat16", "float16") if of.dtype == "float32" else (of.dtype,)
    for dtype in narrow:
        for name, ref in dict.fromkeys(_operands(table, axes)):
            yield _of(f"cast.{name}.{ref}.{dtype}", f"{name} reads {ref} rounded to {dtype}",
                      read_as(name, ref, cast_to(dtype)))  # fmt: skip
        for name in table:
            yield _of(f"cast.{name}.{dtype}", f"{name} is rounded to {dtype}", altered(name, cast_to(dtype)))
            step = table[name].step
            if isinstance(step, Sum) and len({*step.spec.split("->")[0].split(",")}) == 1:
                yield _of(f"cast.{name}.products.{dtype}", f"products in {name} are rounded to {dtype} before the sum",
                          altered(name, _of_rounded_products(step, dtype), *step.of))  # fmt: skip


def _of_rounded_products(step: Sum, dtype: str) -> Change:
    operands, result = step.spec.split("->")

    def change(at: Any, x: np.ndarray) -> np.ndarray:
        own = operands.split(",")[0]
        products = round_to(np.prod([at(ref) for ref in step.of], axis=0), dtype)
        return products.sum(tuple(n for n, axis in enumerate(own) if axis not in result))

    return change


def fitted(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """x cut, or filled with zeros, to a shape."""
    cut = x[tuple(slice(0, n) for n in shape)]
    return np.pad(cut, [(0, n - m) for n, m in zip(shape, cut.shape, strict=True)])


def _of_elsewhere(of: Setting, table: Table, axes: dict[str, str]) -> Iterator[Hypothesis]:
    """Another operand of the same axes, but for the last one's."""
    order = [*(name for name in axes if name not in table), *table]
    for name, ref in dict.fromkeys(_operands(table, axes)):
        own = axes[ref.lstrip("-")]
        before = order[: order.index(name)]
        for other in before:
            theirs = axes[other]
            if other == ref.lstrip("-") or not own or theirs[:-1] != own[:-1] or len(theirs) != len(own):
                continue
            same = [of.sizes.get(axis) for axis in own] == [of.sizes.get(axis) for axis in theirs]
            step = table[name].step
            if same and (own == theirs or isinstance(step, Sum)) and ref in getattr(step, "of", ()):
                edit = _reads(name, ref, other)
            else:
                edit = read_as(name, ref, _fitting(other), other)
            yield _of(f"taken.{name}.{ref}.{other}", f"{name} reads {other} in place of {ref}", edit)


def _reads(name: str, ref: str, other: str) -> Edit:
    """A step that reads something else."""

    def changed(step: Any) -> Step:
        of = other if isinstance(step.of, str) else tuple(other if one == ref else one for one in step.of)
        made: Step = replace(step, of=of)
        return made

    return Edit(name, changed)


def _fitting(other: str) -> Change:
    return lambda at, x: fitted(at(other), x.shape)


def flipped(axis: int) -> Change:
    """From the end of an axis."""
    return lambda at, x: np.flip(x, axis)


def rolled(by: int, axis: int) -> Change:
    """What stands `by` places before, round the end."""
    return lambda at, x: np.roll(x, by, axis)


def as_stored(first: int) -> Change:
    """An array whose memory is read as if the axes `first` and `first` + 1 were stored in the other order."""

    def change(at: Any, x: np.ndarray) -> np.ndarray:
        shape = [*x.shape]
        shape[first : first + 2] = shape[first + 1], shape[first]
        return x.reshape(shape).swapaxes(first, first + 1)

    return change


def stored_as(first: int) -> Change:
    """The same of what is written."""
    return lambda at, x: np.ascontiguousarray(x.swapaxes(first, first + 1)).reshape(x.shape)


def one_alone(place: int, axis: int) -> Change:
    """One place of an axis for all."""
    return lambda at, x: np.broadcast_to(np.take(x, [place], axis), x.shape)


def _moved(of: Setting, table: Table, axes: dict[str, str], names: Mapping[str, str]) -> Iterator[Hypothesis]:
    """What is read, or made, of other places."""

    def ways(letters: str, made: bool) -> Iterator[tuple[str, str, Change]]:
        own = [axis for axis in letters.replace("t", "") if axis in of.sizes]
        if len(own) != len(letters.replace("t", "")):
            return
        for n, axis in enumerate(own):
            if of.sizes[axis] == 1:
                continue
            along, written = names[axis], "written " if made else ""
            taken = "taken " if made else ""
            yield f"{axis}-1", f"{taken}from one place earlier along {along}", rolled(1, n)
            yield f"{axis}+1", f"{taken}from one place later along {along}", rolled(-1, n)
            yield f"{axis}^1", f"{written}with neighbours along {along} swapped", swapped(n)
            yield f"{axis}=first", f"{taken}from the first place along {along} everywhere", one_alone(0, n)
            yield f"{axis}=last", f"{taken}from the last place along {along} everywhere", one_alone(-1, n)
            yield f"{axis}=reversed", f"{written}in reverse order along {along}", flipped(n)
        for n, (a, b) in enumerate(pairwise(own)):
            if of.sizes[a] > 1 and of.sizes[b] > 1:
                order = f"[{', '.join(names[one] for one in [*own[:n], b, a, *own[n + 2 :]])}]"
                yield f"{a}{b}", f"{'' if made else 'as if '}stored as {order}", stored_as(n) if made else as_stored(n)

    for name, ref in dict.fromkeys(_operands(table, axes)):
        for id, said, change in ways(axes[ref.lstrip("-")], False):
            yield _of(f"moved.{name}.{ref}.{id}", f"{name} reads {ref} {said}", read_as(name, ref, change))
    for name in reversed(table):
        for id, said, change in ways(table[name].axes, True):
            yield _of(f"moved.{name}.{id}", f"{name} is {said}", altered(name, change))


def swapped(axis: int) -> Change:
    """Neighbours along an axis in each other's places; 0 behind the end."""

    def change(at: Any, x: np.ndarray) -> np.ndarray:
        n = x.shape[axis]
        order = np.arange(n) ^ 1
        taken = np.take(x, np.minimum(order, n - 1), axis)
        if n % 2:
            taken[(slice(None),) * axis + (n - 1,)] = 0.0
        return taken

    return change
