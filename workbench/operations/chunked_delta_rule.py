"""The gated delta rule in chunks of C tokens (Yang, Kautz and Hatamizadeh 2024, arXiv 2412.06464, section 3.3; the WY
form of Yang et al. 2024, arXiv 2406.06484). With G_i the sum of log a from the chunk's first token to i, and S the
state before it:

    A_ij = b_i exp(G_i - G_j) k_i k_j for j < i,    T = (I + A)^-1,    u = T (b v),    w = T (b exp(G) k),
    written = u - w S,    out = scale (exp(G) q S + (exp(G_i - G_j) q_i k_j for j <= i) written),
    S' = exp(G_C) S + sum of exp(G_C - G_j) k_j written_j.

Rows of the matrices are tokens, columns the places of a chunk. Errors of S go through the signed transition
P = exp(G_C) I - sum of exp(G_C - G_j) k_j w_j, whose 2-norm is at most 1 where those of a (I - b k k^T) are.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from workbench.operations.chunk_steps import Applied, Gates, InChunks, Inverse, Overlap, between
from workbench.operations.chunks import NOTHING, Array, Error, flat, of_exp, product_error, rounded, stored, terms_of
from workbench.operations.operation import Setting
from workbench.reference.bound import EXACT, Bound
from workbench.reference.stage import Bounded, Ref, Stage, Table

#: how much larger than its first order a bound of a function may be, of errors far below its argument
SECOND_ORDER = 1.01
#: stages within a chunk
WITHIN = ("gates", "overlap", "inverse", "u", "w", "scores", "written", "read")


def _column(error: Bound) -> Error:
    """That of each column of a state, [b, h, 1, 1, e], a 2-norm, which all of its elements have as a bound."""
    parts = [x if isinstance(x, float) else x.max(axis=-2)[:, :, None, None, :] for x in error]
    return Error(parts[0], parts[1] ** 2, parts[2])


def _length(rows: Array) -> Array:
    return np.sqrt(np.sum(rows**2, axis=-1, keepdims=True))


class Unseen(NamedTuple):
    """Errors within a chunk of which nothing was dumped, [b, h, 1, chunk, e]: what was written is off by
    inverse @ residual + direct, where all that the inverse multiplies has its sign.
    """

    residual: Error
    direct: Error
    drift: Error  #: as of `_OfState._drift`
    inverse: Array
    gates: Array


class Carried(NamedTuple):
    """What a chunk makes a state off by: errors that signed matrices [b, h, 1, d, ..] take to it, and those of whole
    columns, of which a 2-norm alone is known; and what it makes of an error of the state before it, signed, too.
    """

    errors: tuple[tuple[Array, Error], ...]
    columns: Error  #: [b, h, 1, 1, e]
    transition: Array  #: [b, h, 1, d, d]
    before: int | None  #: the chunk before, None of the first
    whole: Error  #: as `columns`, of all chunks up to this one
    initial: Error  #: as `columns`, of the state before the first chunk

    def through(self, rows: Array) -> Error:
        """Of rows times the state behind the chunk, by its own errors."""
        made = self.columns.times(_length(rows))
        for left, error in self.errors:
            made = made + error.through(left=rows @ left)
        return made


#: share of the rows' length at which what earlier chunks carry to them is bounded by norms
_SHORT = 1e-3


def unseen(at: Any) -> bool:
    """Whether nothing within a chunk was dumped."""
    return not any(at.given(name) for name in WITHIN)


@dataclass(frozen=True)
class _OfState(InChunks):
    """What reads a state, whose error it has apart from its own."""

    state: Ref

    def unseen(self, at: Any) -> Unseen:
        """What a chunk is off by of which nothing within was dumped."""
        return at.once(("unseen", at.tile), lambda: self._unseen(at))

    def _unseen(self, at: Any) -> Unseen:
        u, state, gates = at.arithmetic("").unit, self._state(at), self._gates(at)[0]
        k, v, beta = self._at(at, "k"), self._at(at, "v"), self._at(at, "beta")[..., None]
        lower, inverse, w = (self._at(at, name) for name in ("overlap", "inverse", "w"))
        written, factor = self._at(at, "written"), beta * np.exp(gates)[..., None]
        read, keys = factor * (k @ state), factor * k
        rest = beta * v - read  # which the inverse is multiplied by
        of_exps = Error(*(e[..., None] for e in of_exp(at, gates, NOTHING))).times(read)
        terms, steps = terms_of(self.chunk), between(self.chunk)
        residual = at.table["overlap"].step.own(at).through(right=written) + of_exps
        residual = residual + product_error(at, lower, inverse, 0, self.operands, steps).through(right=rest)
        residual = residual + rounded(beta * v, u, 1) + rounded(keys, u, 2).through(right=state)
        direct = product_error(at, inverse, beta * v, 2, self.operands, terms) + rounded(written, u, 1)
        direct = direct + product_error(at, inverse, keys, 2, self.operands, terms).through(right=state)
        direct = direct + product_error(at, w, state, 2, self.operands)
        for made, more in ((inverse, rest), (w, state)):
            direct = direct + stored(made, self.operands).through(right=more)
        direct = direct + stored(inverse @ (beta * v), self.operands) + stored(written, self.operands)
        return Unseen(residual, direct, self._drift(at), inverse, gates)

    def _drift(self, at: Any) -> Error:
        """What the state after each token of a chunk is off by, a 2-norm of each column, [b, h, 1, chunk, e], as sums
        of log gates are. All exps are taken of the same sums, so that it is a run with other gates: a relative error of
        a gate meets the state that it multiplies, and later ones forget it.
        """
        k, v, beta, gate = (at(name) for name in ("k", "v", "beta", "gate"))
        own, total = Gates.losses(at, np.log(gate)), abs(at("gates"))
        state, u = at(self.state), at.arithmetic("").unit
        worst, squares = np.zeros((2, *v.shape[:2], self.chunk, v.shape[3]))
        last, of_squares = np.zeros((2, *v.shape[:2], v.shape[3]))
        for i in range(k.shape[2]):
            a, b, key = gate[:, :, i, None], beta[:, :, i, None], k[:, :, i]
            norm = a * np.maximum(1.0, abs(1 - b * np.sum(key**2, axis=-1, keepdims=True)))
            moved = SECOND_ORDER * (own[:, :, i] + u * total[:, :, i] * bool(i))[..., None] * _norm(state)
            last, of_squares = norm * (last + moved), norm**2 * (of_squares + moved**2)
            worst[:, :, i], squares[:, :, i] = last, of_squares
            more = b * (v[:, :, i] - a * np.einsum("bhd,bhde->bhe", key, state))
            state = a[..., None] * state + key[..., None] * more[..., None, :]
        return Error(worst[:, :, None], squares[:, :, None], 0.0 * worst[:, :, None])

    def local(self, at: Any) -> Error:
        """The error beside that of the state."""
        raise NotImplementedError

    def rows(self, at: Any) -> Array:
        """What the state is multiplied by from the left, signed, by way of all that was not dumped."""
        raise NotImplementedError

    def _state(self, at: Any) -> Array:
        return at(self.state)[:, :, None]

    def bound(self, at: Any) -> Bounded:
        """Its own, and |row| times the error of each column of the state (Cauchy and Schwarz)."""
        made, error, tokens = self.local(at), at.error(self.state), at("gates").shape[2]
        if error is not EXACT:
            made = made + self._carried(at, _column(error))
        return Bounded(made.bound(tokens))

    def _carried(self, at: Any, of_state: Error) -> Error:
        """What the errors of a state make of its rows: those of each chunk before, which rows meet by way of all
        transitions between, signed; or by norms alone, whichever is less. `of_state`: 2-norms of its columns.
        """
        rows = self.rows(at)
        whole, chain, t = of_state.times(_length(rows)), at.once("carried", dict), at.tile[1]
        if t not in chain:
            return whole
        made, of_chunk, least = Error(), chain[t], _SHORT * np.max(_length(rows))
        while t is not None and np.max(_length(rows)) > least:
            of_chunk = chain[t]
            made = made + of_chunk.through(rows)
            rows, t = rows @ of_chunk.transition, of_chunk.before
        made = made + (of_chunk.initial if t is None else chain[t].whole).times(_length(rows))
        return Error(*(np.minimum(x, y) for x, y in zip(whole, made, strict=True)))


@dataclass(frozen=True)
class Written(_OfState):
    """u - w S."""

    u: Ref
    w: Ref

    def value(self, at: Any) -> Array:
        return at(self.u) - at(self.w) @ at(self.state)

    def rows(self, at: Any) -> Array:
        return self._at(at, self.w)

    def local(self, at: Any) -> Error:
        """Of u, of w and its product with the state, and a difference."""
        w, state = self._at(at, self.w), self._state(at)
        value = self._at(at, self.u) - w @ state
        made = product_error(at, w, state, 2, self.operands) + self._error(at, self.u)
        made = made + self._error(at, self.w).through(right=state) + rounded(value, at.arithmetic("").unit, 1)
        return made + stored(value, self.operands)

    words = "{u} - {w} @ {state}"


@dataclass(frozen=True)
class Read(_OfState):
    """exp(G) q S."""

    rows_of: Ref
    gates: Ref

    def value(self, at: Any) -> Array:
        return np.exp(at(self.gates))[..., None] * (at(self.rows_of) @ at(self.state))

    def rows(self, at: Any) -> Array:
        return np.exp(self._gates(at)[0])[..., None] * self._at(at, self.rows_of)

    def local(self, at: Any) -> Error:
        """A sum over d, a product, and exp."""
        gates, of_gates = self._gates(at)
        return self.own(at, gates, of_gates)

    def own(self, at: Any, gates: Array, of_gates: Error = NOTHING) -> Error:
        """The same with gates that are off by `of_gates`."""
        made = product_error(at, rows := self._at(at, self.rows_of), self._state(at), 1, self.operands)
        made = made.times(np.exp(gates)[..., None])
        value = np.exp(gates)[..., None] * (rows @ self._state(at))
        relative = Error(*(e[..., None] for e in of_exp(at, gates, of_gates)))
        return made + relative.times(value) + rounded(value, at.arithmetic("").unit, 1)

    words = "exp({gates}) * {rows_of} @ {state}"


@dataclass(frozen=True)
class Out(_OfState):
    """scale (read + scores written)."""

    read: Ref
    scores: Ref
    written: Ref
    scale: float

    def value(self, at: Any) -> Array:
        made = self._at(at, self.scores) @ self._at(at, self.written)
        return self.scale * (at(self.read) + flat(made, at(self.read).shape[2]))

    def rows(self, at: Any) -> Array:
        """q exp(G) - scores w, which what was written undoes of what is read; of what was dumped nothing."""
        rows = 0.0 * self._at(at, "q")
        if not at.given(self.read):
            rows = rows + at.table[self.read].step.rows(at)
        if not at.given(self.written):
            rows = rows - self._at(at, self.scores) @ at.table[self.written].step.rows(at)
        return self.scale * rows

    def local(self, at: Any) -> Error:
        """A sum over the tokens of a chunk, of scores and of what was written, each off; a sum and the scale."""
        scores, written = self._at(at, self.scores), self._at(at, self.written)
        made = product_error(at, scores, written, 2, self.operands, terms_of(self.chunk))
        if unseen(at):
            chunk, steps = self.unseen(at), at.table
            own = steps[self.scores].step.own(at).through(right=written) + chunk.direct.through(left=scores)
            own = own + chunk.residual.through(left=scores @ chunk.inverse) + steps[self.read].step.own(at, chunk.gates)
            made = made + own + chunk.drift.times(_length(self._at(at, "q")))
        else:
            made = made + self._error(at, self.scores).through(right=written)
            made = made + _local(at, self.written).through(left=scores) + _local(at, self.read)
        value = self._at(at, self.read) + scores @ written
        return (made + rounded(value, at.arithmetic("").unit, 3)).times(self.scale)

    @property
    def words(self) -> str:
        return f"{self.scale:g} * ({{read}} + {{scores}} @ {{written}})"


def _local(at: Any, name: Ref) -> Error:
    """The error of a stage beside that of the state, none where it was dumped."""
    return Error() if at.given(name) else at.table[name].step.local(at)


@dataclass(frozen=True)
class Update(_OfState):
    """exp(G_C) S + sum over tokens of exp(G_C - G_j) k_j written_j, the state behind a chunk."""

    keys: Ref
    written: Ref
    gates: Ref

    def _parts(self, at: Any) -> tuple[Array, Array, Array, Error]:
        """The chunk's whole gate in logs, the differences from it and their errors, and keys as columns times exp."""
        gates, of_gates = self._gates(at)
        whole = gates[..., -1:]
        if not isinstance(of_gates.worst, float):
            of_gates = Error(*(e + e[..., -1:] for e in of_gates))
        keys = np.exp(whole - gates)[..., None] * self._at(at, self.keys)
        return whole, whole - gates, np.swapaxes(keys, -1, -2), of_gates

    def value(self, at: Any) -> Array:
        whole, _, keys, _ = self._parts(at)
        return np.exp(whole[:, :, 0, :, None]) * at(self.state) + (keys @ self._at(at, self.written))[:, :, 0]

    def bound(self, at: Any) -> Bounded:
        """As norms of columns: the chunk's own roundings, and what was off before times the norm of the transition."""
        whole, x, keys, of_x = self._parts(at)
        written, state, u = self._at(at, self.written), self._state(at), at.arithmetic("").unit
        gate = np.exp(whole)[..., None]
        relative = Error(*(e[..., None, :] for e in of_exp(at, x, of_x)))
        of_gates = self._gates(at)[1].of_last()
        if apart := unseen(at):
            relative, of_gates = Error(*(e[..., None, :] for e in of_exp(at, x, NOTHING))), NOTHING
        of_keys = relative.times(keys) + rounded(keys, u, 1)
        made = product_error(at, keys, written, 2, self.operands) + of_keys.through(right=written)
        of_gate = Error(*(e[..., None] for e in of_exp(at, whole, of_gates)))
        made = made + of_gate.times(gate * state) + rounded(gate * state, u, 2) + rounded(keys @ written, u, 1)
        errors, drift = [(np.eye(keys.shape[-2]), made)], Error()
        if apart:
            chunk, last = self.unseen(at), slice(at(self.keys).shape[2] - 1, at(self.keys).shape[2])
            errors += [(keys @ chunk.inverse, chunk.residual), (keys, chunk.direct)]
            drift = Error(*(e[..., last, :] for e in chunk.drift))
        else:
            errors += [(keys, _local(at, self.written))]
        columns = sum((_columns(error, left) for left, error in errors[1:]), _columns(made) + drift)
        before = at.error(self.state)
        transition = gate * np.eye(keys.shape[-2])
        if not at.given(self.written):
            transition = transition - keys @ at.table[self.written].step.rows(at)
        if before is not EXACT:
            norm = np.linalg.norm(transition, 2, axis=(-2, -1))[..., None, None]
            columns = columns + _column(before).times(norm)
        first = Error() if before is EXACT or at.tile[1] is not None else _column(before)
        at.once("carried", dict)[at.tile[0]] = Carried(tuple(errors), drift, transition, at.tile[1], columns, first)
        like = 0.0 * state[:, :, 0]
        parts = columns.worst, np.sqrt(columns.squares), columns.common
        return Bounded(Bound(*(x[:, :, 0] + like for x in parts)))

    words = "exp({gates}_last) * {state} + sum over j of exp({gates}_last - {gates}_j) {keys}_j {written}_j^T"


def _columns(error: Error, left: Array | None = None) -> Error:
    """2-norms of the columns of an error, [.., 1, e], of `left` times it: at most its norm times that of `left`."""
    if isinstance(error.worst, float):
        return error
    made = error.through(left=left)
    norms = [_norm(x + 0.0 * made.worst) for x in made[::2]]
    if left is not None:
        largest = np.linalg.norm(left, 2, axis=(-2, -1))[..., None]
        norms = [np.minimum(x, largest * _norm(e + 0.0 * error.worst)) for x, e in zip(norms, error[::2], strict=True)]
    squares = np.sum(made.squares, axis=-2, keepdims=True)
    return Error(norms[0][..., None, :], squares, norms[1][..., None, :])


def _norm(x: Array) -> Array:
    return np.sqrt(np.sum(x * x, axis=-2))


def chunked(of: Setting) -> Table:
    """The table of stages for chunks of `chunk` tokens, whose products read what they read in `operands`."""
    chunk, operands = of.conventions["chunk"], of.conventions["operands"]
    shared = chunk, of.dtype if operands == "inputs" else operands
    return {
        "gates": Stage("bhk", Gates(*shared, "gate")),
        "overlap": Stage("bhkc", Overlap(*shared, "k", "k", "gates", "beta")),
        "inverse": Stage("bhkc", Inverse(*shared, "overlap")),
        "u": Stage("bhke", Applied(*shared, "inverse", "beta", "v")),
        "w": Stage("bhkd", Applied(*shared, "inverse", "beta", "k", "gates")),
        "scores": Stage("bhkc", Overlap(*shared, "q", "k", "gates")),
        "written": Stage("bhke", Written(*shared, "-state", "u", "w")),
        "read": Stage("bhke", Read(*shared, "-state", "q", "gates")),
        "out": Stage("bhke", Out(*shared, "-state", "read", "scores", "written", of.numbers["scale"])),
        "state": Stage(
            "bhtde", Update(*shared, "-state", "k", "written", "gates"), initial=0.0, begins="initial_state"
        ),
    }
