"""The kernel on codes in all its variants: its verdicts, its error against attention that nobody here wrote, and
what a run of it takes.
"""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from campaigns.spread import spread
from campaigns.tally import counted
from campaigns.timed import seconds
from workbench.bench.harness import gathered, torch_for
from workbench.case.case import Case
from workbench.case.fields import QUANTISED
from workbench.case.stages import ALGORITHMS, INPUTS
from workbench.cuda.run import choose_backend
from workbench.expectation.observed import Observed
from workbench.floats import to_float64
from workbench.foreign.run import run
from workbench.judge.codes.loss import loss
from workbench.judge.diff import Diff, diff
from workbench.judge.stage import RIGHT_VERDICTS
from workbench.machine import machine
from workbench.progress import step
from workbench.records import number
from workbench.report.command import diff_command
from workbench.trace.trace import Trace

SCHEMA = "workbench.bench-fp8/1"
KERNEL = "fp8"
#: field of a case -> its values; every combination is a variant, and one compile for each padded head_dim
VARIANTS: Mapping[str, Sequence[str]] = {
    "codes": ("simulated", "e4m3", "e5m2"),
    "scores": QUANTISED["scores"],
    "decode": QUANTISED["decode"],
    "probs_dtype": ("float16", "float32"),
}
#: each is run causal and full, with every scale of the quantiser
SHAPES = (
    Case(heads=4, seqlen=128),
    Case(seqlen=32),
    Case(heads=8, seqlen=512),
    Case(batch=2, heads=4, seqlen=100, head_dim=32),
)
#: the shape whose out is held against torch's; out of a causal row is an average of few values where it sees few keys
ACCURACY = Case(heads=8, seqlen=512, codes="simulated")
VISIBLE_KEYS = 64
LARGEST_ERROR = 0.02
#: the shape whose run is timed, and how long the emulator may take
TIMED = Case(heads=4, seqlen=128)
LONGEST_S = 3.0
RUN_S = 0.1  # of a run and its judgement, for the estimate alone
REPEATS = 7


def measure(
    backend: str = "auto",
    jobs: int = 1,
    *,
    variants: Mapping[str, Sequence[str]] = VARIANTS,
    shapes: Sequence[Case] = SHAPES,
    accuracy: Case = ACCURACY,
    timed: Case = TIMED,
) -> dict[str, Any]:
    """The JSON document of one run of the benchmark on `backend` (auto, emulator, cuda), its cases spread over so many
    `jobs` (processes).

    - `variants`: a row for each, over all shapes, masks and scales: `verdicts`, how many runs were called each;
      `over_budget`, `stage` and `case` of the element nearest to its budget or farthest beyond it; `not_right`, the
      runs in which a stage is not exact or rounding, or a victim. `all_variants` is the same of all, `stages` the same
      of each stage, with the `variant` of its worst element.
    - `accuracy`: largest errors of out in the default variant, full and causal, rows that see few keys apart: `max_abs`
      of all rows against torch's float64 attention on the inputs, `limit`, what it must stay below, null where nothing
      is asked; `of_quantisation` and `of_kernel`, the two parts of which it is the sum, each where it is largest;
      `peers`, how far torch's attention and ours are apart.
    - `times`: medians of `repeats` warm runs with all stages dumped and of as many judgements, in seconds.

    Unavailable without torch, and for cuda without a GPU.
    """
    torch = torch_for("the baseline, PyTorch's attention,")
    backend, found = choose_backend(backend), machine()
    chosen = [dict(zip(variants, values, strict=True)) for values in itertools.product(*variants.values())]
    cases = [[case for shape in shapes for case in _cases(shape.but(**variant))] for variant in chosen]
    every = [case for of_variant in cases for case in of_variant]
    name = f"judge {len(every)} runs of {len(chosen)} variants on {backend}"
    called = gathered(name, RUN_S * len(every) / jobs, spread(partial(_called, backend=backend), cases, jobs))
    runs = [one for of_variant in called for one in of_variant]
    with step("compare out with torch's attention"):
        accuracies = [row for causal in (False, True) for row in _accuracy(accuracy.but(causal=causal), backend)]
    with step("time warm runs"):
        times = _times(timed, backend)
    document = {
        "schema": SCHEMA,
        "backend": backend,
        "versions": {**run(KERNEL, timed, backend=backend).versions, "torch": torch.__version__},
        "machine": found,
        "variants": [variant | _together(own) for variant, own in zip(chosen, called, strict=True)],
        "all_variants": _together(runs),
        "stages": _stages(runs),
        "accuracy": accuracies,
        "times": times,
    }
    return number(document)


def tables(results: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """The document as tables for a screen: rows of equal columns."""
    fields = [name for name in results["variants"][0] if name in VARIANTS]
    total = dict.fromkeys(fields, "all") | results["all_variants"]
    variants = [_cells(row, fields, ("stage", "case")) for row in (*results["variants"], total)]
    stages = [_cells(row, ("stage",), ("variant", "case")) for row in results["stages"]]
    wrong = [{"not right": line} for line in total["not_right"]]
    return [variants, stages, *([wrong] if wrong else []), results["accuracy"], [results["times"]]]


def _cells(row: Mapping[str, Any], first: Sequence[str], last: Sequence[str]) -> dict[str, Any]:
    """A row of verdicts as one of a table: what it is about, the verdicts, the worst element and where it is."""
    worst = {"x of budget": row["over_budget"], **{f"worst {name}": row[name] for name in last}}
    return {name: row[name] for name in (*first, "runs")} | counted(row["verdicts"]) | worst


def _cases(shape: Case) -> list[Case]:
    """The shape causal and full, with every scale of the quantiser."""
    scales = QUANTISED["quantiser_scale"]
    return [shape.but(causal=causal, quantiser_scale=scale) for causal in (False, True) for scale in scales]


@dataclass(frozen=True)
class Called:
    """What one run was called; plain data, which crosses between processes."""

    verdict: str
    stages: tuple[tuple[str, str, float], ...]  #: name, verdict, and x of budget of the worst element
    victims: tuple[str, ...]
    case: Case
    command: str  #: that judges the same run again

    @classmethod
    def of(cls, judged: Diff) -> "Called":
        """What `judged` was called."""
        stages = tuple(
            (stage.name, stage.verdict, max((element.over_budget for element in stage.worst()), default=0.0))
            for stage in judged
        )
        return cls(judged.verdict, stages, judged.victims, judged.trace.case, diff_command(judged))

    @property
    def over_budget(self) -> float:
        """Of the worst element of all stages."""
        return max(over_budget for _, _, over_budget in self.stages)

    @property
    def not_right(self) -> str:
        """The stages that are not exact or rounding, and victims, and the run; "" where there are none."""
        stages = [f"{name} {verdict}" for name, verdict, _ in self.stages if verdict not in RIGHT_VERDICTS]
        wrong = [*stages, *(f"{name} victim" for name in self.victims)]
        return f"{', '.join(wrong)}: {self.command}" if wrong else ""


def _called(cases: Sequence[Case], *, backend: str) -> list[Called]:
    """What the runs of a variant were called."""
    return [Called.of(diff(run(KERNEL, case, backend=backend))) for case in cases]


def _together(runs: Sequence[Called]) -> dict[str, Any]:
    """What is said of several runs: verdicts counted, the worst element, and what is not right."""
    worst = max(runs, key=lambda one: one.over_budget)
    return {
        "runs": len(runs),
        "verdicts": dict(Counter(one.verdict for one in runs)),
        "over_budget": worst.over_budget,
        "stage": next(name for name, _, over_budget in worst.stages if over_budget == worst.over_budget),
        "case": _said(worst.case),
        "not_right": [one.not_right for one in runs if one.not_right],
    }


def _stages(runs: Sequence[Called]) -> list[dict[str, Any]]:
    """Rows of `stages`."""
    found: dict[str, list[tuple[str, float, Case]]] = {}
    for one in runs:
        for name, verdict, over_budget in one.stages:
            found.setdefault(name, []).append((verdict, over_budget, one.case))
    rows = []
    for name in (name for name in ALGORITHMS[KERNEL] if name in found):
        _, over_budget, case = max(found[name], key=lambda judged: judged[1])
        verdicts = dict(Counter(verdict for verdict, _, _ in found[name]))
        rows.append(
            {"stage": name, "runs": len(found[name]), "verdicts": verdicts, "over_budget": over_budget}
            | {"variant": " ".join(str(getattr(case, field)) for field in VARIANTS), "case": _said(case)}
        )
    return rows


def _said(case: Case) -> str:
    """What a run adds to its variant."""
    return f"{_shape(case)} {'causal' if case.causal else 'full'} {case.quantiser_scale}"


def _shape(case: Case) -> str:
    return f"{case.batch}x{case.heads}x{case.seqlen_k}x{case.head_dim}"


def _accuracy(case: Case, backend: str) -> list[dict[str, Any]]:
    """Rows of `accuracy` of a case, causal or not, as long in queries as in keys."""
    trace = run(KERNEL, case, probes="output", backend=backend)
    lost, peer = loss(Observed(trace)), _torch_attention(trace)
    error = to_float64(trace.stages["out"]) - peer
    visible = case.mask().sum(axis=1)
    rows: list[tuple[str, np.ndarray, float | None]]
    rows = [(f"{VISIBLE_KEYS} visible keys or more", visible >= VISIBLE_KEYS, LARGEST_ERROR)]
    if np.any(visible < VISIBLE_KEYS):
        rows.append((f"fewer than {VISIBLE_KEYS}", visible < VISIBLE_KEYS, None))
    return [
        {
            "mask": "causal" if case.causal else "full",
            "queries": f"with {words}",
            "count": int(chosen.sum()),
            "max_abs": _largest(error[:, :, chosen]),
            "limit": limit,
            "of_quantisation": _largest(lost.of_out[:, :, chosen]),
            "of_kernel": _largest(lost.of_kernel[:, :, chosen]),
            "peers": _largest((error - lost.together)[:, :, chosen]),
        }
        for words, chosen, limit in rows
    ]


def _torch_attention(trace: Trace) -> np.ndarray:
    """Torch's attention in float64 on q, k and v as they were before they were quantised, on the CPU."""
    import torch

    q, k, v = (torch.from_numpy(to_float64(trace.inputs[name])) for name in INPUTS)
    case = trace.case
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=case.scale, is_causal=case.causal)
    return out.numpy()


def _largest(error: np.ndarray) -> float:
    return float(np.abs(error).max())


def _times(case: Case, backend: str) -> dict[str, Any]:
    """The row `times`."""
    trace = run(KERNEL, case, backend=backend)  # compiles, or reads the cache
    return {
        "case": _shape(case),
        "repeats": REPEATS,
        "run_s": median(seconds(partial(run, KERNEL, case, backend=backend), REPEATS)),
        "limit_s": LONGEST_S,
        "judge_s": median(seconds(partial(diff, trace), REPEATS)),
    }
