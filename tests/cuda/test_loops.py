"""Loops that are taken apart: the first iteration on its own, or every one."""

import ast

import pytest

from workbench.cuda.loops import apart

PLAIN = """
def kernel(x, first, end):
    total = 0
    for tile in peeled(first, end):
        if tile > first:
            total += x[tile - 1]
        else:
            total -= 1
        if tile > end - 2:
            total *= 10
    for i in range(3):
        if i > 0:
            total += i
    return total
"""
APART = """
def kernel(x, first, end):
    total = 0
    if first < end:
        tile = first
        total -= 1
        if tile > end - 2:
            total *= 10
        for tile in range(first + 1, end):
            total += x[tile - 1]
            if tile > end - 2:
                total *= 10
    for i in range(3):
        if i > 0:
            total += i
    return total
"""


def test_both_parts_have_the_branch_that_they_take():
    assert ast.unparse(apart(ast.parse(PLAIN), {})) == APART.strip()


def test_it_is_the_same_function():
    made = {}
    for name, tree in {"plain": ast.parse(PLAIN), "apart": apart(ast.parse(PLAIN), {})}.items():
        space = {"peeled": range}
        exec(compile(tree, name, "exec"), space)
        made[name] = [space["kernel"]([1, 2, 3, 4, 5], first, end) for first, end in ((0, 5), (2, 3), (3, 3), (4, 2))]
    assert made["plain"] == made["apart"]


def test_a_tree_without_such_a_loop_is_left_alone():
    tree = ast.parse(APART)
    assert apart(tree, {}) is tree


def test_lines_are_those_of_the_source():
    lines = {node.lineno for node in ast.walk(apart(ast.parse(PLAIN), {})) if isinstance(node, ast.stmt)}
    assert lines <= {node.lineno for node in ast.walk(ast.parse(PLAIN)) if isinstance(node, ast.stmt)}


UNROLLED = """
def kernel(x):
    total = 0
    for i in unrolled(WIDTH // 16):
        for j in range(2):
            total += x[i + j]
        for n in unrolled(2):
            total *= n + 2
    return total
"""
EVERY = """
def kernel(x):
    total = 0
    i = 0
    for j in range(2):
        total += x[i + j]
    n = 0
    total *= n + 2
    n = 1
    total *= n + 2
    i = 1
    for j in range(2):
        total += x[i + j]
    n = 0
    total *= n + 2
    n = 1
    total *= n + 2
    return total
"""


def test_every_iteration_on_its_own():
    tree = ast.parse(UNROLLED)
    made = apart(tree, {"WIDTH": 32})
    assert ast.unparse(made) == EVERY.strip() and ast.unparse(tree) == UNROLLED.strip()
    assert {node.lineno for node in ast.walk(made) if isinstance(node, ast.stmt)} <= {*range(2, 10)}


def test_unrolled_it_is_the_same_function():
    results = []
    for text in (UNROLLED, EVERY):
        space = {"unrolled": range, "WIDTH": 32}
        exec(text, space)
        results.append(space["kernel"]([1, 2, 3]))
    assert results[0] == results[1] == ((1 + 2) * 6 + 2 + 3) * 6


@pytest.mark.parametrize(("loop", "leaving"), [("unrolled(2)", "break"), ("peeled(0, 2)", "continue")])
def test_a_loop_that_is_left_cannot_be_taken_apart(loop, leaving):
    """Its copies would leave the loop around it, without a word."""
    text = f"for x in range(3):\n    for i in {loop}:\n        {leaving}\n"
    with pytest.raises(AssertionError, match="line 2: no break or continue in an unrolled or peeled loop"):
        apart(ast.parse(text), {})
