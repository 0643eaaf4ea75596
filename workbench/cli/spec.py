"""The option that takes words beside its own values: `--codes e4m3,int8,of=kv,scale_of=token/block`."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import click

from workbench.case.spellings import EXAMPLES, TRUTHS, WORDS, flag
from workbench.refusal import Refusal

#: what says that something is so, and what says that it is not
SAID: Mapping[str, bool] = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}


def truth(said: str) -> bool:
    """Whether a word says that something is so; ValueError where it says neither."""
    if said.strip().lower() not in SAID:
        raise ValueError
    return SAID[said.strip().lower()]


@dataclass(frozen=True)
class Word:
    """A word of an option: how its values are read, and what the help shows of it."""

    item: Callable[[str], Any]
    kind: str  #: as in `kv=INTEGER`
    help: str
    several: bool = True  #: whether its values are several, separated by /, and come as a tuple

    @property
    def alone(self) -> bool:
        """Whether it needs no value."""
        return self.item is truth

    @property
    def metavar(self) -> str:
        """What the help shows of its values."""
        return "" if self.alone else f"={self.kind}{'[/...]' if self.several else ''}"

    def read(self, said: str) -> Any:
        """Its value, or values; ValueError where there is none."""
        return tuple(self.item(part.strip()) for part in said.split("/")) if self.several else self.item(said)


class Text(click.types.StringParamType):
    """Text that a command reads, of which the help shows how parts of it are said."""

    def __init__(self, *rows: tuple[str, str]) -> None:
        self.rows = list(rows)


class Spec(click.ParamType):
    """Values of the option's own field, and of those that its words name: a dict by field."""

    name = "specification"

    def __init__(self, option: str, own: click.ParamType, words: Mapping[str, Word]) -> None:
        self.option, self.own, self.words = option, own, words

    def takes(self, said: str) -> bool:
        """Whether what follows an option that may stand alone is its value."""
        return all(re.match(r"\w+=", part) or part.strip().lower() in (*SAID, *self.words) for part in said.split(","))

    @property
    def rows(self) -> list[tuple[str, str]]:
        """What the help shows below the option: a row a word."""
        return [(f"  ,{name}{word.metavar}", word.help) for name, word in self.words.items()]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        """Field -> what was said of it."""
        if isinstance(value, dict):
            return value
        found: dict[str, Any] = {}
        own = []
        for part in value.split(","):
            name, equals, said = (x.strip() for x in part.partition("="))
            word = self.words.get(name)
            if word is None and equals:
                raise self._refusal(value, f"has no word {name}")
            if word is None:
                own.append(part.strip())
                continue
            if not said and not (word.alone and not equals):
                raise self._refusal(value, f"{name} needs a value")
            try:
                found[WORDS[self.option][name]] = word.read(said or "yes")
            except ValueError:
                raise self._refusal(value, f"{name} takes {word.kind}, got {said!r}") from None
        if found and not own and self.option in TRUTHS:  # which its words alone say
            own = ["yes"]
        return found | ({self.option: self.own.convert(",".join(own), param, ctx)} if own else {})

    def _refusal(self, said: str, what: str) -> Refusal:
        words = ", ".join(f"{name}{'' if word.alone else '='}" for name, word in self.words.items())
        example = f"{flag(self.option)} {EXAMPLES[self.option]}"
        return Refusal(f"{flag(self.option)} {said}: {what}; its words are {words}, as in {example}")


def spec_option(
    option: str, own: click.ParamType, words: Mapping[str, Word], **click_says: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add an option with words to a command, which takes each field by its name."""
    fields = WORDS[option]

    def spread(ctx: click.Context, param: click.Parameter, value: dict[str, Any] | None) -> Any:
        for word in words:
            ctx.params[fields[word]] = (value or {}).get(fields[word])
        return (value or {}).get(option)

    if option in TRUTHS:
        click_says |= {"is_flag": False, "flag_value": "yes"}
    return click.option(flag(option), option, type=Spec(option, own, words), callback=spread, **click_says)
