"""The backward kernels as the host knows them: tiles, what a build binds capitals to, buffers, grids and contract."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from workbench.cuda import kernel
from workbench.cuda.arrays import bits
from workbench.cuda.device import CASTS, CONVERSIONS, LANES
from workbench.cuda.kernel import Launch, padded
from workbench.cuda.operation_kernel import Work
from workbench.floats import DTYPES
from workbench.refusal import Refusal
from workbench.trace.trace import blank

#: rows of a tile by padded head_dim: the most of which four tiles in float32, with those of P and dS, are in 48 KiB
BLOCKS = {32: 32, 64: 32, 128: 16}
#: what is dumped, in data-flow order; the casts where the inputs have 16 bits
STAGES = ("qk", "scores", "probs", "probs_cast", "dprobs", "delta", "dscores", "dscores_cast")
#: what is 0 where a query does not see a key, whether its tile is visited or not
_ZERO_WHERE_HIDDEN = ("probs", "probs_cast", "dscores", "dscores_cast")
#: conventions of the operation that they keep
CONTRACT: Mapping[str, Any] = {
    "delta": "out",
    "delta_dtype": "float32",
    "qk_dtype": "float32",
    "probs_dtype": "inputs",
    "dprobs_dtype": "float32",
    "dscores_of": "probs",
    "dscores_dtype": "inputs",
    "dk_sum_dtype": "float32",
    "dv_sum_dtype": "float32",
    "accumulation_dtype": "float32",
}
#: numbers of the operation that they take
NUMBERS = ("scale", "causal")


@dataclass(frozen=True)
class Constants:
    """The constants of a build."""

    block: int  #: queries and keys of a tile
    head_dim: int  #: padded: one of BLOCKS
    dtype: str  #: storage dtype
    atomic: bool

    @property
    def threads(self) -> int:
        """Threads in a block: LANES for each key, or each query."""
        return self.block * LANES

    @property
    def shared_bytes(self) -> int:
        """Static shared memory of a block: tiles of K, V, Q and dout, of P and dS, lse and delta, in float32."""
        return 4 * (4 * self.block * (self.head_dim + 1) + 2 * self.block * (self.block + 1) + 2 * self.block)

    def names(self) -> dict[str, Any]:
        """Capital name in the kernel's source -> its value."""
        load, store = CONVERSIONS[self.dtype]
        return {
            "BLOCK": self.block,
            "HEAD_DIM": self.head_dim,
            "PITCH": self.head_dim + 1,
            "WIDTH": self.block + 1,
            "DIMS": self.head_dim // LANES,
            "THREADS": self.threads,
            "LOAD": load,
            "STORE": store,
            "CAST": CASTS[self.dtype],
            "ATOMIC": self.atomic,
        }


def work(
    inputs: Mapping[str, np.ndarray], numbers: Mapping[str, Any], wanted: Collection[str], *, atomic: bool = False
) -> Work:
    """A backward pass on q, k, v, out, lse and dout, as of the operation, that dumps the stages `wanted`.

    Refusal for head dims above 128.
    """
    dims = padded(largest_dim(inputs))
    constants = Constants(BLOCKS[dims], dims, inputs["q"].dtype.name, atomic)
    functions = "backward_keys", "backward_scale" if atomic else "backward_queries"
    return laid(inputs, numbers, wanted, constants, functions, sums=inputs["q"].shape if atomic else ())


def largest_dim(inputs: Mapping[str, np.ndarray]) -> int:
    """The larger of dim and dim_v; Refusal above 128."""
    dims = max(inputs["q"].shape[3], inputs["v"].shape[3])
    if dims > max(BLOCKS):
        raise Refusal(f"backward kernels take dim and dim_v up to {max(BLOCKS)}; got {dims}")
    return dims


class Tiled(kernel.Constants, Protocol):
    """Constants of a build whose blocks have a tile of keys or queries each."""

    @property
    def block(self) -> int:
        """Keys or queries of a block."""


def laid(
    inputs: Mapping[str, np.ndarray],
    numbers: Mapping[str, Any],
    wanted: Collection[str],
    constants: Tiled,
    functions: tuple[str, str],
    *,
    sums: tuple[int, ...] = (),
) -> Work:
    """Buffers and launches of a backward pass: delta, then a function by tiles of keys and one by tiles of queries;
    with `sums`, the shape of sums of dQ in float32, to which the first adds in any order.
    """
    q, k, v = (inputs[name] for name in "qkv")
    batch, heads, rows, _ = q.shape
    kv_heads, keys = k.shape[1:3]
    diagonal = keys - rows
    hidden = ~np.tri(rows, keys, diagonal, dtype=bool) if numbers["causal"] else np.zeros((rows, keys), bool)
    results = {name: blank(x.shape, x.dtype) for name, x in (("dq", q), ("dk", k), ("dv", v))}
    stages = {"delta": blank(q.shape[:3], DTYPES["float32"])}
    for name in wanted:
        if name not in stages:
            stages[name] = blank((batch, heads, rows, keys), DTYPES["float32"])
            if name in _ZERO_WHERE_HIDDEN:
                stages[name][..., hidden] = 0
    own = {"dq_sum": np.zeros(sums, np.float32)} if sums else {}

    def grid(count: int, of: int, tile: int) -> tuple[int, int, int]:
        return -(-count // tile), of, batch

    by_keys, by_queries = functions
    return Work(
        constants=constants,
        launches=(
            Launch("backward_delta", grid(rows, heads, constants.threads // LANES)),
            Launch(by_keys, grid(keys, kv_heads, constants.block)),
            Launch(by_queries, grid(rows, heads, constants.block)),
        ),
        arrays={name: bits(np.ascontiguousarray(x)) for name, x in {**inputs, **own, **results, **stages}.items()},
        filled=(*inputs, *own),
        scalars={
            "scale": np.float32(numbers["scale"]),
            "causal": bool(numbers["causal"]),
            "diagonal": np.int32(diagonal),
        },
        made={name: x for name, x in {**stages, **results}.items() if name in wanted or name in results},
        open_={name: hidden for name in stages if name != "delta"},
        any_order=("dq_sum", "dq") if sums else (),
    )
