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
    Number,
    OfHeads,
    Sides,
    Truth,
    Whole,
    Word,
    typed,
)
from workbench.case.options import ANY, CLICK, OURS, ROLES, Options, flag_of, of_role
from workbench.case.spellings import EXAMPLES, LENGTHS, NEED_VALUE, OPTION, TRUTHS, WORDS, Ragged, flag, length_of, said
from workbench.cli.completion import complete
from workbench.cli.spec import Word as SpecWord
from workbench.cli.spec import spec_option, truth
from workbench.refusal import Refusal

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


class OneOf(ListOf):
    """Comma-separated values that are one: `16,0`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        """The one value, in a tuple as those of a list are."""
        if isinstance(value, tuple):
            return value
        found = super().convert(value, param, ctx)
        return found if len(found) == 1 and isinstance(found[0], str) else (found,)  # a word stands for all numbers


def _number_or_word(text: str) -> float | str:
    """A number, else the word."""
    try:
        return float(text)
    except ValueError:
        return text


#: rule of a field -> how one value of its option is read, and what the help shows of it
_ITEMS: Mapping[type, tuple[Callable[[str], Any], str]] = {
    Whole: (int, "INTEGER"),
    Number: (float, "NUMBER"),
    Word: (str, "WORD"),
    Truth: (truth, "yes or no"),
    Sides: (int, "LEFT,RIGHT"),
    OfHeads: (_number_or_word, "NUMBER[,...]|WORD"),
    Function: (str, "FILE.py:FUNCTION"),
}
#: what one value is called where it cannot be read
_CALLED: Mapping[type, str] = {Whole: "integer", Number: "number", Sides: "integer", OfHeads: "number", Truth: "truth"}
#: of which a list is one value
_ONE = (Sides, OfHeads)
#: parameter of a command that takes case options -> the field of a case, or both lengths
CASE_OPTIONS: dict[str, Field] = {}
for name, asked in FIELDS.items():
    found = {} if name in LENGTHS.values() else {name: asked}
    CASE_OPTIONS |= ({"seqlen": SEQLEN} if name == "seqlen_q" else {}) | found


def case_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the case options, each of which takes a list, to a command."""
    for name, field in reversed(CASE_OPTIONS.items()):
        if name in OPTION:
            continue
        item, shown = _ITEMS[type(field.rule)]
        called = _CALLED.get(type(field.rule), "word")
        if name in ("seqlen", *LENGTHS):
            item, called = length_of, "length"
        kind = (OneOf if isinstance(field.rule, _ONE) else ListOf)(item, called)
        several = "" if isinstance(field.rule, (*_ONE, Function)) else "[,...]"
        metavar = "[no,yes]" if name in TRUTHS else f"{shown}{several}"
        told: dict[str, Any] = {"help": field.help, "metavar": metavar, "shell_complete": complete}
        if name in WORDS:
            words = {word: _word(FIELDS[of]) for word, of in WORDS[name].items()}
            command = spec_option(name, kind, words, **told)(command)
        else:
            command = click.option(flag(name), type=kind, **told)(command)
    return command


def _word(field: Field) -> SpecWord:
    """The word of an option that says a field."""
    item, kind = _ITEMS[type(field.rule)]
    return SpecWord(item, kind, field.help)


def cases_of(options: dict[str, Any]) -> list["Case"]:
    """Every combination of the listed case options, in the order of the options, the last varying fastest; of the shape
    of the inputs in the file `inputs`, where that is given.
    """
    from workbench.case.case import Case

    make: Callable[..., Case] = Case
    if options.get("inputs"):
        from workbench.trace import inputs

        make = partial(inputs.case_of, inputs.load(Path(options["inputs"])), options["inputs"])

    for name in NEED_VALUE:
        words = [word for word, of in WORDS[name].items() if options.get(of) is not None]
        if words and options.get(name) is None:
            word = f"{flag(name)} {words[0]}={options[WORDS[name][words[0]]][0]}"
            raise Refusal(f"{word} needs the option's own value, as in {flag(name)} {EXAMPLES[name]}")
    cases = [make(**one) for one in fields_of(options)]
    for case in cases if make is Case else ():
        case.check_memory()  # before anybody is told how long it takes
    return cases


def fields_of(options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The fields of a case that the options say, of every combination in the order of `cases_of`."""
    given = _resolved(options)
    named = (dict(zip(given, values, strict=True)) for values in itertools.product(*given.values()))
    return [_with_sequences(one) for one in named]


def _resolved(options: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """The case options that were given, each value as its rule has it; Refusal in the words of the command line."""
    given = {name: values for name in CASE_OPTIONS if (values := options.get(name)) is not None}
    return {name: tuple(_value(name, x, options) for x in values) for name, values in given.items()}


def _value(name: str, value: Any, options: Mapping[str, Any]) -> Any:
    """A value of a case option, as its rule has it."""
    if isinstance(value, Ragged):
        return value
    try:
        return CASE_OPTIONS[name].rule.resolved(f"{flag(name)}=" if name in OPTION else flag(name), value)
    except Refusal as refused:
        said = f"{value:g}" if isinstance(value, float) else repr(value) if isinstance(value, str) else typed(value)
        words = WORDS.get(name, {})
        several = [word for word, of in words.items() if len(options.get(of) or ()) == 1 and isinstance(value, str)]
        slash = f"; to pass several values, separate them with slashes: {several[0]}=.../{value}" if several else ""
        raise Refusal(f"{str(refused).rpartition('; got ')[0]}; got {said}{slash}") from None


def _with_sequences(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a case, with lengths of sequences as the fields that they are."""
    found = dict(fields)
    if isinstance(both := found.get("seqlen"), Ragged):  # of both, or of the one that is not given beside it
        del found["seqlen"]
        found = {name: both for name in LENGTHS if found.get(name) is None} | found
    for name, several in LENGTHS.items():
        if isinstance(one := found.get(name), Ragged):
            del found[name]
            found |= {several: one.lengths} | ({name: one.rows} if one.rows else {})
    return found


def random_limits(options: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Field of a random case -> the values to which the case options limit it; the seed is that of the draws."""
    limits = {name: x for name, x in _resolved(options).items() if name != "seed"}
    ragged = {name for name in ("seqlen", *LENGTHS) if any(isinstance(x, Ragged) for x in limits.get(name, ()))}
    of_one = {name: x[0] for name, x in limits.items() if name in ragged and len(x) == 1}
    if {*of_one} != ragged:
        raise Refusal(f"random cases take one ragged batch or a list of lengths; got {flag(min(ragged))} "
                      f"{','.join(map(str, limits[min(ragged)]))}")  # fmt: skip
    told = {name: (x,) for name, x in _with_sequences(of_one).items()}
    return {name: x for name, x in limits.items() if name not in ragged} | told


def run_option(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What adds some options of a run (`options.Options`) to a command."""
    apart = [name for name in names if name not in OPTION]

    def added(command: Callable[..., Any]) -> Callable[..., Any]:
        for name in reversed(apart):
            asked: dict[str, Any] = {"shell_complete": complete, "default": None, **CLICK[name]}
            if name in ("backend", "probes"):
                asked["default"] = getattr(USUAL, name)
            if asked.get("type") is int:
                asked["type"] = click.IntRange(min=1)
            words = {word: _word_of(of) for word, of in WORDS.get(name, {}).items() if of in names}
            if words:
                own = _Truth() if asked.pop("is_flag", False) else click.STRING
                asked = {"metavar": "[NAME=X,...]" if isinstance(own, _Truth) else "WORD", **asked}
                command = spec_option(name, own, words, **asked)(command)
            else:
                command = click.option(flag_of(name), name, **asked)(command)
        return command

    return added


class _Truth(click.ParamType):
    """Yes or no."""

    name = "truth"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool | None:
        """True or None."""
        return truth(value) or None


def _word_of(name: str) -> SpecWord:
    """The word of an option that says an option of a run."""
    item = CLICK[name].get("type", str)
    return SpecWord(item, "NUMBER" if item is float else "WORD", CLICK[name]["help"], several=False)


fault_option, inputs_option = run_option("faults"), run_option("inputs")
#: what a kernel of ours and what a foreign one is run with
TARGETS = ("runs", "backend", "probes", "arrays", "device", "layout", "calibration", "contract")
target_options = run_option(*TARGETS)
_EVERY = run_option(*TARGETS, "isolate", "timeout", "memory_gb", "feed", "where", "limit_gb")
_BY_HEAD = click.option("--by-head", is_flag=True, help="Dump and judge the heads one by one")


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what `runs.runs` takes besides the target: every option of a run, case options, and `by_head`."""
    return fault_option(case_options(inputs_option(_EVERY(_BY_HEAD(command)))))


def given(options: Mapping[str, Any], *roles: str) -> dict[str, Any]:
    """The options of a run that were given, of some roles, or all; a feed as words."""
    chosen = of_role(*(roles or ROLES.values()))
    values = {name: options.get(name) for name in chosen}
    usual = {name: getattr(USUAL, name) for name in of_role(OURS, ANY)}
    return {name: x for name, x in values.items() if x not in (None, (), usual.get(name))}


def one_target(ctx: click.Context, param: click.Parameter, words: tuple[str, ...]) -> str | None:
    """The TARGET; of several files of a trace, such as a shell makes of a pattern, they, separated by commas."""
    if len(words) > 1 and not all(word.endswith(".safetensors") for word in words):
        raise click.UsageError(f"give one TARGET, or several .safetensors files of one run; got {' '.join(words)}", ctx)
    return ",".join(words) or None


values_option = click.option(
    "--values",
    metavar="LOG",
    shell_complete=complete,
    help="Judge values that your kernel printed, instead of a TARGET",
)
mapping_option = click.option(
    "--mapping",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Name the arrays in TARGET, a file or folder that another program wrote, by this TOML file",
)
measure_option = click.option(
    "--measure",
    is_flag=True,
    help="Also call TARGET on chosen inputs, and judge the weights and other stages inferred from its outputs",
)
effort_option = click.option(
    "--effort",
    metavar="N",
    type=click.FloatRange(min=0.0, min_open=True),
    default=1.0,
    help="Multiply the search effort by N [1]",
)
seconds_option = click.option(
    "--seconds",
    type=click.FloatRange(min=0.0, min_open=True),
    help="End the search after this many seconds; results then depend on the machine",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document")


def needs_of(faults: tuple[str, ...], options: dict[str, Any]) -> dict[str, Any]:
    """Case options that the chosen faults need to show, told on stderr: defaults where the user is silent, else
    refused. Inputs from a file are what they are.
    """
    from workbench.cuda.faults.catalogue import CATALOGUE

    needs: dict[str, Any] = {}
    drawn = not options.get("inputs")
    for fault in faults:
        for field, needed in CATALOGUE[fault].needs.items() if fault in CATALOGUE else ():
            name, value = next(((n, Ragged(needed)) for n, of in LENGTHS.items() if of == field), (field, needed))
            if name == "distribution" and not drawn:
                continue
            both = name in LENGTHS and options["seqlen"] and not isinstance(value, Ragged)
            given = options["seqlen" if both else name]
            if given is None:
                needs[name] = (value,)
            elif any((item._replace(rows=None) if isinstance(item, Ragged) else item) != value for item in given):
                listed = [" ".join(said({name: one})) for one in (value, *given)]
                raise Refusal(f"fault {fault} shows only with {listed[0]}; got {', '.join(listed[1:])}")
        length = CATALOGUE[fault].seqlen if fault in CATALOGUE else None
        if length and drawn and not any(options[name] for name in ("seqlen", "seqlen_q", "seqlen_k")):
            needs["seqlen"] = (length,)
    if needs:
        words = " ".join(said({name: values[0] for name, values in needs.items()}))
        click.echo(f"set for --fault {', '.join(faults)}: {words}", err=True)
    return needs
