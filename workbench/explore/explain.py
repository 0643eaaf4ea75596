"""What is wrong in a run: its causes, and what is looked at beside them: a watched run, and the laws of attention."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack, overload

from workbench.case.case import Case
from workbench.case.given import RunOptions
from workbench.foreign.run import USUAL, run
from workbench.judge.diff import Diff, diff
from workbench.judge.explain.explain import Explained
from workbench.judge.reference.diff import ReferenceDiff
from workbench.operations.judge import OperationDiff
from workbench.refusal import Refusal
from workbench.trace.trace import Trace

if TYPE_CHECKING:
    from workbench.cuda.check import Checked
    from workbench.explore.laws.law import Laws
    from workbench.judge.reference.causes.cause import Explained as ReferenceExplained
    from workbench.operations.causes import OperationExplained


@overload
def explain(
    judged: Diff | Trace | str | Callable[..., Any],
    case: Case | None = None,
    *,
    effort: float = 1.0,
    seconds: float | None = None,
    **given: Unpack[RunOptions],
) -> Explained: ...


@overload
def explain(judged: ReferenceDiff, *, effort: float = 1.0, seconds: float | None = None) -> "ReferenceExplained": ...


@overload
def explain(judged: OperationDiff, *, effort: float = 1.0, seconds: float | None = None) -> "OperationExplained": ...


def explain(
    judged: Any, case: Case | None = None, *, effort: float = 1.0, seconds: float | None = None, **given: Any
) -> Any:
    """What is wrong in a run, as of `Diff.explain`. `judged`: its judgement, its trace, or a target as of `run`, which
    runs on `case` with the options `given`. `effort`, `seconds`: as of `Diff.explain`.

    Raises Refusal for a case or options beside what has run already, and what `run` and `diff` raise.

    >>> found = explain("examples/numpy_attention.py:scale_twice", Case(seqlen=8, head_dim=4), effort=0.01)
    >>> [cause.text for cause in found.causes]
    ['the scale is doubled']
    """
    if isinstance(judged, Diff | OperationDiff | ReferenceDiff | Trace):
        if case is not None or given:
            what = "case" if case is not None else next(iter(given))
            raise Refusal(f"explain runs a target, but this one has run: it takes no {what}")
        found = diff(judged) if isinstance(judged, Trace) else judged
    else:
        found = diff(run(judged, case or USUAL, **given))
    return found.explain(effort, seconds=seconds)


def watched(found: Explained) -> "Checked | None":
    """What a watched run of a wrong kernel finds: of a race its numbers tell no cause. None where nothing is wrong, and
    as of `foreign.check.watched`.
    """
    from workbench.foreign.check import watched as watch

    return watch(found.judged.trace) if found.judged.origins or found.usual else None


def laws(found: Explained) -> "Laws | None":
    """What a wrong kernel makes of the laws of attention. None where causes reproduce all of its wrong stages, where it
    races, of which laws say nothing either, and as of `of_trace`.
    """
    from workbench.explore.laws.every import of_trace

    races = found.watched is not None and not found.watched.passed
    return of_trace(found.judged.trace) if found.unexplained and not races else None
