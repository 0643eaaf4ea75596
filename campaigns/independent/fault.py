"""The record of a fault, and the conditions on a case under which faults show."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from campaigns.independent.shape import Stages

Options = Mapping[str, Any]
Attention = Callable[..., Stages]


@dataclass(frozen=True)
class Independent:
    """A faulty kernel, its correct counterpart, and what is known of the fault.

    `stages` are those whose formula is wrong on its own inputs, the first one first. `shows` says of the options of a
    case whether the fault is exercised. `known` is False where no list of common mistakes would have it.
    """

    function: Attention
    correct: Attention
    why: str
    stages: tuple[str, ...]
    shows: Callable[[Options], bool]
    source: str
    known: bool = True


def recorded(
    faults: dict[str, Independent],
    correct: Attention,
    stages: str,
    shows: Callable[[Options], bool],
    source: str,
    known: bool = True,
) -> Callable[[Attention], Attention]:
    """Decorates a faulty kernel: it is put into `faults` under its name, with its docstring for the reason."""

    def record(function: Attention) -> Attention:
        why = (function.__doc__ or "").strip()
        name = function.__name__.replace("_", "-")
        faults[name] = Independent(function, correct, why, tuple(stages.split()), shows, source, known)
        return function

    return record


def always(options: Options) -> bool:
    return True


def causal(options: Options) -> bool:
    return bool(options["causal"])


def rows_without_keys(options: Options) -> bool:
    return causal(options) and options["seqlen_q"] > options["seqlen_k"]


def grouped(options: Options) -> bool:
    return bool(options["heads"] > options["kv_heads"])


def half(options: Options) -> bool:
    return str(options["dtype"]) == "float16"


def keys(more_than: int) -> Callable[[Options], bool]:
    """Cases of more than so many keys."""
    return lambda options: bool(options["seqlen_k"] > more_than)


def queries(more_than: int) -> Callable[[Options], bool]:
    """Cases of more than so many queries."""
    return lambda options: bool(options["seqlen_q"] > more_than)


def enough(seqlen_q: int, seqlen_k: int) -> Callable[[Options], bool]:
    """Cases of at least so many queries and keys, so that what depends on values happens in some row."""
    return lambda options: bool(options["seqlen_q"] >= seqlen_q and options["seqlen_k"] >= seqlen_k)


def visible_keys(options: Options, query: int) -> int:
    """How many keys a query sees; less than 0 counts what is missing to the first."""
    if not causal(options):
        return int(options["seqlen_k"])
    return int(query + 1 + options["seqlen_k"] - options["seqlen_q"])
