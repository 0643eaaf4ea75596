"""Kernels of unknown contract: attention that nobody here wrote, in which nothing is wrong; and what not knowing costs.

PyTorch's scaled_dot_product_attention is judged with every backend that it has here. The price of the weak choices that
its unknown contract is given is measured on faults of ours, whose outputs are judged with and without their contract.
"""

import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import campaigns.faults  # noqa: F401  (the whole catalogue)
from campaigns import tally
from campaigns.known import reduced, unknown
from campaigns.spread import spread
from campaigns.tally import Called, Tally
from campaigns.verdicts import FAULTS, effective_runs, fault_rows
from workbench.bench.harness import gathered, torch_for
from workbench.case.case import Case
from workbench.cuda.faults.catalogue import CATALOGUE
from workbench.foreign.run import run
from workbench.judge.diff import diff
from workbench.judge.stage import ORIGIN_VERDICTS
from workbench.refusal import Refusal
from workbench.trace.trace import Trace

SCHEMA = "workbench.bench-foreign/1"
#: (seqlen_q, seqlen_k), those of FlashAttention's own tests among them
LENGTHS = ((113, 203), (128, 217), (113, 211), (108, 256), (256, 512), (1, 239), (1023, 1024))
DIMS = (32, 64, 96, 128, 256)
#: device -> backends of scaled_dot_product_attention, by their names in torch.nn.attention.SDPBackend
BACKENDS = {
    "cpu": ("MATH", "FLASH_ATTENTION"),
    "cuda": ("MATH", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION"),
}
#: what is known of a faulty run -> the trace as it is then judged
KNOWN: Mapping[str, Callable[[Trace], Trace]] = {
    "full dump": lambda trace: trace,
    "out and lse, contract known": partial(reduced, probes="output"),
    "out and lse, contract unknown": lambda trace: unknown(trace, ("out", "lse")),
    "out, contract unknown": lambda trace: unknown(trace, ("out",)),
}
#: what is known -> the column of those that are suspicious
DOUBTED: Mapping[str, str] = {f"{known}: suspicious": known for known in KNOWN if known.endswith("unknown")}
# seconds of a case, measured on 2 cores, for estimates only
CASE_S = 0.15


def measure(
    lengths: Sequence[tuple[int, int]] = LENGTHS, *, per_fault: int = 20, seed: int = 0, jobs: int = 1
) -> dict[str, Any]:
    """The JSON document of one campaign, on a GPU where torch finds one, by so many `jobs` (processes).

    `foreign`: for each backend counts over every length, head_dim, dtype and mask (causal is top-left, as is_causal
    means), and `refused`: reason -> cases that the backend does not take. float32 is not TF32: `float32_matmul` is
    torch's setting, highest. `lost`: of `per_fault` runs of each fault of ours on the emulator, `effective` (out or lse
    differ in a bit from the correct kernel's) and of these how many are called a bug, by what is known of them, and how
    many more are suspicious where the contract is not.

    Unavailable without torch.
    """
    torch = torch_for("PyTorch's attention")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    cases = [
        Case(seqlen_q=q, seqlen_k=k, head_dim=d, dtype=dtype, causal=causal, causal_alignment="top-left", heads=2)
        for (q, k), d, dtype, causal in itertools.product(
            lengths, DIMS, ("float32", "float16", "bfloat16"), (False, True)
        )
    ]
    runs = [(name, case) for name in BACKENDS[device] for case in cases]
    calls = spread(partial(_called, device=device), runs, jobs)
    called = gathered(f"judge {len(runs)} runs of PyTorch on {device}", CASE_S * len(runs) / jobs, calls)
    rows = fault_rows(_lost, FAULTS, "faults", per_fault, seed, jobs)
    keys = ("runs", "effective", *KNOWN, *DOUBTED)
    return {
        "schema": SCHEMA,
        "seed": seed,
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "torch": torch.__version__,
        "float32_matmul": torch.get_float32_matmul_precision(),
        "foreign": {
            name: _together(called[i * len(cases) : (i + 1) * len(cases)]) for i, name in enumerate(BACKENDS[device])
        },
        "lost": {"faults": rows, "all_faults": {key: sum(row[key] for row in rows) for key in keys}},
    }


def tables(results: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The document as tables for a screen: rows of equal columns."""
    foreign, lost = results["foreign"], results["lost"]
    rows = [tally.row(name, found) | {"refused": sum(found["refused"].values())} for name, found in foreign.items()]
    stages = [{"of": name, **row} for name, found in foreign.items() for row in tally.stage_rows(found)]
    reasons = [
        {"backend": name, "refused": cases, "reason": reason}
        for name, found in foreign.items()
        for reason, cases in found["refused"].items()
    ]
    faults = [*lost["faults"], {"fault": "all", **lost["all_faults"]}]
    return [table for table in (rows, stages, reasons, faults) if table]


def _together(runs: Sequence[Called | str]) -> dict[str, Any]:
    """What is said of the runs of a backend: counts over those that it took, and why it refused others."""
    judged = Tally.of(run for run in runs if isinstance(run, Called))
    return {**judged.document(), "refused": dict(Counter(run for run in runs if isinstance(run, str)))}


def _lost(fault_id: str, *, runs: int, seed: int) -> dict[str, Any]:
    """A row of `lost`."""
    row: dict[str, Any] = {"fault": fault_id, "runs": runs, "effective": 0, **dict.fromkeys((*KNOWN, *DOUBTED), 0)}
    for faulty in effective_runs(CATALOGUE[fault_id], runs, seed):
        row["effective"] += 1
        verdicts = {known: diff(view(faulty)).verdict for known, view in KNOWN.items()}
        for known, verdict in verdicts.items():
            row[known] += verdict in ORIGIN_VERDICTS
        for column, known in DOUBTED.items():
            row[column] += verdicts[known] == "suspicious"
    return row


def sdpa(backend: str) -> Callable[..., Any]:
    """PyTorch's scaled_dot_product_attention with one of its backends, by its name in torch.nn.attention.SDPBackend."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        with sdpa_kernel(getattr(SDPBackend, backend)):
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, scale=scale, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
            )

    attention.__name__ = backend
    return attention


def _called(drawn: tuple[str, Case], *, device: str) -> Called | str:
    """What a run of a backend was called; or why the backend refused it."""
    import torch

    backend, case = drawn
    call = sdpa(backend)
    torch.set_float32_matmul_precision("highest")  # no TF32
    refusals = []

    def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                return call(q, k, v, scale=scale, causal=causal)
            except RuntimeError as error:
                refusals.append(reason([str(warning.message) for warning in said], str(error)))
                raise

    attention.__name__ = backend
    try:
        trace = run(attention, case, arrays="torch", device=device)
    except Refusal:
        if not refusals:
            raise
        return refusals[0]
    return Called.of(diff(trace))


def reason(said: Sequence[str], error: str) -> str:
    """Why torch has no kernel for a call, without the call's own numbers: the first of the warnings that it gave which
    is about the backend that was asked for, else its error.
    """
    about = [text for text in said if "not used because" not in text and "runtime disabled" not in text]
    return (about or [error])[0].partition(" (Triggered")[0].partition(" Got ")[0].splitlines()[0]
