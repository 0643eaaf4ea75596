"""What a foreign function is called with: q, k and v, codes in their place, or the stages that its parameters name."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.case.case import Case
from workbench.case.fields import KEYWORDS
from workbench.case.inputs import NAMES, by_name, put_in
from workbench.case.stages import ALGORITHMS, INPUTS, MASKS, QUANTISED_INPUTS, STAGES, algorithm_of, before_attention
from workbench.cuda.quantize import KINDS, SCALINGS, quantize
from workbench.foreign.feed import REFERENCE, values
from workbench.refusal import Refusal

SCALES = tuple(f"scale_{x}" for x in INPUTS)
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
    keywords: Mapping[str, np.ndarray]
    options: Mapping[str, Any]  #: numbers of the case, by what the function calls them
    put_in: Mapping[str, np.ndarray]  #: those that are stages, with their axes


def arguments_of(
    function: Callable[..., Any], case: Case, read: Mapping[str, np.ndarray], feed: Mapping[str, Any], name: str
) -> Arguments:
    """What `function` is to be called with, of the inputs `read` (`inputs.normalised`).

    A function whose parameters name stages reads these: by `feed` (`feed.values`), or what float64 makes of the inputs.
    Else, where the case has codes, one with the keywords scale_q, scale_k and scale_v takes codes in the place of q, k
    and v; any other takes these. Refusal for inputs and stages that the function does not take, and for a function that
    cannot be called with them, scale and causal.
    """
    call = _arguments_of(function, case, read, feed, name)
    _check_call(function, call, name)
    return call


def _arguments_of(
    function: Callable[..., Any], case: Case, read: Mapping[str, np.ndarray], feed: Mapping[str, Any], name: str
) -> Arguments:
    parameters = parameters_of(function)
    anything = any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters.values())
    beside = {x: read[x] for x in MASKS if x in read}
    if lacking := [x for x in beside if x not in parameters and not anything]:
        raise Refusal(f"{name} takes no {' and no '.join(lacking)}, which the inputs hold: give it the keyword")
    if named := stages_read(function):
        return _stages(parameters, named, case, read, feed, name)
    if feed:
        raise Refusal(
            f"{name} reads no stage that could be fed: a function that does has parameters with the names of stages, "
            "such as partial_O"
        )
    options = _options(parameters, case, name)
    case, codes = _codes(parameters, case, read, name)
    positional = {x: codes.get(f"codes_{x}", read.get(x)) for x in INPUTS}
    scales = {stage: x for stage, x in codes.items() if stage in SCALES}
    return Arguments(case, positional, scales | beside, options, codes)  # type: ignore[arg-type]


def _options(parameters: Mapping[str, Any], case: Case, name: str) -> dict[str, Any]:
    """What the case has beside scale and causal, by the function's own keyword for it, which is the first where it
    takes any; Refusal where it takes none.
    """
    anything = any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters.values())
    found = {}
    for field, names in KEYWORDS.items():
        if (value := getattr(case, field)) is None:
            continue
        own = next((x for x in names if x in parameters), names[0] if anything else None)
        if own is None:
            raise Refusal(f"{name} takes no {names[0]}, which the case has ({field}={value}): give it the keyword")
        found[own] = value
    return found


def _check_call(function: Callable[..., Any], call: Arguments, name: str) -> None:
    """Refusal where a function's parameters are others than what it is called with, with a wrapper that mends it."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        return
    try:
        signature.bind(*call.positional, **dict.fromkeys([*call.keywords, *call.options, *CALLED_AS]))
        return
    except TypeError as mismatch:
        why = str(mismatch)
    parameters = signature.parameters
    required = [key for key, one in parameters.items() if one.default is one.empty]
    if lacking := [x for x in MASKS if x in required and x not in call.keywords]:
        raise Refusal(
            f"{name} needs {' and '.join(lacking)}, which the inputs do not hold: put it in (--inputs FILE), or give "
            "it a default"
        )
    words = [*call.positional, *(f"{x}={x}" for x in call.keywords)]
    words += [f"{own}={ours}" for ours, names in CALLED_AS.items() for own in names if own in parameters]
    function_name = getattr(function, "__name__", "mine")
    raise Refusal(
        f"{name}{signature} is called with {', '.join((*call.positional, *call.keywords))} and the keywords "
        f"{', '.join(CALLED_AS)}: {why}; a function that takes others is wrapped in one that takes these:\n"
        f"  def attention({', '.join((*call.positional, '*', *call.keywords, *CALLED_AS))}):\n"
        f"      return {function_name}({', '.join(words)})"
    )


def stages_read(function: Callable[..., Any]) -> list[str]:
    """The stages that a function reads, by the names of its parameters that have no default; scales go with codes."""
    stages = {*STAGES} - {*SCALES, "out", "lse"}
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
    wanted = [*named, *(scale for scale in SCALES if scale in parameters)]
    if unread := [stage for stage in feed if stage not in wanted]:
        raise Refusal(f"{name} reads {', '.join(wanted)}; {', '.join(unread)} cannot be fed")
    algorithm = algorithm_of(wanted, codes=case.codes is not None)
    case = case.but(block_k=case.block_k or BLOCK_K)
    if "merge_weight" in ALGORITHMS[algorithm]:
        case = case.but(splits=case.splits or SPLITS)
    if before_attention(algorithm):
        case = case.but(codes=case.codes or next(iter(KINDS)), quantiser_scale=case.quantiser_scale or SCALINGS[0])
    given = put_in(read, case)
    sources = {stage: feed.get(stage, given.get(stage, REFERENCE)) for stage in wanted}
    stages = values(algorithm, case, read, sources, name)
    inputs = {x: read[x] for x in (*INPUTS, *MASKS) if x in parameters and x in read}
    return Arguments(case, {}, inputs | stages, {}, stages)


def _codes(
    parameters: Mapping[str, Any], case: Case, read: Mapping[str, np.ndarray], name: str
) -> tuple[Case, dict[str, np.ndarray]]:
    """The case with its quantiser settled, and the codes and scales that the function is to be given, by stage: those
    put in, and what our quantiser makes of the others; none for a function that takes q, k and v.
    """
    takes = set(SCALES) <= set(parameters)
    found = put_in(read, case)
    if found and not takes:
        raise Refusal(
            f"{name} takes no codes, which are among the inputs: a function that does has the keywords "
            f"{', '.join(SCALES)}"
        )
    if case.codes is None and not takes:
        if case.quantiser_scale is not None:
            raise Refusal(f"quantiser_scale is for kernels on 8-bit codes: say codes too; {name} got none")
        return case, {}
    if case.codes is None:
        raise Refusal(f"{name} takes codes, as its keyword {SCALES[0]} says: choose codes of {', '.join(KINDS)}")
    scaling = case.quantiser_scale or SCALINGS[0]
    case = case.but(quantiser_scale=scaling)
    for x in INPUTS if takes else ():
        if f"codes_{x}" not in found:
            made = quantize(read[x], str(case.codes), saturate=True, scaling=scaling)
            found |= {f"codes_{x}": made.codes, f"scale_{x}": made.scale}
    return case, {stage: found[stage] for stage in QUANTISED_INPUTS if stage in found}


def drawn(case: Case) -> dict[str, np.ndarray]:
    """What kernels read of a case: q, k and v; where it has codes their codes and scales, too, as a function under test
    is given them.
    """
    arrays = by_name(case)
    if case.codes is None:
        return arrays
    for x in INPUTS:
        made = quantize(arrays[x], case.codes, saturate=True, scaling=case.quantiser_scale or SCALINGS[0])
        arrays |= {f"codes_{x}": made.codes, f"scale_{x}": made.scale}
    return {name: arrays[name] for name in NAMES if name in arrays}
