"""A law, and what a kernel made of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from workbench.explore.laws.subject import Subject
from workbench.shown import shown_by


@dataclass(frozen=True)
class Break:
    """Where a law is broken first: at the element that is furthest from what is allowed."""

    stage: str  #: "" where the run itself failed
    place: Mapping[str, int]  #: axis letter -> index in the run of the case itself
    found: float  #: what the kernel gave
    wanted: float  #: what the law makes of its other run
    allowed: float  #: how far apart right ones may be; 0 where bits are compared
    count: int = 1  #: elements that break it
    of: int = 1  #: elements that were compared
    why: str = ""  #: what is to be known beside the numbers

    @property
    def words(self) -> str:
        """The break in a sentence."""
        if not self.stage:
            return self.why
        place = " ".join(f"{axis}={i}" for axis, i in self.place.items())
        rule = "bit for bit" if self.allowed == 0 else f"within {self.allowed:.3g}"
        said = f"{self.stage} at {place} is {self.found:.9g}; the law requires {self.wanted:.9g}, {rule}"
        return f"{said}; {self.count} of {self.of} elements break it{'; ' if self.why else ''}{self.why}"


#: where it broke; why it does not apply; None where it held
Verdict = Break | str | None


@dataclass(frozen=True)
class Law:
    """A property of attention; its function says what it is, and what it asks of a case."""

    check: Callable[[Any], Verdict]  #: of what it is asked: a kernel, or a backward pass, on a case
    kind: str  #: its class: what is compared, and how (docs/how-to/laws.md)

    @property
    def name(self) -> str:
        """As reports and signatures have it."""
        return self.check.__name__.replace("_", "-")

    @property
    def says(self) -> str:
        """The law in a sentence."""
        return " ".join((self.check.__doc__ or "").split("\n\n")[0].split())


@dataclass(frozen=True)
class Finding:
    """What a kernel made of a law on a case."""

    law: Law
    broke: Break | None = None
    lacking: str = ""  #: why the law does not apply

    @property
    def held(self) -> bool | None:
        """None where the law does not apply."""
        return None if self.lacking else self.broke is None

    def as_dict(self) -> dict[str, Any]:
        """Each of `laws` of `workbench.laws/1` and `workbench.gradient-laws/1`; numbers that are not finite as strings.

        - `name`, `class`, `says`: of the law
        - `held`, `not_applicable`: `null` where it does not apply, and why
        - `broke`: the worst element: `stage`, `place`, `found`, `wanted`, `allowed`; `count` elements `of` all;
          `sentence`
        """
        found: dict[str, Any] = {
            "name": self.law.name,
            "class": self.law.kind,
            "says": self.law.says,
            "held": self.held,
        }
        if self.lacking:
            found["not_applicable"] = self.lacking
        if self.broke is not None:
            broke = self.broke
            numbers = {name: getattr(broke, name) for name in ("found", "wanted", "allowed")}
            found["broke"] = {
                "stage": broke.stage,
                "place": dict(broke.place),
                **{name: x if abs(x) < float("inf") else str(x) for name, x in numbers.items()},
                "count": broke.count,
                "of": broke.of,
                "sentence": broke.words,
            }
        return found


@dataclass(frozen=True)
class Laws:
    """What a kernel made of every law on a case."""

    subject: Subject = field(repr=False)
    findings: tuple[Finding, ...]

    @property
    def broken(self) -> tuple[Finding, ...]:
        """Those that it broke."""
        return tuple(one for one in self.findings if one.held is False)

    @property
    def signature(self) -> dict[str, bool | None]:
        """Law -> whether it held; None where it does not apply."""
        return {one.law.name: one.held for one in self.findings}

    def as_dict(self) -> dict[str, Any]:
        """The document `workbench.laws/1` of `workbench laws --json`.

        - `claims_invariance`: whether `--invariant` was given
        - `broken`: how many laws are broken
        - `laws`: a record for each law
        """
        return {
            "schema": "workbench.laws/1",
            "target": self.subject.first.trace.target,
            "case": self.subject.asked.as_dict(),
            "claims_invariance": self.subject.claimed,
            "broken": len(self.broken),
            "laws": [one.as_dict() for one in self.findings],
            "faults": list(self.subject.first.trace.faults),
        }

    def __str__(self) -> str:
        return shown_by("laws.in_short", self)
