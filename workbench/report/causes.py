"""Causes in words, as a kernel engineer tells a colleague: what, the proof, the falsifier's result, what is unknown."""

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

#: names of a class that are listed
LISTED = 4


def in_a_line(judged: Diff, cause: Cause) -> str:
    """A cause with its proof, in one line, and which run shows it, where that is another one."""
    seen = judged.explained.elsewhere
    there = "" if seen is None else f", in another run: {headline(seen.trace)}"
    if cause.rivals:
        shown = judged if seen is None else seen
        if shown.trace.rerun is None:  # nothing can be run that would tell them apart
            more = f"; and {len(cause.rivals) - LISTED} more" if len(cause.rivals) > LISTED else ""
            others = "".join(f"; or {one}" for one in cause.rivals[:LISTED])
            return f"cause, one of {len(cause.rivals) + 1} that fit: {cause.text}{others}{more}{there}"
        apart = f"{explain_command(shown)} tells them apart"
        return f"cause, one of {len(cause.rivals) + 1} that fit: {cause.text} ({apart}){there}"
    proof = f"{_reproduced(cause)}{'' if cause.proved else _doubt(cause)}{there}"
    return f"cause: {'perhaps ' * cause.perhaps}{cause.text}; reproduces {proof}"


def none_found(judged: Diff) -> list[str]:
    """Of which wrong stages a report names no cause, and what looks longer; nothing where it names one of all."""
    if judged.of_measure is not None and judged.of_measure.proved:  # which says more
        return []
    found = judged.explained
    left = [name for name in found.unexplained if judged[name].decisive is not None]
    if not left:
        return []
    of = "" if len(left) == len(judged.origins) else f" of {', '.join(left)}"
    if judged.trace.case.score_count > LARGEST:
        return [f"no cause was looked for{of}: {_too_large(judged)}"]
    return [f"no cause found{of} among {found.tried} hypotheses; {explain_command(judged)} tries more"]


def explain_command(judged: Diff) -> str:
    """What explains a run, in words."""
    command = diff_command(judged, "explain")
    return f"`{command}`" if command else "`Diff.explain`, in Python,"


def _too_large(judged: Diff) -> str:
    scores = judged.trace.case.score_count
    return f"a run of {scores} scores is too large, {LARGEST} are searched; take a smaller case"


def lines(judged: Diff, found: Explained) -> list[str]:
    """All that was found, a line each."""
    if not judged.origins and not found.usual:
        return ["nothing to explain: no stage is wrong by itself"]
    if judged.trace.case.score_count > LARGEST:
        return [f"not searched: {_too_large(judged)}"]
    lines: list[str] = [found.unstable] if found.unstable else []
    if found.usual:
        doubt = "" if judged.origins else "no stage is proved wrong; "
        lines.append(f"{doubt}explained is what is wrong of a usual kernel: {', '.join(found.usual)}")
    for cause in found.causes:
        stages = ", ".join(cause.fit.stages)
        lines += [
            f"{stages}: {'perhaps ' * cause.perhaps}{cause.text}",
            *(f"  {line}" for line in _proof(judged, cause)),
        ]
    for name in found.unexplained:
        lines.append(f"{name}: cause unknown: no hypothesis reproduces it")
        lines += [f"  {line}" for line in _unknown(found, name)]
    for cause in found.withdrawn:
        if cause.trial is not None and cause.trial.held:
            lines.append(f"perhaps: {cause.text}: so NaN would be where it is, which was seen on no two other cases")
        else:
            lines.append(f"withdrawn: {cause.text}: it fits this run, and fails on another: {_trial(judged, cause)}")
    if found.causes and not found.usual:
        lines.append(_remaining(found))
    lines.append(f"{found.tried} hypotheses tried{ENDED[found.ended_by]}")
    return lines


def _remaining(found: Explained) -> str:
    """What is wrong beside the causes that were found."""
    off = {cause.fit.stages: cause.fit.off for cause in found.causes}
    whole = list(dict.fromkeys(name for stages, count in off.items() if not count for name in stages))
    said = [f"{_are(whole)} within budget"] if whole else []
    said += [f"{_are(stages)} within budget but for {count} elements" for stages, count in off.items() if count]
    said += [f"{name} is still wrong" for name in found.unexplained]
    return f"with {'this' if len(found.causes) == 1 else 'these'} corrected {'; '.join(said)}"


def _are(stages: Sequence[str]) -> str:
    return f"{' and '.join(stages)} {'are' if len(stages) > 1 else 'is'}"


def _proof(judged: Diff, cause: Cause) -> Iterator[str]:
    if len(cause.names) > 1:
        others = cause.names[1 : LISTED + 1]
        more = f", and {len(cause.names) - 1 - len(others)} more" if len(cause.names) - 1 > len(others) else ""
        yield f"the same, in other words: {'; '.join(others)}{more}"
    if cause.proved:
        yield f"proof: it reproduces {_reproduced(cause)}"
    else:
        yield f"it reproduces {_reproduced(cause)}{_doubt(cause)}"
    if cause.runner_up is not None:
        text, left = cause.runner_up
        yield f"the next best, {text!r}, leaves {min(left, 1):.0%} of the error"
    if cause.decided_by is not None:
        yield f"told from others that fit by a run with {_changes(judged, cause.decided_by)}"
    for rival in cause.rivals[:LISTED]:
        yield f"fits this run as well: {rival}"
    if len(cause.rivals) > LISTED:
        yield f"and {len(cause.rivals) - LISTED} more"
    if cause.trial is not None:
        cases = "a fresh case" if cause.trial.of == 1 else f"{cause.trial.of} fresh cases, the first with"
        yield f"tried on {cases}{',' if cause.trial.of == 1 else ''} {_trial(judged, cause)}"
        if cause.trial.beyond:
            yield f"also wrong, in another way, where {cause.trial.beyond}, which it may not support"
    elif judged.trace.rerun is None:
        yield "not tried on a fresh case, since a trace cannot be run again"


def _unknown(found: Explained, name: str) -> Iterator[str]:
    pattern, formula = found.patterns.get(name, ()), found.formulas.get(name, ())
    yield from (f"pattern: {one}" for one in pattern)
    yield from (f"formula: {one}" for one in formula)


def _reproduced(cause: Cause) -> str:
    fit = cause.fit
    if fit.of_nan_alone:
        return f"NaN in {fit.nan} elements, and in no other"
    flips = f" ({fit.off} turned the other way by a rounding)" if fit.off else ""
    return f"{fit.of - fit.off} of {fit.of} elements within their budgets, {ratio(fit.over_budget)} x at most{flips}"


def _doubt(cause: Cause) -> str:
    """Why it is not proved."""
    if cause.rivals:
        return "; not proved, since others do, too"
    if cause.perhaps:
        return "; not proved: whatever reads NaN makes NaN"
    if cause.trial is not None and cause.trial.beyond:
        return f"; not proved: where {cause.trial.beyond}, it is wrong in another way"
    if cause.evidence < PROOF:
        return f"; not proved: it moves {cause.evidence} elements, and fewer than {PROOF} may fit by chance"
    return "; not proved"


def _trial(judged: Diff, cause: Cause) -> str:
    trial = cause.trial
    assert trial is not None
    if cause.measured:
        return f"{_changes(judged, trial.case)}: {trial.seen}; {trial.predicted}"
    return f"{_changes(judged, trial.case)}: predicted {trial.predicted}, seen {trial.seen}"


def _changes(judged: Diff, case: object) -> str:
    """The options of another case that differ from this one's."""
    ours = judged.trace.case
    differing = {name: x for name in FIELDS if (x := getattr(case, name)) != getattr(ours, name)}
    return " ".join(said(differing)) or "the same options"
