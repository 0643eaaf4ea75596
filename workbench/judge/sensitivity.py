"""Assumption sensitivity: verdicts that hold only under undeclared assumptions on the contract. A stage may be right
because of one; a wrong stage may be right under another.

The weakest choice for everything that a kernel does not say hides bugs. What is right under it is held against the
usual contract of a flash kernel, too. What is wrong there is `suspicious` if a known library does as much
(`assumptions.LIBRARIES`), and the single choice that decides is named; what no known library does is a bug. That is an
assumption where the library sums in float32, and evidence where none that does so explains the errors, or where these
are EXCUSED times a usual kernel's budget: half of what sums in bfloat16 lose passes for a rounding of q. What is
wrong stays so, with the choices that would explain it; forgiven are a lower end of exp's argument, which reaches no
farther than 2^-127, and units of dumps in which the whole run is right.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np

from workbench.case.assumptions import Choice, Library, alternatives, of_libraries, usual
from workbench.case.contract import Contract
from workbench.case.presets import PRESETS, fields_of
from workbench.case.promises import unwrapped
from workbench.case.stages import OUT, RESULTS
from workbench.expectation.elements import UNJUDGED, WRONG, Compared, Element, Summary
from workbench.expectation.observed import Observed
from workbench.floats import to_float64
from workbench.judge.bias import Z
from workbench.judge.control import at_rows, sampled
from workbench.judge.evidence import DOUBTFUL, ROWS, Excess, excesses
from workbench.judge.factor import Factor, factor
from workbench.judge.stage import ASSUMPTION, EVIDENCE, RIGHT_VERDICTS, IfDeclared, StageDiff
from workbench.refusal import Refusal
from workbench.trace.trace import check_stages

#: those of some stages of a run that have elements outside their budgets -> the worst of these
Failing = Callable[[Observed, Sequence[str]], Mapping[str, Element]]

#: choices so narrow that what they explain is no bug where nobody declared them, whatever else is wrong
FORGIVEN = ("exp_floor", "lse_base2")
#: choices of what dumps mean, beside what `recognised` reads off them: a run that is right throughout under one of
#: them is of a kernel that did not say it
UNITS = (
    *("lse_includes_sink", "sinks", "row_max", "skips_masked_tiles"),
    *("partials", "partial_stats", "normalisation"),
)
#: how far a running maximum lags behind, at most, in natural units: FlashAttention-4 leaves it until exp would be 2^8
#: (flash_attn/cute/softmax.py, rescale_threshold)
LAG = 8 * float(np.log(2))
#: times the roundings of a known library beyond which errors are none of it: those of a scaled q are random, and what
#: a scale of its own has too much is common to all scores
FAR = 2.0
#: standard errors of that from which on such an excuse is doubted; beyond `bias.Z` it is none
DOUBTED = 3.0
#: x of a usual kernel's budget beyond which no library is an excuse. Of the undeclared runs of styles outside the group
#: arithmetic (`python -m campaigns verdicts --styles`, 20 cases each, and 100 each with seed 2) none is beyond 2,410 x:
#: sums of cast probs, where row_sum is held to its own probs; scores in bfloat16 leave 1,426 x in lse
EXCUSED = 3000.0
#: of these what lse holds
OF_LSE = ("lse_includes_sink",)
SAY = "declare yours in the contract"
#: choices that a sentence names
NAMED = 3
#: choices that make a stage right -> whether their budget says anything of it
Explaining = Mapping[Choice, bool]


class Sensitive(NamedTuple):
    """In which way a stage that is right under the contract is wrong of a usual kernel."""

    why: str
    worst: Element | None  #: that tells; None: the size of its errors together does


def with_sensitivity(
    run: Observed, judged: Sequence[StageDiff], failing: Failing, device: str = "cpu"
) -> list[StageDiff]:
    """The stages, with what the assumptions of the run's contract decide of them; `device` as of `excesses`."""
    promise, base = run.contract, usual(run.contract)
    names = [stage.name for stage in judged if stage.decisive is not None]
    sensitive = _wrong_if_usual(run, judged, failing, device)
    wrong = [x for x in judged if x.verdict == "bug" and x.decisive is not None]
    if not sensitive and not wrong:
        return [*judged]
    choices = [choice for choice in alternatives(promise) if fits(run, names, choice.contract)]
    # those that a budget decides are told apart by budgets
    doubtful = [
        stage if sensitive[stage.name].worst is None else replace(stage, verdict="bug")
        for stage in judged
        if stage.name in sensitive
    ]
    explained = _explained(run, doubtful, choices)
    # what is wrong by the size of its errors together is tried by that
    tried = [x if _fails(x.decisive.summary) else replace(x, verdict="rounding") for x in wrong if x.decisive]
    beside = [one._replace(contract=_with(promise, base, one.contract)) for one in choices]
    forgiving = _explained(run, tried, [one for one in beside if one.contract != promise])
    unit = _unit(run, judged, forgiving, failing)

    @cache
    def wrong_under(choice: Choice) -> set[str]:
        return {*failing(run.under(choice.contract), [stage.name for stage in wrong])}

    @cache
    def beyond_casts() -> Factor | None:
        return factor(run)

    by_budget = {name: one.worst for name, one in sensitive.items() if one.worst is not None}
    excuse = _excuse(run, names, by_budget, failing) if by_budget else None

    def with_choices(stage: StageDiff) -> StageDiff:
        if stage.name in by_budget and excuse is None:
            reason = f"{_beyond(by_budget[stage.name])} under default arithmetic; {_explaining(explained[stage.name])}"
            return replace(stage, verdict="bug", reason=reason)
        if stage.name in sensitive:
            over = by_budget[stage.name].over_budget if stage.name in by_budget else None
            far = f"; no known kernel exceeds {EXCUSED:g}x the default budget"
            poor = "" if over is None else excuse or far * (over > EXCUSED)
            reason = (
                f"{_deciding(explained[stage.name])}{poor}; under default arithmetic {sensitive[stage.name].why}: {SAY}"
            )
            off = beyond_casts() if stage.name == OUT else None
            known = bool(explained[stage.name]) or _of_a_preset(run, stage)
            doubt = EVIDENCE if off is not None or not known or poor else ASSUMPTION
            reason = f"{off.words}; {reason}" if off is not None else reason
            return replace(stage, verdict="suspicious", doubt=doubt, over_usual=over, reason=reason)
        found = forgiving.get(stage.name, {})
        narrow = [choice for choice in found if choice.field in FORGIVEN or choice == unit]
        if narrow and stage.name not in wrong_under(narrow[0]):
            assert stage.decisive is not None and stage.decisive.summary.worst is not None
            beyond = _beyond(stage.decisive.summary.worst)
            reason = f"within budget only with {narrow[0]}; otherwise a bug ({beyond}): {SAY}"
            return replace(stage, verdict="suspicious", doubt=ASSUMPTION, reason=reason)
        if not found:
            return stage
        return replace(stage, if_declared=_hint(found))

    return [with_choices(stage) for stage in judged]


def _excuse(run: Observed, names: Sequence[str], doubtful: Mapping[str, Element], failing: Failing) -> str | None:
    """Whether a known library makes all the doubtful stages right, of the judged ones `names`: empty where it excuses
    them, in words why it is a poor excuse, or None where no library does it.
    """
    rows, poor = _queries(run, doubtful), None
    for library, contract in of_libraries(run.contract):
        if not fits(run, names, contract):
            continue
        other = run.under(contract)
        # cheap first: the rows of the elements that are worst for a usual kernel are wrong for most libraries, too
        if rows.size and any(np.isin(x.state, WRONG).any() for _, x in at_rows(other, [*doubtful], rows)):
            continue
        # what its budget has room for may still be larger than its roundings add up to
        if failing(other, [*doubtful]):
            continue
        larger = excesses(other, doubtful, FAR, z=DOUBTED)
        if any(excess.z > Z for excess in larger.values()):
            continue
        if not library.narrow and not larger:
            return ""
        poor = poor or _poor(library, larger)
    return poor


def _poor(library: Library, larger: Mapping[str, Excess]) -> str:
    """Why a library is no good excuse of errors that are `larger` than what it does adds up to."""
    if library.narrow:
        return "; no known kernel that sums in float32 does this"
    most = max(excess.times for excess in larger.values())
    return f"; its errors are {most:.3g}x as large as that arithmetic gives"


def _queries(run: Observed, worst: Mapping[str, Element]) -> np.ndarray:
    """The queries of some elements of stages, as their arrays have them."""
    axes = {name: run.axes(name) for name in worst}
    return np.unique([x.place[axes[name].index("q")] for name, x in worst.items() if "q" in axes[name]]).astype(int)


def _unit(
    run: Observed, judged: Sequence[StageDiff], forgiving: Mapping[str, Explaining], failing: Failing
) -> Choice | None:
    """The one choice of what dumps mean that makes every wrong stage right, and leaves every other one so; None where
    out and lse alone, of which units do not matter, were not given or are wrong.
    """
    first, *others = forgiving.values() or [{}]
    # the narrower of two is before the wider, as of row_max
    common = [one for one in first if one.field in UNITS and all(one in found for found in others)]
    ends = [name for name in RESULTS if name in run.dumped]
    if not common or not ends or run.trace.requested:
        return None
    names = [stage.name for stage in judged if stage.decisive is not None]
    alone = run.only(ends)  # and codes, which may be all that is known of the inputs

    @cache
    def wrong_alone(contract: Contract) -> bool:
        return bool(failing(alone.under(contract), ends))

    for choice in common:
        if choice.field == "row_max" and not _of_a_known_maximum(run, judged):
            continue
        if wrong_alone(choice.contract if choice.field in OF_LSE else run.contract):
            continue
        if not failing(run.under(choice.contract), names):
            return choice
    return None


def _of_a_known_maximum(run: Observed, judged: Sequence[StageDiff]) -> bool:
    """Whether row_max, where it is no running maximum, may be one of a known library: it never falls from tile to tile,
    and lags by LAG at most. Bounds of it from above are FlashDecoding++'s (arXiv 2311.01282).
    """
    found = next((stage.isolated for stage in judged if stage.name == "row_max"), None)
    if found is None:
        return True
    x, contract, case = to_float64(found.actual), run.contract, run.case
    unit = 1 / float(np.log(2)) if contract.base2 else 1.0 if contract.scores_scaled else 1 / abs(case.scale)
    tiles = contract.tiling(case.seqlen_k).splits
    with np.errstate(invalid="ignore"):
        falls = any(np.any(np.diff(x[..., list(some)], axis=-1) < 0) for some in tiles if len(some) > 1)
        lags = np.any(found.expected - x > LAG * unit * (1 + 2.0**-20))
    return not falls and not lags


def _wrong_if_usual(run: Observed, judged: Sequence[StageDiff], failing: Failing, device: str) -> dict[str, Sensitive]:
    """The right stages that are not those of a usual kernel -> in which way."""
    right = [stage.name for stage in judged if stage.verdict in RIGHT_VERDICTS]
    strict = run.under(usual(run.contract))
    if strict is run or not right:
        return {}
    found = {
        name: Sensitive(f"it would be a bug ({_beyond(worst)})", worst)
        for name, worst in failing(strict, right).items()
    }
    rest = [name for name in right if name not in found]
    beyond = excesses(strict, rest, DOUBTFUL, device)
    return found | {name: Sensitive(excess.words, None) for name, excess in beyond.items()}


def _explained(run: Observed, stages: Sequence[StageDiff], choices: Sequence[Choice]) -> dict[str, Explaining]:
    """Stage -> the choices that make it right, those first that make most stages right."""
    if not stages:
        return {}
    right = {choice: right_under(run, stages, choice.contract) for choice in choices}
    order = sorted(choices, key=lambda choice: -len(right[choice]))
    return {
        stage.name: {choice: right[choice][stage.name] for choice in order if stage.name in right[choice]}
        for stage in stages
    }


def right_under(run: Observed, stages: Sequence[StageDiff], contract: Contract) -> dict[str, bool]:
    """The stages that are right of a kernel with that contract, at the rows of their worst elements and some more ->
    whether its budget says anything there.
    """
    other = run.under(contract)
    rows = {*sampled(run.case, ROWS), *(place for stage in stages if (place := _worst_query(stage)) is not None)}
    held = at_rows(other, [stage.name for stage in stages], np.array(sorted(rows)))
    right = {name: _says(found) for name, found in held if not np.isin(found.state, WRONG).any()}
    # of what is outside its budget under another contract, budgets decide
    inside = [stage.name for stage in stages if stage.name in right and stage.verdict in RIGHT_VERDICTS]
    wrong = excesses(other, inside, DOUBTFUL)
    return {name: says for name, says in right.items() if name not in wrong}


def _of_a_preset(run: Observed, stage: StageDiff) -> bool:
    """Whether a stage is right of a kernel of one of PRESETS, as far as nobody declared anything else."""
    base, assumed = usual(run.contract), run.contract.assumed
    for preset in PRESETS:
        said, _ = unwrapped(fields_of(preset, run.case))
        fields = {name: x for name, x in said.items() if name in assumed}
        contract = replace(base, **fields)
        if fits(run, [stage.name], contract) and stage.name in right_under(run, [stage], contract):
            return True
    return False


def _worst_query(stage: StageDiff) -> int | None:
    """The query of a stage's worst element, in its array."""
    worst = None if stage.decisive is None else stage.decisive.summary.worst
    return worst.place[stage.axes.index("q")] if worst is not None and "q" in stage.axes else None


def _says(found: Compared) -> bool:
    """Whether a budget rules anything out."""
    return not np.isin(found.state, UNJUDGED).all()


def fits(run: Observed, names: Sequence[str], contract: Contract) -> bool:
    """Whether the case may be of a kernel with that contract, and its stages `names` be judged by it: one that cannot
    is held against q, k and v alone, whose budget hides a wrong acc of 1%.
    """
    other = run.under(contract)
    try:
        check_stages(other.trace, run.trace.target)  # inputs fit the case, whatever the contract
    except Refusal:
        return False
    return not any(name in other.unjudgeable for name in names)


def _with(promise: Contract, base: Contract, contract: Contract) -> Contract:
    """The promise with what `contract` changes of `base`."""
    changed = {name: value for name, value in vars(contract).items() if value != getattr(base, name)}
    return replace(promise, **changed)


def _deciding(choices: Explaining) -> str:
    """What makes a stage right that is not a usual kernel's."""
    if choices:
        return f"within budget only with {_either(choices)}"
    return "within budget only if several undeclared settings are combined"


def _explaining(choices: Explaining) -> str:
    """What would make a stage right that is right in no known library."""
    found = _either(choices) if choices else "several choices together"
    return f"{found} would explain it, but no known library computes like that; if yours does, declare it"


def _hint(choices: Explaining) -> IfDeclared:
    """What would make a wrong stage right."""
    if any(choices.values()):
        return IfDeclared(f"if your kernel really has {_either(choices)}, declare it in the contract", True)
    which = _one_of([*map(str, choices)], NAMED)
    return IfDeclared(
        f"this is a bug, unless your kernel has {which}. If it has, declare it; the stage is then untestable, since "
        "its budget is too wide",
        False,
    )


def _either(choices: Explaining) -> str:
    """The choices whose budgets say something, then those that rule nothing out."""
    said, silent = ([str(one) for one, says in choices.items() if says is which] for which in (True, False))
    room = NAMED - len(said)
    if said and room <= 0:
        return _one_of([*said, *silent], NAMED)
    unchecked = f"{_one_of(silent, room)} (which cannot be checked here)" if silent else ""
    return ", or ".join(filter(None, (_one_of(said, NAMED), unchecked)))


def _one_of(choices: Sequence[str], most: int) -> str:
    """The first of some choices, at most so many, and how many more there are."""
    named, more = choices[:most], len(choices) - most
    joined = " or ".join(filter(None, (", ".join(named[:-1]), *named[-1:])))
    return f"{joined} (or {more} more)" if more > 0 else joined


def _fails(found: Summary) -> bool:
    return found.outside > 0


def _beyond(worst: Element) -> str:
    return f"{worst.over_budget:.3g}x its budget"
