"""Some rows of some heads of a run, as a run of these alone, which can be run again on other numbers of theirs."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from workbench.case.box import Box
from workbench.case.case import Case
from workbench.case.fields import GIVEN
from workbench.case.masks import spread
from workbench.case.stages import INPUTS, MASKS, RESULTS
from workbench.refusal import Refusal
from workbench.trace.trace import Part, Trace


def check_rows(case: Case, where: str, *, in_part: bool = False) -> None:
    """Refusal where what a row is depends on where it stands, so that some rows of a case are no case of their own."""
    of_place = {
        "ALiBi": case.alibi_slopes, "score_mod": case.score_mod, "mask_mod": case.mask_mod, "dropout": case.dropout_p,
        "sequences of several lengths": case.ragged, "pages": case.page_size, "codes": case.codes,
        "v that is a part of k": case.shared_kv, "a dump of a part": in_part,
    }  # fmt: skip
    if has := [name for name, there in of_place.items() if there]:
        raise Refusal(f"{where}: rows cannot be judged alone in a run with {', '.join(has)}")


def case_of(case: Case, part: Box) -> Case:
    """The case of some rows of some heads, whole groups that share their keys; which keys they see is no part of it."""
    batches, heads, kv_heads = range(case.batch)[part.b], range(case.heads)[part.h], part.of_kv(case).h
    return case.but(
        batch=len(batches), heads=len(heads), kv_heads=len(range(case.kv_heads)[kv_heads]),
        seqlen_q=len(np.arange(case.seqlen_q)[part.q]), seqlen_k=case.seqlen_k, causal=False, window=None,
        scale=case.scale,
        **{name: tuple(x[part.h].tolist()) for name, x in case.of_heads.items()},
    )  # fmt: skip


def of_rows(trace: Trace, batches: slice, heads: slice, rows: np.ndarray) -> Trace:
    """out and lse of some rows [ascending] of some heads, whole groups that share their keys, as a trace of a case of
    these alone; what its rows see in the whole case is the `mask` of its inputs.

    Run again, the kernel runs whole, on the run's own inputs but for the numbers of these rows and heads; on arrays
    that stay on its device where it can (`Trace.resident`). Refusal where what a row is depends on where it stands:
    ALiBi, score_mod, dropout, sequences of several lengths, pages, codes; and for a trace at rest and a part of a run.
    """
    case = trace.case
    check_rows(case, trace.target, in_part=trace.box is not None)
    if trace.rerun is None:
        raise Refusal(f"{trace.target} is a stored trace, which cannot be run again")
    part = Box(batches, heads, rows)
    of_kv = part.of_kv(case)
    some = case_of(case, part)
    seen = part.visible(case, trace.inputs)
    masks = {name: part.of(spread(case, trace.inputs[name]), "bhqk") for name in MASKS if name in trace.inputs}
    if not seen.all():
        masks["mask"] = seen
    at = {"q": part, "k": of_kv._replace(q=slice(None)), "v": of_kv._replace(q=slice(None))}
    numbers = None
    if (given := trace.as_given) is not None:
        of_part = {name: part.of(spread(case, given.inputs[name]), "bhqk") for name in MASKS if name in given.inputs}
        of_part["mask"] = part.visible(case, given.inputs)
        numbers = replace(given, case=some, inputs={x: given.inputs[x][at[x]] for x in INPUTS} | of_part)
    stages = {name: part.of(trace.stages[name], stage.axes) for name, stage in RESULTS.items() if name in trace.stages}
    inputs = {name: trace.inputs[name][at[name]] for name in INPUTS} | masks

    def whole(given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        found = dict(trace.inputs)
        for name in INPUTS:
            if given[name] is not inputs[name]:
                found[name] = trace.inputs[name].copy()
                found[name][at[name]] = given[name]
        return found

    def again(sub: Case, given: Mapping[str, np.ndarray] | None = None) -> Trace:
        assert trace.rerun is not None
        if given is None:
            given = dict(zip(INPUTS, sub.inputs(), strict=True)) | masks
        if trace.resident is not None:
            changed = {name: Part(at[name], x) for name in INPUTS if (x := given[name]) is not inputs[name]}
            found = trace.resident(changed, part)
        else:
            made = trace.rerun(case.but(distribution=GIVEN), whole(given)).stages
            found = {name: part.of(made[name], RESULTS[name].axes) for name in stages}
        ran = some.but(distribution=sub.distribution, seed=sub.seed)
        return replace(cut, case=ran, inputs=dict(given), stages=found)

    cut = replace(
        trace, case=some, inputs=inputs, stages=stages, sparse={}, requested=(), rerun=again, resident=None,
        as_given=numbers,
    )  # fmt: skip
    return cut
