"""Whether an assertion on a right kernel ever fails: PyTorch's attention on random cases, through `assert_attention`
and, of the same runs, through `torch.testing.assert_close` with its defaults; and whether it is exact on exact inputs.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from campaigns.foreign import BACKENDS, sdpa
from campaigns.spread import spread
from workbench.arrays import handed_over
from workbench.bench.harness import gathered, torch_for
from workbench.case.case import Case
from workbench.case.distributions import EXACT
from workbench.case.stages import INPUTS
from workbench.explore.draw import Among, Between
from workbench.explore.sample import sample
from workbench.floats import round_to, to_float64
from workbench.foreign.run import run
from workbench.reference import dense
from workbench.testing.attention import AttentionError, assert_attention
from workbench.trace.trace import Trace

SCHEMA = "workbench.bench-assertions/1"
#: what torch's attention takes of a case: its causal mask begins at the first key
TAKEN: Mapping[str, Any] = {
    "causal_alignment": "top-left",
    "scale": Among((None, None, 0.125, 0.3, 1.0)),
}
#: dims that exact inputs need for the keys that are drawn
EXACT_TAKEN: Mapping[str, Any] = {**TAKEN, "distribution": Among(EXACT), "head_dim": Between(16, 128)}
# seconds of a case, measured on 2 cores, for an estimate only
CASE_S = 0.1


def measure(cases: int = 500, exact: int = 200, seed: int = 0, jobs: int = 1) -> dict[str, Any]:
    """The JSON document of one campaign on the CPU, the same for any number of `jobs` (processes).

    The contract is the preset torch-sdpa, so that scores of thousands in 16 bits can be judged.

    `checks`: for each dtype and backend of `cases` random cases, both backends in turn: how many `runs`,
    `assert_attention`: how many of them it failed, and `assert_close`: how many torch.testing.assert_close, of out and
    of attention in float64 rounded to its dtype. `failed`: what assert_attention said. `exact`: of as many cases with
    exact inputs, `runs` and those of which a bit of out was not exact (`off`), by dtype and backend. Unavailable
    without torch.
    """
    torch = torch_for("assertions on PyTorch's attention")
    random = np.random.default_rng(seed)
    runs = [(BACKENDS["cpu"][i % 2], sample(random, **TAKEN)) for i in range(cases)]
    exacts = [(BACKENDS["cpu"][i % 2], sample(random, **EXACT_TAKEN)) for i in range(exact)]
    done = gathered(f"check {cases} runs of PyTorch", CASE_S * cases / jobs, spread(_checked, runs, jobs), _said)
    of_exact = gathered(f"check {exact} runs on exact inputs", CASE_S * exact / jobs, spread(_exact, exacts, jobs))
    return {
        "schema": SCHEMA,
        "seed": seed,
        "torch": torch.__version__,
        "checks": _counted(done, ("assert_attention", "assert_close")),
        "failed": [row["said"] for row in done if row["said"]],
        "exact": _counted(of_exact, ("off",)),
    }


def tables(results: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The document as tables for a screen: rows of equal columns."""
    return [rows for rows in (results["checks"], results["exact"]) if rows]


def _said(done: list[dict[str, Any]]) -> str:
    return f", {sum(row['assert_attention'] for row in done)} failed"


def _counted(done: list[dict[str, Any]], keys: tuple[str, ...]) -> list[dict[str, Any]]:
    """A row for each dtype and backend, and one for all."""
    found: dict[tuple[str, str], Counter[str]] = {}
    for row in done:
        for of in ((row["dtype"], row["backend"]), ("all", "")):
            found.setdefault(of, Counter()).update({"runs": 1, **{key: int(row[key]) for key in keys}})
    rows = sorted(found.items(), key=lambda item: (item[0][0] == "all", item[0]))
    return [{"dtype": dtype, "backend": backend, **counts} for (dtype, backend), counts in rows]


def _checked(drawn: tuple[str, Case]) -> dict[str, Any]:
    """What both assertions say of one run."""
    backend, case = drawn
    said = ""
    try:
        trace = assert_attention(sdpa(backend), case, arrays="torch", contract="torch-sdpa").trace
    except AttentionError as error:
        trace, said = error.diff.trace, f"{error.diff.verdict} at {error.diff.origin} of {backend} on {case}"
    return {
        "dtype": case.dtype,
        "backend": backend,
        "assert_attention": bool(said),
        "assert_close": not _close(trace),
        "said": said,
    }


def _close(trace: Trace) -> bool:
    """Whether out is close to attention in float64, by torch's defaults for its dtype."""
    import torch

    out = trace.stages["out"]
    try:
        torch.testing.assert_close(*(handed_over(x, "torch", "cpu") for x in (out, _right(trace).astype(out.dtype))))
    except AssertionError:
        return False
    return True


def _exact(drawn: tuple[str, Case]) -> dict[str, Any]:
    """Whether out of one run on exact inputs differs from attention in float64 in a bit."""
    backend, case = drawn
    trace = run(sdpa(backend), case, arrays="torch")
    out = trace.stages["out"]
    right = round_to(_right(trace), out.dtype)
    return {"dtype": case.dtype, "backend": backend, "off": not (out.size and np.array_equal(to_float64(out), right))}


def _right(trace: Trace) -> np.ndarray:
    """Attention in float64, of one run."""
    q, k, v = (trace.inputs[x] for x in INPUTS)
    return dense.attention(q, k, v, scale=trace.case.scale, mask=trace.case.mask())["out"]
