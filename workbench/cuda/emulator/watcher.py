"""The second rewriting of a function, for runs that are watched: accesses and loops call what notes them."""

import ast
from dataclasses import dataclass

from workbench.cuda.emulator.calls import called
from workbench.cuda.emulator.errors import EmulatorError
from workbench.cuda.emulator.shadow import MAX_PLACES

_ACCESS = "workbench.cuda.emulator.access"


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

    def statements(self, body):
        """Return the watched statements of a block."""
        watched = []
        for statement in body:
            new = self.visit(statement)
            for made in new if isinstance(new, list) else [new]:
                watched.append(ast.copy_location(made, statement))
        return watched

    def place(self, node, text=""):
        """Return the constant that names a place."""
        line = getattr(node, "lineno", self.rewriter.function.node.lineno)
        number = self.program.place(Place(self.rewriter.function.filename, line, text))
        if number >= MAX_PLACES:
            raise EmulatorError(
                f"{self.rewriter.function.at(node)}: a watched kernel has at most {MAX_PLACES - 1} accesses"
            )
        return ast.Constant(number)

    def access(self, function, node, *arguments):
        """Return the call that makes an access."""
        name = self.program.imported(_ACCESS, function)
        watch = ast.Attribute(self.rewriter.context(), "watch", ast.Load())
        return ast.copy_location(called(name, *arguments, watch, self.place(node, ast.unparse(node.value))), node)

    def suffix(self, array):
        """Return "_local" where an expression is known to be an array in local memory."""
        name = array.func.id if isinstance(array, ast.Call) and isinstance(array.func, ast.Name) else ""
        return "_local" if self.program.memory_of(name) == "local" else ""

    def visit_Subscript(self, node):
        """Watch a read."""
        if isinstance(node.value, ast.Attribute) and node.value.attr in ("shape", "strides"):
            return node
        array, index = self.visit(node.value), self.visit(node.slice)
        return self.access(f"load{self.suffix(array)}", node, array, index)

    def stored(self, node, value):
        """Return the statement that stores a value where a subscript stands."""
        self.program.note_use(self.rewriter.function, node.value, node, stores=True)
        array, index = self.visit(node.value), self.visit(node.slice)
        return ast.Expr(self.access(f"store{self.suffix(array)}", node, value, array, index))

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
        """Note an atomic operation before it is made."""
        node = self.generic_visit(node)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name.startswith("__atomics_"):
            array, index = node.args[0], node.args[1]
            if name == "__atomics_compare_and_swap":
                index = ast.Constant(0)
            self.program.note_use(self.rewriter.function, array, node, stores=True)
            subscript = ast.copy_location(ast.Subscript(array, index, ast.Load()), node)
            node.args[0] = self.access("locked", subscript, array, index)
        for argument in node.args:
            self.program.note_use(self.rewriter.function, argument, node, stores=False)
        return node

    def loop(self, node):
        """Count the turns of a loop."""
        node = self.generic_visit(node)
        spent = self.program.imported("workbench.cuda.emulator.shadow", "spent")
        stop = self.program.imported(_ACCESS, "StopThread")
        watch = ast.Attribute(self.rewriter.context(), "watch", ast.Load())
        raised = ast.Raise(ast.Name(stop, ast.Load()))
        test = ast.If(called(spent, watch, self.place(node)), [raised], [])
        for statement in (test, raised):
            ast.copy_location(statement, node)
        node.body.insert(0, test)
        return node

    visit_For = visit_While = loop


def _parts(target):
    return [part for item in target.elts for part in _parts(item)] if isinstance(target, ast.Tuple) else [target]
