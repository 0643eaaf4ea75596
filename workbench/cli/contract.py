"""The command line's `contract`, which lists what a kernel may promise of its arithmetic."""

import json
from typing import Any

import click

from workbench.cli.options import json_option


@click.command()
@json_option
def contract(as_json: bool) -> None:
    """List the fields of a contract, what each means and what is assumed where nobody says it; the presets; and what
    tensor cores of each generation keep.

    A function says them in the "contract" that it returns, a trace in its manifest; of a function and of a log of
    printed values --contract does: --contract triton,block_k=64,exp_ulps=4, where fields override presets. A dtype may
    be `inputs`: that of q, k and v.
    """
    from workbench.case.assumptions import listing
    from workbench.case.presets import PRESETS, words
    from workbench.case.tensor_cores import table
    from workbench.records import number

    entries = listing()
    if as_json:
        found = {"schema": "workbench.contract/1", "fields": entries, "presets": PRESETS, "tensor_cores": table()}
        return click.echo(json.dumps(number(found)))
    click.echo("field: what it means (its values) [what is assumed where nobody says it]")
    for one in entries:
        click.echo(f"{one['name']}: {one['meaning']} ({one['values']}) [{_assumed(one['assumed'])}]")
    click.echo("preset: its fields")
    for name, fields in PRESETS.items():
        click.echo(f"{name}: {words(fields)}")
    click.echo("tensor_core, operands: the fields that it sets beside accumulation=tensor-core")
    for one in table():
        click.echo(
            f"{one['generation']}, {one['operands']}: mma_block={one['block']},mma_extra_bits={one['extra_bits']}"
        )


def _assumed(by_inputs: dict[str, Any]) -> str:
    """What is assumed, by the kind of inputs, in words: what most have alike, then the others."""
    from workbench.case.presets import INPUTS, word

    own = [kind for kind, value in by_inputs.items() if value == kind]
    kinds: dict[str, list[str]] = {}
    for kind, value in by_inputs.items():
        kinds.setdefault(INPUTS if len(own) > 1 and kind in own else word(value), []).append(kind)
    usual, *others = sorted(kinds, key=lambda value: -len(kinds[value]))
    return "; ".join([usual, *(f"{value} of {' and '.join(kinds[value])}" for value in others)])
