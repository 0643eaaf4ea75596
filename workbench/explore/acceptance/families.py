"""Families of cases: random ones, and those that a lazy or a wrong function does not stand.

Each makes a problem of a spec and a generator, whose seed nobody knows before. Inputs that no distribution of a case
draws are arrays; all are those of one call on the function, and of one before it where that matters.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from workbench.case.case import Case
from workbench.case.distributions import FIXED, combs, needles, shapes
from workbench.case.fields import GIVEN
from workbench.case.inputs import by_name
from workbench.case.stages import INPUTS
from workbench.explore.acceptance.arena import Lying
from workbench.explore.acceptance.spec import WORK, Spec
from workbench.explore.draw import Among
from workbench.explore.features import RAGGED
from workbench.floats import DTYPES
from workbench.refusal import Refusal

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Problem:
    """A call that is judged."""

    family: str
    case: Case
    inputs: Arrays | None = None  #: in place of the case's own
    before: tuple[Arrays, ...] = ()  #: inputs of calls at the same addresses before it, whose answers are not asked for
    alone: int | None = None  #: a sequence of the batch whose bits must be the same without the others
    lying: Lying = Lying()

    @property
    def words(self) -> str:
        """The case in words."""
        given = "q, k and v come from this family" if self.inputs is not None else ""
        return "; ".join(part for part in (repr(self.case), given, self.lying.words) if part)

    def as_dict(self) -> dict[str, Any]:
        """The case in plain Python values."""
        return self.case.as_dict() | ({"distribution": GIVEN} if self.inputs is not None else {})

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """q, k and v."""
        found = by_name(self.case, self.inputs)
        return {name: found[name] for name in INPUTS}


Family = Callable[[Spec, np.random.Generator], Problem]


def _random(spec: Spec, random: np.random.Generator) -> Problem:
    """Any case of the spec, of any distribution."""
    return Problem("random", spec.draw(random))


#: lengths at which tiles end
_ENDS = (1, 16, 32, 64, 128, 256)


def _edges(spec: Spec, random: np.random.Generator) -> Problem:
    """Lengths at, before and behind the ends of tiles, and the longest."""
    given: dict[str, Any] = {}
    for name in ("seqlen_q", "seqlen_k"):
        near = [end + by for end in (*_ENDS, spec.largest(name)) for by in (-1, 0, 1)]
        near = [n for n in near if "seqlen" not in spec.case and spec.takes(name, n)]
        given |= {name: Among(tuple(near))} if near else {}
    return Problem("edges", spec.draw(random, distribution="normal", **given))


def _tail(spec: Spec, random: np.random.Generator) -> Problem:
    """One key, or one query too, behind the last full tile, of whatever size up to 128 that is."""
    given: dict[str, Any] = {}
    for name in ("seqlen_k", "seqlen_q")[: 1 + int(random.integers(2))]:
        for tile in (128, 64, 32, 16):
            near = [n for n in range(tile + 1, spec.largest(name) + 1, tile) if spec.takes(name, n)]
            if near and "seqlen" not in spec.case:
                given |= {name: Among(tuple(near))}
                break
    return Problem("tail", spec.draw(random, distribution="normal", **given))


def _square(spec: Spec, random: np.random.Generator) -> Problem:
    """As many queries as keys, and as many heads: q, k, v and out have one shape; causal where it may be."""
    case = spec.draw(random, distribution="normal")
    given: dict[str, Any] = {"group": 1} if "heads" not in spec.case and spec.takes("group", 1) else {}
    given |= {"causal": True} if spec.takes("causal", True) else {}
    both = [n for n in (case.seqlen_q, case.seqlen_k) if spec.takes("seqlen_q", n) and spec.takes("seqlen_k", n)]
    if "seqlen" not in spec.case and both:
        given |= {"seqlen_q": max(both), "seqlen_k": max(both)}
    return Problem("square", spec.draw(random, distribution="normal", **given))


def _listed(spec: Spec, random: np.random.Generator) -> Problem:
    """A shape that the spec lists, as it is, or with lengths beside its own where the ranges have them."""
    one = dict(spec.shapes[int(random.integers(len(spec.shapes)))])
    for name in ("seqlen_q", "seqlen_k", "seqlen"):
        if name in one and name in spec.ranges and random.integers(2):
            near = [n for n in (one[name] + by for by in (-1, 1, 7)) if spec.takes(name, n)]
            one |= {name: Among(tuple(near))} if near else {}
    return Problem("listed", spec.draw(random, distribution="normal", **one))


def _long(spec: Spec, random: np.random.Generator, **given: Any) -> Case:
    """A case of the most keys, and so few queries that its work is little."""
    most = spec.largest("seqlen_k")
    if "seqlen" in spec.case:
        return spec.draw(random, seqlen=most, **given)
    case = spec.draw(random, seqlen_k=most, **given)
    rows = max(1, WORK // (case.heads * case.batch * case.head_dim * most))
    if case.seqlen_q > rows and not case.ragged and spec.takes("seqlen_q", rows):
        case = case.but(seqlen_q=rows)
    return case


def _telling(name: str, count: Callable[[Case], int]) -> Family:
    def family(spec: Spec, random: np.random.Generator) -> Problem:
        case = _long(spec, random, distribution="normal")
        if case.head_dim < FIXED[name](case.seqlen_k):
            name_ = "comb"
        else:
            name_ = name
        return Problem(name, case.but(distribution=name_, seed=int(random.integers(count(case)))))

    return family


def _drawn(name: str, distribution: str, **fields: Any) -> Family:
    def family(spec: Spec, random: np.random.Generator) -> Problem:
        case = spec.draw(random, distribution="normal")
        try:
            return Problem(name, case.but(distribution=distribution, **fields))
        except Refusal:  # too few dims for the keys
            return Problem(name, case)

    return family


def _given(name: str, case: Case, q: Any, k: Any, v: Any, **more: Any) -> Problem:
    """A problem of arrays, broadcast to the shapes of the case and rounded to its dtype."""
    dtype = DTYPES[case.dtype]
    largest = float(ml_dtypes.finfo(dtype).max)
    made = {
        x: np.clip(np.broadcast_to(array, shape), -largest, largest).astype(np.float32).astype(dtype)
        for x, array, shape in zip(INPUTS, (q, k, v), shapes(case), strict=True)
    }
    if case.shared_kv:
        made["v"] = made["k"][..., : case.head_dim_v]
    if case.ragged:
        made = {x: case.cut(x, array) for x, array in made.items()}
    return Problem(name, case, made, **more)


def _equal_rows(spec: Spec, random: np.random.Generator) -> Problem:
    """All queries alike, and all keys: every key that is seen has the same weight."""
    case = spec.draw(random, distribution="normal")
    q, k, v = (random.standard_normal(shape) for shape in shapes(case))
    return _given("equal-rows", case, q[:, :, :1], k[:, :, :1], v)


def _denormal(spec: Spec, random: np.random.Generator) -> Problem:
    """q and k, and in float16 v, of numbers below the smallest normal one; or, of float16, whose denormals are normal
    numbers of the float32 that products are kept in, q or k alone, the other so large that scores are of about 1.
    """
    case = spec.draw(random, distribution="normal")
    least = float(ml_dtypes.finfo(DTYPES[case.dtype]).tiny) / 4
    q, k, v = (random.standard_normal(shape) for shape in shapes(case))
    if case.dtype != "float16":
        return _given("denormal", case, q * least, k * least, v)
    which = int(random.integers(3))
    large = 1 / (least * abs(case.scale) * math.sqrt(case.head_dim)) if case.scale else 1.0
    factors = ((least, least, least), (large, least, 1.0), (least, large, 1.0))[which]
    return _given("denormal", case, *(x * factor for x, factor in zip((q, k, v), factors, strict=True)))


#: a score that a mask of -1e4 does not hide, and one of -3e4 does
_HOT = 1.4e4
#: scores from below -20, which some put in the place of hidden ones, to below a mask of -1e4
_COLD = (-20.0, -2e4)
#: the largest sum q @ k before its scale in float16, which kernels keep that sum up in it (its largest number is 65504)
_FLOAT16 = 6e4


def _pulled(name: str, heights: tuple[float, float], which: Callable[[Case], slice]) -> Family:
    """Scores between two `heights` of some keys, all others being small: keys that are hidden from some rows, or all
    keys.
    """

    def family(spec: Spec, random: np.random.Generator) -> Problem:
        height = math.copysign(_between(random, *map(abs, heights)), heights[0])
        causal = {"causal": True} if spec.takes("causal", True) else {}
        case = spec.draw(random, distribution="normal", **causal)
        q, k, v = (random.standard_normal(shape) / 4 for shape in shapes(case))
        pull = math.sqrt(min(abs(height) / abs(case.scale), _FLOAT16 if case.dtype == "float16" else math.inf))
        q[..., 0] = math.copysign(pull, case.scale)
        k[..., 0] = 0.0
        k[:, :, which(case), 0] = math.copysign(pull, height)
        return _given(name, case, q, k, 4 * v)

    return family


def _between(random: np.random.Generator, low: float, high: float) -> float:
    """A number whose logarithm is uniform."""
    return low * (high / low) ** random.random()


def _far(case: Case) -> slice:
    """Keys that some rows do not see: the last ones, or the first where a window ends to the left."""
    if case.sides[0] >= 0:
        return slice(max(1, case.seqlen_k // 4))
    return slice(max(1, case.seqlen_k - max(1, case.seqlen_q // 2)), None)


def _bend(spec: Spec, random: np.random.Generator) -> Problem:
    """Scores as large as the softcap, of either sign, where the cap bends them."""
    for _ in range(8):
        case = spec.draw(random, distribution="normal")
        if case.softcap is not None:
            break
    cap = case.softcap or 1.0
    std = math.sqrt(2 * cap / (abs(case.scale) * math.sqrt(case.head_dim)))
    return Problem("bend", case.but(input_std=std))


def _quiet(spec: Spec, random: np.random.Generator) -> Problem:
    """Scores below 1, which change weights by a few percent: softmax is not yet the mean. Queries are much alike, and
    every other dim of v is what their scores are, so that these few percent add up over all keys.
    """
    case = spec.draw(random, distribution="normal")
    std = _between(random, 2.0**-6, 2.0**-2) / max(abs(case.scale) * math.sqrt(case.head_dim), 2.0**-7)
    q, k, v = (random.standard_normal(shape) for shape in shapes(case))
    q = q[:, :, :1] + q / 4
    towards = q[:, :: case.heads // case.kv_heads, :1]
    v[..., ::2] = (k * towards / np.linalg.norm(towards, axis=-1, keepdims=True)).sum(axis=-1, keepdims=True)
    return _given("quiet", case, q * math.sqrt(std), k * math.sqrt(std), v)


def _decode(spec: Spec, random: np.random.Generator) -> Problem:
    """One query, as of a step of decoding."""
    return Problem("decode", spec.draw(random, distribution="normal", seqlen_q=1))


#: calls before the one of `again`, of which all inputs differ: what is kept may be that of the third call of a shape
_CALLS_BEFORE = 3


def _anew(x: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return random.standard_normal(x.shape)


def _one_element(x: np.ndarray, random: np.random.Generator) -> np.ndarray:
    found = x.astype(np.float32)
    found[tuple(int(random.integers(n)) for n in x.shape)] += 8 * (1 - 2 * int(random.integers(2)))
    return found


def _two_rows(x: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Two rows in each other's place, so that no sum of all of them tells."""
    found, rows = x.copy(), random.permutation(x.shape[2])[:2]
    found[:, :, rows] = x[:, :, rows[::-1]]
    return found


def _kept(name: str, calls: int, change: Callable[[np.ndarray, np.random.Generator], np.ndarray]) -> Family:
    """A call at the addresses of the ones before, of the last of which one input differs by a `change`."""

    def family(spec: Spec, random: np.random.Generator) -> Problem:
        case = spec.draw(random, distribution="normal")
        before = [by_name(case.but(seed=int(random.integers(2**32)))) for _ in range(calls)]
        before = [{one: x for one, x in arrays.items() if one in INPUTS} for arrays in before]
        changed = INPUTS[int(random.integers(2 if case.shared_kv else 3))]
        last = {**before[-1], changed: change(before[-1][changed], random)}
        return _given(name, case, *(last[one] for one in INPUTS), before=tuple(before))

    return family


#: standard deviation of scores: exp of the largest one of a row of 100 is no float32, unless a maximum is subtracted
_LOUD = 60.0


def _louder(spec: Spec, random: np.random.Generator) -> Problem:
    """Large scores at the addresses of a call of small ones: a maximum that was kept is too small for them."""
    case = spec.draw(random, distribution="normal")
    q, k, v = (random.standard_normal(shape) for shape in shapes(case))
    factor = math.sqrt(_LOUD / max(abs(case.scale) * math.sqrt(case.head_dim), 2.0**-7))
    before = _given("louder", case, q / 8, k, v).arrays
    return _given("louder", case, q * factor, k * factor, v, before=(before,))


def _beside(spec: Spec, random: np.random.Generator) -> Problem:
    """A batch of several sequences, of which one is run alone too."""
    batch = {} if spec.takes("batch", 1) and spec.largest("batch") == 1 else {"batch": spec.largest("batch")}
    case = spec.draw(random, distribution="normal", **batch)
    return Problem("beside", case, alone=int(random.integers(case.batch)))


def _lengths(spec: Spec, random: np.random.Generator) -> Problem:
    """Sequences of other lengths, with poison behind each."""
    for _ in range(8):
        case = spec.draw(random, distribution="normal")
        if case.ragged:
            break
    return Problem("lengths", case)


#: family -> what makes it, in the order of a round, in which a random case comes before each two others; those come
#: first that show what no other does
FAMILIES: Mapping[str, Family] = {
    "random": _random,
    "needle": _telling("needle", needles),
    "edges": _edges,
    "square": _square,
    "tail": _tail,
    "again": _kept("again", _CALLS_BEFORE, _anew),
    "quiet": _quiet,
    "nudged": _kept("nudged", 1, _one_element),
    "hot": _pulled("hot", (_HOT, _HOT), _far),
    "louder": _louder,
    "swapped": _kept("swapped", 1, _two_rows),
    "decode": _decode,
    "cold": _pulled("cold", _COLD, lambda case: slice(None)),
    "comb": _telling("comb", combs),
    "denormal": _denormal,
    "equal-rows": _equal_rows,
    "exact": _drawn("exact", "exact"),
    "ties": _drawn("ties", "exact-ties"),
    "large": _drawn("large", "normal", input_std=3.0),
    "outliers": _drawn("outliers", "outlier-channels", input_std=0.25),
    "tiny": _drawn("tiny", "tiny"),
    "bend": _bend,
    "lengths": _lengths,
    "listed": _listed,
    "beside": _beside,
}


def families_of(spec: Spec) -> list[str]:
    """The families of one round, in their order; those of which the spec has no cases are left out."""
    softcap, feature = spec.ranges["softcap"], spec.ranges.get("feature")
    ragged = {*RAGGED} & {*(feature.values if isinstance(feature, Among) else (feature,))}
    ragged |= {"seqlens_q", "seqlens_k"} & {*spec.case}
    due = {"bend": softcap is not None, "lengths": bool(ragged), "listed": bool(spec.shapes)}
    due |= {"beside": spec.batch_invariant, "decode": "seqlen" not in spec.case and spec.takes("seqlen_q", 1)}
    kept = [name for name in FAMILIES if due.get(name, True) and name not in spec.without and name != "random"]
    if "random" in spec.without:
        return kept
    return [name for i in range(0, max(1, len(kept)), 2) for name in ("random", *kept[i : i + 2])]


def problem(spec: Spec, seed: int, index: int) -> Problem:
    """The problem of a place in the order of problems, the same for a seed."""
    names = families_of(spec)
    random = np.random.default_rng((seed, index))
    made = FAMILIES[names[index % len(names)]](_turned(spec, seed, index), random)
    return Problem(**{**vars(made), "lying": _lying(spec, made.case, random)})


#: fields of few values, each of which comes in its turn: of 20 random cases one in 300 has no head_dim of 128, and more
#: that are drawn for little work
_TURNS = ("head_dim", "dtype")


def _turned(spec: Spec, seed: int, index: int) -> Spec:
    """The spec with one value of each of these fields: in as many problems as it has values all come, in any order."""
    ranges, turned = spec.ranges, dict(spec.case)
    for place, name in enumerate(_TURNS):
        if isinstance(among := ranges.get(name), Among):
            turn, at = divmod(index, len(among.values))
            order = np.random.default_rng((seed, place, turn)).permutation(len(among.values))
            turned[name] = among.values[order[at]]
    return replace(spec, case=turned)


def _lying(spec: Spec, case: Case, random: np.random.Generator) -> Lying:
    """How inputs lie: every second time contiguously, so that addresses are the same, else apart and unaligned."""
    bhsd, bshd = (0, 1, 2, 3), (0, 2, 1, 3)
    order = bshd if spec.layout in ("bshd", "strided") else bhsd
    if spec.contiguous or random.integers(2):
        return Lying(order)
    unit = max(1, spec.alignment // DTYPES[case.dtype].itemsize)
    if spec.layout == "bhsd" and random.integers(2):
        order = bshd
    shift, behind, rows = (int(x) for x in random.integers((4, 3, 3)))
    return Lying(order, shift * unit, behind * unit, rows if order == bhsd else 0)
