"""Where a value is computed: back through names, loads, conversions, and functions of the same file."""

import ast

import pytest

from workbench.lineage import file_of

KERNEL = """
def load(tile, x):
    tile[0] = half(x[0])

def peek(tile):
    print(tile)

def kernel(q, k, scores, out, lse):
    tile = shared.array(4)
    load(tile, k)
    peek(tile)
    dot = tile[0]
    s = dot * q[0]
    if lse:
        s = NEG_INF
    scores[0] = s
    out[0] = half2float(s) / 2
    lse[0] = dot

def both(q, k):
    m = q + k
    return m, m.sum()

def host(q, k):
    out, lse, scores, other = empty(q), zeros(3), empty(q), empty(q)
    arguments = (q, k, scores, out, lse)
    kernel[1, 2](*arguments)
    library.fill(other)
    twice = empty(q)
    library.fill(twice)
    library.fill(twice)
    first, second = both(q, k)
    untouched = zeros(4)
    changed = q + k
    library.normalise(changed)
    shown = q + k
    print(shown)
"""


def made(expression: str, source: str = KERNEL, function: str = "host") -> str | None:
    """The text of the line where an expression at the end of a function is computed."""
    file = file_of(ast.parse(source))
    place = file.made(file.functions[function], ast.parse(expression, mode="eval").body, None)
    return None if place is None else source.splitlines()[place.lineno - 1].strip()


@pytest.mark.parametrize(
    ("expression", "line"),
    [
        ("scores", "s = dot * q[0]"),
        ("out", "out[0] = half2float(s) / 2"),
        ("lse.astype(np.float16)", "tile[0] = half(x[0])"),
        ("np.asarray(scores).copy()", "s = dot * q[0]"),
        ("other", "library.fill(other)"),
        ("first", "m = q + k"),
        ("second", "return m, m.sum()"),
        ("shown", "shown = q + k"),
        ("twice", None),
        ("untouched", None),
        ("changed", None),
        ("q", None),
        ("unknown", None),
        ("self.out", None),
        ("found['out']", None),
    ],
)
def test_the_line_that_computes_or_nothing(expression: str, line: str | None) -> None:
    assert made(expression) == line


def test_a_kernel_that_is_launched_by_another_function() -> None:
    other = KERNEL.replace("kernel[1, 2](*arguments)", "compiled(source_of(kernel))(1, 2, arguments)")
    assert made("scores", other) == "s = dot * q[0]"


def test_two_functions_of_one_name_are_not_told_apart() -> None:
    assert made("scores", KERNEL + "\ndef kernel(q, k, scores, out, lse):\n    scores[0] = k\n") is None


def test_functions_that_call_each_other_end() -> None:
    source = "def f(x):\n    g(x)\n\ndef g(x):\n    f(x)\n"
    assert made("x", source, "f") is None
