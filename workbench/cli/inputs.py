"""The command line's `inputs`, which writes what a kernel reads, for kernels that are run elsewhere."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from workbench.case.fields import ARITHMETIC, GIVEN, TILES, of_role
from workbench.case.spellings import flag
from workbench.cli.commands import Command
from workbench.cli.options import case_options, cases_of, json_option

if TYPE_CHECKING:
    import numpy as np

    from workbench.case.case import Case

#: options of a case that are a kernel's, and change no input
_OF_KERNELS = of_role(TILES, ARITHMETIC)


@click.command(cls=Command)
@case_options
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the inputs to this file, .safetensors or .npz",
)
@json_option
def inputs(out: Path, as_json: bool, **options: Any) -> None:
    """Write q, k and v of a case to a file, for a kernel that runs elsewhere, such as in a C++ program.

    With --codes, the file also has the codes and scales of q, k and v. Prints the commands that judge the kernel's
    results.
    """
    from workbench.case.command_line import case_options as words
    from workbench.foreign.arguments import drawn
    from workbench.refusal import Refusal
    from workbench.suggested import command
    from workbench.trace.inputs import save

    if given := [flag(name) for name in _OF_KERNELS if options[name]]:
        raise Refusal(f"inputs writes only what kernels read; leave out {', '.join(given)}, which does not change it")
    cases = cases_of(options)
    if len(cases) != 1:
        raise Refusal(f"inputs writes one case; the case options make {len(cases)}")
    case = cases[0]
    arrays = drawn(case)
    save(arrays, out)
    again = [*words(case.but(distribution=GIVEN), own=False), "--inputs", shlex.quote(str(out))]
    judged_by = {
        "lines that it prints": "" if case.codes else command("diff", "", ["--values", "run.log", *again]),
        "a trace that it writes, with these inputs": command("diff", "run.safetensors"),
        "a function that runs it": command("diff", "mine.py:attention", again),
    }
    if as_json:
        return click.echo(json.dumps(_document(out, case, arrays, [one for one in judged_by.values() if one])))
    for name, x in arrays.items():
        click.echo(f"{name:8} {x.dtype} {list(x.shape)}")
    mask = f"causal {case.causal_alignment}" if case.causal else "full"
    click.echo(f"written: {out}; call the kernel with scale {case.scale!r}, {mask}; to judge")
    for what, one in judged_by.items():
        if one:
            click.echo(f"  {what}:\n    {one}")


def _document(out: Path, case: "Case", arrays: "Mapping[str, np.ndarray]", commands: list[str]) -> dict[str, Any]:
    """The document `workbench.inputs/1`.

    - `file`: that was written
    - `inputs`: the arrays in it: `shape`, `dtype`
    - `commands`: that judge what a kernel makes of them
    """
    told = {name: {"shape": list(x.shape), "dtype": str(x.dtype)} for name, x in arrays.items()}
    document = {"schema": "workbench.inputs/1", "file": str(out), "case": case.as_dict()}
    return document | {"inputs": told, "commands": commands}
