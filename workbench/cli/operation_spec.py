"""What --operation says beside the operation: `rmsnorm,rows=64,eps=1e-5`, `attention_backward,causal,sinks`."""

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from workbench.cli.spec import SAID, truth
from workbench.refusal import Refusal, meant

if TYPE_CHECKING:
    from workbench.operations.operation import Operation

#: the word of a function that is a forward pass, of which autograd makes the backward one; and the operation of it
GRADIENTS = "gradients"
DIFFERENTIABLE = "attention_backward"


@dataclass(frozen=True)
class OfOperation:
    """An operation, and what was said of its case, as text."""

    operation: str
    axes: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, str] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    gradients: bool = False

    def each(self) -> Iterator["OfOperation"]:
        """One for every combination of axes and numbers of several values, such as rows=1/64."""
        lists = [
            [[(name, x) for x in said.split("/")] for name, said in some.items()] for some in (self.axes, self.numbers)
        ]
        for axes in itertools.product(*lists[0]):
            for numbers in itertools.product(*lists[1]):
                yield replace(self, axes=dict(axes), numbers=dict(numbers))

    def sizes(self) -> dict[str, int]:
        """The sizes of its axes; Refusal where one is no number."""
        return {name: int(number(x, f"--axes {name}")) for name, x in self.axes.items()}

    def values(self) -> dict[str, float]:
        """Its numbers and flags; Refusal likewise."""
        return {name: truth(x) if x in SAID else number(x, name) for name, x in self.numbers.items()}


def of_operation(said: str, axes: str | None, known: Collection[str]) -> OfOperation:
    """What --operation and --axes say; Refusal for an operation that is not among the `known`, and for words that it
    does not have.
    """
    from workbench.operations.every import OPERATIONS

    name, *parts = (part.strip() for part in said.split(","))
    if name not in known:
        raise Refusal(f"--operation must be one of {', '.join(known)}; got {name!r}")
    of = OPERATIONS[name]
    found = OfOperation(name, pairs(axes, "--axes"))
    for part in parts:
        word, equals, value = (x.strip() for x in part.partition("="))
        if equals and value and word in of.axes.values():
            if found.axes.setdefault(word, value) != value:
                other = found.axes[word]
                twice = f"{word} is {value} there, but {other} before or in --axes"
                raise Refusal(f"--operation {said}: {twice}; give it once")
        elif word in of.numbers and (value if equals else _is_flag(of, word)):
            found.numbers[word] = value or "yes"
        elif word in of.optional and not equals:
            found = replace(found, optional=(*found.optional, word))
        elif part == GRADIENTS and name == DIFFERENTIABLE:
            found = replace(found, gradients=True)
        else:
            unknown = part if word in words_of(of) else word  # one that there is, said otherwise
            raise Refusal(f"--operation {name} has no word {unknown!r}{_nearest(of, unknown) or f'; {_words(of)}'}")
    return found


def _is_flag(of: "Operation", word: str) -> bool:
    return of.numbers[word] is bool or isinstance(of.numbers[word], bool)


def words_of(of: "Operation") -> dict[str, str]:
    """The words of an operation -> how each is said: `eps=`, `causal`."""
    numbers = {name: name if _is_flag(of, name) else f"{name}=" for name in of.numbers}
    alone = [*of.optional, *([GRADIENTS] if of.name == DIFFERENTIABLE else [])]
    return {name: f"{name}=" for name in of.axes.values()} | numbers | {name: name for name in alone}


def _nearest(of: "Operation", word: str) -> str:
    """The word that was meant; empty where it is like none."""
    known = words_of(of)
    return f"; write {known[name]}" if (name := word.partition("=")[0]) in known else meant(name, known)


def _words(of: "Operation") -> str:
    """The words of an operation, and how they are said."""
    own = words_of(of)
    numbers = [own[name] for name in of.numbers]
    first = [f"{next(iter(own))}=8", *([numbers[-1]] if numbers and not numbers[-1].endswith("=") else [])]
    return f"its words are {', '.join(own.values())}, as in --operation {','.join([of.name, *first])}"


def pairs(said: str | None, option: str) -> dict[str, str]:
    """name=value pairs, separated by commas."""
    found = {}
    for part in said.split(",") if said else ():
        name, equals, value = part.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise Refusal(f"{option} takes NAME=VALUE, separated by commas; got {part!r}")
        found[name.strip()] = value.strip()
    return found


def number(said: str, what: str) -> float:
    """A number; Refusal where it is none."""
    try:
        return float(said)
    except ValueError:
        raise Refusal(f"{what} is a number; got {said!r}") from None
