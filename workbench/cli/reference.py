"""The command line's `diff --reference` and `show --reference`: a function judged by a plain one of the user's."""

import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from workbench.case.options import ROLES, flag_of
from workbench.cli.exits import BUG
from workbench.cli.operation_spec import number, pairs
from workbench.cli.options import given
from workbench.refusal import Refusal

if TYPE_CHECKING:
    from workbench.judge.reference.diff import ReferenceDiff

#: options of a case and of a run that a reference takes
TAKEN = ("dtype", "seed", "arrays", "device", "contract", "backend", "inputs", "axes", "gradients")
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


def refuse_of_reference(options: dict[str, Any]) -> None:
    """Take --gradients out of `options`; Refusal where it was given without --reference."""
    if options.pop("gradients"):
        instead = "--operation attention_backward,gradients"
        raise Refusal(f"--gradients is of --reference; of a forward pass of attention pass {instead}")


def diff_reference(
    target: str | None,
    references: Sequence[str],
    options: Mapping[str, Any],
    *,
    fails: frozenset[str],
    as_json: bool,
    verbose: bool,
) -> None:
    """Judge a function by references on each dtype and seed that is asked for; exits with 1 where one fails."""
    from workbench.judge.fails import classed
    from workbench.progress import shown
    from workbench.report.reference import document, report
    from workbench.report.text import console

    with shown():
        found = list(judged(target, references, options))
    if as_json:
        documents = [document(one) for one in found]
        many = {"schema": "workbench.references/1", "runs": documents}
        click.echo(json.dumps(documents[0] if len(documents) == 1 else many))
    else:
        screen = console()
        for n, one in enumerate(found):
            if n:
                screen.print()
            screen.print(report(one, unicode=screen.is_terminal, width=screen.width, full=verbose), crop=False)
    sys.exit(BUG if any(classed(one) in fails for one in found) else 0)


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


def judged(target: str | None, references: Sequence[str], options: Mapping[str, Any]) -> "Iterator[ReferenceDiff]":
    """The judgement on each dtype and seed; Refusal for options that a reference does not take."""
    from workbench.operations.reference.call import diff_reference as diff

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
    axes = {name: _whole(n, f"--axes {name}") for name, n in pairs(options["axes"], "--axes").items()}
    asked = {name: options[name] for name in ("arrays", "device", "backend", "contract") if options.get(name)}
    asked["gradients"] = bool(options.get("gradients"))
    if asked.get("arrays") == "numpy":  # as it is where nobody says otherwise
        del asked["arrays"]
    for dtype, seed in itertools.product(options["dtype"] or (None,), options["seed"] or (0,)):
        yield diff(target, [*references], options["inputs"], dtype=dtype, seed=seed, axes=axes, **asked)


def _whole(said: str, what: str) -> int:
    if (found := number(said, what)) != int(found):
        raise Refusal(f"{what} is a whole number; got {said}")
    return int(found)
