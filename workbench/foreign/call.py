"""Kernels that are not ours: a Python callable, found by `path.py:function`, run on a case and brought into a trace."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from workbench.arrays import ARRAYS, advice, handed_over, home, names_torch, of_torch, written
from workbench.case import mods
from workbench.case.box import parse
from workbench.case.case import Case
from workbench.case.command_line import case_options
from workbench.case.contract import check_names
from workbench.case.formats import float8_of
from workbench.case.inputs import anew, by_name
from workbench.case.options import Options
from workbench.case.presets import fields_of, merged
from workbench.case.stages import ALGORITHMS, INPUTS, MASKS, OUT, STAGES, algorithm_of, before_attention
from workbench.case.tensor_cores import generation_of
from workbench.case.user_code import Function, running
from workbench.foreign import returned
from workbench.foreign.adapters import adapter_of, lives
from workbench.foreign.arguments import arguments_of
from workbench.foreign.collect import failed, loading, of_run, repeats, wrote
from workbench.foreign.keywords import Asked
from workbench.foreign.lacking import lacking
from workbench.foreign.launches import Launches, emulated
from workbench.foreign.layouts import BOX, check_swapped, results
from workbench.foreign.lines import lines_of
from workbench.foreign.packages import Call
from workbench.foreign.probes import interpreter as triton_interpreter
from workbench.foreign.repeats import repeated
from workbench.foreign.resident import resident
from workbench.raised import as_raised
from workbench.refusal import Raised, Refusal, Unavailable
from workbench.suggested import command
from workbench.trace import seen
from workbench.trace.narrow import narrowed
from workbench.trace.provenance import Provenance
from workbench.trace.sparse import dims_of, of_coordinates
from workbench.trace.trace import Trace, check, check_inputs

#: of q, k, v and out; strided: of shape [b, h, s, d], but in memory [b, s, h, d]
LAYOUTS = ("bhsd", "bshd", "strided")


def _watched_by(name: str, case: Case, options: Options) -> str:
    """The command that watches what a function launches on a case; empty for one that has no name in a file."""
    if ":" not in name:
        return ""
    own = Options(arrays=options.arrays, layout=options.layout)
    return command("check", name, [*case_options(case, own=False), *own.words()])


class _OfTorch(Raised):
    """A function that raised on NumPy arrays, and may be written for tensors of torch."""


def run_foreign(
    function: Function, case: Case, options: Options, *, name: str, code: Provenance | None = None
) -> Trace:
    """The trace of a foreign kernel.

    `function(q, k, v, *, scale, causal)` takes q, k, v in the case's dtype as `arrays` of `layout` on `device` and
    returns out, (out, lse), or a dict of stage name -> array, with an optional key "contract" (a dict); a stage given
    in part is {"indices": [n, axes], "values": [n]} in place of an array. Where the case has codes, a function with the
    keywords scale_q, scale_k and scale_v takes codes (uint8) in the place of q, k and v, and a scale for each head; one
    without scale_q takes q as it is; any other quantises itself. What else a case and its inputs have are keywords
    (`keywords.keywords_of`); a function of a package is called as its adapter says (`adapters.ADAPTERS`). A function
    whose parameters have the names of stages, such as a reduce of partial_O, partial_max and partial_sum, is called
    with these: what `feed` says (`feed.values`), else what float64 makes of the inputs. Refusal where it raises or
    returns anything else.

    Of the options, a `calibration` tells what the contract does not say of exp and of tensor cores, of which else the
    GPU tells on which the arrays live, shown as assumed; `inputs` are those of `inputs.normalised`, the case's own
    where None; of several `runs` the bits are compared (`repeats.repeated`). `code` is what an earlier run of the same
    function in this process told of its code; None: it is looked up, which takes as long as a small kernel.
    """
    try:
        return _run(function, case, options, name, code)
    except _OfTorch as error:
        on_numpy = str(error)
    try:
        trace = _run(function, case, replace(options, arrays="torch"), name, code)
    except Raised as on_torch:  # of a file without torch nobody knows for which it was written
        raise (on_torch if names_torch(function) else Raised(on_numpy)) from None
    return replace(trace, notes=(*trace.notes, "called with torch tensors: it raises on NumPy arrays"))


def _run(function: Function, case: Case, options: Options, name: str, code: Provenance | None) -> Trace:
    """`run_foreign` with the arrays that the options say."""
    arrays, layout, feed = options.arrays, options.layout, options.feed
    for option, value, accepted in (("arrays", arrays, ARRAYS), ("layout", layout, LAYOUTS)):
        if value not in accepted:
            raise Refusal(f"{option} must be one of {', '.join(accepted)}; got {value!r}")
    said = {} if options.contract is None else fields_of(options.contract, case)
    check_names(said)  # before the kernel runs, which may take minutes
    if (arrays, layout) == ("jax", "strided"):
        raise Refusal("JAX arrays have no strides; got layout 'strided': pass --arrays jax,layout=bhsd or bshd")
    adapter = adapter_of(function)
    arrays, device = (arrays, options.device) if adapter is None else lives(adapter, options, name)
    lives_on = home(arrays, device)
    given = options.inputs
    read = by_name(case, given)
    floats = {x: read[x] for x in (*INPUTS, *MASKS) if x in read}
    check_inputs(case, floats, name)
    asked = Asked(case, read, None if given is None else given.get("mask"))
    call = arguments_of(function, adapter, asked, feed, name, layout)
    case, put_in = call.case, call.put_in
    shared = case.shared_kv and not put_in

    def over(x: np.ndarray) -> Any:
        return handed_over(x.copy(), arrays, lives_on)

    def over_input(x: np.ndarray) -> Any:
        if layout != "strided" or x.ndim != len(BOX):
            return over(x)
        return handed_over(np.array(_swapped(x), order="C").swapaxes(1, 2), arrays, lives_on)

    launches = Launches(name, case, emulated(options.backend), partial(_watched_by, name, case, options))

    def placed() -> tuple[dict[str, Any], dict[str, Any]]:
        positional = {x: over_input(array) for x, array in call.positional.items() if not (shared and x == "v")}
        if shared:
            positional["v"] = positional["k"][..., : case.head_dim_v]
        return positional, {key: over(x) if isinstance(x, np.ndarray) else x for key, x in call.keywords.items()}

    def once(positional: Mapping[str, Any], keywords: Mapping[str, Any]) -> Any:
        if adapter is None or adapter.call is None:
            return function(*positional.values(), **keywords)
        return adapter.call(Call(function, asked, **positional, over=over))

    before = {x: array for x, array in {**call.positional, **call.keywords}.items() if isinstance(array, np.ndarray)}
    overwritten: dict[str, None] = {}

    def called(
        launches: Launches, **more: Any
    ) -> tuple[dict[str, np.ndarray], dict[str, Mapping[str, Any]], Mapping[str, Any]]:
        positional, keywords = placed()
        of_case = mods.running(score_mod=case.score_mod, mask_mod=case.mask_mod)
        try:
            with of_case, running(function), triton_interpreter.guarded(), launches.sent(), loading():
                made = once(positional, keywords | more)
                found, parts, declared = returned.read(made, name)  # waits for it, and so may find that it failed
                found, declared = launches.concatenated(found, parts, fields_of(declared, case))
                overwritten.update(dict.fromkeys(written(before, {**positional, **keywords})))
        except (Refusal, Unavailable, KeyboardInterrupt):  # the first of what it uses of ours, which say all there is
            raise
        except BaseException as error:  # sys.exit among them: its exit is not ours
            if why := lacking(error, name):
                raise Unavailable(why) from None
            hint = advice(error, function, arrays, lives_on)
            kind = _OfTorch if adapter is None and of_torch(error, function, arrays) else Raised
            raise kind(f"{name} raised on {arrays} arrays:\n{as_raised(error)}{hint}") from None
        return found, parts, declared

    stages, parts, declared = first = called(launches)
    launches.check(options.backend)
    without = None if launches.plain is None else partial(called, launches.plain)
    again = repeated(function, lambda **more: called(launches.anew(), **more), first, options.runs, without)
    if code is None:
        with running(function):  # its modules are told
            made_by = of_run(function, **again)
    else:
        made_by = replace(code, **again)
    if adapter is None and options.layout != "bshd":
        check_swapped(stages.get(OUT), case, name)
    stages |= results(stages, call.axes, case, name, base2=adapter is not None and adapter.base2)
    if changed := [stage for stage, x in put_in.items() if stage in stages and not np.array_equal(stages[stage], x)]:
        raise Refusal(f"{name} was fed {', '.join(changed)} and must return it unchanged; got other values")
    if adapter is not None:
        said = adapter.promised(case, lives_on) | said
    declared = merged(said, declared, name)
    algorithm = _algorithm(case, [*put_in, *stages, *parts], declared, name)
    if parts and before_attention(algorithm):
        raise Refusal(f"{name}: a quantised kernel must return whole stages; {next(iter(parts))} is in part")
    measured = {} if options.calibration is None else _measured(options.calibration, case, declared)
    own = {stage: x for stage, x in stages.items() if stage not in put_in}
    told = measured | _tiling_of(case, put_in) | dict(declared)
    promise = seen.promise_of(told, own, floats, case, generation() if lives_on == "cuda" else None)
    resolved, sparse = case.but(block_k=promise.block_k, splits=promise.splits), {}
    for key, given in parts.items():
        stage, what = ALGORITHMS[algorithm][key], f"{name}: {key}"
        stages[key], sparse[key] = of_coordinates(stage, dims_of(stage, resolved, what), given, what)
    trace = Trace(
        target=name,
        algorithm=algorithm,
        case=resolved,
        contract=promise,
        inputs=floats,
        stages={stage: x for stage in ALGORITHMS[algorithm] if (x := put_in.get(stage, stages.get(stage))) is not None},
        requested=(),
        put_in=tuple(put_in),
        sparse=sparse,
        gates=(
            *failed(made_by, name),
            *seen.narrower(own, case, declared, name),
            *wrote(name, overwritten),
        ),
        notes=(*launches.notes, *repeats(made_by), *seen.notes(stages, case)),
        provenance=made_by,
        called_with=options.printable(),
        launched=launches.launched,
        find_lines=partial(lines_of, function, [stage for stage in stages if stage not in put_in], made_by),
    )
    check(trace, name)
    # fed arrays are of this case alone
    of_any = not any(isinstance(source, np.ndarray | Path) for source in feed.values())

    def once_more(case: Case, inputs: Mapping[str, np.ndarray] | None = None) -> Trace:
        if inputs is None:
            case, inputs = anew(case, options.inputs)
        return run_foreign(function, case, replace(options, inputs=inputs), name=name, code=made_by)

    rerun = once_more if of_any else None
    if options.where is None:
        axes = call.axes if adapter is None else {**call.axes, "kv": adapter.kv}
        emulated_ = launches.on_emulator and launches.kernels
        plain = not (emulated_ or call.put_in or case.score_mod or case.mask_mod or (adapter and adapter.base2))
        # JAX's arrays cannot be written to
        stays = None
        if plain and of_any and arrays != "jax" and not overwritten:
            stays = resident(placed, once, axes, over, name)
        return replace(trace, rerun=rerun, resident=stays)
    return narrowed(trace, parse(options.where, trace.case), rerun=rerun)


def _tiling_of(case: Case, put_in: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Tiles and splits of what was put in, which the function reads."""
    if not put_in or case.block_k is None:
        return {}
    return {"block_k": case.block_k} | ({"splits": case.splits} if case.splits else {})


def _algorithm(case: Case, stages: Iterable[str], declared: Mapping[str, Any], name: str) -> str:
    """Whose stages these are, given the declared contract; Refusal for names that are no stages."""
    if unknown := [stage for stage in stages if stage not in STAGES]:
        raise Refusal(f"{name} returned unknown stages {', '.join(unknown)}; stages are: {', '.join(STAGES)}")
    # out alone is of either
    split = declared.get("splits") not in (None, 1) or declared.get("split_bounds") is not None
    return algorithm_of(stages, codes=case.codes is not None, splits=split, scale_of=case.scale_of)


def _measured(path: str, case: Case, declared: Mapping[str, Any]) -> dict[str, Any]:
    """Contract fields from a calibration; nobody said which exp the kernel calls, nor that it uses tensor cores. Those
    were measured on 16-bit operands, which float8 codes need not become; and tensor cores that were declared are known.
    """
    from workbench.cuda.calibrate import record as calibration

    fields = calibration.contract_fields(calibration.load(Path(path)), exp="fast_exp")
    others = float8_of(case.codes) is not None or "tensor_core" in declared
    return {name: x for name, x in fields.items() if name != "accumulation" and not (others and name.startswith("mma"))}


def generation() -> str | None:
    """The generation of the GPU on which arrays live; None of one that nobody knows."""
    from workbench.cuda.gpu import gpu

    found = gpu()
    return None if found is None else generation_of(found.compute_capability)


def _swapped(x: np.ndarray) -> np.ndarray:
    """Between [b, h, s, d] and [b, s, h, d]."""
    return x.swapaxes(1, 2)
