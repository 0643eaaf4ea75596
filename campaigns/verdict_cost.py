"""What a verdict costs, beside comparisons with a tolerance on the same arrays.

A fresh process loads a trace with every stage and judges it, so that neither the kernel's run nor its memory counts.
The peers, numpy.testing.assert_allclose and torch.testing.assert_close, compare each dumped stage with the float64
expectation that `diff` makes for itself and they are given: what that takes stands beside them. Their tolerance is one
that all stages keep, since a failure costs them more.

A function of which out alone is known is judged from q, k and v, from where budgets are most of the work: it is timed
without peers.
"""

import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from campaigns.timed import python, seconds
from workbench.arrays import as_numpy, handed_over
from workbench.bench.harness import torch_if_installed
from workbench.case.box import Box
from workbench.case.case import Case
from workbench.expectation.expectation import Expectation
from workbench.expectation.observed import Observed
from workbench.foreign.run import run
from workbench.judge.diff import Diff, diff
from workbench.judge.usual_rules import ATOL
from workbench.machine import machine, peak_bytes, versions
from workbench.progress import step
from workbench.trace.file import load, save
from workbench.trace.trace import Trace

SCHEMA = "workbench.bench-diff/1"
KERNEL = "flash"
#: judged on the cpu and, where torch finds a GPU, there; and judged on a GPU only
HEAD = Case(seqlen=2048, head_dim=128)
HEADS = Case(seqlen=4096, heads=16, head_dim=128)
#: judged on both, and the verdicts compared, correct and with a fault
BOTH = Case(seqlen=512, heads=2, head_dim=128, causal=True)
FAULTS = ((), ("flash-no-correction",))
#: of FUNCTION, which gives out alone
RESULT = Case(seqlen=4096, heads=16, head_dim=128, dtype="bfloat16", causal=True)
FUNCTION = "torch:scaled_dot_product_attention"
REPEATS = 5
PEERS = ("assert_allclose", "assert_close")
# Seconds for each query and key, measured on 2 cores, for estimates only: run and saved, judged once, and compared once
# by both peers
RUN_S, JUDGE_S, PEERS_S = 1e-6, 8e-7, 1e-6
#: and judged of out alone
RESULT_S = 6e-8


def measure(head: Case = HEAD, heads: Case = HEADS, both: Case = BOTH, result: Case = RESULT) -> dict[str, Any]:
    """The JSON document of one run of the benchmark.

    A row of `costs` is a case judged on a `device`, the trace in the host's memory:

    - `first_s`, what the first verdict of the process took; `median_s` of `repeats` verdicts and `cpu_s`, the median of
      their processor time on all threads, which other users of the machine do not lengthen;
    - `peak_bytes`, the largest resident memory of the process: Python, libraries, the trace (`trace_bytes`, twice while
      it is read) and what judging takes; `device_peak_bytes`, what torch had allocated on the GPU, null elsewhere;
    - `expectation_s`, the float64 expectation of every stage; `assert_allclose_s` on the host and `assert_close_s` on
      the device, the way there of what was dumped included: medians of `peer_repeats`, summed over heads and stages;
      null without torch. `*_ratio` is median_s over it.

    A row of `results` is a case of FUNCTION, of which out alone is known, judged once: as those of `costs`, without
    what is about peers; [] without torch.

    A row of `agreement` is a small case with a `fault` judged on cpu and cuda, as of `agreement`; [] without a GPU.
    """
    found = machine()
    torch = torch_if_installed()
    gpu = torch is not None and torch.cuda.is_available()
    return {
        "schema": SCHEMA,
        "versions": versions("numpy") | ({"torch": torch.__version__} if torch else {}),
        "machine": found,
        "costs": _costs(head, ("cpu", "cuda")) + _costs(heads, ("cuda",)) if gpu else _costs(head, ("cpu",)),
        "results": [_result(result, device) for device in ("cpu", "cuda")[: 1 + gpu]] if torch else [],
        "agreement": [_agreement(both, faults) for faults in FAULTS] if gpu else [],
    }


def tables(results: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """The document as tables for a screen: rows of equal columns."""
    costs = [
        {
            **_words(row["case"]),
            "device": row["device"],
            **{f"{name} s": row[f"{name}_s"] for name in ("first", "median", "cpu")},
            **{f"{name} GB": _gigabytes(row[f"{name}_bytes"]) for name in ("trace", "peak", "device_peak")},
            "expectation s": row["expectation_s"],
            **{f"{peer} {unit}": row[f"{peer}_{unit}"] for peer in PEERS for unit in ("s", "ratio")},
        }
        for row in results["costs"]
    ]
    alone = [
        {
            **{name: row["case"][name] for name in ("heads", "seqlen_k", "head_dim", "dtype")},
            "device": row["device"],
            "verdict": row["verdict"],
            **{f"{name} s": row[f"{name}_s"] for name in ("first", "cpu")},
            **{f"{name} GB": _gigabytes(row[f"{name}_bytes"]) for name in ("trace", "peak", "device_peak")},
        }
        for row in results["results"]
    ]
    agreed = [
        _words(row["case"]) | {name: cell for name, cell in row.items() if name != "case"}
        for row in results["agreement"]
    ]
    return [costs, *filter(None, (alone, agreed))]


def _words(case: Mapping[str, Any]) -> dict[str, Any]:
    """What a reader wants to know of a case."""
    return {name: case[name] for name in ("heads", "seqlen_k", "head_dim")} | {
        "tiles": f"{case['block_q']}x{case['block_k']}"
    }


def _gigabytes(size: int | None) -> float | None:
    return None if size is None else size / 1e9


def agreement(one: Diff, other: Diff) -> dict[str, Any]:
    """How far two verdicts on the same trace agree.

    `verdicts_differ` names the stages whose verdict or role differs; `moved` is a bound from below on the elements
    whose State differs, in the isolated and propagated comparisons of all stages, from the counts of each State.
    """
    pairs = [
        (a.summary, b.summary)
        for left, right in zip(one.stages, other.stages, strict=True)
        for a, b in ((left.isolated, right.isolated), (left.propagated, right.propagated))
        if a is not None and b is not None
    ]
    differ = [
        left.name
        for left, right in zip(one.stages, other.stages, strict=True)
        if (left.verdict, left.role) != (right.verdict, right.role)
    ]
    return {
        "verdict": one.verdict,
        "origins": list(one.origins),
        "stages": len(one.stages),
        "verdicts_differ": differ,
        "elements": sum(a.size for a, _ in pairs),
        "moved": sum(int(np.abs(a.states - b.states).sum()) // 2 for a, b in pairs),
    }


def judge() -> None:
    """Judge the trace and device of stdin (JSON) so many times; write what a row of `costs` says of it to stdout, where
    it is `compared` with its peers, else of `results`.
    """
    path, device, repeats, compared = json.load(sys.stdin)
    trace = load(Path(path))
    whole, cpu = [], []
    for _ in range(repeats):
        started, started_cpu = time.perf_counter(), time.process_time()
        verdict = diff(trace, device=device).verdict
        whole.append(time.perf_counter() - started)
        cpu.append(time.process_time() - started_cpu)
    row: dict[str, Any] = {
        "verdict": verdict,
        "repeats": repeats,
        "first_s": whole[0],
        "median_s": median(whole),
        "cpu_s": median(cpu),
        "trace_bytes": sum(array.nbytes for array in (*trace.inputs.values(), *trace.stages.values())),
        "peak_bytes": peak_bytes(),
        "device_peak_bytes": torch_if_installed().cuda.max_memory_allocated() if device == "cuda" else None,
    }
    if compared:
        row |= peers(trace, device)
        for peer in PEERS:
            row[f"{peer}_ratio"] = None if row[f"{peer}_s"] is None else round(row["median_s"] / row[f"{peer}_s"], 2)
    sys.stdout.write(json.dumps(row))


def peers(trace: Trace, device: str) -> dict[str, Any]:
    """What a row of `costs` says of the peers. AssertionError where a stage is not within ATOL."""
    case, torch = trace.case, torch_if_installed()
    heads = [Box(slice(b, b + 1), slice(h, h + 1)) for b in range(case.batch) for h in range(case.heads)]
    repeats = max(1, REPEATS // len(heads))
    expectation_s = 0.0
    taken = dict.fromkeys(PEERS if torch else PEERS[:1], 0.0)
    for head in heads:
        started = time.perf_counter()
        run = Observed(trace)
        expectation = Expectation(run, run.readable, head, device)
        expected = expectation.computed
        if device == "cuda":  # what is timed there is over when its queue is empty
            torch.cuda.synchronize()
        expectation_s += time.perf_counter() - started
        for name, stage in trace.stages.items():
            actual = head.of(stage, run.axes(name))
            on_host = as_numpy(expected[name], name)
            calls = {
                "assert_allclose": partial(_assert_allclose, actual, on_host),
                "assert_close": partial(_assert_close, actual, expected[name], device),
            }
            for peer in taken:
                taken[peer] += median(seconds(calls[peer], repeats))
    return {
        "peer_repeats": repeats,
        "expectation_s": expectation_s,
        **{f"{peer}_s": taken.get(peer) for peer in PEERS},
    }


def _assert_allclose(actual: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=ATOL)


def _assert_close(actual: np.ndarray, expected: Any, device: str) -> None:
    import torch

    there = handed_over(np.ascontiguousarray(actual), "torch", device)
    torch.testing.assert_close(there, torch.as_tensor(expected), rtol=0, atol=ATOL, check_dtype=False)


def _costs(case: Case, devices: Sequence[str]) -> list[dict[str, Any]]:
    """A row of `costs` for each device."""
    pairs = case.score_count
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.safetensors"
        with step(f"run {KERNEL} with {case.heads} x {case.seqlen_k} queries", RUN_S * pairs):
            trace = run(KERNEL, case)
            save(trace, path)
        resolved = trace.case.as_dict()
        del trace  # the process that judges may need the room
        for device in devices:
            estimate_s = (REPEATS * JUDGE_S + max(1, REPEATS // case.heads) * PEERS_S) * pairs
            with step(f"judge it on {device} and compare, {REPEATS} times", estimate_s):
                rows.append({"case": resolved, "device": device, **_judged(path, device, REPEATS, True)})
    return rows


def _judged(path: Path, device: str, repeats: int, compared: bool) -> dict[str, Any]:
    """What `judge` says in a process of its own."""
    asked = json.dumps([str(path), device, repeats, compared]).encode()
    found: dict[str, Any] = json.loads(python("from campaigns.verdict_cost import judge; judge()", asked))
    return found


def _result(case: Case, device: str) -> dict[str, Any]:
    """A row of `results`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.safetensors"
        trace = run(FUNCTION, case)
        save(trace, path)
        resolved = trace.case.as_dict()
        del trace  # the process that judges may need the room
        with step(f"judge out of {case.heads} x {case.seqlen_k} queries on {device}", RESULT_S * case.score_count):
            return {"case": resolved, "device": device, **_judged(path, device, 1, False)}


def _agreement(case: Case, faults: tuple[str, ...]) -> dict[str, Any]:
    """A row of `agreement`."""
    trace = run(KERNEL, case, faults=faults)
    on_cpu, on_gpu = (diff(trace, device=device) for device in ("cpu", "cuda"))
    return {"case": trace.case.as_dict(), "fault": ", ".join(faults), **agreement(on_cpu, on_gpu)}
