"""Tables of stages, changed: a change of one step carries its values and its bounds along."""

from dataclasses import replace
from typing import Any

from workbench.reference.stage import Stage, Step, Table, named


def parameter(axes: str, step: Step) -> Stage:
    """What no kernel dumps, but what may be wrong in it."""
    return Stage(axes, step, dumped=False)


def definition(table: Table, name: str) -> str:
    """What a stage is, in float64 and natural units: parameters are said by what they are made of."""
    step = table[name].step
    words = step.words

    def said(field: str, ref: str) -> str:
        at, earlier = ref.lstrip("-"), "previous " if ref[0] == "-" else ""
        if at not in table or table[at].dumped:
            return earlier + at
        inner = definition(table, at)
        alone = words == f"{{{field}}}" or any(f"{left}{{{field}}}{right}" in words for left, right in _APART)
        return earlier + (f"({inner})" if _is_sum(inner) and not alone else inner)

    return words.format(**{field: said(field, ref) for field, ref in named(step).items()})


#: what stands around a part of a definition that needs no parentheses
_APART = (("(", ")"), (", ", ")"), (", ", ","))


def _is_sum(words: str) -> bool:
    """Whether a definition has a plus or a minus outside of parentheses."""
    depth = 0
    for n, character in enumerate(words):
        depth += (character == "(") - (character == ")")
        if depth == 0 and words[n : n + 3] in (" + ", " - "):
            return True
    return False


def edited(table: Table, name: str, **changes: Any) -> Table:
    """The table with other fields of one stage's step."""
    return {
        key: replace(stage, step=replace(stage.step, **changes)) if key == name else stage  # type: ignore[type-var]
        for key, stage in table.items()
    }


def made_by(table: Table, **steps: Step) -> Table:
    """The table with other steps for some stages."""
    return table | {name: replace(table[name], step=step) for name, step in steps.items()}


def inserted(table: Table, after: str, stages: Table) -> Table:
    """The table with more stages behind one."""
    found: dict[str, Stage] = {}
    for name, stage in table.items():
        found[name] = stage
        if name == after:
            found |= stages
    return found
