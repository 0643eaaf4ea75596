"""One case of attention by today's walk and by a graph: values and budgets, stage by stage."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tests.reference.graph import plain_attention as plain
from workbench.floats import DTYPES
from workbench.reference.attention import table_of
from workbench.reference.forward import PLAIN
from workbench.reference.graph import Contract, Expected, Graph, budgets, trace
from workbench.reference.losses import losses_of
from workbench.reference.problem import Problem
from workbench.reference.walk import budgets as budgets_today
from workbench.reference.walk import values

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Attention:
    """A case."""

    algorithm: str
    arrays: Arrays
    scale: float
    mask: np.ndarray
    block: int
    splits: int = 1

    @property
    def f(self) -> Callable[..., Any]:
        return getattr(plain, self.algorithm)

    @property
    def how(self) -> dict[str, Any]:
        splits = {"splits": self.splits} if self.algorithm == "split_k" else {}
        return {"scale": self.scale, "mask": self.mask, "block": self.block, **splits}

    def graph(self) -> Graph:
        return trace(self.f, {**self.arrays, **self.how})

    def dumps(self, graph: Graph) -> dict[str, list[np.ndarray]]:
        """The float32 run of the plain function, one array a turn: what a right kernel would dump."""
        wide = {name: x.astype(np.float32) for name, x in self.arrays.items()}
        found: dict[str, list[np.ndarray]] = {}
        named = plain.stage
        plain.stage = lambda name, x: (
            found.setdefault(name, []).append(np.asarray(x, np.float32)) or np.asarray(x, np.float32)
        )
        try:
            with np.errstate(all="ignore"):
                self.f(**wide, **self.how | {"scale": np.float32(self.scale)})
        finally:
            plain.stage = named
        return found

    def today(self, dumps: Arrays, given: bool) -> dict[str, Expected]:
        """Values and budgets of the walk, with the whole dumps as given, or with none."""
        contract = replace(PLAIN, block_k=self.block, splits=self.splits if self.algorithm == "split_k" else None)
        table = table_of(self.algorithm, numbers=frozenset({"scale"}), row_sum_of_cast=contract.row_sum_of_cast)
        inputs = {name: x.astype(np.float64) for name, x in self.arrays.items()}
        p = Problem(
            table=table,
            contract=contract,
            losses=losses_of(contract, {"scale": self.scale}),
            numbers={"scale": self.scale},
            attn_bias=None,
            inputs={**inputs, "mask": self.mask},
            exact_products=self.arrays["q"].dtype != np.float32,
            tiling=contract.tiling(self.arrays["k"].shape[2]),
            given={name: x.astype(np.float64) for name, x in dumps.items()} if given else {},
            elements={name: x.size for name, x in dumps.items()} | dict.fromkeys({*table} - {*dumps}),
        )
        names = [name for name in table if name in dumps]
        computed = values(p, names)
        found = budgets_today(p, computed, names)
        return {name: Expected(computed[name], found[name]) for name in names}


def whole(name: str, turns: list[Any]) -> Any:
    """The array of a stage, of its turns."""
    if name in plain.JOINED:
        return np.concatenate(turns, plain.JOINED[name])
    return np.stack(turns, plain.STACKED[name]) if name in plain.STACKED else turns[0]


def expected(graph: Graph, contract: Contract, dumps: Mapping[str, Any]) -> dict[str, tuple[Any, Any, Any]]:
    """Whole value, worst case and statistical bound of each stage."""
    made = budgets(graph, contract, dumps)
    found = {}
    for name, turns in graph.stages.items():
        if "." in name or name not in plain_stages():
            continue
        several = [made[name]] if len(turns) == 1 else [made[f"{name}[{k}]"] for k in range(len(turns))]
        parts = ([one.value for one in several], [one.budget.bound for one in several],
                 [one.budget.statistical for one in several])  # fmt: skip
        found[name] = tuple(whole(name, part) for part in parts)
    return found


def plain_stages() -> set[str]:
    return {*plain.JOINED, *plain.STACKED, "merge_max", "merge_sum", "out", "lse"}


def drawn(rng: np.random.Generator, dtype: str, normal: bool = False) -> Attention:
    """A random case; `normal`: of standard normal inputs, where softmax is over several keys."""
    algorithm = str(rng.choice(["flash", "split_k"]))
    block, tiles = int(rng.choice([32, 48, 64])), int(rng.integers(1, 5))
    keys = block * tiles - int(rng.integers(0, block // 2)) * int(rng.integers(0, 2))
    queries, d, heads = int(rng.integers(8, 48)), int(rng.choice([32, 64, 80, 128])), int(rng.integers(1, 3))
    shapes = {"q": (1, heads, queries, d), "k": (1, heads, keys, d), "v": (1, heads, keys, d)}
    size = 1.0 if normal else float(rng.choice([0.1, 1.0, 4.0]))
    arrays = {}
    for name, shape in shapes.items():
        x = rng.standard_normal(shape) * (size if name != "v" else 1.0)
        if not normal and rng.integers(0, 3) == 0:
            x = x + rng.choice([-1.0, 2.0])
        arrays[name] = x.astype(np.float32).astype(DTYPES[dtype])
    offset = keys - queries
    masks = {
        "none": np.ones((queries, keys), bool),
        "causal": np.tri(queries, keys, max(offset, 0), dtype=bool),
        "random": rng.random((queries, keys)) < 0.7,
    }
    mask = masks[str(rng.choice([*masks]))].copy()
    mask[:, 0] = True  # a plain function has no rule for rows that see no key
    scale = float(rng.choice([d**-0.5, 2.0**-3, 0.1]))
    tiles = -(-keys // block)
    each = -(-tiles // min(int(rng.integers(1, 4)), tiles))
    splits = -(-tiles // each)  # none is empty
    return Attention(algorithm, arrays, scale, mask[None, None], block, splits)
