"""What may be wrong in the loops of a backward pass: rows of elsewhere, tiles that are lost, swapped fragments."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from workbench.judge.explain.hypothesis import Change, Edit, Hypothesis, altered, read_as
from workbench.operations.backward_masks import TILES, lse_of_rows, named, probs_of, scores_of, seen_keys
from workbench.operations.causes.neutral import swapped, told_once
from workbench.operations.operation import Setting
from workbench.reference.stage import Step

#: products of each query and key that are made of inputs
_PRODUCTS = ("qk", "dprobs")


# ---- delta and lse of other rows


def rows_of_elsewhere(of: Setting) -> Iterator[Hypothesis]:
    """What a row of scores subtracts is of another row of its tile, or of another tile."""
    n, diagonal = of.sizes["q"], of.sizes["k"] - of.sizes["q"]
    rows, keys = np.arange(n)[:, None], np.arange(of.sizes["k"])

    def lse_from(index: np.ndarray) -> Edit:
        def change(at: Any, shifted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            known = np.where(np.isfinite(lse_of_rows(at)), lse_of_rows(at), -np.inf)
            return scores_of(at) - _taken(known, index), seen_keys(of, at)

        return probs_of(of, change)

    def delta_of(index: np.ndarray) -> Edit:
        def change(at: Any, x: np.ndarray) -> np.ndarray:
            return np.asarray(x + at("delta")[..., None] - _taken(at("delta")[..., None], index))

        return altered("centred", change, "delta")

    for what, edit in (("lse", lse_from), ("delta", delta_of)):
        for tile in TILES:
            within = rows % tile
            first = np.maximum(keys // tile * tile - diagonal, 0) // tile * tile if of.numbers["causal"] else 0 * keys
            for id, said, index in (
                (
                    "next",
                    f"{what} is that of the next row, in tiles of {tile} queries",
                    rows - within + (within + 1) % tile + 0 * keys,
                ),
                ("first", f"all tiles of {tile} queries read {what} of the first one visited", within + first),
                (
                    "register",
                    f"{what} is indexed by register number, in tiles of {tile} queries",
                    rows - within + 2 * (within >> 3) + (within & 1) + 0 * keys,
                ),
                ("first-row", f"{what} is that of the first row, in tiles of {tile} queries", rows - within + 0 * keys),
            ):
                if tile > n and id == "first":
                    continue
                yield named(f"{what}.{id}.{tile}", said, edit(index))


def _taken(x: np.ndarray, index: np.ndarray) -> np.ndarray:
    """x [b, h, q, 1] at the rows of an index [q, k]; 0 for rows that are not there."""
    n = x.shape[2]
    found = x[:, :, np.minimum(index, n - 1), 0]
    return np.where(index < n, found, 0.0)


# ---- pairs of queries and keys that no tile visits


def lost_pairs(of: Setting) -> Iterator[Hypothesis]:
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
            "tiles of {} queries are rounded down: the remainder is lost": rows < n // tile * tile,
            "the last tile of {} queries is lost": rows < (-(-n // tile) - 1) * tile,
            "the first tile of {} queries is lost": rows >= tile,
            "tiles of {} keys are rounded down: the remainder is lost": keys < end // tile * tile,
            "the last tile of {} keys is lost": keys < last,
            "the first tile of {} keys is lost": keys >= tile,
            "only the last tile of {} keys counts": keys >= last,
            "only the last tile of {} queries counts": rows >= (-(-n // tile) - 1) * tile,
            "the last visible key of each tile of {} queries is lost if it starts a key tile": keys < early,
        }
        if causal:
            late = np.maximum(keys // tile * tile - diagonal + 1, 0) // tile * tile
            kept["the first query that sees a tile of {} keys is lost if it ends a query tile"] = rows >= late
        found += [(said, str(tile), mask) for said, mask in kept.items()]
    for text, mask in told_once(found):
        yield named(f"lost.{text}", text, *_without(of, mask))
        for id, said, sums in (
            ("dq", "dQ", ("dq_sum",)),
            ("dk", "dK", ("dk_sum",)),
            ("dv", "dV", ("dv_sum",)),
            ("both", "dK and dV", ("dk_sum", "dv_sum")),
        ):
            yield named(f"lost.{text}.{id}", f"in {said} only: {text}", *(_sum_of(name, mask) for name in sums))


def _sum_of(name: str, kept: np.ndarray) -> Edit:
    """A sum over queries or keys with the pairs that are `kept` alone."""
    return _first_read(name, lambda at, x: np.where(kept, x, 0.0))


def _first_read(name: str, change: Change) -> Edit:
    """A sum that reads its first factor changed."""

    def changed(step: Any) -> Step:
        return read_as(name, step.of[0], change).change(step)

    return Edit(name, changed)


def _without(of: Setting, kept: np.ndarray) -> list[Edit]:
    """Nothing is written there, which is NaN, and no sum has it."""
    edits = [altered(name, lambda at, x: np.where(kept, x, np.nan)) for name in _PRODUCTS]
    return [*edits, _probs_there(of, kept), *(_sum_of(name, kept) for name in ("dq_sum", "dk_sum", "dv_sum"))]


def _probs_there(of: Setting, kept: np.ndarray) -> Edit:
    """Of hidden keys P is 0, whoever writes it."""
    return altered("probs", lambda at, x: np.where(seen_keys(of, at) | kept, x, 0.0))


def in_tiles(of: Setting) -> Iterator[Hypothesis]:
    """Tiles that are read transposed, and rows of fragments that are read twice."""
    for tile in TILES:
        for name in ("dq_sum", "dk_sum", "dv_sum"):
            yield named(f"transposed.{name}.{tile}", f"{name} reads tiles of {tile} x {tile} transposed",
                      _transposed(name, tile))  # fmt: skip
    for said, stage, ref in (
        ("K", "qk", "k_rows"), ("V", "dprobs", "v_rows"), ("Q", "qk", "q"), ("dout", "dprobs", "dout"),
    ):  # fmt: skip
        yield named(f"fragment.{said}", f"fragments of {said} repeat rows g in place of rows g + 8",
                    read_as(stage, ref, _upper_as_lower))  # fmt: skip
    for id, said, refs in (
        ("keys", "K and V", (("qk", "k_rows"), ("dprobs", "v_rows"))),
        ("queries", "Q and dout", (("qk", "q"), ("dprobs", "dout"))),
    ):
        yield named(f"fragments.{id}", f"fragments of {said} repeat rows g in place of rows g + 8",
                  *(read_as(*ref, _upper_as_lower) for ref in refs))  # fmt: skip
    right = ("dq_sum", "k_rows"), ("dk_sum", "q"), ("dv_sum", "dout")
    yield named("fragments.pairs", "adjacent rows are swapped in fragments of the B operand",
              *(read_as(*ref, swapped(2)) for ref in right))  # fmt: skip


def _upper_as_lower(at: Any, x: np.ndarray) -> np.ndarray:
    return x[:, :, np.arange(x.shape[2]) & ~8]


def _transposed(name: str, tile: int) -> Edit:
    def change(at: Any, x: np.ndarray) -> np.ndarray:
        b, h, n, m = x.shape
        rows, keys = -(-n // tile), -(-m // tile)
        whole = np.zeros((b, h, rows * tile, keys * tile))
        whole[:, :, :n, :m] = x
        tiles = whole.reshape(b, h, rows, tile, keys, tile).swapaxes(3, 5)
        return tiles.reshape(whole.shape)[:, :, :n, :m]

    return _first_read(name, change)
