"""Families of cases of a function that a plain reference judges: those that a lazy or a wrong function does not stand.

Each makes a problem of a spec and a generator, whose seed nobody knows before. The inputs that are judged are always
those of a case, which `workbench diff` makes too: what the function of the inputs returns, or another distribution of
it, which stays in the domain that its values show (`operations.reference.distributions`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workbench.explore.acceptance.plain_caller import Strided
from workbench.explore.acceptance.reference_spec import ReferenceSpec
from workbench.floats import DTYPES
from workbench.operations.reference import distributions
from workbench.operations.reference.case import ReferenceCase
from workbench.operations.reference.distributions import ANY, FIXED, changed, domain_of
from workbench.operations.reference.inputs import inputs_of

#: lengths of tiles
TILES = (16, 32, 64, 128)
#: calls before the one of `again`, of other inputs: what is kept may be that of the third call of a shape
BEFORE = 2


@dataclass(frozen=True)
class ReferenceProblem:
    """A call that is judged."""

    family: str
    case: ReferenceCase
    again: int = 0  #: calls before it, of other seeds, at the same addresses
    nudged: bool = False  #: whether a call before it differs in one element of one input
    lying: Strided = Strided()

    @property
    def words(self) -> str:
        """The case in words."""
        before = f"after {self.again} calls with other inputs" if self.again else ""
        before = "after a call with one other element" if self.nudged else before
        return "; ".join(part for part in (self.case.words, before, self.lying.words) if part)

    def as_dict(self) -> dict[str, Any]:
        """The case in plain Python values."""
        return {**self.case.asked(), "axes": dict(self.case.axes), "calls_before": self.again, "nudged": self.nudged}


Family = Callable[[ReferenceSpec, np.random.Generator], ReferenceProblem]


def _of_sizes(name: str, of: Callable[[list[int], np.random.Generator], list[int]]) -> Family:
    """Sizes `of` those that an axis has; axes without such a size have any."""

    def family(spec: ReferenceSpec, random: np.random.Generator) -> ReferenceProblem:
        chosen = str(random.choice([*_with(spec, of, random)]))
        others = bool(random.integers(2))  # the other axes, too
        case = spec.draw(random, lambda sizes: of(sizes, random))
        rest = spec.draw(random)
        axes = {axis: n if others or axis == chosen else rest.axes[axis] for axis, n in case.axes.items()}
        return ReferenceProblem(name, replace(case, axes=axes))

    return family


def _with(spec: ReferenceSpec, of: Callable[..., list[int]], random: np.random.Generator) -> list[str]:
    """The axes that have such sizes."""
    return [axis for axis, sizes in spec.varying.items() if of(sizes, random)]


def _edges(sizes: list[int], random: np.random.Generator) -> list[int]:
    """At, one before and one behind the end of a tile."""
    ends = {end + by for tile in TILES for end in range(tile, sizes[-1] + 2, tile) for by in (-1, 0, 1)}
    return [n for n in sizes if n in ends]


def _tail(sizes: list[int], random: np.random.Generator) -> list[int]:
    """One behind the last full tile, of whatever size that is, or a part of it."""
    tile = next((tile for tile in TILES[::-1] if sizes[-1] > tile), 0)
    return [n for n in sizes if tile and n > tile and n % tile in (1, tile // 2 + 1)]


def _powers(sizes: list[int], random: np.random.Generator) -> list[int]:
    """Powers of two from 2 on."""
    return [n for n in sizes if n > 1 and n & (n - 1) == 0]


def _ends(sizes: list[int], random: np.random.Generator) -> list[int]:
    """The smallest and the largest."""
    return [sizes[0], sizes[-1]]


def _one(sizes: list[int], random: np.random.Generator) -> list[int]:
    """1."""
    return [1] if sizes[0] == 1 else []


def _random(spec: ReferenceSpec, random: np.random.Generator) -> ReferenceProblem:
    """Any case of the spec."""
    return ReferenceProblem("random", spec.draw(random))


def _strided(spec: ReferenceSpec, random: np.random.Generator) -> ReferenceProblem:
    """Inputs that are views: turned, unaligned, with poison behind their rows."""
    case = spec.draw(random)
    unit = max(1, spec.alignment // DTYPES[case.dtype or "float32"].itemsize)
    shift, behind = (int(n) * unit for n in random.integers((4, 3)))
    turned = bool(random.integers(2)) or not (shift or behind)
    return ReferenceProblem("strided", case, lying=Strided(shift, behind, turned))


def _again(spec: ReferenceSpec, random: np.random.Generator) -> ReferenceProblem:
    """A call at the addresses of calls with other inputs."""
    return ReferenceProblem("again", spec.draw(random), again=BEFORE)


def _nudged(spec: ReferenceSpec, random: np.random.Generator) -> ReferenceProblem:
    """A call at the addresses of one that differs in one element."""
    return ReferenceProblem("nudged", spec.draw(random), nudged=True)


def _drawn(name: str) -> Family:
    def family(spec: ReferenceSpec, random: np.random.Generator) -> ReferenceProblem:
        return ReferenceProblem(name, replace(spec.draw(random), distribution=name))

    return family


_SIZES: Mapping[str, Callable[[list[int], np.random.Generator], list[int]]] = {
    "edges": _edges, "tail": _tail, "powers": _powers, "one": _one, "ends": _ends,
}  # fmt: skip
#: family -> what makes it, in the order of a round, in which a random case comes before each two others
FAMILIES: Mapping[str, Family] = {
    "random": _random,
    "edges": _of_sizes("edges", _edges),
    "again": _again,
    "tail": _of_sizes("tail", _tail),
    "strided": _strided,
    "large": _drawn("large"),
    "one": _of_sizes("one", _one),
    "gates-shut": _drawn("gates-shut"),
    "gates-open": _drawn("gates-open"),
    "nudged": _nudged,
    "powers": _of_sizes("powers", _powers),
    "outliers": _drawn("outliers"),
    "equal-rows": _drawn("equal-rows"),
    "tiny": _drawn("tiny"),
    "ends": _of_sizes("ends", _ends),
}


def families_of(spec: ReferenceSpec, drawn: Mapping[str, Any]) -> list[str]:
    """The families of one round, in their order, but for those of which the spec has no cases, or which change nothing
    of inputs such as `drawn`.
    """
    random = np.random.default_rng(0)
    due = {name: bool(_with(spec, of, random)) for name, of in _SIZES.items()}
    for name in distributions.FAMILIES:
        other = changed(name, drawn, 0, spec.fixed)
        due[name] = _differs(drawn, other)
    due["strided"] = not spec.contiguous
    due["nudged"] = any(one is not None for one in map(_plain, drawn.values()))
    kept = [name for name in FAMILIES if due.get(name, True) and name not in spec.without and name != "random"]
    if "random" in spec.without:
        return kept
    return [name for i in range(0, max(1, len(kept)), 2) for name in ("random", *kept[i : i + 2])]


def problem(spec: ReferenceSpec, families: list[str], seed: int, index: int) -> ReferenceProblem:
    """The problem of a place in the order of problems, the same for a seed."""
    return FAMILIES[families[index % len(families)]](spec, np.random.default_rng((seed, index)))


def made(spec: ReferenceSpec, case: ReferenceCase) -> dict[str, Any]:
    """The inputs of a case."""
    return changed(case.distribution, inputs_of(spec.inputs, case.dtype, case.seed, case.axes), case.seed, spec.fixed)


def nudge(inputs: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Inputs of which one element of one input, of those that are plain floats, is another of its domain."""
    random = np.random.default_rng(seed)
    names = [name for name, x in inputs.items() if _plain(x) is not None]
    if not names:
        return dict(inputs)
    name = names[int(random.integers(len(names)))]
    x = inputs[name].copy() if isinstance(inputs[name], np.ndarray) else inputs[name].clone()
    place = tuple(int(random.integers(n)) for n in x.shape)
    x[place] = -x[place] if _plain(x) == ANY else x[place] / 2
    return {**inputs, name: x}


def _plain(x: Any) -> str | None:
    """The domain of an array of plain floats; None of what no family changes."""
    array = distributions.as_float_array(x)
    found = None if array is None else domain_of(array)
    return None if found == FIXED else found


def _differs(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    pairs = ((distributions.as_float_array(x), distributions.as_float_array(b[key])) for key, x in a.items())
    return any(x is not None and y is not None and x.tobytes() != y.tobytes() for x, y in pairs)
