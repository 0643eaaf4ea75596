"""What is said beside the verdict, in sentences: the run's own notes and what quantisation cost; in full what other
rules make of out, and which sums are ill-conditioned.
"""

import numpy as np

from workbench.case.stages import INPUTS, RESULTS
from workbench.expectation.elements import State
from workbench.judge.cancellation import GOOD_BITS, ill_conditioned
from workbench.judge.diff import Diff
from workbench.judge.usual_rules import Rule


def notes(diff: Diff) -> list[str]:
    """The notes of the trace, a line on NaN among its inputs, and one on what quantisation cost."""
    held = {x: int(np.isnan(diff.trace.inputs[x]).sum()) for x in INPUTS if x in diff.trace.inputs}
    held = {x: count for x, count in held.items() if count}
    lines = [*diff.trace.notes]
    if held:
        which = ", ".join(f"{count} in {x}" for x, count in held.items())
        lines.append(f"the inputs have NaN ({which}): NaN is expected in every result that reads them")
    if diff.loss is None:
        return lines
    return [
        *lines,
        f"largest error of out: {np.abs(diff.loss.of_out).max():.3g} from quantisation, "
        f"{np.abs(diff.loss.of_kernel).max():.3g} from the kernel given its codes",
    ]


def remarks(diff: Diff) -> list[str]:
    """A line on how many elements are right to the last bit, one on other rules where there is an out, and one for each
    stage with ill-conditioned elements.
    """
    found = diff.rules
    lines = [line] if (line := bit_match(diff)) else []
    lines += [f"other rules on out: {', '.join(map(_said, found))}"] if found else []
    for name, bits in diff.bits_lost.items():
        if few := int(ill_conditioned(bits).sum()):
            worst = np.unravel_index(int(np.nanargmax(bits)), bits.shape)
            place = " ".join(f"{axis}={i}" for axis, i in zip(diff[name].axes, worst, strict=True))
            lines.append(
                f"ill-conditioned: {name} has {few} of {bits.size} elements with fewer than {GOOD_BITS} good bits, "
                f"worst at {place}: {bits[worst]:.1f} bits lost"
            )
    return lines


def bit_match(diff: Diff) -> str:
    """The share of elements of out and lse, where they were given whole, that are the correct rounding of what float64
    makes of the same inputs; of a victim, of q, k and v.
    """
    shares = [
        f"{stage.name} {stage.reported.summary.count(State.EXACT) / stage.reported.summary.size:.1%}"
        for stage in diff.stages
        if stage.name in RESULTS and stage.reported is not None and stage.name not in diff.trace.sparse
    ]
    return f"correctly rounded: {', '.join(shares)}" if shares else ""


def _said(rule: Rule) -> str:
    """passes or fails, and where it fails by how much: assert_close has a tolerance for each element."""
    if rule.passes:
        return f"{rule.name} passes"
    if rule.name == "assert_close":
        return f"{rule.name} fails ({rule.value:.3g}x its tolerance)"
    return f"{rule.name} fails ({rule.value:.3g}, limit {rule.limit:.3g})"
