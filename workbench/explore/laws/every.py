"""All laws, asked of a kernel on a case."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce, wraps
from typing import Any, Unpack

import numpy as np

from workbench.case.assumptions import Choice, alternatives, usual
from workbench.case.case import Case
from workbench.case.contract import Contract
from workbench.case.given import RunOptions
from workbench.case.inputs import Arrays
from workbench.explore.laws import bits, chunks, exact, hidden, invariant, merge
from workbench.explore.laws.compare import NOTHING
from workbench.explore.laws.law import Break, Finding, Law, Laws, Verdict
from workbench.explore.laws.subject import Failed, Subject
from workbench.foreign.run import run, run_again
from workbench.foreign.target import target_of
from workbench.refusal import Refusal
from workbench.trace.inputs import taken
from workbench.trace.trace import Rerun, Trace

#: class -> the functions of its laws
_OF_KIND = {
    "bits": (
        bits.v_times_power_of_two,
        bits.v_negated,
        bits.columns_of_v_permuted,
        bits.q_and_k_times_power_of_two,
        bits.scale_times_power_of_two,
        bits.pages_in_another_order,
        bits.runs_repeat,
        bits.inputs_are_kept,
        merge.partials_doubled,
        merge.partial_maxima_moved,
    ),
    "invariant": (
        invariant.heads_alone,
        invariant.batches_alone,
        invariant.place_in_batch,
        invariant.other_sequences_beside_it,
        invariant.rows_alone,
        invariant.splits_change_nothing,
        invariant.tiles_change_nothing,
        chunks.chunks_are_one_shot,
        chunks.decode_is_prefill,
        chunks.graph_replay_is_eager,
    ),
    "hidden": (
        hidden.hidden_keys_changed,
        hidden.keys_appended,
        hidden.memory_of_no_sequence,
        hidden.nan_behind_the_inputs,
    ),
    "exact": (exact.exact_inputs,),
}
#: every law by its name
LAWS: Mapping[str, Law] = {law.name: law for kind, some in _OF_KIND.items() for law in (Law(f, kind) for f in some)}
#: choices for what a kernel does not say of its arithmetic that are tried where it breaks a law
_ARITHMETIC = ("input_precision", "accumulator_dtype", "scaled_q_dtype", "exp_ulps", "exp_floor", "row_max")
#: those that hold what the laws take for granted, so that who does not say may break one and be right: what weights of
#: hidden keys are, and what is subtracted from scores
FORGIVEN = ("exp_floor", "row_max")
#: options of a run that laws cannot be asked with -> why
_NOT = {
    "where": "laws compare whole runs",
    "feed": "laws feed stages themselves",
}


def laws(
    target: str | Callable[..., Any], case: Case, *, invariant: bool = False, **options: Unpack[RunOptions]
) -> Laws:
    """What `target` makes of every law on a case.

    `invariant`: the kernel claims that the bits of a row depend on nothing beside it. `options` are those of `run`, but
    `where` and `feed`. Raises what the run of the case itself raises.

    >>> found = laws("examples/numpy_attention.py:attention", Case(seqlen=16, head_dim=8))
    >>> found.signature["v-negated"], found.signature["runs-repeat"]
    (True, True)
    """
    return asked(subject(target, case, invariant=invariant, **options))


def asked(s: Subject, some: Iterable[Law] = LAWS.values()) -> Laws:
    """What a kernel on a case makes of some laws.

    One that refuses a case that a law wants is not held to it; nor are those broken that a choice of FORGIVEN, of which
    the kernel does not say anything, makes right, if it makes all right that are broken.
    """
    _ = s.first  # what the case itself raises is raised
    verdicts = {law: _checked(law, s) for law in some}
    choices = _explaining([law for law, found in verdicts.items() if isinstance(found, Break) and found.stage], s)
    return Laws(s, tuple(_finding(law, found, choices) for law, found in verdicts.items()))


def held_to(law: Law, s: Subject) -> Finding:
    """What a kernel on a case makes of one law."""
    return asked(s, [law]).findings[0]


def _finding(law: Law, found: Verdict, choices: Sequence[Choice]) -> Finding:
    """What is said of a verdict, with the choices that make all right that is broken."""
    if isinstance(found, str):
        return Finding(law, lacking=found)
    if found is None or not found.stage or not choices:
        return Finding(law, broke=found)
    if forgiven := [str(choice) for choice in choices if choice.field in FORGIVEN]:
        return Finding(
            law, lacking=f"cannot be checked, as your kernel may have {' or '.join(forgiven)}: declare what it does"
        )
    some = " or ".join(map(str, choices[:3]))
    why = f"within budget if your kernel really has {some}; if so, declare it: --contract {choices[0]}"
    return Finding(law, broke=replace(found, why="; ".join(filter(None, (found.why, why)))))


def _checked(law: Law, s: Subject) -> Verdict:
    try:
        with np.errstate(all="ignore"):
            return law.check(s)
    except Failed as failed:
        return Break("", {}, np.nan, np.nan, 0.0, why=str(failed))
    except Refusal as refusal:
        return f"refused: {str(refusal).strip().splitlines()[-1]}"


def _explaining(broken: Sequence[Law], s: Subject) -> list[Choice]:
    """The choices for what the kernel does not say of its arithmetic each of which makes it keep all broken laws."""
    promise = s.first.trace.contract
    choices = [choice for choice in alternatives(promise) if choice.field in _ARITHMETIC] if broken else []
    together = reduce(lambda one, choice: _with(one, choice.contract, usual(promise)), choices, promise)

    def keeps(law: Law, contract: Contract) -> bool:
        # a budget that says nothing forbids nothing
        return _checked(law, s.under(contract)) in (None, NOTHING)

    for law in broken:
        if not choices or not keeps(law, together):
            return []
        choices = [choice for choice in choices if keeps(law, _with(promise, choice.contract, usual(promise)))]
    return choices


def of_trace(trace: Trace) -> Laws | None:
    """The laws, asked of the kernel of a trace on its case; None where it cannot be run again."""
    if trace.rerun is None or trace.box is not None:
        return None
    again = trace.rerun
    try:
        return asked(Subject(lambda case, inputs=None: again(case, inputs), trace.case_run))
    except Refusal:  # of the case itself, by a kernel that is not repeatable
        return None


def _with(promise: Contract, choice: Contract, base: Contract) -> Contract:
    """A contract with what a choice changes of a base."""
    return replace(promise, **{name: x for name, x in vars(choice).items() if x != getattr(base, name)})


def subject(
    target: str | Callable[..., Any], case: Case, *, invariant: bool = False, **options: Unpack[RunOptions]
) -> Subject:
    """A kernel on a case, as `laws` takes it."""
    if given := [(name, said) for name, said in options.items() if said and name in _NOT]:
        name, said = given[0]
        raise Refusal(f"{name} is not for laws: {_NOT[name]}; got {name}={said!r}")
    given_inputs = options.pop("inputs", None)

    found = target_of(target)
    inputs = None if given_inputs is None else taken(given_inputs, found.name)

    def attend(on: Case, changed: Arrays | None = None) -> Trace:
        of_run = run if on is case else run_again
        # the file itself, so that the run knows its name
        read = given_inputs if changed is inputs else changed
        return of_run(target, on, **options, **({} if read is None else {"inputs": read}))

    splits = found.kernel is not None and found.kernel.splits and not found.kernel.quantised
    isolated = options.get("isolate") or options.get("timeout") or options.get("memory_gb")
    function = None if not found.is_foreign or isolated else found.function()

    def feed(on: Case, stages: Mapping[str, np.ndarray]) -> Trace:
        fed: RunOptions = {**options, "feed": stages}
        return run_again(target, on, **fed, **({} if inputs is None else {"inputs": inputs}))

    def behind(before: Callable[..., Any]) -> Rerun:
        assert function is not None

        @wraps(function)
        def called(*arrays: Any, **keywords: Any) -> Any:
            return before(function, *arrays, **keywords)

        return lambda case, inputs=None: run(called, case, **options, **({} if inputs is None else {"inputs": inputs}))

    return Subject(attend, case, inputs, invariant, feed if splits else None, None if function is None else behind)
