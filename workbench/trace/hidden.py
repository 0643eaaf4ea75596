"""A trace with its masks told apart: what is judged is which keys are seen, not how that was said."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from workbench.case.bands import band
from workbench.case.case import Case
from workbench.case.hiding import hiding, restored
from workbench.trace.trace import Trace


def with_mask(trace: Trace) -> Trace:
    """The trace with a mask in place of the numbers of its bias that hide keys (`hiding.hiding`), with a note of it,
    and the trace itself as `as_given`; so are its reruns, of which the function gets numbers again. The trace itself
    where its bias hides none.
    """
    if trace.as_given is not None or (found := hiding(trace.case, trace.inputs)) is None:
        return trace
    run = trace.rerun

    def again(case: Case, inputs: Mapping[str, np.ndarray] | None = None) -> Trace:
        assert run is not None
        return with_mask(run(case, None if inputs is None else restored(inputs, trace.inputs, found.largest)))

    keys = f"bias values of {found.largest:.4g} or below mask {found.keys} (row, key) pairs"
    rows = (
        f"; {found.rows} rows are empty (no visible key), where 0, NaN, the mean of v and the result of these "
        "values are all accepted"
    )
    note = (f"judged as a mask: {keys}{rows if found.rows else ''}",) if found.keys else ()
    return replace(
        trace,
        inputs=found.inputs,
        as_given=trace,
        notes=(*trace.notes, *note),
        rerun=None if run is None else again,
        resident=None,
    )


def told_apart(trace: Trace) -> Trace:
    """A trace at rest whose mask is a band and padding, causal or of a window, with the band in its case; the trace
    itself where the mask is something else, and where the kernel can be run again, which takes masks as it was given
    them.
    """
    if trace.rerun is not None or trace.box is not None or "mask" not in trace.inputs:
        return trace
    if (found := band(trace.case, trace.inputs["mask"])) is None:
        return trace
    inputs = {name: x for name, x in trace.inputs.items() if name != "mask"}
    if found.mask is not None:
        inputs["mask"] = found.mask
    return replace(trace, case=trace.case.but(**found.fields), inputs=inputs)
