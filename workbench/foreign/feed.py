"""Known-good stages that are put into a run, so that what reads them is tested without what makes them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from workbench.arrays import as_numpy
from workbench.case import masks as mask
from workbench.case.case import Case
from workbench.case.contract import Contract
from workbench.case.formats import kinds_of
from workbench.case.inputs import CODES
from workbench.case.stages import INPUTS, shape, stages_of
from workbench.floats import FLOATS, to_float64
from workbench.reference.forward import PLAIN, forward
from workbench.reference.problem import Codes
from workbench.refusal import Refusal
from workbench.trace.inputs import read as read_file

REFERENCE = "reference"


def parse(words: Sequence[str]) -> dict[str, str]:
    """Stage -> `reference` or a file, of words such as `partial_max,partial_sum=reference`."""
    found: dict[str, str] = {}
    for word in words:
        names, _, source = word.partition("=")
        stages = [name.strip() for name in names.split(",")]
        if not source or not all(stages):
            raise Refusal(f"--feed takes STAGE[,STAGE...]=reference or =FILE; got {word!r}")
        if twice := [name for i, name in enumerate(stages) if name in found or name in stages[:i]]:
            raise Refusal(f"a stage may be fed only once; got {twice[0]} twice")
        found |= dict.fromkeys(stages, source)
    return found


def values(
    algorithm: str, case: Case, inputs: Mapping[str, np.ndarray], feed: Mapping[str, Any], where: str
) -> dict[str, np.ndarray]:
    """The stages of `feed` as arrays with the axes of their stages: codes uint8, all that float64 makes float32.

    `feed`: stage -> "reference" (what float64 makes of q, k and v, rounded once), a file as of `inputs.read`, or an
    array. `case` is resolved: it tells tiles and splits. Refusal for what is no stage of `algorithm`, and for an array
    or a file that does not fit; `where` names the run in messages.
    """
    known = stages_of(algorithm, case.numbers, case.coded, kinds_of(case.codes))
    if unknown := [name for name in feed if name not in known]:
        raise Refusal(f"{where}: stages of {algorithm} are {', '.join(known)}; got {', '.join(unknown)}")
    made: dict[str, np.ndarray] = {}
    if any(isinstance(source, str) and source == REFERENCE for source in feed.values()):
        made = reference(algorithm, case, inputs, where, replace(PLAIN, block_k=case.block_k, splits=case.splits))
    read = {path: read_file(Path(path)) for path in dict.fromkeys(map(str, filter(_is_path, feed.values())))}
    found: dict[str, np.ndarray] = {}
    for name, source in feed.items():
        if isinstance(source, str) and source == REFERENCE:
            value = made[name]
            found[name] = value.astype(np.uint8 if name.startswith("codes") else np.float32)
            continue
        if _is_path(source) and name not in read[str(source)]:
            raise Refusal(f"{source} holds no {name}; it holds {', '.join(read[str(source)]) or 'nothing'}")
        accepted = CODES if name.startswith("codes") else FLOATS
        array = as_numpy(read[str(source)][name] if _is_path(source) else source, f"{where}: {name}", accepted)
        wanted = shape(known[name], case.sizes)
        if array.shape != wanted:
            axes = " ".join(known[name].axes)
            raise Refusal(
                f"{where}: {name} has axes [{axes}] and must have shape {list(wanted)} for this case; "
                f"got {list(array.shape)}"
            )
        found[name] = array.view(np.uint8) if name.startswith("codes") else array
    return found


def _is_path(source: Any) -> bool:
    return isinstance(source, Path) or (isinstance(source, str) and source != REFERENCE)


def reference(
    algorithm: str, case: Case, inputs: Mapping[str, np.ndarray], where: str, contract: Contract
) -> dict[str, np.ndarray]:
    """Every stage in float64, from q, k and v alone, of a kernel whose tiles and splits `contract` tells."""
    if missing := [name for name in INPUTS if name not in inputs]:
        raise Refusal(f"{where}: the float64 reference needs q, k and v; {', '.join(missing)} was not given")
    added = mask.attn_bias(case, inputs)
    return forward(
        algorithm,
        *(inputs[name] for name in INPUTS),
        **case.numbers,  # type: ignore[arg-type]  # which has neither a mask nor a bias
        mask=mask.visible(case, inputs),
        attn_bias=None if added is None else to_float64(added.bias),
        sinks=case.sink_logits,
        dropout_mask=inputs.get("dropout_mask"),
        score_mod=None if case.score_mod is None else partial(mask.modified, case),
        contract=contract,
        codes=None if case.codes is None else Codes(case.codes, str(case.quantiser_scale), case.scale_of, case.coded),
    )
