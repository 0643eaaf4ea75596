"""Merges of ranks under test: a function of partial outs and lses, which is given those of the reference."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial, update_wrapper
from inspect import Parameter, Signature, isroutine
from itertools import pairwise
from typing import Any

import numpy as np

from workbench.arrays import handed_over, home
from workbench.case.box import parse
from workbench.case.case import Case
from workbench.case.contract import of_foreign
from workbench.case.inputs import by_name
from workbench.case.options import Options
from workbench.case.presets import fields_of
from workbench.case.ranks import Rank, bounds_of, dealt
from workbench.case.stages import OUT, PARTIALS
from workbench.case.user_code import Function, running
from workbench.floats import DTYPES
from workbench.foreign import returned
from workbench.foreign.arguments import parameters_of
from workbench.foreign.call import run_foreign
from workbench.foreign.feed import reference
from workbench.reference.forward import PLAIN
from workbench.refusal import Refusal
from workbench.trace.merged import Partials, contract_of
from workbench.trace.narrow import narrowed
from workbench.trace.provenance import Provenance
from workbench.trace.trace import Trace

#: the parameters by which a merge is known
PARAMETERS = ("outs", "lses")
#: ranks of a case that tells none
RANKS = 4


@dataclass(frozen=True)
class Given:
    """What a merge is given."""

    ranks: tuple[Rank, ...]
    order: tuple[int, ...]  #: which rank each of the partial results of the call is of
    partials: Partials

    def handed(self, options: Options) -> dict[str, Any]:
        """The arguments of a call, in its order and layout, with what stands for a rank without keys."""
        order, lives_on = [*self.order], home(options.arrays, options.device)
        outs, lses, empty = self.partials.outs[order], self.partials.lses[order], self.partials.promise.lse_of_nothing
        if options.layout != "bhsd":
            outs = np.ascontiguousarray(outs.swapaxes(2, 3))
            outs = outs if options.layout == "bshd" else outs.swapaxes(2, 3)
        arrays = zip(PARAMETERS, (outs, np.where(lses == -np.inf, np.float32(empty), lses)), strict=True)
        return {name: handed_over(x.copy(order="K"), options.arrays, lives_on) for name, x in arrays}


def is_merge(function: Function) -> bool:
    """Whether a function merges ranks: its parameters are `outs` and `lses`."""
    return set(PARAMETERS) <= {*parameters_of(function)}


def run_function(function: Function, case: Case, options: Options, *, name: str) -> Trace:
    """The trace of a foreign function: of a merge of ranks as of `run_merge`, of any other as of `call.run_foreign`."""
    return (run_merge if is_merge(function) else run_foreign)(function, case, options, name=name)


def run_merge(function: Function, case: Case, options: Options, *, name: str, code: Provenance | None = None) -> Trace:
    """The trace of a merge, whose partial results were put in.

    `function(outs, lses)` takes outs [ranks, batch, heads, seqlen_q, head_dim_v], normalised, and lses [ranks, batch,
    heads, seqlen_q], float32, which float64 made of the keys of each rank, rounded once; it returns out, (out, lse), or
    a dict of these, merge_max, merge_weight [ranks, batch, heads, seqlen_q] and merge_sum. It normalises by lse, as its
    contract says unless it says otherwise; but where it gives weights that do not add up to 1, by a division.

    The contract tells what it is given: `splits` ranks (as many as the case has; RANKS), `split_bounds` where their
    keys begin and end (parts as equal as can be), `tile_order` in which order they come, `partials_dtype` that of outs
    (the case's), `base2` that lses are of base 2, the lse of the result too, and `empty_lse` the lse of a rank of which
    a row sees no key (-inf; +inf of FlashAttention-2), whose out is 0. Refusal for stages that are no results of a
    merge, a feed, codes, and what `call.run_foreign` refuses. `code` is as of `call.run_foreign`.
    """
    if options.feed:
        raise Refusal(f"{name} is a merge, whose outs and lses are computed: {', '.join(options.feed)} cannot be fed")
    said = {} if options.contract is None else fields_of(options.contract, case)
    read = by_name(case, options.inputs)
    given = _given(said, case, read, name)

    def reduce(**_: Any) -> dict[str, Any]:
        found = returned.read(function(**given.handed(options)), name)
        gave = dict(found.stages)
        if options.layout == "bshd" and OUT in gave and gave[OUT].ndim == 4:
            gave[OUT] = gave[OUT].swapaxes(1, 2)
        stages = given.partials.merged(gave, given.order, name)
        declared = fields_of(found.declared, case)
        if "normalisation" not in {*said, *declared}:
            declared["normalisation"] = given.partials.normalisation(stages)
        return {**stages, **found.parts, "contract": declared}

    made: Any = update_wrapper(reduce, _written(function))  # whose lines are the function's
    named = [Parameter(x, Parameter.KEYWORD_ONLY) for x in (*PARTIALS, "scale", "causal")]
    made.__signature__ = Signature([*named, Parameter("beside", Parameter.VAR_KEYWORD)])  # a mask is the partials' own
    tiles = {"block_k", "tile_order"}  # of which a merge has none: the order was of ranks
    promised = {key: x for key, x in said.items() if key not in tiles} | contract_of(given.ranks)
    with running(function):
        trace = run_foreign(
            made,
            case.but(splits=len(given.ranks)),
            replace(options, contract=promised, feed=given.partials.stages, inputs=read, where=None, layout="bhsd"),
            name=name,
            code=code,
        )

    def once_more(case: Case, inputs: Mapping[str, np.ndarray] | None = None) -> Trace:
        return run_merge(function, case, replace(options, inputs=inputs, where=None), name=name, code=trace.provenance)

    rerun = once_more if options.inputs is None else None
    trace = replace(trace, ranks=given.ranks, rerun=rerun)
    return trace if options.where is None else narrowed(trace, parse(options.where, trace.case), rerun=rerun)


def _written(function: Function) -> Function:
    """The function that somebody wrote: that of a partial one, the method of an object."""
    while isinstance(function, partial):
        function = function.func
    return function if isroutine(function) else type(function).__call__


def _given(said: Mapping[str, Any], case: Case, read: Mapping[str, np.ndarray], name: str) -> Given:
    """What the merge is given of a case; Refusal for what its contract may not say."""
    if case.codes is not None:
        raise Refusal(f"{name} is a merge, which reads no quantised codes; the case has {case.codes}")
    if said.get("row_max", "upper_bound") != "upper_bound":
        raise Refusal(
            f'{name} is a merge, which gets an lse in place of each maximum: declare row_max="upper_bound"; '
            f"got {said['row_max']!r}"
        )
    promise = of_foreign(said, case)
    if promise.split_bounds is None:
        count = promise.splits or case.splits or RANKS
        ranks = tuple(Rank(keys) for keys in dealt(case.seqlen_k, count))
    else:
        ranks = tuple(Rank((range(*ends),)) for ends in pairwise(promise.split_bounds))
    order = {"ascending": [*range(len(ranks))], "descending": [*reversed(range(len(ranks)))]}
    chosen = order[promise.tile_order] if isinstance(promise.tile_order, str) else promise.tile_order
    if sorted(chosen) != order["ascending"]:
        raise Refusal(f'"contract" field tile_order must list the {len(ranks)} ranks of this case; got {[*chosen]}')
    cut = replace(PLAIN, splits=len(ranks), split_bounds=bounds_of(ranks))
    made = reference("split_k", case, read, name, cut)
    top, total, numerator = (made[stage] for stage in PARTIALS)
    with np.errstate(divide="ignore", invalid="ignore"):
        lses = top + np.log(total)
        outs = np.nan_to_num(numerator / total[..., None])
    lses = np.moveaxis(lses / math.log(2) if promise.base2 else lses, 2, 0).astype(np.float32)
    outs = np.moveaxis(outs, 2, 0).astype(DTYPES[promise.partials_dtype])
    return Given(ranks, tuple(chosen), Partials(outs, lses, promise))
