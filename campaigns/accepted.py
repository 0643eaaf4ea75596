"""Functions that cheat, and right ones, held to `workbench accept`; beside it what three public checks say of them."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from campaigns.cheats import CHEATS, DEVICE, RIGHT, UNSEEN, Cheat
from campaigns.cheats.unseen import witnessed
from campaigns.spread import spread
from campaigns.styles import CORRECT, Style
from workbench.bench.harness import gathered
from workbench.case.case import Case
from workbench.case.contract import FAST_EXP_ULPS
from workbench.explore.acceptance.families import FAMILIES
from workbench.explore.acceptance.file import of_plain
from workbench.explore.acceptance.run import FAIL, PASS, Acceptance, accept
from workbench.explore.acceptance.spec import Spec
from workbench.floats import DTYPES, to_float64
from workbench.foreign.run import run
from workbench.judge.diff import Diff, diff
from workbench.judge.table import run_row
from workbench.judge.usual_rules import flash_attention, plain_attention
from workbench.reference import dense
from workbench.refusal import Refusal

SCHEMA = "workbench.campaign-accept/1"
#: the twelve plain ones, and those that nobody looked at before they were run
ALL = [*CHEATS, *UNSEEN]
#: how much of its contract a style's spec says, and right functions of each style for each of them
LEVELS = ("full", "silent")
#: trials of a public check, each on other inputs: KernelBench's
TRIALS = 5
#: of public checks, where a spec lists no shape: within the default spec
SHAPE: Mapping[str, int] = {"heads": 4, "seqlen": 256, "head_dim": 64}
#: what some styles need not stand: scores of thousands, which their mask or their bound is not made for
FAR = ("large", "outliers", "hot", "cold", "louder")
#: and those of which the largest score is far below a bound on all of them
NARROW = ("exact", "ties", "needle")
#: cheats that a right verdict passes, and why: their truths stand as they were written
ALLOWED: Mapping[str, str] = {
    "t_float64_out": "its numbers are right; only the dtype is float64",
    "float16_scores": "a spec that does not constrain scores allows 16-bit scores",
    "float16_products_overflow": "the same; a case in which a kernel may overflow is not judged",
}


def measure(
    right: int = 40,
    seconds: float = 10.0,
    seed: int = 0,
    jobs: int = 1,
    names: tuple[str, ...] = (),
    device: str | None = None,
) -> dict[str, Any]:
    """The JSON document of one campaign; with a `device`, of functions of torch tensors there.

    `cheats`: a row for each cheat, its `verdict`, the `kind` and the `family` of the first failing case, `cases` and
    `seconds` before it, `shown`, x of budget on the case that shows it or that failed, and whether three public checks
    pass it. `right`: a row for each of so many random right styles, of `seed`, with what its spec says. Seeds of cases
    are the operating system's, so that no two campaigns judge the same ones.
    """

    def named(of: Sequence[Any]) -> list[int]:
        runs = (one for one in enumerate(of) if device in (None, "cuda") or not one[1].needs_gpu)
        return [i for i, one in runs if not names or one.name in names]

    cheats = named(ALL if device is None else DEVICE)
    rights: Sequence[Any]
    judge: Callable[..., dict[str, Any]]
    if device is not None:
        rights, judge = named(RIGHT), partial(_right_there, seconds=seconds, device=device)
    else:
        rights, judge = [] if names else _styles(right, seed), partial(_right, seconds=seconds)
    wrong = gathered(
        f"judge {len(cheats)} cheats", 2.0 * len(cheats) / jobs,
        spread(partial(_cheat, seconds=seconds, device=device), cheats, jobs),
    )  # fmt: skip
    found = gathered(
        f"judge {len(rights)} right functions", (seconds + 1) * len(rights) / jobs, spread(judge, rights, jobs)
    )
    return {"schema": SCHEMA, "device": device, "cheats": wrong, "right": found}


def _styles(count: int, seed: int) -> list[tuple[int, str, int]]:
    """So many random styles: their places in CORRECT, what their specs say, and a number that chooses the dtype."""
    chosen = np.random.default_rng(seed)
    places = [int(i) for _ in range(-(-count // len(CORRECT))) for i in chosen.permutation(len(CORRECT))][:count]
    return [(i, LEVELS[int(chosen.integers(len(LEVELS)))], int(chosen.integers(99))) for i in places]


def tables(results: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The document as tables for a screen: rows of equal columns."""
    cheats, right = results["cheats"], results["right"]
    summary = [
        {
            "functions": kind, "count": len(rows), "accepted": sum(row["verdict"] == PASS for row in rows),
            "rejected": sum(row["verdict"] == FAIL for row in rows),
            "most seconds": max((row["seconds"] for row in rows), default=0.0),
            "least cases": min((row["cases"] for row in rows if row["verdict"] == PASS), default=0),
            **{f"{name} accepts": sum(row[name] is True for row in rows) for name in CHECKS},
        }
        for kind, rows in (("cheats", cheats), ("right", right)) if rows
    ]  # fmt: skip
    failed = [
        {"right": row["name"], "level": row["level"], "why": row["why"]} for row in right if row["verdict"] == FAIL
    ]
    shown = ("name", "verdict", "kind", "family", "cases", "seconds", "shown", *CHECKS)
    return [table for table in (summary, [{key: row[key] for key in shown} for row in cheats], failed) if table]


def wrong(results: dict[str, Any]) -> bool:
    """Whether a cheat passed that is not ALLOWED, or a right function was rejected."""
    cheats = any(row["verdict"] != FAIL and row["name"] not in ALLOWED for row in results["cheats"])
    return cheats or any(row["verdict"] == FAIL for row in results["right"])


def _cheat(index: int, *, seconds: float, device: str | None = None) -> dict[str, Any]:
    one = ALL[index] if device is None else DEVICE[index]
    spec = of_plain({**one.spec, **({} if device is None else {"device": device})}, one.name)
    with tempfile.TemporaryDirectory(prefix="workbench-") as folder, chdir(folder):  # t_writes writes where it is
        row = _row(accept(one.target, spec, seconds=seconds))
    # one that tampers is called in the process of `accept` only, never in this one
    shown = None if one.tampers else _shown(one, spec)
    return {
        **row,
        "name": one.name,
        # a witness of one call shows little of what keeps things between calls: the case that failed shows it
        "shown": None if shown is None else max(shown, row["failing"] or 0.0),
        **(dict.fromkeys(CHECKS) if one.tampers else _public(one.target, spec)),
    }


def _right(chosen: tuple[int, str, int], *, seconds: float) -> dict[str, Any]:
    index, level, dice = chosen
    style = CORRECT[index]
    dtype = style.dtypes[dice % len(style.dtypes)]
    if _coarse(style.contract(*(np.zeros((1, 1, 64, 64), DTYPES[dtype]),) * 2, "full"), dtype):
        level = "full"
    small = style.fits.__name__ == "small_inputs"
    drawn = {"dtype": dtype} | ({"distribution": "normal"} if small else {})
    without = (*FAR, *NARROW) if small else FAR if style.group == "additive-mask" else ()
    spec = Spec(case=drawn, contract=_contract(style, dtype, level) or None, without=without)
    with tempfile.TemporaryDirectory(prefix="workbench-") as folder:
        path = Path(folder, "style.py")
        path.write_text(_STYLE.format(index=index))
        target = f"{path}:attention"
        row = _row(accept(target, spec, seconds=seconds))
        return {**row, "name": style.name, "level": level, "dtype": dtype, **_public(target, spec)}


def _right_there(index: int, *, seconds: float, device: str) -> dict[str, Any]:
    one = RIGHT[index]
    spec = of_plain({**one.spec, "device": device}, one.name)
    row = _row(accept(one.target, spec, seconds=seconds))
    return {**row, "name": one.name, "level": "silent", "dtype": spec.case["dtype"], **_public(one.target, spec)}


def _coarse(contract: Mapping[str, Any], dtype: str) -> bool:
    """Whether a kernel is right only where its spec says how coarse its arithmetic is: a silent one allows probs no
    fewer bits than inputs have, q, sums and partial results none less than float32's, TF32 nowhere, and of exp what a
    GPU's has.
    """
    eps = {name: float(ml_dtypes.finfo(one).eps) for name, one in DTYPES.items()}
    probs = contract.get("probs_dtype", dtype)
    return (
        contract.get("input_precision", "ieee") != "ieee"
        or eps.get(probs, 1.0) > eps[dtype]
        or contract.get("accumulator_dtype", "float32") != "float32"
        or contract.get("scaled_q_dtype", "float32") != "float32"
        or contract.get("partials_dtype", "float32") != "float32"
        or contract.get("exp_ulps", 0.0) > 10 * FAST_EXP_ULPS
    )


_STYLE = """from campaigns.styles import CORRECT


def attention(q, k, v, *, scale, causal):
    stages = CORRECT[{index}].function(q, k, v, scale=scale, causal=causal)
    return stages["out"], stages["lse"]
"""


def _contract(style: Style, dtype: str, level: str) -> dict[str, Any]:
    """What a style says of itself on inputs of any length: what does not depend on these."""
    short, long = (np.zeros((1, 1, n, 64), DTYPES[dtype]) for n in (3, 200))
    fields, others = (style.contract(x, x, level) for x in (short, long))
    return {name: x for name, x in fields.items() if others.get(name) == x}


def _row(found: Acceptance) -> dict[str, Any]:
    failure = found.failure
    judged = None if failure is None or not isinstance(failure.judged, Diff) else failure.judged
    return {
        "verdict": found.verdict, "cases": found.cases, "seconds": round(found.seconds, 2),
        "kind": "" if failure is None else failure.kind, "family": "" if failure is None else failure.problem.family,
        "failing": None if judged is None else run_row(judged).over_budget,
        "why": "" if failure is None else str(found), "untestable": sum(found.untestable.values()),
        "over_budget": found.worst,
    }  # fmt: skip


def _shown(one: Cheat, spec: Spec) -> float | None:
    """x of budget in the last case that shows a cheat; None where nothing of it is a number, or no case has it."""
    if one.witness is not None:
        return run_row(diff(witnessed(one, spec.device))).over_budget
    found = None
    for options in one.shows:
        if "family" in options:
            made = FAMILIES[options["family"]](spec, np.random.default_rng(options["seed"]))
            judged = diff(run(one.target, made.case, inputs=made.arrays))
        else:
            judged = diff(run(one.target, Case(**options)))
        found = run_row(judged).over_budget
    return found


def _public(target: str, spec: Spec) -> dict[str, bool | None]:
    """What three public checks say, each on TRIALS inputs of one shape of the spec; None where the function raises."""
    found: dict[str, bool | None] = {}
    random = np.random.default_rng(0)
    fixed = {name: x for name, x in SHAPE.items() if spec.takes(name, x) or name in ("heads", "seqlen")}
    case = spec.draw(random, distribution="normal", **(spec.shapes[0] if spec.shapes else fixed))
    for name, check in CHECKS.items():
        try:
            found[name] = all(check(target, case.but(seed=trial), spec) for trial in range(TRIALS))
        except Refusal:
            found[name] = None
    return found


def _called(target: str, case: Case, spec: Spec, inputs: tuple[np.ndarray, ...]) -> tuple[np.ndarray, np.ndarray]:
    """out, and what float64 makes of the inputs."""
    trace = run(target, case, inputs=inputs, arrays=spec.arrays, device=spec.device, layout=spec.layout)
    q, k, v = map(to_float64, inputs)
    expected = dense.attention(q, k, v, scale=case.scale, softcap=case.softcap, mask=case.mask())["out"]
    return trace.stages["out"], expected


def _kernel_bench(target: str, case: Case, spec: Spec) -> bool:
    """KernelBench, level 1, 16 bits: inputs of torch.rand, allclose with atol = rtol = 1e-2."""
    random = np.random.default_rng(case.seed)
    q, k, v = (random.random(x.shape, np.float32).astype(x.dtype) for x in case.inputs())
    out, expected = _called(target, case, spec, (q, k, v))
    return bool(np.all(np.abs(to_float64(out) - expected) <= 1e-2 + 1e-2 * np.abs(expected)))


def _gpu_mode(target: str, case: Case, spec: Spec) -> bool:
    """The attention tasks of GPU MODE: inputs of torch.randn, atol = rtol = 0.1, of which 5 % may miss."""
    out, expected = _called(target, case, spec, case.inputs())
    return bool(np.mean(~(np.abs(to_float64(out) - expected) <= 0.1 + 0.1 * np.abs(expected))) <= 0.05)


def _flash_attention(target: str, case: Case, spec: Spec) -> bool:
    """The tests of FlashAttention: the largest error at most twice that of attention in the dtype of the inputs."""
    inputs = case.inputs()
    out, expected = _called(target, case, spec, inputs)
    numbers: dict[str, Any] = {**case.numbers}
    plain = plain_attention(*inputs, **numbers, mask=case.mask())
    error, of_plain_, shifted = flash_attention(out, expected, plain)
    return bool(error <= 2 * of_plain_ + 2 * shifted)


CHECKS = {"KernelBench": _kernel_bench, "GPU MODE": _gpu_mode, "FlashAttention 2x": _flash_attention}
