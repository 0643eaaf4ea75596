"""What was measured of a function: lines, and the document."""

from typing import Any

import numpy as np

from workbench.floats import scientific
from workbench.judge.diff import Diff
from workbench.readings.reader import Measured
from workbench.report.command import run_command
from workbench.report.numbers import ratio, times
from workbench.trace.headline import headline

SCHEMA = "workbench.measure/1"


def lines(found: Measured) -> list[str]:
    """All that was found, a line each."""
    trace = (found.target.whole or found.target).coded
    said = [f"{headline(trace)}: {found.calls} calls", *([f"measured on {found.part}"] if found.part else [])]
    said.append(of_weights(found))
    for one in found.findings:
        of_all = f"{one.wrong:,} of {one.of:,} fitted elements differ from the reference"
        beside = "" if found.proved else "not proved: "
        said.append(f"{one.stage}: {beside}{one.text}" + (f" ({of_all})" if one.of else ""))
    if not found.findings:
        if found.target.is_wrong:
            asks = run_command("explain", trace)
            library = f"`{asks}`" if asks else "`workbench.explain`"
            said.append(f"out is wrong, but no measurement shows how; next: {library} tries known faults")
        elif found.wrong:
            said.append("out is within budget, but its weights are not; no measurement shows why")
        else:
            said.append("nothing found: weights and out are within budget")
            if beyond_usual := int(found.target.natural.wrong.sum()):
                elements = "1 element of out is" if beyond_usual == 1 else f"{beyond_usual:,} elements of out are"
                said.append(f"{elements} over the budget of default arithmetic; declare yours")
        if found.arithmetic:
            said += [f"its arithmetic: {one.text}" for one in found.arithmetic]
            said.append(
                "this arithmetic predicts runs on unseen inputs; if your kernel computes like that on "
                "purpose, declare a contract"
            )
        return said
    if all(one.reading == "cast" for one in found.findings):
        reads = run_command("contract", trace, ["--measure"])
        reads = f"`{reads}`" if reads else "`workbench.explore.read.measure_contract`"
        said.append(f"if your kernel casts there on purpose, declare it (--contract); {reads} measures the contract")
    return said + _proofs(found)


def of_diff(diff: Diff) -> list[str]:
    """What was measured beside the stages of a judged run; none where that was not asked for."""
    if diff.of_measure is None:
        return []
    found = diff.of_measure.found
    right = f"within budget, error / budget at most {ratio(found.ratio)}"
    weights = beyond(found) if found.verdict.weights.summary.outside else right
    lines = [*(_proofs(found) if found.verdict.blames else []), *diff.of_measure.said]
    return [
        f"measured in {found.calls} call{'s' * (found.calls > 1)}: weights, {weights}",
        *([f"  measured on {found.part}"] if found.part else []),
        *(f"  {line}" for line in lines),
    ]


def _proofs(found: Measured) -> list[str]:
    said = []
    for proof in found.proofs:
        beside = "" if proof.held and proof.lse_held else "; something else is wrong too"
        said.append(
            f"seed {proof.seed + found.target.case.seed}: RMS error {scientific(proof.error)}; the fitted model "
            f"leaves {scientific(proof.left)}{beside}"
        )
    return said


def of_weights(found: Measured) -> str:
    """The verdict on the weights, in a line, and the first wrong stage."""
    first = f"; first wrong stage: {found.stage}" if found.stage else ""
    return f"weights: {beyond(found)}{first}"


def beyond(found: Measured) -> str:
    """How many weights are wrong, and how far."""
    weights = found.verdict.weights.summary
    return f"{weights.outside:,} of {weights.size:,} over budget, worst error {times(found.ratio)}"


def document(found: Measured) -> dict[str, Any]:
    """The document `workbench.measure/1` of `workbench measure --json`, of plain Python values; arrays are
    `Measured.findings[i].data`.

    - `part`, `stage`: rows and heads that were read, `null`: all; the first wrong stage
    - `weights`: of P: `outside`, `size`, `over_budget`
    - `findings`, `arithmetic`: `reading`, `stage`, `text`, `wrong`, `of`; what is special in a right kernel
    - `proofs`: a run on unseen inputs each: `seed`, `error`, `left` (root mean squares), `held`, `lse_held`
    - `proved`, `calls`: whether all proofs hold; calls of the function
    """
    return {
        "schema": SCHEMA,
        "target": found.target.trace.target,
        "case": (found.target.whole or found.target).coded.case.as_dict(),
        "part": found.part or None,
        "stage": found.stage,
        "weights": {
            "outside": found.verdict.weights.summary.outside,
            "size": found.verdict.weights.summary.size,
            "over_budget": _number(found.ratio),
        },
        "findings": [
            {"reading": one.reading, "stage": one.stage, "text": one.text, "wrong": one.wrong, "of": one.of}
            for one in found.findings
        ],
        "arithmetic": [one.text for one in found.arithmetic],
        "proofs": [
            {
                "seed": one.seed,
                "error": _number(one.error),
                "left": _number(one.left),
                "held": one.held,
                "lse_held": one.lse_held,
            }
            for one in found.proofs
        ],
        "proved": found.proved,
        "calls": found.calls,
        "seconds": round(found.seconds, 3),
    }


def _number(x: float) -> float | str:
    return x if np.isfinite(x) else str(x)
