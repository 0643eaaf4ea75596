"""Every stage of a trace compared, part by part: the parts of a row's arithmetic stay in a processor's cache, run on
several threads, and need no more memory than they have.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce
from operator import add
from typing import TypeVar

import numpy as np

from workbench.arrays import module
from workbench.case.box import Box
from workbench.case.case import Case
from workbench.case.contract import Contract
from workbench.case.stages import INPUTS
from workbench.expectation.compare import failing, summaries
from workbench.expectation.cut import cuts
from workbench.expectation.elements import Comparison, Elements, State, Summary
from workbench.expectation.expectation import Expectation
from workbench.expectation.observed import Observed
from workbench.machine import keep_heap, one_blas_thread, processors
from workbench.progress import step
from workbench.reference.dataflow import direct, nearest_dumped
from workbench.refusal import Refusal, Unavailable

#: scores and elements of the dumped stages, together, beyond which a trace is judged on a GPU, where there is one
LARGE = 2**26
#: elements of all comparisons beyond which they are not kept, but computed again when one is asked for: 25 bytes each
KEPT = 2**24
#: scores of all parts that are compared at once: 16 MB in float64, with which all their arrays are some 600 MB
AT_ONCE_ON_CPU = 2**21
#: threads that compare parts, at most: more of them wait for the interpreter's lock
THREADS = 4
#: on a GPU as many as fit, at 640 bytes each (head_dim 128 in tiles of 32 keys) and some to spare; more than this many
#: save little time
PART_ON_GPU, BYTES_OF_SCORE = 2**26, 1000
#: parts of a head that are cut to the keys that they see: of a causal one (1 + 1 / CUTS) / 2 is left; with fewer
#: queries than these the calls cost as much as the arithmetic saves
CUTS, FEWEST_QUERIES = 8, 128
DEVICES = ("auto", "cpu", "cuda")

Found = TypeVar("Found")
#: what else is made of a part: of its expectation from the dumped stages, and of that from q, k and v alone
Also = Callable[[Expectation, Expectation], None]


def comparisons(
    run: Observed, names: Sequence[str], device: str, also: Also | None = None
) -> dict[str, tuple[Comparison | None, Comparison | None]]:
    """The isolated and the propagated comparison of each dumped stage of `names`.

    Isolated: against what the stage should have made of its own inputs, the kernel's dumped ones; None where no
    ancestor but q, k and v was dumped. Propagated: against q, k and v; None where these do not determine the stage. A
    stage that reads q, k and v alone has one comparison for both.

    `also` is called with each part, on several threads.
    """
    dumped, steps = run.readable, run.table
    # both comparisons of a stage without dumped ancestors are the same
    both = [name for name in names if not nearest_dumped(steps, name, dumped)]
    apart = [name for name in names if name not in both]
    from_inputs = [name for name in apart if determined(run, name)]
    isolated, propagated = _judged(run, ([*both, *apart], from_inputs), device, also)
    for name in both:
        of_inputs = set(direct(steps, name)) <= set(INPUTS)
        if determined(run, name) or not of_inputs:
            propagated[name] = isolated[name]
        if not of_inputs:
            del isolated[name]
    return {name: (isolated.get(name), propagated.get(name)) for name in names}


def _judged(
    run: Observed, names: tuple[Sequence[str], Sequence[str]], device: str, also: Also | None
) -> tuple[dict[str, Comparison], dict[str, Comparison]]:
    """The comparisons of the stages `names`, first with what they should be given the dumped stages, then with what
    they should be given q, k and v.
    """
    kept = sum(run.dumped[name].size for some in names for name in some) <= KEPT
    stores = tuple({name: _store(run, name) for name in some} if kept else {} for some in names)
    found = _summaries(run, names, device, stores, also)

    def load(which: int, name: str) -> Elements:
        if kept:
            return stores[which][name]
        store = {name: _store(run, name)}
        alone: tuple[Sequence[str], Sequence[str]] = ((), (name,)) if which else ((name,), ())
        _summaries(run, alone, device, ({}, store) if which else (store, {}))
        return store[name]

    first, second = (
        {name: Comparison(found[which][name], partial(load, which, name)) for name in names[which]} for which in (0, 1)
    )
    return first, second


def _summaries(
    run: Observed,
    names: tuple[Sequence[str], Sequence[str]],
    device: str,
    stores: Sequence[Mapping[str, Elements]],
    also: Also | None = None,
) -> tuple[dict[str, Summary], dict[str, Summary]]:
    """The summaries of the stages `names`, as in `_judged`; elements go into `stores` where there is one."""
    cut = cuts(run, device)

    def one(part: Box) -> tuple[dict[str, Summary], dict[str, Summary]]:
        here = tuple([name for name in some if _any_given(run, name, part)] for some in names)
        isolated = Expectation(run, run.readable, part, device, cut=None if cut is None else cut(part))
        first = summaries(isolated, here[0], stores[0], isolated.given) if here[0] else {}
        # these tell victims, of which only the worst case is asked
        propagated = Expectation(run, {}, part, device, statistics=False)
        second = summaries(propagated, here[1], stores[1], isolated.given) if here[1] else {}
        if also is not None:
            also(isolated, propagated)
        return first, second

    found = over_parts(run, device, one, f"judge {run.trace.target}", cut is not None)
    return together([first for first, _ in found]), together([second for _, second in found])


def failing_under(isolated: Expectation, contract: Contract, names: Sequence[str]) -> dict[str, Summary]:
    """The decisive comparisons of those stages of `names` of which something is outside its budget in a part, of a
    kernel with another contract.
    """
    here = [name for name in names if _any_given(isolated.run, name, isolated.part)]
    return failing(isolated.under(contract), here, isolated.given) if here else {}


def failing_of(run: Observed, names: Sequence[str], device: str) -> dict[str, Summary]:
    """The decisive comparisons of those dumped stages of `names` of which something is outside its budget."""
    cut = cuts(run, device)

    def one(part: Box) -> dict[str, Summary]:
        here = [name for name in names if _any_given(run, name, part)]
        e = Expectation(run, run.readable, part, device, statistics=False, cut=None if cut is None else cut(part))
        return failing(e, here, e.given) if here else {}

    return together(over_parts(run, device, one, f"judge {run.trace.target} as another kernel", cut is not None))


def together(parts: Sequence[Mapping[str, Summary]]) -> dict[str, Summary]:
    """What the summaries of parts, of which each may have any of the stages, add up to."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: reduce(add, (part[name] for part in parts if name in part)) for name in names}


def over_parts(run: Observed, device: str, one: Callable[[Box], Found], what: str, cut: bool = False) -> list[Found]:
    """What `one` makes of every part of a run, in order, on several threads where `device` is the cpu; `what` names
    it where progress is shown. `cut`: parts look at the keys alone that their queries see.
    """
    parts = list(parts_of(run.case, device, cut))
    with one_blas_thread():
        if len(parts) == 1:
            return [one(parts[0])]
        keep_heap()
        found: list[Found] = []
        with ThreadPoolExecutor(min(len(parts), processors(), THREADS)) as pool, step(what) as tick:
            for of_part in pool.map(one, parts) if device == "cpu" else map(one, parts):
                found.append(of_part)
                tick(f"{len(found)} of {len(parts)} parts")
    return found


def _any_given(run: Observed, name: str, part: Box) -> bool:
    """Whether an element of the stage in `part` was given; none may have been of a stage of which only some were."""
    sparse = run.trace.sparse.get(name)
    return sparse is None or not np.isnan(part.of(sparse, run.axes(name))).all()


def placed(run: Observed, device: str) -> str:
    """Where to judge a run: cpu or cuda."""
    if device not in DEVICES:
        raise Refusal(f"device must be one of {', '.join(DEVICES)}; got {device!r}")
    if device == "cuda" and not module("torch").cuda.is_available():
        raise Unavailable("device cuda needs an NVIDIA GPU that torch can use; none was found")
    if device != "auto":
        return device
    # scores are computed whatever was dumped: all the work where a kernel gives its output alone
    if run.case.score_count + sum(stage.size for stage in run.dumped.values()) <= LARGE:
        return "cpu"
    try:
        return "cuda" if module("torch").cuda.is_available() else "cpu"
    except Unavailable:
        return "cpu"


def judged_at(run: Observed, device: str, judge: Callable[[str], Found]) -> Found:
    """What `judge` makes of a run on the device where it is placed; on the cpu where nobody asked for the GPU, and it
    fails or is full: processes that share one may each find its memory free.
    """
    where = placed(run, device)
    if where == device or where == "cpu":
        return judge(where)
    torch = module("torch")
    try:
        return judge(where)
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        return judge("cpu")


def determined(run: Observed, name: str) -> bool:
    """Whether q, k and v determine the stage: per-split values need the keys of each split, and what is merged of
    maxima that the kernel may choose needs these.
    """
    chosen = run.contract.row_max != "running" and not run.contract.stores_lse
    if run.known[name].group == "merge" and chosen and not run.free_maxima:
        return False
    return run.split_keys_known or "s" not in run.axes(name)


def parts_of(case: Case, device: str, cut: bool = False) -> Iterator[Box]:
    """The whole where it is small, else some heads, else queries of one head; of parts that are `cut` on the cpu always
    these.
    """
    limit = AT_ONCE_ON_CPU // min(processors(), THREADS)
    if device == "cuda":
        cuda = module("torch").cuda
        # torch keeps what it freed for itself
        free = cuda.mem_get_info()[0] + cuda.memory_reserved() - cuda.memory_allocated()
        limit = min(PART_ON_GPU, free // BYTES_OF_SCORE)
    group = case.heads // case.kv_heads
    heads = limit // (case.seqlen_q * case.seqlen_k)
    if heads >= case.batch * case.heads:
        yield Box(slice(0, case.batch), slice(0, case.heads), slice(0, case.seqlen_q))
        return
    heads = max(1, heads // group * group)  # whole groups, which share their keys, or one head
    rows = max(1, min(limit // case.seqlen_k, case.seqlen_q))
    if cut and device == "cpu":
        heads, rows = 1, min(rows, max(FEWEST_QUERIES, -(-case.seqlen_q // CUTS)))
    for b in range(case.batch):
        for h in range(0, case.heads, heads):
            for first in range(0, case.seqlen_q, rows):
                last = min(first + rows, case.seqlen_q)
                yield Box(slice(b, b + 1), slice(h, min(h + heads, case.heads)), slice(first, last))


def _store(run: Observed, name: str) -> Elements:
    """Room for every element of a comparison of a stage; as if none were given where only some are."""
    stage = run.dumped[name]
    dims = stage.shape
    wide, narrow = (lambda: np.empty(dims)), (lambda: np.empty(dims, np.float32))
    room = Elements(stage, wide(), wide(), narrow(), narrow(), np.empty(dims, np.uint8))
    if name in run.trace.sparse:
        for array in (room.expected, room.budget, room.statistical, room.over_budget):
            array.fill(np.nan)
        room.state.fill(State.ABSENT)
    return room
