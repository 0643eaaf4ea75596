"""A kernel with all its device functions, rewritten: the text of a module that numba compiles."""

import ast
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from workbench.cuda.emulator.calls import Array, Site
from workbench.cuda.emulator.copies import WORDS as COPIES_WORDS
from workbench.cuda.emulator.emulator_error import EmulatorError
from workbench.cuda.emulator.rewrite import Rewriter, Rewritten
from workbench.cuda.emulator.source import Source, device_function, kernel_of
from workbench.cuda.emulator.watcher import Place

_EMULATOR = "workbench.cuda.emulator"
_FLAGS = 'error_model="numpy"'
_ALIGNMENT = 16
#: what memory holds before a block starts: quiet NaN where the type has it, else a pattern that is easy to spot
POISON = {
    "float32": 0x7FC0DEAD,
    "float64": 0x7FF8DEAD7FC0DEAD,
    "float16": 0x7EAD,
    "bfloat16": 0x7FDE,
    "bool": 1,
}


@dataclass(frozen=True)
class Program:
    """The generated text of a kernel and the tables that its threads and the scheduler need."""

    #: the kernel's name
    name: str
    #: ``file:line`` of the kernel
    location: str
    #: statements before the functions: imports, constants, arrays
    header: str
    #: the functions, the kernel last, and the ``file:line`` of each line of them
    body: str
    lines: tuple[str, ...]
    #: the names of the kernel's parameters
    parameters: tuple[str, ...]
    #: where threads wait; site number n is sites[n - 1], its kind is kinds[n]
    sites: tuple[Site, ...]
    kinds: tuple[int, ...]
    #: the bytes that fill shared memory, and a thread's local memory, before a block starts
    shared: bytes
    local: bytes
    #: the element that fills dynamic shared memory, b"" where the kernel has no such array
    dynamic: bytes
    uses_atomics: bool
    #: whether it uses operations of `workbench.cuda.hopper`
    asynchronous: bool
    #: whether its accesses are watched; the places of the accesses, of which number n is places[n - 1]
    watched: bool
    places: tuple[Place, ...]
    #: generated name -> a shared or local array and the bytes before it in its memory, or in dynamic shared memory
    arrays: Mapping[str, tuple[Array, int]]
    #: parameter -> ``file:line`` of the first statement that stores to it, or hands it on where none does
    stores: Mapping[str, str]

    def store(self, parameter: str) -> str:
        """Return ``file:line`` of the store to an array argument; of the kernel where there is none."""
        return self.stores.get(parameter, self.location)


def program_of(source: Source, *, watched: bool) -> Program:
    """Return the rewritten kernel (see `launch.compile`); raises `EmulatorError` for what cannot be emulated."""
    return _Builder(source, watched).program()


@dataclass
class _Builder:
    """Hands out names for what the functions of a kernel refer to."""

    source: Source
    watched: bool
    header: dict[str, str] = field(default_factory=dict)
    functions: dict[int, tuple[str, Rewritten] | None] = field(default_factory=dict)
    text: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    sites: list[Site] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    memory: dict[str, bytes] = field(default_factory=lambda: {"shared": b"", "local": b""})
    dynamic: set[bytes] = field(default_factory=set)
    dynamic_alignment: int = _ALIGNMENT
    asynchronous: bool = False
    alive: list[object] = field(default_factory=list)  # keeps the ids in `functions` valid
    places: dict[Place, int] = field(default_factory=dict)
    arrays: dict[str, tuple[Array, int]] = field(default_factory=dict)
    stores: dict[str, str] = field(default_factory=dict)
    calls: dict[str, str] = field(default_factory=dict)

    def program(self) -> Program:
        kernel = kernel_of(self.source)
        rewritten = Rewriter(kernel, self).rewritten()
        arguments = rewritten.node.args
        if arguments.defaults:
            raise EmulatorError(f"{kernel.at(kernel.node)}: the emulator does not support defaults of a kernel")
        if not rewritten.takes_context:
            arguments.args.insert(0, ast.arg("__c"))
        # Never true; makes the function a generator even where it has no barrier.
        never = ast.parse("if __c.lane < 0:\n    yield 0").body[0]
        for statement in (never, *never.body):
            ast.copy_location(statement, kernel.node)
        rewritten.node.body.insert(0, never)
        pipeline = self.imported(f"{_EMULATOR}.barriers", "KernelCompiler")
        self.emit(rewritten.node, "__kernel", f"pipeline_class={pipeline}, {_FLAGS}", kernel)
        return Program(
            name=kernel.node.name,
            location=kernel.at(kernel.node),
            header="\n".join(self.header.values()),
            body="\n".join(self.text),
            lines=tuple(self.lines),
            parameters=tuple(argument.arg for argument in arguments.args[1:]),
            sites=tuple(self.sites),
            kinds=(0, *self.kinds),
            shared=_padded(self.memory["shared"], self.dynamic_alignment),
            local=_padded(self.memory["local"]),
            # All bits set are a NaN of every float type, so that aliased arrays of several types see one too.
            dynamic=self.dynamic.pop() if len(self.dynamic) == 1 else b"\xff" * bool(self.dynamic),
            uses_atomics=rewritten.uses_atomics,
            asynchronous=self.asynchronous,
            watched=self.watched,
            places=tuple(self.places),
            arrays=self.arrays,
            stores=self.calls | self.stores,
        )

    def place(self, place):
        """Return the number of a place of an access or a loop."""
        return self.places.setdefault(place, len(self.places) + 1)

    def note_use(self, function, array, node, *, stores):
        """Remember where the kernel first stores to an argument of its own, or first hands it on."""
        if isinstance(array, ast.Name) and function.node.name == self.source.name:
            (self.stores if stores else self.calls).setdefault(array.id, function.at(node))

    def emit(self, node, name, options, function):
        """Append a function under a new name, and where each line of it comes from."""
        node.name = name
        text = ast.unparse(ast.fix_missing_locations(node))
        decorated = f"@__inner({options})\n{text}\n\n"
        lines = [function.at(node)] * decorated.count("\n")
        # The text parses to a tree of the same shape, which tells where unparse put each node.
        for old, new in zip(ast.walk(node), ast.walk(ast.parse(text).body[0]), strict=False):
            if isinstance(old, ast.stmt) and isinstance(new, ast.stmt):
                lines[new.lineno] = function.at(old)
        self.text.append(decorated)
        self.lines.extend(lines)

    def declare(self, name, statement):
        """Add a statement to the header, once; return the name that it binds."""
        self.header.setdefault(name, statement)
        return name

    def imported(self, module, name):
        """Return the name of something imported from a module."""
        alias = f"__{module.rpartition('.')[2]}_{name}"
        return self.declare(alias, f"from {module} import {name} as {alias}")

    def libdevice(self, name):
        """Return the name of a libdevice function."""
        functions = self.imported(f"{_EMULATOR}.libdevice", "FUNCTIONS")
        return self.declare(f"__libdevice_{name}", f"__libdevice_{name} = {functions}[{name!r}]")

    def dtype(self, name):
        """Return the name of an element type."""
        dtypes = self.imported(f"{_EMULATOR}.intrinsics", "DTYPES")
        return self.declare(f"__{name}", f"__{name} = {dtypes}[{name!r}]")

    def constant(self, value):
        """Return the name of a number."""
        if isinstance(value, np.generic):
            numpy = self.declare("__np", "import numpy as __np")
            text = f"{numpy}.{value.dtype.type.__name__}({_number(value.item())})"
        else:
            text = _number(value)
        for name, statement in self.header.items():
            if statement == f"{name} = {text}":
                return name
        name = f"__constant{len(self.header)}"
        return self.declare(name, f"{name} = {text}")

    def array(self, array: Array):
        """Return the name of the compiled function that gives an array, and reserve its memory."""
        dtype = np.dtype(np.uint16 if array.dtype == "bfloat16" else array.dtype)
        garbage = int.from_bytes(b"\xad\xde" * 4, "little") & ((1 << 8 * dtype.itemsize) - 1)
        element = POISON.get(array.dtype, garbage).to_bytes(dtype.itemsize, "little")
        if array.shape == (0,):
            self.dynamic.add(element)
            self.dynamic_alignment = max(self.dynamic_alignment, array.alignment)
            make = self.imported(f"{_EMULATOR}.intrinsics", "dynamic_array")
            name = f"__dynamic_{array.dtype}"
            self.arrays.setdefault(name, (array, 0))
            return self.declare(name, f"{name} = {make}({array.dtype!r})")
        used = _padded(self.memory[array.memory], array.alignment)
        self.memory[array.memory] = used + element * math.prod(array.shape)
        make = self.imported(f"{_EMULATOR}.intrinsics", "array_in")
        name = f"__array{len(self.header)}"
        self.arrays[name] = array, len(used)
        arguments = f"{array.memory!r}, {len(used)}, {array.shape!r}, {array.dtype!r}"
        return self.declare(name, f"{name} = {make}({arguments})")

    def copies(self):
        """Return the name of the compiled function that gives a thread's queue of copies; a block finds it empty."""
        name = "__copies"
        if name not in self.header:
            used = _padded(self.memory["local"])
            self.memory["local"] = used + bytes(8 * COPIES_WORDS)
            make = self.imported(f"{_EMULATOR}.intrinsics", "array_in")
            self.declare(name, f"{name} = {make}('local', {len(used)}, ({COPIES_WORDS},), 'int64')")
        return name

    def constant_array(self, value):
        """Return the name of the compiled function that gives an array of the namespace, as it is now."""
        make = self.imported(f"{_EMULATOR}.intrinsics", "constant_array")
        text = f"{make}({value.tobytes()!r}, {value.shape!r}, {value.dtype.name!r})"
        name = f"__table_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        return self.declare(name, f"{name} = {text}")

    def site(self, site: Site, kind):
        """Return the number of a place where threads wait."""
        self.sites.append(site)
        self.kinds.append(kind)
        return len(self.sites)

    def device(self, value, location):
        """Return the generated name of a device function and what it asks for; rewrites it when it is new."""
        value = getattr(value, "py_func", value)
        if id(value) in self.functions:
            if self.functions[id(value)] is None:
                raise EmulatorError(f"{location}: the emulator does not support recursion")
            return self.functions[id(value)]
        self.alive.append(value)
        self.functions[id(value)] = None
        function = device_function(value, self.source)
        rewritten = Rewriter(function, self).rewritten()
        name = f"__{function.node.name}{len(self.functions)}"
        options = f'inline="always", {_FLAGS}' if rewritten.has_barrier else _FLAGS
        self.emit(rewritten.node, name, options, function)
        self.functions[id(value)] = name, rewritten
        return name, rewritten


def _padded(memory, alignment=_ALIGNMENT):
    """Return the bytes up to where a next array may start."""
    return memory.ljust(-(-len(memory) // alignment) * alignment, b"\0")


def _number(value):
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)
