"""What may be wrong in a backward pass of attention, beside what any table has: masks, tiles, groups of heads, rows of
elsewhere.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workbench.judge.explain.hypothesis import Edit, Hypothesis, altered, read_as
from workbench.operations.backward_inputs import by_place, seen
from workbench.operations.backward_steps import AddedUp
from workbench.operations.causes.neutral import cast_to, swapped, told_once
from workbench.operations.operation import Setting
from workbench.reference.bound import EXACT, Bound
from workbench.reference.stage import Bounded, Ref

#: queries and keys that kernels take at once
TILES = (16, 32, 64, 128)
#: what a step of the table is called where the setting has it, the last first
_SCORES = ("biased_cast", "biased", "capped", "scores")
#: products of each query and key that are made of inputs
_PRODUCTS = ("qk", "dprobs")


def hypotheses(of: Setting) -> Iterator[Hypothesis]:
    """All of them."""
    yield from _masks(of)
    yield from _weights(of)
    yield from _groups(of)
    yield from _rows_of_elsewhere(of)
    yield from _lost_pairs(of)
    yield from _in_tiles(of)
    yield from _of_options(of)
    yield from _unwritten(of)


def _of(id: str, text: str, *edits: Edit) -> Hypothesis:
    return Hypothesis(f"backward.{id}", text, edits)


def _scores(at: Any) -> np.ndarray:
    return np.asarray(at(next(name for name in _SCORES if name in at.table)))


def _lse(at: Any) -> np.ndarray:
    return np.asarray(at("own_lse" if "own_lse" in at.table else "lse"))[..., None]


def _seen(of: Setting, at: Any) -> np.ndarray:
    return np.broadcast_to(seen(of, {name: at(name) for name in ("mask", "seqlens_k") if name in of.optional}),
                           [of.sizes[axis] for axis in "bhqk"])  # fmt: skip


# ---- which keys are seen


def _masks(of: Setting) -> Iterator[Hypothesis]:
    """P again with other keys hidden."""
    rows, keys = np.arange(of.sizes["q"])[:, None], np.arange(of.sizes["k"])
    diagonal = of.sizes["k"] - of.sizes["q"]
    plain = by_place(of)
    found: dict[str, tuple[str, np.ndarray]] = {}
    if of.numbers["causal"]:
        bare = by_place(_with(of, causal=False))
        found["forgotten"] = "the causal mask is forgotten where P is computed again", bare
        for off in (1, -1):
            said = f"the causal mask shows a key {'more' if off > 0 else 'less'} where P is computed again"
            found[f"causal{off:+d}"] = said, bare & (keys <= rows + diagonal + off)
        found["top-left"] = (
            "the causal mask begins at the first key, in the place of ending at the last",
            (bare & (keys <= rows)),
        )
        for tile in TILES:
            first = rows // tile * tile
            found[f"queries-{tile}"] = (
                f"the causal mask is forgotten within tiles of {tile} queries on the diagonal",
                bare & (keys < -(-np.maximum(first + tile + diagonal, 0) // tile) * tile),
            )
            found[f"keys-{tile}"] = (
                f"the causal mask is forgotten within tiles of {tile} keys on the diagonal",
                bare & (rows >= np.maximum(keys // tile * tile - diagonal, 0) // tile * tile),
            )
    left, right = (of.numbers.get(f"window_{side}", -1) for side in ("left", "right"))
    for side, x in (("left", left), ("right", right)):
        if x >= 0:
            found[f"{side}-forgotten"] = (
                f"the {side} edge of the window is forgotten",
                by_place(_with(of, **{f"window_{side}": -1})),
            )
            for off in (1, -1):
                if x + off >= 0:
                    said = f"the {side} edge of the window is off by one: {x + off}"
                    found[f"{side}{off:+d}"] = said, by_place(_with(of, **{f"window_{side}": x + off}))
        elif f"window_{side}" in of.numbers:
            off_row = keys - rows - diagonal
            shown = off_row >= 1 if side == "left" else off_row <= -1
            found[f"{side}-of-1"] = f"-1, no limit on the {side}, is read as a window of -1", plain & shown
    for id, (said, mask) in found.items():
        if not np.array_equal(mask, plain):
            yield _of(f"mask.{id}", said, _probs(of, lambda at, s, m=mask: (s, _hidden_alike(of, at, m))))
    for name in ("mask", "seqlens_k"):
        if name in of.optional:
            without = tuple(one for one in of.optional if one != name)
            yield _of(f"mask.{name}", f"{name} is forgotten where P is computed again",
                      _probs(of, lambda at, s, w=without: (s, _seen(_with(of, optional=w), at))))  # fmt: skip
    if "mask" in of.optional:
        for axis, what in ((0, "batch"), (1, "head")):
            yield _of(f"mask.{what}", f"mask of the next {what} is read",
                      read_as("visible", "mask", lambda at, x, axis=axis: np.roll(x, -1, axis)))  # fmt: skip
            yield _of(f"mask.{what}-reversed", f"mask is read with the {what} from the end",
                      read_as("visible", "mask", lambda at, x, axis=axis: np.flip(x, axis)))  # fmt: skip


def _with(of: Setting, optional: tuple[str, ...] | None = None, **numbers: float) -> Setting:
    numbers = {**of.numbers, **numbers}
    return replace(of, numbers=numbers, optional=of.optional if optional is None else optional)


def _hidden_alike(of: Setting, at: Any, by_place: np.ndarray) -> np.ndarray:
    """Another mask by place, with what else hides keys."""
    hides = [name for name in ("mask", "seqlens_k") if name in of.optional]
    if not hides:
        return by_place
    found = np.broadcast_to(by_place, [of.sizes[axis] for axis in "bhqk"])
    if "mask" in of.optional:
        found = found & (at("mask") != 0)
    if "seqlens_k" in of.optional:
        found = found & (np.arange(of.sizes["k"]) < np.asarray(at("seqlens_k")).reshape(-1, 1, 1, 1))
    return found


def _probs(of: Setting, change: Any) -> Edit:
    """P of other scores, or with other keys seen: `change(at, scores - lse)` gives both."""
    names = [name for name in _SCORES if name in _names(of)][:1]
    lse = "own_lse" if "lse" in of.own else "lse"

    def made(at: Any, p: np.ndarray) -> np.ndarray:
        shifted, mask = change(at, _scores(at) - _lse(at))
        return np.where(mask, np.exp(shifted), 0.0)

    hides = [name for name in ("mask", "seqlens_k") if name in of.optional]
    return altered("probs", made, *names, lse, *hides)


def _names(of: Setting) -> set[str]:
    """Scores that the table has."""
    found = {"scores"}
    if of.numbers.get("softcap"):
        found.add("capped")
    if {"bias", "alibi_slopes"} & {*of.optional}:
        found.add("biased")
        if of.dtype != "float32" and of.conventions["qk_dtype"] != "float32":
            found.add("biased_cast")
    return found


# ---- P, delta and what they are made of


def _weights(of: Setting) -> Iterator[Hypothesis]:
    lse = "own_lse" if "lse" in of.own else "lse"
    names = [name for name in _SCORES if name in _names(of)][:1]

    def bare(at: Any, p: np.ndarray) -> np.ndarray:
        return np.where(_seen(of, at), np.exp(_scores(at)), 0.0)

    def from_top(at: Any, p: np.ndarray) -> np.ndarray:
        shown = _seen(of, at)
        x = np.where(shown, _scores(at), -np.inf)
        return np.where(shown, np.exp(x - x.max(-1, keepdims=True)), 0.0)

    hides = [name for name in ("mask", "seqlens_k") if name in of.optional]
    for id, said, change in (
        ("bare", "e^score, which no lse normalises", bare),
        ("from-top", "e^(score - maximum of the row), which no sum normalises", from_top),
    ):
        yield _of(f"probs.{id}", f"P is {said}", altered("probs", change, *names, *hides))
        for cast in ("probs_cast", "dropped", "dropped_cast"):
            yield _of(f"{cast}.{id}", f"P of dV alone is {said}", altered(cast, change, *names, *hides))
        yield _of(f"dv.{id}", f"P of dV alone is {said}", read_as("dv_sum", "probs", change, *names, *hides))
    yield _of(
        "probs.times-0",
        "hidden weights are multiplied by 0, which is NaN where lse is -inf",
        altered("probs", lambda at, p: np.where(_seen(of, at), p, 0.0 * np.exp(_scores(at) - _lse(at))), *names, lse),
    )
    yield _of("delta.of-probs", "delta is the sum of P dP, not of dout * out",
              altered("delta", lambda at, x: (at("probs") * at("dprobs")).sum(-1), "probs", "dprobs"))  # fmt: skip
    yield _of("delta.of-dout", "delta is the sum of dout alone",
              altered("delta", lambda at, x: at("dout").sum(-1), "dout"))  # fmt: skip
    yield _of("delta.of-out", "delta is the sum of out alone", altered("delta", lambda at, x: at("out").sum(-1), "out"))
    yield _of("dprobs.without-p", "dS is dP - delta: P is left out",
              altered("dscores", lambda at, x: np.where(_seen(of, at), at("centred"), 0.0), "centred"))  # fmt: skip
    yield _of(
        "dscores.operands",
        f"dS is a product of {of.dtype} numbers: P and dP - delta are rounded before it",
        *(read_as("dscores", ref, cast_to(of.dtype)) for ref in ("probs", "centred")),
        altered("dscores", cast_to(of.dtype)),
    )


# ---- groups of heads


def _groups(of: Setting) -> Iterator[Hypothesis]:
    heads, kv_heads = of.sizes["h"], of.sizes["g"]
    group = heads // kv_heads
    if group == 1:
        return
    for name, sums in (("dk_group", "dK"), ("dv", "dV")):
        for id, place, said in (
            ("last", -1, f"{sums} of a kv head is that of the last query head of its group"),
            ("first", 0, f"{sums} of a kv head is that of the first query head of its group"),
        ):
            yield _of(f"group.{name}.{id}", said, _one_of_group(name, place))
    for id, place in (("last", -1), ("first", 0)):
        yield _of(f"group.both.{id}", f"dK and dV of a kv head are those of the {id} query head of its group",
                  _one_of_group("dk_group", place), _one_of_group("dv", place))  # fmt: skip
    if kv_heads > 1:
        rows = [_tiled(name, ref, group) for name, ref in (("k_rows", "k"), ("v_rows", "v"))]
        sums = [_modulo_sums("dk_group", kv_heads), _modulo_sums("dv", kv_heads)]
        said = "query head h reads kv head h % kv_heads"
        yield _of("group.modulo.read", f"{said}, and adds to that of its group", *rows)
        yield _of("group.modulo", f"{said}, and adds to it", *rows, *sums)
        yield _of("group.modulo.written", "query head h adds to kv head h % kv_heads", *sums)


def _one_of_group(name: str, place: int) -> Edit:
    def changed(step: Any) -> Any:
        assert isinstance(step, AddedUp)
        return _Chosen(step.of, step.split, step.shape, place)

    return Edit(name, changed)


@dataclass(frozen=True)
class _Chosen:
    """One query head of each group, in the place of their sum."""

    of: Ref
    split: tuple[int, ...]
    shape: tuple[int, ...]
    place: int

    def _taken(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(self.split)[:, :, self.place].reshape(self.shape)

    def value(self, at: Any) -> np.ndarray:
        return self._taken(at(self.of))

    def bound(self, at: Any) -> Bounded:
        """That of the one."""
        x, error = at(self.of), at.error(self.of)
        if error is EXACT:
            return Bounded(EXACT)
        return Bounded(Bound(*(self._taken(0.0 * abs(x) + part) for part in error)))

    words = "{of} of one query head of a group"


def _tiled(name: str, ref: str, group: int) -> Edit:
    """Kv heads of which the first comes after the last, for each query head."""
    return altered(name, lambda at, x: np.tile(at(ref), (1, group, 1, 1)), ref)


def _modulo_sums(name: str, kv_heads: int) -> Edit:
    def changed(step: Any) -> Any:
        assert isinstance(step, AddedUp)
        b, g, group, *rest = step.split
        return AddedUp(step.of, (b, group, g, *rest), (1,), step.shape, "query heads h with the same h % kv_heads")

    return Edit(name, changed)


# ---- delta and lse of other rows


def _rows_of_elsewhere(of: Setting) -> Iterator[Hypothesis]:
    """What a row of scores subtracts is of another row of its tile, or of another tile."""
    n, diagonal = of.sizes["q"], of.sizes["k"] - of.sizes["q"]
    rows, keys = np.arange(n)[:, None], np.arange(of.sizes["k"])

    def lse_of(index: np.ndarray) -> Edit:
        def change(at: Any, shifted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            known = np.where(np.isfinite(_lse(at)), _lse(at), -np.inf)
            return _scores(at) - _taken(known, index), _seen(of, at)

        return _probs(of, change)

    def delta_of(index: np.ndarray) -> Edit:
        def change(at: Any, x: np.ndarray) -> np.ndarray:
            return np.asarray(x + at("delta")[..., None] - _taken(at("delta")[..., None], index))

        return altered("centred", change, "delta")

    for what, edit in (("lse", lse_of), ("delta", delta_of)):
        for tile in TILES:
            within = rows % tile
            first = np.maximum(keys // tile * tile - diagonal, 0) // tile * tile if of.numbers["causal"] else 0 * keys
            for id, said, index in (
                ("next", f"{what} of the next row of a tile of {tile}", rows - within + (within + 1) % tile + 0 * keys),
                ("first", f"{what} of the first tile of {tile} queries is read for all", within + first),
                (
                    "register",
                    f"{what} is read by the number of a register, in tiles of {tile} queries",
                    rows - within + 2 * (within >> 3) + (within & 1) + 0 * keys,
                ),
                ("first-row", f"{what} of the first row of a tile of {tile}", rows - within + 0 * keys),
            ):
                if tile > n and id == "first":
                    continue
                yield _of(f"{what}.{id}.{tile}", said, edit(index))


def _taken(x: np.ndarray, index: np.ndarray) -> np.ndarray:
    """x [b, h, q, 1] at the rows of an index [q, k]; 0 for rows that are not there."""
    n = x.shape[2]
    found = x[:, :, np.minimum(index, n - 1), 0]
    return np.where(index < n, found, 0.0)


# ---- pairs of queries and keys that no tile visits


def _lost_pairs(of: Setting) -> Iterator[Hypothesis]:
    """Queries, keys or pairs that a loop does not reach: nobody writes their stages, and sums do not have them."""
    n, m = of.sizes["q"], of.sizes["k"]
    diagonal = m - n
    rows, keys = np.broadcast_arrays(np.arange(n)[:, None], np.arange(m))
    causal = bool(of.numbers["causal"])
    found: list[tuple[str, str, np.ndarray]] = []
    for tile in TILES:
        # what a right loop visits ends with the tile of the last key that a tile of queries sees
        end = np.minimum(m, np.maximum(rows // tile * tile + tile + diagonal, 0)) if causal else 0 * rows + m
        last = np.maximum(-(-end // tile) - 1, 0) * tile
        early = -(-np.maximum(end - 1, 0) // tile) * tile
        kept = {
            "tiles of {} queries are rounded down: what is left over is lost": rows < n // tile * tile,
            "the last tile of {} queries is lost": rows < (-(-n // tile) - 1) * tile,
            "the first tile of {} queries is lost": rows >= tile,
            "tiles of {} keys are rounded down: what is left over is lost": keys < end // tile * tile,
            "the last tile of {} keys is lost": keys < last,
            "the first tile of {} keys is lost": keys >= tile,
            "the last tile of {} keys alone counts": keys >= last,
            "the last tile of {} queries alone counts": rows >= (-(-n // tile) - 1) * tile,
            "the last key of a tile of {} queries is lost, where it begins a tile": keys < early,
        }
        if causal:
            late = np.maximum(keys // tile * tile - diagonal + 1, 0) // tile * tile
            kept["the first query of a tile of {} keys is lost, where it ends a tile"] = rows >= late
        found += [(said, str(tile), mask) for said, mask in kept.items()]
    for text, mask in told_once(found):
        yield _of(f"lost.{text}", text, *_without(of, mask))
        for id, said, sums in (
            ("dq", "dQ", ("dq_sum",)),
            ("dk", "dK", ("dk_sum",)),
            ("dv", "dV", ("dv_sum",)),
            ("both", "dK and dV", ("dk_sum", "dv_sum")),
        ):
            yield _of(f"lost.{text}.{id}", f"{text}, for {said}", *(_sum_of(of, name, mask) for name in sums))


def _sum_of(of: Setting, name: str, kept: np.ndarray) -> Edit:
    """A sum over queries or keys with the pairs that are `kept` alone."""

    def changed(step: Any) -> Any:
        return read_as(name, step.of[0], lambda at, x: np.where(kept, x, 0.0)).change(step)

    return Edit(name, changed)


def _without(of: Setting, kept: np.ndarray) -> list[Edit]:
    """Nothing is written there, which is NaN, and no sum has it."""
    edits = [altered(name, lambda at, x: np.where(kept, x, np.nan)) for name in _PRODUCTS]
    return [*edits, _probs_there(of, kept), *(_sum_of(of, name, kept) for name in ("dq_sum", "dk_sum", "dv_sum"))]


def _probs_there(of: Setting, kept: np.ndarray) -> Edit:
    """Of hidden keys P is 0, whoever writes it."""
    return altered("probs", lambda at, x: np.where(_seen(of, at) | kept, x, 0.0))


def _in_tiles(of: Setting) -> Iterator[Hypothesis]:
    """Tiles that are read transposed, and rows of fragments that are read twice."""
    for tile in TILES:
        for name in ("dq_sum", "dk_sum", "dv_sum"):
            yield _of(f"transposed.{name}.{tile}", f"{name} reads tiles of {tile} x {tile} transposed",
                      _transposed(name, tile))  # fmt: skip
    for name, said in (("k_rows", "K"), ("v_rows", "V"), ("q", "Q"), ("dout", "dout")):
        ref = {"k_rows": ("qk", "k_rows"), "v_rows": ("dprobs", "v_rows"), "q": ("qk", "q")}.get(
            name, ("dprobs", "dout")
        )
        yield _of(f"fragment.{name}", f"rows g + 8 of a fragment of {said} are rows g",
                  read_as(*ref, lambda at, x: x[:, :, np.arange(x.shape[2]) & ~8]))  # fmt: skip
    for id, said, refs in (
        ("keys", "K and V", (("qk", "k_rows"), ("dprobs", "v_rows"))),
        ("queries", "Q and dout", (("qk", "q"), ("dprobs", "dout"))),
    ):
        yield _of(f"fragments.{id}", f"rows g + 8 of fragments of {said} are rows g",
                  *(read_as(*ref, lambda at, x: x[:, :, np.arange(x.shape[2]) & ~8]) for ref in refs))  # fmt: skip
    right = ("dq_sum", "k_rows"), ("dk_sum", "q"), ("dv_sum", "dout")
    yield _of("fragments.pairs", "neighbouring rows of right factors are swapped in their registers",
              *(read_as(*ref, swapped(2)) for ref in right))  # fmt: skip


def _transposed(name: str, tile: int) -> Edit:
    def change(at: Any, x: np.ndarray) -> np.ndarray:
        b, h, n, m = x.shape
        rows, keys = -(-n // tile), -(-m // tile)
        whole = np.zeros((b, h, rows * tile, keys * tile))
        whole[:, :, :n, :m] = x
        tiles = whole.reshape(b, h, rows, tile, keys, tile).swapaxes(3, 5)
        return tiles.reshape(whole.shape)[:, :, :n, :m]

    return Edit(name, lambda step: read_as(name, step.of[0], change).change(step))


# ---- what a case may have


def _of_options(of: Setting) -> Iterator[Hypothesis]:
    cap = of.numbers.get("softcap")
    if cap:
        yield _of("softcap.left-out", "the derivative of the softcap is left out",
                  altered("cap_slope", lambda at, x: np.ones_like(x)))  # fmt: skip
        yield _of("softcap.capped", "the derivative of the softcap is taken of the capped score",
                  altered("cap_slope", lambda at, x: 1 - np.tanh(at("capped") / cap) ** 2, "capped"))  # fmt: skip
        yield _of("softcap.unsquared", "the derivative of the softcap is 1 - tanh",
                  altered("cap_slope", lambda at, x: 1 - at("tanh"), "tanh"))  # fmt: skip
    if "dropout_mask" in of.optional:
        factor = 1 / (1 - of.numbers["dropout_p"])
        for stage, said in (("dkept", "dP"), ("dropped", "P of dV")):
            what = "dprobs" if stage == "dkept" else "probs"
            yield _of(f"dropout.{stage}", f"dropout is left out of {said}",
                      altered(stage, lambda at, x, what=what: at(what), what))  # fmt: skip
            yield _of(f"dropout.{stage}.factor", f"{said} is not divided by 1 - p",
                      altered(stage, lambda at, x: x / factor))  # fmt: skip
        for axis, what in enumerate(("batch", "head", "query", "key")):
            for off in (1, -1):
                yield _of(f"dropout.{what}{off:+d}", f"the dropout mask is that of another {what}",
                          *(read_as(stage, "dropout_mask", lambda at, x, axis=axis, off=off: np.roll(x, off, axis))
                            for stage in ("dkept", "dropped")))  # fmt: skip
    if "bias" in of.optional:
        yield _of("bias", "the bias is left out where P is computed again", altered("wide_bias", lambda at, x: 0.0 * x))
    if "sinks" in of.optional:
        for place, said in ((0, "first"), (-1, "last")):
            yield _of(f"dsink.{said}", f"dsink is of the {said} row alone, in the place of their sum",
                      altered("dsink", lambda at, x, place=place: at("dsink_rows")[:, :, place].sum(0),
                              "dsink_rows"))  # fmt: skip
        yield _of("dsink.batch", "dsink is of the first batch alone",
                  altered("dsink", lambda at, x: at("dsink_rows")[0].sum(-1), "dsink_rows"))  # fmt: skip
    if "dlse" in of.optional:
        edits = [read_as("centred", "dlse", lambda at, x: 0.0 * x)]
        if "sinks" in of.optional:
            yield _of("dlse.dsink", "dlse is left out of dsink",
                      read_as("delta_of_sink", "dlse", lambda at, x: 0.0 * x))  # fmt: skip
            edits.append(read_as("delta_of_sink", "dlse", lambda at, x: 0.0 * x))
        yield _of("dlse", "dlse is ignored", *edits)


def _unwritten(of: Setting) -> Iterator[Hypothesis]:
    """Dims of a result that are not written, since another axis has fewer."""
    pairs: Mapping[str, tuple[str, str]] = {"dq": ("d", "e"), "dk": ("d", "e"), "dv": ("e", "d")}
    for name, (own, other) in pairs.items():
        n, m = of.sizes[own], of.sizes[other]
        if m >= n:
            continue
        for said, x in (("are not written", np.nan), ("are 0", 0.0)):
            yield _of(f"unwritten.{name}.{x}", f"dims of {name} from {m} on {said}, as the other dims are fewer",
                      altered(name, lambda at, y, x=x, m=m: np.where(np.arange(y.shape[-1]) < m, y, x)))  # fmt: skip
