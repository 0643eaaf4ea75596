"""The laws that `workbench laws` asks, each with its class and its sentence."""

from collections.abc import Mapping

from docs.generators.markdown import escaped, table
from workbench.explore.laws.backward_every import GRADIENT_LAWS
from workbench.explore.laws.every import LAWS
from workbench.explore.laws.law import Law


def forward() -> str:
    """Those of attention."""
    return _listed(LAWS)


def backward() -> str:
    """Those of a backward pass."""
    return _listed(GRADIENT_LAWS)


def _listed(laws: Mapping[str, Law]) -> str:
    return table(["law", "class", "what holds"], ([law.name, law.kind, escaped(law.says)] for law in laws.values()))
