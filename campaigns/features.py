"""Whether correct kernels with everything that attention has today are ever called wrong: kernels of ours, on the
emulator or a GPU, and PyTorch's attention, on random cases of each feature. Memory where a kernel may not look is
poisoned.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from campaigns.spread import spread
from workbench.bench.harness import gathered
from workbench.case.given import RunOptions
from workbench.cuda.kernels import KERNELS
from workbench.explore.features import FEATURES
from workbench.explore.sample import sample
from workbench.foreign.run import run
from workbench.judge.diff import SEVERITY, diff
from workbench.refusal import Raised, Refusal

SCHEMA = "workbench.bench-features/1"
#: what is run where nobody says: kernels of ours on floats, and PyTorch's functions
TARGETS = ("flash", "split_k", "torch:scaled_dot_product_attention", "torch:flex_attention")
#: features of how kernels of ours cut a case, which no function is told
OURS = ("pack_gqa",)
#: device -> the backend of kernels of ours
BACKENDS = {"cpu": "emulator", "cuda": "cuda"}
#: draws of a feature that a function may refuse before as many as are wanted are given up: it does not take it
TRIES = 4
# seconds of a case, measured on 2 cores, for an estimate only
CASE_S = 0.3


def measure(
    cases: int = 200,
    targets: Sequence[str] = TARGETS,
    features: Sequence[str] = (*FEATURES,),
    device: str = "cpu",
    seed: int = 0,
    jobs: int = 1,
) -> dict[str, Any]:
    """The JSON document of one campaign, the same for any number of `jobs` (processes).

    `features`: a row for each target and feature, of `cases` random cases: how many were called each verdict, and how
    many the target `refused`, which are drawn anew up to TRIES times; a feature that it never takes has no row.
    `wrong`: what was called a bug, with its case. `device`: cpu, where kernels of ours run on the emulator, or cuda.
    """
    if unknown := [name for name in features if name not in FEATURES]:
        raise Refusal(f"features are {', '.join(FEATURES)}; got {unknown[0]!r}")
    if device not in BACKENDS:
        raise Refusal(f"device is cpu or cuda; got {device!r}")
    asked = [(target, name) for target in targets for name in features if target in KERNELS or name not in OURS]
    runs = [(target, name, device, seed, i) for target, name in asked for i in range(cases)]
    done = gathered(f"judge {len(runs)} runs", CASE_S * len(runs) / jobs, spread(_judged, runs, jobs), _said)
    found: dict[tuple[str, str], Counter[str]] = {}
    for row in done:
        counts = found.setdefault((row["target"], row["feature"]), Counter(refused=0))
        counts.update({"refused": row["refused"]} | ({row["verdict"]: 1} if row["verdict"] else {}))
    rows = [
        {"target": target, "feature": name, "runs": sum(counts.values()) - counts["refused"], **counts}
        for (target, name), counts in found.items()
        if sum(counts.values()) > counts["refused"]
    ]
    order = ("target", "feature", "runs", *[x for x in SEVERITY if any(x in row for row in rows)], "refused")
    return {
        "schema": SCHEMA,
        "seed": seed,
        "features": [{name: row.get(name, 0) for name in order} for row in rows],
        "wrong": [row["said"] for row in done if row["said"]],
    }


def tables(results: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The document as tables for a screen: rows of equal columns."""
    return [results["features"]]


def _said(done: list[dict[str, Any]]) -> str:
    return f", {sum(bool(row['said']) for row in done)} judged wrong"


def _judged(asked: tuple[str, str, str, int, int]) -> dict[str, Any]:
    """The verdict of one random case of a feature; none where the target refuses all that are drawn."""
    target, feature, device, seed, i = asked
    random = np.random.default_rng([seed, i, *feature.encode()])
    ours, refused = target in KERNELS, 0
    options: RunOptions = {"backend": BACKENDS[device]} if ours else {"arrays": "torch", "device": device}
    found: dict[str, Any] = {"target": target, "feature": feature, "verdict": "", "said": ""}
    for _ in range(TRIES):
        case = sample(random, target if ours else None, feature=feature)
        try:
            judged = diff(run(target, case, **options))
        except Raised as raised:  # it took the case, and failed
            return found | {"verdict": "bug", "refused": refused, "said": f"{target} on {case}: {raised}"}
        except Refusal:
            refused += 1
            continue
        wrong = judged.verdict in ("bug", "missing")
        said = f"{target}: {judged.verdict} at {judged.origin} on {case}" if wrong else ""
        return found | {"verdict": judged.verdict, "refused": refused, "said": said}
    return found | {"refused": refused}
