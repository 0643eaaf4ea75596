"""Inputs that expose a lost key. With random scores one key in 1000 weighs less than the rounding of out; here each key
dominates some row.
"""

from collections.abc import Iterator

from workbench.case.case import Case
from workbench.case.distributions import FIXED, combs, needles

#: cases of `needle`, at most: where there are many more keys than queries `comb` has them all in one
NEEDLES = 4


def exposing_lost_keys(case: Case) -> Iterator[Case]:
    """Cases with the shape, mask and scale of `case`: its combs, then its needles, the last keys first. There are no
    needles where head_dim is too small to tell one from other keys.
    """
    found = {"comb": combs(case)}
    if case.head_dim >= FIXED["needle"](case.seqlen_k):
        found["needle"] = min(needles(case), NEEDLES)
    for distribution, count in found.items():
        for seed in range(count):
            other = case.but(distribution=distribution, seed=seed, input_std=1.0)
            if other != case:
                yield other
