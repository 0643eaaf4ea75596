"""The second rewriting of a function, for runs that are watched: accesses and loops call what notes them."""

import ast
from dataclasses import dataclass

from workbench.cuda.emulator.calls import called
from workbench.cuda.emulator.emulator_error import EmulatorError
from workbench.cuda.emulator.watch_words import MAX_PLACES

_ACCESS = "workbench.cuda.emulator.access"
#: the first word of an operation on neighbours in memory -> what notes it
_WIDE = {"ld": "wide_read", "st": "wide_write", "red": "wide_locked"}


@dataclass(frozen=True)
class Place:
    """A place in the source that touches an array, or a loop."""

    file: str
    line: int
    text: str  #: the array, as the rewritten source has it; "" for a loop


class Watcher(ast.NodeTransformer):
    """Rewrites what `rewrite.Rewriter` made of a function; ``rewriter`` is asked for names and the hidden argument."""

    def __init__(self, rewriter):
        self.rewriter = rewriter
        self.program = rewriter.program
        self.temporaries = 0
        self.line = rewriter.function.node.lineno  # of the statement being visited

    def statements(self, body):
        """Return the watched statements of a block."""
        watched = []
        for statement in body:
            new = self.visit(statement)
            for made in new if isinstance(new, list) else [new]:
                watched.append(ast.copy_location(made, statement))
        return watched

    def visit(self, node):
        """Remember the line, which nodes that `calls` made do not have."""
        self.line = getattr(node, "lineno", self.line)
        return super().visit(node)

    def told(self, name, node, text, *arguments):
        """Return the call of a function whose last arguments are the watched thread and the place."""
        watch = ast.Attribute(self.rewriter.context(), "watch", ast.Load())
        return ast.copy_location(called(name, *arguments, watch, self.place(node, text)), node)

    def place(self, node, text):
        """Return the number that names a place; an int64, as numba would compile a function anew for every literal."""
        line = getattr(node, "lineno", self.line)
        number = self.program.place(Place(self.rewriter.function.filename, line, text))
        if number >= MAX_PLACES:
            raise EmulatorError(
                f"{self.rewriter.function.at(node)}: a watched kernel has at most {MAX_PLACES - 1} accesses"
            )
        return called(self.program.dtype("int64"), ast.Constant(number))

    def access(self, function, node, *arguments):
        """Return the call that makes an access."""
        return self.told(self.program.imported(_ACCESS, function), node, ast.unparse(node.value), *arguments)

    def visit_Subscript(self, node):
        """Watch a read."""
        if isinstance(node.value, ast.Attribute) and node.value.attr in ("shape", "strides"):
            return node
        if _has_slice(node.slice):
            return self.generic_visit(node)
        array, index = self.visit(node.value), self.visit(node.slice)
        return self.access("load", node, array, index)

    def stored(self, node, value):
        """Return the statement that stores a value where a subscript stands."""
        if _has_slice(node.slice):
            raise self.rewriter.refusal(node, f"a store to a slice in a watched run: {ast.unparse(node)}")
        self.program.note_use(self.rewriter.function, node.value, node, stores=True)
        array, index = self.visit(node.value), self.visit(node.slice)
        return ast.Expr(self.access("store", node, value, array, index))

    def temporary(self):
        """Return a new variable's name."""
        self.temporaries += 1
        return f"__t{self.temporaries}"

    def visit_Assign(self, node):
        """Watch a write; where several targets share a value, it is kept first."""
        if not any(isinstance(part, ast.Subscript) for target in node.targets for part in _parts(target)):
            return self.generic_visit(node)
        value = self.visit(node.value)
        if len(node.targets) == 1 and isinstance(node.targets[0], ast.Subscript):
            return self.stored(node.targets[0], value)
        name = self.temporary()
        made = [ast.Assign([ast.Name(name, ast.Store())], value)]
        for target in node.targets:
            made += self.unpacked(target, ast.Name(name, ast.Load()))
        return made

    def unpacked(self, target, value):
        """Return the statements that assign a value to one target."""
        if isinstance(target, ast.Subscript):
            return [self.stored(target, value)]
        if not isinstance(target, ast.Tuple):
            return [ast.Assign([target], value)]
        names = [self.temporary() for _ in target.elts]
        made = [ast.Assign([ast.Tuple([ast.Name(name, ast.Store()) for name in names], ast.Store())], value)]
        for name, part in zip(names, target.elts, strict=True):
            made += self.unpacked(part, ast.Name(name, ast.Load()))
        return made

    def visit_AugAssign(self, node):
        """Watch a read and a write of the same element."""
        target = node.target
        if not isinstance(target, ast.Subscript):
            return self.generic_visit(node)
        made = []
        if any(isinstance(part, ast.Call) for part in ast.walk(target.slice)):  # not to be called twice
            name = self.temporary()
            made.append(ast.Assign([ast.Name(name, ast.Store())], self.visit(target.slice)))
            target.slice = ast.Name(name, ast.Load())
        read = ast.copy_location(ast.Subscript(target.value, target.slice, ast.Load()), target)
        sum_ = ast.copy_location(ast.BinOp(self.visit(read), node.op, self.visit(node.value)), node)
        return [*made, self.stored(target, sum_)]

    def visit_Call(self, node):
        """Note what an operation does to memory, before it is made."""
        node = self.generic_visit(node)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        family, _, operation = name.removeprefix("__").partition("_")
        if family == "atomics":
            index = ast.Constant(0) if operation == "compare_and_swap" else node.args[1]
            node.args[0] = self.noted("locked", node, node.args[0], index)
        elif family == "fragments" and operation.startswith("offer_ldmatrix"):
            lanes = 8 * int(operation[-1])  # each loads a row of 16 bytes
            first = ast.Compare(
                ast.Attribute(self.rewriter.context(), "lane", ast.Load()), [ast.Lt()], [ast.Constant(lanes)]
            )
            size = ast.IfExp(first, ast.Constant(16), ast.Constant(0))
            node.args[1] = self.noted("wide_read", node, node.args[1], node.args[2], size)
        elif family == "packed" and operation.partition("_")[0] in _WIDE:
            function = _WIDE[operation.partition("_")[0]]
            words = int(operation.split("_")[-2][1:])  # of ld_v4_u32, st_cs_v2_f32
            node.args[0] = self.noted(function, node, node.args[0], node.args[1], ast.Constant(4 * words))
        elif family == "copies" and operation:
            self.copies(node, operation)
        elif family == "requests" and operation != "waited":
            node.args[2] = self.place(node, operation)
        for argument in node.args:
            self.program.note_use(self.rewriter.function, argument, node, stores=False)
        return node

    def copies(self, node, operation):
        """Note asynchronous copies when they are asked for, and when they arrive."""
        queue, *arguments = node.args
        if operation == "cp_async_wait_group":
            node.args[0] = self.noted("arrived_but", node, queue, arguments[0])
        elif operation == "cp_async_wait_all":
            node.args[0] = self.noted("arrived_all", node, queue)
        elif operation != "cp_async_commit":
            target, target_index, source, source_index = arguments
            size = ast.Constant(int(operation.rpartition("_")[2]))
            node.args = [
                self.noted("room", node, queue),
                *(self.noted("wide_copy", node, target, target_index, size), target_index),
                *(self.noted("wide_read", node, source, source_index, size), source_index),
            ]

    def noted(self, function, node, array, *arguments):
        """Return the call that notes something about an array and gives the array back."""
        if function in ("locked", "wide_locked", "wide_write"):
            self.program.note_use(self.rewriter.function, array, node, stores=True)
        return self.told(self.program.imported(_ACCESS, function), node, ast.unparse(array), array, *arguments)

    def loop(self, node):
        """Count the turns of a loop."""
        node = self.generic_visit(node)
        spent = self.program.imported("workbench.cuda.emulator.shadow", "spent")
        stop = self.program.imported(_ACCESS, "StopThread")
        raised = ast.Raise(ast.Name(stop, ast.Load()))
        test = ast.If(self.told(spent, node, ""), [raised], [])
        for statement in (test, raised):
            ast.copy_location(statement, node)
        node.body.insert(0, test)
        return node

    visit_For = visit_While = loop


def _parts(target):
    return [part for item in target.elts for part in _parts(item)] if isinstance(target, ast.Tuple) else [target]


def _has_slice(index):
    return any(isinstance(part, ast.Slice) for part in ast.walk(index))
