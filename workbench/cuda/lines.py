"""Where in their sources the kernels of this project make each stage."""

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from workbench.assignments import Function, plain
from workbench.case.stages import OF_QUANTISER
from workbench.cuda.build import REGISTERS, Build
from workbench.cuda.faults.fault import Fault, applied, of_file
from workbench.cuda.quantised import QUANTISER
from workbench.line import Line, line_of
from workbench.lineage import File, Node, file_of

#: what the quantiser makes -> its function
_QUANTISES = {"codes": "encode", "scale": "scale_of", "zero": "zero_of", "global": "tensor_scale_of"}


def lines_of(builds: Sequence[Build], stages: Collection[str], faults: Sequence[Fault]) -> Mapping[str, Line]:
    """Stage -> the line that computes it, of those that one of the builds makes, as it stands with its faults put in:
    of a probe the assignment to what it dumps, of a stage that the kernel stores anyway the store.
    """
    found = {stage: line for build in reversed(builds) for stage, line in _of_build(build, stages)}
    return found | dict(_of_quantiser(stages, faults))


def _of_build(build: Build, stages: Collection[str]) -> Iterator[tuple[str, Line]]:
    file, source = file_of(build.source.tree), build.source
    text = build.text.splitlines()
    for stage in stages:
        number = _number(file, source.name, stage, probed=stage in build.probes)
        if (number := number or _stored(source.tree, stage)) is not None:
            yield stage, line_of(source.filename, text, number)


def _number(file: File, kernel: str, stage: str, *, probed: bool) -> int | None:
    """The number of the line where a kernel function computes a stage; None where it does not."""
    function = file.functions[kernel]
    if probed:
        made = _several(file, function, f"probe_{stage}") or file.stored(function, f"probe_{stage}")
    else:
        write = function.last(stage, None)
        made = None if write is None else write.place.statement
    return None if made is None else made.lineno


def _several(file: File, function: Function, array: str) -> Node | None:
    """Where the registers are computed that a call stores in an array (`build.Build`); None where none does."""
    for place, call in reversed(function.calls):
        if call.args and plain(call.args[0]) == array:
            return file.made(function, call.args[REGISTERS], place) or place.statement
    return None


def _stored(tree: ast.Module, stage: str) -> int | None:
    """The number of the line where a kernel, or a function of its own to which the stage has the same name, stores
    several elements of it at once; None for none.
    """
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args)
    stores = (node for node in calls if ast.unparse(node.func).startswith("ptx.st_"))
    return next((node.lineno for node in stores if ast.unparse(node.args[0]) == stage), None)


def _of_quantiser(stages: Collection[str], faults: Sequence[Fault]) -> Iterator[tuple[str, Line]]:
    """Of codes and scales the function that makes them."""
    wanted = [stage for stage in OF_QUANTISER if stage in stages]
    text = applied(QUANTISER.read_text(), of_file(faults, QUANTISER.name), QUANTISER.name) if wanted else ""
    for stage in wanted:
        found = re.search(rf"^def {_QUANTISES[stage.partition('_')[0]]}\b", text, re.M)
        assert found is not None
        yield stage, line_of(str(Path(QUANTISER)), text.splitlines(), text.count("\n", 0, found.start()) + 1)
