"""The command line's `show`, which looks at values."""

import json
from typing import Any

import click

from workbench.cli.commands import Command
from workbench.cli.completion import complete
from workbench.cli.options import json_option, mapping_option, measure_option, run_options
from workbench.cli.reference import reference_option, references_of, show_reference


@click.command(cls=Command)
@click.argument("target", metavar="TARGET", shell_complete=complete)
@click.argument("elements", metavar="STAGE[INDICES]", shell_complete=complete)
@run_options
@click.option("--worst", type=click.IntRange(min=1), help="Print only the N elements farthest over budget")
@click.option("--expected", is_flag=True, help="Print only the float64 values expected from q, k and v")
@reference_option
@click.option("--axes", metavar="NAME=N[,...]", help="Sizes for --inputs, with --reference")
@mapping_option
@measure_option
@json_option
def show(
    target: str,
    elements: str,
    worst: int | None,
    expected: bool,
    measure: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Print elements of a stage of TARGET: actual, expected, error, budget, error / budget.

    \b
    workbench show flash 'qk[0,0,0:3,0:3]'             indices and slices as in NumPy
    workbench show flash 'qk[q=5,k=-3:]'               axes by name; axes not named in full
    workbench show flash acc --worst 5                 the elements farthest over budget
    workbench show run.safetensors 'out[...,0]' --expected
    workbench show mine.py:attention 'weights[q=5]' --measure    stages inferred from outputs

    TARGET and the other options are those of `workbench diff`, for one case; with --reference it also lists the
    lines of the reference that the budget comes from. Exits with 0 whatever the verdict.
    """  # noqa: D301 - click wants the character \b, which keeps the lines below it apart
    from workbench.cli.runs import runs
    from workbench.expectation.observed import Observed
    from workbench.judge import diff as judge
    from workbench.judge.expected import truth
    from workbench.judge.selection import parse
    from workbench.progress import shown, step
    from workbench.refusal import Refusal
    from workbench.report import text, values

    if references := references_of(options):
        if expected or measure or as_json:
            raise Refusal("show --reference takes no --expected, --measure and --json")
        return show_reference(target, elements, references, options, worst=worst)
    if options.pop("axes"):
        raise Refusal("--axes needs --reference")
    name, index = parse(elements)
    if expected and worst:
        raise Refusal("--expected shows only expected values, which have no worst; leave out --worst")
    if expected and measure:
        raise Refusal("--expected shows only the float64 reference and measures nothing; leave one of them out")
    calls = runs(target, **options)
    if len(calls) != 1:
        raise Refusal(f"show takes one run; the target and the case options make {len(calls)}")
    if worst and worst > values.LIMIT:
        raise Refusal(f"show prints at most {values.LIMIT} elements; got --worst {worst}")
    with shown(), step("run and judge 1 case"):
        trace = calls[0]()
        if not expected:
            diff = judge.diff(trace, measure=measure)
    screen = text.console()
    if expected:
        run = Observed(trace)
        chosen = values.checked(truth(run, name, index), elements)
        if as_json:
            return click.echo(json.dumps(values.document(trace, None, chosen, None)))
        return screen.print(values.reference_report(run, chosen, screen))
    stage = diff[name]
    if stage.dumped is None:
        given = ", ".join(trace.stages)
        raise Refusal(f"{trace.target} returned no {name}; it returned {given}; --expected shows the expected {name}")
    chosen = stage.select(**index) if isinstance(index, dict) else stage[tuple(index)]
    rows = chosen.worst(worst) if worst else None
    if rows is None:
        values.checked(chosen, elements)
    if as_json:
        return click.echo(json.dumps(values.document(trace, stage, chosen, rows)))
    screen.print(values.report(diff, stage, chosen, rows, screen))
