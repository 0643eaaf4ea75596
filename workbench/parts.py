"""Every stage of a trace compared, part by part: the parts of a row's arithmetic stay in a processor's cache, run on
several threads, and need no more memory than they have.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce
from operator import add

import numpy as np

from workbench.arrays import in_float64, module
from workbench.budget import Budget, budgets
from workbench.comparison import Comparison, Elements, Found, Summary, compare, summary
from workbench.contract import Contract
from workbench.expectation import SCORE_UNITS, Expectation, Part, in_bool, readable
from workbench.refusal import Refusal, Unavailable
from workbench.stages import ALGORITHMS, INPUTS, nearest_dumped
from workbench.trace import Trace, unwritten

#: elements of the dumped stages beyond which a trace is judged on a GPU, where there is one
LARGE = 2**26
#: elements beyond which they are not kept, but computed again when one is asked for: 25 bytes each
KEPT = 2**22
#: scores of one part: 2 MB in float64, which a core's cache holds; on a GPU 1 GB
PART_ON_CPU, PART_ON_GPU = 2**18, 2**27
#: elements that are compared at once: 256 KB in float64, of which some ten arrays fit into a core's second cache
PIECE = 2**15
DEVICES = ("auto", "cpu", "cuda")


def comparisons(
    trace: Trace, names: Sequence[str], device: str
) -> dict[str, tuple[Comparison | None, Comparison | None]]:
    """The isolated and the propagated comparison of each dumped stage of `names`.

    Isolated: against what the stage should have made of its own inputs, the kernel's dumped ones; None where no
    ancestor but q, k and v was dumped. Propagated: against q, k and v; None where these do not determine the stage. A
    stage that reads q, k and v alone has one comparison for both.
    """
    dumped = readable(trace)
    # both comparisons of a stage without dumped ancestors are the same
    both = [name for name in names if not nearest_dumped(trace.algorithm, name, dumped)]
    apart = [name for name in names if name not in both]
    isolated = _judged(trace, dumped, [*both, *apart], device)
    # these tell victims, of which only the worst case is asked
    propagated = _judged(trace, {}, [name for name in apart if splits_known(trace, name)], device, statistics=False)
    for name in both:
        direct = set(ALGORITHMS[trace.algorithm][name].reads) <= set(INPUTS)
        if splits_known(trace, name) or not direct:
            propagated[name] = isolated[name]
        if not direct:
            del isolated[name]
    return {name: (isolated.get(name), propagated.get(name)) for name in names}


def _judged(
    trace: Trace, dumped: Mapping[str, np.ndarray], names: Sequence[str], device: str, statistics: bool = True
) -> dict[str, Comparison]:
    """The comparison of each stage of `names` with what it should be given the `dumped` stages."""
    if not names:
        return {}
    kept = sum(trace.stages[name].size for name in names) <= KEPT
    stores = {name: _store(trace.stages[name]) for name in names} if kept else {}
    found = _over_parts(trace, dumped, names, device, statistics, stores)

    def load(name: str) -> Elements:
        if kept:
            return stores[name]
        store = {name: _store(trace.stages[name])}
        _over_parts(trace, dumped, [name], device, statistics, store)
        return store[name]

    return {name: Comparison(found[name], partial(load, name)) for name in names}


def _over_parts(
    trace: Trace,
    dumped: Mapping[str, np.ndarray],
    names: Sequence[str],
    device: str,
    statistics: bool,
    stores: Mapping[str, Elements],
) -> dict[str, Summary]:
    """The summary of each stage of `names`; elements go into `stores` where there is one."""

    def one(part: Part) -> dict[str, Summary]:
        return _compared(Expectation(trace, dumped, part, device, statistics), names, stores)

    parts = list(_parts(trace, device))
    if device == "cpu" and len(parts) > 1:
        from threadpoolctl import threadpool_limits

        with threadpool_limits(1, "blas"), ThreadPoolExecutor(min(len(parts), processors())) as pool:
            found = list(pool.map(one, parts))
    else:
        found = [one(part) for part in parts]
    return {name: reduce(add, (summaries[name] for summaries in found)) for name in names}


def placed(trace: Trace, device: str) -> str:
    """Where to judge `trace`: cpu or cuda."""
    if device not in DEVICES:
        raise Refusal(f"device is one of {', '.join(DEVICES)}; got {device!r}")
    if device == "cuda" and not module("torch").cuda.is_available():
        raise Unavailable("device cuda needs an NVIDIA GPU that torch can use; none was found")
    if device != "auto":
        return device
    if sum(stage.size for stage in trace.stages.values()) <= LARGE:
        return "cpu"
    try:
        return "cuda" if module("torch").cuda.is_available() else "cpu"
    except Unavailable:
        return "cpu"


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def splits_known(trace: Trace, name: str) -> bool:
    """Whether q, k and v determine the stage: per-split values need the keys of each split."""
    return trace.contract.splits is not None or "s" not in ALGORITHMS[trace.algorithm][name].axes


def _parts(trace: Trace, device: str) -> Iterator[Part]:
    """The whole where it is small, else queries of one head."""
    case = trace.case
    limit = PART_ON_CPU if device == "cpu" else PART_ON_GPU
    if case.batch * case.heads * case.seqlen_q * case.seqlen_k <= limit:
        yield Part(slice(0, case.batch), slice(0, case.heads), slice(0, case.seqlen_q))
        return
    rows = max(1, limit // case.seqlen_k)
    for b in range(case.batch):
        for h in range(case.heads):
            for first in range(0, case.seqlen_q, rows):
                yield Part(slice(b, b + 1), slice(h, h + 1), slice(first, min(first + rows, case.seqlen_q)))


def _store(stage: np.ndarray) -> Elements:
    """Room for every element of a comparison of `stage`."""
    dims = stage.shape
    wide, narrow = (lambda: np.empty(dims)), (lambda: np.empty(dims, np.float32))
    return Elements(stage, wide(), wide(), narrow(), narrow(), np.empty(dims, np.uint8))


def _compared(e: Expectation, names: Sequence[str], stores: Mapping[str, Elements]) -> dict[str, Summary]:
    """The summary of each stage of `names` over a part; its elements go into `stores` where there is one."""
    bounds = budgets(e.solved, names)
    summaries = {}
    for name in names:
        axes, dtype = e.axes(name), e.trace.stages[name].dtype
        pieces = []
        for rows in _pieces(e, name):
            found = _held(e, name, bounds[name], rows)
            piece = e.part.narrowed(rows)
            if name in stores:
                _keep(found, stores[name], piece, axes)
            offset = tuple(getattr(piece, axis).start if axis in "bhq" else 0 for axis in axes)
            pieces.append(summary(found, dtype, offset))
        summaries[name] = reduce(add, pieces)
    return summaries


def _pieces(e: Expectation, name: str) -> Iterator[slice]:
    """Queries of a part, as many at once as a processor's cache holds with all that comparing them takes."""
    length = len(range(*e.part.q.indices(e.trace.case.seqlen_q))) if isinstance(e.part.q, slice) else e.part.q.size
    rows = length if e.device != "cpu" else max(1, PIECE * length // e.computed[name].size)
    for first in range(0, length, rows):
        yield slice(first, min(first + rows, length))


def compared(e: Expectation, names: Sequence[str]) -> Iterator[tuple[str, Found]]:
    """Each stage of `names` over a part of its trace, held against its expectation within its budget."""
    bounds = budgets(e.solved, names)
    for name in names:
        yield name, _held(e, name, bounds[name], slice(None))


def _held(e: Expectation, name: str, budget: Budget, rows: slice) -> Found:
    """Some queries of a part of a stage, held against their expectation within their budget."""
    cut = Part(q=rows)
    axes, dumped = e.axes(name), e.trace.stages[name]
    stage = cut.of(e.part.of(dumped, axes), axes)
    narrow = mapped(budget, lambda array: cut.of(array, axes))
    expected, stored = _as_stored(e, name, cut.of(e.computed[name], axes), narrow)
    actual = in_float64(stage, e.device)
    blank = in_bool(unwritten(stage), e.device)
    empty = cut.of(e.computed["lse"], "bhq") == -np.inf if name in ("out", "lse") else None
    actual, expected = _conventions(e.trace.contract, name, dumped.dtype, actual, expected, empty)
    return compare(actual, blank, expected, stored, dumped.dtype, e.trace.contract.saturates)


def _keep(found: Found, elements: Elements, part: Part, axes: str) -> None:
    for name in ("expected", "budget", "statistical", "over_budget", "state"):
        values = getattr(found, name)
        target = part.of(getattr(elements, name), axes)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            target[...] = values if isinstance(values, np.ndarray) else values.cpu().numpy()


def mapped(budget: Budget, change: Callable[[np.ndarray], np.ndarray]) -> Budget:
    """The budget with each array changed; one array that serves twice still does."""
    bound = change(budget.bound)
    statistical = bound if budget.statistical is budget.bound else change(budget.statistical)
    return Budget(bound, statistical, change(budget.size))


def _as_stored(e: Expectation, name: str, expected: np.ndarray, budget: Budget) -> tuple[np.ndarray, Budget]:
    """Expectation and budget in the units in which the kernel stores the stage."""
    if name not in SCORE_UNITS or not e.trace.contract.base2:
        return expected, budget
    log2e = float(np.log2(np.e))
    return expected * log2e, mapped(budget, lambda array: array * log2e)


def _conventions(
    contract: Contract, name: str, dtype: np.dtype, actual: np.ndarray, expected: np.ndarray, empty: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Both with what the contract says of rows without keys (`empty`) and of its sentinel for -inf."""
    if name in SCORE_UNITS and np.isfinite(contract.mask_sentinel):
        actual[actual <= float(np.asarray(contract.mask_sentinel).astype(dtype))] = -np.inf
    declared = {"out": (contract.empty_out, 0.0), "lse": (contract.empty_lse, -np.inf)}
    if name not in declared or empty is None:
        return actual, expected
    value, usual = declared[name]
    if value == usual:
        return actual, expected
    if np.isnan(value):  # NaN equals nothing: what is NaN as declared counts as right, all else as NaN
        actual[empty] = np.where(np.isnan(actual[empty]), usual, np.nan)
    else:
        expected = expected + 0.0
        expected[empty] = value
    return actual, expected
