"""The command line's `laws`, which holds a kernel to what is true of any attention."""

import json
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from workbench.cli.commands import Command
from workbench.cli.completion import complete
from workbench.cli.exits import BUG
from workbench.cli.operation import laws_of_operation, operation_options, refuse_of_operation
from workbench.cli.options import cases_of, given, json_option, needs_of, one_target, random_limits, run_options

if TYPE_CHECKING:
    from workbench.case.case import Case
    from workbench.explore.laws.law import Finding

#: said where a function raises at all cases of grouped heads, and at no other
_AS_MANY = "all cases of grouped heads were refused: --heads 2,kv=2 gives K as many heads as Q"


@click.command(cls=Command)
@click.argument("target", metavar="[TARGET]", nargs=-1, callback=one_target, shell_complete=complete)
@run_options
@operation_options
@click.option("--random", type=click.IntRange(min=1), metavar="N", help="Run N random cases; case options limit them")
@click.option("--invariant", is_flag=True, help="Also require that the bits of a row do not depend on the other rows")
@json_option
def laws(target: str | None, random: int | None, invariant: bool, as_json: bool, **options: Any) -> None:
    """Test TARGET against laws of attention, which need no reference values.

    TARGET and options are those of `workbench diff`. A law compares runs of the kernel with each other, bit for bit or
    within both error budgets. docs/how-to/laws.md lists the laws. Exits with 1 if one is broken. With --operation
    attention_backward, TARGET is a backward pass; with attention_backward,gradients it is a forward pass in torch.
    """
    from workbench.progress import shown
    from workbench.refusal import Refusal
    from workbench.report.laws import not_asked
    from workbench.report.text import show

    if (operation := options.pop("operation")) is not None:
        asked = {**options, "random": random, "invariant": invariant}
        return laws_of_operation(target, operation, asked, as_json=as_json)
    refuse_of_operation(options)
    if target is None:
        raise Refusal("TARGET is missing: a built-in kernel, or FILE.py:FUNCTION")
    if options.pop("by_head"):
        raise Refusal("laws compare whole runs; --by-head is not allowed")
    with shown():
        found, refused, hint = _asked(target, random, invariant, options)
    if not found:
        raise Refusal(f"{target} refused every case: {'; '.join([*refused, *hint])}")
    alone = random is None and len(found) == 1
    if as_json:
        click.echo(json.dumps(found[0].document if alone else _table(found, refused)))
    elif alone:
        _print_one(found[0])
    else:
        rows = sorted(_rows(found), key=lambda row: not row["broken"])
        of_some = [row for row in rows if row["held"] or row["broken"]]
        show(of_some, ("law", "class", "held", "broken", "not asked", "first broken", "repeat"))
        if line := not_asked({"on any case": [row["law"] for row in rows if row not in of_some]}):
            click.echo(line)
        for reason, count in refused.items():
            click.echo(f"{count} case{'s' * (count > 1)} refused: {reason}")
        for line in hint:
            click.echo(line)
    sys.exit(BUG if any(one.held is False for run in found for one in run.findings) else 0)


class Asked(NamedTuple):
    """What a kernel made of the laws on a case, without the runs."""

    findings: tuple["Finding", ...]
    document: dict[str, Any]  #: of --json
    command: str  #: asks the same again


def _table(found: list[Asked], refused: dict[str, int]) -> dict[str, Any]:
    """The document `workbench.laws-table/1` of several cases.

    - `cases`, `refused`: how many were asked; why others were refused
    - `laws`: for each `law` and its `class`, cases in which it `held`, was `broken` or `not asked`; `first broken`,
      `repeat`
    """
    return {"schema": "workbench.laws-table/1", "cases": len(found), "refused": refused, "laws": _rows(found)}


def _asked(
    target: str, random: int | None, invariant: bool, options: dict[str, Any]
) -> tuple[list[Asked], dict[str, int], list[str]]:
    """What TARGET makes of the laws on every case; reason -> random cases that it refused; how it is given others."""
    from workbench.explore.laws.every import laws as asked
    from workbench.foreign.target import targets_of
    from workbench.progress import step
    from workbench.refusal import Refusal
    from workbench.report.command import laws_command

    of_run = given(options)
    found: list[Asked] = []
    refused: dict[str, int] = {}
    grouped = {True: set[bool](), False: set[bool]()}  # whether it took a case -> whether heads were grouped
    for one in targets_of(target):
        if not (one.is_foreign or one.kernel is not None):
            raise Refusal(f"{one.name} is {one.kind.value}, which cannot be run: laws compare runs")
        cases = _cases(None if one.kernel is None else one.kernel.name, random, options)
        with step(f"test {len(cases)} case{'s' * (len(cases) > 1)} of {one.name}") as tick:
            for i, case in enumerate(cases):
                tick(f"{i} of {len(cases)} done")
                try:
                    made = asked(one.name, case, invariant=invariant, **of_run)
                except Refusal as refusal:
                    if random is None:
                        raise
                    reason = str(refusal).strip().splitlines()[-1]
                    refused[reason] = refused.get(reason, 0) + 1
                    if "takes no" not in reason:  # which says itself what the case has
                        grouped[False].add(case.heads != case.kv_heads)
                else:
                    grouped[True].add(case.heads != case.kv_heads)
                    found.append(Asked(made.findings, made.as_dict(), laws_command(made)))
    of_heads = grouped[False] == {True} and True not in grouped[True]
    return found, refused, [_AS_MANY] * of_heads


def _cases(kernel: str | None, random: int | None, options: dict[str, Any]) -> list["Case"]:
    """The cases of the options; or so many random ones, of which the options limit what is drawn."""
    options = {**options, **needs_of(options["faults"], options)}
    if random is None:
        return cases_of(options)
    from numpy.random import default_rng

    from workbench.explore.draw import Among
    from workbench.explore.sample import sample
    from workbench.refusal import Refusal

    if options["inputs"]:
        raise Refusal("--random draws inputs, but --inputs gives them; got both")
    limits: dict[str, Any] = {name: Among(values) for name, values in random_limits(options).items()}
    drawn = default_rng(options["seed"] or 0)
    return [sample(drawn, kernel, **limits) for _ in range(random)]


def _print_one(found: Asked) -> None:
    """What came of each law, and the command that asks the same again."""
    from workbench.report.laws import report
    from workbench.report.text import console

    screen = console()
    screen.print(report(found.findings, found.command, unicode=screen.is_terminal), crop=False)


def _rows(found: list[Asked]) -> list[dict[str, Any]]:
    """A row a law over several runs, with the first that broke it."""
    rows = []
    for i, one in enumerate(found[0].findings):
        counts = Counter(run.findings[i].held for run in found)
        first = next((run for run in found if run.findings[i].held is False), None)
        broke = None if first is None else first.findings[i].broke
        row: dict[str, Any] = {"law": one.law.name, "class": one.law.kind, "held": counts[True]}
        row |= {"broken": counts[False], "not asked": counts[None], "first broken": broke.words if broke else ""}
        rows.append(row | {"repeat": first.command if first else ""})
    return rows
