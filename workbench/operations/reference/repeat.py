"""The command that judges the same again."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.case import spellings
from workbench.operations.reference.inputs import Given
from workbench.operations.reference.traced import References, each
from workbench.reference.graph import Contract
from workbench.suggested import command


def repeat_command(
    target: str, reference: References, inputs: Given, axes: Mapping[str, int], asked: Mapping[str, Any],
    gradients: bool = False,
) -> str:  # fmt: skip
    """The command; empty where something has no name in a file. asked: other options by name, None where nobody said
    one.
    """
    references = each(reference)
    named = [one for one in references if isinstance(one, str)]
    where = str(inputs) if isinstance(inputs, str | Path) else ""
    if ":" not in target or len(named) < len(references) or not where or isinstance(asked.get("contract"), Contract):
        return ""
    words = [word for one in named for word in ("--reference", one)] + ["--inputs", where]
    words += spellings.said({name: x for name, x in asked.items() if x is not None})
    words += ["--axes", ",".join(f"{axis}={n}" for axis, n in axes.items())] if axes else []
    words += ["--gradients"] if gradients else []
    return command("diff", target, map(shlex.quote, words))
