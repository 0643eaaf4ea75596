"""Judged runs that pages are made of: a wrong Split-K, whose maps have cells of several elements, and hostile words."""

from dataclasses import replace
from functools import cache

from tests.stored import stored
from workbench import Case, Diff, diff, run
from workbench.line import Line
from workbench.report.page.flow import Flow, Panel
from workbench.report.page.graph import laid_out
from workbench.report.page.maps import IN_FULL, map_of
from workbench.report.page.page import Page

FAULT = "reduce-double-counts-sum"
CASE = Case(seqlen=160, head_dim=8, causal=True, block_q=16, block_k=16, splits=2)
#: what would run where it is not escaped, sets `ran` where it does
HOSTILE = '</script></style><script>ran=1</script><img src=x onerror="ran=1">\'"&'


@cache
def wrong() -> Diff:
    return diff(stored("split_k", CASE, faults=[FAULT]), report=True)


@cache
def right() -> Diff:
    return diff(run("split_k", CASE, backend="emulator"), report=True)


def hostile_stage() -> Page:
    """A page whose stage has a hostile name, which no trace gets past its check."""
    made = map_of(wrong()["qk"], CASE, IN_FULL)
    panel = Panel(HOSTILE, "origin", HOSTILE, HOSTILE, HOSTILE, [HOSTILE], map=made, exact={HOSTILE: [HOSTILE]})
    return Page(HOSTILE, "bug", "origin", [HOSTILE], flow=Flow(laid_out({HOSTILE: ("q",)}), [panel], HOSTILE))


@cache
def hostile() -> Diff:
    """The wrong run, every word of which that comes from outside is hostile."""
    trace = wrong().trace
    lines = {name: Line(HOSTILE, 1, HOSTILE) for name in trace.stages}
    return diff(
        replace(trace, target=HOSTILE, faults=(HOSTILE,), notes=(HOSTILE,), gates=(HOSTILE,), find_lines=lambda: lines)
    )
