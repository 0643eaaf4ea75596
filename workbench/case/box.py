"""A window on a run: batches, heads and queries to which dumps and judgement are limited. The kernel runs whole."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.case.case import Case
from workbench.case.stages import AXIS_NAMES
from workbench.refusal import Refusal

AXES = "bhq"
Bounds = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """First and last + 1 of the batches, query heads and queries of a case."""

    b: Bounds
    h: Bounds
    q: Bounds

    def __str__(self) -> str:
        return ",".join(f"{axis}={first}:{last}" for axis, (first, last) in zip(AXES, self, strict=True))

    def __iter__(self) -> Any:
        return iter((self.b, self.h, self.q))


def parse(text: str, case: Case) -> Window:
    """The window `b=0,h=3,q=64:128` on a case: an index or first:last + 1 for any of b, h and q, the others whole.

    Refusal for another axis, what is outside the case, and heads that are neither whole groups, which share their keys,
    nor of one group.
    """
    sizes = {axis: case.sizes[axis] for axis in AXES}
    found: dict[str, Bounds] = {}
    for part in text.split(","):
        matched = re.fullmatch(r"\s*(\w+)\s*=\s*(\d+)\s*(?::\s*(\d+)\s*)?", part)
        if matched is None or matched[1] not in AXES or matched[1] in found:
            raise Refusal(f"a window is b, h and q, each once, as I or FIRST:END, such as b=0,q=64:128; got {part!r}")
        axis, first = matched[1], int(matched[2])
        last = first + 1 if matched[3] is None else int(matched[3])
        if not first < last <= sizes[axis]:
            raise Refusal(f"{AXIS_NAMES[axis]} {axis} of the case is 0 to {sizes[axis] - 1}; got {part.strip()}")
        found[axis] = (first, last)
    window = Window(*(found.get(axis, (0, sizes[axis])) for axis in AXES))
    group, (first, last) = case.heads // case.kv_heads, window.h
    if (first % group or last % group) and first // group != (last - 1) // group:
        raise Refusal(f"h of a window is whole groups of {group} heads, or within one; got h={first}:{last}")
    return window


def kv_heads(case: Case, window: Window) -> Bounds:
    """The kv heads that the heads of a window read."""
    group = case.heads // case.kv_heads
    return window.h[0] // group, (window.h[1] - 1) // group + 1


def bounds(case: Case, window: Window, of_kv: bool) -> dict[str, slice]:
    """Axis letter -> what of it is in a window, of an array whose h is the kv head (`of_kv`) or the query head."""
    heads = kv_heads(case, window) if of_kv else window.h
    return {"b": slice(*window.b), "h": slice(*heads), "q": slice(*window.q)}


def case_of(case: Case, window: Window) -> Case:
    """The case of what is in a window of a case, with its scale, tiles and splits. Some of its queries see other keys
    than a causal case of their number: they need a mask.
    """
    (b0, b1), (h0, h1), (q0, q1) = window
    kv0, kv1 = kv_heads(case, window)
    whole = (q0, q1) == (0, case.seqlen_q)
    return case.but(
        batch=b1 - b0, heads=h1 - h0, kv_heads=kv1 - kv0, seqlen_q=q1 - q0, seqlen_k=case.seqlen_k,
        causal=case.causal and whole, window=case.window if whole else None, scale=case.scale,
    )  # fmt: skip


def with_causal(inputs: Mapping[str, np.ndarray], case: Case, window: Window) -> dict[str, np.ndarray]:
    """The inputs of a window on a case, with the mask of the case among them where the window's case cannot tell it."""
    if not (case.causal or case.window) or window.q == (0, case.seqlen_q):
        return dict(inputs)
    mask = case.mask()[slice(*window.q)]
    return {**inputs, "mask": inputs["mask"] & mask if "mask" in inputs else mask}


def sizes_of(case: Case, window: Window | None) -> dict[str, int]:
    """Size of every stage axis, of a settled case or of a window on it."""
    return case.sizes if window is None else case.sizes | case_of(case, window).sizes
