"""The command line's `contract`, which lists what a kernel may promise of its arithmetic, or reads it off one."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from workbench.cli.commands import Command
from workbench.cli.completion import complete
from workbench.cli.options import given, json_option, one_target, run_options


@click.command(cls=Command)
@click.argument("target", metavar="[TARGET]", nargs=-1, callback=one_target, shell_complete=complete)
@click.option("--measure", is_flag=True, help="Measure the contract of TARGET from its outputs")
@run_options
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the measured contract to FILE, for --contract @FILE",
)
@json_option
def contract(target: str | None, measure: bool, out: Path | None, as_json: bool, **options: Any) -> None:
    """List the fields of a contract, their meanings and assumed values, the presets, and the precision of tensor cores.

    Fields come from the "contract" that a function returns, the manifest of a trace, or an option, such as
    --contract triton,block_k=64,exp_ulps=4. Fields override presets. A dtype may be `inputs`: the dtype of q, k and v.

    With --measure, infer the contract of TARGET, a function believed to be right, from its outputs on chosen inputs.
    Options are those of `workbench measure`. Each field comes with its evidence, or with the reason why it cannot be
    measured.
    """
    from workbench.refusal import Refusal
    from workbench.suggested import command

    if target is not None and measure:
        return _measured(target, out, as_json, options)
    if target is not None:
        reads = command("contract", target, ["--measure"])
        raise Refusal(f"--measure reads the contract of {target}: {reads}")
    if measure or out is not None or given(options):
        reads = command("contract", "FILE.py:FUNCTION", ["--measure"])
        raise Refusal(f"--measure and options of a run need a TARGET: {reads}")
    _list(as_json)


def _measured(target: str, out: Path | None, as_json: bool, options: dict[str, Any]) -> None:
    """Read the contract of a target."""
    from workbench.cli.runs import runs
    from workbench.files import write_atomically
    from workbench.progress import shown
    from workbench.readings.contract.measured import measured_contract
    from workbench.refusal import Refusal
    from workbench.report.contract import document, lines

    if options.pop("by_head"):
        raise Refusal("a contract is for all heads; --by-head is not allowed")
    calls = runs(target, **options)
    if len(calls) != 1:
        raise Refusal(f"a contract is measured on one case; the case options make {len(calls)}")
    with shown():
        found = measured_contract(calls[0]())
    if out is not None:
        write_atomically(out, json.dumps(document(found), indent=1).encode())
    click.echo(json.dumps(document(found)) if as_json else "\n".join(lines(found)))


def _list(as_json: bool) -> None:
    from workbench.case.assumptions import listing
    from workbench.case.presets import PRESETS, words
    from workbench.case.tensor_cores import table
    from workbench.records import number

    entries = listing()
    if as_json:
        return click.echo(json.dumps(number(_document(entries, PRESETS, table()))))
    click.echo("field: its meaning (its values) [assumed if undeclared]")
    for one in entries:
        click.echo(f"{one['name']}: {one['meaning']} ({one['values']}) [{assumed(one['assumed'])}]")
    click.echo("preset: its fields")
    for name, fields in PRESETS.items():
        click.echo(f"{name}: {words(fields)}")
    click.echo("tensor_core, operands: the fields that it sets, with accumulation=tensor-core")
    for one in table():
        click.echo(
            f"{one['generation']}, {one['operands']}: mma_block={one['block']},mma_extra_bits={one['extra_bits']}"
        )


def _document(entries: list[dict[str, Any]], presets: Mapping[str, Any], cores: list[dict[str, Any]]) -> dict[str, Any]:
    """The document `workbench.contract/1`.

    - `fields`: `name`, `values`, `meaning`, `assumed` (by dtype of the inputs)
    - `presets`: name -> fields
    - `tensor_cores`: `generation`, `operands`, `block`, `extra_bits`
    """
    return {"schema": "workbench.contract/1", "fields": entries, "presets": presets, "tensor_cores": cores}


def assumed(by_inputs: dict[str, Any]) -> str:
    """What is assumed, by the kind of inputs, in words: what most have alike, then the others."""
    from workbench.case.presets import INPUTS, word

    own = [kind for kind, value in by_inputs.items() if value == kind]
    kinds: dict[str, list[str]] = {}
    for kind, value in by_inputs.items():
        kinds.setdefault(INPUTS if len(own) > 1 and kind in own else word(value), []).append(kind)
    usual, *others = sorted(kinds, key=lambda value: -len(kinds[value]))
    return "; ".join([usual, *(f"{value} for {' and '.join(kinds[value])}" for value in others)])
