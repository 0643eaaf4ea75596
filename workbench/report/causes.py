"""Causes in sentences: what is wrong, what proves it, what a fresh case showed, what is still unknown."""

from collections.abc import Iterator, Sequence

from workbench.case.fields import FIELDS
from workbench.case.spellings import said
from workbench.judge.diff import Diff
from workbench.judge.explain.cause import Cause
from workbench.judge.explain.explain import LARGEST, Explained
from workbench.judge.explain.fit import PROOF
from workbench.report.command import diff_command
from workbench.report.numbers import ratio
from workbench.trace.headline import headline
from workbench.work import ENDED

#: alternatives that a report lists, at most; `explain -v` lists all
LISTED = 3


def in_lines(judged: Diff, causes: Sequence[Cause]) -> list[str]:
    """The causes of a stage, a line each with its proof; causes that explain it together have one proof."""
    proofs = {_reproduced(cause) for cause in causes}
    if len(causes) < 2 or len(proofs) > 1 or any(cause.rivals or not cause.proved for cause in causes):
        return [_in_a_line(judged, cause) for cause in causes]
    together = f"together they reproduce {_reproduced(causes[0])}{_seen_in(judged)}"
    return [*(f"cause {i} of {len(causes)}: {cause.text}" for i, cause in enumerate(causes, 1)), together]


def _in_a_line(judged: Diff, cause: Cause) -> str:
    """A cause with its proof, or with alternatives that fit as well."""
    seen = judged.explained.elsewhere
    if not cause.rivals:
        proof = f"{_reproduced(cause)}{'' if cause.proved else _doubt(cause)}{_seen_in(judged)}"
        return f"cause: {'perhaps ' * cause.perhaps}{cause.text}; reproduces {proof}"
    shown = judged if seen is None else seen
    head = f"cause, one of {len(cause.rivals) + 1} that fit: {cause.text}"
    if shown.trace.rerun is not None:
        return f"{head} ({explain_command(shown)} tells them apart){_seen_in(judged)}"
    # a trace cannot be run again, so nothing tells them apart
    others = "".join(f"; or {one}" for one in cause.rivals[: LISTED - 1])
    more = len(cause.rivals) - (LISTED - 1)
    return f"{head}{others}{f'; {more} more (-v)' if more > 0 else ''}{_seen_in(judged)}"


def _seen_in(judged: Diff) -> str:
    """The other run that shows a cause, where it is not this one."""
    seen = judged.explained.elsewhere
    return "" if seen is None else f", in another run: {headline(seen.trace)}"


def none_found(judged: Diff) -> list[str]:
    """The wrong stages without a cause, and the command that searches longer; nothing where each has one."""
    if judged.of_measure is not None and judged.of_measure.proved:  # the measurement explains them
        return []
    found = judged.explained
    left = [name for name in found.unexplained if judged[name].decisive is not None]
    if not left:
        return []
    of = "" if len(left) == len(judged.origins) else f" for {', '.join(left)}"
    if judged.trace.case.score_count > LARGEST:
        return [f"causes{of} were not searched for: {_too_large(judged)}"]
    return [f"no cause found{of} among {found.tried} hypotheses; next: {explain_command(judged)} tries more"]


def explain_command(judged: Diff) -> str:
    """What to call for a longer search: a command, or a method where no command runs the same."""
    command = diff_command(judged, "explain")
    return f"`{command}`" if command else "`Diff.explain()` in Python"


def _too_large(judged: Diff) -> str:
    scores = judged.trace.case.score_count
    return f"{scores} scores are too many, the limit is {LARGEST}; take a smaller case"


def lines(judged: Diff, found: Explained) -> list[str]:
    """All that was found, a line each."""
    if not judged.origins and not found.usual:
        return ["nothing to explain: every stage is right given its inputs"]
    if judged.trace.case.score_count > LARGEST:
        return [f"not searched: {_too_large(judged)}"]
    lines: list[str] = [found.unstable] if found.unstable else []
    if found.usual:
        doubt = "" if judged.origins else "no stage is proved wrong; "
        lines.append(f"{doubt}below: what differs from default arithmetic, in {', '.join(found.usual)}")
    proofs = [[*_proof(judged, cause)] for cause in found.causes]
    together = len(proofs) > 1 and all(proof == proofs[0] for proof in proofs)
    for cause, proof in zip(found.causes, proofs, strict=True):
        lines.append(f"{', '.join(cause.fit.stages)}: {'perhaps ' * cause.perhaps}{cause.text}")
        lines += [f"  {line}" for line in ([] if together else proof)]
    lines += ["all of them together:", *(f"  {line}" for line in proofs[0])] if together else []
    for name in found.unexplained:
        lines.append(f"{name}: no hypothesis reproduces its numbers")
        lines += [f"  {line}" for line in _unknown(found, name)]
    for cause in found.withdrawn:
        if cause.trial is not None and cause.trial.held:
            lines.append(f"perhaps: {cause.text}; it explains where NaN is, but was not confirmed on two fresh cases")
        else:
            lines.append(f"withdrawn: {cause.text}; it fits this run, but not a fresh case {_trial(judged, cause)}")
    if found.causes and not found.usual:
        lines.append(_remaining(found))
    lines.append(f"{found.tried} hypotheses tried{ENDED[found.ended_by]}")
    return lines


def _remaining(found: Explained) -> str:
    """What is still wrong once the causes are corrected."""
    off = {cause.fit.stages: cause.fit.off for cause in found.causes}
    whole = list(dict.fromkeys(name for stages, count in off.items() if not count for name in stages))
    said = [f"{_are(whole)} within budget"] if whole else []
    said += [f"{_are(stages)} within budget except for {count} elements" for stages, count in off.items() if count]
    said += [f"{name} is still wrong" for name in found.unexplained]
    return f"with {'this cause' if len(found.causes) == 1 else 'these causes'} corrected, {'; '.join(said)}"


def _are(stages: Sequence[str]) -> str:
    return f"{' and '.join(stages)} {'are' if len(stages) > 1 else 'is'}"


def _proof(judged: Diff, cause: Cause) -> Iterator[str]:
    if len(cause.names) > 1:
        others = cause.names[1 : LISTED + 1]
        more = f", and {len(cause.names) - 1 - len(others)} more" if len(cause.names) - 1 > len(others) else ""
        yield f"equivalent: {'; '.join(others)}{more}"
    yield f"{'proof: ' * cause.proved}reproduces {_reproduced(cause)}{'' if cause.proved else _doubt(cause)}"
    if cause.runner_up is not None:
        text, left = cause.runner_up
        yield f"runner-up: {text!r} leaves {min(left, 1):.0%} of the error"
    if cause.decided_by is not None:
        yield f"singled out by a run with {_changes(judged, cause.decided_by)}"
    for rival in cause.rivals[:LISTED]:
        yield f"also fits: {rival}"
    if len(cause.rivals) > LISTED:
        yield f"and {len(cause.rivals) - LISTED} more"
    if cause.trial is not None:
        cases = "a fresh case" if cause.trial.of == 1 else f"{cause.trial.of} fresh cases, the first"
        yield f"{'confirmed on' if cause.trial.held else 'does not fit'} {cases} {_trial(judged, cause)}"
        if cause.trial.beyond:
            yield f"where {cause.trial.beyond}, the kernel is wrong in another way; it may not support that"
    elif judged.trace.rerun is None:
        yield "not tried on a fresh case: a trace cannot be run again"


def _unknown(found: Explained, name: str) -> Iterator[str]:
    pattern, formula = found.patterns.get(name, ()), found.formulas.get(name, ())
    yield from (f"pattern: {one}" for one in pattern)
    yield from (f"formula: {one}" for one in formula)


def _reproduced(cause: Cause) -> str:
    fit = cause.fit
    if fit.of_nan_alone and fit.nan:
        return f"NaN in exactly the {fit.nan} elements that have it"
    flips = f"; the other {fit.off} are one ulp from the prediction" if fit.off else ""
    found = f"{fit.of - fit.off} of {fit.of} elements within budget"
    return f"{found} (error / budget at most {ratio(fit.over_budget)}){flips}"


def _doubt(cause: Cause) -> str:
    """Why it is not proved."""
    if cause.rivals:
        return "; not proved: others fit as well"
    if cause.perhaps:
        return "; not proved: any stage that reads NaN returns NaN"
    if cause.trial is not None and cause.trial.beyond:
        return f"; not proved: where {cause.trial.beyond}, the kernel is wrong in another way"
    if cause.evidence < PROOF:
        return f"; not proved: it changes {cause.evidence} elements; fewer than {PROOF} may fit by chance"
    return "; not proved"


def _trial(judged: Diff, cause: Cause) -> str:
    """The fresh case that decided, and of what was measured how far the fit goes there."""
    trial = cause.trial
    assert trial is not None
    return f"with {_changes(judged, trial.case)}" + (f": {trial.seen}; {trial.predicted}" if cause.measured else "")


def _changes(judged: Diff, case: object) -> str:
    """The options of another case that differ from this one's."""
    ours = judged.trace.case
    differing = {name: x for name in FIELDS if (x := getattr(case, name)) != getattr(ours, name)}
    return " ".join(said(differing)) or "the same options"
