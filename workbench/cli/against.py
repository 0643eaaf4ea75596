"""The options of `workbench diff` that hold a second run beside the first, and what they run."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from workbench.case.fields import ARITHMETIC, QUANTISED, flag, of_role
from workbench.cli.completion import complete
from workbench.cli.options import CASE_OPTIONS, cases_of, foreign_of, needs_of

if TYPE_CHECKING:
    from workbench.case.case import Case
    from workbench.cuda.kernel import Kernel
    from workbench.judge.against.pair import Against
    from workbench.trace.trace import Trace

#: settings of the second run: field of a case, or backend -> help
_SETTINGS = {
    "splits": "splits of the keys",
    "block_q": "queries in a tile",
    "block_k": "keys in a tile",
    "backend": "backend, emulator or cuda",
}
#: options of the kernels of ours that are run, with what they are where nobody gave them
_USUAL = {"probes": "all", "backend": "auto"}
_CASE = (*CASE_OPTIONS, "causal", "full", "inputs")


def against_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of the second run to a command."""
    for name, text in reversed(_SETTINGS.items()):
        kind = click.STRING if name == "backend" else click.INT
        help_text = f"Hold TARGET beside itself, or --against, with other {text}"
        command = click.option(flag(f"against_{name}"), type=kind, help=help_text, shell_complete=complete)(command)
    help_text = "Hold TARGET beside another kernel, path.py:function or trace; its faults stay with TARGET"
    return click.option("--against", metavar="TARGET", help=help_text, shell_complete=complete)(command)


def second_run(options: dict[str, Any]) -> dict[str, Any]:
    """What the options say of a second run, taken out of them; empty where they ask for none."""
    names = ["against", *(f"against_{name}" for name in _SETTINGS)]
    said = {name: options.pop(name) for name in names}
    return {name: value for name, value in said.items() if value is not None}


def judged(target: str | None, second: dict[str, Any], options: dict[str, Any]) -> Iterator["Against"]:
    """TARGET, or the log `values` among the options, and the second run, judged and held against each other, for each
    case in turn, with progress. `options` as of `runs.runs`.
    """
    from workbench.judge.against.pair import against
    from workbench.judge.diff import diff
    from workbench.progress import step

    calls, estimate_s = _calls(target, second, options)
    with step(f"run and compare {len(calls)} pair{'s' * (len(calls) > 1)}", estimate_s) as tick:
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


@dataclass(frozen=True)
class _Side:
    """One of the two runs."""

    target: str  #: as of `runs.runs`, or a log
    faults: tuple[str, ...] = ()
    feed: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)  #: its own, by the names of _SETTINGS
    is_log: bool = False

    @property
    def kernel(self) -> "Kernel | None":
        """The kernel of ours that it is."""
        from workbench.cuda.kernels import KERNELS

        return None if self.is_log else KERNELS.get(self.target)

    @property
    def is_trace(self) -> bool:
        """Whether it is a trace at rest."""
        from workbench.trace.join import is_trace

        return not self.is_log and self.kernel is None and is_trace(self.target)

    @property
    def is_foreign(self) -> bool:
        """Whether it is run, and no kernel of ours."""
        return self.kernel is None and not self.is_trace and not self.is_log

    def takes(self, name: str, other: "_Side") -> bool:
        """Whether a field of a case is for it, and not for the `other` side alone."""
        if self.kernel is None:
            return not self.is_foreign or name not in ("splits", *of_role(ARITHMETIC))
        if name == "probs_dtype":  # a kernel on codes casts float32 to float16, which no other does
            return self.kernel.quantised or other.kernel is None or not other.kernel.quantised
        return self.kernel.splits if name == "splits" else self.kernel.quantised

    def case(self, case: "Case", other: "_Side") -> "Case":
        """The case without what is for the other side alone, and with its own settings."""
        names = ("splits", "probs_dtype", *QUANTISED)
        dropped = [name for name in names if other.takes(name, self) and not self.takes(name, other)]
        own = {name: value for name, value in self.settings.items() if name != "backend"}
        return case.but(**dict.fromkeys(dropped), **own)

    def call(self, case: "Case", other: "_Side", options: dict[str, Any], inputs: Any) -> "Callable[[], Trace]":
        """Runs it, or reads it. What neither side takes is left for others to refuse."""
        from workbench.cli.runs import runs
        from workbench.foreign.feed import parse as parse_feed
        from workbench.foreign.run import run

        ours = {name: options[name] for name in _USUAL} if self.kernel or not other.kernel else _USUAL
        foreign = foreign_of(options) if self.is_foreign or not other.is_foreign else {}
        unread = {**dict.fromkeys(foreign_of(options)), "limit_gb": None}
        of_log = {name: value for name, value in unread.items() if name != "contract"}
        if self.is_trace:
            own = {**dict.fromkeys(_CASE), **unread, **_USUAL, "faults": (), "feed": ()}
            return runs(self.target, **{**options, **own})[0][0]
        if self.is_log:
            return runs(None, **{**options, **(of_log if other.kernel else {}), **ours, **foreign})[0][0]
        words = {"faults": self.faults, "inputs": inputs, "where": options["where"], **ours, **foreign}
        words |= {"feed": parse_feed(self.feed)} | {k: v for k, v in self.settings.items() if k == "backend"}
        if options["limit_gb"] is not None and (self.kernel or not other.kernel):
            words["limit_gb"] = options["limit_gb"]
        return partial(run, self.target, self.case(case, other), **words)


def _calls(
    target: str | None, second: dict[str, Any], options: dict[str, Any]
) -> tuple[list[tuple["Callable[[], Trace]", "Callable[[], Trace]"]], float | None]:
    """What to run, two calls for each pair, and about how many seconds it takes where that is known."""
    from workbench.cuda.run import estimate_s

    calls, estimates = [], []
    pairs = _pairs(target, second, options)
    for a, b in pairs:
        _check(a, b, "against" in second, options)
        cases, inputs = _cases((a, b), options)
        for one, other in ((a, b), (b, a)):
            if one.kernel:
                backend = one.settings.get("backend", options["backend"])
                own = [one.case(case, other) for case in cases]
                estimates.append(estimate_s(one.target, own, one.faults, options["probes"], backend))
        calls += [(a.call(case, b, options, inputs), b.call(case, a, options, inputs)) for case in cases]
    return calls, sum(estimates) if len(estimates) == 2 * len(pairs) else None


def _pairs(target: str | None, second: dict[str, Any], options: dict[str, Any]) -> list[tuple[_Side, _Side]]:
    """The two sides of each TARGET, or of the log."""
    from workbench.cli.runs import runs
    from workbench.cuda.kernels import KERNELS

    settings = {name: second[f"against_{name}"] for name in _SETTINGS if f"against_{name}" in second}
    log, faults, feed = (options[name] for name in ("values", "faults", "feed"))
    if target is None or log is not None:
        if target is not None or log is None:
            runs(target, **options)  # refuses both, and neither
        firsts = [_Side(str(log), faults, feed, is_log=True)]
    else:
        names = target.split(",") if set(target.split(",")) <= set(KERNELS) else [target]
        firsts = [_Side(name, faults, feed) for name in names]
    if "against" in second:
        return [(first, _Side(second["against"], settings=settings)) for first in firsts]
    return [(first, replace(first, settings=settings)) for first in firsts]


def _cases(pair: tuple[_Side, _Side], options: dict[str, Any]) -> tuple[list["Case"], Any]:
    """The cases of a pair, and their inputs where they are not drawn: those of a trace among the two."""
    from workbench.trace.join import load_all

    if (trace := next((side.target for side in pair if side.is_trace), None)) is not None:
        return [load_all(trace).case], trace
    return cases_of({**options, **needs_of(pair[0].faults, options)}), options["inputs"]


def _check(a: _Side, b: _Side, named: bool, options: dict[str, Any]) -> None:
    """Refusal of settings and options that a side cannot take; `named`: the second run has a target of its own."""
    from workbench.cuda.kernels import KERNELS
    from workbench.refusal import Refusal

    if options["by_head"]:
        raise Refusal("--by-head judges one run after the other, and keeps none; two are compared in part with --where")
    flags = [flag(f"against_{name}") for name in b.settings]
    if (a.is_trace or a.is_log) and not named:
        what = "a trace" if a.is_trace else "a log"
        raise Refusal(f"{flags[0]} runs TARGET again, and {what} cannot be run; name a kernel: --against KERNEL")
    if flags and b.kernel is None:
        kind = "a trace" if b.is_trace else "a foreign one"
        raise Refusal(f"{flags[0]} is for kernels of ours ({', '.join(KERNELS)}); {b.target} is {kind}")
    if "splits" in b.settings and not (b.kernel and b.kernel.splits):
        splitting = ", ".join(kernel.name for kernel in KERNELS.values() if kernel.splits)
        raise Refusal(f"--against-splits is for kernels that split the keys ({splitting}); {b.target} does not")
    if not (a.is_trace or b.is_trace):
        return
    alone = [*foreign_of(options), "limit_gb", *_USUAL] if a.is_trace and b.is_trace else []
    given = [name for name in (*_CASE, *alone) if options[name] not in (None, False, _USUAL.get(name))]
    given += [name for name, value in (("fault", a.faults), ("feed", a.feed)) if a.is_trace and value]
    if given:
        listed = ", ".join(flag(name) for name in given)
        raise Refusal(f"a trace brings its own case; {a.target} against {b.target} takes no {listed}")
