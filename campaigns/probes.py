"""What probes cost: kernels that dump every stage, beside themselves without probes and a copy of as many bytes."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from workbench.bench import latency
from workbench.bench.harness import gathered
from workbench.bench.kernel import torch_on_gpu
from workbench.bench.ours import sent
from workbench.case.case import Case
from workbench.case.options import Options
from workbench.cuda.compiler import cuda
from workbench.cuda.kernels import KERNELS
from workbench.cuda.plan import buffers_of, dump_bytes, plan, requested
from workbench.cuda.run import Memory
from workbench.machine import machine
from workbench.refusal import Refusal
from workbench.report.command import case_options

SCHEMA = "workbench.bench-probes/1"
NAMES = ("flash_tensor", "flash_mma", "flash_wgmma")
_LONG: Mapping[str, Any] = {"batch": 2, "heads": 16, "seqlen": 4096, "dtype": "float16"}
CASES = tuple(Case(**_LONG, head_dim=head_dim, causal=causal) for head_dim in (64, 128) for causal in (False, True))
#: bytes of the copy whose bandwidth is taken: twenty times the L2 cache of an H100
COPIED = 2**30
# seconds of a kernel on a case, measured on an H100 with 16 cores and builds cached, for estimates only
ROW_S = 4


def measure(kernels: Sequence[str] = NAMES, cases: Sequence[Case] = CASES) -> dict[str, Any]:
    """The JSON document of one run of the benchmark.

    A row is a kernel on a case: `plain_us` and `probed_us`, medians of the GPU's time for a run without probes and for
    one that dumps every stage, `dumped_bytes` of these stages, and `dump_ratio`: (probed_us - plain_us) over the time
    that a copy takes to move as many bytes, of which it reads half and writes half (`copy_gb_per_s`).

    Refusal for a kernel that is none of ours, and for a case that it does not take; Unavailable without torch and
    without a GPU.
    """
    if unknown := [name for name in kernels if name not in KERNELS]:
        raise Refusal(f"probes times built-in kernels: {', '.join(KERNELS)}; got {unknown[0]!r}")
    torch = torch_on_gpu(", ".join(kernels), ours=True, on_gpu=True)
    pairs = [(name, case) for case in cases for name in kernels]
    copy_gb_per_s = _copied()
    made = (_row(name, case, copy_gb_per_s) for name, case in pairs)
    rows = gathered(f"time {len(pairs)} kernels with probes", ROW_S * len(pairs), made)
    return {
        "schema": SCHEMA,
        "device": torch.cuda.get_device_name(),
        "machine": machine(),
        "copy_gb_per_s": copy_gb_per_s,
        "rows": rows,
    }


def tables(results: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """The document as tables for a screen."""
    return [
        [
            {
                "kernel": row["kernel"],
                "case": " ".join(case_options(Case(**row["case"]), own=True)),
                "plain us": round(row["plain_us"], 1),
                "probed us": round(row["probed_us"], 1),
                "GB dumped": round(1e-9 * row["dumped_bytes"], 2),
                "of a copy's time": round(row["dump_ratio"], 2),
            }
            for row in results["rows"]
        ]
    ]


def _row(name: str, case: Case, copy_gb_per_s: float) -> dict[str, Any]:
    made = plan(name, case, Options(probes="output"))
    stages = requested(made.kernel, made.trace.case, "all")
    memory = Memory("cuda", made.arrays, made.views, made.inputs, made.guard)
    shapes = buffers_of(made.kernel, made.trace.case, stages, None)
    dumps = {stage: cuda.device_array(*of) for stage, of in shapes.items() if stage not in made.arrays}
    calls = [sent(made, probes, {**dumps, **memory.arguments}) for probes in ((), stages)]
    plain_us, probed_us = (float(np.median(sample)) for sample in latency.in_turns([_timer(call) for call in calls]))
    dumped = dump_bytes(made.kernel, made.trace.case, stages, None)
    return {
        "kernel": name,
        "case": case.as_dict(),
        "plain_us": plain_us,
        "probed_us": probed_us,
        "dumped_bytes": dumped,
        "dump_ratio": (probed_us - plain_us) / (1e-3 * dumped / copy_gb_per_s),
    }


def _timer(call: Callable[[], Any]) -> Callable[[], float]:
    """Microseconds of a call by the GPU's own events; it waits for one before, so that nothing of the host counts."""
    import torch

    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def timed() -> float:
        call()
        before.record()
        call()
        after.record()
        after.synchronize()
        return 1e3 * float(before.elapsed_time(after))

    return timed


@functools.cache
def _copied() -> float:
    """GB/s that a copy in the GPU's memory moves, bytes read and written together."""
    import torch

    one, other = (torch.zeros(COPIED, dtype=torch.uint8, device="cuda") for _ in range(2))
    (sample,) = latency.in_turns([_timer(lambda: other.copy_(one))])
    return 2e-3 * COPIED / float(np.median(sample))
