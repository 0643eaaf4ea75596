"""The campaign of steps: kernels of ours and PyTorch's attention on one case, what is right among them timed."""

import json
from functools import partial

import numpy as np
import pytest
from click.testing import CliRunner

from campaigns import steps
from campaigns.cli import commands
from campaigns.steps import CASES, PEERS, TIMES, measure, sentences, tables, wrong
from tests.refusals import refusal
from workbench import Case, diff, run
from workbench.bench import latency
from workbench.bench.latency import Call
from workbench.cuda.gpu import gpu
from workbench.cuda.kernels import KERNELS
from workbench.cuda.plan import resolve
from workbench.refusal import Raised, Unavailable

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

SMALL = Case(seqlen=24, head_dim=8, heads=2, causal=True, block_q=16, block_k=16)
FAULT = "flash-no-correction"


def test_every_step_takes_the_cases():
    for case in CASES:
        for name in steps.STEPS if case.seqlen_q > 1 else steps.DECODING:
            assert resolve(KERNELS[name], case).block_q
    assert {*steps.STEPS, *steps.DECODING} <= {*KERNELS}
    # its keys and values are read from memory, not from a cache
    assert 4 * CASES[-1].batch * CASES[-1].kv_heads * CASES[-1].seqlen_k * CASES[-1].head_dim > 4 * 50e6


def test_peers_are_called_as_they_were_judged(monkeypatch):
    """On a CPU, whose torch has a flash backend too."""
    monkeypatch.setattr(steps, "run", lambda *given, device, **options: run(*given, device="cpu", **options))
    judged, call = steps._peer("flash", SMALL.but(dtype="float16", kv_heads=1))
    assert judged.verdict == "rounding" and latency.unrepeatable(call, on_gpu=False) is None
    with call.poisoned():
        assert not call.right(call.run())
    assert call.right(call.run())
    assert refusal(steps._peer, "flash", SMALL.but(seqlen_q=20)) == (
        "scaled_dot_product_attention aligns its causal mask top-left, the case bottom-right"
    )


@pytest.fixture
def without_gpu(monkeypatch):
    """Kernels of ours run on the emulator, one of them with a fault; a replay of each call takes as long as its number."""

    def ours(name, case):
        if name == "split_k":
            raise Unavailable("split_k runs elsewhere")
        faults = [FAULT] if case.seqlen_k > 30 else []
        return diff(run("flash", case, faults=faults, backend="emulator", probes="output")), Call(int, bool, partial)

    def peer(name, case):
        if name == "cudnn":
            raise Raised("attention raised:\nTraceback ...\nRuntimeError: no cuDNN")
        return ours("flash", SMALL)

    monkeypatch.setattr(steps, "_ours", ours)
    monkeypatch.setattr(steps, "_peer", peer)
    monkeypatch.setattr(steps, "torch_on_gpu", lambda *given, **options: torch)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(latency, "unrepeatable", lambda call, *, on_gpu: None)
    monkeypatch.setattr(latency, "captured", lambda call: call)
    replayed = {1: [2.0], 2: [2.0, 1.0]}
    monkeypatch.setattr(latency, "replays", lambda graphs: [np.array([us, us]) for us in replayed[len(graphs)]])


def test_a_row_for_each_kernel_and_each_peer(without_gpu):
    results = measure(("flash", "split_k"), [SMALL, SMALL.but(seqlen=40)])
    assert json.loads(json.dumps(results)) == results and results["device"] == "a GPU"
    assert [row["name"] for row in results["rows"]] == ["flash", "split_k", *PEERS] * 2
    right, lacking, peer, no_peer, faulty, *_, alone, _ = results["rows"]
    assert (right["verdict"], right["refused"], right["settled"]["block_q"]) == ("rounding", None, 16)
    # 2 heads of 24 * 25 / 2 pairs, two products of 8 dims each, in 2 us
    assert right["tflops"] == pytest.approx(4 * 2 * 300 * 8 / 2e-6 / 1e12)
    assert right["gb_per_s"] == pytest.approx(4 * 2 * 24 * 8 * 4 / 2e-6 / 1e9)
    assert (right["flash_ratio"], right["cudnn_ratio"], peer["flash_ratio"]) == (2.0, None, 1.0)
    assert (lacking["verdict"], lacking["refused"]) == (None, "split_k runs elsewhere")
    assert (no_peer["refused"], no_peer["ours"], no_peer["kernel_us"]) == ("RuntimeError: no cuDNN", False, None)
    assert faulty["verdict"] == "bug" and faulty["refused"].startswith("correctness first: bug, first wrong stage ")
    assert all(faulty[name] is None for name in (*TIMES, "tflops")) and alone["kernel_us"] == 2.0
    assert wrong(results) and not wrong(results | {"rows": results["rows"][:4]})


def test_beside_codes_the_peers_have_float16(without_gpu, monkeypatch):
    asked, ours = [], steps._ours
    monkeypatch.setattr(steps, "_ours", lambda name, case: ours(name, SMALL))  # flash, which takes no codes, for fp8
    monkeypatch.setattr(steps, "_peer", lambda name, case: asked.append(case) or ours(name, SMALL))
    monkeypatch.setattr(latency, "replays", lambda graphs: [np.array([2.0]) for _ in graphs])
    case = SMALL.but(codes="e4m3")
    results = measure(("fp8",), [case])
    assert asked == [case.but(dtype="float16")] * 2
    codes, *peers = results["rows"]
    assert [row["dtype"] for row in results["rows"]] == ["float32", "float16", "float16"]
    assert codes["kernel_us"] == 2.0 and codes["gb_per_s"] is None
    # q, k, v and out of 2 heads, 24 rows of 8 dims, 2 bytes each, in 2 us
    assert [row["gb_per_s"] for row in peers] == pytest.approx([4 * 2 * 24 * 8 * 2 / 2e-6 / 1e9] * 2)
    assert sentences(results)[0].endswith("; it takes no codes, and has float16")


def test_a_peer_of_kernels_on_codes_is_judged_on_floats(monkeypatch):
    monkeypatch.setattr(steps, "run", lambda *given, device, **options: run(*given, device="cpu", **options))
    judged, _ = steps._peer("flash", SMALL.but(dtype="float16", codes="e4m3", scale_of="token"))
    assert (judged.verdict, judged.trace.case.codes) == ("rounding", None)


def test_what_is_printed(without_gpu):
    results = measure(("flash", "split_k"), [SMALL])
    words = "--seqlen 24 --heads 2 --head-dim 8 --causal --block-q 16 --block-k 16"
    (table,) = tables(results)
    assert [row[words] for row in table] == ["flash", "split_k", "torch, flash", "torch, cudnn"]
    assert [row["verdict"] for row in table] == ["rounding", "-", "rounding", "-"]
    assert table[0]["kernel us"] == "2.00 (2.00-2.00)" and table[0]["flash ratio"] == 2.0 and table[1]["tflops"] is None
    assert sentences(results) == [
        f"vs scaled_dot_product_attention of torch {torch.__version__} on a GPU: median (10th to 90th percentile); "
        "a ratio below 1 is faster than its backend",
        f"not timed: split_k: {words}: split_k runs elsewhere",
        f"not timed: torch, cudnn: {words}: RuntimeError: no cuDNN",
    ]


def test_the_command_takes_kernels_and_cases(monkeypatch):
    asked = []

    def measured(kernels, cases=()):
        asked.append((kernels, [*cases]))
        return {"rows": [], "versions": {"torch": "9"}, "device": "a GPU"}

    monkeypatch.setattr(steps, "measure", measured)
    result = CliRunner().invoke(commands, ["steps", "flash", "--seqlen", "64,128", "--causal", "--dtype", "float16"])
    cases = [Case(seqlen=seqlen, causal=True, dtype="float16") for seqlen in (64, 128)]
    assert (result.exit_code, asked.pop()) == (0, (("flash",), cases))
    result = CliRunner().invoke(commands, ["steps"])
    assert (result.exit_code, asked.pop()) == (0, ((), []))


def test_wrong_usage_is_refused():
    kernels = ", ".join(KERNELS)
    assert refusal(measure, ["flesh"]) == f"steps times built-in kernels: {kernels}; got 'flesh'"


@pytest.mark.skipif(gpu() is not None, reason="there is a GPU")
def test_it_needs_a_gpu():
    with pytest.raises(Unavailable, match="^flash, fp8 is timed on an NVIDIA GPU, and none was found; "):
        measure(["flash", "fp8"])


@pytest.mark.gpu
def test_kernels_are_timed_on_a_gpu():
    long = Case(heads=4, batch=2, seqlen=2048, dtype="float16", causal=True)  # beyond WHOLE: judged in two runs
    decoding = Case(heads=8, kv_heads=2, seqlen_q=1, seqlen_k=2000, dtype="float16")
    results = measure(("flash_tensor", "split_mma"), [long, decoding])
    assert not wrong(results)
    for row in results["rows"]:
        assert row["verdict"] in ("exact", "rounding") if row["ours"] else row["verdict"]
        if not row["refused"]:
            assert 0 < row["kernel_min_us"] <= row["kernel_us"] <= row["kernel_p90_us"] and row["tflops"] > 0
    assert sum(row["refused"] is None for row in results["rows"] if row["ours"]) == 4
