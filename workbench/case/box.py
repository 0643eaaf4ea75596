"""A box: some batches, heads and queries of a run, to which dumps and judgement are limited or of which one goes at a
time. The kernel runs whole.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from workbench.case import masks
from workbench.case.case import Case
from workbench.case.stages import AXIS_NAMES, INPUT_AXES
from workbench.refusal import Refusal

AXES = "bhq"


class Box(NamedTuple):
    """Batches, query heads and queries, a slice each; of heads those of whole groups, which share their keys, or some
    of one group.
    """

    b: slice = slice(None)
    h: slice = slice(None)
    q: slice | np.ndarray = slice(None)

    def __str__(self) -> str:
        """As `parse` reads it; of a box whose slices have both ends."""
        return ",".join(f"{axis}={first}:{last}" for axis, (first, last) in self.edges().items())

    def edges(self) -> dict[str, tuple[int, int]]:
        """Axis -> first and last + 1, of a box whose slices have both ends."""
        assert isinstance(self.q, slice)
        return {axis: (along.start, along.stop) for axis, along in zip(AXES, (self.b, self.h, self.q), strict=True)}

    def of(self, array: np.ndarray, axes: str) -> np.ndarray:
        """What of an array with the axes `axes` is in the box; one of size 1 along an axis is the same along it."""
        sizes = zip(axes, array.shape, strict=True)
        return array[tuple(getattr(self, axis) if axis in AXES and size > 1 else slice(None) for axis, size in sizes)]

    def of_kv(self, case: Case) -> "Box":
        """The box of an array whose h is the kv head: those that its heads read."""
        heads, group = range(case.heads)[self.h], case.heads // case.kv_heads
        return self._replace(h=slice(heads.start // group, (heads.stop - 1) // group + 1))

    def of_input(self, case: Case, name: str, array: np.ndarray) -> np.ndarray:
        """What its queries read of an array of the shape of the input `name`; of k and v whole heads."""
        return (self if name == "q" else self.of_kv(case)).of(array, INPUT_AXES[name])

    def offset(self, axes: str) -> tuple[int, ...]:
        """The first index along each of the axes; 0 where it holds the whole of one."""
        return tuple(getattr(self, axis).start if axis in AXES else 0 for axis in axes)

    def rows(self, some: slice) -> "Box":
        """Some of its queries, counted from its first; these are a slice with a start."""
        (start,) = self.offset("q")
        return self._replace(q=slice(start + some.start, start + some.stop))

    def visible(self, case: Case, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Which keys its queries see, bool [q, k], or [b, h, q, k] where a mask was put in."""
        found = masks.visible(case, inputs, self.q)
        return found if found.ndim == 2 else self._replace(q=slice(None)).of(found, "bhqk")

    def within(self, outer: "Box | None") -> "Box":
        """A box whose indices count within `outer`, in indices of the whole run; slices of `outer` have both ends."""
        if outer is None:
            return self
        b, h = (_within(x, y) for x, y in zip(self[:2], outer[:2], strict=True))
        return Box(b, h, _within(self.q, outer.q))  # type: ignore[arg-type]  # of slices slices

    def present(self, case: Case) -> "Present | None":
        """Which of its queries and keys there are; None where all are."""
        if not case.ragged:
            return None
        rows = np.arange(case.seqlen_q)[self.q] < case.lengths_q[self.b, None]
        keys = np.arange(case.seqlen_k) < case.lengths_k[self.b, None]
        return Present(rows[:, None], keys[:, None])


class Present(NamedTuple):
    """Which queries and keys of a ragged batch there are."""

    rows: np.ndarray  #: bool [b, 1, q]
    keys: np.ndarray  #: bool [b, 1, k]


WHOLE = Box()


def parse(text: str, case: Case) -> Box:
    """The box `b=0,h=3,q=64:128` on a case: an index or first:last + 1 for any of b, h and q, the others whole.

    Refusal for another axis, what is outside the case, and heads that are neither whole groups, which share their keys,
    nor of one group.
    """
    found = {axis: slice(0, case.sizes[axis]) for axis in AXES}
    said: set[str] = set()
    for part in text.split(","):
        matched = re.fullmatch(r"\s*(\w+)\s*=\s*(\d+)\s*(?::\s*(\d+)\s*)?", part)
        if matched is None or matched[1] not in AXES or matched[1] in said:
            raise Refusal(
                f"a part of a run gives b, h and q, each once, as I or FIRST:END, such as b=0,q=64:128; got {part!r}"
            )
        axis, first = matched[1], int(matched[2])
        last = first + 1 if matched[3] is None else int(matched[3])
        if not first < last <= case.sizes[axis]:
            raise Refusal(
                f"{AXIS_NAMES[axis]} {axis} must be 0 to {case.sizes[axis] - 1} in this case; got {part.strip()}"
            )
        found[axis] = slice(first, last)
        said.add(axis)
    group, (first, last) = case.heads // case.kv_heads, (found["h"].start, found["h"].stop)
    if (first % group or last % group) and first // group != (last - 1) // group:
        raise Refusal(
            f"h of a part must be whole groups of {group} heads, or lie within one group; got h={first}:{last}"
        )
    return Box(**found)


def case_of(case: Case, box: Box) -> Case:
    """The case of what is in a box, with its scale, tiles and splits. Some of its queries see other keys than a causal
    case of their number: they need a mask.
    """
    heads, whole = range(case.heads)[box.of_kv(case).h], box.edges()["q"] == (0, case.seqlen_q)
    sizes = {axis: last - first for axis, (first, last) in box.edges().items()}
    lengths = {}
    if case.ragged:
        first, last = box.edges()["q"]
        lengths["seqlens_q"] = tuple(np.clip(case.lengths_q[box.b] - first, 0, last - first).tolist())
        lengths["seqlens_k"] = tuple(case.lengths_k[box.b].tolist())
    return case.but(
        batch=sizes["b"], heads=sizes["h"], kv_heads=len(heads), seqlen_q=sizes["q"], seqlen_k=case.seqlen_k,
        causal=case.causal and whole, window=case.window if whole else None, scale=case.scale,
        **{name: tuple(x[box.h].tolist()) for name, x in case.of_heads.items()},
        **lengths,
    )  # fmt: skip


def with_causal(inputs: Mapping[str, np.ndarray], case: Case, box: Box) -> dict[str, np.ndarray]:
    """The inputs of a box on a case, with the mask of the case among them where the box's case cannot tell it."""
    partial = box.edges()["q"] != (0, case.seqlen_q)
    if not (partial and (case.causal or case.window)):
        return dict(inputs)
    mask = box.visible(case, {})
    return {**inputs, "mask": inputs["mask"] & mask if "mask" in inputs else mask}


def _within(inner: slice | np.ndarray, outer: slice | np.ndarray) -> slice | np.ndarray:
    """Indices within some, as indices of the whole axis."""
    assert isinstance(outer, slice)
    if not isinstance(inner, slice):
        return inner + outer.start
    size = outer.stop - outer.start
    first, last, _ = inner.indices(size)
    return slice(outer.start + first, outer.start + last)


def sizes_of(case: Case, box: Box | None) -> dict[str, int]:
    """Size of every stage axis, of a resolved case or of a box on it."""
    return case.sizes if box is None else case.sizes | case_of(case, box).sizes
