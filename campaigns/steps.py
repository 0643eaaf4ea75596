"""Kernels of ours beside each other on the same cases, and beside PyTorch's attention: each is judged, then timed.

So the steps from a scalar kernel to one for Hopper are compared (docs/trust/speed.md), kernels for decoding, and those
on quantised codes (docs/how-to/quantised.md).
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from workbench.bench import latency
from workbench.bench.harness import gathered
from workbench.bench.kernel import BESIDE_CODES, PEER, PERCENTILES, WRONG, spread, torch_on_gpu
from workbench.bench.latency import Call, Recorded
from workbench.case.case import Case
from workbench.case.fields import QUANTISED
from workbench.cuda.kernels import KERNELS
from workbench.cuda.plan import resolve
from workbench.floats import DTYPES
from workbench.foreign.run import run
from workbench.judge.diff import SEVERITY, Diff, diff
from workbench.machine import machine
from workbench.refusal import Raised, Refusal, Unavailable
from workbench.report.command import case_options

SCHEMA = "workbench.bench-steps/1"
#: kernels of a case of many queries, and of one of few
STEPS, DECODING = ("flash", "flash_tensor", "flash_mma", "flash_wgmma"), ("flash_mma", "split_mma")
#: backend of PyTorch's attention -> its name among torch.nn.attention.SDPBackend
PEERS = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION"}
_LONG: Mapping[str, Any] = {"batch": 2, "heads": 16, "seqlen": 4096, "dtype": "float16"}
CASES = (
    *(Case(**_LONG, head_dim=head_dim, causal=causal) for head_dim in (64, 128) for causal in (False, True)),
    *(Case(heads=8, seqlen=512, dtype="float16", causal=causal) for causal in (False, True)),
    # K and V are 268 MB, five times the L2 cache of an H100
    Case(batch=8, heads=32, kv_heads=8, seqlen_q=1, seqlen_k=8192, head_dim=128, dtype="float16"),
)
#: scores of a case beyond which out and lse alone are dumped of all of it, and every stage of ROWS queries of a head
WHOLE, ROWS = 2**24, 64
#: scores beyond which the float64 arithmetic is the GPU's
FEW = 2**22
TIMES = tuple(f"kernel_{suffix}" for suffix in PERCENTILES)
RATIOS = tuple(f"{name}_ratio" for name in PEERS)
# seconds of a case, measured on an H100 with 16 cores and builds cached, for estimates only
CASE_S = 80


def measure(kernels: Sequence[str] = (), cases: Sequence[Case] = CASES) -> dict[str, Any]:
    """The JSON document of one run of the benchmark; `kernels`: those of a case as STEPS and DECODING have them, where
    none is named.

    A row is a kernel on a case (`settled`: with its tiles and splits), or PyTorch's attention on a backend (`flash`,
    `cudnn`; `ours` false): its `verdict` and `origin`, and `refused`, which says why it is not timed (null where it
    is). Cases of many scores are judged in two runs: of all `out` and `lse`, and of every stage of a head's last
    queries.

    `kernel_us` is the median of the GPU's time for one of `launches` runs in a replayed CUDA graph, with minimum and
    percentiles, of so many `repeats`; of fewer, and in smaller graphs, where they take long. Calls of a case take
    turns, and their arrays stay where they are. `tflops` are those of both products at the pairs that the mask leaves,
    `gb_per_s` is of q, k, v and out, each counted once, and null of kernels on codes. `flash_ratio` is the time over
    that of PyTorch's flash backend: below 1 is faster. `dtype` is the case's; of PyTorch's attention beside kernels on
    codes it is float16.

    Refusal for a kernel that is none of ours; Unavailable without torch and without a GPU.
    """
    if unknown := [name for name in kernels if name not in KERNELS]:
        raise Refusal(f"steps times built-in kernels: {', '.join(KERNELS)}; got {unknown[0]!r}")
    torch = torch_on_gpu(", ".join(kernels) or "a built-in kernel", ours=True, on_gpu=True)
    timed = (_rows(kernels or (STEPS if case.seqlen_q > 1 else DECODING), case) for case in cases)
    rows = gathered(f"judge and time {len(cases)} cases", CASE_S * len(cases), timed)
    return {
        "schema": SCHEMA,
        "device": torch.cuda.get_device_name(),
        "versions": {"torch": torch.__version__},
        "machine": machine(),
        "repeats": latency.TURNS * latency.RUNS,
        "launches": latency.LAUNCHES,
        "rows": [row for of_case in rows for row in of_case],
    }


def tables(results: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """The document as tables for a screen, one for each case."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in results["rows"]:
        words = _words(row)
        cells = {words: _named(row), "verdict": row["verdict"] or "-", "kernel us": spread(row, "kernel")}
        for name in ("tflops", "gb_per_s", *RATIOS):
            cells[name.replace("_", " ")] = None if row[name] is None else float(f"{row[name]:.3g}")
        found.setdefault(words, []).append(cells)
    return [*found.values()]


def sentences(results: Mapping[str, Any]) -> list[str]:
    """What the tables leave out: what the numbers are, and each number that is missing with its reason."""
    lines = [
        f"vs {PEER} of torch {results['versions']['torch']} on {results['device']}: median (10th to 90th "
        "percentile); a ratio below 1 is faster than its backend"
    ]
    if other := {row["dtype"] for row in results["rows"] if not row["ours"] and row["dtype"] != row["case"]["dtype"]}:
        lines[0] += f"; {PEER} takes no codes and has {', '.join(other)}"
    missing = [row for row in results["rows"] if row["refused"]]
    return lines + [f"not timed: {_named(row)}: {_words(row)}: {row['refused']}" for row in missing]


def wrong(results: Mapping[str, Any]) -> bool:
    """Whether a kernel of ours was judged and then not timed."""
    return any(row["ours"] and row["verdict"] and row["refused"] for row in results["rows"])


def _rows(kernels: Sequence[str], case: Case) -> list[dict[str, Any]]:
    """A row for each kernel and for each peer."""
    pairs = case.batch * case.heads * int(case.mask().sum())
    vectors = 2 * case.heads * case.seqlen_q + 2 * case.kv_heads * case.seqlen_k
    codes = {name for name in kernels if KERNELS[name].quantised}
    beside = case.but(dtype=BESIDE_CODES) if codes else case
    rows: list[dict[str, Any]] = []
    recorded: dict[int, tuple[Recorded, Call]] = {}  # a graph keeps no memory of what it calls
    for ours, names, given in ((True, kernels, case), (False, PEERS, beside)):
        for name in names:
            row: dict[str, Any] = {"case": case.as_dict(), "name": name, "ours": ours, "dtype": given.dtype}
            row |= dict.fromkeys(("settled", "verdict", "origin", "refused", *TIMES, "tflops", "gb_per_s", *RATIOS))
            rows.append(row)
            found = _recorded(row, name, given)
            if isinstance(found, str):
                row["refused"] = found
            else:
                recorded[len(rows) - 1] = found
    for i, sample in zip(recorded, latency.replays([graph for graph, _ in recorded.values()]), strict=True):
        rows[i] |= {f"kernel_{suffix}": float(np.percentile(sample, at)) for suffix, at in PERCENTILES.items()}
        rows[i]["tflops"] = 4e-6 * pairs * case.head_dim / rows[i]["kernel_us"]
        if not (rows[i]["ours"] and rows[i]["name"] in codes):
            bytes_ = case.batch * vectors * case.head_dim * DTYPES[rows[i]["dtype"]].itemsize
            rows[i]["gb_per_s"] = 1e-3 * bytes_ / rows[i]["kernel_us"]
    for peer in (row for row in rows if not row["ours"] and row["kernel_us"]):
        for row in (row for row in rows if row["kernel_us"]):
            row[f"{peer['name']}_ratio"] = row["kernel_us"] / peer["kernel_us"]
    return rows


def _recorded(row: dict[str, Any], name: str, case: Case) -> tuple[Recorded, Call] | str:
    """A CUDA graph of calls that are right, or why there is none; their verdict goes into the row."""
    try:
        judged, call = (_ours if row["ours"] else _peer)(name, case)
    except Raised as raised:  # with a traceback, whose last line is the error
        return str(raised).splitlines()[-1]
    except (Refusal, Unavailable) as refusal:
        return str(refusal)
    row |= {"verdict": judged.verdict, "origin": judged.origin}
    if row["ours"]:
        row["settled"] = judged.trace.case_run.as_dict()
    if judged.verdict in WRONG:
        where = f"first wrong stage {judged.origin}" if judged.origin else "nothing could be judged"
        return f"correctness first: {judged.verdict}, {where}"
    if other := latency.unrepeatable(call, on_gpu=True):
        return f"correctness first: {other}"
    graph = latency.captured(call)
    return graph if isinstance(graph, str) else (graph, call)


def _ours(name: str, case: Case) -> tuple[Diff, Call]:
    """The worst verdict on a kernel of ours, and its launches."""
    import torch

    from workbench.bench.ours import prepared

    kernel = KERNELS[name]
    case = resolve(kernel, case)
    if kernel.fills is not None:
        gpu = torch.cuda.get_device_properties(0)
        splits = kernel.fills(case, gpu.multi_processor_count, gpu.shared_memory_per_multiprocessor)
        case = case.but(splits=splits)
    if case.score_count <= WHOLE:
        parts = [run(name, case, backend="cuda")]
    else:
        rows = f"b=0,h=0,q={max(0, case.seqlen_q - ROWS)}:{case.seqlen_q}"
        parts = [run(name, case, backend="cuda", probes="output"), run(name, case, backend="cuda", where=rows)]
    judged = [diff(part, device=_device(case)) for part in parts]
    worst = max(judged, key=lambda one: SEVERITY.index(one.verdict))
    return worst, prepared(name, case, faults_in=(), judged=parts[0].stages)


def _peer(name: str, case: Case) -> tuple[Diff, Call]:
    """PyTorch's attention on a backend."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    calls: list[partial] = []
    returned: list[Any] = []
    backend = getattr(SDPBackend, PEERS[name])

    def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        calls.append(partial(called, q, k, v, scale=scale, is_causal=causal, enable_gqa=case.heads != case.kv_heads))
        returned.append(calls[0]())
        return returned[0]

    def called(*arrays: Any, **given: Any) -> Any:
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(*arrays, **given)

    if case.causal and case.diagonal:
        raise Refusal(f"{PEER} aligns its causal mask top-left, the case bottom-right")
    attention.__name__ = f"{PEER} ({name})"
    plain = case.but(**dict.fromkeys(("splits", "block_q", "block_k", "probs_dtype", *QUANTISED)))
    judged = diff(run(attention, plain, arrays="torch", device="cuda"), device=_device(case))
    right = returned[0].clone()
    poisoned = partial(latency.poisoned, calls[0].args)
    return judged, Call(calls[0], lambda again: torch.equal(again, right), poisoned)


def _device(case: Case) -> str:
    return "cpu" if case.score_count <= FEW else "cuda"


def _named(row: Mapping[str, Any]) -> str:
    return row["name"] if row["ours"] else f"torch, {row['name']}"


def _words(row: Mapping[str, Any]) -> str:
    """The case of a row as options of the command line."""
    return " ".join(case_options(Case(**row["case"]), own=True))
