"""Arrays by name (q, k, v, out and other stages) as the trace of the run that left them: from an .npz, .pt or
.safetensors file that was not written for the workbench, or from Python.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from workbench.arrays import as_numpy
from workbench.case.case import Case
from workbench.case.command_line import case_fields
from workbench.case.fields import DRAWN, FIELDS, QUANTISED, of_role
from workbench.case.inputs import CODES, NAMES, by_name, fields, normalised, put_in
from workbench.case.options import Options
from workbench.case.presets import fields_of, merged
from workbench.case.stages import INPUTS, LSE, MASKS, OF_QUANTISER, OUT, STAGES, shape
from workbench.floats import DTYPES
from workbench.refusal import Refusal, meant
from workbench.trace.assembled import assembled
from workbench.trace.file import OTHERS
from workbench.trace.inputs import case_of
from workbench.trace.manifest import KEY, OF_OPERATION, metadata_of
from workbench.trace.trace import Trace

BOX = "bhsd"
#: arrays of Python's, in messages
NAME = "arrays"
#: the key of a dict, as of what a function returns
_CONTRACT = "contract"


def is_plain(target: str) -> bool:
    """Whether TARGET names a file of arrays without a manifest."""
    path = Path(target)
    if path.suffix != ".safetensors":
        return path.suffix in OTHERS
    metadata = metadata_of(path)
    return metadata is not None and not {KEY, OF_OPERATION} & {*metadata}


def of_arrays(
    held: Mapping[str, Any],
    case: Case | Mapping[str, Any] | None = None,
    *,
    name: str = NAME,
    contract: str | Mapping[str, Any] | None = None,
    layout: str = BOX,
    lse_layout: str = "",
) -> Trace:
    """The trace of a run that read and left the arrays `held`, of any library that speaks DLPack, by name.

    They are inputs as of `normalised`, q, k and v among them, or codes and scales, which the kernel was given then; and
    stages. Facts of the case may lie beside them (`scale`, `causal`), and a `contract` as of what a function returns; a
    stage that is None was not given. `case`: a case, or fields of one, which arrays do not tell; the usual ones where
    nobody says them. q, k, v and out have the axes `layout`, lse has `lse_layout`, of which "" is what is left of
    `layout` (`boxed`). `contract`: as of `presets.fields_of`, the weakest choice where it is silent. Refusal for arrays
    without a name of these, where q, k, v or every stage is missing, and for what does not fit or contradicts the case.
    """
    held = {x: value for x, value in held.items() if value is not None}
    _check_names(held, name)
    arrays = {x: value for x, value in held.items() if x in (*NAMES, *STAGES)}
    if numbers := [x for x, value in arrays.items() if not hasattr(value, "shape")]:
        raise Refusal(f"{name}: {numbers[0]} is a {type(arrays[numbers[0]]).__name__}, no array")
    facts = {x: _plain(value) for x, value in held.items() if x in FIELDS and x not in (*arrays, *of_role(DRAWN))}
    stated = stated_by(case, facts, name)
    for x in INPUTS:
        if x in arrays:
            heads = stated.get("heads") if x == "q" else stated.get("kv_heads", stated.get("heads"))
            arrays[x] = boxed(as_numpy(arrays[x], f"{name}: {x}", (*DTYPES.values(),)), layout, heads, f"{name}: {x}")
    read = normalised({x: value for x, value in arrays.items() if x in NAMES and not _made(x, arrays)}, name)
    made = _case(read, name, stated)
    if made.codes is not None and made.quantiser_scale is None:
        made = made.but(quantiser_scale=QUANTISED["quantiser_scale"][0])  # as of a function under test
    stages = {x: _stage(x, value, name) for x, value in arrays.items() if x in STAGES and x not in read}
    if OUT in stages:
        stages[OUT] = boxed(stages[OUT], layout, made.heads, f"{name}: {OUT}")
    if LSE in stages:
        of_lse = lse_layout or "".join(axis for axis in "bhs" if axis != "b" or "b" in layout)
        stages[LSE] = boxed(stages[LSE], of_lse, made.heads, f"{name}: {LSE}")
    _check_layout({**read, **stages}, layout, name)
    if made.dropout_p is not None and "dropout_mask" not in read:  # which nobody can draw again
        raise Refusal(f"{name}: dropout_p={made.dropout_p:g} needs dropout_mask, which marks the probs to keep")
    if made.codes is None and not {*INPUTS} <= {*read}:
        raise Refusal(f'{name}: codes need their format: pass --codes e4m3, or codes="e4m3" in the case')
    floats = {x: value for x, value in by_name(made, read).items() if x in (*INPUTS, *MASKS)}
    given = put_in(read, made, name)
    said = merged(fields_of(contract or {}, made), fields_of(held.get(_CONTRACT, {}), made), name)
    found = assembled(name, made, floats, {**given, **stages}, said, put_in=tuple(given))
    told = {*fields(read), *facts, "seqlen"}
    words = {x: value for x, value in case_fields(made, own=True).items() if x not in told}
    options = Options(layout=layout, contract=contract, stated=words)
    return replace(found, called_with=options.printable())


def _case(read: Mapping[str, np.ndarray], name: str, stated: Mapping[str, Any]) -> Case:
    try:
        return case_of(read, name, **stated)
    except Refusal as refusal:
        said = str(refusal)
        raise Refusal(said if said.startswith(name) else f"{name}: {said}") from None


def _check_names(held: Mapping[str, Any], name: str) -> None:
    """Refusal for inputs or stages that are missing, and for a name that nothing has."""
    there = ", ".join(map(str, held)) or "nothing"
    if lacking := [x for x in INPUTS if x not in held and f"codes_{x}" not in held]:
        raise Refusal(
            f"{name}: {', '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} missing; it holds {there}. Map other "
            'names with a mapping: --mapping FILE with [tensors] q = "query", or in Python '
            'mapping={"tensors": {"q": "query"}}'
        )
    known = (*NAMES, *STAGES, *FIELDS, _CONTRACT)
    if unknown := [x for x in held if x not in known]:
        raise Refusal(
            f"{name}: it holds {unknown[0]!r}, which is no input, stage or field of a case"
            f"{meant(str(unknown[0]), known)}; inputs are {', '.join(NAMES)}; stages are {', '.join(STAGES)}. "
            "A mapping (--mapping FILE) reads only the arrays that it names"
        )
    if not any(x in STAGES and _made(x, held) for x in held):
        raise Refusal(
            f"{name}: it holds only inputs: {there}; add a result of the kernel: out, lse, scores or another stage"
        )


def _made(x: str, arrays: Mapping[str, Any]) -> bool:
    """Whether it was made, not read: a stage, but for codes and scales in the place of an input."""
    return x in STAGES and (x not in OF_QUANTISER or x.rpartition("_")[2] in arrays)


def _plain(value: Any) -> Any:
    """A fact of the case as Python's own."""
    return value.tolist() if hasattr(value, "tolist") else value


def stated_by(case: Case | Mapping[str, Any] | None, facts: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The fields of the case that the user says, and the `facts` that `name` has beside the arrays; Refusal where the
    two differ.
    """
    if isinstance(case, Case):
        drawn = [x for x in of_role(DRAWN) if x != "seed" or not case.draws_beside]
        told = {x: value for x in FIELDS if x not in drawn and (value := getattr(case, x)) is not None}
    else:
        told = dict(case or {})
    if unknown := [x for x in told if x not in (*FIELDS, "seqlen")]:
        listed = ", ".join(FIELDS)
        raise Refusal(f"{name}: a case has no field {unknown[0]}{meant(unknown[0], FIELDS)}; fields are {listed}")
    for x, value in facts.items():
        of_file = FIELDS[x].rule.resolved(f"{name}: {x}", value)
        if x in told and not _same(FIELDS[x].rule.resolved(x, told[x]), of_file):
            raise Refusal(f"{name} has {x}={of_file}; got {x}={told[x]}")
        told[x] = of_file
    return told


def _same(one: Any, other: Any) -> bool:
    """Whether two values of a field are one; numbers, which files hold in float32, to its precision."""
    if isinstance(one, float) and isinstance(other, float):
        return bool(np.float32(one) == np.float32(other))
    return bool(one == other)


def _stage(x: str, value: Any, name: str) -> np.ndarray:
    if x.startswith("codes"):
        return as_numpy(value, f"{name}: {x}", CODES).view(np.uint8)
    return as_numpy(value, f"{name}: {x}")


def _check_layout(arrays: Mapping[str, np.ndarray], layout: str, name: str) -> None:
    """Refusal for q, k, v and stages whose shapes agree as [b, s, h, d] alone, and were read as [b, h, s, d]."""
    there = [x for x in (*INPUTS, OUT) if x in arrays]
    if layout != BOX or len(there) < len(INPUTS) or _agree(arrays):
        return
    swapped = {x: array.swapaxes(1, 2) if x in there else array for x, array in arrays.items()}
    if _agree(swapped):
        shapes = ", ".join(f"{x} {list(arrays[x].shape)}" for x in (*there, LSE) if x in arrays)
        raise Refusal(
            f"{name}: these are shapes of [batch, rows, heads, dim]: {shapes}; pass --arrays layout=bshd, or in Python "
            'layout="bshd"'
        )


def _agree(arrays: Mapping[str, np.ndarray]) -> bool:
    """Whether q, k, v and stages have the shapes of one run."""
    q, k, v = (arrays[x].shape for x in INPUTS)
    sizes = dict(zip("bhqkd", (*q[:3], k[2], v[3]), strict=True))
    whole = [x for x in arrays if x in STAGES and {*STAGES[x].axes} <= {*sizes}]
    fits = all(arrays[x].shape == shape(STAGES[x], sizes) for x in whole)
    return fits and k[:3] == v[:3] and (q[0], q[3]) == (k[0], k[3]) and q[1] % k[1] == 0


def boxed(x: np.ndarray, layout: str, heads: int | None, what: str) -> np.ndarray:
    """An array with the axes `layout`, of b h s d, outermost first, as [b, h, s, d], or [b, h, s] without dims; x is
    heads and dims in one axis; one that is not there has the size 1.
    """
    if x.ndim != len(layout):
        others = {2: " (sd: one head)", 3: " ([heads, rows, dim] is hsd, [rows, heads, dim] shd)"}.get(x.ndim, "")
        raise Refusal(
            f"{what} has shape {list(x.shape)}; the layout {layout} has {len(layout)} axes: pass another with "
            f"--arrays layout=hsd, in a mapping or in Python{others}"
        )
    if "x" in layout:
        at = layout.index("x")
        if not heads or x.shape[at] % heads:
            raise Refusal(
                f"axis x of {what} combines heads and dims and has {x.shape[at]} elements: [case] must give heads and "
                f"kv_heads; got {heads}"
            )
        x = x.reshape(*x.shape[:at], heads, x.shape[at] // heads, *x.shape[at + 1 :])
        layout = layout.replace("x", "hd")
    dims = BOX if "d" in layout else "bhs"
    x = x.transpose([layout.index(axis) for axis in dims if axis in layout])
    for place, axis in enumerate(dims):
        x = x if axis in layout else np.expand_dims(x, place)
    return np.ascontiguousarray(x)


def check_layout_word(layout: str, where: str) -> None:
    """Refusal for a layout that no array can have."""
    if len({*layout}) != len(layout) or not {*layout} <= {*BOX, "x"} or ("x" in layout) == ("d" in layout):
        raise Refusal(
            f"{where}: layout lists the axes of q, k, v and out, outermost first: b h s d, or x for heads and dims in "
            f"one; got {layout!r}"
        )
