"""The two ways in which a request ends before any work is done."""

from collections.abc import Iterable
from difflib import get_close_matches


def meant(name: str, known: Iterable[str]) -> str:
    """What was meant by an unknown name, in words behind a refusal; empty where none of the known ones is like it."""
    found = get_close_matches(name, known, 1)
    return f"; did you mean {found[0]}?" if found else ""


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """The words for an unknown name of a long list: what was meant first, then the known ones."""
    listed = [*known]
    near = meant(name, listed)
    return f"{what} {name!r}{near}{' Use' if near else '; use'} one of {', '.join(listed)}"


class Refusal(ValueError):
    """A request that breaks a rule: the message shows the rule, the value, where, and what would be accepted (exit code
    2).

    >>> from workbench import Case
    >>> Case(seqlen=0)
    Traceback (most recent call last):
        ...
    workbench.refusal.Refusal: seqlen must be a whole number of at least 1; got 0
    """


class Raised(Refusal):
    """A function under test that was called as it should be, and raised."""


class Unavailable(RuntimeError):
    """A request that this machine cannot serve, such as a GPU run without a GPU (exit code 3).

    >>> from workbench import run
    >>> def attention(q, k, v, *, scale, causal):
    ...     import no_such_package
    >>> run(attention)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    workbench.refusal.Unavailable: attention needs no_such_package, which is not installed here (...)
    """
