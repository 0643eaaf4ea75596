"""The command line's `measure`, which reads what a function computes off its outputs."""

import json
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import click

from workbench.cli.commands import Command
from workbench.cli.completion import complete
from workbench.cli.exits import BUG
from workbench.cli.operation import measure_operation, operation_options, refuse_of_operation
from workbench.cli.options import effort_option, json_option, one_target, run_options


@click.command(cls=Command)
@click.argument("target", metavar="TARGET", nargs=-1, callback=one_target, shell_complete=complete)
@run_options
@operation_options
@effort_option
@click.option("--picture", type=click.Path(path_type=Path, dir_okay=False), help="Write ln(P / expected) as FILE.png")
@json_option
def measure(target: str | None, effort: float, picture: Path | None, as_json: bool, **options: Any) -> None:
    """Measure what TARGET computes from its outputs on chosen inputs, without probes or a list of faults.

    TARGET and options are those of `workbench diff`; TARGET is a function or a kernel. With columns of the identity as
    V, out is P itself for the case's q and k. Other inputs reveal the mask, the scale, misplaced elements of q, k and
    v, steps at tile and split edges, and the divisor of the weights. The fitted model is put into the float64
    reference, and must predict two runs on fresh inputs. Exits with 1 if a difference is found, or if out or the
    weights are over the budget of every kernel with this contract.

    With --operation attention_backward, P and dS are measured from gradients.
    """
    if (operation := options.pop("operation")) is not None:
        return measure_operation(target, operation, {**options, "picture": picture}, as_json=as_json)
    refuse_of_operation(options)
    from workbench.cli.runs import runs
    from workbench.extras import require
    from workbench.files import write_atomically
    from workbench.progress import shown
    from workbench.readings.sample import measured_in_part
    from workbench.refusal import Refusal
    from workbench.report.measured import document, lines

    if options.pop("by_head"):
        raise Refusal("measure takes whole functions; --by-head is not allowed")
    where, options["where"] = options["where"], None
    with shown():
        calls = runs(target, **options)
        if picture is not None:
            require("--picture needs", "matplotlib")
        if picture is not None and len(calls) != 1:
            raise Refusal(f"--picture takes one case; the case options make {len(calls)}")
        found = [measured_in_part(call(), where, effort=effort) for call in calls]
    if picture is not None:
        drawn = BytesIO()
        found[0].plot().savefig(drawn, format="png")
        write_atomically(picture, drawn.getvalue())
    if as_json:
        documents = [document(one) for one in found]
        many = {"schema": "workbench.measures/1", "runs": documents}
        click.echo(json.dumps(documents[0] if len(documents) == 1 else many))
    else:
        for one in found:
            click.echo("\n".join(lines(one)))
    sys.exit(BUG if any(one.wrong for one in found) else 0)
