"""The options of `workbench diff` that hold a second run beside the first, and what they run."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from workbench.options import CASE_OPTIONS, cases_of, needs_of

if TYPE_CHECKING:
    from workbench.case import Case
    from workbench.cuda.kernels import Kernel
    from workbench.pair import Against
    from workbench.trace import Trace

#: settings of the second run: field of a case, or backend -> help
_SETTINGS = {
    "splits": "splits of the keys",
    "block_q": "queries in a tile",
    "block_k": "keys in a tile",
    "backend": "backend, emulator or cuda",
}
#: options of a run that are for kernels of ours, and for others
_OURS, _FOREIGN = ("probes", "backend"), ("arrays", "device", "layout", "calibration")
_CASE = (*(flag[2:].replace("-", "_") for flag in CASE_OPTIONS), "causal", "full", "inputs")


def against_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of the second run to a command."""
    for name, text in reversed(_SETTINGS.items()):
        kind = click.STRING if name == "backend" else click.INT
        help_text = f"Hold TARGET beside itself, or --against, with other {text}"
        command = click.option(f"--against-{name.replace('_', '-')}", type=kind, help=help_text)(command)
    help_text = "Hold TARGET beside another kernel, path.py:function or trace; its faults stay with TARGET"
    return click.option("--against", metavar="TARGET", help=help_text)(command)


def second_run(options: dict[str, Any]) -> dict[str, Any]:
    """What the options say of a second run, taken out of them; empty where they ask for none."""
    names = ["against", *(f"against_{name}" for name in _SETTINGS)]
    said = {name: options.pop(name) for name in names}
    return {name: value for name, value in said.items() if value is not None}


def judged(target: str, second: dict[str, Any], faults: Sequence[str], options: dict[str, Any]) -> Iterator["Against"]:
    """TARGET and the second run, judged and held against each other, for each case in turn, with progress.

    `options`: those of the cases, and probes, backend, arrays, device, layout, calibration.
    """
    from workbench.judge import diff
    from workbench.pair import against
    from workbench.progress import step

    calls, estimate_s = _calls(target, second, faults, options)
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
    screen.print(
        against.report(pairs[0], unicode=unicode, width=width) if one else against.summary(pairs, unicode=unicode)
    )
    if out is not None:
        screen.print(f"pictures and traces: {out}/a/ and {out}/b/", soft_wrap=True)


@dataclass(frozen=True)
class _Side:
    """One of the two runs."""

    target: str
    faults: tuple[str, ...]
    settings: Mapping[str, Any]  #: its own, by the names of _SETTINGS

    @property
    def kernel(self) -> "Kernel | None":
        """The kernel of ours that it is."""
        from workbench.cuda.kernels import KERNELS

        return KERNELS.get(self.target)

    @property
    def is_trace(self) -> bool:
        """Whether it is a file."""
        return self.target.endswith(".safetensors")

    @property
    def is_foreign(self) -> bool:
        """Whether it is run, and no kernel of ours."""
        return self.kernel is None and not self.is_trace

    def takes(self, field: str, other: "_Side") -> bool:
        """Whether a field of a case is for it, and not for the `other` side alone."""
        if self.kernel is None:
            return self.is_trace or field not in ("splits", "scores", "decode", "probs_dtype")
        if field == "probs_dtype":  # a kernel on codes casts float32 to float16, which no other does
            return self.kernel.quantised or other.kernel is None or not other.kernel.quantised
        return self.kernel.splits if field == "splits" else self.kernel.quantised

    def case(self, case: "Case", other: "_Side") -> "Case":
        """The case without what is for the other side alone, and with its own settings."""
        from workbench.case import QUANTISED

        fields = ("splits", "probs_dtype", *QUANTISED)
        dropped = [field for field in fields if other.takes(field, self) and not self.takes(field, other)]
        own = {field: value for field, value in self.settings.items() if field != "backend"}
        return case.but(**dict.fromkeys(dropped), **own)

    def call(self, case: "Case", other: "_Side", options: Mapping[str, Any], inputs: Any) -> "Callable[[], Trace]":
        """Runs it, or loads it. What neither side takes is left for `run` to refuse."""
        from workbench.target import run
        from workbench.trace import load

        if self.is_trace:
            return partial(load, Path(self.target))
        words: dict[str, Any] = {"faults": self.faults, "inputs": inputs}
        if self.kernel or not other.kernel:
            words |= {name: options[name] for name in _OURS}
        if self.is_foreign or not other.is_foreign:
            words |= {name: options[name] for name in _FOREIGN if options[name] is not None}
        if "backend" in self.settings:
            words["backend"] = self.settings["backend"]
        return partial(run, self.target, self.case(case, other), **words)


def _calls(
    target: str, second: dict[str, Any], faults: Sequence[str], options: dict[str, Any]
) -> tuple[list[tuple["Callable[[], Trace]", "Callable[[], Trace]"]], float | None]:
    """What to run, two calls for each pair, and about how many seconds it takes where that is known."""
    from workbench.cuda.kernels import KERNELS
    from workbench.cuda.run import estimate_s

    settings = {name: second[f"against_{name}"] for name in _SETTINGS if f"against_{name}" in second}
    targets = target.split(",") if set(target.split(",")) <= set(KERNELS) else [target]
    calls, estimates = [], []
    for name in targets:
        beside = second.get("against", name)
        pair = (_Side(name, tuple(faults), {}), _Side(beside, () if "against" in second else tuple(faults), settings))
        _check(pair, "against" in second, options)
        cases, inputs = _cases(pair, options)
        for one, other in (pair, pair[::-1]):
            if one.kernel:
                own = [one.case(case, other) for case in cases]
                backend = one.settings.get("backend", options["backend"])
                estimates.append(estimate_s(one.target, own, one.faults, options["probes"], backend))
        a, b = pair
        calls += [(a.call(case, b, options, inputs), b.call(case, a, options, inputs)) for case in cases]
    return calls, sum(estimates) if len(estimates) == 2 * len(targets) else None


def _cases(pair: tuple[_Side, _Side], options: dict[str, Any]) -> tuple[list["Case"], Any]:
    """The cases of a pair, and their inputs where they are not drawn: those of a trace among the two."""
    from workbench.trace import load

    if (trace := next((side.target for side in pair if side.is_trace), None)) is not None:
        return [load(Path(trace)).case], trace
    return cases_of({**options, **needs_of(pair[0].faults, options)}), options["inputs"]


def _check(pair: tuple[_Side, _Side], named: bool, options: dict[str, Any]) -> None:
    """Refusal of settings and options that a side cannot take; `named`: the second run has a target of its own."""
    from workbench.cuda.kernels import KERNELS
    from workbench.refusal import Refusal

    a, b = pair
    flags = [f"--against-{name.replace('_', '-')}" for name in b.settings]
    if a.is_trace and not named:
        raise Refusal(f"{flags[0]} runs TARGET again, and a trace cannot be run; name a kernel: --against KERNEL")
    if flags and b.kernel is None:
        kind = "a trace" if b.is_trace else "a foreign one"
        raise Refusal(f"{flags[0]} is for kernels of ours ({', '.join(KERNELS)}); {b.target} is {kind}")
    if "splits" in b.settings and not (b.kernel and b.kernel.splits):
        splitting = ", ".join(kernel.name for kernel in KERNELS.values() if kernel.splits)
        raise Refusal(f"--against-splits is for kernels that split the keys ({splitting}); {b.target} does not")
    if not (a.is_trace or b.is_trace):
        return
    usual = {"probes": "all", "backend": "auto"}
    names = [*_CASE, *((*_OURS, *_FOREIGN) if a.is_trace and b.is_trace else ())]
    given = [name for name in names if options[name] not in (None, False, usual.get(name))]
    given += ["fault"] if a.is_trace and a.faults else []
    if given:
        listed = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise Refusal(f"a trace brings its own case; {a.target} against {b.target} takes no {listed}")
