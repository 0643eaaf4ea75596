"""What a capture saw, in lines."""

from workbench.explore.capturing.report import Report
from workbench.explore.capturing.verdict import Judged
from workbench.report.numbers import number, times, value
from workbench.suggested import command

#: share of right calls that are suspicious by chance, at most
FEW = 0.02


def lines(found: Report) -> list[str]:
    """The counts, what was not judged and why, the worst call, and how to judge the kept one again."""
    made = [
        f"{found.target}: {found.calls:,} calls, {found.sampled:,} sampled, {found.judged:,} judged, "
        f"{sum(found.dropped.values()):,} dropped, {found.wrong:,} wrong"
    ]
    if found.unseen:
        made.append(f"no call was seen: {found.unseen}")
    made += [f"  dropped: {n:,} x {why}" for why, n in found.dropped.items()]
    made += [f"  not judged: {n:,} x {why}" for why, n in found.unread.items()]
    made += [f"  {said}" for said in found.remarks]
    if found.kept is not None:
        stage = f" at {found.kept.stage}" if found.kept.stage else ""
        made.append(f"first wrong: {found.kept.named}, {found.kept.verdict}{stage}, {_place(found.kept)}")
        made += [f"  cause: {cause}" for cause in found.causes]
        made.append(f"  repeat: {command('diff', found.folder)}")
    if found.gradients:
        made.append(f"backward passes: {found.gradients:,} judged, {found.wrong_gradients:,} wrong")
    if found.kept_gradients is not None:
        one = found.kept_gradients
        made.append(f"first wrong backward pass: of {one.named}, {one.verdict} at {one.stage}, {_place(one)}")
        made.append(f"  repeat: {command('diff', f'{found.folder}/backward')}")
    if found.awaited:
        made.append(f"backward passes: {found.awaited:,} have not run, did not reach all arguments, or were dropped")
    if found.worst is not None:
        made.append(f"largest error / budget of right calls: {found.worst.named}, {_place(found.worst)}")
    if found.doubted:
        made.append(
            f"suspicious: {found.doubted:,} of {found.judged:,} judged calls are over their statistical budget"
            f"{_doubt(found)}"
        )
    if found.judged and not found.wrong:
        made.append(
            "every call is right given its inputs; wrong inputs (cache, rotation, an earlier layer) would not show"
        )
    if not found.judged:
        made.append("nothing was judged, so no call is known to be right")
    if found.sampled:
        each = 1e3 * found.host_s / found.sampled
        made.append(f"cost: {each:.3g} ms per sampled call for the caller, {found.judging_s:.3g} s of judging in total")
    return made


def _doubt(found: Report) -> str:
    if found.doubted <= FEW * found.judged:
        return "; a few such calls are normal"
    return (
        ': chance does not explain so many; declare the arithmetic (contract=), or keep all calls (keep="all") and '
        "inspect one"
    )


def _place(found: Judged) -> str:
    """The element that is farthest from its budget."""
    of = found.element
    if not of:
        return "no element could be judged"
    if found.reason:  # of one that is wrong by more than its elements
        return found.reason
    index = " ".join(f"{axis}={i}" for axis, i in of["index"].items())
    return (
        f"error {times(found.over_budget)} at {of['stage']} {index}: actual {value(of['actual'])}, "
        f"expected {value(of['expected'])}, budget {number(of['allowed'])}"
    )
