"""Bounds of nodes as large as an attention's scores, part by part: what a rule makes on its way is then small.

Of a primitive of single elements every part is a bound of its own, and of a product of matrices every part of the rows,
or of the batch.
"""

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any, TypeVar

from array_api_compat import device

from workbench.reference.graph.error import EXACT, Error, Own, none
from workbench.reference.graph.rules.choices import Where
from workbench.reference.graph.rules.elementwise import Elementwise
from workbench.reference.graph.rules.sums import Contraction
from workbench.reference.graph.site import Operand, Site

#: elements of a part, 64 MB: of an attention of 16 heads and 4,096 tokens half a head. A rule launches some
#: hundred GPU kernels; a launch costs 10 us, and a kernel needs 50 us for so many elements, so that launches stay cheap
PART = 2**23

Found = TypeVar("Found", Own, Error)


def in_blocks(rule: Any, s: Site, f: Callable[[Site], Found]) -> Found:
    """f of the site, which gives bounds of the shape of its value; part by part where that is large."""
    size = prod(s.y.shape)
    if size < 2 * PART or not isinstance(rule, Elementwise | Where | Contraction):
        return f(s)
    axis = next(a for a, n in enumerate(s.y.shape) if n > 1)
    if isinstance(rule, Contraction) and axis == s.y.ndim - 1:
        return f(s)
    step = max(1, s.y.shape[axis] * PART // size)
    whole: list[Any] = []
    exact = True
    for start in range(0, s.y.shape[axis], step):
        at = slice(start, min(start + step, s.y.shape[axis]))
        found = f(_part(rule, s, axis, at))
        exact = exact and found is EXACT
        whole = whole or [None] * len(found)
        whole = [x if name == "shared" else _put(s, axis, at, x, part)
                 for name, x, part in zip(found._fields, whole, found, strict=True)]  # fmt: skip
    if exact:
        return found
    made = type(found)(*whole)
    return made._replace(shared=_shared(rule, s)) if isinstance(made, Error) else made


def _shared(rule: Any, s: Site) -> tuple[bool, ...]:
    """As `combined` finds it of the whole."""
    found = s.unshared
    for i, one in enumerate(s.reads):
        if not none(one.error.variance):
            found = tuple(a or b for a, b in zip(found, rule.shared(s, i), strict=True))
    return found


def _put(s: Site, axis: int, at: slice, whole: Any, part: Any) -> Any:
    """A part in its place: of arrays the whole array, of bits those of any, of what all parts share one."""
    if isinstance(part, int) and not isinstance(part, bool):  # sources, or what is open
        return part if whole is None else whole | part
    if not hasattr(part, "shape"):
        if not hasattr(whole, "shape"):
            return part
        part = part or 0.0
    elif not hasattr(whole, "shape"):
        before, whole = whole or 0.0, s.xp.empty(s.y.shape, dtype=part.dtype, device=device(s.y))
        whole[...] = before
    place = (slice(None),) * axis + (at,)
    whole[place] = part
    return whole


def _part(rule: Any, s: Site, axis: int, at: slice) -> Site:
    behind = s.y.ndim - axis  # of axes counted from behind, as they are broadcast

    def cut(x: Any, of: int = 0) -> Any:
        if not hasattr(x, "shape") or x.ndim < behind or x.shape[-behind] == 1:
            return x
        if isinstance(rule, Contraction) and of == 1 and behind == 2:
            return x
        return x[(..., at, *(slice(None),) * (behind - 1))]

    def operand(one: Operand, of: int = 0) -> Operand:
        error = one.error
        if error is not EXACT:
            error = error._replace(
                worst=cut(error.worst, of), variance=cut(error.variance, of), common=cut(error.common, of)
            )
        amounts = {name: cut(getattr(one, name), of) for name in ("size", "of_squares", "attributed", "lost")}
        elements = one.elements or prod(one.value.shape)
        return replace(one, value=cut(one.value, of), error=error, elements=elements, **amounts)

    reads = tuple(operand(one, k) for k, one in enumerate(s.reads))
    return replace(s, reads=reads, y=cut(s.y), looks=tuple(map(operand, s.looks)), is_normal=s.normal)
