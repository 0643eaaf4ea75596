"""From a kernel's one source to the function that runs: faults in the text, probes and constants in the syntax tree,
then a target.

Nobody keeps an instrumented copy of a kernel. A build without probes compiles to the same PTX as the source without its
probe lines.
"""

import ast
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numba import cuda, float32

from workbench.case.stages import CODES, STAGES, Stage
from workbench.cuda import device, emulator
from workbench.cuda.faults.fault import Fault, applied

#: storage dtype -> (LOAD, STORE); float16 arrays convert on assignment, bfloat16 arrays hold bits
CONVERSIONS = {
    "float32": (float32, float32),
    "float16": (float32, float32),
    "bfloat16": (device.load_bfloat16, device.store_bfloat16),
}
#: dtype to which probs are cast -> CAST
CASTS = {"float32": float32, "float16": device.round_float16, "bfloat16": device.round_bfloat16}
HEAD_DIMS = (32, 64, 128)
#: axis -> where its first index in a window is among the int32 that a windowed build takes; its last + 1 is behind it
WINDOW = {"b": 0, "h": 2, "q": 4, "kv_h": 6}


@dataclass(frozen=True)
class Constants:
    """What a build binds its kernel's capitals to."""

    block_q: int
    block_k: int
    head_dim: int  #: padded: one of HEAD_DIMS
    dtype: str  #: storage dtype
    probs_dtype: str = "float32"  #: to which probs are cast before they meet V

    @property
    def threads(self) -> int:
        """Threads in a block: LANES for each query row."""
        return self.block_q * device.LANES

    @property
    def shared_bytes(self) -> int:
        """Static shared memory of a block: tiles of Q, of K or V, and of scores, in float32."""
        return 4 * (self.block_q * self.head_dim + self.block_k * self.head_dim + self.block_q * self.block_k)

    def names(self) -> dict[str, Any]:
        """Capital name in the kernel's source -> its value."""
        load, store = CONVERSIONS[self.dtype]
        return {
            "BLOCK_Q": self.block_q,
            "BLOCK_K": self.block_k,
            "HEAD_DIM": self.head_dim,
            "DIMS": self.head_dim // device.LANES,
            "THREADS": self.threads,
            "LOAD": load,
            "STORE": store,
            "CAST": CASTS[self.probs_dtype],
        }


@dataclass(frozen=True)
class QuantisedConstants:
    """What a build binds the capitals of a kernel on 8-bit codes to."""

    block_q: int
    block_k: int
    head_dim: int  #: padded: one of HEAD_DIMS
    codes: str  #: format of the codes
    scores: str  #: mma or scalar
    decode: str  #: table or direct
    probs_dtype: str  #: to which probs are cast before they meet V

    @property
    def threads(self) -> int:
        """Threads in a block: LANES for each query row."""
        return self.block_q * device.LANES

    @property
    def leading_dimension(self) -> int:
        """Elements from one row of a tile to the next: 16 bytes more than a row, so that 8 rows lie in other banks."""
        return self.head_dim + 8

    @property
    def shared_bytes(self) -> int:
        """Static shared memory of a block: tiles of Q and of K or V in float16; in float32 scores, the accumulator, max
        and sum of each row, and two tables.
        """
        halves = self.leading_dimension * (self.block_q + self.block_k)
        tables = 2 * CODES if self.decode == "table" else 0
        return 2 * halves + 4 * (self.block_q * (self.block_k + self.head_dim + 2) + tables)

    def names(self) -> dict[str, Any]:
        """Capital name in the kernel's source -> its value."""
        return {
            "BLOCK_Q": self.block_q,
            "BLOCK_K": self.block_k,
            "HEAD_DIM": self.head_dim,
            "DIMS": self.head_dim // device.LANES,
            "LD": self.leading_dimension,
            "Q_SIZE": self.block_q * self.leading_dimension,
            "KV_SIZE": self.block_k * self.leading_dimension,
            "S_SIZE": self.block_q * self.block_k,
            "THREADS": self.threads,
            "WARPS": self.threads // 32,
            "SIMULATED": self.codes == "simulated",
            "FRACTION_BITS": 3 if self.codes == "e4m3" else 2,
            "TABLE": self.decode == "table",
            "MMA": self.scores == "mma",
            "CAST": CASTS[self.probs_dtype],
        }


@dataclass(frozen=True)
class Build:
    """A kernel function with its constants bound and the wanted probes in place."""

    source: emulator.Source
    probes: tuple[str, ...]  #: stages dumped; each is a last argument of the function, in this order

    def for_emulator(self, *, watched: bool = False) -> emulator.Emulated:
        """The function for the CPU; compiled at its first launch, from a cache on disk where it was compiled before."""
        return emulator.compile(self.source, watched=watched)

    def for_cuda(self) -> Any:
        """The function for numba.cuda (a dispatcher); compiled at its first launch."""
        return cuda.jit(self.source.namespace[self.source.name], **self.cuda_options)

    @property
    def cuda_options(self) -> dict[str, Any]:
        """What numba.cuda compiles with. The bound on threads keeps a block within its 65536 registers: unbounded, the
        compiler takes up to 246 for each thread, and a launch of 512 threads fails.
        """
        return {"lineinfo": True, "launch_bounds": self.source.namespace["THREADS"]}


class _Probes(ast.NodeTransformer):
    """Turns `probe.<stage>[index] = value` into a store to an argument for wanted stages and drops it for others;
    `windowed`: only where the index is in a window, into a buffer that begins there.
    """

    def __init__(self, wanted: Sequence[str], windowed: bool) -> None:
        self.wanted, self.windowed = wanted, windowed
        self.found: list[str] = []

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | None:
        """Keep, redirect or drop one assignment."""
        target = node.targets[0]
        if not (isinstance(target, ast.Subscript) and isinstance(target.value, ast.Attribute)):
            return node
        owner = target.value.value
        if not (isinstance(owner, ast.Name) and owner.id == "probe"):
            return node
        stage = target.value.attr
        if stage not in self.wanted:
            return None
        self.found.append(stage)
        target.value = ast.copy_location(ast.Name(f"probe_{stage}", ast.Load()), target.value)
        return _in_window(node, target, STAGES[stage]) if self.windowed else node

    def _block(self, node: ast.If | ast.For) -> ast.AST | None:
        """A block left empty goes with its header; a header holds no effects, only a condition or a range."""
        self.generic_visit(node)
        if not node.body and node.orelse:  # what the else branch does must still depend on the header
            node.body = [ast.copy_location(ast.Pass(), node)]
        return node if node.body else None

    visit_If = visit_For = _block


def _in_window(node: ast.Assign, target: ast.Subscript, stage: Stage) -> ast.stmt:
    """The store under the condition that its index is in the window, counted from the window's first."""
    indices = target.slice.elts if isinstance(target.slice, ast.Tuple) else [target.slice]
    conditions: list[str] = []
    counted: list[str] = []
    for axis, index in zip(stage.axes, map(ast.unparse, indices), strict=True):
        place = WINDOW.get("kv_h" if axis == "h" and stage.of_kv else axis)
        counted.append(index if place is None else f"{index} - window[{place}]")
        if place is not None:
            conditions.append(f"window[{place}] <= {index} and {index} < window[{place + 1}]")
    target.slice = ast.parse(f"({', '.join(counted)},)", mode="eval").body
    made = ast.If(ast.parse(" and ".join(conditions), mode="eval").body, [node], [])
    for part in (made.test, target.slice):
        for inner in ast.walk(part):
            ast.copy_location(inner, node)
    return ast.copy_location(made, node)


@functools.cache
def _parsed(file: Path, faults: tuple[Fault, ...]) -> str:
    return applied(file.read_text(), faults, file.name)


def build(
    file: Path,
    function: str,
    constants: Constants | QuantisedConstants,
    probes: Sequence[str],
    faults: tuple[Fault, ...],
    *,
    windowed: bool = False,
) -> Build:
    """The kernel `function` of `file`, built with `constants`, dumping the stages of `probes` that it can, with
    `faults` put in; `windowed`: only what is in the window, which is then its last argument but the stages.

    Raises Refusal for a fault whose text no longer matches.
    """
    tree = ast.parse(_parsed(file, faults), str(file))
    (kernel,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)
    transformer = _Probes(probes, windowed)
    transformer.visit(kernel)
    found = tuple(stage for stage in dict.fromkeys(transformer.found))
    last = (["window"] if windowed and found else []) + [f"probe_{stage}" for stage in found]
    kernel.args.args += map(ast.arg, last)
    tree.body = [node for node in tree.body if not _is_other_kernel(node, kernel)]
    ast.fix_missing_locations(tree)
    namespace: dict[str, Any] = {"__name__": f"workbench.cuda.{file.stem}", **constants.names()}
    exec(compile(tree, str(file), "exec"), namespace)
    return Build(emulator.Source(function, tree, namespace, str(file)), found)


def _is_other_kernel(node: ast.stmt, kernel: ast.FunctionDef) -> bool:
    """Whether `node` is a kernel function of the same file other than `kernel`; device functions carry a decorator."""
    return isinstance(node, ast.FunctionDef) and node is not kernel and not node.decorator_list
