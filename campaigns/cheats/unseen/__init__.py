"""Cheats by an author who had README.md and public catalogues alone, fixed before the first of them was run.

`truths.json` says of each what it does, the spec within which it is wrong, and a witness: shapes and numbers on which
it is. Those named `t_` tamper with whoever checks them. `right.py` has right functions of unusual style beside them.
The files share no code with each other, as those of one who is judged would not.
"""

import importlib.util
import itertools
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from campaigns.cheats.record import Cheat
from workbench.arrays import as_numpy, handed_over, home
from workbench.case.case import Case
from workbench.floats import DTYPES
from workbench.foreign.run import run
from workbench.trace.trace import Trace

FOLDER = Path(__file__).parent
SOURCE = "an author who saw README.md alone"
#: what the author took for granted where a truth says nothing
_DOMAIN: Mapping[str, Any] = {
    "batch": {"from": 1, "to": 4}, "group": 1, "kv_heads": {"from": 1, "to": 8},
}  # fmt: skip
_GROUPED = {"kv_heads": 2, "group": {"from": 2, "to": 4}}


def spec_of(truth: Mapping[str, Any]) -> dict[str, Any]:
    """The spec within which a function is to be right."""
    asked = truth.get("spec", {})
    # a list of one window, since a list of numbers would be a choice between them
    numbers = {name: [asked[name]] for name in ("softcap", "window") if asked.get(name)}
    grouped = _GROUPED if asked.get("kv_heads") else {}
    return {"case": {"dtype": truth["dtype"], **_DOMAIN, **grouped, **numbers}, "empty_rows": True, "fresh": True}


def _cheat(truth: Mapping[str, Any]) -> Cheat:
    witness = {**truth["spec"], **truth["witness"], "dtype": truth["dtype"]}
    path = str(FOLDER / truth["file"])
    return Cheat(truth["name"], path, spec_of(truth), (), f"{truth['kind']}: {truth['what']}", SOURCE, witness)


UNSEEN = [_cheat(truth) for truth in json.loads((FOLDER / "truths.json").read_text())]


def witnessed(one: Cheat, device: str | None = None) -> Trace:
    """What a cheat returned on its witness, as a trace of `out` alone; `device` of one that takes torch tensors.

    A recipe changes q, k and v, normal numbers in float64, before they are cast; `S(x)` is the constant k that gives
    the score x where q is 1. `before` runs before the call that is judged, `after` after it, and may set `out`; in them
    `draw` gives other normal numbers, and `redraw` such numbers as the recipe changes them.
    """
    w = one.witness
    assert w is not None
    function = _loaded(one) if "arrays" not in one.spec else _of_numpy(_loaded(one), home("torch", device))
    numbers = {name: w[name] for name in ("softcap", "window") if w.get(name)}
    fields = ("batch", "heads", "kv_heads", "seqlen_q", "seqlen_k", "head_dim", "causal", "scale", "dtype")
    case = Case(**{name: w[name] for name in fields}, **numbers)
    scale = w["scale"] or w["head_dim"] ** -0.5
    seeds = itertools.count(100)

    def drawn(seed: int) -> list[np.ndarray]:
        random = np.random.default_rng(seed)
        heads = (w["heads"], case.kv_heads, case.kv_heads)
        lengths = (w["seqlen_q"], w["seqlen_k"], w["seqlen_k"])
        return [random.standard_normal((w["batch"], h, n, w["head_dim"])) for h, n in zip(heads, lengths, strict=True)]

    def draw() -> list[np.ndarray]:
        return [x.astype(DTYPES[w["dtype"]]) for x in drawn(next(seeds))]

    def redraw(seed: int | None = None) -> list[np.ndarray]:
        names: dict[str, Any] = dict(zip("qkv", drawn(next(seeds) if seed is None else seed), strict=True))
        names |= {"np": np, "S": lambda x: x / (scale * w["head_dim"])}
        exec(w["recipe"], names)
        return [names[name].astype(DTYPES[w["dtype"]]) for name in "qkv"]

    q, k, v = redraw(0)
    said = {"window_size" if name == "window" else name: x for name, x in numbers.items()}
    keywords = {"scale": scale, "causal": w["causal"], **said}
    space = {
        "f": function,
        "q": q,
        "k": k,
        "v": v,
        "kw": keywords,
        "draw": draw,
        "redraw": redraw,
        "np": np,
        "time": time,
    }
    exec(w["before"], space)
    given = tuple(x.copy() for x in (q, k, v))
    space["out"] = function(q, k, v, **keywords)
    exec(w["after"], space)
    out = np.array(space["out"])
    return run(_returning(out, numbers), case, inputs=given)


def _returning(out: np.ndarray, numbers: Mapping[str, Any]) -> Callable[..., np.ndarray]:
    """A function that returns `out`, with a keyword for each of `numbers`."""
    if not numbers:
        return lambda q, k, v, *, scale, causal: out
    if "softcap" in numbers:
        return lambda q, k, v, *, scale, causal, softcap: out
    return lambda q, k, v, *, scale, causal, window_size: out


def _of_numpy(function: Callable[..., Any], device: str) -> Callable[..., np.ndarray]:
    """A function of torch tensors as one of NumPy arrays."""

    def called(q: np.ndarray, k: np.ndarray, v: np.ndarray, **keywords: Any) -> np.ndarray:
        return as_numpy(function(*(handed_over(x.copy(), "torch", device) for x in (q, k, v)), **keywords), "out")

    return called


def _loaded(one: Cheat) -> Callable[..., np.ndarray]:
    spec = importlib.util.spec_from_file_location(Path(one.path).stem, one.path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Callable[..., np.ndarray] = getattr(module, one.name)
    return found
