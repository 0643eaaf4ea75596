"""In which order a run added up its keys, as far as its errors tell: the tiles, or the split, with which plain
arithmetic makes the errors that it has.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from workbench.case.assumptions import usual
from workbench.case.stages import OUT
from workbench.expectation.expectation import Expectation
from workbench.expectation.observed import Observed
from workbench.explore.laws.run import Rows, Run, elements
from workbench.floats import round_to
from workbench.judge.control import control, has_control
from workbench.refusal import Refusal

#: keys of a tile, and splits of the keys, that are tried
TILES, SPLITS = (16, 32, 64, 128, 256), (2, 3, 4, 8, 16)
#: of the square errors of a run what its order may leave: little more than what casts of out turn over
EXPLAINS = 0.1
AT_ONCE = "all keys at once"


def parting(a: tuple[Run, Rows], b: tuple[Run, Rows]) -> str:
    """What moved the order in which two runs add up the same rows, in words; that none is known where the errors of
    one do not tell.
    """
    one, other = order(*a), order(*b)
    if not one or not other or {*one} & {*other}:
        return "no tile size or split of the keys that was tried explains the difference"
    said = [" or ".join(words) for words in (one, other)]
    return f"errors of the case fit {said[0]}; errors of the other run fit {said[1]}"


def order(run: Run, rows: Rows) -> tuple[str, ...]:
    """The orders that leave next to nothing of the errors of some rows, several where rows are few."""
    if run.large or OUT not in run.trace.stages or run.trace.case.codes is not None:
        return ()
    trace = replace(run.trace, stages={OUT: run.trace.stages[OUT]}, requested=(), rerun=None)
    observed = Observed(trace)
    observed = observed.under(usual(observed.contract))
    if not has_control(observed):
        return ()
    expected = elements(run.trace)[OUT].expected
    own = rows.of(trace.stages[OUT].astype(np.float64) - expected)
    left = {}
    for words, way in _ways(observed):
        try:
            made = control(Expectation(way, {}, statistics=False))[OUT]
        except Refusal:
            continue
        made = made if way.contract.out_dtype == "float32" else round_to(made, way.contract.out_dtype)
        left[words] = float(((own - rows.of(made.astype(np.float64) - expected)) ** 2).sum())
    return tuple(words for words, square in left.items() if square < EXPLAINS * float((own**2).sum()))


def _ways(run: Observed) -> Iterator[tuple[str, Observed]]:
    keys = run.case.seqlen_k
    plain = replace(run.contract, splits=None, split_bounds=None, block_k=None)
    of_case = run.case.but(splits=None, block_k=None)
    yield AT_ONCE, Observed(replace(run.trace, algorithm="flash", case=of_case, contract=plain))
    for tile in TILES:
        if tile < keys:
            yield f"tiles of {tile} keys", run.under(replace(plain, block_k=tile))
    for splits in SPLITS:
        if splits <= keys:
            # of whole tiles, of which each split has one
            case, contract = run.case.but(splits=splits), replace(plain, splits=splits, block_k=-(-keys // splits))
            yield (
                f"the keys split in {splits}",
                Observed(replace(run.trace, algorithm="split_k", case=case, contract=contract)),
            )
