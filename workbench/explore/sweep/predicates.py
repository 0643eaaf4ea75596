"""What is true of a case: simple predicates over its fields, each with its words, and which cases it holds in."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.case.fields import FIELDS, Truth, Whole, name_of
from workbench.explore.sweep.row import Row

#: lengths and dims whose remainder may tell, and by what: a tile, a warp, what a copy takes at once
CUT = ("seqlen", "seqlen_q", "seqlen_k", "head_dim", "head_dim_v")
MODULI = (64, 128, 32, 16, 8, 4, 2, 256)
#: length -> the field of the tile that cuts it
TILE_OF = {"seqlen_k": "block_k", "seqlen_q": "block_q"}
#: values of a field that are told apart one by one, at most
FEW = 32


@dataclass(frozen=True, eq=False)
class Predicate:
    """What is true of some cases of a sweep."""

    text: str
    field: str
    holds: np.ndarray  #: bool [cases]


def fields_of(row: Row) -> dict[str, Any]:
    """What a case is, as it ran: its fields but the seed, and how many query heads share a kv head."""
    plain = {name: getattr(row.case, name) for name in FIELDS if name != "seed"} | dict(row.settled)
    plain = {name: name_of(x) if callable(x) else x for name, x in plain.items()}
    usual = np.float32(row.case.head_dim**-0.5)
    return plain | {
        "group": row.case.heads // row.case.kv_heads,
        "scale": None if row.case.scale == usual else row.case.scale,
        "head_dim_v": None if row.case.head_dim_v == row.case.head_dim else row.case.head_dim_v,
    }


def varied(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """The fields in which some cases differ -> the value of each case; both lengths as seqlen where all have one."""
    each = [fields_of(row) for row in rows]
    columns = {name: [one[name] for one in each] for name in each[0]} if each else {}
    if columns and columns["seqlen_q"] == columns["seqlen_k"]:
        columns = {"seqlen": columns.pop("seqlen_q")} | {name: x for name, x in columns.items() if name != "seqlen_k"}
    return {name: x for name, x in columns.items() if len({*x}) > 1}


def predicates(rows: Sequence[Row], failing: np.ndarray) -> Iterator[Predicate]:
    """Predicates that hold in each `failing` case (bool [cases]), the plainest first."""
    columns = varied(rows)
    for found in _all(columns, [fields_of(row) for row in rows], failing):
        if failing.any() and found.holds[failing].all() and not found.holds.all():
            yield found


def _all(
    columns: Mapping[str, list[Any]], each: Sequence[Mapping[str, Any]], failing: np.ndarray
) -> Iterator[Predicate]:
    for name, values in columns.items():
        if not _is_count(name, values):
            yield from _words(name, values)
    yield from _between(columns, each)
    for name, values in columns.items():
        if _is_count(name, values):
            yield from _counts(name, np.array(values, float), failing)
    for name in CUT:
        if name in columns and _is_count(name, columns[name]):
            yield from _remainders(name, np.array(columns[name], int))


def _is_count(name: str, values: Sequence[Any]) -> bool:
    """Whether the values are numbers in order."""
    rule = FIELDS[name].rule if name in FIELDS else Whole()  # group, seqlen
    return isinstance(rule, Whole) and all(isinstance(x, int) for x in values)


def _words(name: str, values: Sequence[Any]) -> Iterator[Predicate]:
    """Of a word, a truth, or a number that few cases have."""
    kinds = list(dict.fromkeys(values))
    if name in FIELDS and isinstance(FIELDS[name].rule, Truth):
        yield from (Predicate(name if x else f"not {name}", name, _where(values, x)) for x in (True, False))
        return
    if None in kinds:
        there = ~_where(values, None)
        yield Predicate(f"with {name}", name, there)
        yield Predicate(f"without {name}", name, ~there)
    named = [x for x in kinds if x is not None]
    if len(named) <= FEW:
        for x in named:
            yield Predicate(f"{name} = {_shown(x)}", name, _where(values, x))
        for x in named if len(kinds) > 2 else ():
            yield Predicate(f"{name} != {_shown(x)}", name, ~_where(values, x))


def _between(columns: Mapping[str, list[Any]], each: Sequence[Mapping[str, Any]]) -> Iterator[Predicate]:
    """Of two fields: lengths and their tiles, both lengths, query heads and kv heads."""
    for name, tile in TILE_OF.items():
        said = "seqlen" if "seqlen" in columns else name
        if not {said, tile} & {*columns} or not all(isinstance(one[tile], int) for one in each):
            continue
        length, size = (np.array([one[x] for one in each]) for x in (name, tile))
        words = {f"{said} % {tile} != 0": length % size != 0, f"{said} % {tile} = 0": length % size == 0}
        words |= {f"{said} > {tile}": length > size, f"{said} <= {tile}": length <= size}
        yield from (Predicate(text, said, holds) for text, holds in words.items())
    if {"seqlen_q", "seqlen_k"} & {*columns}:
        q, k = (np.array([one[name] for one in each]) for name in ("seqlen_q", "seqlen_k"))
        words = {"seqlen_q < seqlen_k": q < k, "seqlen_q > seqlen_k": q > k}
        words |= {"seqlen_q != seqlen_k": q != k, "seqlen_q = seqlen_k": q == k}
        yield from (Predicate(text, "seqlen_q", holds) for text, holds in words.items())


def _counts(name: str, values: np.ndarray, failing: np.ndarray) -> Iterator[Predicate]:
    """From the least of the failing cases on, up to their largest, and that one alone."""
    least, most = values[failing].min(initial=np.inf), values[failing].max(initial=-np.inf)
    if least == most:
        yield Predicate(f"{name} = {least:g}", name, values == least)
    yield Predicate(f"{name} >= {least:g}", name, values >= least)
    yield Predicate(f"{name} <= {most:g}", name, values <= most)


def _remainders(name: str, values: np.ndarray) -> Iterator[Predicate]:
    for modulus in MODULI:
        yield Predicate(f"{name} % {modulus} != 0", name, values % modulus != 0)
    for modulus in MODULI:
        yield Predicate(f"{name} % {modulus} = 0", name, values % modulus == 0)


def _where(values: Sequence[Any], x: Any) -> np.ndarray:
    return np.array([one == x for one in values])


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
