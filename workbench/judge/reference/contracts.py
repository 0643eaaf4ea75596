"""Under which contract a kernel is right that declares nothing: the strict one, what kernels on its inputs usually do,
each part of it before the whole, or one that only a declaration makes right.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from workbench.judge.reference.explained import by_tf32
from workbench.judge.reference.given import Given, is_whole
from workbench.judge.reference.held import dumps_of, half_ulp, is_hopeless
from workbench.judge.reference.samples import Samples
from workbench.judge.reference.sharper import is_large
from workbench.judge.reference.stages import is_broken, under, with_decisions
from workbench.judge.reference.weaker import NARROW, weaker
from workbench.judge.sensitivity import EXCUSED
from workbench.judge.stage import ASSUMPTION, EVIDENCE, IfDeclared, StageDiff
from workbench.reference.graph import Contract, Graph
from workbench.reference.graph.contract import CASTS, usual
from workbench.reference.graph.plan import upstream

#: share of its statistical budget that an error of operands in fewer bits takes at least, in the median: TF32 in an
#: attention of 64 to 256 keys leaves 0.002 to 0.01; 1.4427 for log2(e), which is no such error, 3e-5; and one wrong
#: element among right ones, or a row of them, nothing
FITS = 2.0**-11
#: share of the errors that remains at most where a cast is predicted
PREDICTED = 0.5
#: what a declaration that nobody made says of errors: it allows as much; they are as large as what it loses; it
#: predicts them; and kernels are known that do it unsaid, with such errors
POOR, LARGE, GONE, KNOWN = range(4)


#: times its budget that a product in TF32 may be off: two operands that are cut off lose 2^-10 each, float32 2^-24
TF32 = 2.0**15
#: functions that libraries approximate unsaid: torch's gelu on a CPU
UNSAID = {"erf"}
#: declarations of roundings that samples know: of operands after a scale, and of results
CHANCE = ("operands=scaled-", "round=")


#: unit roundoffs u of its largest element that another formula of a gradient may leave in any. Of a sigmoid s in
#: s (1 - s), at most 1/4: s is an ulp off, 2 u, and 1 - s is rounded by u, 12 u of 1/4; its products add 2 u of it
FORMULA = 14


class Beyond(NamedTuple):
    """What the usual contract of 16-bit inputs allows of a stage, and float32 does not."""

    elements: int
    over_budget: float  #: of the worst, under the strict contract
    place: tuple[int, ...]  #: its index


@dataclass(frozen=True, eq=False)
class Judged:
    """The stages under the contract that decides."""

    contract: Contract
    stages: tuple[StageDiff, ...]
    words: str  #: of the contract, as --contract takes them
    beyond_strict: Mapping[str, Beyond]


def judged(graph: Graph, given: Sequence[Given], declared: Contract | None, dtype: str, gpu: bool = False) -> Judged:
    """The stages under the declared contract; where none is, the first under which all are right of: the strict one of
    float32, the usual one of inputs of `dtype`, and that with stages stored as they were given. Where none is right:
    under the one that leaves the fewest elements wrong, and what would excuse a wrong stage is said with it. gpu:
    whether a GPU made the arrays, where products of float32 are in TF32 unless a kernel asks for more.
    """
    if declared is not None:
        stages = with_decisions(graph, declared, given, under(graph, declared, given))
        return Judged(declared, stages, words_of(declared, usual("float32")), {})
    strict, large = Contract(), is_large(graph)
    first = stages = under(graph, strict, given, trial=large)
    contract, hopeless = strict, list[Contract]()
    for other in undeclared(graph, given, dtype):
        if _right(stages):
            break
        if large and is_hopeless(graph, other, given):
            hopeless.append(other)
            continue
        tried = under(graph, other, given, trial=large)
        if _right(tried) or _outside(tried) < _outside(stages):
            contract, stages = other, tried
    if large and not _right(stages):
        for other in hopeless:
            tried = under(graph, other, given, trial=True)
            if _right(tried) or _outside(tried) < _outside(stages):
                contract, stages = other, tried
        stages = stages if _right(stages) else under(graph, contract, given)
    beyond = {} if contract is strict else _beyond(first, stages)
    stages = tuple(_doubted(stage, beyond) for stage in stages)
    if not _right(stages):
        stages = with_decisions(graph, contract, given, _with_excuses(graph, given, contract, stages, dtype, gpu))
    return Judged(contract, stages, words_of(contract), beyond)


def words_of(contract: Contract, beyond: Contract | None = None) -> str:
    """A contract as --contract takes it; what it says beyond another, the strict one where none is said."""
    strict, found = beyond or Contract(), []
    for name in ("operands", "accumulate", "exp"):
        if getattr(contract, name) != getattr(strict, name):
            found.append(f"{name}={getattr(contract, name)}")
    if contract.stored:
        found.append("stored=" + "+".join(f"{stage}:{dtype}" for stage, dtype in contract.stored.items()))
    for name in ("exp_ulps", "division"):
        if getattr(contract, name) != getattr(strict, name):
            found.append(f"{name}={getattr(contract, name):g}")
    if contract.fast:
        found.append(f"fast={'+'.join(contract.fast)}")
    if contract.round:
        found.append(f"round={contract.round}")
    return ",".join(found)


def undeclared(graph: Graph, given: Sequence[Given], dtype: str) -> Iterator[Contract]:
    """What needs no declaration, beside the strict contract."""
    base = usual(dtype)
    yield replace(Contract(), exp=base.exp)
    if dtype in NARROW:
        yield replace(Contract(), operands=base.operands)
        yield base
    read = {j for node in graph.nodes for j in node.reads}
    stored = {one.name: one.x.dtype.name for one in given if one.narrow and read.intersection(one.nodes)}
    if stored:
        yield replace(base, stored=stored)


def _right(stages: Sequence[StageDiff]) -> bool:
    return all(stage.is_right for stage in stages)


def _outside(stages: Sequence[StageDiff]) -> int:
    return sum(stage.decisive.summary.outside for stage in stages if stage.decisive is not None)


def _beyond(strict: Sequence[StageDiff], stages: Sequence[StageDiff]) -> dict[str, Beyond]:
    """What only the usual contract allows."""
    found = {}
    for before, now in zip(strict, stages, strict=True):
        a, b = before.decisive, now.decisive
        if a is None or b is None or not a.summary.outside:
            continue
        more = a.outside & ~b.outside if b.summary.outside else a.outside
        if more.any():
            over = np.where(more, a.over_budget, -1.0)
            place = tuple(int(i) for i in np.unravel_index(int(np.argmax(over)), over.shape))
            found[now.name] = Beyond(int(more.sum()), float(over[place]), place)
    return found


def _doubted(stage: StageDiff, beyond: Mapping[str, Beyond]) -> StageDiff:
    """The stage. Errors that the strict contract forbids, and chance does not explain under the undeclared one, are
    evidence.
    """
    return replace(stage, doubt=EVIDENCE) if stage.verdict == "suspicious" and stage.name in beyond else stage


def _with_excuses(
    graph: Graph, given: Sequence[Given], contract: Contract, stages: tuple[StageDiff, ...], dtype: str, gpu: bool
) -> tuple[StageDiff, ...]:
    """The stages; where one declaration makes all of them right, and predicts their errors or is as large as these, the
    wrong ones are suspicious. Of stages that are suspicious already only TF32 that predicts their errors is looked for.
    """
    wrong = [stage for stage in stages if stage.role == "origin" or stage.verdict == "suspicious"]
    proved = any(stage.role == "origin" for stage in wrong)
    if not wrong or any(is_broken(stage) for stage in wrong):  # none is wrong where some cannot be judged
        return stages

    def excuses(other: Contract, sharp: bool) -> bool:
        return _right(under(graph, other, given, sharp=sharp))

    found, best = list[str](), POOR
    for words, other in weaker(graph, given, contract, wrong, dtype):
        narrower = best > POOR and not (words.startswith("round=") and found[-1].startswith("operands=scaled-"))
        if narrower and ("+" in words or words.startswith(CHANCE)):  # one is enough
            continue
        if not proved and words != "operands=tf32" and not (dtype in NARROW and words.startswith(CHANCE)):
            continue
        if is_large(graph) and is_hopeless(graph, other, given):
            continue
        if not excuses(other, sharp=False):  # forward alone is cheap, and its budgets are the larger ones
            continue
        tried = {stage.name: stage for stage in under(graph, other, given)}
        if not all(tried[stage.name].is_right for stage in stages):
            continue
        if any(one in words for one in CHANCE):
            rank = LARGE if all(_is_chance(graph, given, other, tried[stage.name]) for stage in wrong) else POOR
        else:
            rank = min(_fits(stage, tried[stage.name]) for stage in wrong)
        if rank > POOR and _is_known(graph, given, contract, other, wrong, dtype, gpu):
            rank = KNOWN
        if rank > best:
            found, best = [words], rank
        elif rank == best:
            found.append(words)
        if len(found) == 2 and best == KNOWN:
            break
    sure = best == KNOWN or (best > POOR and found[0].startswith(CHANCE))
    some = [stage for stage in wrong if stage.role == "origin" or sure] if found else []
    origins = [stage for stage in wrong if stage.role == "origin"]
    if best == POOR and dtype == "float32" and all(_is_a_formula(graph, stage) for stage in origins):
        return tuple(_of_a_formula(stage) if stage in origins else stage for stage in stages)
    return tuple(_excused(stage, found, best) if stage in some else stage for stage in stages)


def _is_a_formula(graph: Graph, stage: StageDiff) -> bool:
    """Whether a gradient is off by so few roundings of its largest element that another formula of it, as accurate
    where it is large, would be.
    """
    if stage.name not in graph.gradients.values() or stage.decisive is None:
        return False
    error, expected = stage.decisive.error, stage.decisive.expected
    return bool(np.all(abs(error) <= FORMULA * Contract().unit * np.max(abs(expected), initial=0.0)))


def _of_a_formula(stage: StageDiff) -> StageDiff:
    assert stage.decisive is not None
    found = stage.decisive.summary
    reason = (
        f"{found.outside} of {found.size} elements are over budget, by a few float32 roundings of the largest "
        "gradient. A backward pass by another formula does that, s * (1 - s) of a sigmoid s: write the reference with "
        "the function whose backward your kernel implements, torch.sigmoid(x) in place of 1 / (1 + torch.exp(-x))"
    )
    return replace(stage, verdict="suspicious", doubt=EVIDENCE, reason=reason)


def _is_chance(graph: Graph, given: Sequence[Given], contract: Contract, stage: StageDiff) -> bool:
    """Whether the errors of a stage have no factor and no offset in common that roundings would not have."""
    one, found = next(one for one in given if one.name == stage.name), stage.decisive
    assert found is not None
    read = [other for other in given if stage.judged_from or is_whole(other.x.dtype)]
    error, half = (x if len(one.nodes) > 1 else x[None] for x in (found.error, half_ulp(contract, one, found.expected)))
    return Samples(graph, contract, dumps_of(graph, read), one.nodes).is_chance(one.nodes, [*error], [*half])


def _is_known(
    graph: Graph,
    given: Sequence[Given],
    contract: Contract,
    other: Contract,
    wrong: Sequence[StageDiff],
    dtype: str,
    gpu: bool,
) -> bool:
    """Whether a kernel that declares nothing may do what `other` says beyond `contract`, since libraries do: products
    in TF32, if these are its errors, or a GPU made them and they are as large; of 16-bit inputs sums of a tensor core,
    and stages in their dtype, but for a state that is carried in it; gradients of a loss in it, too.
    """
    if other.operands != contract.operands:
        return other.operands == "tf32" and all(_is_tf32(graph, given, other, stage, gpu) for stage in wrong)
    if other.round != contract.round and other.rounds[0] != "gradients":
        return False
    if other.fast != contract.fast:
        return set(other.fast) - set(contract.fast) <= UNSAID
    names = [name for name in other.stored if other.stored[name] != contract.stored.get(name)]
    return dtype in NARROW and not any(_is_carried(graph, name) for name in names if name != CASTS)


def _is_tf32(graph: Graph, given: Sequence[Given], tf32: Contract, stage: StageDiff, gpu: bool) -> bool:
    """Whether products in TF32 made the errors of a stage; on a GPU also those of operands that nobody knows."""
    predicted, as_large = by_tf32(graph, given, stage)
    return predicted or (gpu and as_large and _is_chance(graph, given, tf32, stage))


def _is_carried(graph: Graph, name: str) -> bool:
    """Whether the last turn of a stage is made of turns before it."""
    *before, last = graph.latest(name)
    return bool(before) and bool(upstream(graph, [last]).intersection(before))


def _fits(before: StageDiff, after: StageDiff) -> int:
    """GONE where the errors are, with the casts that are predicted; LARGE where they are as large as what operands in
    fewer bits lose, and no small part of it; else POOR.
    """
    assert before.decisive is not None and after.decisive is not None
    error, now = abs(before.decisive.error), abs(after.decisive.error)
    budget = after.decisive.budget * after.decisive.statistical
    known = np.isfinite(error) & np.isfinite(now) & np.isfinite(budget) & (budget > 0)
    if not known.any():
        return POOR
    if np.sum(now[known] ** 2) <= PREDICTED**2 * np.sum(error[known] ** 2):
        return GONE
    return LARGE if np.median(now[known] / budget[known]) >= FITS else POOR


#: what is said of a declaration that is no default
_DOUBTFUL: Mapping[str, str] = {
    "operands=scaled": "as of a kernel that scales its operands before it rounds them",
    "operands=": "though TF32 of these operands has other errors",
    "fast=": "as of a kernel that approximates this function",
    "round=gradients": "as of a loss whose forward pass stores its gradient",
    "round=saved": "as of a kernel whose backward pass reads what its forward pass kept in fewer bits",
    "round=eager": "as of plain torch, which rounds every result",
    "round=inside": "as of plain torch in steps, which rounds every result, also within norms and softmax",
    "": "which no default arithmetic does",
}


def _excused(stage: StageDiff, words: Sequence[str], rank: int) -> StageDiff:
    """The wrong stage: suspicious where a declaration explains its errors, else a bug that the declaration allows."""
    assert stage.decisive is not None
    found = stage.decisive.summary
    over = found.worst.over_budget if found.worst is not None else np.inf
    options = " or ".join(f"--contract {one}" for one in words[:2])
    if rank == POOR:
        return replace(
            stage, if_declared=IfDeclared(f"{options} allows as much; these errors are no such roundings", True)
        )
    doubtful = [next(said for start, said in _DOUBTFUL.items() if one.startswith(start)) for one in words[:2]]
    why = f", {', or '.join(dict.fromkeys(doubtful))}" if rank < KNOWN else ""
    most = TF32 if rank == KNOWN and words[0] == "operands=tf32" else EXCUSED
    why = f", though none that is known leaves {most:g}x the budget" if over > most else why
    beyond = (
        f"{found.outside} of {found.size} elements are over the budget of default arithmetic, the worst {over:.4g}x"
    )
    reason = (
        f"{beyond if found.outside else stage.reason}; they pass with {options}{why}: declare what your kernel does"
    )
    return replace(stage, verdict="suspicious", doubt=EVIDENCE if why else ASSUMPTION, over_usual=over, reason=reason)
