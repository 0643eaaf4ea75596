"""Arrays that a kernel read and left, of which nobody wrote a manifest, as a trace."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from workbench.case.case import Case
from workbench.case.presets import fields_of
from workbench.case.stages import ALGORITHMS, STAGES, algorithm_of
from workbench.refusal import Refusal
from workbench.trace import seen
from workbench.trace.trace import Trace, check


def assembled(
    name: str,
    case: Case,
    inputs: Mapping[str, np.ndarray],
    stages: Mapping[str, np.ndarray],
    said: str | Mapping[str, Any],
    *,
    notes: tuple[str, ...] = (),
    gpu: str | None = None,
    put_in: tuple[str, ...] = (),
) -> Trace:
    """The trace of `inputs` (q, k, v [batch, head, row, dim], mask, bias) and `stages` of a kernel `name` that promises
    what is `said` (`presets.fields_of`), tiles and splits as the case has them, the weakest choice where both are
    silent. `gpu`: the generation of the GPU on which it ran. `put_in`: stages that it was given. Refusal for unknown
    stages, and arrays that do not fit the case.
    """
    if unknown := [stage for stage in stages if stage not in STAGES]:
        raise Refusal(f"{name}: unknown stage {unknown[0]!r}; stages are: {', '.join(STAGES)}")
    of_case = {field: x for field in ("block_k", "splits") if (x := getattr(case, field)) is not None}
    own = {stage: x for stage, x in stages.items() if stage not in put_in}
    promise = seen.promise_of(of_case | fields_of(said, case), own, inputs, case, gpu)
    splits = promise.splits not in (None, 1)
    algorithm = algorithm_of(stages, codes=case.codes is not None, splits=splits, scale_of=case.scale_of)
    made = Trace(
        target=name,
        algorithm=algorithm,
        case=case.but(block_k=promise.block_k, splits=promise.splits),
        contract=promise,
        inputs=inputs,
        stages={stage: stages[stage] for stage in ALGORITHMS[algorithm] if stage in stages},
        requested=(),
        put_in=put_in,
        notes=(*notes, *seen.notes(stages, case)),
    )
    return check(made, name)
