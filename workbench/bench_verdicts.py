"""How far verdicts can be trusted: random correct cases, in which nothing is wrong, and every fault on random cases.

Beside the verdicts stand what the usual rules (`rules`) say of the same outputs.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from workbench import rules
from workbench.case import DISTRIBUTIONS, Case
from workbench.catalogue import CATALOGUE
from workbench.cuda.kernels import KERNELS
from workbench.faults import Fault
from workbench.judge import SEVERITY, Diff, diff
from workbench.progress import Tick, step
from workbench.refusal import Refusal
from workbench.stages import ALGORITHMS, PROBE_SETS
from workbench.target import run
from workbench.trace import Trace

SCHEMA = "workbench.bench-verdicts/1"
#: block_q, block_k, smallest and largest head_dim, dtype: few, since each is one compile for every kernel function
BUILDS = (
    (16, 16, 1, 32, "float32"),
    (32, 16, 1, 32, "bfloat16"),
    (64, 64, 33, 64, "float32"),
    (64, 64, 33, 64, "float16"),
    (32, 32, 65, 128, "float32"),
)
#: the build of every fault, with the dtype that it needs
FAULT_BUILD = {"block_q": 32, "block_k": 32, "head_dim": 32}
#: (seqlen_q, seqlen_k) and head_dim for attention that nobody here wrote
FOREIGN_LENGTHS = ((113, 203), (128, 217), (113, 211), (108, 256), (256, 512), (1, 239), (1023, 1024))
FOREIGN_DIMS = (32, 64, 96, 128, 256)
#: the kernels on floats: those on codes take no dtype, and have variants of their own
KERNELS_MEASURED = tuple(kernel.name for kernel in KERNELS.values() if not kernel.quantised)
RULES = ("assert_close", "atol 1e-2", "FlashAttention 2x")
# seconds of a case and of a cold build, measured on 2 cores, for estimates only
CASE_S, FAULT_CASE_S, BUILD_S, FOREIGN_S = 0.06, 0.05, 5.0, 0.4


@dataclass
class Tally:
    """Counts over runs."""

    runs: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    fails: Counter[str] = field(default_factory=Counter)  #: rule -> runs that it fails
    wrong: list[str] = field(default_factory=list)  #: cases of correct runs that were called wrong

    def add(self, judged: Diff, expected: np.ndarray) -> None:
        """Count one run; `expected` is out in float64, before any cast."""
        self.runs += 1
        self.verdicts[judged.verdict] += 1
        self.fails.update(rule.name for rule in rules.usual(judged.trace, expected) if not rule.passes)
        if judged.verdict not in ("exact", "rounding"):
            self.wrong.append(f"{judged.trace.target}: {judged.verdict} at {judged.origins}: {judged.trace.case}")

    def document(self) -> dict[str, Any]:
        """The counts as plain values."""
        return {
            "runs": self.runs,
            "verdicts": dict(self.verdicts),
            "rules": {name: self.fails[name] for name in RULES},
            "wrong": self.wrong,
        }


def measure(correct: int = 2000, per_fault: int = 20, seed: int = 0) -> dict[str, Any]:
    """The JSON document of one campaign on the emulator.

    `correct`: counts over that many random cases of correct kernels, both in turn. `faults`: a row for each fault with
    `stages`: of `per_fault` runs, `effective` (out or lse differ in a bit from the correct kernel's) and of these, with
    a full and a lean dump, `bug` and `origin` (the first origin is the faulty stage, or with a lean dump the first
    dumped stage at or after it), and how many each usual rule fails.
    """
    tally = Tally()
    random = np.random.default_rng(seed)
    with step(f"judge {correct} correct runs", CASE_S * correct + BUILD_S * 1.5 * len(BUILDS)) as tick:
        for i, name in zip(range(correct), itertools.cycle(KERNELS_MEASURED), strict=False):
            judged = diff(run(name, _draw(random, name), backend="emulator"))
            tally.add(judged, _expected_out(judged))
            tick(f"{i + 1} done, {len(tally.wrong)} called wrong")
    faults = [fault for fault in CATALOGUE.values() if fault.stages and fault.kernel in KERNELS_MEASURED]
    estimate = (FAULT_CASE_S * per_fault + BUILD_S) * len(faults)
    with step(f"judge {per_fault} runs of each of {len(faults)} faults", estimate) as tick:
        rows = [_fault_row(fault, per_fault, np.random.default_rng(seed), tick) for fault in faults]
    sums = {key: sum(row[key] for row in rows) for key in ("runs", "effective")}
    for dump in ("full", "lean"):
        sums[dump] = {key: sum(row[dump][key] for row in rows) for key in ("bug", "origin")}
    sums["rules"] = {name: sum(row["rules"][name] for row in rows) for name in RULES}
    return {"schema": SCHEMA, "seed": seed, "correct": tally.document(), "faults": rows, "all_faults": sums}


def tables(results: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The document as tables for a screen: rows of equal columns."""
    if "foreign" in results:
        return [[_counts(name, tally) for name, tally in results["foreign"].items()]]
    faults = [
        {
            "fault": row.get("fault", "all"),
            "runs": row["runs"],
            "effective": row["effective"],
            **{f"{dump} {key}": row[dump][key] for dump in ("full", "lean") for key in ("bug", "origin")},
            **{f"{name} fails": row["rules"][name] for name in RULES},
        }
        for row in (*results["faults"], results["all_faults"])
    ]
    return [[_counts("correct kernels", results["correct"])], faults]


def _counts(name: str, tally: dict[str, Any]) -> dict[str, Any]:
    verdicts = {verdict: tally["verdicts"].get(verdict, 0) for verdict in SEVERITY}
    return {"of": name, "runs": tally["runs"], **verdicts, **{f"{n} fails": tally["rules"][n] for n in RULES}}


def _draw(random: np.random.Generator, kernel: str) -> Case:
    """A case of any shape, distribution, mask and scale, on one of BUILDS."""
    block_q, block_k, low, high, dtype = BUILDS[random.integers(len(BUILDS))]
    kv_heads = int(random.integers(1, 3))
    options: dict[str, Any] = {
        "batch": int(random.integers(1, 3)),
        "heads": kv_heads * int(random.integers(1, 4)),
        "kv_heads": kv_heads,
        "seqlen_q": int(random.integers(1, 100)),
        "seqlen_k": int(random.integers(1, 150)),
        "head_dim": int(random.integers(low, high + 1)),
        "dtype": dtype,
        "causal": bool(random.integers(2)),
        "causal_alignment": str(random.choice(["bottom-right", "top-left"])),
        "splits": int(random.integers(1, 6)) if KERNELS[kernel].splits else None,
        "block_q": block_q,
        "block_k": block_k,
        "seed": int(random.integers(2**32)),
        "distribution": str(random.choice(sorted(DISTRIBUTIONS))),
    }
    return _case(options)


def _case(options: dict[str, Any]) -> Case:
    """The case; with normal inputs where index-coded ones want a larger head_dim."""
    try:
        return Case(**options)
    except Refusal:
        return Case(**options | {"distribution": "normal"})


def _expected_out(judged: Diff) -> np.ndarray:
    """Out from q, k and v in float64."""
    comparison = judged["out"].propagated or judged["out"].isolated
    assert comparison is not None
    return comparison.expected


def _fault_row(fault: Fault, runs: int, random: np.random.Generator, tick: Tick) -> dict[str, Any]:
    row: dict[str, Any] = {"fault": fault.id, "kernel": fault.kernel, "runs": 0, "effective": 0}
    row |= {"full": {"bug": 0, "origin": 0}, "lean": {"bug": 0, "origin": 0}, "rules": dict.fromkeys(RULES, 0)}
    for _ in range(runs):
        tick(fault.id)
        case = _fault_case(fault, random)
        faulty = run(fault.kernel, case, faults=[fault.id], backend="emulator")
        sound = run(fault.kernel, case, probes="output", backend="emulator")
        row["runs"] += 1
        if all(faulty.stages[name].tobytes() == sound.stages[name].tobytes() for name in ("out", "lse")):
            continue
        row["effective"] += 1
        full = diff(faulty)
        for rule in rules.usual(faulty, _expected_out(full)):
            row["rules"][rule.name] += not rule.passes
        for dump, judged in (("full", full), ("lean", diff(lean(faulty)))):
            row[dump]["bug"] += judged.verdict in ("bug", "missing")
            row[dump]["origin"] += judged.origin in _origins(fault, dump)
    return row


def _fault_case(fault: Fault, random: np.random.Generator) -> Case:
    """A case in which the fault can show: several tiles, and rows without keys where it is about those."""
    length = int(random.integers(65, 129))
    options: dict[str, Any] = {
        **FAULT_BUILD,
        "heads": int(random.integers(1, 4)),
        "seqlen_q": length,
        "seqlen_k": length - int(random.integers(1, 33)) if fault.id == "flash-no-masked-tile-guard" else length,
        "causal": bool(random.integers(2)) or "causal" in fault.needs,
        "splits": int(random.integers(2, 5)) if KERNELS[fault.kernel].splits else None,
        "seed": int(random.integers(2**32)),
        "distribution": str(random.choice(["normal", "uniform", "outlier-channels", "peaked"])),
    }
    return _case(options | dict(fault.needs))


def lean(trace: Trace) -> Trace:
    """The trace as a run with the lean probes would have left it."""
    kept = tuple(name for name in trace.requested if name in PROBE_SETS["lean"])
    return replace(trace, stages={name: trace.stages[name] for name in kept}, requested=kept)


def _origins(fault: Fault, dump: str) -> Sequence[str]:
    """Where a fault may first show: at its stages, or with a lean dump at the first dumped stages that read them."""
    if dump == "full":
        return fault.stages
    stages = ALGORITHMS[KERNELS[fault.kernel].algorithm]
    found: list[str] = []
    reached = [name for name in fault.stages if name not in PROBE_SETS["lean"]]
    found += [name for name in fault.stages if name in PROBE_SETS["lean"]]
    while reached:
        hidden = reached.pop()
        for name, stage in stages.items():
            if hidden in stage.reads and name != hidden:
                (found if name in PROBE_SETS["lean"] else reached).append(name)
    return found


def measure_foreign(lengths: Sequence[tuple[int, int]] = FOREIGN_LENGTHS) -> dict[str, Any]:
    """The JSON document of PyTorch's own attention judged as a kernel of unknown contract: counts for each backend.

    Needs torch; on a CPU its math and flash backends.
    """
    kinds = list(_sdpa())
    cases = [
        Case(seqlen_q=q, seqlen_k=k, head_dim=d, dtype=dtype, causal=causal, causal_alignment="top-left", heads=2)
        for (q, k), d, dtype, causal in itertools.product(
            lengths, FOREIGN_DIMS, ("float32", "float16", "bfloat16"), (False, True)
        )
    ]
    rows = {}
    with step(f"judge {len(cases) * len(kinds)} runs of PyTorch", FOREIGN_S * len(cases) * len(kinds)) as tick:
        for name, function in kinds:
            tally = Tally()
            for i, case in enumerate(cases):
                judged = diff(run(function, case, arrays="torch"))
                tally.add(judged, _expected_out(judged))
                tick(f"{name}: {i + 1} of {len(cases)}")
            rows[name] = tally.document()
    return {"schema": SCHEMA, "foreign": rows}


def _sdpa() -> Iterator[tuple[str, Any]]:
    """Backends of PyTorch's scaled_dot_product_attention on a CPU, as functions under test."""
    try:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:
        raise Refusal("PyTorch's attention is not installed; pip install torch") from None

    def of(backend: Any) -> Any:
        def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale, is_causal=causal)

        return attention

    yield "math", of(SDPBackend.MATH)
    yield "flash", of(SDPBackend.FLASH_ATTENTION)
