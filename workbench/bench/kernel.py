"""How fast a kernel is beside PyTorch's scaled_dot_product_attention, where it is right.

Correctness first: at each shape the kernel is judged, and what is wrong, missing or untestable is not timed. What is
timed is the call that was judged: another run of it must be right again, and so must a replay of its CUDA graph.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np

from workbench.bench import latency
from workbench.bench.harness import gathered, torch_for
from workbench.bench.latency import Call
from workbench.case.case import Case
from workbench.case.command_line import case_options
from workbench.case.fields import QUANTISED
from workbench.case.user_code import running
from workbench.cuda.kernels import KERNELS
from workbench.cuda.quiet import quiet
from workbench.foreign.adapters import adapter_of
from workbench.foreign.arguments import SCALES, parameters_of, stages_read
from workbench.foreign.find import find, installed
from workbench.foreign.run import run
from workbench.judge.diff import Diff, diff
from workbench.judge.stage import ORIGIN_VERDICTS
from workbench.machine import machine, versions
from workbench.refusal import Refusal, Unavailable
from workbench.report.command import diff_command
from workbench.suggested import command

SCHEMA = "workbench.bench-kernel/1"
#: (seqlen, head_dim)
SHAPES = ((4, 4), (64, 64), (65, 64), (128, 64), (192, 64), (256, 64), (512, 64))
CASES = tuple(Case(seqlen=seqlen, head_dim=head_dim) for seqlen, head_dim in SHAPES)
#: verdicts that are not timed
WRONG = (*ORIGIN_VERDICTS, "untestable")
PEER = "scaled_dot_product_attention"
#: the peer's dtype beside kernels on codes, which it does not take
BESIDE_CODES = "float16"
#: what of a sample is told, in microseconds: suffix of the name -> percentile
PERCENTILES = {"us": 50, "min_us": 0, "p10_us": 10, "p90_us": 90}
#: what is told of a call: `latency` is a whole one, `kernel` the GPU's work alone
KINDS = ("kernel", "latency")
TIMES = (*(f"{kind}_{suffix}" for kind in KINDS for suffix in PERCENTILES), "no_kernel_us")
#: a judged run, and what makes the call that is to be timed
Judged = tuple[Diff, Callable[[], Call]]
# seconds of a case, measured on 2 cores, for estimates only
CASE_S = 1.5


def measure(
    target: str | Callable[..., Any],
    cases: Sequence[Case] = CASES,
    *,
    faults: Sequence[str] = (),
    probes: str = "all",
    backend: str = "auto",
    **foreign: Any,
) -> dict[str, Any]:
    """The document `workbench.bench-kernel/1` of one run of the benchmark; arguments as of `workbench.run`.

    - `device`, `versions`, `machine`, `float32_matmul`, `torch_threads`: what ran it; the version of
      `torch` among them
    - `repeats`, `launches`: runs of each case
    - `rows`: a record for each case

    A row is a case with its `verdict` and `origin`; `refused` says why it is not timed (null where it is), which the
    kernel may have said itself (verdict null), and `diff_command` judges it again. Times are medians of so many
    `repeats` or fewer where they take long, with minimum and percentiles, in microseconds:

    - `latency_us`: a whole call from Python until the result is there. Kernels of ours are launched by the driver,
      configured once, on arrays that are on the GPU; codes and scales of fp8 are made before.
    - `kernel_us`: the GPU's work alone, one of `launches` runs, or fewer, in a replayed CUDA graph; null with the
      reason in `no_kernel_us`, on a CPU always.

    `torch` has the same of the peer on the same inputs and device, in `dtype`: the case's, or float16 beside
    codes, which are decoded to it. Torch chooses the backend. It is judged too: `refused` says why it is not timed.
    Calls of both take turns. `*_ratio` is our time over the peer's: below 1 is faster.

    Refusal where the kernel takes none of the cases; Unavailable without torch, and without a GPU for built-in kernels.
    """
    from workbench.cuda.run import versions as versions_of_run

    name, attention = _named(target, backend)
    ours = attention is None
    if foreign.get("arrays") == "jax":
        raise Refusal("JAX functions cannot be timed: they return early and do not run on torch's streams")
    on_gpu = ours or foreign.get("arrays") == "cupy" or foreign.get("device") == "cuda"
    torch = torch_on_gpu(name, ours, on_gpu)
    found = machine()
    options = {"faults": faults, "probes": probes, **foreign}
    if attention is None:
        judged_run = partial(_ours, name, **options)
    else:
        judged_run = partial(_foreign, attention, name, backend=backend, **options)
    peer_dtype = BESIDE_CODES if ours and KERNELS[name].quantised else None
    with quiet(), nullcontext() if attention is None else running(attention):
        timed = (_row(judged_run, case, peer_dtype or case.dtype, on_gpu) for case in cases)
        rows = gathered(f"judge and time {name} on {len(cases)} cases", CASE_S * len(cases), timed)
    if all(row["refused"] and row["verdict"] is None for row in rows):
        raise Refusal("\n".join(dict.fromkeys(row["refused"] for row in rows)))
    return {
        "schema": SCHEMA,
        "target": name,
        "faults": list(faults),
        "backend": "cuda" if ours else "foreign",
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "versions": (versions_of_run("cuda") if ours else versions("numpy")) | {"torch": torch.__version__},
        "machine": found,
        "float32_matmul": torch.get_float32_matmul_precision(),
        "torch_threads": torch.get_num_threads(),
        "repeats": latency.TURNS * latency.RUNS,
        "launches": latency.LAUNCHES if on_gpu else None,
        "rows": rows,
    }


def tables(results: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """The document as tables for a screen: rows of equal columns."""
    kinds = KINDS if results["launches"] else ("latency",)
    rows = []
    for row in results["rows"]:
        cells = {"case": _words(results, row), "verdict": row["verdict"] or "-", "origin": row["origin"] or "-"}
        for kind in kinds:
            cells |= {f"{kind} us": spread(row, kind), f"torch {kind} us": spread(row["torch"], kind)}
            cells[f"{kind} ratio"] = row[f"{kind}_ratio"]
        rows.append(cells)
    return [rows]


def sentences(results: Mapping[str, Any]) -> list[str]:
    """What the tables leave out: what the numbers are, and each number that is missing with its reason."""
    lines = [
        f"{results['target']} vs {PEER} of torch {results['versions']['torch']} on {results['device']}: "
        "median (10th to 90th percentile); a ratio below 1 is faster than torch"
    ]
    for row in results["rows"]:
        if row["refused"]:
            lines.append(f"not timed: {_words(results, row)}: {row['refused']}")
            lines += [f"  {row['diff_command']}"] if row["diff_command"] else []
            continue
        if row["torch"]["refused"]:
            lines.append(f"no ratio: {_words(results, row)}: {row['torch']['refused']}")
        for side, times in ((results["target"], row), (PEER, row["torch"])):
            if results["launches"] and times["no_kernel_us"]:
                lines.append(f"no kernel time for {side}: {_words(results, row)}: {times['no_kernel_us']}")
    return lines


def wrong(results: Mapping[str, Any]) -> bool:
    """Whether a case was judged and then not timed."""
    return any(row["verdict"] and row["refused"] for row in results["rows"])


def _named(target: str | Callable[..., Any], backend: str) -> tuple[str, Callable[..., Any] | None]:
    """The name of the target, and the function where it is not built in."""
    if not isinstance(target, str) or ":" in target or (target not in KERNELS and target in installed()):
        function = find(target) if isinstance(target, str) else target
        name = target if isinstance(target, str) else getattr(target, "__name__", "callable")
        if adapter_of(function) is not None:
            raise Refusal(
                f"bench kernel calls f(q, k, v, scale, causal); {name} takes other arguments: give a wrapper as "
                "path.py:function"
            )
        if reads := [*stages_read(function), *(scale for scale in SCALES if scale in parameters_of(function))]:
            raise Refusal(f"bench kernel times attention on q, k and v only; {name} reads {', '.join(reads)}")
        return name, function
    if target not in KERNELS:
        raise Refusal(
            f"bench kernel takes a built-in kernel ({', '.join(KERNELS)}) or yours as path.py:function; got {target!r}"
        )
    if backend not in ("auto", "cuda"):
        raise Refusal(
            f"backend of bench kernel must be auto or cuda: emulator times say nothing about a GPU; got {backend!r}"
        )
    return target, None


def torch_on_gpu(name: str, ours: bool, on_gpu: bool) -> Any:
    """The module; Unavailable where it, or the GPU, is missing."""
    from workbench.cuda.gpu import gpu

    if ours and gpu() is None:
        raise Unavailable(
            f"timing {name} needs an NVIDIA GPU; none was found. `{command('doctor')}` shows what is installed"
        )
    torch = torch_for("the baseline, PyTorch's attention,")
    if on_gpu and not torch.cuda.is_available():
        raise Unavailable(f"timing {name} against PyTorch needs a GPU; torch {torch.__version__} finds none")
    return torch


def _row(judged_run: Callable[[Case], Judged], case: Case, peer_dtype: str, on_gpu: bool) -> dict[str, Any]:
    """A row of the document."""
    torch: dict[str, Any] = {"dtype": peer_dtype, "refused": None, **dict.fromkeys(TIMES)}
    row: dict[str, Any] = {"case": case.as_dict(), **dict.fromkeys(("verdict", "origin", "refused", "diff_command"))}
    row |= {**dict.fromkeys(TIMES), "torch": torch, **dict.fromkeys(f"{kind}_ratio" for kind in KINDS)}
    try:
        judged, prepare = judged_run(case)
    except Refusal as refusal:
        return row | {"refused": str(refusal)}
    row |= {"case": judged.trace.case.as_dict(), "verdict": judged.verdict, "origin": judged.origin}
    row["diff_command"] = diff_command(judged)
    if judged.verdict in WRONG:
        where = f"first wrong stage {judged.origin}" if judged.origin else "nothing could be judged"
        return row | {"refused": f"correctness first: {judged.verdict}, {where}"}
    call = prepare()
    if other := latency.unrepeatable(call, on_gpu=on_gpu):
        return row | {"refused": f"correctness first: {other}"}
    peer = _peer(case, peer_dtype, on_gpu)
    if isinstance(peer, str):
        torch["refused"] = peer
        _time([(row, call)], on_gpu)
        return row
    _time([(row, call), (torch, peer)], on_gpu)
    for kind in KINDS:
        own, its = row[f"{kind}_us"], torch[f"{kind}_us"]
        row[f"{kind}_ratio"] = None if own is None or its is None else own / its
    return row


def _time(sides: Sequence[tuple[dict[str, Any], Call]], on_gpu: bool) -> None:
    """Fill in TIMES of each side, whose calls take turns."""

    def tell(side: dict[str, Any], kind: str, sample: np.ndarray) -> None:
        side |= {f"{kind}_{suffix}": float(np.percentile(sample, at)) for suffix, at in PERCENTILES.items()}

    for (side, _), sample in zip(sides, latency.latencies([call for _, call in sides], on_gpu=on_gpu), strict=True):
        tell(side, "latency", sample)
    recorded = []
    for side, call in sides:
        graph = latency.captured(call) if on_gpu else "no kernel time on a CPU"
        if isinstance(graph, str):
            side["no_kernel_us"] = graph
        else:
            recorded.append((side, graph))
    if recorded:
        for (side, _), sample in zip(recorded, latency.replays([graph for _, graph in recorded]), strict=True):
            tell(side, "kernel", sample)


def _ours(name: str, case: Case, *, faults: Sequence[str], probes: str, **foreign: Any) -> Judged:
    """A run of a kernel of ours."""
    from workbench.bench.ours import prepared

    trace = run(name, case, faults=faults, probes=probes, backend="cuda", **foreign)
    return diff(trace), partial(prepared, name, case, faults_in=faults, judged=trace.stages)


def _foreign(attention: Callable[..., Any], name: str, case: Case, **options: Any) -> Judged:
    """A run of a foreign kernel; the call to be timed is that very one."""
    calls: list[partial] = []

    def called(*arrays: Any, **given: Any) -> Any:
        calls.append(partial(attention, *arrays, **given))
        return calls[-1]()

    called.__name__ = name
    judged = diff(run(called, case, **options))
    q, k, v = (judged.trace.inputs[name] for name in "qkv")

    def right(returned: Any) -> bool:
        try:
            again = run(lambda *_, **__: returned, case, inputs=(q, k, v), **options)
        except Refusal:  # not even of the form that a kernel returns
            return False
        return diff(again).verdict not in WRONG

    return judged, partial(Call, calls[0], right, partial(latency.poisoned, calls[0].args))


def _peer(case: Case, dtype: str, on_gpu: bool) -> Call | str:
    """What is to be timed of PyTorch's attention on a case; or why it is not."""
    import torch

    given: dict[str, Any] = {"enable_gqa": True} if case.heads != case.kv_heads else {}

    def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale, **given)

    if case.causal and case.diagonal:  # is_causal is top-left
        from torch.nn.attention.bias import causal_lower_right  # takes seconds

        given["attn_mask"] = causal_lower_right(case.seqlen_q, case.seqlen_k)
    elif case.causal:
        given["is_causal"] = True
    plain = case.but(dtype=dtype, **dict.fromkeys(("splits", "block_q", "block_k", "probs_dtype", *QUANTISED)))
    try:
        judged, prepare = _foreign(attention, PEER, plain, arrays="torch", device="cuda" if on_gpu else "cpu")
    except Refusal as refusal:
        return str(refusal)
    if judged.verdict in WRONG:
        return f"{PEER} itself is judged {judged.verdict} here"
    call = prepare()
    return latency.unrepeatable(call, on_gpu=on_gpu) or call


def _words(results: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """The case of a row as options of the command line."""
    return " ".join(case_options(Case(**row["case"]), own=results["backend"] != "foreign"))


def spread(times: Mapping[str, Any], kind: str) -> str:
    """Median (10th to 90th percentile); a dash where there is none."""
    if times[f"{kind}_us"] is None:
        return "-"
    median, low, high = (_digits(times[f"{kind}_{suffix}"]) for suffix in ("us", "p10_us", "p90_us"))
    return f"{median} ({low}-{high})"


def _digits(us: float) -> str:
    """Three digits and no exponent."""
    return f"{us:.2f}" if us < 10 else f"{us:.1f}" if us < 100 else f"{us:.0f}"
