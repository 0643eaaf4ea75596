"""The options of the command line that choose cases and faults."""

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from workbench.case.fields import (
    FIELDS,
    SEQLEN,
    Field,
    Function,
    Lengths,
    Number,
    OfHeads,
    Sides,
    Truth,
    Whole,
    Word,
    flag,
    typed,
)
from workbench.case.options import ANY, CLICK, OURS, ROLES, Options, flag_of, of_role
from workbench.cli.completion import complete

if TYPE_CHECKING:
    from workbench.case.case import Case


class ListOf(click.ParamType):
    """Comma-separated values: `4,64,65`."""

    def __init__(self, item: Callable[[str], Any], name: str) -> None:
        self.item, self.name = item, name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        """The values of one option."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(self.item(part.strip()) for part in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is not a comma-separated list of {self.name}s", param, ctx)


USUAL = Options()


def _number_or_word(text: str) -> float | str:
    """A number, else the word."""
    try:
        return float(text)
    except ValueError:
        return text


class OneOf(ListOf):
    """Comma-separated values that are one: `16,0`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        """The one value, in a tuple as those of a list are."""
        if isinstance(value, tuple):
            return value
        found = super().convert(value, param, ctx)
        return found if len(found) == 1 and isinstance(found[0], str) else (found,)  # a word stands for all numbers


#: rule of a field -> the type of its option, and what the help shows of it
_TYPES: Mapping[type, tuple[click.ParamType, str]] = {
    Whole: (ListOf(int, "integer"), "INTEGER[,...]"),
    Number: (ListOf(float, "number"), "NUMBER[,...]"),
    Word: (ListOf(str, "word"), "WORD[,...]"),
    Sides: (OneOf(int, "integer"), "LEFT,RIGHT"),
    Lengths: (OneOf(int, "integer"), "INTEGER[,...]"),
    OfHeads: (OneOf(_number_or_word, "number"), "NUMBER[,...]|WORD"),
    Function: (ListOf(str, "function"), "FILE.py:FUNCTION"),
}
#: parameter of a command that takes case options -> the field of a case, or both lengths
CASE_OPTIONS: dict[str, Field] = {}
for name, asked in FIELDS.items():
    CASE_OPTIONS |= ({"seqlen": SEQLEN} if name == "seqlen_q" else {}) | ({} if name == "causal" else {name: asked})


def case_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the case options, each of which takes a list, to a command."""
    for name, text in (("full", "No mask [default]; with --causal: both"), ("causal", FIELDS["causal"].help)):
        command = click.option(flag(name), is_flag=True, help=text)(command)
    for name, field in reversed(CASE_OPTIONS.items()):
        if isinstance(field.rule, Truth):
            command = click.option(flag(name), is_flag=True, default=None, help=field.help)(command)
            continue
        kind, metavar = _TYPES[type(field.rule)]
        shown: dict[str, Any] = {"help": field.help, "metavar": metavar, "shell_complete": complete}
        command = click.option(flag(name), type=kind, **shown)(command)
    return command


def cases_of(options: dict[str, Any]) -> list["Case"]:
    """Every combination of the listed case options, in the order of the options, the last varying fastest; of the shape
    of the inputs in the file `inputs`, where that is given.
    """
    from workbench.case.case import Case

    make: Callable[..., Case] = Case
    if options.get("inputs"):
        from workbench.trace import inputs

        make = partial(inputs.case_of, inputs.load(Path(options["inputs"])), options["inputs"])

    lists = {name: options.get(name) for name in CASE_OPTIONS}
    lists["causal"] = (
        tuple(dict.fromkeys([*([False] if options["full"] else []), *([True] if options["causal"] else [])])) or None
    )
    given = {name: _values(values) for name, values in lists.items() if values is not None}
    cases = [make(**dict(zip(given, values, strict=True))) for values in itertools.product(*given.values())]
    for case in cases if make is Case else ():
        case.check_memory()  # before anybody is told how long it takes
    return cases


def random_limits(options: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Field of a random case -> the values to which the case options limit it; the seed is that of the draws."""
    limits = {name: options[name] for name in CASE_OPTIONS if options[name] is not None and name != "seed"}
    limits = {name: _values(values) for name, values in limits.items()}
    return limits | ({"causal": (options["causal"],)} if options["causal"] != options["full"] else {})


def _values(values: Any) -> tuple[Any, ...]:
    """The values of an option; of a flag one."""
    return (values,) if isinstance(values, bool) else values


def run_option(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What adds some options of a run (`options.Options`) to a command."""

    def added(command: Callable[..., Any]) -> Callable[..., Any]:
        for name in reversed(names):
            asked: dict[str, Any] = {"shell_complete": complete, "default": None, **CLICK[name]}
            if name in ("backend", "probes"):
                asked["default"] = getattr(USUAL, name)
            if asked.get("type") is int:
                asked["type"] = click.IntRange(min=1)
            command = click.option(flag_of(name), name, **asked)(command)
        return command

    return added


fault_option, inputs_option = run_option("faults"), run_option("inputs")
#: what a kernel of ours and what a foreign one is run with
target_options = run_option("runs", "backend", "probes", "arrays", "device", "layout", "calibration", "contract")
_LIMITS = run_option("isolate", "timeout", "memory_gb", "feed", "where")
_BY_HEAD = click.option("--by-head", is_flag=True, help="Dump and judge one head after the other")


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what `runs.runs` takes besides the target: every option of a run, case options, and `by_head`."""
    return fault_option(case_options(inputs_option(target_options(_LIMITS(_BY_HEAD(run_option("limit_gb")(command)))))))


def given(options: Mapping[str, Any], *roles: str) -> dict[str, Any]:
    """The options of a run that were given, of some roles, or all; a feed as words."""
    chosen = of_role(*(roles or ROLES.values()))
    values = {name: options.get(name) for name in chosen}
    usual = {name: getattr(USUAL, name) for name in of_role(OURS, ANY)}
    return {name: x for name, x in values.items() if x not in (None, (), usual.get(name))}


def one_target(ctx: click.Context, param: click.Parameter, words: tuple[str, ...]) -> str | None:
    """The TARGET; of several files of a trace, such as a shell makes of a pattern, they, separated by commas."""
    if len(words) > 1 and not all(word.endswith(".safetensors") for word in words):
        raise click.UsageError(f"one TARGET, or several .safetensors files of one run; got {' '.join(words)}", ctx)
    return ",".join(words) or None


values_option = click.option(
    "--values",
    metavar="LOG",
    shell_complete=complete,
    help="Instead of a TARGET: values that a kernel of yours printed",
)
mapping_option = click.option(
    "--mapping",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="TARGET is a folder that another program wrote; this TOML file names what lies in it",
)
measure_option = click.option(
    "--measure",
    is_flag=True,
    help="Also call TARGET on inputs of our choice, and judge the weights and what else is read off its outputs",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document")


def needs_of(faults: tuple[str, ...], options: dict[str, Any]) -> dict[str, Any]:
    """Case options that the chosen faults need to show, told on stderr: defaults where the user is silent, else
    refused. Inputs from a file are what they are.
    """
    from workbench.cuda.faults.catalogue import CATALOGUE
    from workbench.refusal import Refusal

    needs: dict[str, Any] = {}
    drawn = not options.get("inputs")
    for fault in faults:
        for name, value in CATALOGUE[fault].needs.items() if fault in CATALOGUE else ():
            given = options["seqlen" if name in ("seqlen_q", "seqlen_k") and options["seqlen"] else name]
            if name == "distribution" and not drawn:
                continue
            if name == "causal":
                if options["full"]:
                    raise Refusal(f"fault {fault} shows only with --causal; got --full")
                if not options["causal"]:
                    needs["causal"] = True
            elif given is None:
                needs[name] = (value,)
            elif any(item != value for item in given):
                listed = ",".join(map(typed, given))
                raise Refusal(f"fault {fault} shows only with {flag(name)} {typed(value)}; got {listed}")
        length = CATALOGUE[fault].seqlen if fault in CATALOGUE else None
        if length and drawn and not any(options[name] for name in ("seqlen", "seqlen_q", "seqlen_k")):
            needs["seqlen"] = (length,)
    if needs:
        words = " ".join(option for name, value in needs.items() for option in _words(name, value))
        click.echo(f"set for --fault {', '.join(faults)}: {words}", err=True)
    return needs


def _words(name: str, value: Any) -> list[str]:
    """An option as the command line takes it."""
    return [flag(name), *([] if value is True else map(typed, value))]
