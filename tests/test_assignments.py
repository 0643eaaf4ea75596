"""What functions assign: in the order of the text, whatever the branch, and what of it computes."""

import ast
import textwrap

import pytest

from workbench.assignments import Function


def function(body: str) -> Function:
    tree = ast.parse("def f(q, k, out):\n" + textwrap.indent(textwrap.dedent(body), "    "))
    (node,) = tree.body
    assert isinstance(node, ast.FunctionDef)
    return Function(node)


def last(body: str, name: str) -> str | None:
    """The statement that counts of those that write to a name; its value, None of what a loop runs over."""
    write = function(body).last(name, None)
    return None if write is None else ast.unparse(write.place.statement).split("\n")[0]


@pytest.mark.parametrize(
    ("body", "name", "statement"),
    [
        ("s = q @ k\ns = s * 2", "s", "s = s * 2"),
        ("s = q @ k\ns[0] = -1.0", "s", "s = q @ k"),
        ("s = q @ k\nif q:\n    s = s + k", "s", "s = q @ k"),
        ("if q:\n    s = q @ k\nelse:\n    s = 0", "s", "s = q @ k"),
        ("s = 0\nfor d in q:\n    s += d * k", "s", "s += d * k"),
        ("s = empty_like(q)\ns[1:] = q", "s", "s[1:] = q"),
        ("s: object = q\n", "s", "s: object = q"),
        ("[m, s] = k\n", "s", "[m, s] = k"),
        ("s = q\ns.masked_fill_(k, 0)", "s", "s = q"),
        ("s = q\ns.mul_(k)", "s", "s.mul_(k)"),
        ("tl.store(out + q * 4 + k, q / k, mask=q)", "out", "tl.store(out + q * 4 + k, q / k, mask=q)"),
        ("s = 0", "s", None),
        ("s = zeros(q.shape)", "s", None),
        ("s = cuda.device_array_like(q)", "s", None),
        ("def g():\n    s = q", "s", None),
        ("s = q\nfor s in k:\n    pass", "s", "for s in k:"),
    ],
)
def test_the_last_write_that_computes_whatever_the_branch(body: str, name: str, statement: str | None) -> None:
    assert last(body, name) == statement


def test_a_branch_counts_for_what_stands_in_it() -> None:
    body = "s = q\nif k:\n    s = s + k\n    out[0] = s\nout[1] = s"
    found = function(body)
    inside, behind = (place for place in found.places if ast.unparse(place.statement).startswith("out"))
    values = [write.value for place in (inside, behind) if (write := found.last("s", place)) is not None]
    assert [ast.unparse(value) for value in values if value is not None] == ["s + k", "q"]


def test_what_is_computed_in_place_stands_in_its_line() -> None:
    write = function("out[0] = q\nout[0] /= k").last("out", None)
    assert write is not None and write.value is not None
    assert (ast.unparse(write.value), write.value.lineno) == ("out / k", 3)


def test_entries_of_a_dict_are_told_apart() -> None:
    assert last("d = {}\nd['out'] = q\nd['lse'] = k", "d") is None
