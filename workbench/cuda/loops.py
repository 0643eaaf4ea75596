"""Loops of a kernel that are taken apart for a GPU: the first iteration on its own, or every one. On the emulator they
are loops over a range.

Compilers order products of warp groups ("wgmma") one behind another where a branch lies between a product and its
wait, or where one of two groups is under way on some paths alone. An iteration that does less than the others has such
a branch; taken apart, neither copy of the body has one. And they keep a loop that has a large body, however few its
iterations, with the arrays that it indexes in memory instead of registers, or computes anew what the number of an
iteration makes constant.
"""

import ast
import copy
from collections.abc import Mapping
from typing import Any

#: `for i in unrolled(count)`: every iteration on its own; the count is made of capitals
unrolled = range
#: `for i in peeled(first, end)`: the first on its own; the body may ask `if i > first`
peeled = range


def apart(tree: ast.Module, bound: Mapping[str, Any]) -> ast.Module:
    """The tree without loops over `unrolled` and `peeled`; itself where there are none. `bound`: what capitals are."""
    if not any(isinstance(node, ast.For) and _over(node) for node in ast.walk(tree)):
        return tree
    return ast.fix_missing_locations(_Apart(bound).visit(copy.deepcopy(tree)))


def _over(node: ast.For) -> str:
    """`unrolled` or `peeled` where a loop is over one of them, else ""."""
    called = ast.unparse(node.iter.func) if isinstance(node.iter, ast.Call) else ""
    return called if called in ("unrolled", "peeled") else ""


class _Apart(ast.NodeTransformer):
    def __init__(self, bound: Mapping[str, Any]) -> None:
        self.bound = bound

    def visit_For(self, node: ast.For) -> ast.stmt | list[ast.stmt]:
        """A loop, or its parts, whose lines are its own."""
        over = _over(node)
        leaves = any(isinstance(x, ast.Break | ast.Continue) for x in ast.walk(node))
        assert not (over and leaves), f"line {node.lineno}: no break or continue in an unrolled or peeled loop"
        self.generic_visit(node)  # loops in its body
        if not over:
            return node
        assert isinstance(node.iter, ast.Call) and isinstance(node.target, ast.Name)
        if over == "unrolled":
            (count,) = node.iter.args
            return self._every(node, eval(ast.unparse(count), dict(self.bound)))
        first, end = node.iter.args
        test = f"{node.target.id} > {ast.unparse(first)}"
        others = ast.Call(ast.Name("range", ast.Load()), [ast.BinOp(first, ast.Add(), ast.Constant(1)), end], [])
        rest = ast.For(node.target, others, _Known(test, True).of(node.body), [])
        body = [ast.Assign([node.target], first), *_Known(test, False).of(node.body), rest]
        return ast.copy_location(ast.If(ast.Compare(first, [ast.Lt()], [end]), body, []), node)

    def _every(self, node: ast.For, count: int) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for i in range(count):
            made += [ast.copy_location(ast.Assign([node.target], ast.Constant(i)), node), *copy.deepcopy(node.body)]
        return made


class _Known(ast.NodeTransformer):
    """Puts the branch of an `if` in its place whose test is known."""

    def __init__(self, test: str, holds: bool) -> None:
        self.test, self.holds = test, holds

    def of(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """A copy of the statements."""
        tree = self.visit(ast.Module(copy.deepcopy(body), []))
        return tree.body

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        """The `if`, or one of its branches."""
        self.generic_visit(node)
        if ast.unparse(node.test) != self.test:
            return node
        return node.body if self.holds else node.orelse
