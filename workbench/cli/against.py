"""The option of `workbench diff` that holds a second run beside the first, and what it runs."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from workbench.case.fields import ARITHMETIC, QUANTISED, of_role
from workbench.case.options import ANY, FOREIGN, OURS, flag_of
from workbench.cli.completion import complete
from workbench.cli.options import CASE_OPTIONS, cases_of, fields_of, given, needs_of
from workbench.cli.spec import Text, truth

if TYPE_CHECKING:
    from workbench.case.case import Case
    from workbench.cuda.kernel import Kernel
    from workbench.foreign.target import Target
    from workbench.judge.against.pair import Against
    from workbench.trace.trace import Trace

#: settings of the second run: field of a case, or backend -> what it is
_SETTINGS = {
    "splits": "splits of the keys",
    "block_q": "queries in a tile",
    "block_k": "keys in a tile",
    "pack_gqa": "pack (query, head of a group) rows: yes or no",
    "backend": "backend, emulator or cuda",
}
#: the word of an earlier run, whose trace is the file behind it
SINCE = "since"
_CASE = (*CASE_OPTIONS, "inputs")


against_option = click.option(
    "--against",
    metavar="OTHER",
    shell_complete=complete,
    help="Compare with another TARGET, or splits=4,block_k=32",
    type=Text(("  since=FILE", "Trace of an earlier run: list the code changes since, and check that they ran")),
)


def second_run(against: str | None) -> dict[str, Any]:
    """The second run that --against asks for: its settings by name, and its `target` where it has its own; or `since`,
    the file of an earlier one; empty where there is none.
    """
    from workbench.refusal import Refusal, meant

    found: dict[str, Any] = {}
    target = []
    for part in [] if against is None else against.split(","):
        name, given, value = part.strip().partition("=")
        if name == SINCE and not value:
            raise Refusal(f"--against {against}: {SINCE} needs the trace of an earlier run: {SINCE}=FILE")
        if not given or not re.fullmatch(r"[\w-]+", name):  # a path may have an = in it
            target.append(part)
        elif name == SINCE:
            found[name] = value
        elif name not in _SETTINGS:
            raise Refusal(
                f"--against {against}: settings of a second run must be among {', '.join(_SETTINGS)}; got "
                f"{name}{meant(name, _SETTINGS)}; to compare with an earlier run pass {SINCE}=FILE"
            )
        elif name == "pack_gqa":
            try:
                found[name] = truth(value)
            except ValueError:
                raise Refusal(f"--against {against}: pack_gqa takes yes or no; got {value!r}") from None
        elif name != "backend" and not value.isdecimal():
            raise Refusal(f"--against {against}: {name} takes a whole number ({_SETTINGS[name]}); got {value!r}")
        else:
            found[name] = value if name == "backend" else int(value)
    if SINCE in found and (target or len(found) > 1):
        raise Refusal(
            f"--against {against}: {SINCE}=FILE compares one run with an earlier one, other settings compare two runs; "
            "got both"
        )
    return {**found, **({"target": ",".join(target)} if target else {})}


def judged(target: str | None, second: dict[str, Any], options: dict[str, Any]) -> Iterator["Against"]:
    """TARGET, or the log `values` among the options, and the second run, judged and held against each other, for each
    case in turn, with progress. `options` as of `runs.runs`.
    """
    from workbench.judge.against.pair import against
    from workbench.judge.diff import diff
    from workbench.progress import step

    calls = _calls(target, second, options)
    with step(f"run and compare {len(calls)} pair{'s' * (len(calls) > 1)}") as tick:
        for i, (one, other) in enumerate(calls):
            tick(f"{i} of {len(calls)} done")
            yield against(diff(one()), diff(other()))


def show(pairs: Sequence["Against"], as_json: bool, out: Path | None) -> None:
    """Print the pairs: one in full, several as a row each."""
    from workbench.report import against, text

    if as_json:
        click.echo(json.dumps(against.document(pairs[0]) if len(pairs) == 1 else against.documents(pairs)))
        return
    screen = text.console()
    unicode, width = screen.is_terminal, screen.width
    one = len(pairs) == 1
    if one:
        screen.print(against.report(pairs[0], unicode=unicode, width=width), crop=False)
    else:
        screen.print(against.summary(pairs, unicode=unicode))
    if out is not None:
        each = f"{out}/" if one else f"{out}/000/"
        screen.print(f"pictures and traces: {each}a/ and {each}b/{'' if one else ', and so on'}", soft_wrap=True)


def write_page(pairs: Sequence["Against"], html: Path) -> None:
    """Write the page of the pairs."""
    from workbench.report.page import against
    from workbench.report.page.page import save

    save(against.page(pairs[0]) if len(pairs) == 1 else against.summary(pairs), html)


@dataclass(frozen=True)
class _Side:
    """One of the two runs."""

    target: "Target"
    settings: Mapping[str, Any] = field(default_factory=dict)  #: its own, by the names of _SETTINGS
    #: its own options, by name: only the first run has faults, and is fed
    own: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kernel(self) -> "Kernel | None":
        """The kernel of ours that it is."""
        return self.target.kernel

    def takes(self, name: str, other: "_Side") -> bool:
        """Whether a field of a case is for it, and not for the `other` side alone."""
        if self.kernel is None:
            return not self.target.is_foreign or name not in ("splits", *of_role(ARITHMETIC))
        if name == "probs_dtype":  # a kernel on codes casts float32 to float16, which no other does
            return self.kernel.quantised or other.kernel is None or not other.kernel.quantised
        return self.kernel.splits if name == "splits" else self.kernel.quantised

    def case(self, case: "Case", other: "_Side") -> "Case":
        """The case without what is for the other side alone, and with its own settings."""
        names = ("splits", "probs_dtype", *QUANTISED)
        dropped = [name for name in names if other.takes(name, self) and not self.takes(name, other)]
        own = {name: value for name, value in self.settings.items() if name != "backend"}
        return case.but(**dict.fromkeys(dropped), **own)

    def options(self, other: "_Side", options: dict[str, Any]) -> dict[str, Any]:
        """The options of the run that are its own, by name. What neither side takes is left for others to refuse."""
        ours = given(options, OURS) if self.kernel or not other.kernel else {}
        foreign = given(options, FOREIGN) if self.target.is_foreign or not other.target.is_foreign else {}
        both = given(options, ANY)
        if other.kernel and not self.kernel:  # a function need not launch what a backend is for
            both.pop("backend", None)
        backend = {name: value for name, value in self.settings.items() if name == "backend"}
        return {**ours, **foreign, **both, "faults": (), "feed": (), **self.own, **backend}

    def call(self, case: "Case", other: "_Side", options: dict[str, Any], inputs: Any) -> "Callable[[], Trace]":
        """Runs it, or reads it."""
        from workbench.cli.runs import part_of, runs
        from workbench.foreign.feed import parse as parse_feed
        from workbench.foreign.run import run

        name = self.target.name
        if self.target.brings_case:
            return runs(name, where=options["where"], faults=())[0]
        if self.target.is_trace:
            return partial(part_of, _read(name, case, options), options["where"])
        asked = self.options(other, options)
        if self.target.is_log:
            if options["contract"] is not None:
                asked["contract"] = options["contract"]
            of_case = {name: options[name] for name in _CASE}
            return runs(None, **{"where": None, **of_case, **asked, "values": name})[0]
        asked |= {"inputs": inputs, "feed": parse_feed(asked["feed"])}
        return partial(run, name, self.case(case, other), **asked)


def _calls(
    target: str | None, second: dict[str, Any], options: dict[str, Any]
) -> list[tuple["Callable[[], Trace]", "Callable[[], Trace]"]]:
    """What to run, two calls for each pair."""
    calls = []
    for a, b in _pairs(target, second, options):
        _check(a, b, "target" in second, options)
        cases, inputs = _cases((a, b), options)
        calls += [(a.call(case, b, options, inputs), b.call(case, a, options, inputs)) for case in cases]
    return calls


def _pairs(target: str | None, second: dict[str, Any], options: dict[str, Any]) -> list[tuple[_Side, _Side]]:
    """The two sides of each TARGET, or of the log."""
    from workbench.cli.runs import runs
    from workbench.foreign.target import Kind, Target, target_of, targets_of

    settings = {name: value for name, value in second.items() if name != "target"}
    own = {name: options[name] for name in ("faults", "feed")}
    log = options["values"]
    if target is not None and log is None:
        firsts = [_Side(found, own=own) for found in targets_of(target)]
    elif target is None and log is not None:
        firsts = [_Side(Target(str(log), Kind.PRINTED), own=own)]
    else:
        runs(target, **options)  # refuses both, and neither
    if "target" in second:
        return [(first, _Side(target_of(second["target"]), settings)) for first in firsts]
    return [(first, replace(first, settings=settings)) for first in firsts]


def _cases(pair: tuple[_Side, _Side], options: dict[str, Any]) -> tuple[list["Case"], Any]:
    """The cases of a pair, and their inputs where they are not drawn: those of a run at rest among the two."""
    from workbench.trace.load import load

    at_rest = sorted((side.target for side in pair if side.target.is_trace), key=lambda x: not x.brings_case)
    if not at_rest:
        return cases_of({**options, **needs_of(options["faults"], options)}), options["inputs"]
    first = at_rest[0]
    if first.brings_case:
        return [load(first.name).case], first.name
    traces = [_read(first.name, stated, options)() for stated in fields_of(options)]
    read = {**traces[0].inputs, **{x: traces[0].stages[x] for x in traces[0].put_in}}
    return [trace.case for trace in traces], read


def _read(path: str, case: Any, options: Mapping[str, Any]) -> Callable[[], "Trace"]:
    """Reads arrays at rest, whose case is said as of `load`."""
    from workbench.trace.load import load

    return partial(load, path, case, contract=options["contract"], layout=options["layout"] or "bhsd")


def _check(a: _Side, b: _Side, named: bool, options: dict[str, Any]) -> None:
    """Refusal of settings and options that a side cannot take; `named`: the second run has a target of its own."""
    from workbench.cuda.kernels import KERNELS
    from workbench.refusal import Refusal

    if options["by_head"]:
        raise Refusal("--by-head and --against exclude each other; compare a part of two runs with --where")
    flags = [f"--against {name}={value}" for name, value in b.settings.items()]
    if (a.target.is_trace or a.target.is_log) and not named:
        what = a.target.kind.value
        raise Refusal(f"{flags[0]} runs TARGET again, but {what} cannot be run; name a kernel: --against KERNEL")
    name = b.target.name
    if flags and b.kernel is None:
        kind = b.target.kind.value
        raise Refusal(f"{flags[0]} is for built-in kernels ({', '.join(KERNELS)}); {name} is {kind}")
    if "splits" in b.settings and not (b.kernel and b.kernel.splits):
        splitting = ", ".join(kernel.name for kernel in KERNELS.values() if kernel.splits)
        raise Refusal(f"--against splits=N is for kernels that split the keys ({splitting}); {name} does not")
    if not (a.target.is_trace or b.target.is_trace):
        return
    if a.target.is_trace and b.target.is_trace and a.target.brings_case != b.target.brings_case:
        raise Refusal(f"{a.target.name} against {b.target.name}: a trace brings its own case, but arrays do not; "
                      "give two of one kind")  # fmt: skip
    brought = a.target.brings_case or b.target.brings_case
    asked = [name for name in (_CASE if brought else ("inputs",)) if options[name] not in (None, False)]
    asked += given(options, FOREIGN, OURS) if a.target.brings_case and b.target.brings_case else []
    asked += [name for name, value in a.own.items() if a.target.is_trace and value and name not in asked]
    if asked:
        listed = ", ".join(map(flag_of, asked))
        raise Refusal(f"a trace brings its own case; {a.target.name} against {name} takes no {listed}")
