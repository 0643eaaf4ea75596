"""What is said beside the verdicts: the usual rules on out, and the bits that sums lose.

Both need what a part of the trace should be, most of which the verdicts need as well: where it is known before that a
report is wanted, they share its pass over the parts.
"""

from dataclasses import dataclass, field
from functools import reduce
from operator import add

import numpy as np

from workbench.case.box import Box
from workbench.case.stages import OUT
from workbench.expectation.compare import expected_out
from workbench.expectation.expectation import Expectation
from workbench.expectation.observed import Observed
from workbench.judge import cancellation
from workbench.judge.blocks import over_parts
from workbench.judge.usual_rules import Deviation, Rule, deviation
from workbench.reference.dataflow import nearest_dumped


@dataclass(frozen=True)
class Diagnostics:
    """What a report says beside the verdicts, gathered from the parts of a trace: the condition of its sums, and the
    usual tolerances applied to out.
    """

    bits_lost: dict[str, np.ndarray]  #: as `cancellation.room` says
    deviations: list[Deviation] = field(default_factory=list)  #: of the parts of out; none where it was not given whole

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The usual rules on out against float64 from what the kernel read; () where it was not given whole."""
        return reduce(add, self.deviations).rules if self.deviations else ()

    def gather(self, isolated: Expectation, propagated: Expectation) -> None:
        """Add a part: its expectation given the dumped stages, and that given q, k and v alone, of the same trace or of
        one with other inputs. From any thread.
        """
        if self.bits_lost:
            cancellation.fill(self.bits_lost, isolated, propagated)
        run = propagated.run
        if OUT in run.whole:
            # without a dumped stage before it both expectations of out are the same, and one is computed
            same = run is isolated.run and not nearest_dumped(run.table, OUT, isolated.dumped)
            self.deviations.append(deviation(run, isolated.part, expected_out(isolated if same else propagated)))


def diagnostics(run: Observed) -> Diagnostics:
    """What is said of a run, in a pass of its own; of a kernel on codes bits lost of what its attention read,
    and rules against what it should have read.
    """
    read, right = run.dequantised, run.right_attention
    found = Diagnostics(cancellation.room(read))

    def one(part: Box) -> None:
        found.gather(Expectation(read, read.readable, part), Expectation(right, {}, part))

    over_parts(read, "cpu", one, f"rounding rules and lost bits of {run.trace.target}")
    return found
