"""An operand as a kernel must have read it, solved from a wrong product: which of its rows and dims are wrong, and how.

Of a product Y = A X, X is known where A has as many rows as columns, or more, and is well conditioned: |error of X| <=
|A+| |error of Y| (Higham 2002, Accuracy and Stability of Numerical Algorithms, section 20.1).
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from workbench.floats import to_float64
from workbench.judge.explain.unknown.difference import Difference, of_operand
from workbench.judge.explain.unknown.formula import Formula, holds, places
from workbench.judge.explain.unknown.maps import trials
from workbench.judge.explain.unknown.mining import mined
from workbench.judge.explain.unknown.parts import where
from workbench.judge.explain.unknown.relations import plain
from workbench.judge.explain.unknown.tensors import Tensors
from workbench.reference.dataflow import upstream
from workbench.reference.steps.dot import Dot
from workbench.reference.walk import values

#: largest condition number of what an operand is solved with, and how many multiplications that may take
CONDITION, WORK = 1e4, 2**32
#: rows for each column from which on it says something that one operand makes all of a product
OVERDETERMINED = 2
#: relative error of the solution in float64, which is far below a kernel's: some hundred roundings
SOLVED = 2.0**-44


class Product(NamedTuple):
    """A product of the stage, Y = A X, all [b, h, rows, columns]."""

    operand: str  #: q, k or v
    right: np.ndarray  #: what X should be, with the operand's own axes
    turned: bool  #: whether X is the operand with its last axes the other way round
    a: np.ndarray
    y: np.ndarray  #: as the kernel has it
    bound: np.ndarray  #: of y


def operands(found: Difference, around: Tensors) -> list[Formula]:
    """The formulas of operands that reproduce a wrong product, those that say how before those that say where."""
    read = [(one, solved) for one in _products(found, around) if (solved := _solved(one)) is not None]
    how = [formula for one, (_, as_read) in read for formula in _how(one, as_read, around)]
    return how or [formula for one, (x, as_read) in read for formula in _where(one, x, as_read)]


def _products(found: Difference, around: Tensors) -> Iterator[Product]:
    """The products that the stage is, of finite numbers."""
    name, table = found.name, around.problem.table
    actual, bound = to_float64(found.actual), found.bound
    if name not in table or found.axes not in ("bhqk", "bhqd", "bhqtd") or not np.isfinite(actual).all():
        return
    step = table[name].step
    if isinstance(step, Dot):
        q, k = around.value(step.a), around.value(step.b)
        yield Product("k", k, True, q, actual, bound)
        yield Product("q", q, True, k, actual.swapaxes(-1, -2), bound.swapaxes(-1, -2))
    elif "d" in found.axes and "v_rows" in upstream(table, name, around.problem.given):
        if found.axes == "bhqtd":
            # from v alone it has the errors of all tiles
            actual, bound = actual[..., around.problem.tiling.last, :], bound.sum(axis=-2)
        yield Product("v", around.value("v_rows"), False, _weights(around, name), actual, bound)


def _weights(around: Tensors, name: str) -> np.ndarray:
    """By what a stage multiplies the rows of v, [b, h, q, k]: the stage of unit vectors for v."""
    p = around.problem
    v = p.inputs["v"]
    unit = np.broadcast_to(np.eye(v.shape[-2]), (*v.shape[:-1], v.shape[-2]))
    given = {other: value for other, value in p.given.items() if other != name}
    made = values(replace(p, inputs={**p.inputs, "v": unit}, given=given), [name])[name]
    return made if made.ndim == 4 else made[..., p.tiling.last, :]


@np.errstate(all="ignore")
def _solved(product: Product) -> tuple[np.ndarray, Difference] | None:
    """X, and the operand as it was read; None where it cannot be solved, and where it is right.

    Heads that share the operand are solved together where one alone has too few rows.
    """
    b, h, n, m = product.a.shape
    a, y, bound = product.a, product.y, product.bound
    if n < OVERDETERMINED * m:
        shared = _shared(product.right)
        a, y, bound = (x.reshape(b, h // shared, n * shared, -1) for x in (a, y, bound))
    if a.shape[-2] < m or a.size * m > WORK or not np.isfinite(a).all():
        return None
    singular = np.linalg.svd(a, compute_uv=False)
    if not (singular[..., 0] <= CONDITION * singular[..., -1]).all():
        return None
    inverse = np.linalg.pinv(a, rcond=1 / (2 * CONDITION))
    x, off = inverse @ y, abs(inverse) @ (bound + SOLVED * abs(y))
    x, off = (np.repeat(z, h // z.shape[1], axis=1) for z in (x, off))
    held, within = (z.swapaxes(-1, -2) if product.turned else z for z in (x, off))
    as_read = of_operand(product.operand, "bhqd" if product.operand == "q" else "bhkd", held, within, product.right)
    return (x, as_read) if as_read.wrong.any() else None


def _shared(rows: np.ndarray) -> int:
    """How many heads in a row read the same."""
    heads = rows.shape[1]
    groups = (n for n in range(heads, 0, -1) if heads % n == 0)
    return next(n for n in groups if (rows == np.repeat(rows[:, ::n], n, axis=1)).all())


def _how(product: Product, as_read: Difference, around: Tensors) -> Iterator[Formula]:
    """What the operand holds where it is wrong."""
    some = places(as_read)
    made = [
        holds(words, some, some.of(expected)) for words, expected, _ in (*trials(as_read), *_layouts(as_read, around))
    ]
    part = where(as_read)
    made += [said and replace(said, text=f"{said.text}, {part}" if part else said.text) for said in plain(some, around)]
    for formula in made:
        if formula is not None:
            yield replace(formula, text=f"{product.operand} as read: {formula.text}")


def _layouts(read: Difference, around: Tensors) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """The operand as if its memory had another layout."""
    shared, block = _shared(read.expected), around.run.contract.block_k
    x = read.expected[:, ::shared]
    b, h, n, d = x.shape
    found: dict[str, np.ndarray] = {
        "as if it were stored [b, s, h, d]": x.reshape(b, n, h, d).swapaxes(1, 2),
        "as if its transpose were stored": x.reshape(b, h, d, n).swapaxes(-1, -2),
    }
    if block and n % block == 0:
        turned = x.reshape(b, h, n // block, d, block).swapaxes(-1, -2)
        found[f"as if the transpose of each {block} rows were stored"] = turned.reshape(x.shape)
    for words, made in found.items():
        yield words, np.repeat(made, shared, axis=1), read.bound


def _where(product: Product, x: np.ndarray, as_read: Difference) -> Iterator[Formula]:
    """That another operand makes all of the product, and where it differs."""
    n, m = product.a.shape[-2:]
    rules = mined(as_read) if n >= OVERDETERMINED * m else ()
    right = product.right.swapaxes(-1, -2) if product.turned else product.right
    axes = "bhqk" if product.operand == "k" else "bhkq" if product.operand == "q" else "bhqd"
    whole = of_operand(product.operand, axes, product.y, product.bound, product.a @ right)
    some = places(whole)
    for rule in rules[:1]:
        words = f"{product.operand} as read differs at {rule}"
        if (formula := holds(words, some, some.of(product.a @ x))) is not None:
            yield formula
