"""Probes and switches leave no trace in a build without them."""

import ast
import itertools
import re

import pytest

from tests.cuda.compiled.builds import (
    CODES_VARIANTS,
    FLOATS,
    FP8_MMA,
    FUNCTIONS,
    LARGEST,
    MMA,
    OF_FP8_MMA,
    OF_MMA,
    OF_SPLITS,
    OF_TENSOR,
    SMALL,
    SPLIT_MMA,
    SPLIT_MMA_REDUCE,
    TENSOR,
    compiled,
    library_of,
    normalised,
    of_kernel,
)
from workbench.cuda.build import build
from workbench.cuda.flash_build import Constants
from workbench.cuda.loops import apart


def without_probe_lines(text):
    """The source with its probe lines, and the headers of blocks left empty, blanked out; no syntax tree involved."""
    lines = ["" if re.match(r" *(probe\.|.* = probe\()", line) else line for line in text.split("\n")]
    while True:
        empty = [i for i, line in enumerate(lines) if re.match(r" +(if|for) .*:$", line) and not has_body(lines, i)]
        if not empty:
            return "\n".join(lines)
        for i in empty:
            lines[i] = ""


def has_body(lines, header):
    following = next(line for line in lines[header + 1 :] if line.strip())
    return indent(following) > indent(lines[header])


def indent(line):
    return len(line) - len(line.lstrip())


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("name", "constants"),
    [
        ("flash_forward", Constants(**SMALL, dtype="bfloat16")),
        (TENSOR, OF_TENSOR),
        *(
            pytest.param(*one, marks=pytest.mark.campaign)
            for one in (
                *itertools.product(FLOATS[1:], [Constants(**SMALL, dtype="bfloat16")]),
                ("flash_forward", Constants(**LARGEST, dtype="float32")),
                *itertools.product(["fp8_forward"], [CODES_VARIANTS[0], CODES_VARIANTS[3]]),
                (SPLIT_MMA_REDUCE, OF_SPLITS),
            )
        ),
    ],
    ids=str,
)
def test_plain_build_is_the_source_without_its_probe_lines_and_switches(name, constants):
    """The same PTX, lines of the source included: of what is off nothing is left, not even its parameters."""
    kernel, _ = FUNCTIONS[name]
    constants = of_kernel(kernel, constants)
    options = {"lineinfo": True, "launch_bounds": constants.threads}
    dtype = None if kernel.quantised else constants.dtype
    expected = library_of(stripped(name, constants), kernel.algorithm, dtype, options).get_asm_str(cc=(9, 0))
    actual = compiled(name, constants, False).get_asm_str(cc=(9, 0))
    assert ".loc" in expected and ".maxntid" in expected
    assert normalised(actual) == normalised(expected)


@pytest.mark.parametrize(
    ("name", "constants"),
    [(MMA, OF_MMA), (FP8_MMA, OF_FP8_MMA), (SPLIT_MMA, OF_SPLITS), (TENSOR, OF_TENSOR)],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_plain_build_is_the_same_bytecode(name, constants):
    """From which numba makes the same PTX, as above; that takes it up to 20 s for each of these."""
    kernel, function = FUNCTIONS[name]
    made = build(kernel.functions[function], function, constants, (), ())
    actual, expected = made.for_numba.__code__, stripped(name, constants).__code__
    assert len(expected.co_code) > 1000 and [*actual.co_lines()] == [*expected.co_lines()]
    for part in ("co_code", "co_consts", "co_names", "co_varnames", "co_argcount"):
        assert getattr(actual, part) == getattr(expected, part)


def stripped(name, constants):
    """The kernel function of the source without its probe lines and switches, as text has it."""
    kernel, function = FUNCTIONS[name]
    return stripped_source(kernel.functions[function], function, constants)


def stripped_source(file, function, constants):
    """The same of a function of any source."""
    text, _, _ = file.read_text().partition("\n\n# ---- on the host\n")
    namespace = constants.names()
    switches = {capital: value for capital, value in namespace.items() if isinstance(value, bool)}
    rest = without_switches(without_probe_lines(text), function, switches)
    assert text.count("\n") == rest.count("\n") and "    probe." in text and "    probe." not in rest
    assert not re.search(r"\bif (not )?[A-Z_]+:", rest.partition(f"def {function}(")[2])
    assert re.search(r"\bif [A-Z_]+:", text) or not switches
    built, tree = build(file, function, constants, (), ()).source.tree, ast.parse(rest)
    needed = [None, *(node.name for node in built.body if isinstance(node, ast.FunctionDef))]
    tree.body = [node for node in tree.body if getattr(node, "name", None) in needed]
    exec(compile(apart(tree, namespace), str(file), "exec"), namespace)
    return namespace[function]


def without_switches(text, function, switches):
    """The source with the branches of switches taken or blanked out, lines kept, and the parameters that `function` then
    does not use removed; no syntax tree involved.
    """
    lines = text.split("\n")
    for i, line in enumerate(lines):
        found = re.fullmatch(r" +if (not )?([A-Z_]+):", line)
        if found is None or found[2] not in switches:  # of a function that the other kernel of the source alone needs
            continue
        lines[i] = ""
        holds = switches[found[2]] is not bool(found[1])
        i = take(lines, i + 1, indent(line), holds)
        if i < len(lines) and lines[i] == " " * indent(line) + "else:":
            lines[i] = ""
            take(lines, i + 1, indent(line), not holds)
    text = "\n".join(lines)
    (head,) = re.findall(rf"^def {function}\(\s*(.*?),?\s*\):(?:  # fmt: skip)?$", text, re.MULTILINE | re.DOTALL)
    body = text.partition(head)[2].split('"""')[2]
    kept = [name for name in re.split(r",\s+", head) if re.search(rf"\b{name}\b", body)]
    return text.replace(head, ", ".join(kept) + "\n" * head.count("\n"))


def take(lines, first, outer, taken):
    """Move the block from `first` on to the left, or blank it out; returns where it ends."""
    for i in range(first, len(lines)):
        if lines[i].strip() and indent(lines[i]) <= outer:
            return i
        lines[i] = lines[i][4:] if taken else ""
    return len(lines)
