"""Cheats on torch tensors, some of them Triton kernels, by an author who had README.md and public catalogues alone, and
fixed them before the first of them was run.

`truths.json` says of each what it does, the spec within which it is wrong, and a witness: shapes and numbers on which
it is, and how the call before it and its memory come in where these matter. Those named `t_` tamper with whoever checks
them. `right.py` has right functions of unusual style. The files share no code, as those of one who is judged would not.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from campaigns.cheats.record import Cheat
from campaigns.cheats.unseen import SOURCE, spec_of

FOLDER = Path(__file__).parent
_TRUTHS = json.loads((FOLDER / "truths.json").read_text())
#: of witnesses, what goes beyond one call on inputs of their own: no case of the workbench shows these
_BEYOND = ("layout", "memory", "after", "mode", "repeats")


class Right(NamedTuple):
    """A right function."""

    name: str
    target: str  #: its name on the command line
    spec: Mapping[str, Any]
    needs_gpu: bool


def _cheat(truth: Mapping[str, Any]) -> Cheat:
    of, path = truth["witness"], str(FOLDER / truth["file"])
    spec = spec_of(truth) | {"arrays": "torch"}
    shown = not truth["tampers"] and not any(of.get(name) for name in _BEYOND)
    before = f"for _ in range({of['calls']}): f(*redraw(), **kw)"
    witness = {**truth["spec"], **of, "dtype": truth["dtype"], "before": before, "after": ""} if shown else None
    what = f"{truth['kind']}: {truth['what']}"
    return Cheat(truth["name"], path, spec, (), what, SOURCE, witness, needs_gpu=truth["needs_gpu"])


def _right(truth: Mapping[str, Any]) -> Right:
    target = f"{FOLDER / truth['file']}:{truth['name']}"
    return Right(truth["name"], target, spec_of(truth) | {"arrays": "torch"}, truth["needs_gpu"])


DEVICE = [_cheat(truth) for truth in _TRUTHS["wrong"]]
RIGHT = [_right(truth) for truth in _TRUTHS["right"]]
