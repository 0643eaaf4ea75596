"""What measurements share: progress, and torch."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from workbench.extras import absent
from workbench.progress import step
from workbench.refusal import Unavailable

Result = TypeVar("Result")


def gathered(
    name: str, estimate_s: float, results: Iterable[Result], told: Callable[[list[Result]], str] = lambda _: ""
) -> list[Result]:
    """All `results`, which arise as one step that takes about `estimate_s` seconds; `told`: what to say of those that
    are there.
    """
    done: list[Result] = []
    with step(name, estimate_s) as tick:
        for result in results:
            done.append(result)
            tick(f"{len(done)} done{told(done)}")
    return done


def torch_if_installed() -> Any:
    """The module; None where it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    return torch


def torch_for(peer: str) -> Any:
    """The module; Unavailable, which names the `peer` that it has, where it is not installed."""
    if (torch := torch_if_installed()) is None:
        raise Unavailable(absent(f"{peer} needs", "torch"))
    return torch
