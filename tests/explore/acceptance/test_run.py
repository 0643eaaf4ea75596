"""Verdicts on functions that cheat, on right ones, and on hostile ones."""

import itertools
import os
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import workbench
from campaigns.cheats import CHEATS, DEVICE, UNSEEN
from tests.python_path import python_path
from workbench import Case, Refusal, Unavailable
from workbench.explore.acceptance import caller as callers
from workbench.explore.acceptance.families import FAMILIES, Problem, problem
from workbench.explore.acceptance.judging import Judge
from workbench.explore.acceptance.run import accept
from workbench.explore.acceptance.spec import Spec
from workbench.report import acceptance as report

RIGHT = """
import numpy as np


def online(q, k, v, *, scale, causal):
    q32, k32, v32 = (np.repeat(x, q.shape[1] // x.shape[1], 1).astype(np.float32) for x in (q, k, v))
    rows, keys = q.shape[2], k.shape[2]
    top = np.full((*q.shape[:3], 1), -np.inf, np.float32)
    total, acc = np.zeros_like(top), np.zeros((*q.shape[:3], v.shape[3]), np.float32)
    for t in range(0, keys, 64):
        scores = q32 @ k32[:, :, t : t + 64].swapaxes(-1, -2) * np.float32(scale)
        if causal:
            hidden = np.arange(t, min(t + 64, keys)) > np.arange(rows)[:, None] + keys - rows
            scores = np.where(hidden, np.float32(-np.inf), scores)
        new = np.maximum(top, scores.max(-1, keepdims=True))
        safe = np.where(new == -np.inf, np.float32(0), new)
        probs, alpha = np.exp(scores - safe), np.exp(top - safe)
        total, acc = total * alpha + probs.sum(-1, keepdims=True), acc * alpha + probs @ v32[:, :, t : t + 64]
        top = new
    return (acc / total).astype(q.dtype), (top + np.log(total))[..., 0]


def sdpa(q, k, v, *, scale, causal):
    import torch

    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2]) if causal else None
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)
"""
HOSTILE = (
    RIGHT
    + """
import ctypes, glob, os, socket


def calls_home(q, k, v, *, scale, causal):
    socket.create_connection(("127.0.0.1", int(os.environ["WORKBENCH_PORT"])), timeout=5)
    return online(q, k, v, scale=scale, causal=causal)


def reads_the_judge(q, k, v, *, scale, causal):
    own = {os.readlink("/proc/self"), str(os.getpid())}
    found = []
    for path in glob.glob("/proc/[0-9]*/mem"):
        if path.split("/")[2] not in own:
            try:
                open(path, "rb").close()
                found.append(path)
            except OSError:
                pass
    if found:
        raise ValueError(f"readable: {found}")
    return online(q, k, v, scale=scale, causal=causal)


def lists_processes(q, k, v, *, scale, causal):
    numbers = [int(path.split("/")[2]) for path in glob.glob("/proc/[0-9]*/stat")]
    if max(numbers) > 2:
        raise ValueError(f"seen: {numbers}")
    return online(q, k, v, scale=scale, causal=causal)


def of_lengths(q, k, v, *, scale, causal, seqlens_k):
    parts = [(q[b : b + 1], k[b : b + 1, :, :n], v[b : b + 1, :, :n]) for b, n in enumerate(seqlens_k)]
    return np.concatenate([online(*part, scale=scale, causal=causal)[0] for part in parts])


def forgets_lengths(q, k, v, *, scale, causal, seqlens_k):
    return online(q, k, v, scale=scale, causal=causal)[0]


def aborts(q, k, v, *, scale, causal):
    os.abort()


def exits(q, k, v, *, scale, causal):
    os._exit(0)


def hangs(q, k, v, *, scale, causal):
    while True:
        pass


def takes_memory(q, k, v, *, scale, causal):
    held = np.ones(2**27)
    while True:
        held += 1


def coarse(q, k, v, *, scale, causal):
    import ml_dtypes

    return online(q, k, v, scale=scale, causal=causal)[0].astype(ml_dtypes.bfloat16)


def writes_beside(q, k, v, *, scale, causal):
    out = online(q, k, v, scale=scale, causal=causal)
    byte = (ctypes.c_uint8 * 1).from_address(q.ctypes.data - 1)
    byte[0] = 0
    return out


def alone_other(q, k, v, *, scale, causal):
    out = online(q, k, v, scale=scale, causal=causal)[0]
    return out if q.shape[0] == 1 else np.nextafter(out, np.float32(9))
"""
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("accept") / "functions.py"
    made.write_text(HOSTILE)
    return made


@pytest.fixture
def in_cases(monkeypatch):
    """in_cases(n): the time of a run is up after n cases, on a slow machine and on a fast one."""

    def end(cases: int) -> float:
        begun, seconds = time.monotonic(), 1000.0
        readings = itertools.count(-1)  # one when the function has answered once, one before each case
        clock = SimpleNamespace(monotonic=lambda: begun + seconds * next(readings) / cases)
        monkeypatch.setattr("workbench.explore.acceptance.run.time", clock)
        return seconds

    return end


@pytest.mark.parametrize("cheat", [one for one in CHEATS if one.path.endswith("first.py")], ids=lambda one: one.name)
def test_a_cheat_fails(cheat):
    found = accept(cheat.target, cheat.spec)
    assert (found.verdict, found.failure.kind) == (
        "fail",
        "overwritten" if cheat.name == "input_overwritten" else "wrong",
    )


@pytest.mark.parametrize(
    ("name", "arrays", "dtype"),
    [
        ("online", "numpy", "float32"),
        ("sdpa", "torch", "bfloat16"),
        *(pytest.param("sdpa", "torch", dtype, marks=pytest.mark.campaign) for dtype in ("float32", "float16")),
    ],
)
def test_a_right_function_passes(file, in_cases, name, arrays, dtype):
    short = {"from": 1, "to": 48}
    case = {"dtype": dtype, "seqlen_q": short, "seqlen_k": short, "head_dim": [32]}
    found = accept(f"{file}:{name}", {"arrays": arrays, "case": case}, seconds=in_cases(2 * len(FAMILIES)))
    assert found.verdict == "pass", str(found)
    assert len(found.due) < found.cases and found.deterministic and 0 < found.worst < 1


def test_a_function_has_no_network(file, monkeypatch):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("WORKBENCH_PORT", str(server.getsockname()[1]))
        found = accept(f"{file}:calls_home", seconds=1)
        assert found.failure.kind == "raised" and "OSError" in found.failure.words.splitlines()[-1]
        assert accept(f"{file}:calls_home", unsafe=True, seed=1, only=0).passed


def test_a_function_cannot_open_the_memory_of_another_process(file):
    assert accept(f"{file}:reads_the_judge", seed=1, only=0).passed


def test_a_function_sees_no_process_but_its_own(file):
    assert accept(f"{file}:lists_processes", seed=1, only=0).passed


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("aborts", "ended", "SIGABRT"),
        ("exits", "ended", "exit code 0"),
        ("coarse", "dtype", "bfloat16"),
        ("writes_beside", "overwritten", "memory around its inputs"),
        ("absent", None, ""),
    ],
)
def test_a_function_that_does_not_return_numbers_fails(file, name, kind, words):
    if kind is None:
        with pytest.raises(Refusal, match="defines no function 'absent'"):
            accept(f"{file}:{name}")
        return
    found = accept(f"{file}:{name}", seed=1, only=0)
    assert found.verdict == "fail" and found.failure.kind == kind and words in found.failure.words


def test_a_function_is_ended_at_its_limits(file, monkeypatch):
    monkeypatch.setattr("workbench.explore.acceptance.run.LOAD_S", 0.5)
    assert accept(f"{file}:hangs", seed=1, only=0).failure.kind == "time"
    monkeypatch.setattr("workbench.explore.acceptance.run.LOAD_S", 30.0)
    assert accept(f"{file}:takes_memory", seed=1, only=0, memory_gb=0.7).failure.kind == "memory"


def test_where_there_is_no_own_proc_a_gpu_that_lacks_is_told_why(file, tmp_path, monkeypatch):
    """In a container with a masked /proc, Linux lets a new namespace mount none, and CUDA finds no GPU without one."""
    pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "sitecustomize.py").write_text(
        "from workbench.explore.acceptance import namespaces\nnamespaces._PRIVATE = -1  # no flags of mount\n"
    )
    monkeypatch.setenv("PYTHONPATH", python_path(tmp_path))
    with pytest.raises(Unavailable, match="needs its own /proc for CUDA"):
        accept(f"{file}:sdpa", {"arrays": "torch", "device": "cuda"}, seed=1, only=0)


def test_a_machine_without_namespaces_is_refused_unless_it_is_unsafe(file, monkeypatch):
    monkeypatch.setattr(callers.worker, "TOGETHER", callers.worker.APART)
    with pytest.raises(Unavailable, match="--unsafe"):
        accept(f"{file}:online")


def test_bits_that_depend_on_the_batch_fail_where_the_spec_asks(file, in_cases):
    spec = {"batch_invariant": True, "case": {"batch": 2}, "without": [name for name in FAMILIES if name != "beside"]}
    assert accept(f"{file}:online", spec, seconds=in_cases(10)).passed
    found = accept(f"{file}:alone_other", spec, seconds=in_cases(10))
    assert found.failure.kind == "bits" and "in a batch of 2 than alone" in found.failure.words


def test_poison_behind_the_end_of_a_sequence_is_not_read(file, in_cases):
    rest = tuple(name for name in FAMILIES if name != "lengths")
    spec = {"case": {"feature": ["padded"], "seqlen_q": 4}, "without": rest}
    assert accept(f"{file}:of_lengths", spec, seconds=in_cases(10)).passed
    assert accept(f"{file}:forgets_lengths", spec, seconds=in_cases(10)).failure.kind == "wrong"


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("again", "cache_probs_by_shape"), ("nudged", "cache_by_corners"), ("nudged", "cache_by_strided_hash"),
        ("swapped", "cache_by_checksum"), ("decode", "unequal_decode_drops_last"), ("quiet", "mean_v_if_scores_small"),
        ("cold", "mask_set_minus_30"), ("denormal", "denormal_k_flushed"),
        ("louder", "max_from_first_call"), ("tail", "tail_key_dropped_at_129"), ("square", "out_in_v"),
    ],
)  # fmt: skip
def test_a_family_shows_what_it_is_for(family, name):
    one = next(cheat for cheat in [*UNSEEN, *DEVICE] if cheat.name == name)
    alone = {**one.spec, "without": [other for other in FAMILIES if other != family]}
    assert accept(one.target, alone, seconds=100).failure.kind == ("overwritten" if name == "out_in_v" else "wrong")


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("offset_ignored", "wrong", ""),
        ("cached_by_id", "wrong", "the result of the previous call"),
        ("lazy_subclass", "raised", "not of its subclass _Lazy"),
        ("lazy_with_grad", "wrong", ""),
        pytest.param("lazy_without_grad", "wrong", "", marks=pytest.mark.campaign),
    ],
)
def test_what_shows_in_tensors_of_torch_alone(name, kind, words):
    """Their offset in memory, who they are, their class, and whether autograd records."""
    one = next(cheat for cheat in DEVICE if cheat.name == name)
    found = accept(one.target, one.spec, seconds=100)
    assert found.failure.kind == kind and words in found.failure.words


@pytest.mark.parametrize("name", ["stale_shared_buffer", "t_thread_overwrites"])
def test_a_result_that_changes_later(name, in_cases):
    """One that the next call overwrites fails where the spec asks for fresh ones; one that changes by itself always."""
    one = next(cheat for cheat in UNSEEN if cheat.name == name)
    found = accept(one.target, one.spec, seconds=100)
    assert found.failure.kind == "overwritten" and "of the previous call" in found.failure.words
    changes = name == "t_thread_overwrites"  # after a while, which a busy machine makes longer
    reused = accept(one.target, {**one.spec, "fresh": False}, seconds=60 if changes else in_cases(2 * len(FAMILIES)))
    assert (reused.verdict == "fail") == changes


def test_of_a_call_that_failed_no_result_is_held(tmp_path):
    """The next one is not asked for what the failed one left."""
    path = tmp_path / "odd.py"
    path.write_text(
        "import numpy as np\n\n\ndef odd(q, k, v, *, scale, causal):\n"
        "    return np.zeros(q.shape, np.float16 if q.shape[2] == 3 else np.float32)\n"
    )
    where = {"arrays": "numpy", "device": None, "layout": "bhsd", "unsafe": False, "memory_gb": 8.0}
    with callers.started(f"{path}:odd", **where, fresh=True) as caller:

        def call(rows):
            one = Problem("random", Case(seqlen=rows))
            return caller.call(one.case, one.arrays, one.lying, None)

        call(4)
        with pytest.raises(callers.Fault, match="out must be float32"):
            call(3)
        assert call(5).stages["out"].shape[2] == 5


def test_a_maximum_with_headroom_may_round_exact_inputs(in_cases):
    """A silent spec allows it; one that says row_max=running does not."""
    rest = [name for name in FAMILIES if name != "exact"]
    style = str(Path(__file__).parent / "headroom.py") + ":attention"
    short = {"seqlen_q": 16, "seqlen_k": {"from": 64, "to": 128}, "head_dim": [32]}
    spec = {"case": {"dtype": "float16", "kv_heads": 1, "group": 1, "batch": 1, **short}, "without": rest}
    assert accept(style, spec, seconds=in_cases(4)).passed
    told = {**spec, "contract": {"row_max": "running"}}
    assert accept(style, told, seconds=in_cases(20)).failure.kind == "wrong"


def test_too_little_time_is_no_pass(file):
    found = accept(f"{file}:online", seconds=0.001)
    assert found.verdict == "unfinished" and not found.passed and found.lacking


def test_a_failure_is_repeated_by_its_seed_and_place():
    one = next(cheat for cheat in CHEATS if cheat.name == "cached_answer")
    found = accept(one.target, one.spec)
    again = accept(one.target, one.spec, seed=found.seed, only=found.failure.index)
    assert "it returned the result of the previous call" in again.failure.words and again.explain() is None
    assert again.failure.problem.case == found.failure.problem.case
    assert again.failure.judged["out"].decisive.summary.worst == found.failure.judged["out"].decisive.summary.worst


def test_seeds_are_the_operating_system_s(file):
    assert len({accept(f"{file}:exits").seed for _ in range(2)}) == 2


def test_a_cause_is_searched_on_request(file):
    one = next(cheat for cheat in CHEATS if cheat.name == "skipped_softcap")
    found = accept(one.target, one.spec, seed=3, only=0)
    why = found.explain(0.1)
    assert why.smallest.seqlen_k <= found.failure.problem.case.seqlen_k
    said = report.explained(why)  # the cause as explain says it, with its proof, and then the smallest case
    assert said[0] == "out: scores are not capped" and said[1].startswith("  proof: reproduces ")
    assert any(line.startswith("smallest: ") for line in said)


def test_descriptors_are_closed(file):
    before = len(os.listdir("/proc/self/fd"))
    accept(f"{file}:exits", seed=1, only=0)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_callable_needs_a_file():
    with pytest.raises(Refusal, match="give it as path.py:function"):
        workbench.accept(lambda q, k, v, *, scale, causal: q)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in ("listed", "lengths", "bend", "beside")])
def test_problems_are_the_same_for_a_seed_and_lie_in_the_spec(name):
    spec = Spec(case={"dtype": "float16"}, without=tuple(x for x in FAMILIES if x != name))
    for index in range(3):
        one, same = problem(spec, 5, index), problem(spec, 5, index)
        assert one.family == name and one.case == same.case and one.lying == same.lying
        case = one.case
        assert case.seqlen_q <= 256 and case.seqlen_k <= 256 and case.dtype == "float16"
        assert not case.causal or case.seqlen_q <= case.seqlen_k
        for key, x in one.arrays.items():
            assert np.array_equal(x, same.arrays[key]) and np.isfinite(x.astype(np.float32)).all()


def test_a_case_that_is_large_has_few_queries():
    one = problem(Spec(case={"seqlen_k": 65536}, without=tuple(x for x in FAMILIES if x != "comb")), 1, 0)
    assert one.case.seqlen_k == 65536 and isinstance(one.case, Case)
    assert one.case.score_count * one.case.head_dim <= 1 << 24


def test_a_function_of_a_package_is_judged_by_what_is_known_of_it_on_its_device() -> None:
    case = Case(seqlen=8, head_dim=16, causal=True)

    def promised(target: str, spec: Spec) -> object:
        return Judge(SimpleNamespace(target=target), spec)._contract(case)  # type: ignore[arg-type]

    fla = "fla.ops:parallel_attn"
    assert [promised(fla, Spec(device=x)).get("input_precision") for x in (None, "cuda", "cpu")] == [
        "tf32",
        "tf32",
        None,
    ]  # type: ignore[attr-defined]
    assert promised(fla, Spec(contract="triton")) == "triton"
    assert promised("mine.py:attention", Spec()) is None
