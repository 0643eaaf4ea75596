"""Keys that no query of a part sees: where nothing but results is known, neither they nor their budgets look at them.

Half of the work of a causal trace, and nearly all of one with a narrow window.
"""

from collections.abc import Callable, Mapping

import numpy as np

from workbench.arrays import in_float64
from workbench.case.box import Box
from workbench.case.case import Case
from workbench.expectation.observed import Observed
from workbench.floats import to_float64
from workbench.reference.problem import Cut

#: NumPy's pairwise sum has 8 interleaved accumulators in a block of 128: cut at a multiple of 8, a row of at most 128
#: keys has the same bits, and a longer one is summed in another order
STEP = 8
#: what a part of a trace has left of its keys; None: all
Cuts = Callable[[Box], Cut | None]


def cuts(run: Observed, device: str) -> Cuts | None:
    """What parts of a run are cut to, on `device`; None of a run whose parts need all keys.

    Those are traces with other stages than results; with a bias, ALiBi, a score_mod or dropout; with inputs that are
    not finite or not known exactly; and of kernels whose tiles are known.
    """
    trace, case, contract = run.trace, run.case, run.contract
    changed = case.score_mod is not None or case.slopes is not None or "bias" in trace.inputs or trace.input_errors
    beside = changed or case.dropout_p is not None or trace.requested
    alone = all(run.known[name].result for name in trace.stages)
    if not alone or beside or contract.block_k is not None or contract.splits is not None:
        return None
    k, v = trace.inputs["k"], trace.inputs["v"]
    largest_v, longest_k = np.empty((*v.shape[:2], 1, v.shape[-1])), np.empty(k.shape[:2])
    for head in np.ndindex(k.shape[:2]):  # float64 of one at a time
        of_k, of_v = to_float64(k[head]), to_float64(v[head])
        if not (np.isfinite(of_k).all() and np.isfinite(of_v).all()):
            return None
        largest_v[head] = abs(of_v).max(axis=0)
        longest_k[head] = np.sqrt((of_k * of_k).sum(axis=-1)).max()

    def of(part: Box) -> Cut | None:
        # a whole head is small, and is computed as it always was
        if part.edges()["q"] == (0, case.seqlen_q):
            return None
        first, last = _seen(part, case, trace.inputs)
        left = slice(first // STEP * STEP, min(-(-last // STEP) * STEP, case.seqlen_k))
        if left == slice(0, case.seqlen_k):
            return None
        kv = part.of_kv(case)
        whole = (in_float64(x[kv.b, kv.h], device) for x in (largest_v, longest_k))
        return Cut(left, case.seqlen_k, *whole)

    return of


def _seen(part: Box, case: Case, inputs: Mapping[str, np.ndarray]) -> tuple[int, int]:
    """The first key that a query of a part sees, and the one behind the last."""
    if isinstance(part.q, slice) and "mask" not in inputs and not case.ragged:
        # windows of queries move by a key each: of all keys in between one sees each
        rows = range(case.seqlen_q)[part.q]
        ends = case.mask(np.array([rows[0], rows[-1]]))
        if ends.any(axis=1).all():
            return int(ends[0].argmax()), case.seqlen_k - int(ends[1][::-1].argmax())
    (seen,) = np.nonzero(part.visible(case, inputs).reshape(-1, case.seqlen_k).any(axis=0))
    return (int(seen[0]), int(seen[-1]) + 1) if seen.size else (0, 1)
