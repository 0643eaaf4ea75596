"""Two symptoms of one run, searched apart: elements that are NaN, and wrong numbers beside them.

A kernel with two faults, one of which makes NaN in some rows, is reproduced by neither alone. A fault of numbers is
looked for where nothing is NaN, one of NaN by where it is; what comes nearest of both is held against the whole.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import product

import numpy as np

from workbench.judge.explain.coded import Coded
from workbench.judge.explain.fit import NOTHING, UNEXPLAINED, Fit, fit, unexplained
from workbench.judge.explain.hypothesis import Hypothesis, together
from workbench.judge.explain.scene import Arrays, Scene
from workbench.work import TRIALS_OF_FIT, Work

Wrong = Mapping[str, np.ndarray]
#: hypotheses of each symptom that are held against the whole with all of the other's
KEPT = 8


def mixed(scene: Scene | Coded, wrong: Wrong) -> bool:
    """Whether of what is wrong some is NaN, and some a number."""
    nan = [np.isnan(scene.actual[name][mask]) for name, mask in wrong.items()]
    return any(x.any() for x in nan) and not all(x.all() for x in nan)


@np.errstate(all="ignore")
def apart(
    scene: Scene | Coded,
    wrong: Wrong,
    work: Work,
    among: Sequence[Hypothesis],
    of_nan: Callable[[Hypothesis], bool],
) -> tuple[list[Fit], int]:
    """Pairs of hypotheses, one for the NaN of what is wrong and one for the numbers, that reproduce it together, the
    nearest first; and how many hypotheses were looked at until `work` was over. `of_nan`: which may be the first.
    """
    small = scene.group(wrong) if isinstance(scene, Scene) else None
    nan: dict[bytes, Hypothesis] = {}
    numbers: list[tuple[float, int, Hypothesis]] = []
    tried = 0
    for order, one in enumerate(among):
        if work.over:
            break
        tried += 1
        here = scene if small is None or one.across else small
        mine = wrong if here is scene else here.wrong
        names = [name for name in here.touched(one) if name in mine]
        work.take(here.trials if names else 0.0)
        found = here.predicted(one, names) if names else None
        if found is None:
            continue
        if _tells_nan(here, mine, found):
            if of_nan(one):
                nan.setdefault(b"".join(x.tobytes() for x in found.values()), one)
        elif (left := _left_of_numbers(here, mine, found)) < 2 * UNEXPLAINED:
            numbers.append((left, order, one))
    # of equals, which differ by how a processor adds, the first
    numbers.sort(key=lambda x: (max(x[0], NOTHING), x[1]))
    pairs = [*product([x for *_, x in numbers[:KEPT]], [*nan.values()][:KEPT])]
    work.take(TRIALS_OF_FIT * scene.trials * len(pairs))
    fits = [x for a, b in pairs if (x := fit(scene, together(a, b), wrong)) is not None]
    best = min((one.residual for one in fits), default=0.0)
    return sorted(fits, key=lambda x: (-len(x.stages), x.residual > 4 * best + 0.02)), tried


def _tells_nan(scene: Scene | Coded, wrong: Wrong, found: Arrays) -> bool:
    """Whether NaN was predicted where it is, and nowhere else, in all that has some."""
    told = {name: np.isnan(scene.actual[name]) for name in wrong}
    mine = {name: np.isnan(found.get(name, scene.expected[name])) for name in wrong}
    return any(x.any() for x in told.values()) and all(np.array_equal(mine[name], told[name]) for name in wrong)


def _left_of_numbers(scene: Scene | Coded, wrong: Wrong, found: Arrays) -> float:
    """Share of the error of wrong numbers that a prediction leaves, of the stage that it explains worst."""
    masks = {name: wrong[name] & ~np.isnan(scene.actual[name]) for name in found}
    return max((unexplained(scene, name, found[name], mask) for name, mask in masks.items() if mask.any()), default=1.0)
