"""Hypotheses about the recomputed P of a backward pass: its mask, window and lse, and the operands it meets."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from workbench.judge.explain.hypothesis import Change, Edit, Hypothesis, altered, read_as
from workbench.operations.backward_inputs import by_place, seen
from workbench.operations.causes.neutral import cast_to, flipped, rolled
from workbench.operations.operation import Setting

#: queries and keys that kernels take at once
TILES = (16, 32, 64, 128)
#: what is compared with lse where the setting has it, the last first
_SCORES = ("biased_cast", "biased", "modded", "capped", "scores")


def named(id: str, text: str, *edits: Edit) -> Hypothesis:
    """A hypothesis of the backward pass."""
    return Hypothesis(f"backward.{id}", text, edits)


def scores_of(at: Any) -> np.ndarray:
    """What is compared with lse."""
    return np.asarray(at(next(name for name in _SCORES if name in at.table)))


def lse_of_rows(at: Any) -> np.ndarray:
    """lse as it was read, -inf among it, [b, h, q, 1]."""
    return np.asarray(at("own_lse" if "own_lse" in at.table else "lse"))[..., None]


def seen_keys(of: Setting, at: Any) -> np.ndarray:
    """Which keys each query sees, bool [b, h, q, k]."""
    return np.broadcast_to(seen(of, {name: at(name) for name in ("mask", "seqlens_k") if name in of.optional}),
                           [of.sizes[axis] for axis in "bhqk"])  # fmt: skip


def probs_of(of: Setting, change: Any) -> Edit:
    """P of other scores, or with other keys seen: `change(at, scores - lse)` gives both."""
    names = [name for name in _SCORES if name in _names(of)][:1]
    lse = "own_lse" if "lse" in of.own else "lse"

    def made(at: Any, p: np.ndarray) -> np.ndarray:
        shifted, mask = change(at, scores_of(at) - lse_of_rows(at))
        return np.where(mask, np.exp(shifted), 0.0)

    hides = [name for name in ("mask", "seqlens_k") if name in of.optional]
    return altered("probs", made, *names, lse, *hides)


def _names(of: Setting) -> set[str]:
    """Scores that the table has."""
    found = {"scores"}
    if of.numbers.get("softcap"):
        found.add("capped")
    if "score_mod" in of.functions:
        found.add("modded")
    if {"bias", "alibi_slopes"} & {*of.optional}:
        found.add("biased")
        if of.dtype != "float32" and of.conventions["qk_dtype"] != "float32":
            found.add("biased_cast")
    return found


# ---- which keys are seen


def masks(of: Setting) -> Iterator[Hypothesis]:
    """P again with other keys hidden."""
    rows, keys = np.arange(of.sizes["q"])[:, None], np.arange(of.sizes["k"])
    diagonal = of.sizes["k"] - of.sizes["q"]
    plain = by_place(of)
    found: dict[str, tuple[str, np.ndarray]] = {}
    if of.numbers["causal"]:
        bare = by_place(_with(of, of.optional, causal=False))
        found["forgotten"] = "the causal mask is left out when P is recomputed", bare
        for off in (1, -1):
            said = f"the causal mask shows one key too {'many' if off > 0 else 'few'} when P is recomputed"
            found[f"causal{off:+d}"] = said, bare & (keys <= rows + diagonal + off)
        found["top-left"] = (
            "the causal mask is aligned top-left, not bottom-right",
            (bare & (keys <= rows)),
        )
        for tile in TILES:
            first = rows // tile * tile
            found[f"queries-{tile}"] = (
                f"the causal mask is left out inside diagonal tiles of {tile} queries",
                bare & (keys < -(-np.maximum(first + tile + diagonal, 0) // tile) * tile),
            )
            found[f"keys-{tile}"] = (
                f"the causal mask is left out inside diagonal tiles of {tile} keys",
                bare & _visited_by_keys(of, tile),
            )
    left, right = (of.numbers.get(f"window_{side}", -1) for side in ("left", "right"))
    for side, x in (("left", left), ("right", right)):
        if x >= 0:
            found[f"{side}-forgotten"] = (
                f"window_{side} is ignored",
                by_place(_with(of, of.optional, **{f"window_{side}": -1})),
            )
            for off in (1, -1):
                if x + off >= 0:
                    said = f"window_{side} is off by one: {x + off}, not {x}"
                    found[f"{side}{off:+d}"] = said, by_place(_with(of, of.optional, **{f"window_{side}": x + off}))
        elif f"window_{side}" in of.numbers:
            off_row = keys - rows - diagonal
            shown = off_row >= 1 if side == "left" else off_row <= -1
            found[f"{side}-of-1"] = f"window_{side}=-1 (no limit) is used as a limit of -1", plain & shown
    for id, (said, mask) in found.items():
        if not np.array_equal(mask, plain):
            yield named(f"mask.{id}", said, probs_of(of, lambda at, s, m=mask: (s, _hidden_alike(of, at, m))))
    for name in ("mask", "seqlens_k"):
        if name in of.optional:
            without = tuple(one for one in of.optional if one != name)
            yield named(f"mask.{name}", f"{name} is left out when P is recomputed",
                      probs_of(of, lambda at, s, w=without: (s, seen_keys(_with(of, w), at))))  # fmt: skip
    if "mask" in of.optional:
        for axis, what in ((0, "batch"), (1, "head")):
            yield named(f"mask.{what}", f"the mask of the next {what} is read",
                      read_as("visible", "mask", rolled(-1, axis)))  # fmt: skip
            yield named(f"mask.{what}-reversed", f"the mask is read in reverse {what} order",
                      read_as("visible", "mask", flipped(axis)))  # fmt: skip


def _visited_by_keys(of: Setting, tile: int) -> np.ndarray:
    """Pairs [q, k] whose tile a causal loop over queries visits for a tile of keys."""
    rows, keys = np.arange(of.sizes["q"])[:, None], np.arange(of.sizes["k"])
    diagonal = of.sizes["k"] - of.sizes["q"]
    return np.asarray(rows >= np.maximum(keys // tile * tile - diagonal, 0) // tile * tile)


def _with(of: Setting, optional: tuple[str, ...], **numbers: float) -> Setting:
    return replace(of, numbers={**of.numbers, **numbers}, optional=optional)


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


# ---- P, delta and what they are made of


def weights(of: Setting) -> Iterator[Hypothesis]:
    """P without what normalises it; delta and dS of something else."""
    lse = "own_lse" if "lse" in of.own else "lse"
    names = [name for name in _SCORES if name in _names(of)][:1]

    def bare(at: Any, p: np.ndarray) -> np.ndarray:
        return np.where(seen_keys(of, at), np.exp(scores_of(at)), 0.0)

    def from_top(at: Any, p: np.ndarray) -> np.ndarray:
        shown = seen_keys(of, at)
        x = np.where(shown, scores_of(at), -np.inf)
        return np.where(shown, np.exp(x - x.max(-1, keepdims=True)), 0.0)

    def times_0(visited: np.ndarray) -> Change:
        def change(at: Any, p: np.ndarray) -> np.ndarray:
            product = np.where(visited, 0.0 * np.exp(scores_of(at) - lse_of_rows(at)), 0.0)
            return np.where(seen_keys(of, at), p, product)

        return change

    hides = [name for name in ("mask", "seqlens_k") if name in of.optional]
    for id, said, change in (
        ("bare", "e^score, not normalised by lse", bare),
        ("from-top", "e^(score - row maximum), not normalised by the row sum", from_top),
    ):
        yield named(f"probs.{id}", f"P is {said}", altered("probs", change, *names, *hides))
        for cast in ("probs_cast", "dropped", "dropped_cast"):
            yield named(f"{cast}.{id}", f"in dV only, P is {said}", altered(cast, change, *names, *hides))
        yield named(f"dv.{id}", f"in dV only, P is {said}", read_as("dv_sum", "probs", change, *names, *hides))
    said = "masked weights are multiplied by 0, not set to 0: NaN where lse is -inf"
    yield named("probs.times-0", said, altered("probs", times_0(np.ones((1, 1), bool)), *names, lse))
    for tile in TILES if of.numbers["causal"] else ():
        visited = _visited_by_keys(of, tile)
        if not visited.all():
            yield named(f"probs.times-0.{tile}", f"{said}; only in visited tiles of {tile} x {tile}",
                        altered("probs", times_0(visited), *names, lse))  # fmt: skip
    yield named("delta.of-probs", "delta is the sum of P dP, not of dout * out",
              altered("delta", lambda at, x: (at("probs") * at("dprobs")).sum(-1), "probs", "dprobs"))  # fmt: skip
    yield named("delta.of-dout", "delta is the sum of dout, without out",
              altered("delta", lambda at, x: at("dout").sum(-1), "dout"))  # fmt: skip
    yield named(
        "delta.of-out",
        "delta is the sum of out, without dout",
        altered("delta", lambda at, x: at("out").sum(-1), "out"),
    )
    yield named("dprobs.without-p", "dS is dP - delta: P is left out",
              altered("dscores", lambda at, x: np.where(seen_keys(of, at), at("centred"), 0.0), "centred"))  # fmt: skip
    yield named(
        "dscores.operands",
        f"P and dP - delta are rounded to {of.dtype} before they are multiplied",
        *(read_as("dscores", ref, cast_to(of.dtype)) for ref in ("probs", "centred")),
        altered("dscores", cast_to(of.dtype)),
    )
