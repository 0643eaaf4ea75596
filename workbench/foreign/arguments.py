"""What a foreign function is called with: q, k and v, codes in their place, or the stages that its parameters name."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from workbench.case import formats
from workbench.case.case import Case
from workbench.case.fields import QUANTISER, of_role
from workbench.case.inputs import NAMES, by_name, put_in
from workbench.case.memory import poison_of
from workbench.case.stages import (
    INPUTS,
    MASKS,
    OF_QUANTISER,
    RESULTS,
    STAGES,
    algorithm_of,
    before_attention,
    merges,
)
from workbench.cuda.quantize import KINDS, SCALINGS, quantized
from workbench.foreign.adapters import Adapter, check
from workbench.foreign.feed import REFERENCE, values
from workbench.foreign.keywords import Asked, keywords_of
from workbench.foreign.layouts import BOX, PACKED, laid, poisoned
from workbench.refusal import Refusal

SCALES = tuple(f"scale_{x}" for x in INPUTS)
#: what goes with codes: scales, and zero points and scales of tensors in formats that have them
BESIDE_CODES = tuple(stage for stage in OF_QUANTISER if not stage.startswith("codes"))
#: keys in a tile and splits of the stages that are put into a function, where the case does not tell
BLOCK_K, SPLITS = 64, 2
#: keywords of every call -> what libraries call them
CALLED_AS: Mapping[str, tuple[str, ...]] = {
    "scale": ("scale", "softmax_scale", "sm_scale"),
    "causal": ("causal", "is_causal"),
}


@dataclass(frozen=True)
class Arguments:
    """The arrays of a call, by name."""

    case: Case  #: with what the stages put in were made with
    positional: Mapping[str, np.ndarray]
    keywords: Mapping[str, Any]  #: arrays and numbers, by what the function calls them
    put_in: Mapping[str, np.ndarray]  #: those that are stages, with their axes
    axes: Mapping[str, str] = field(default_factory=dict)  #: of out and lse, as of `layouts`; others are as stages are


def arguments_of(
    function: Callable[..., Any],
    adapter: Adapter | None,
    asked: Asked,
    feed: Mapping[str, Any],
    name: str,
    layout: str,
) -> Arguments:
    """What `function` is to be called with, of a case and its inputs; boxes in the `layout` of the options.

    A package's function takes what its `adapter` says. A function whose parameters name stages reads these: by `feed`
    (`feed.values`), or what float64 makes of the inputs. Else, where the case has codes, one with the keywords scale_q,
    scale_k and scale_v takes codes in the place of q, k and v, and one without scale_q in that of k and v; any other
    takes these. Refusal for what a case has, and
    inputs and stages, that the function does not take, and for one that cannot be called with them, scale and causal.
    """
    named = [] if adapter is not None else stages_read(function)
    if feed and not named:
        raise Refusal(f"{name} has no parameter named after a stage, such as partial_O, so nothing can be fed")
    if adapter is not None:
        check(adapter, asked, name)
        axes = dict(zip(RESULTS, (adapter.q, adapter.lse), strict=True))
        return Arguments(asked.case, adapter.arrays_of(asked), adapter.keywords(asked), {}, axes)
    parameters = parameters_of(function)
    if named:
        call = _stages(parameters, named, asked.case, asked.read, feed, name)
    else:
        call = _inputs(parameters, asked, layout, name)
    _check_call(function, call, name)
    return call


def _inputs(parameters: Mapping[str, inspect.Parameter], asked: Asked, layout: str, name: str) -> Arguments:
    """q, k and v, or codes in their place, as the keywords of a function have them lie."""
    told = keywords_of(parameters, asked, name)
    case, codes = _codes(parameters, asked.case, asked.read, name)
    if codes and (told.packed or told.paged):
        raise Refusal(f"{name}: quantised codes cannot be packed or paged; use the padded layout")
    if layout != BOX and {*told.packed, *("kv" if told.paged else "")} == {*INPUTS}:
        raise Refusal(f"{name}: layout= is for padded arrays; q, k and v are packed or paged; got layout={layout!r}")
    box = "bshd" if layout == "bshd" else BOX
    lengths = {"q": case.lengths_q, "k": case.lengths_k, "v": case.lengths_k}
    positional = {}
    for x in INPUTS:
        if f"codes_{x}" in codes:
            positional[x] = laid(codes[f"codes_{x}"], box, lengths[x])
        elif told.paged and x != "q" and asked.pages is not None:
            positional[x] = getattr(asked.pages, x)
        else:
            kind = "stale" if told.masked else poison_of(case)  # what a mask hides is read, and has to be finite
            rows = poisoned(asked.read[x], lengths[x], kind, case.seed)
            positional[x] = laid(rows, PACKED if x in told.packed else box, lengths[x])
    beside = {stage: x for stage, x in codes.items() if stage in BESIDE_CODES}
    keywords = {**beside, **told.values, "scale": case.scale, "causal": case.causal and not told.masked}
    axes = dict(zip(RESULTS, (PACKED, "hn") if "q" in told.packed else (box, "bhs"), strict=True))
    return Arguments(case, positional, keywords, codes, axes)


class OtherParameters(Refusal):
    """A function that takes others than q, k and v."""


def _check_call(function: Callable[..., Any], call: Arguments, name: str) -> None:
    """Refusal where a function's parameters are others than what it is called with, with a wrapper that mends it."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        return
    try:
        signature.bind(*call.positional, **call.keywords)
        return
    except TypeError as mismatch:
        why = str(mismatch)
    parameters = signature.parameters
    required = [key for key, one in parameters.items() if one.default is one.empty]
    if lacking := [x for x in MASKS if x in required and x not in call.keywords]:
        raise Refusal(
            f"{name} needs {' and '.join(lacking)}, which the inputs do not hold: pass it with --inputs FILE, or give "
            "it a default"
        )
    others = [x for x in call.keywords if x not in CALLED_AS]
    words = [*call.positional, *(f"{x}={x}" for x in others)]
    words += [f"{own}={ours}" for ours, names in CALLED_AS.items() for own in names if own in parameters]
    function_name = getattr(function, "__name__", "mine")
    raise OtherParameters(
        f"{name}{signature} is called with {', '.join((*call.positional, *others))} and the keywords "
        f"{', '.join(CALLED_AS)}: {why}; wrap a function that takes others:\n"
        f"  def attention({', '.join((*call.positional, '*', *others, *CALLED_AS))}):\n"
        f"      return {function_name}({', '.join(words)})"
    )


def stages_read(function: Callable[..., Any]) -> list[str]:
    """The stages that a function reads, by the names of its parameters that have no default; scales go with codes."""
    stages = {*STAGES} - {*BESIDE_CODES, *RESULTS}
    return [key for key, one in parameters_of(function).items() if key in stages and one.default is one.empty]


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The parameters of a function by name; none of a compiled one, such as pybind11's, that does not tell."""
    try:
        return inspect.signature(function).parameters
    except ValueError:
        return {}


def _stages(
    parameters: Mapping[str, Any],
    named: list[str],
    case: Case,
    read: Mapping[str, np.ndarray],
    feed: Mapping[str, Any],
    name: str,
) -> Arguments:
    """The stages that parameters name, and those of the inputs that they name too."""
    anything = any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters.values())
    if lacking := [x for x in MASKS if x in read and x not in parameters and not anything]:
        raise Refusal(f"{name} takes no {' and no '.join(lacking)}, which the inputs hold: add the keyword")
    codes = case.codes or next(iter(KINDS))
    of_format = formats.beside(codes, case.coded)
    beside = [x for x in BESIDE_CODES if x in parameters]
    needed = [x for x in beside if parameters[x].default is inspect.Parameter.empty]
    if lacking := [x for x in needed if x not in of_format]:
        raise Refusal(
            f"{name} needs {' and '.join(lacking)}, which {codes} codes of {', '.join(case.coded)} do not have: give "
            "that parameter a default"
        )
    wanted = [*named, *(x for x in beside if x in of_format)]
    if unread := [stage for stage in feed if stage not in wanted]:
        raise Refusal(f"{name} reads {', '.join(wanted)}; {', '.join(unread)} cannot be fed")
    algorithm = algorithm_of(wanted, codes=case.codes is not None, scale_of=case.scale_of)
    case = case.but(block_k=case.block_k or BLOCK_K)
    if merges(algorithm):
        case = case.but(splits=case.splits or SPLITS)
    if before_attention(algorithm):
        case = case.but(codes=codes, quantiser_scale=case.quantiser_scale or SCALINGS[0])
    given = put_in(read, case, name)
    sources = {stage: feed.get(stage, given.get(stage, REFERENCE)) for stage in wanted}
    stages = values(algorithm, case, read, sources, name)
    inputs = {x: read[x] for x in (*INPUTS, *MASKS) if x in parameters and x in read}
    numbers = {"scale": case.scale, "causal": case.causal}
    return Arguments(case, {}, {**inputs, **stages, **numbers}, stages)


def _codes(
    parameters: Mapping[str, Any], case: Case, read: Mapping[str, np.ndarray], name: str
) -> tuple[Case, dict[str, np.ndarray]]:
    """The case with its quantiser resolved, and the codes and scales that the function is to be given, by stage: those
    put in, and what our quantiser makes of the others; none for a function that takes q, k and v.
    """
    scaled = [x for x in INPUTS if f"scale_{x}" in parameters]
    takes = {*"kv"} <= {*scaled}
    if takes and "q" not in scaled:
        if case.codes_of == "qkv":
            raise Refusal(f"{name} takes quantised codes of k and v only: it has no keyword scale_q; got codes_of=qkv")
        case = case.but(codes_of="kv")
    due = [] if case.codes is None else formats.beside(case.codes, case.coded)
    if takes and (lacking := [stage for stage in due if stage not in parameters]):
        raise Refusal(f"{name} takes {case.codes} codes, which also have {', '.join(lacking)}: add the keywords")
    found = put_in(read, case, name)
    if found and not takes:
        raise Refusal(
            f"{name} takes no quantised codes, but the inputs hold some: add the keywords {', '.join(SCALES)}, or "
            "the last two for codes of k and v"
        )
    if takes and (unread := [stage for stage in found if stage[-1] not in case.coded]):
        raise Refusal(
            f"{name} takes quantised codes of {' and '.join(case.coded)} only; the inputs also have {', '.join(unread)}"
        )
    if case.codes is None and not takes:
        if said := [field for field in of_role(QUANTISER) if getattr(case, field) is not None]:
            raise Refusal(f"{said[0]} is for quantised kernels: give codes too; {name} got none")
        return case, {}
    if case.codes is None:
        raise Refusal(
            f"{name} takes quantised codes (keyword scale_{case.coded[0]}): choose codes, one of {', '.join(KINDS)}"
        )
    scaling = case.quantiser_scale or SCALINGS[0]
    case = case.but(quantiser_scale=scaling)
    for x in case.coded if takes else ():
        if f"codes_{x}" not in found:
            found |= quantized(read[x], x, case)
    return case, {stage: found[stage] for stage in OF_QUANTISER if stage in found}


def drawn(case: Case) -> dict[str, np.ndarray]:
    """What kernels read of a case: q, k and v; where it has codes their codes and scales, too, as a function under test
    is given them.
    """
    arrays = by_name(case)
    if case.codes is None:
        return arrays
    for x in case.coded:
        arrays |= quantized(arrays[x], x, case)
    return {name: arrays[name] for name in NAMES if name in arrays}
