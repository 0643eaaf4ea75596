"""How far a table of largest errors leads to the cause: faults of kernels of ours, of which nothing else is told.

Each fault is run on CASES, and its largest errors are written down with three digits. A name of the set is true where
that hypothesis reproduces out of the faulty kernel on a fresh case, within error budgets.
"""

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np

import campaigns.faults  # noqa: F401  (the whole catalogue)
from campaigns.spread import spread
from campaigns.verdicts import MEASURED
from workbench.bench.harness import gathered
from workbench.case.case import Case
from workbench.cuda.faults.catalogue import CATALOGUE
from workbench.cuda.kernels import KERNELS
from workbench.expectation.expectation import Expectation
from workbench.expectation.observed import Observed
from workbench.foreign.run import run
from workbench.judge.explain.fit import fit
from workbench.judge.explain.plausible import Plausible
from workbench.judge.explain.scene import Scene
from workbench.judge.explain.symptom_table import SCHEMA as TABLE
from workbench.judge.explain.symptom_table import of_document
from workbench.judge.explain.symptoms import explained
from workbench.trace.trace import Trace

SCHEMA = "workbench.bench-symptoms/1"
#: queries and keys of the cases of each table: within a tile, ragged, with rows that see no key, and with more keys
LENGTHS = ((24, 24), (65, 50), (90, 117), (160, 160))
#: of all cases: two heads to a kv head, and a scale that is not the usual one
SHAPE = {"heads": 4, "kv_heads": 2, "head_dim": 32, "scale": 0.25, "block_q": 32, "block_k": 32}
#: those whose out is wrong in float32 by more than it rounds, wherever memory was before: the first 20 of these
FAULTS = tuple(
    fault.id
    for fault in CATALOGUE.values()
    if fault.kernel in MEASURED and {*fault.stages} - {"lse"} and not fault.unwritten_memory and not fault.biased
)[:20]
#: tables without a fault, and of random numbers
CORRECT, RANDOM = "none", "random numbers"
# seconds of a table, measured on 2 cores, for an estimate only
TABLE_S = 45.0

#: how much of the runs a table tells
TOLD: Mapping[str, tuple[str, ...]] = {"inputs known": ("seed", "input_std", "splits", "block_k"), "open": ()}


def measure(seed: int = 0, jobs: int = 1, told: Sequence[str] = tuple(TOLD)) -> dict[str, Any]:
    """The JSON document of one campaign on the emulator, the same for any number of `jobs` (processes).

    `tables`: a row for each of FAULTS, for a correct kernel and for random numbers, with everything of the inputs told
    and with all of it left open: the `verdict`, the causes in the set, and the `place` of the first true one among
    those that are told, 0 where none is.
    """
    work = [(name, how) for how in told for name in (*FAULTS, CORRECT, RANDOM)]
    rows = gathered(
        f"explain {len(work)} tables of largest errors", TABLE_S * len(work) / jobs,
        spread(partial(_row, seed=seed), work, jobs), lambda done: f", {sum(row['place'] > 0 for row in done)} true",
    )  # fmt: skip
    return {"schema": SCHEMA, "seed": seed, "tables": rows}


def tables(results: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The document as tables for a screen: rows of equal columns."""
    rows = results["tables"]
    sums = [
        {
            "told": how,
            "faults": len(some := [row for row in rows if row["told"] == how and row["fault"] in FAULTS]),
            "true one shown": sum(row["place"] > 0 for row in some),
            "first": sum(row["place"] == 1 for row in some),
            "within rounding": sum(row["verdict"] == "nothing to explain" for row in some),
        }
        for how in dict.fromkeys(row["told"] for row in rows)
    ]
    return [rows, sums]


def _row(of: tuple[str, str], *, seed: int) -> dict[str, Any]:
    name, how = of
    document, case = _document(name, TOLD[how], seed)
    found = explained(of_document(json.loads(json.dumps(document), parse_float=Decimal), name))
    fresh = case.but(seqlen_q=100, seqlen_k=83, seed=seed + 1)
    shown = found.plausible
    place = 0
    if name in CATALOGUE and shown:
        trace = run(CATALOGUE[name].kernel, fresh, faults=[name], backend="emulator")
        place = next((n for n, cause in enumerate(shown, 1) if _true(trace, cause)), 0)
    return {
        "fault": name,
        "told": how,
        "verdict": found.verdict,
        "causes": len(found.plausible) + found.more,
        "place": place,
        "seconds": round(found.seconds, 1),
    }


def _document(name: str, told: Sequence[str], seed: int) -> tuple[dict[str, Any], Case]:
    """A table, and its last case."""
    fault = CATALOGUE.get(name)
    kernel = "flash" if fault is None else fault.kernel
    needs = {} if fault is None else {key: x for key, x in fault.needs.items() if not key.startswith("seqlen")}
    options = {"causal": True, **SHAPE, **needs}
    if KERNELS[kernel].splits:
        options["splits"] = 2
    listed = []
    random = np.random.default_rng(seed)
    for queries, keys in LENGTHS:
        case = Case(seqlen_q=queries, seqlen_k=keys, seed=seed, **options)
        errors = 10.0 ** random.uniform(-3, 1, queries)
        if name != RANDOM:
            errors = _errors(run(kernel, case, faults=[name] if fault else [], backend="emulator"))
        rows = {str(row): _digits(errors[row]) for row in (0, 1, queries // 2, queries - 1)}
        listed.append({"seqlen_q": queries, "seqlen_k": keys, "max_abs": _digits(errors.max()), "rows": rows})
    every = {name: value for name, value in case.as_dict().items() if name in (*told, "dtype", "softcap", "window")}
    known = {name: value for name, value in {**options, **every}.items() if value is not None and name != "block_q"}
    known = {name: value for name, value in known.items() if name not in ("splits", "block_k") or name in told}
    return {"schema": TABLE, "kernel": kernel, **known, "cases": listed}, case


def _errors(trace: Trace) -> np.ndarray:
    """The largest errors of out in each query."""
    with np.errstate(all="ignore"):
        off = abs(trace.stages["out"].astype(np.float64) - Expectation(Observed(trace), {}).computed["out"])
    largest: np.ndarray = off.max((0, 1, 3))
    return largest


def _digits(x: float) -> float | str:
    """Three digits; NaN and inf as JSON has them here."""
    return float(f"{x:.3g}") if np.isfinite(x) else str(float(x))


def _true(trace: Trace, cause: Plausible) -> bool:
    """Whether a cause reproduces out of a faulty kernel, of which nothing else is told."""
    scene = Scene.of(Observed(trace).only(["out"]))
    return bool(scene.wrong) and any(fit(scene, one, scene.wrong) is not None for one in cause.members)
