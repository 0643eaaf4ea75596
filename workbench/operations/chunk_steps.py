"""The stages within a chunk of the gated delta rule, `chunked_delta_rule`: sums of log gates, overlaps of keys, the
inverse, and what it is applied to.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.operations.chunks import (
    NOTHING,
    Array,
    Error,
    flat,
    in_chunks,
    of_exp,
    product_error,
    rounded,
    stored,
    terms_of,
)
from workbench.reference.bound import EXACT
from workbench.reference.losses import LOG_ULPS
from workbench.reference.stage import Bounded, Ref


@dataclass(frozen=True)
class InChunks:
    """What all steps share: how long chunks are, and to which dtype products round what they read."""

    chunk: int
    operands: str

    def _at(self, at: Any, ref: Ref) -> Array:
        return in_chunks(at(ref), self.chunk)

    def _error(self, at: Any, ref: Ref) -> Error:
        """Of what is read; of the gates, as of a stage that has no rows."""
        error = at.error(ref)
        if error is EXACT:
            return Error()
        x = [x if isinstance(x, float) else in_chunks(x, self.chunk) for x in error]
        return Error(x[0], x[1] * x[1], x[2])

    def _gates(self, at: Any, ref: Ref = "gates") -> tuple[Array, Error]:
        """Sums of log gates, that of the last token behind the end, and their errors with `likely` as common."""
        error = at.error(ref)
        if error is not EXACT:
            likely = at.likely(error)
            error = [in_chunks(np.zeros_like(at(ref)) + x, self.chunk, "edge") for x in (error.worst, likely)]
            return in_chunks(at(ref), self.chunk, "edge"), Error(error[0], 0.0 * error[0], error[1])
        return in_chunks(at(ref), self.chunk, "edge"), Error()


@dataclass(frozen=True)
class Gates(InChunks):
    """Sums of log gates from the first token of a chunk on."""

    gate: Ref

    def value(self, at: Any) -> Array:
        return flat(np.cumsum(np.log(in_chunks(at(self.gate), self.chunk, "edge")), axis=-1), at(self.gate).shape[2])

    def bound(self, at: Any) -> Bounded:
        """Each log, times log2(e) where exp is exp2, and a sum for each token before."""
        log = np.log(in_chunks(at(self.gate), self.chunk, "edge"))
        u, total, n = at.arithmetic("").unit, np.cumsum(log, axis=-1), np.arange(self.chunk)
        own = self.losses(at, log)
        worst = np.cumsum(own, axis=-1) + n * u * abs(total)
        squares = np.cumsum(own**2 + (u * total) ** 2, axis=-1)
        return Bounded(Error(worst, squares, 0.0).bound(at(self.gate).shape[2]))

    @staticmethod
    def losses(at: Any, log: Array) -> Array:
        """Of each log."""
        return (2 * LOG_ULPS + 3) * at.arithmetic("").unit * abs(log)

    words = "cumulative sum of log {gate} within each chunk"


@dataclass(frozen=True)
class Overlap(InChunks):
    """exp(G_i - G_j) rows_i keys_j of tokens j of the chunk up to i, or before it, times beta_i where there is one."""

    rows: Ref
    keys: Ref
    gates: Ref
    beta: Ref = ""

    def _parts(self, at: Any) -> tuple[Array, Array, Error, Array, Array, Array]:
        (gates, of_gates), rows, keys = self._gates(at), self._at(at, self.rows), self._at(at, self.keys)
        seen = np.tril(np.ones((self.chunk, self.chunk), bool), -1 if self.beta else 0)
        x = np.where(seen, gates[..., :, None] - gates[..., None, :], 0.0)
        factor = np.where(seen, np.exp(x), 0.0)
        if self.beta:
            factor = factor * self._at(at, self.beta)[..., None]
        if not isinstance(of_gates.worst, float):
            of_gates = Error(*(np.where(seen, e[..., :, None] + e[..., None, :], 0.0) for e in of_gates))
        return x, factor, of_gates, rows, np.swapaxes(keys, -1, -2), seen

    def value(self, at: Any) -> Array:
        _, factor, _, rows, keys, _ = self._parts(at)
        return flat(factor * (rows @ keys), at(self.rows).shape[2])

    def bound(self, at: Any) -> Bounded:
        """Its own, and what the gates are off by."""
        return Bounded(self.own(at, self._parts(at)[2]).bound(at(self.rows).shape[2]))

    def own(self, at: Any, of_gates: Error = NOTHING) -> Error:
        """A sum over d, exp of a difference that is off by `of_gates`, products."""
        x, factor, _, rows, keys, seen = self._parts(at)
        value, u = factor * (rows @ keys), at.arithmetic("").unit
        made = product_error(at, rows, keys, 0, self.operands).times(factor) + rounded(value, u, 3)
        made = made + of_exp(at, x, of_gates).times(value)
        if not self.beta:
            made = made + stored(value, self.operands)
        return Error(*(np.where(seen, e, 0.0) for e in made))

    @property
    def words(self) -> str:
        return (
            f"exp({{gates}}_i - {{gates}}_j) * {{rows}} @ {{keys}}^T{' * {beta}, j < i' if self.beta else ', j <= i'}"
        )


def between(chunk: int) -> Array:
    """How many tokens lie between two of a chunk, of which the strictly lower triangle times a lower one is a sum."""
    return np.maximum(terms_of(chunk) - terms_of(chunk).T, 0.0)


@dataclass(frozen=True)
class Inverse(InChunks):
    """(I + of)^-1 of the strictly lower triangles."""

    of: Ref

    def _parts(self, at: Any) -> tuple[Array, Array]:
        lower = np.tril(self._at(at, self.of), -1)
        unit = np.eye(self.chunk)
        known = np.isfinite(lower).all(axis=(-1, -2), keepdims=True)
        return lower, np.where(known, np.tril(np.linalg.inv(np.where(known, lower, 0.0) + unit)), np.nan)

    def value(self, at: Any) -> Array:
        return flat(self._parts(at)[1], at(self.of).shape[2])

    def bound(self, at: Any) -> Bounded:
        """Forward substitution leaves (I + A) T - I of at most g(n) |A| |T| (Higham 2002, section 8.1), a sum of n - 1
        products and a difference for each element; T times that is its error, and T times what A is off by, times T.
        """
        lower, inverse = self._parts(at)
        of = self._error(at, self.of)
        made = product_error(at, lower, inverse, 0, self.operands, between(self.chunk))
        if not isinstance(of.worst, float):
            made = made + of.through(right=inverse)
        made = made.through(left=inverse) + stored(inverse, self.operands)
        return Bounded(made.bound(at(self.of).shape[2]))

    words = "(I + {of})^-1"


@dataclass(frozen=True)
class Applied(InChunks):
    """The inverse times beta times rows, and times exp of the gates where there are some."""

    inverse: Ref
    beta: Ref
    rows: Ref
    gates: Ref = ""

    def _parts(self, at: Any) -> tuple[Array, Array, Error]:
        factor, of_factor = self._at(at, self.beta)[..., None], Error()
        if self.gates:
            gates, of_gates = self._gates(at, self.gates)
            of_factor = Error(*(e if isinstance(e, float) else e[..., None] for e in of_exp(at, gates, of_gates)))
            factor = factor * np.exp(gates)[..., None]
        rows = factor * self._at(at, self.rows)
        return self._at(at, self.inverse), rows, of_factor.times(rows) + rounded(rows, at.arithmetic("").unit, 2)

    def value(self, at: Any) -> Array:
        inverse, rows, _ = self._parts(at)
        return flat(inverse @ rows, at(self.rows).shape[2])

    def bound(self, at: Any) -> Bounded:
        """A sum over the tokens of a chunk, of an inverse and of rows that are off."""
        inverse, rows, of_rows = self._parts(at)
        made = product_error(at, inverse, rows, 2, self.operands, terms_of(self.chunk)) + of_rows.through(left=inverse)
        made = made + self._error(at, self.inverse).through(right=rows) + stored(inverse @ rows, self.operands)
        return Bounded(made.bound(at(self.rows).shape[2]))

    @property
    def words(self) -> str:
        return f"{{inverse}} @ ({{beta}} * {'exp({gates}) * ' if self.gates else ''}{{rows}})"
