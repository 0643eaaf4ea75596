"""The command line's --reference: a function judged by a plain one of the user's."""

import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from workbench.case.options import ROLES, flag_of
from workbench.cli.exits import BUG
from workbench.cli.operation_spec import number, pairs
from workbench.cli.options import given
from workbench.cli.swept import print_swept
from workbench.refusal import Refusal

if TYPE_CHECKING:
    from workbench.judge.reference.diff import ReferenceDiff
    from workbench.operations.reference.case import ReferenceCase

#: options of a case and of a run that a reference takes
TAKEN = (
    "dtype", "seed", "distribution", "arrays", "device", "contract", "backend", "inputs", "axes", "gradients",
)  # fmt: skip
#: what `--reference` of `show` was, before it took a function
EXPECTED = "--expected shows what elements should be"


def reference_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --reference, which may be repeated, and --gradients to a command."""
    gradients = click.option("--gradients", is_flag=True, help="Judge gradients, too, through torch.autograd")
    return click.option(
        "--reference",
        "references",
        metavar="FILE.py:F",
        multiple=True,
        is_flag=False,
        flag_value="",
        help="Judge by a plain function of yours on --inputs",
    )(gradients(command))


def references_of(options: dict[str, Any]) -> tuple[str, ...]:
    """The functions of --reference, taken out of `options`; where there are none, --gradients is, too. Refusal for that
    alone.
    """
    references: tuple[str, ...] = options.pop("references")
    if not references and options.pop("gradients"):
        instead = "--operation attention_backward,gradients"
        raise Refusal(f"--gradients needs --reference. For attention without a reference, use {instead}")
    return references


def diff_reference(
    target: str | None,
    references: Sequence[str],
    options: Mapping[str, Any],
    *,
    fails: frozenset[str],
    as_json: bool,
    verbose: bool,
    html: Path | None,
    out: Path | None,
) -> None:
    """Judge a function by references on each case that is asked for; exits with 1 where one fails."""
    from workbench.judge.fails import classed
    from workbench.progress import shown

    with shown():
        found = list(judged(target, references, options))
        for n, one in enumerate(found):
            _ = one.explained  # which runs the kernel: its progress is shown
            if out is not None:
                from workbench.report.pictures import reference as pictures

                pictures.save(one, out if len(found) == 1 else out / f"{n:03d}")
        if html is not None:
            from workbench.report.page import reference as page

            page.save(html, found)
    _print(found, as_json=as_json, verbose=verbose)
    if not as_json and out is not None:
        click.echo(f"pictures: {out}/")
    if not as_json and html is not None:
        click.echo(f"page: {html}")
    sys.exit(BUG if any(classed(one) in fails for one in found) else 0)


def explain_reference(
    target: str | None,
    references: Sequence[str],
    options: Mapping[str, Any],
    *,
    effort: float,
    seconds: float | None,
    as_json: bool,
) -> None:
    """Name what is wrong in a function, by edits of its reference, on each dtype and seed that is asked for; exits as
    `diff` does.
    """
    from workbench.judge.fails import classed, failing
    from workbench.progress import shown

    with shown():
        runs = judged(target, references, options)
        found = [one.explained_by(one.explain(effort, seconds=seconds)) for one in runs]
    _print(found, as_json=as_json, verbose=False)
    sys.exit(BUG if any(classed(one) in failing() for one in found) else 0)


def _print(found: "Sequence[ReferenceDiff]", *, as_json: bool, verbose: bool) -> None:
    from workbench.report.reference import document, report
    from workbench.report.text import console

    if as_json:
        documents = [document(one) for one in found]
        many = {"schema": "workbench.references/1", "runs": documents}
        click.echo(json.dumps(documents[0] if len(documents) == 1 else many))
        return
    screen = console()
    for n, one in enumerate(found):
        if n:
            screen.print()
        screen.print(report(one, unicode=screen.is_terminal, width=screen.width, full=verbose), crop=False)


def show_reference(
    target: str, elements: str, references: Sequence[str], options: Mapping[str, Any], *, worst: int | None
) -> None:
    """Print elements of what TARGET returned, and where the budget of the worst of them comes from."""
    from workbench.judge.selection import parse
    from workbench.progress import shown
    from workbench.report import values
    from workbench.report.reference_budget import elements_report
    from workbench.report.text import console

    with shown():
        found = list(judged(target, references, options))
    if len(found) != 1:
        raise Refusal(f"show looks at one run; the options make {len(found)}")
    names = sorted((one.name for one in found[0].stages), key=len, reverse=True)
    name = next((one for one in names if elements == one or elements.startswith(f"{one}[")), elements.partition("[")[0])
    stage = found[0][name]
    index = parse(f"stage{elements.removeprefix(name)}")[1]
    chosen = stage.select(**index) if isinstance(index, dict) else stage[tuple(index)]
    rows = chosen.worst(worst) if worst else None
    if rows is None:
        values.checked(chosen, elements)
    screen = console()
    screen.print(elements_report(found[0], name, chosen, rows, screen))


def sweep_reference(target: str, references: Sequence[str], options: Mapping[str, Any], *, as_json: bool) -> None:
    """Judge a function by references on every combination of what is asked for, axes with several values among it;
    exits with 1 where one fails.
    """
    from workbench.explore.reference_sweep import sweep_reference as sweep
    from workbench.progress import shown

    asked = _checked(target, references, options)
    with shown():
        found = sweep(target, [*references], options["inputs"], _cases(options), **asked)
    print_swept(found, as_json=as_json)
    sys.exit(BUG if found.groups else 0)


def shrink_reference(
    target: str | None,
    references: Sequence[str],
    options: Mapping[str, Any],
    *,
    effort: float,
    seconds: float | None,
    as_json: bool,
) -> None:
    """Find the smallest case on which a function fails by references as it does on this one; exits with 1."""
    from workbench.explore.reference_shrink import shrink_reference as shrink
    from workbench.operations.reference.call import diff_reference as diff
    from workbench.operations.reference.case import axes_of
    from workbench.progress import shown
    from workbench.report.reference import document, report, shrunk
    from workbench.report.text import console

    asked = _checked(target, references, options)
    cases = _cases(options)
    if len(cases) != 1:
        raise Refusal(f"shrink takes one case; TARGET and options make {len(cases)}")
    assert target is not None
    start = replace(cases[0], axes={**axes_of(options["inputs"]), **cases[0].axes})
    with shown():
        found = shrink(
            lambda case: diff(target, [*references], options["inputs"], **case.asked(), **asked),
            start,
            effort,
            seconds=seconds,
        )
    if as_json:
        click.echo(json.dumps(document(found.diff) | {"tried": found.tried, "complete": found.complete}))
    else:
        screen = console()
        screen.print(shrunk(found))
        screen.print(report(found.diff, unicode=screen.is_terminal, width=screen.width), crop=False)
    sys.exit(BUG)


def judged(target: str | None, references: Sequence[str], options: Mapping[str, Any]) -> "Iterator[ReferenceDiff]":
    """The judgement of each case; Refusal for options that a reference does not take."""
    from workbench.operations.reference.call import diff_reference as diff

    asked = _checked(target, references, options)
    assert target is not None
    for case in _cases(options):
        yield diff(target, [*references], options["inputs"], **case.asked(), **asked)


def _checked(target: str | None, references: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """What is asked beside the case; Refusal for options that a reference does not take, and where some are missing."""
    if "" in references:
        raise Refusal(f"--reference takes FILE.py:FUNCTION, a plain function that TARGET is judged by; {EXPECTED}")
    said = {*given(dict(options)), *(name for name, x in options.items() if name not in ROLES and x)}
    if others := sorted(flag_of(name) for name in said - {*TAKEN}):
        raise Refusal(f"--reference takes no {', '.join(others)}")
    if target is None:
        raise Refusal("TARGET is missing: FILE.py:FUNCTION")
    if not options["inputs"]:
        raise Refusal(
            "--inputs is missing: FILE.py:FUNCTION, called as inputs(seed, dtype, **axes) for a dict of arrays, or a "
            ".safetensors, .npz or .pt file of them"
        )
    asked = {name: options[name] for name in ("arrays", "device", "backend", "contract") if options.get(name)}
    asked["gradients"] = bool(options.get("gradients"))
    if asked.get("arrays") == "numpy":  # as it is where nobody says otherwise
        del asked["arrays"]
    return asked


def _cases(options: Mapping[str, Any]) -> "list[ReferenceCase]":
    """A case for each combination of axes of several values, such as T=64/128, dtypes, distributions and seeds."""
    from workbench.operations.reference.case import ReferenceCase

    told = {
        name: [_whole(n.strip(), f"--axes {name}") for n in said.split("/")]
        for name, said in pairs(options["axes"], "--axes").items()
    }
    lists = [options["dtype"] or (None,), options["distribution"] or ("",), options["seed"] or (0,)]
    return [
        ReferenceCase(dict(zip(told, sizes, strict=True)), dtype, seed, distribution)
        for sizes in itertools.product(*told.values())
        for dtype, distribution, seed in itertools.product(*lists)
    ]


def _whole(said: str, what: str) -> int:
    if (found := number(said, what)) != int(found):
        raise Refusal(f"{what} is a whole number; got {said}")
    return int(found)
