"""What correct runs were called: each verdict counted, and the stages that it came from."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from workbench.judge.diff import SEVERITY, Diff
from workbench.judge.stage import RIGHT_VERDICTS

#: the usual rules, by name
RULES = ("assert_close", "atol 1e-2", "FlashAttention 2x")
#: verdict -> largest share of correct runs that may be called so
LIMITS = {"suspicious": 0.005, "biased": 0.01, "missing": 0.0, "bug": 0.0}


@dataclass(frozen=True)
class Called:
    """What one correct run was called; plain data, which crosses between processes."""

    verdict: str
    stages: tuple[tuple[str, str], ...]  #: verdict and name of each stage that was not called right
    fails: tuple[str, ...]  #: the usual rules that its out fails
    run: str  #: kernel and case

    @classmethod
    def of(cls, judged: Diff) -> "Called":
        """What `judged` was called."""
        trace = judged.trace
        return cls(
            judged.verdict,
            tuple((stage.verdict, stage.name) for stage in judged.stages if stage.verdict not in RIGHT_VERDICTS),
            tuple(rule.name for rule in judged.rules if not rule.passes),
            f"{trace.target}: {trace.case}",
        )


@dataclass
class Tally:
    """Counts over correct runs."""

    runs: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    stages: dict[str, Counter[str]] = field(default_factory=dict)  #: verdict -> stage -> runs in which it was called so
    fails: Counter[str] = field(default_factory=Counter)  #: rule -> runs that it fails
    not_right: list[str] = field(default_factory=list)  #: verdicts, stages and case of each run not called right

    @classmethod
    def of(cls, runs: Iterable[Called]) -> "Tally":
        """The counts of several runs."""
        tally = cls()
        for run in runs:
            tally.add(run)
        return tally

    def add(self, run: Called) -> None:
        """Count one run."""
        self.runs += 1
        self.verdicts[run.verdict] += 1
        self.fails.update(run.fails)
        for verdict, stage in run.stages:
            self.stages.setdefault(verdict, Counter())[stage] += 1
        if run.verdict not in RIGHT_VERDICTS:
            self.not_right.append(f"{', '.join(' '.join(stage) for stage in run.stages)} of {run.run}")

    def document(self) -> dict[str, Any]:
        """The counts as plain values."""
        return {
            "runs": self.runs,
            "verdicts": dict(self.verdicts),
            "stages": {verdict: dict(stages) for verdict, stages in self.stages.items()},
            "rules": {name: self.fails[name] for name in RULES},
            "not_right": self.not_right,
        }


def counted(verdicts: Mapping[str, int], among: Iterable[str] = SEVERITY) -> dict[str, int]:
    """How often each verdict was given, 0 of those that never were."""
    return {verdict: verdicts.get(verdict, 0) for verdict in among}


def row(of: str, tally: dict[str, Any]) -> dict[str, Any]:
    """A tally's document as a row of a table."""
    fails = {f"{name} fails": tally["rules"][name] for name in RULES}
    return {"of": of, "runs": tally["runs"], **counted(tally["verdicts"]), **fails}


def limits_row(tally: dict[str, Any]) -> dict[str, Any]:
    """The most runs of that tally that may be called so, below its `row`."""
    blank = dict.fromkeys(row("", tally))
    return blank | {"of": "at most"} | {verdict: int(share * tally["runs"]) for verdict, share in LIMITS.items()}


def stage_rows(tally: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each stage that was not called right in some run."""
    counts = [(verdict, stage, runs) for verdict, stages in tally["stages"].items() for stage, runs in stages.items()]
    return [{"verdict": verdict, "stage": stage, "runs": runs} for verdict, stage, runs in counts]
