"""einsum, dot and the like as products of matrices, with moves before and behind them."""

from math import prod
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from workbench.reference.graph.arrays import METHODS, Traced, as_traced, held, noted


def matmul(a: Traced, b: Traced) -> Traced:
    """a @ b; a vector is a row of a or a column of b."""
    if a.fixed and b.fixed and a.whole and b.whole:
        value = a.value @ b.value
        return held(a.run, value, value.dtype)
    # refuses what does not fit, as the product of matrices below does
    shape = None if min(a.ndim, b.ndim) > 1 else np.shape(np.matmul(a.value, b.value))
    a, b = (x.astype(np.float64) if x.whole else x for x in (a, b))
    left, right = (a[None, :] if a.ndim == 1 else a), (b[:, None] if b.ndim == 1 else b)
    wide = np.matmul(left.value, right.value)
    dtype = noted([a.dtype, b.dtype], wide)
    node = a.run.add("matmul", (left.node_of_run, right.node_of_run), {}, wide, dtype)
    made = Traced(a.run, wide, node, dtype, a.fixed and b.fixed)
    return made if shape is None or made.shape == shape else made.reshape(shape)


def einsum(spec: Any, *operands: Any, **more: Any) -> Traced:
    """A contraction by letters, two operands at a time from the left."""
    run = next(one.run for one in operands if isinstance(one, Traced))
    if not isinstance(spec, str):
        run.refuse("np.einsum takes its subscripts as a string here")
    x = [as_traced(run, one) for one in operands]
    before, arrow, result = spec.replace(" ", "").partition("->")
    names = before.split(",")
    if not arrow:
        once = sorted(c for c in set(before) - {",", "."} if before.count(c) == 1)
        result = ("..." if "..." in before else "") + "".join(once)
    spelled = zip(x, names, strict=True)
    wide = max((one.ndim - len(name) + 3 for one, name in spelled if "..." in name), default=0)
    return _chain(x, names, result.replace("...", _DOTS[:wide]), wide)


#: letters of the axes that an ellipsis stands for
_DOTS = "αβγδεζηθ"


def _expanded(name: str, x: Traced, wide: int) -> str:
    return name.replace("...", _DOTS[wide - (x.ndim - len(name.replace("...", ""))) : wide])


def _chain(x: list[Traced], names: list[str], result: str, wide: int) -> Traced:
    letters = [_expanded(name, one, wide) for name, one in zip(names, x, strict=True)]
    a, of_a = x[0], letters[0]
    for i, b in enumerate(x[1:], 1):
        later = set("".join(letters[i + 1 :]) + result)
        a, of_a = _pair(a, of_a, b, letters[i], later)
    a, of_a = _alone(a, of_a, set(result))
    return a.transpose(tuple(of_a.index(c) for c in result)) if of_a != result else a


def _pair(a: Traced, of_a: str, b: Traced, of_b: str, later: set[str]) -> tuple[Traced, str]:
    """The product of two, summed over what nothing later has, as one product of matrices."""
    a, of_a = _alone(a, of_a, set(of_b) | later)
    b, of_b = _alone(b, of_b, set(of_a) | later)
    both = [c for c in of_a if c in of_b]
    batch, summed = [c for c in both if c in later], [c for c in both if c not in later]
    left, right = [c for c in of_a if c not in of_b], [c for c in of_b if c not in of_a]
    size = dict(zip(of_a, a.shape, strict=True)) | {c: n for c, n in zip(of_b, b.shape, strict=True) if n != 1}
    made_of = "".join(batch + left + right)
    if not summed:  # an outer product
        a = _lined(a, of_a, batch + left).reshape(
            *(_size(a, of_a, batch)), *(size[c] for c in left), *(1 for _ in right)
        )
        b = _lined(b, of_b, batch + right).reshape(
            *(_size(b, of_b, batch)), *(1 for _ in left), *(size[c] for c in right)
        )
        return a * b, made_of
    a = _lined(a, of_a, batch + left + summed).reshape(*_size(a, of_a, batch), prod(size[c] for c in left), -1)
    b = _lined(b, of_b, batch + summed + right).reshape(*_size(b, of_b, batch), a.shape[-1], -1)
    return matmul(a, b).reshape(tuple(size[c] for c in made_of)), made_of


def _alone(x: Traced, letters: str, wanted: set[str]) -> tuple[Traced, str]:
    """x summed over what nobody else has; of a letter that it has twice the diagonal."""
    for c in set(letters):
        if letters.count(c) > 1:
            i, j = (k for k, one in enumerate(letters) if one == c)
            x = METHODS["diagonal"](x, 0, i, j)
            letters = letters.replace(c, "") + c
    gone = tuple(k for k, c in enumerate(letters) if c not in wanted)
    return (x.sum(axis=gone), "".join(c for c in letters if c in wanted)) if gone else (x, letters)


def _lined(x: Traced, letters: str, order: list[str]) -> Traced:
    axes = tuple(letters.index(c) for c in order)
    return x if axes == tuple(range(x.ndim)) else x.transpose(axes)


def _size(x: Traced, letters: str, some: list[str]) -> list[int]:
    return [x.shape[letters.index(c)] for c in some]


def dot(a: Any, b: Any, out: Any = None) -> Traced:
    a, b = _two(a, b)
    if not a.ndim or not b.ndim:
        return a * b
    if b.ndim <= 2:
        return matmul(a, b)
    return tensordot(a, b, ((-1,), (-2,)))


def inner(a: Any, b: Any) -> Traced:
    a, b = _two(a, b)
    return tensordot(a, b, ((-1,), (-1,)))


def outer(a: Any, b: Any, out: Any = None) -> Traced:
    a, b = _two(a, b)
    return a.reshape(-1, 1) * b.reshape(1, -1)


def vdot(a: Any, b: Any) -> Traced:
    a, b = _two(a, b)
    return matmul(a.reshape(-1), b.reshape(-1))


def tensordot(a: Any, b: Any, axes: Any = 2) -> Traced:
    a, b = _two(a, b)
    if isinstance(axes, int):
        axes = (tuple(range(a.ndim - axes, a.ndim)), tuple(range(axes)))
    of_a, of_b = ((one,) if isinstance(one, int) else tuple(one) for one in axes)
    of_a = tuple(normalize_axis_index(k, a.ndim) for k in of_a)
    of_b = tuple(normalize_axis_index(k, b.ndim) for k in of_b)
    names = "abcdefghijklmnopqrstuvwxyz"
    left, right = [*names[: a.ndim]], [*names[a.ndim : a.ndim + b.ndim]]
    for i, j in zip(of_a, of_b, strict=True):
        right[j] = left[i]
    result = [c for k, c in enumerate(left) if k not in of_a] + [c for k, c in enumerate(right) if k not in of_b]
    return einsum(f"{''.join(left)},{''.join(right)}->{''.join(result)}", a, b)


def _two(a: Any, b: Any) -> tuple[Traced, Traced]:
    run = next(one.run for one in (a, b) if isinstance(one, Traced))
    return as_traced(run, a), as_traced(run, b)
