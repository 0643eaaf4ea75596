"""Arrays of a kernel held against what a reference makes of its inputs, and of the stages that the kernel gave."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workbench.arrays import as_those
from workbench.expectation.elements import Comparison, State, compare, kept
from workbench.floats import DTYPES, array_namespace, to_float64, ulp
from workbench.judge.reference.given import Given, is_whole
from workbench.judge.reference.samples import HOPELESS, BySamples, Samples, floored, judged_by_samples
from workbench.judge.reference.sharper import MOST, affordable, asked, sharper
from workbench.reference.bound import Budget
from workbench.reference.graph import Contract, Expected, Graph, budgets
from workbench.reference.graph.device import numpy_of
from workbench.reference.graph.drawn import JUMPS
from workbench.reference.graph.node import Line
from workbench.reference.graph.plan import upstream
from workbench.reference.graph.shapes import spread

#: budget of a whole number that is known: any other is at least 1 off
APART = 0.25
#: arrays of a budget
_PARTS = ("bound", "statistical", "size")


@dataclass(frozen=True, eq=False)
class Held:
    """One array, held against both."""

    given: Given
    judged_from: tuple[str, ...]  #: the nearest of the given arrays that it is made of
    isolated: Comparison  #: of the stages before it that the kernel gave
    propagated: Comparison  #: of the inputs alone
    open: tuple[Line, ...]  #: lines of the reference that leave elements of the isolated one without a budget
    drawn: BySamples | None  #: what samples decide of the isolated one


def held(
    graph: Graph, contract: Contract, given: Sequence[Given], *, sharp: bool = True, trial: bool = False
) -> tuple[Held, ...]:
    """Each array under a contract; `sharp`: results in reverse mode, too; `trial`: as of `Samples`. A stage that the
    kernel gave takes the place of the reference's in what follows; its whole numbers, such as the places that it
    chose, everywhere.
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
        Samples(graph, contract, read, [i for i, place in nodes.items() if (place in alone) is by_inputs], trial)
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


@np.errstate(all="ignore")
def is_hopeless(graph: Graph, contract: Contract, given: Sequence[Given]) -> bool:
    """Whether a few samples show that an array, of the inputs alone, has elements that a contract does not explain.
    Never where the reference chooses by computed values: few samples may turn no choice.
    """
    choices = {place: _like(graph, x) for one in given if is_whole(one.x.dtype)
               for place, x in zip(one.places, one.turns, strict=True)}  # fmt: skip
    some = [one for one in given if not is_whole(one.x.dtype) and not _behind(graph, one, given)]
    nodes = [i for one in some for i in one.nodes]
    if not nodes or any(graph.nodes[i].op in JUMPS for i in upstream(graph, nodes)):
        return False
    found = Samples(graph, contract, choices, nodes).screened()
    for one in some:
        xp = array_namespace(found[one.nodes[0]].value)
        several = len(one.nodes) > 1
        parts = [(found[i].value, floored(found[i])) for i in one.nodes]
        value, deviation = (xp.stack(column) if several else column[0] for column in zip(*parts, strict=True))
        error = abs(to_float64(as_those(one.x, value)) - value) - half_ulp(contract, one, value)
        if bool(xp.any((deviation > 0) & (error > HOPELESS * deviation))):
            return True
    return False


def half_ulp(contract: Contract, one: Given, value: Any) -> Any:
    """How far storing an array in 16 bits may move each element: half an ulp of its dtype. 0 for float32, and for a
    stage that the contract itself rounds. value: what is expected, used where the kernel's element is not finite; of
    NumPy or on a device.
    """
    xp = array_namespace(value)
    if not one.narrow or contract.stored.get(one.name) == one.x.dtype.name:
        return xp.zeros_like(value)
    actual = to_float64(as_those(one.x, value))
    return ulp(xp.where(xp.isfinite(actual), actual, value), one.x.dtype) / 2


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
    """As of `budgets`, in float64."""
    found = budgets(graph, contract, dumps, names)
    return {name: replace(one, value=to_float64(one.value)) for name, one in found.items()}


def _open(expected: Mapping[str, Expected], one: Given) -> tuple[Line, ...]:
    return tuple(dict.fromkeys(line for place in one.places for line in expected[place].open))


def _like(graph: Graph, x: np.ndarray) -> Any:
    """An array in the library and on the device of the graph's values."""
    return as_those(x, next((graph.nodes[i].value for i in graph.inputs.values()), x))


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
    value, budget = _joined([expected[place] for place in one.places])
    xp, whole = array_namespace(value), is_whole(one.x.dtype)
    # float64 is judged as what a kernel stores in float32; all whole numbers up to 2^53 are held by float64
    dtype = np.dtype(np.float64) if whole else DTYPES["float32"] if one.x.dtype.itemsize == 8 else one.x.dtype
    actual, unwritten = (as_those(x, value) for x in (one.x, one.unwritten))
    actual = to_float64(actual)
    stored, by = half_ulp(contract, one, value), None
    if whole:
        budget = Budget(xp.clip(budget.bound, APART), xp.clip(budget.statistical, APART), np.inf)
    elif samples is not None:
        budget, by = _sharpened(samples, one, actual, value, budget, stored, dumps, sharp)
    budget = Budget(budget.bound + stored, budget.statistical + stored, budget.size)
    found = compare(actual, unwritten, value, budget, dtype)
    nan = xp.isnan(value) & ~unwritten
    if alone and bool(xp.any(nan)):  # of a NaN that the kernel gave itself nobody knows what follows
        same = nan & xp.isnan(actual)
        found.state[nan], found.over_budget[nan] = int(State.NAN), np.inf
        found.state[same], found.over_budget[same] = int(State.EXACT), 0.0
    if one.free is not None:
        free = as_those(one.free, value)
        found.state[free], found.over_budget[free] = int(State.ABSENT), np.nan
    return kept(one.x, found), by


def _joined(parts: Sequence[Expected]) -> tuple[Any, Budget]:
    """Turns along a first axis."""
    xp = array_namespace(parts[0].value)
    whole = [one.budget for one in parts]
    columns = [[one.value for one in parts], *([getattr(one, part) for one in whole] for part in _PARTS)]
    if isinstance(whole[0].size, float) and len(parts) == 1:
        columns.pop()
    spread_ = [[spread(x, one.value) for x, one in zip(column, parts, strict=True)] for column in columns]
    value, *bounds = (xp.stack(column) if len(parts) > 1 else xp.asarray(column[0], copy=True) for column in spread_)
    return value, Budget(bounds[0], bounds[1], bounds[2] if len(bounds) == 3 else np.inf)


def _sharpened(
    samples: Samples,
    one: Given,
    actual: Any,
    value: Any,
    budget: Budget,
    stored: Any,
    dumps: Mapping[str, Any],
    sharp: bool,
) -> tuple[Budget, BySamples | None]:
    """The budget, smaller where reverse mode was asked, and drawn where there is none or forward ones are loose."""
    graph, contract = samples.graph, samples.contract
    xp = array_namespace(value)
    error = xp.clip(abs(actual - value) - stored, 0.0)

    known, done = xp.zeros_like(value, dtype=xp.bool), set[tuple[int, ...]]()
    most_affordable = affordable(graph, one.nodes) if sharp else 0

    def reverse(off: Any, budget: Budget, most: int) -> tuple[Budget, Any]:
        bound, likely = (xp.asarray(x, copy=True) for x in (budget.bound, budget.statistical))
        places = [at for at in asked(numpy_of(off), min(most, most_affordable)) if at not in done]
        done.update(places)
        found = sharper(graph, contract, one.places, places, dumps) if places else {}
        for place, (worst, usual) in found.items():
            bound[place], likely[place] = (
                min(float(bound[place]), worst), min(float(likely[place]), usual)
            )  # fmt: skip
            known[place] = bool(np.isfinite(worst))
        return replace(budget, bound=bound, statistical=likely), known

    dear = 0 < most_affordable < MOST
    return judged_by_samples(samples, one.nodes, error, value, budget, reverse if sharp else None, dear)
