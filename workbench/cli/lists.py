"""The command line's lists: the faults that can be put in, and the kernels with their stages."""

import json
from importlib.util import find_spec
from typing import Any

import click

from workbench.cli.options import json_option


@click.command()
@json_option
def faults(as_json: bool) -> None:
    """List the faults that --fault can inject."""
    from workbench.cuda.faults.catalogue import CATALOGUE, OF_OPERATIONS, elsewhere

    entries = [
        {
            "id": fault.id,
            "kernel": fault.kernel,
            "summary": fault.summary,
            "stages": list(fault.stages),
            "biased": list(fault.biased),
            "finding": fault.finding,
            "needs": dict(fault.needs),
            "source": fault.source,
            "before": fault.before,
            "after": fault.after,
        }
        for fault in (*CATALOGUE.values(), *OF_OPERATIONS.values())
    ]
    if as_json:
        return click.echo(json.dumps(_faults(entries)))
    from workbench.report.text import show

    show(entries, ("id", "kernel", "stages", "biased", "finding", "summary"))
    if others := {*elsewhere()} - {*CATALOGUE, *OF_OPERATIONS}:
        click.echo(f"{len(others)} more are in campaigns/faults/: `python -m campaigns.faults faults` lists all")


@click.command()
@json_option
def kernels(as_json: bool) -> None:
    """List kernels, stages and input distributions.

    Kernels include those of installed packages, and functions of packages that need no wrapper. Stages come with their
    axes, outermost first, and their definitions.
    """
    from workbench.case.distributions import DISTRIBUTIONS
    from workbench.case.stages import ALGORITHMS, AXIS_NAMES
    from workbench.cuda.kernels import KERNELS, OF_OPERATIONS
    from workbench.extras import lacking
    from workbench.foreign.adapters import ADAPTERS
    from workbench.foreign.find import installed
    from workbench.reference.attention import definitions

    if missing := lacking("built-in kernels need", "numba"):
        click.echo(missing, err=True)  # what follows lists none
    entries = [
        {"name": k.name, "summary": k.summary, "stages": list(ALGORITHMS[k.algorithm]), "splits": k.splits}
        for k in (() if missing else KERNELS.values())
    ]
    of_operations = [
        {"name": k.name, "operation": k.operation, "summary": k.summary, "stages": list(k.stages)}
        for k in (() if missing else OF_OPERATIONS.values())
    ]
    others = [
        {"name": k.name, "function": k.function, "package": k.package, "hidden": k.name in KERNELS}
        for k in installed().values()
    ]
    packages = [
        {"target": name, "takes": [*one.takes], "installed": find_spec(one.package) is not None}
        for name, one in ADAPTERS.items()
    ]
    stages = [
        {"stage": name, "axes": axes, "reads": list(read), "definition": definition, "of": list(of)}
        for (name, axes, read, definition), of in definitions().items()
    ]
    if as_json:
        return click.echo(json.dumps(_kernels(entries, of_operations, others, packages, stages, AXIS_NAMES)))
    from workbench.report.text import show

    if not missing:
        show(entries, ("name", "summary"))
        show(of_operations, ("name", "operation", "summary"))
    show([one | {"axes": " ".join(one["axes"])} for one in stages], ("stage", "axes", "definition", "of"))
    click.echo(f"axes: {', '.join(f'{axis} {name}' for axis, name in AXIS_NAMES.items())}; h of k and v is the kv head")
    if others:
        show([k | {"hidden": "by a built-in kernel" if k["hidden"] else ""} for k in others], tuple(others[0]))
    show([one | {"installed": "yes" if one["installed"] else "no"} for one in packages], tuple(packages[0]))
    distributions = [
        {"distribution": name, "formula": " ".join((draw.__doc__ or "").partition("\n\n")[0].split())}
        for name, draw in DISTRIBUTIONS.items()
    ]
    show(distributions, ("distribution", "formula"))


def _faults(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """The document `workbench.faults/1`.

    - `faults`: `id`, `kernel`, `summary`, `stages` (the first wrong ones), `biased`, `finding` (of `workbench check`),
      `needs` (fields of the case), `source`, `before` and `after` (the code)
    """
    return {"schema": "workbench.faults/1", "faults": entries}


def _kernels(
    kernels: list[dict[str, Any]],
    of_operations: list[dict[str, Any]],
    installed: list[dict[str, Any]],
    packages: list[dict[str, Any]],
    stages: list[dict[str, Any]],
    axes: Any,
) -> dict[str, Any]:
    """The document `workbench.kernels/1`.

    - `kernels`, `of_operations`: built-in kernels, of attention and of other operations, with their stages
    - `installed`, `packages`: kernels of installed packages; functions of packages that need no wrapper
    - `stages`, `axes`: axes and definitions of all stages; names of axes
    """
    return {
        "schema": "workbench.kernels/1",
        "kernels": kernels,
        "of_operations": of_operations,
        "installed": installed,
        "packages": packages,
        "stages": stages,
        "axes": axes,
    }
