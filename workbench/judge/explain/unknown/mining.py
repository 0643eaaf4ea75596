"""Which elements of an array are wrong, as a rule: the shortest description of them in terms of where they are and of
what they are computed from.

A rule is worth what it saves (Rissanen 1978, Modeling by shortest data description): bits of the rule, and bits that
tell which elements are wrong given the rule, against bits that tell so without one. A rule that holds by chance saves
b bits in one of 2^b masks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log2

import numpy as np

from workbench.judge.explain.unknown import parts
from workbench.judge.explain.unknown.difference import Difference
from workbench.judge.explain.unknown.features import features
from workbench.judge.explain.unknown.splits import RECALL, Count, Feature, coded
from workbench.judge.explain.unknown.tensors import Tensors

#: a rule is said where it saves this share of the bits, and is so rarely right; its RECALL is as a feature's
SAVED, PRECISION = 0.5, 0.95
#: rules that are kept, to be said and to be narrowed by another
SAID, KEPT = 3, 8
#: of lines along an axis that would be right in part if each of their elements were wrong by chance alone, the share
#: that is so where the elements of a line are wrong together
APART = 0.05
#: bits that tell one rule from another, or from none, but for chance
NO_CHANCE = -log2(parts.BY_CHANCE)


@dataclass(frozen=True)
class Pattern:
    """A rule that tells the elements outside their budget from the others that could be."""

    text: str  #: "head 1 of 4; dims with d % 8 == 3 of 64"
    precision: float  #: of the elements in the rule that could be wrong, those that are
    recall: float  #: of the wrong ones, those in the rule
    exceptions: int  #: elements that are wrong outside the rule, or right inside
    saved: float  #: 1 - bits with the rule / bits without

    def __str__(self) -> str:
        told = f", with {self.exceptions} exceptions" if self.exceptions else ""
        return self.text + told


def mined(found: Difference, around: Tensors | None = None) -> tuple[Pattern, ...]:
    """The rules that tell which elements of an array are wrong, the best first, at most SAID; () where none does.
    `around`: the run in which it is a stage, whose values may tell too.

    Rules of a large array are found on some of its rows, and counted on all.
    """

    def offered(part: Difference) -> list[Feature]:
        queries = part.rows if part.axes[part.along] == "q" else None
        return [*features(part, None if around is None else replace(around, rows=queries))]

    sample = found.sample()
    offer = offered(sample)
    rules = _rules(sample, offer)
    if not rules:
        return ()
    words = [rule.words(offer, sample.could) for rule in rules]
    counted, total = [np.zeros(2) for _ in rules], np.zeros(2)
    for part in found.parts():
        offer = offer if part is sample else offered(part)
        total += part.wrong.sum(), part.could.sum()
        for rule, count in zip(rules, counted, strict=True):
            inside = rule.inside(offer, part.wrong.shape)
            count += (part.wrong & inside).sum(), (part.could & inside).sum()
    said = zip(rules, words, counted, strict=True)
    made = (_pattern(rule, text, Count(*count), Count(*total)) for rule, text, count in said)
    return tuple(pattern for pattern in made if pattern is not None)


@dataclass(frozen=True)
class _Rule:
    """One part of a feature, or what is in both parts of two."""

    of: tuple[tuple[int, object], ...]  #: places in the list of features, and their parts
    bits: float
    code: float
    recall: float

    def words(self, offer: Sequence[Feature], could: np.ndarray) -> str:
        """What is in the rule, one feature after the other; "" where one has no words."""
        said = []
        for i, part in self.of:
            said.append(offer[i].words(part, could))
            could = could & offer[i].inside(part)
        return "; ".join(said) if all(said) else ""

    def inside(self, offer: Sequence[Feature], shape: tuple[int, ...]) -> np.ndarray:
        inside = np.ones(shape, bool)
        for i, part in self.of:
            inside &= offer[i].inside(part)
        return inside


def _rules(found: Difference, offer: Sequence[Feature]) -> list[_Rule]:
    """The rules worth saying, those that cost least first, as long as the first is not more likely by far; of those
    that say the same the shortest.
    """
    wrong, could, shape = found.wrong, found.could, found.wrong.shape
    base = float(coded(wrong.sum(), could.sum()))
    if not wrong.any() or (could == wrong).all():
        return []
    nothing = _Rule((), 0.0, base, 1.0)
    single = _narrowed(nothing, wrong, could, offer, shape)
    wide = [rule for rule in single if rule.recall >= RECALL][:KEPT]
    double = [rule for one in wide for rule in _narrowed(one, wrong, could, offer, shape)]
    best = [rule for rule in (*single, *double) if _worth(rule, base)]
    kept: list[tuple[_Rule, np.ndarray]] = []
    for rule in sorted(best, key=_cost):
        if kept and _cost(rule) > _cost(kept[0][0]) + NO_CHANCE or len(kept) == SAID:
            break
        inside = rule.inside(offer, shape) & could
        known = any(np.array_equal(inside, other) for _, other in kept)
        if not known and rule.words(offer, could) and _no_chance(rule, inside, wrong, could):
            kept.append((rule, inside))
    return [rule for rule, _ in kept]


def _narrowed(
    rule: _Rule, wrong: np.ndarray, could: np.ndarray, offer: Sequence[Feature], shape: tuple[int, ...]
) -> list[_Rule]:
    """A rule and one more feature, for each that is not in it, those that cost least first."""
    here = rule.inside(offer, shape)
    w, n = wrong & here, could & here
    rest = Count(wrong.sum() - w.sum(), could.sum() - n.sum())
    found = []
    for i, feature in enumerate(offer):
        for split in [] if any(i == j for j, _ in rule.of) else feature.splits(w, n, rest):
            held = (w & feature.inside(split.part)).sum() / wrong.sum()
            bits = rule.bits + split.bits + log2(len(offer))
            found.append(_Rule((*rule.of, (i, split.part)), bits, split.code, held))
    return sorted(found, key=_cost)


def _no_chance(rule: _Rule, inside: np.ndarray, wrong: np.ndarray, could: np.ndarray) -> bool:
    """Whether the rule is worth it too where lines of elements that are wrong together are one observation each; or has
    no exception there, and says what it says of all that is wrong.
    """
    for axis, size in enumerate(wrong.shape):
        w, n = (x.sum(axis=axis, keepdims=True) for x in (wrong, could))
        share = wrong.sum() / could.sum()
        mixed, by_chance = ((w > 0) & (w < n)).sum(), (1 - share**n - (1 - share) ** n).sum()
        if size > 1 and mixed <= APART * by_chance:
            inside, wrong, could = 2 * inside.sum(axis=axis, keepdims=True) > n, 2 * w > n, n > 0
    if np.array_equal(inside, wrong):
        return True
    counted, total = Count((inside & wrong).sum(), inside.sum()), Count(wrong.sum(), could.sum())
    return _worth(replace(rule, code=_code(counted, total)), float(coded(*total)))


def _code(inside: Count, total: Count) -> float:
    """Bits that tell which elements are wrong, of a rule that holds so many."""
    return float(coded(*inside) + coded(total.wrong - inside.wrong, total.could - inside.could))


def _cost(rule: _Rule) -> float:
    return rule.bits + rule.code


def _worth(rule: _Rule, base: float) -> bool:
    saved = base - _cost(rule)
    return saved >= SAVED * base and saved >= NO_CHANCE


def _pattern(rule: _Rule, text: str, inside: Count, total: Count) -> Pattern | None:
    """The rule as it is said, counted on all elements; None where it is not worth it."""
    base = float(coded(*total))
    code = _code(inside, total)
    precision, recall = inside.wrong / max(1, inside.could), inside.wrong / max(1, total.wrong)
    saved = 1 - (rule.bits + code) / base
    if not (precision >= PRECISION and recall >= RECALL and saved >= SAVED):
        return None
    exceptions = int(inside.could - inside.wrong + total.wrong - inside.wrong)
    return Pattern(text, precision, recall, exceptions, saved)
