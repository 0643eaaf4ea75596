"""Arrays of a kernel held against what a reference makes of its inputs, and of the stages that the kernel gave."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workbench.arrays import as_torch, on_cpu
from workbench.expectation.elements import Comparison, State, compare, kept
from workbench.floats import DTYPES, to_float64, ulp
from workbench.judge.reference.given import Given, is_whole
from workbench.judge.reference.samples import BySamples, Samples, judged_by_samples
from workbench.judge.reference.sharper import MOST, affordable, asked, sharper
from workbench.reference.bound import Budget
from workbench.reference.graph import Contract, Expected, Graph, budgets
from workbench.reference.graph.node import Line

#: budget of a whole number that is known: any other is at least 1 off
APART = 0.25


@dataclass(frozen=True, eq=False)
class Held:
    """One array, held against both."""

    given: Given
    judged_from: tuple[str, ...]  #: the nearest of the given arrays that it is made of
    isolated: Comparison  #: of the stages before it that the kernel gave
    propagated: Comparison  #: of the inputs alone
    open: tuple[Line, ...]  #: lines of the reference that leave elements of the isolated one without a budget
    drawn: BySamples | None  #: what samples decide of the isolated one


def held(graph: Graph, contract: Contract, given: Sequence[Given], *, sharp: bool = True) -> tuple[Held, ...]:
    """Each array under a contract; `sharp`: results in reverse mode, too. A stage that the kernel gave takes the place
    of the reference's in what follows; its whole numbers, such as the places that it chose, everywhere.
    """
    names = [place for one in given for place in one.places]
    dumps = dumps_of(graph, given)
    choices = {place: dumps[place] for one in given if is_whole(one.x.dtype) for place in one.places}
    from_inputs = _expected(graph, contract, choices, names)
    before = {one.name: _behind(graph, one, given) for one in given}
    alone = {place for one in given if not before[one.name] for place in one.places}
    isolated = from_inputs if {*names} == alone else _expected(graph, contract, dumps, names)
    nodes = {i: place for one in given for place, i in zip(one.places, one.nodes, strict=True)}
    samples = [
        Samples(graph, contract, read, [i for i, place in nodes.items() if (place in alone) is by_inputs])
        for by_inputs, read in ((False, dumps), (True, choices))
    ]
    found = []
    for one in given:
        by_inputs = {*one.places} <= alone
        of, known = (from_inputs, choices) if by_inputs else (isolated, dumps)
        own, by = _compared(contract, one, of, samples[by_inputs], known, sharp=sharp and one.result, alone=by_inputs)
        whole = own
        if not by_inputs:
            whole, _ = _compared(contract, one, from_inputs, None, choices, sharp=False, alone=True)
        found.append(Held(one, before[one.name], own, whole, _open(of, one), by))
    return tuple(found)


def dumps_of(graph: Graph, given: Sequence[Given]) -> dict[str, Any]:
    """What was given, as the graph takes it."""
    return {place: _like(graph, x) for one in given for place, x in zip(one.places, one.turns, strict=True)}


def _behind(graph: Graph, one: Given, given: Sequence[Given]) -> tuple[str, ...]:
    """The nearest of the given arrays that one is made of, in order; its own earlier turns among them."""
    nodes = {i: other.name for other in given for i in other.nodes}
    queue, seen, found = [j for i in one.nodes for j in graph.nodes[i].reads], set[int](), set[str]()
    while queue:
        i = queue.pop()
        if i in seen:
            continue
        seen.add(i)
        at = i if i in nodes else graph.again.get(i, i)
        if at in nodes:
            found.add(nodes[at])
        else:
            queue += graph.nodes[i].reads
    return tuple(other.name for other in given if other.name in found)


def _expected(graph: Graph, contract: Contract, dumps: Mapping[str, Any], names: Sequence[str]) -> dict[str, Expected]:
    """As of `budgets`, in NumPy."""
    found = budgets(graph, contract, dumps, names)
    return {name: Expected(_float64(one.value), _as_numpy(one.budget), one.open) for name, one in found.items()}


def _open(expected: Mapping[str, Expected], one: Given) -> tuple[Line, ...]:
    return tuple(dict.fromkeys(line for place in one.places for line in expected[place].open))


def _float64(x: Any) -> np.ndarray:
    return np.asarray(to_float64(_on_cpu(x)))


def _as_numpy(budget: Budget) -> Budget:
    size = budget.size if isinstance(budget.size, float) else _on_cpu(budget.size)
    return Budget(_on_cpu(budget.bound), _on_cpu(budget.statistical), size)


def _on_cpu(x: Any) -> np.ndarray:
    return np.asarray(x) if isinstance(x, np.generic | float) else on_cpu(x)


def _like(graph: Graph, x: np.ndarray) -> Any:
    """An array in the library and on the device of the graph's values."""
    value = next((graph.nodes[i].value for i in graph.inputs.values()), x)
    return x if isinstance(value, np.ndarray) else as_torch(x, "a stage").to(value.device)


@np.errstate(all="ignore")
def _compared(
    contract: Contract,
    one: Given,
    expected: Mapping[str, Expected],
    samples: Samples | None,
    dumps: Mapping[str, Any],
    sharp: bool,
    alone: bool,
) -> tuple[Comparison, BySamples | None]:
    """An array against what is expected of the `dumps`, and what samples decide of it. sharp: also in reverse mode;
    alone: all that it is made of is the reference's own, but for choices.
    """
    value, budget = _joined([expected[place] for place in one.places], one.x.shape)
    whole = is_whole(one.x.dtype)
    # float64 is judged as what a kernel stores in float32; all whole numbers up to 2^53 are held by float64
    dtype = np.dtype(np.float64) if whole else DTYPES["float32"] if one.x.dtype.itemsize == 8 else one.x.dtype
    actual = to_float64(one.x)
    stored: Any = 0.0
    by = None
    if one.narrow and contract.stored.get(one.name) != one.x.dtype.name:
        # what is stored in 16 bits was computed in more: half an ulp of what it is stored as
        stored = ulp(np.where(np.isfinite(actual), actual, value), dtype) / 2
    if whole:
        budget = Budget(np.maximum(budget.bound, APART), np.maximum(budget.statistical, APART), np.inf)
    elif samples is not None:
        budget, by = _sharpened(samples, one, actual, value, budget, stored, dumps, sharp)
    budget = Budget(budget.bound + stored, budget.statistical + stored, budget.size)
    found = compare(actual, one.unwritten, value, budget, dtype)
    nan = np.isnan(value) & ~one.unwritten
    if nan.any() and alone:  # of a NaN that the kernel gave itself nobody knows what follows
        same = nan & np.isnan(actual)
        found.state[nan], found.over_budget[nan] = State.NAN, np.inf
        found.state[same], found.over_budget[same] = State.EXACT, 0.0
    if one.free is not None:
        found.state[one.free], found.over_budget[one.free] = State.ABSENT, np.nan
    return kept(one.x, found), by


def _joined(parts: Sequence[Expected], shape: tuple[int, ...]) -> tuple[np.ndarray, Budget]:
    """Turns along a first axis."""
    if len(parts) == 1:
        value, budget = parts[0].value, parts[0].budget
        size = budget.size if isinstance(budget.size, float) else np.broadcast_to(budget.size, shape)
        bound, likely = (np.broadcast_to(x, shape).astype(np.float64) for x in (budget.bound, budget.statistical))
        return np.array(value), Budget(bound, likely, size)
    values = np.stack([one.value for one in parts])
    bound, likely, size = (
        np.stack([np.broadcast_to(x, shape[1:]) for x in column])
        for column in zip(*((b.bound, b.statistical, b.size) for b in (one.budget for one in parts)), strict=True)
    )
    return values, Budget(bound, likely, size)


def _sharpened(
    samples: Samples,
    one: Given,
    actual: np.ndarray,
    value: np.ndarray,
    budget: Budget,
    stored: Any,
    dumps: Mapping[str, Any],
    sharp: bool,
) -> tuple[Budget, BySamples | None]:
    """The budget, smaller where reverse mode was asked, and drawn where there is none or forward ones are loose."""
    graph, contract = samples.graph, samples.contract
    error = np.maximum(abs(actual - value) - stored, 0.0)

    known, done = np.zeros(value.shape, bool), set[tuple[int, ...]]()
    most_affordable = affordable(graph, one.nodes) if sharp else 0

    def reverse(off: np.ndarray, budget: Budget, most: int) -> tuple[Budget, np.ndarray]:
        bound, likely = budget.bound.copy(), budget.statistical.copy()
        places = [at for at in asked(off, min(most, most_affordable)) if at not in done]
        done.update(places)
        found = sharper(graph, contract, one.places, places, dumps) if places else {}
        for place, (worst, usual) in found.items():
            bound[place], likely[place] = min(bound[place], worst), min(likely[place], usual)
            known[place] = np.isfinite(worst)
        return replace(budget, bound=bound, statistical=likely), known

    dear = 0 < most_affordable < MOST
    return judged_by_samples(samples, one.nodes, error, value, budget, reverse if sharp else None, dear)
