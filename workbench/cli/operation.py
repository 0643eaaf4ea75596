"""The command line's `diff --operation`: a function, or a kernel of ours, of an operation beside attention."""

import itertools
import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from workbench.case.options import ROLES, flag_of
from workbench.cli.exits import BUG
from workbench.cli.operation_spec import DIFFERENTIABLE, OfOperation, of_operation, pairs, words_of
from workbench.cli.options import given
from workbench.cli.spec import Text
from workbench.cli.swept import print_swept
from workbench.refusal import Refusal

if TYPE_CHECKING:
    from workbench.cuda.check import Checked
    from workbench.operations.judge import OperationDiff

#: options of an operation alone
OWN = ("axes",)
#: options of `diff` that an operation takes too; what a case may have several of is taken one at a time
TAKEN = ("dtype", "seed", "distribution", "arrays", "device", "contract", "backend", "faults", "probes")
#: those of `check`
CHECKED = ("dtype", "seed", "distribution", "faults", "probes", "backend", "schedules")


_NAMES = "rmsnorm, gated_delta_rule, attention_backward, rope"
_WORDS = Text(
    ("  ,NAME=X", "Set its axes and numbers: rmsnorm,rows=64,eps=1e-5"),
    ("  ,NAME", "Set its flags and optional inputs: attention_backward,causal,sinks"),
    ("  ,gradients", "Take the backward pass of a torch forward pass by autograd"),
)


def operation_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that name an operation, and say the sizes of its case."""
    for option in (
        click.option("--axes", metavar="NAME=N[,...]", help="Set the sizes of its axes: rows=64,dim=512"),
        click.option("--operation", metavar="NAME", type=_WORDS, help=_NAMES),
    ):
        command = option(command)
    return command


def refuse_of_operation(options: dict[str, Any]) -> None:
    """Take the options of operations out of `options`; Refusal where one was given without --operation."""
    if found := [flag_of(name) for name in OWN if options.pop(name, None)]:
        raise Refusal(f"{found[0]} is for other operations: pass --operation")


def diff_operation(
    target: str | None,
    operation: str,
    options: Mapping[str, Any],
    *,
    effort: float,
    as_json: bool,
    verbose: bool,
    out: Path | None,
) -> None:
    """Judge a function of an operation on each case that is asked for; exits with 1 where one has a bug."""
    from workbench.operations.backward_measure import measured
    from workbench.operations.call import diff_operation as diff
    from workbench.operations.every import OPERATIONS
    from workbench.progress import shown
    from workbench.report.operation import document
    from workbench.report.page.operation import save

    options = dict(options)
    html = options.pop("html")
    asked = of_operation(operation, options["axes"], OPERATIONS)
    measure = options.pop("measure") if asked.operation == DIFFERENTIABLE else False
    target = _checked(target, asked, options, TAKEN)
    with shown():
        diffs = [replace(diff(target, asked.operation, **case), effort=effort) for case in _cases(asked, options)]
        read = [measured(one.run) for one in diffs] if measure else []
        for n, one in enumerate(diffs):
            if out is not None:
                _write(one, out if len(diffs) == 1 else out / f"{n:03d}")
        if html is not None:
            save(diffs, html)
    if as_json:
        documents = [document(one) for one in diffs]
        if measure:
            documents = [one | {"measured": what.as_dict()} for one, what in zip(documents, read, strict=True)]
        many = {"schema": "workbench.operations/1", "runs": documents}
        click.echo(json.dumps(documents[0] if len(documents) == 1 else many))
    else:
        _print(diffs, verbose)
        for what in read:
            click.echo("\n".join(what.sentences))
        if html is not None:
            click.echo(f"page: {html}")
    sys.exit(BUG if any(one.fails for one in diffs) else 0)


def diff_stored(
    target: str, options: Mapping[str, Any], *, as_json: bool, verbose: bool, html: Path | None, out: Path | None
) -> None:
    """Judge a run of an operation in a file, or alone in a folder, again; exits as `diff_operation` does. Nothing where
    TARGET is none.
    """
    from workbench.report.operation import document
    from workbench.report.page.operation import save

    if (found := _stored(target, options)) is None:
        return
    if out is not None:
        _write(found, out)
    if html is not None:
        save([found], html)
    if as_json:
        click.echo(json.dumps(document(found)))
    else:
        _print([found], verbose)
        if html is not None:
            click.echo(f"page: {html}")
    sys.exit(BUG if found.fails else 0)


def explain_operation(
    target: str | None,
    operation: str,
    options: Mapping[str, Any],
    *,
    effort: float,
    seconds: float | None,
    as_json: bool,
) -> None:
    """Name what is wrong in a function of an operation on each case that is asked for; exits as `diff` does."""
    from workbench.operations.call import diff_operation as diff
    from workbench.operations.every import OPERATIONS
    from workbench.progress import shown

    asked = of_operation(operation, options["axes"], OPERATIONS)
    target = _checked(target, asked, options, TAKEN)
    with shown():
        diffs = [diff(target, asked.operation, **case) for case in _cases(asked, options)]
        _explain(diffs, effort, seconds, as_json)


def explain_stored(
    target: str, options: Mapping[str, Any], *, effort: float, seconds: float | None, as_json: bool
) -> None:
    """Name what is wrong in a run of an operation in a file, or alone in a folder; nothing where TARGET is none."""
    from workbench.progress import shown

    with shown():
        if (found := _stored(target, options)) is not None:
            _explain([found], effort, seconds, as_json)


def _stored(target: str, options: Mapping[str, Any]) -> "OperationDiff | None":
    """The judgement of a run of an operation in a file; None where TARGET is none. Refusal for options of a case."""
    from workbench.cli.runs import of_case
    from workbench.operations.judge import judged
    from workbench.operations.stored import load, stored

    if (path := stored(target)) is None:
        return None
    others = [name for name, x in options.items() if name not in ROLES and x]
    if said := dict.fromkeys([*of_case(options), *given(dict(options)), *others]):
        raise Refusal(f"{path} brings its own case; it takes no {', '.join(map(flag_of, said))}")
    return judged(load(path))


def _explain(diffs: "Sequence[OperationDiff]", effort: float, seconds: float | None, as_json: bool) -> None:
    """Print what is wrong in runs; exits as `diff` does."""
    from workbench.report.operation import document, report
    from workbench.report.text import console

    found = [(one, one.explain(effort, seconds=seconds)) for one in diffs]
    if as_json:
        documents = [document(*one) for one in found]
        many = {"schema": "workbench.operations/1", "runs": documents}
        click.echo(json.dumps(documents[0] if len(documents) == 1 else many))
    else:
        screen = console()
        for one, explained in found:
            shape: dict[str, Any] = {"unicode": screen.is_terminal, "width": screen.width}
            screen.print(report(one, **shape, explained=explained), crop=False)
    sys.exit(BUG if any(one.fails for one in diffs) else 0)


def measure_operation(target: str | None, operation: str, options: Mapping[str, Any], *, as_json: bool) -> None:
    """Read P and dS of a backward pass off its gradients on each case that is asked for; exits with 1 where one is
    wrong.
    """
    from workbench.operations.backward_measure import measured
    from workbench.operations.call import diff_operation as diff
    from workbench.progress import shown

    asked = of_operation(operation, options["axes"], (DIFFERENTIABLE,))
    target = _checked(target, asked, options, TAKEN)
    with shown():
        diffs = [diff(target, asked.operation, **case) for case in _cases(asked, options)]
        found = [measured(one.run) for one in diffs]
    if as_json:
        documents = [one.as_dict() for one in found]
        many = {"schema": "workbench.measures-backward/1", "runs": documents}
        click.echo(json.dumps(documents[0] if len(documents) == 1 else many))
    else:
        for what in found:
            click.echo(str(what))
    wrong = any(what.weights.wrong.any() or what.scores.wrong.any() for what in found)
    sys.exit(BUG if wrong or any(one.origin is not None for one in diffs) else 0)


def sweep_operation(target: str, operation: str, options: Mapping[str, Any], *, as_json: bool) -> None:
    """Judge a function of an operation on every combination of what is asked for, axes and numbers with several values
    among it; exits with 1 where one fails.
    """
    from workbench.explore.operation_sweep import sweep_operation as sweep
    from workbench.operations.every import OPERATIONS
    from workbench.progress import shown

    asked = of_operation(operation, options["axes"], OPERATIONS)
    _checked(target, asked, options, TAKEN)
    several = {**dict.fromkeys(TAKEN), **options}
    with shown():
        cases = (case for one in asked.each() for case in _cases(one, several))
        found = sweep(target, asked.operation, cases)
    print_swept(found, as_json=as_json)
    sys.exit(BUG if found.groups else 0)


def shrink_operation(
    target: str | None,
    operation: str,
    options: Mapping[str, Any],
    *,
    effort: float,
    seconds: float | None,
    as_json: bool,
) -> None:
    """Find the smallest case on which a function of an operation fails as it does on this one; exits with 1."""
    from workbench.explore.operation_shrink import shrink_operation as shrink
    from workbench.operations.call import diff_operation as diff
    from workbench.operations.every import OPERATIONS
    from workbench.progress import shown
    from workbench.report.operation import document, shrunk

    asked = of_operation(operation, options["axes"], OPERATIONS)
    target = _checked(target, asked, options, TAKEN)
    cases = [*_cases(asked, options)]
    if len(cases) != 1:
        raise Refusal(f"shrink takes one case; TARGET and options make {len(cases)}")
    with shown():
        found = shrink(diff(target, asked.operation, **cases[0]), effort, seconds=seconds)
    if as_json:
        click.echo(json.dumps(document(found.diff) | {"tried": found.tried, "complete": found.complete}))
    else:
        click.echo(shrunk(found))
        _print([found.diff], verbose=False)
    sys.exit(BUG)


def check_operation(target: str, operation: str, options: Mapping[str, Any]) -> "list[Checked]":
    """Watched runs of a kernel of ours of an operation, one for each case that is asked for."""
    from workbench.operations.call import check_operation as check
    from workbench.operations.every import OPERATIONS

    asked = of_operation(operation, options["axes"], OPERATIONS)
    _checked(target, asked, options, CHECKED)
    if asked.optional or asked.gradients:
        raise Refusal(f"--operation {asked.operation}: built-in kernels take neither optional inputs nor gradients")
    if options["backend"] != "emulator":
        raise Refusal(f"--operation {asked.operation} is watched on the emulator; got --backend {options['backend']}")
    cases = _cases(asked, {**dict.fromkeys(TAKEN), **options, "backend": None})
    return [check(target, asked.operation, **case, schedules=options["schedules"]) for case in cases]


def laws_of_operation(target: str | None, operation: str, options: Mapping[str, Any], *, as_json: bool) -> None:
    """Hold a function of an operation to its laws on each case that is asked for; exits with 1 where one is broken."""
    from workbench.explore.laws.backward_every import gradient_laws
    from workbench.progress import shown
    from workbench.report.gradient_laws import report
    from workbench.report.text import console

    asked = of_operation(operation, options["axes"], (DIFFERENTIABLE,))
    target = _checked(target, asked, options, TAKEN)
    with shown():
        found = [gradient_laws(target, **case) for case in _cases(asked, options)]
    if as_json:
        documents = [one.as_dict() for one in found]
        many = {"schema": "workbench.gradient-laws-table/1", "runs": documents}
        click.echo(json.dumps(documents[0] if len(documents) == 1 else many))
    else:
        screen = console()
        for one in found:
            screen.print(report(one, unicode=screen.is_terminal), crop=False)
    sys.exit(BUG if any(one.broken for one in found) else 0)


def _checked(target: str | None, asked: OfOperation, options: Mapping[str, Any], taken: Collection[str]) -> str:
    """TARGET; Refusal where there is none, and for options that are not among the `taken`."""
    said = {*given(dict(options)), *(name for name, x in options.items() if name not in ROLES and x)}
    if others := sorted(flag_of(name) for name in said - {*taken, *OWN}):
        raise Refusal(f"--operation {asked.operation} takes no {', '.join(others)}{_instead(asked, said - {*taken})}")
    if target is None:
        raise Refusal("TARGET is missing: FILE.py:FUNCTION, or a built-in kernel")
    return target


def _instead(asked: OfOperation, said: Collection[str]) -> str:
    """How an operation takes what options of attention say; empty where it has nothing of it."""
    from workbench.operations.every import OPERATIONS

    of = OPERATIONS[asked.operation]
    words = words_of(of)
    own = [words[name] for name in words if name in said]
    sizes = {"batch", "heads", "kv_heads", "seqlen", "seqlen_q", "seqlen_k", "head_dim", "head_dim_v"} - {*words}
    axes = ",".join(f"{name}=" for name in of.axes.values())
    found = [*([f"--operation {','.join([asked.operation, *own])}"] if own else [])]
    found += [f"--axes {axes}"] if sizes & {*said} else []
    return f"; pass {' '.join(found)}" if found else ""


def _cases(asked: OfOperation, options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The arguments of `diff_operation` for each dtype, distribution and seed."""
    from workbench.operations.every import OPERATIONS

    known = OPERATIONS[asked.operation].conventions
    told = pairs(options["contract"], "--contract")
    shared: dict[str, Any] = {"axes": asked.sizes(), "numbers": asked.values()}
    if told:  # a convention is told in words, and may be a number
        shared["contract"] = {key: next((x for x in known.get(key, ()) if str(x) == y), y) for key, y in told.items()}
    shared |= {name: options[name] for name in ("arrays", "device", "backend") if options[name] is not None}
    shared |= {name: options[name] for name in ("faults", "probes") if options[name]}
    if asked.optional:
        shared["optional"] = asked.optional
    if asked.gradients:
        shared |= {"gradients": True, "arrays": shared.get("arrays", "torch")}
    lists = [options["dtype"] or (None,), options["distribution"] or ("",), options["seed"] or (0,)]
    for dtype, distribution, seed in itertools.product(*lists):
        yield {**shared, "dtype": dtype, "distribution": distribution, "seed": seed}


def _print(diffs: "Sequence[OperationDiff]", verbose: bool) -> None:
    from workbench.report.operation import report
    from workbench.report.text import console

    screen = console()
    for one in diffs:
        screen.print(report(one, unicode=screen.is_terminal, width=screen.width, full=verbose), crop=False)


def _write(diff: "OperationDiff", folder: Path) -> None:
    """Write a picture of all stages and the document."""
    from io import BytesIO

    from workbench.files import write_atomically
    from workbench.report.operation import document
    from workbench.report.pictures.overview import overview

    folder.mkdir(parents=True, exist_ok=True)
    drawn = BytesIO()
    overview(diff.stages, diff.headline).savefig(drawn, format="png")
    write_atomically(folder / "overview.png", drawn.getvalue())
    write_atomically(folder / "diff.json", json.dumps(document(diff)).encode())
