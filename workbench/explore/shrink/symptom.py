"""What must stay as a case shrinks: the first wrong stage, and why it is wrong."""

import re
from dataclasses import dataclass

from workbench.case.stages import RESULTS
from workbench.expectation.elements import State
from workbench.judge.diff import Diff
from workbench.judge.explain.by_measure import by_measure
from workbench.judge.explain.cause import Cause
from workbench.judge.explain.coded import Coded
from workbench.judge.explain.explain import Explained
from workbench.judge.explain.scene import Scene
from workbench.judge.explain.trial import holds
from workbench.readings.target import CALLS_OF_CODES
from workbench.work import TRIALS_OF_RUN, Work, trials

#: what may be wrong with the worst element of a stage, beside its number
NO_NUMBERS = {State.NAN: "non-finite on one side", State.UNWRITTEN: "never written"}
#: trials at 128 x 128 that no measurement takes
MEASURING = 4 * TRIALS_OF_RUN * CALLS_OF_CODES
#: a number of a sentence, or several, as `0-3, 8 and 2 more`
_NUMBER = r"[-+]?\d[\d.e+-]*"
_NUMBERS = re.compile(rf"{_NUMBER}(, {_NUMBER})*( and \d+ more)?")


@dataclass(frozen=True, eq=False)
class Symptom:
    """How a run fails."""

    origin: str  #: the first wrong stage
    kind: str  #: how it is wrong at the worst of its elements, in words
    cause: Cause | None  #: that tells of the first wrong stage in other runs, too; None where nothing does
    scene: Scene | Coded | None  #: of the run in which the cause was found
    reached: bool  #: whether an output is wrong, too, from q, k and v

    @staticmethod
    def of(judged: Diff, explained: Explained) -> "Symptom":
        """Of a judged run that has a wrong stage, and what explains it."""
        origin = judged.origin
        assert origin is not None
        run = judged.run
        # a cause that fails on fresh cases may be one that the kernel has on some alone: here each run is asked
        fitting = (*explained.causes, *explained.withdrawn)
        # and a formula predicts nothing of another run; what was measured is measured again
        predicting = (cause for cause in fitting if cause.members[0].edits or cause.measured)
        cause = next((cause for cause in predicting if origin in cause.fit.stages), None)
        scene: Scene | Coded | None = None
        if cause is not None and origin in run.before_attention and run.case.codes is not None:
            scene = Coded.of(run)
        elif cause is not None and cause.supposed is not None:
            scene = Scene(cause.supposed.of(run), supposed=cause.supposed)
        elif cause is not None and not cause.measured:
            scene = Scene.of(run)
        return Symptom(origin, kind(judged), cause, scene, reached(judged))

    def shows_in(self, judged: Diff, work: Work) -> bool:
        """Whether another run of the kernel fails in this way: the same stage is the first wrong one, and the plainest
        name of the cause reproduces it, or the function is measured again and the same is found, but for its numbers;
        where nothing explains it, it is wrong in the same kind. Where an output was wrong, one is. Measuring counts
        as `work`, and is finished whatever is left of it.
        """
        if judged.origin != self.origin or reached(judged) < self.reached:
            return False
        if self.cause is not None and self.cause.measured:
            found = by_measure(
                judged.run, judged.origins, work.part(least=MEASURING * trials(judged.run.case.score_count))
            )
            said = {_without_numbers(one.text) for one in found if self.origin in one.fit.stages}
            return _without_numbers(self.cause.text) in said
        if self.cause is None or self.scene is None:
            return kind(judged) == self.kind
        return holds(self.scene.like(judged.run), self.cause.members[0], elsewhere=True) is True


def _without_numbers(text: str) -> str:
    """The words of a cause. Its numbers are rows, keys and heads of a case, and factors read to other digits.

    >>> _without_numbers("keys 0-31, 64 and 2 more in rows 5 get no weight")
    'keys # in rows # get no weight'
    """
    return _NUMBERS.sub("#", text)


def kind(judged: Diff) -> str:
    """How the first wrong stage is wrong at the worst of its elements."""
    assert judged.origin is not None
    stage = judged[judged.origin]
    worst = None if stage.decisive is None else stage.decisive.summary.worst
    return "missing" if worst is None else NO_NUMBERS.get(worst.state, "over budget")


def reached(judged: Diff) -> bool:
    """Whether out or lse is outside its budget from q, k and v."""
    outputs = (stage.propagated for stage in judged if stage.name in RESULTS)
    return any(found is not None and found.summary.outside > 0 for found in outputs)
