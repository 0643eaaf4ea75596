"""The bench of kernels: what is right is timed beside PyTorch, what is wrong is not."""

import json
import re
import sys
import warnings
from functools import partial

import pytest
from click.testing import CliRunner, Result

from workbench import Case, Refusal, Unavailable, run
from workbench.bench import kernel as bench_kernel
from workbench.bench import latency
from workbench.bench.kernel import CASES, KINDS, PEER, PERCENTILES, SHAPES, TIMES, measure, sentences, tables, wrong
from workbench.cli import main as cli
from workbench.cuda import run as cuda_run  # before a test gives it another `gpu`, which it would keep
from workbench.cuda.gpu import gpu

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

SMALL = Case(seqlen=24, head_dim=8)
MINE = """
import numpy as np
import torch

def attention(q, k, v, *, scale, causal):
    s = q.astype(np.float32) @ k.astype(np.float32).swapaxes(-1, -2) * np.float32(scale)
    if causal:
        s = np.where(np.tri(*s.shape[-2:], s.shape[-1] - s.shape[-2], dtype=bool), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return p @ v.astype(np.float32) / p.sum(-1, keepdims=True)

def wrong(q, k, v, *, scale, causal):
    return attention(q, k, v, scale=1.0, causal=causal)

def wrong_when_long(q, k, v, *, scale, causal):
    return attention(q, k, v, scale=scale if q.shape[-2] < 20 else 1.0, causal=causal)

def fussy(q, k, v, *, scale, causal):
    if q.shape[-1] % 8:
        raise ValueError("head_dim must be a multiple of 8")
    return attention(q, k, v, scale=scale, causal=causal)

def on_few_blocks(q, k, v, *, scale, causal):
    import warnings
    warnings.warn("Grid size 1 will likely result in GPU under-utilization due to low occupancy.")
    warnings.warn("something else")
    return attention(q, k, v, scale=scale, causal=causal)

seen = []

def right_once(q, k, v, *, scale, causal):
    seen.append(1)
    return attention(q, k, v, scale=scale / len(seen), causal=causal)

def runs_once(q, k, v, *, scale, causal):
    seen.append(1)
    assert len(seen) == 1, "once"
    return attention(q, k, v, scale=scale, causal=causal)

def probs(q, k, v, *, scale, causal):
    s = q @ k.swapaxes(-1, -2) * np.float32(scale)
    return {"probs": np.exp(s - s.max(-1, keepdims=True))}

def reduce(partial_O, partial_max, partial_sum, *, scale, causal):
    return partial_O[:, :, 0]

def on_codes(q, k, v, *, scale_q, scale_k, scale_v, scale, causal):
    return q

def batched(q, k, v, *, scale, causal):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale, is_causal=causal)
    return out.transpose(1, 2)
"""


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    """A few runs tell as much here as many."""
    monkeypatch.setattr(latency, "WARM_S", 0.0)
    monkeypatch.setattr(latency, "RUNS", 3)


@pytest.fixture
def mine(tmp_path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return str(path)


def command(*words: str) -> Result:
    """`workbench bench kernel`, with the exit codes of the console script."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["workbench", "bench", "kernel", *words])
        return CliRunner().invoke(_main)


class _Main:
    """`cli.main` as CliRunner wants it."""

    name = "workbench"

    @staticmethod
    def main(**_: object) -> None:
        cli.main()


_main = _Main()


def of_times(times: dict, kinds: tuple[str, ...]) -> None:
    """What holds of every call that was timed."""
    for kind in kinds:
        low, p10, median, p90 = (times[f"{kind}_{suffix}"] for suffix in ("min_us", "p10_us", "us", "p90_us"))
        assert 0 < low <= p10 <= median <= p90


def test_right_attention_is_timed_beside_torch(mine):
    results = measure(f"{mine}:attention", [SMALL, SMALL.but(causal=True, dtype="float16")])
    assert json.loads(json.dumps(results)) == results
    assert list(results) == [
        *("schema", "target", "faults", "backend", "device", "versions", "machine", "float32_matmul", "torch_threads"),
        *("repeats", "launches", "rows"),
    ]
    assert (results["schema"], results["target"]) == ("workbench.bench-kernel/1", f"{mine}:attention")
    assert (results["backend"], results["device"], results["launches"]) == ("foreign", "cpu", None)
    assert results["versions"]["torch"] == torch.__version__ and results["repeats"] == 3 * latency.TURNS
    for row, dtype in zip(results["rows"], ("float32", "float16"), strict=True):
        assert list(row) == [
            *("case", "verdict", "origin", "refused", "diff_command", *TIMES, "torch", "kernel_ratio", "latency_ratio")
        ]
        assert list(row["torch"]) == ["dtype", "refused", *TIMES]
        assert (row["verdict"], row["origin"], row["refused"]) == ("rounding", None, None)
        assert (row["torch"]["dtype"], row["torch"]["refused"]) == (dtype, None)
        assert row["latency_ratio"] == row["latency_us"] / row["torch"]["latency_us"]
        assert row["kernel_ratio"] is None
        for times in (row, row["torch"]):
            of_times(times, ("latency",))
            assert all(times[f"kernel_{suffix}"] is None for suffix in PERCENTILES)
            assert times["no_kernel_us"] == "no kernel time on a CPU"
    assert not wrong(results)


def test_small_grids_are_no_reason_to_warn_at_each_launch(mine):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert measure(f"{mine}:on_few_blocks", [SMALL])["rows"][0]["refused"] is None
    assert {str(one.message) for one in caught} == {"something else"}


def test_a_slow_function_takes_its_time():
    import time

    def slow(q, k, v, *, scale, causal):
        time.sleep(0.004)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale)

    (row,) = measure(slow, [SMALL], arrays="torch")["rows"]
    assert row["torch"]["latency_min_us"] < 4000 < row["latency_min_us"]


def test_a_verdict_goes_before_each_time(mine):
    results = measure(f"{mine}:wrong_when_long", [Case(seqlen=8, head_dim=8), SMALL])
    right, bad = results["rows"]
    of_times(right, ("latency",))
    assert (bad["verdict"], bad["origin"]) == ("bug", "out")
    assert bad["refused"] == "correctness first: bug, first wrong stage out"
    assert bad["diff_command"] == f"workbench diff {mine}:wrong_when_long --seqlen 24 --head-dim 8"
    assert all(bad[name] is None for name in (*TIMES, "kernel_ratio", "latency_ratio"))
    assert all(bad["torch"][name] is None for name in TIMES)
    assert wrong(results)


@pytest.mark.parametrize(
    ("function", "other"),
    [
        ("right_once", "a second run gives a different result than the judged one"),
        ("runs_once", "a second run raised AssertionError: once"),
    ],
)
def test_what_does_not_repeat_is_not_timed(mine, function, other):
    results = measure(f"{mine}:{function}", [SMALL])
    (row,) = results["rows"]
    assert (row["verdict"], row["refused"]) == ("rounding", f"correctness first: {other}")
    assert row["latency_us"] is row["torch"]["latency_us"] is None and wrong(results)


def test_an_untestable_kernel_is_not_timed(mine):
    """Scores of 1e10 are off by hundreds in float32: their exponentials may be anything."""
    (row,) = measure(f"{mine}:probs", [SMALL.but(input_std=1e5)])["rows"]
    assert row["verdict"] == "untestable" and row["latency_us"] is None
    assert row["refused"] == "correctness first: untestable, nothing could be judged"


def test_what_a_kernel_does_not_take_is_listed_and_no_failure(mine):
    result = command(f"{mine}:fussy", "--seqlen", "8", "--head-dim", "4,8")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert re.fullmatch(r"--seqlen 8 --head-dim 4  -         -       -  +-  +- *", lines[1])
    assert f"not timed: --seqlen 8 --head-dim 4: {mine}:fussy raised on numpy arrays:" in lines
    assert "ValueError: head_dim must be a multiple of 8" in lines


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize(
    "changes",
    [
        {"heads": 4, "kv_heads": 2},
        {"seqlen_q": 5, "causal": True},
        {"seqlen_q": 5, "causal": True, "causal_alignment": "top-left"},
        {"seqlen_q": 1, "causal": True, "scale": 0.3},
        {"block_q": 16, "splits": 2, "codes": "e4m3", "probs_dtype": "float16"},
    ],
)
def test_torch_computes_the_same(changes):
    """Groups of heads, both alignments, a scale, whatever kernels of ours are told: it is judged on all of them."""
    call = bench_kernel._peer(SMALL.but(**changes), "float32", False)
    assert isinstance(call, latency.Call), call
    assert call.right(call.run()) and not call.right(2 * call.run())


def test_a_peer_that_is_wrong_gives_no_ratio(mine, monkeypatch):
    monkeypatch.setattr(torch.nn.functional, PEER, lambda q, k, v, **_: v)
    results = measure(f"{mine}:attention", [SMALL])
    (row,) = results["rows"]
    of_times(row, ("latency",))
    assert row["torch"]["refused"] == f"{PEER} itself is judged bug here"
    assert row["latency_ratio"] is row["torch"]["latency_us"] is None
    assert f"no ratio: --seqlen 24 --head-dim 8: {PEER} itself is judged bug here" in sentences(results)


def test_options_of_foreign_kernels_reach_them(mine):
    result = command(f"{mine}:batched", "--arrays", "torch,layout=bshd", "--heads", "2", "--seqlen", "9")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[1].startswith("--seqlen 9 --heads 2  rounding  -  ")


def test_the_seven_shapes_are_the_default(mine, monkeypatch):
    assert [(case.seqlen_q, case.seqlen_k, case.head_dim) for case in CASES] == [(n, n, d) for n, d in SHAPES]
    given = []
    monkeypatch.setattr(bench_kernel, "measure", lambda target, cases, **options: given.append((cases, options)) or {})
    for words in ((), ("--dtype", "float32,float16"), ("--head-dim", "32"), ("--fault", "flash-no-correction")):
        command("flash", *words)
    default, dtypes, one, faulty = (cases for cases, _ in given)
    assert default == list(CASES)
    assert dtypes == [case.but(dtype=dtype) for case in CASES for dtype in ("float32", "float16")]
    assert one == [Case(head_dim=32)]
    assert given[-1][1] == {"faults": ("flash-no-correction",), "probes": "all", "backend": "auto"}
    assert [(case.seqlen_k, case.head_dim) for case in faulty] == list(SHAPES)


def test_the_screen_and_the_document(mine):
    words = (f"{mine}:wrong_when_long", "--seqlen", "8,24", "--head-dim", "8")
    result = command(*words)
    assert result.exit_code == 1
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    header = "case                      verdict   origin  latency us +torch latency us +latency ratio"
    assert re.fullmatch(header, lines[0])
    spread = r"[\d.]+ \([\d.]+-[\d.]+\)"
    assert re.fullmatch(rf"--seqlen 8 --head-dim 8   rounding  -       {spread} +{spread} +[\d.e+-]+", lines[1])
    assert re.fullmatch(r"--seqlen 24 --head-dim 8  bug       out     - +- +-", lines[2])
    assert lines[3:] == [
        f"{mine}:wrong_when_long vs scaled_dot_product_attention of torch {torch.__version__} on cpu: "
        "median (10th to 90th percentile); a ratio below 1 is faster than torch",
        "not timed: --seqlen 24 --head-dim 8: correctness first: bug, first wrong stage out",
        f"  workbench diff {mine}:wrong_when_long --seqlen 24 --head-dim 8",
    ]
    result = command(*words, "--json")
    assert result.exit_code == 1
    assert [row["verdict"] for row in json.loads(result.stdout)["rows"]] == ["rounding", "bug"]


def test_numbers_have_three_digits_and_no_exponent():
    assert [bench_kernel._digits(us) for us in (4.2049, 42.05, 420.4, 42049.9)] == ["4.20", "42.0", "420", "42050"]


def test_kernel_times_have_columns_where_there_is_a_gpu():
    times = {f"{kind}_{suffix}": 4.0 for kind in KINDS for suffix in PERCENTILES}
    none = dict.fromkeys(times)
    row = {"case": SMALL.as_dict(), "verdict": "rounding", "origin": None, "refused": None, "diff_command": "", **none}
    row |= times | {f"kernel_{suffix}": None for suffix in PERCENTILES} | {"no_kernel_us": "why"}
    row |= {"torch": {"refused": None, "no_kernel_us": None, **times}, "kernel_ratio": None, "latency_ratio": 1.0}
    results = {"target": "x.py:f", "backend": "foreign", "device": "a GPU", "versions": {"torch": "2"}, "rows": [row]}
    results["launches"] = 20
    ((cells,),) = tables(results)
    assert cells == {
        "case": "--seqlen 24 --head-dim 8",
        "verdict": "rounding",
        "origin": "-",
        "kernel us": "-",
        "torch kernel us": "4.00 (4.00-4.00)",
        "kernel ratio": None,
        "latency us": "4.00 (4.00-4.00)",
        "torch latency us": "4.00 (4.00-4.00)",
        "latency ratio": 1.0,
    }
    assert sentences(results)[1:] == ["no kernel time for x.py:f: --seqlen 24 --head-dim 8: why"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["flsh"],
            "bench kernel takes a built-in kernel (flash, flash_tensor, flash_mma, flash_wgmma, split_k, split_mma, fp8, fp8_mma, fp8_wgmma) or yours as path.py:function; got 'flsh'",
        ),
        (
            ["run.safetensors"],
            "bench kernel takes a built-in kernel (flash, flash_tensor, flash_mma, flash_wgmma, split_k, split_mma, fp8, fp8_mma, fp8_wgmma) or yours as path.py:function; got 'run.safetensors'",
        ),
        (
            ["flash", "--backend", "emulator"],
            "backend of bench kernel must be auto or cuda: emulator times say nothing about a GPU; got 'emulator'",
        ),
        (["nowhere.py:f"], "nowhere.py: no such file"),
        (
            ["MINE:reduce"],
            "bench kernel times attention on q, k and v only; MINE:reduce reads partial_O, partial_max, partial_sum",
        ),
        (
            ["MINE:on_codes"],
            "bench kernel times attention on q, k and v only; MINE:on_codes reads scale_q, scale_k, scale_v",
        ),
        (
            ["MINE:attention", "--fault", "flash-no-correction"],
            "--fault is for built-in kernels (flash, flash_tensor, flash_mma, flash_wgmma, split_k, split_mma, fp8, fp8_mma, fp8_wgmma); MINE:attention is not built in",
        ),
        (["MINE:attention", "--arrays", "layout=bsdh"], "layout must be one of bhsd, bshd, strided; got 'bsdh'"),
        (
            ["MINE:attention", "--arrays", "jax"],
            "JAX functions cannot be timed: they return early and do not run on torch's streams",
        ),
        (["MINE:attention", "--dtype", "float8"], "--dtype must be one of float32, float16, bfloat16; got 'float8'"),
    ],
)
def test_wrong_usage_is_refused_whole(words, message, mine):
    result = command(*(word.replace("MINE", mine) for word in words))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1] == f"workbench: {message.replace('MINE', mine)}"


@pytest.mark.skipif(gpu() is not None, reason="there is a GPU")
@pytest.mark.parametrize("words", [["flash"], ["fp8", "--backend", "cuda"]])
def test_our_kernels_need_a_gpu(words):
    result = command(*words)
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == (
        f"workbench: timing {words[0]} needs an NVIDIA GPU; none was found. `workbench doctor` shows what is installed\n"
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch has a GPU")
def test_a_gpu_that_torch_does_not_find(mine):
    message = f"timing mine.py:batched against PyTorch needs a GPU; torch {torch.__version__} finds none"
    with pytest.raises(Unavailable) as missing:
        measure(f"{mine}:batched", [SMALL], arrays="torch", device="cuda")
    assert str(missing.value).endswith(message.removeprefix("timing "))


def test_a_callable_is_named_by_itself():
    def flash(q, k, v, *, scale, causal):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale)

    results = measure(flash, [SMALL], arrays="torch")
    assert (results["target"], results["backend"]) == ("flash", "foreign")
    with pytest.raises(
        Refusal,
        match="^--codes scores is for built-in quantised kernels .fp8, fp8_mma, fp8_wgmma.; flash is not built in$",
    ):
        measure(flash, [SMALL.but(scores="mma")], arrays="torch")


def test_a_faulty_kernel_of_ours_is_refused_before_it_is_built(monkeypatch):
    """The judged run is the emulator's here; what times a kernel is never reached."""
    assert cuda_run.gpu is gpu
    on_emulator = partial(run, backend="emulator")
    monkeypatch.setattr(bench_kernel, "run", lambda *given, backend, **options: on_emulator(*given, **options))
    monkeypatch.setattr("workbench.cuda.gpu.gpu", lambda: "a GPU")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    options = ("--head-dim", "8", "--block-q", "16", "--block-k", "16")
    result = command("split_k", "--fault", "reduce-double-counts-sum", "--seqlen", "20", *options)
    assert result.exit_code == 1
    case = "--seqlen 20 --head-dim 8 --splits 2 --block-q 16 --block-k 16"
    assert result.stdout.splitlines()[1:] == [
        f"{case}  bug      merge_weight  -          -                -             -           -                 -            ",
        f"split_k vs scaled_dot_product_attention of torch {torch.__version__} on a GPU: "
        "median (10th to 90th percentile); a ratio below 1 is faster than torch",
        f"not timed: {case}: correctness first: bug, first wrong stage merge_weight",
        f"  workbench diff split_k --fault reduce-double-counts-sum {case}",
    ]
    result = command("fp8", "--seqlen", "4", "--head-dim", "4")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "workbench: kernel fp8 takes head_dim 16 to 128 in multiples of 16; got 4\n"
    result = command("flash", "--seqlen", "4", "--arrays", "layout=bshd")
    assert result.stderr == "workbench: --arrays layout is for your own kernels; flash is built in\n"


# ---- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["flash", "split_k", "fp8"])
def test_our_kernels_are_timed_on_a_gpu(name):
    results = measure(name)
    assert results["device"] == torch.cuda.get_device_name() and results["launches"] == latency.LAUNCHES
    tiny, *others = results["rows"]
    if name == "fp8":
        assert tiny["refused"] == "kernel fp8 takes head_dim 16 to 128 in multiples of 16; got 4"
        assert tiny["verdict"] is None and not wrong(results)
    for row in others if name == "fp8" else results["rows"]:
        assert row["verdict"] in ("exact", "rounding") and row["refused"] is row["torch"]["refused"] is None
        assert row["torch"]["dtype"] == ("float16" if name == "fp8" else "float32")
        for times in (row, row["torch"]):
            of_times(times, KINDS)
            assert times["no_kernel_us"] is None
        assert all(row[f"{kind}_ratio"] == row[f"{kind}_us"] / row["torch"][f"{kind}_us"] for kind in KINDS)


@pytest.mark.gpu
def test_a_faulty_kernel_is_not_timed():
    result = command("split_k", "--fault", "reduce-double-counts-sum", "--seqlen", "64")
    assert result.exit_code == 1
    shown = result.stdout.splitlines()
    assert (
        "not timed: --seqlen 64 --splits 2 --block-q 64 --block-k 64: "
        + ("correctness first: bug, first wrong stage merge_weight")
        in shown
    )
    assert (
        "  workbench diff split_k --fault reduce-double-counts-sum --seqlen 64 --splits 2 "
        + ("--block-q 64 --block-k 64")
        in shown
    )


@pytest.mark.gpu
def test_a_foreign_kernel_on_a_gpu_is_timed_from_a_graph():
    def attention(q, k, v, *, scale, causal):
        probs = torch.softmax(q @ k.transpose(-1, -2) * scale, -1)
        return probs @ v

    (row,) = measure(attention, [Case(seqlen=128)], arrays="torch", device="cuda")["rows"]
    of_times(row, KINDS)
    assert row["kernel_ratio"] > 1, "four kernels or more, beside one"


@pytest.mark.gpu
def test_a_foreign_kernel_that_waits_for_the_host_has_no_kernel_time():
    def attention(q, k, v, *, scale, causal):
        largest = float(q.abs().max())
        return torch.softmax(q @ k.transpose(-1, -2) * scale, -1) @ v + 0 * largest

    results = measure(attention, [Case(seqlen=128), Case(seqlen=64)], arrays="torch", device="cuda")
    for row in results["rows"]:
        of_times(row, ("latency",))
        of_times(row["torch"], KINDS)
        assert row["kernel_us"] is row["kernel_ratio"] is None
        assert row["no_kernel_us"].startswith("CUDA graph capture failed: ")
        assert "captur" in row["no_kernel_us"]
