"""Cases in which the absence of any one key shows in out, beside a case whose own inputs may hide it: of random
scores a key of a thousand may have less weight in every row that sees it than out loses as it is rounded.
"""

from collections.abc import Iterator

from workbench.case.case import Case
from workbench.case.distributions import FIXED, combs, needles

#: cases of `needle`, at most: where there are many more keys than queries `comb` has them all in one
NEEDLES = 4


def telling(case: Case) -> Iterator[Case]:
    """Those cases, of the shape, the mask and the scale of `case`: its combs, then its needles, the last keys first.
    head_dim may be too small for a needle to be told from other keys.
    """
    found = {"comb": combs(case)}
    if case.head_dim >= FIXED["needle"](case.seqlen_k):
        found["needle"] = min(needles(case), NEEDLES)
    for distribution, count in found.items():
        for seed in range(count):
            other = case.but(distribution=distribution, seed=seed, input_std=1.0)
            if other != case:
                yield other
