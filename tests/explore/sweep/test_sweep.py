"""Sweeps: every case a row whatever it does to its process, and the same rows whatever becomes of what runs them."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from tests.explore.sweep.conftest import kernel
from tests.refusals import refusal
from workbench import Case, Refusal, Unavailable, sweep
from workbench.cuda.gpu import gpu
from workbench.explore.sweep import place, worker
from workbench.explore.sweep.ask import Ask
from workbench.explore.sweep.pool import answers
from workbench.explore.sweep.sweep import Sweep
from workbench.explore.sweep.sweep import load as load_sweep
from workbench.foreign.isolation import Limits
from workbench.trace.file import load

#: lengths of which some are a multiple of 4, each with and without causal, in two dtypes
CASES = [
    Case(seqlen=n, head_dim=8, causal=causal, dtype=dtype)
    for n, causal, dtype in product((32, 33, 34, 36, 39, 40), (False, True), ("float32", "float16"))
]
#: of which two end their process, or raise, in the kernels that do
LENGTHS = [Case(seqlen=n, head_dim=4, causal=causal) for n, causal in product(range(4, 20), (False, True))]


def told(found: Sweep) -> list[dict[str, Any]]:
    """What rows say of the kernel: all but when and where they ran."""
    rows = [row.as_dict() for row in found.rows]
    return [{name: x for name, x in row.items() if name not in ("seconds", "ran")} for row in rows]


@pytest.fixture(scope="module")
def two_faults(tmp_path_factory: pytest.TempPathFactory, pool: Executor) -> Sweep:
    folder = tmp_path_factory.mktemp("two")
    return sweep(kernel(folder / "k", "scale", "base 2"), CASES, out=folder / "s.sqlite", executor=pool)


# --- what fails, and where


@pytest.mark.campaign
def test_two_faults_are_two_groups_with_their_causes_and_where_each_fails(two_faults: Sweep) -> None:
    assert two_faults.left == 0 and two_faults.fails and len(two_faults.rows) == len(CASES) == 24
    groups = {one.origin: one for one in two_faults.groups}
    assert {*groups} == {"scores", "lse"} and len(two_faults.groups) == 2
    scale, base = groups["scores"], groups["lse"]
    assert (scale.kind, scale.rule and scale.rule.terms) == ("the scale is applied twice", ("causal",))
    assert scale.text == "the scale is applied twice"
    assert base.kind == "lse is in base N, not in base e" and base.text == "lse is in base 2, not in base e"
    assert base.rule is not None and base.rule.terms == ("seqlen % 4 != 0",)
    assert {row.case for row in scale.rows} == {case for case in CASES if case.causal}
    assert {row.case for row in base.rows} == {case for case in CASES if case.seqlen_k % 4}
    assert base.smallest.case == Case(seqlen=33, head_dim=8) and base.rule.certain and scale.rule.certain
    lengths = next(one for one in base.boundaries if one.field == "seqlen")
    assert lengths.values == ((32, 0, 4), (33, 4, 4), (34, 4, 4), (36, 0, 4), (39, 4, 4), (40, 0, 4))


def test_one_search_explains_a_group(two_faults: Sweep) -> None:
    for origin, searched in (("scores", 1), ("lse", 1)):
        (group,) = (one for one in two_faults.groups if one.origin == origin)
        assert group.searched <= searched + 1, "another stage of the same case may have been searched with it"
        causes = [row.causes[origin] for row in group.rows]
        assert len(causes) == 12 and all(cause is not None and cause.kind == group.kind for cause in causes)


def test_rows_hold_what_sweeps_are_compared_by(two_faults: Sweep) -> None:
    (row,) = (one for one in two_faults.rows if one.case == Case(seqlen=33, head_dim=8, causal=True))
    assert (row.outcome, row.origins) == ("bug", ("scores", "lse")) and row.reason == ""
    assert row.over_budget is not None and row.over_budget > 1e3 and len(row.bits or "") == 64
    assert {name: verdict for name, (verdict, _) in row.stages.items()} == dict(scores="bug", out="rounding", lse="bug")
    assert {"machine", "device", "versions", "code"} <= {*row.ran} and two_faults.codes == 1
    assert row.seconds > 0


def test_each_failure_keeps_its_trace(two_faults: Sweep) -> None:
    failing = [row for row in two_faults.rows if row.fails]
    assert len(failing) == 18
    for row in failing:
        path = two_faults.trace_of(row)
        assert path is not None and path.name == f"{row.id}.safetensors"
    assert load(path).case == failing[-1].case
    assert not any(two_faults.trace_of(row) for row in two_faults.rows if not row.fails)


def test_a_right_kernel_has_no_group(tmp_path: Path, pool: Executor) -> None:
    found = sweep(kernel(tmp_path / "k"), CASES[:6], out=tmp_path / "s.sqlite", executor=pool)
    assert not found.fails and found.groups == () and {*found.outcomes} <= {"exact", "rounding"}
    assert len(found.rows) == 6 and not (tmp_path / "s.traces").exists()


@pytest.mark.campaign
def test_what_ends_or_keeps_a_process_is_a_row_with_the_reason(tmp_path: Path, pool: Executor) -> None:
    target = kernel(tmp_path / "k", "raises", "crashes", "hangs", "grows")
    cases = [Case(seqlen=n, head_dim=4) for n in range(4, 13)]
    found = sweep(target, cases, out=tmp_path / "s.sqlite", executor=pool, timeout=10.0, memory_gb=0.35)
    outcomes = {row.case.seqlen_k: row for row in found.rows}
    assert [outcomes[n].outcome for n in (7, 8, 9, 10)] == ["raised", "crashed", "timeout", "memory"]
    assert all(outcomes[n].outcome in ("exact", "rounding") for n in (4, 5, 6, 11, 12))
    assert "ValueError: no length 7" in outcomes[7].reason
    first, *_, last = outcomes[8].reason.splitlines()
    assert first == "was ended by signal 11 (SIGSEGV, Segmentation fault) before it returned:"
    assert last == "last output: the last words" and 'mine.py", line 9 in attention' in outcomes[8].reason
    assert outcomes[9].reason.startswith("did not return within 10 seconds, and was ended:")
    assert outcomes[10].reason.startswith("took more than 0.35 GB of memory, and was ended:")
    assert [(one.origin, one.kind, len(one.rows)) for one in found.groups] == [
        (None, kind, 1) for kind in ("raised", "crashed", "timeout", "memory")
    ]
    assert found.fails and all(one.rule and not one.rule.certain for one in found.groups)


def test_a_crash_that_an_earlier_case_left_behind_is_not_that_of_the_next(tmp_path: Path, pool: Executor) -> None:
    (tmp_path / "k").mkdir()
    source = "import os\nhad = []\ndef attention(q, k, v, *, scale, causal):\n    if had: os.abort()\n"
    source += "    had.append(1)\n    return v\n"
    (tmp_path / "k/mine.py").write_text(source)
    cases = [Case(seqlen=1, head_dim=n) for n in (1, 2, 3, 4)]  # of one key, whose out is v
    found = sweep(f"{tmp_path}/k/mine.py:attention", cases, out=tmp_path / "s.sqlite", executor=pool)
    assert found.outcomes == {"exact": 4}


# --- whatever becomes of what runs them


def process_of_this_thread() -> int:
    made = worker._own.worker = worker._own.worker or worker.Worker()
    return made.process.pid


@pytest.fixture(scope="module", params=["here", "dask"])
def spread(request: Any) -> Iterator[tuple[Executor, Callable[[], int]]]:
    """Where a sweep spreads over processes, and the number of one of them."""
    if request.param == "here":
        with place.executor(2, None, None) as made:
            yield made, lambda: made.submit(process_of_this_thread).result()
        return
    distributed = pytest.importorskip("distributed", reason="Dask is not installed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        distributed.Client(cluster) as client,
        place.executor(None, cluster.scheduler_address, None) as made,
    ):
        yield made, lambda: next(iter(client.run(os.getpid).values()))


def rows_in(path: Path) -> int:
    try:
        return len(load_sweep(path).rows)
    except (Refusal, sqlite3.Error):  # which is not there yet, or has no tables
        return 0


def until(holds: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, pool: Executor) -> Sweep:
    folder = tmp_path_factory.mktemp("undisturbed")
    return sweep(kernel(folder / "k", "raises", "crashes", "slow"), LENGTHS, out=folder / "s.sqlite", executor=pool)


@pytest.mark.campaign
def test_workers_that_were_started_elsewhere_find_the_files_of_a_sweep(
    tmp_path: Path, spread: tuple[Executor, Callable[[], int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, started = spread
    started()
    kernel(tmp_path / "k")
    monkeypatch.chdir(tmp_path / "k")
    assert sweep("mine.py:attention", CASES[:2], out="s.sqlite", executor=executor).outcomes == {"rounding": 2}
    elsewhere = Ask("mine.py:attention", CASES[0], {}, folder="/no/such/folder")
    with pytest.raises(
        Unavailable, match=r"^cannot enter /no/such/folder, where the sweep runs, on \S+: No such file or directory$"
    ):
        list(answers(executor, [elsewhere], Limits(60)))


@pytest.mark.campaign
def test_a_killed_worker_costs_its_cases_a_retry(
    undisturbed: Sweep, tmp_path: Path, spread: tuple[Executor, Callable[[], int]]
) -> None:
    executor, process = spread
    victim = process()
    out = tmp_path / "s.sqlite"

    def kill() -> None:
        until(lambda: rows_in(out) > 4)
        os.kill(victim, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    found = sweep(undisturbed.plan.target, LENGTHS, out=out, executor=executor)
    killer.join()
    assert not Path(f"/proc/{victim}").exists()
    assert told(found) == told(undisturbed) and {"raised", "crashed", "rounding"} <= {*found.outcomes}


SCRIPT = """
import signal
import sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has what it runs in the background ignore it
from tests.explore.sweep.test_sweep import LENGTHS
from workbench import sweep
sweep(sys.argv[1], LENGTHS, out=sys.argv[2], jobs=2)
"""


def started(target: str, out: Path, temporary: Path) -> subprocess.Popen:
    temporary.mkdir()
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, target, str(out)], env={**os.environ, "TMPDIR": str(temporary)}
    )


@pytest.mark.campaign
def test_a_killed_sweep_goes_on_where_it_stopped(undisturbed: Sweep, tmp_path: Path, pool: Executor) -> None:
    target, out = undisturbed.plan.target, tmp_path / "s.sqlite"
    process = started(target, out, tmp_path / "tmp")
    until(lambda: rows_in(out) > 4)
    process.kill()
    process.wait()
    stopped = rows_in(out)
    assert 4 < stopped < len(LENGTHS) and load_sweep(out).left == len(LENGTHS) - stopped
    until(lambda: not [*(tmp_path / "tmp").iterdir()])
    times = {row.id: row.seconds for row in load_sweep(out).rows}
    found = sweep(target, LENGTHS, out=out, executor=pool, resume=True)
    assert told(found) == told(undisturbed)
    assert all(row.seconds == times[row.id] for row in found.rows if row.id in times), "these did not run again"
    again = sweep(target, LENGTHS, out=out, executor=pool, resume=True)
    assert told(again) == told(found)


@pytest.mark.campaign
def test_ctrl_c_waits_for_no_case(tmp_path: Path) -> None:
    target, out = kernel(tmp_path / "k", "slow", "hangs"), tmp_path / "s.sqlite"
    process = started(target, out, tmp_path / "tmp")
    until(lambda: rows_in(out) > 4)
    time.sleep(1)  # in which a process comes upon the case that hangs for an hour
    process.send_signal(signal.SIGINT)
    process.wait(60)
    assert not [*(tmp_path / "tmp").iterdir()] and 4 < rows_in(out) < len(LENGTHS)


@pytest.mark.campaign
def test_a_process_that_is_lost_again_and_again_ends_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "LIVES", 2)  # to start a process takes a second or two
    (tmp_path / "k").mkdir()
    source = "import os, signal\n\ndef attention(q, k, v, *, scale, causal):\n"
    source += "    os.kill(os.getppid(), signal.SIGKILL)  # of the process that it is forked from\n"
    (tmp_path / "k/mine.py").write_text(source + "    signal.pause()\n")
    with pytest.raises(Unavailable, match=r"failed: BrokenPipeError: the judging process ended"):
        sweep(f"{tmp_path}/k/mine.py:attention", CASES[:1], out=tmp_path / "s.sqlite", jobs=1)


@pytest.mark.campaign
def test_an_executor_that_breaks_loses_no_row(tmp_path: Path) -> None:
    target = kernel(tmp_path / "k", "slow")
    out = tmp_path / "s.sqlite"
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as broken:
        killer = threading.Thread(target=lambda: (until(lambda: rows_in(out) > 1), _kill_workers(broken)))
        killer.start()
        with pytest.raises(Unavailable, match=r"failed: BrokenProcessPool.*Judged cases are kept: continue with --r"):
            sweep(target, CASES, out=out, executor=broken)
        killer.join()
    assert 0 < len(load_sweep(out).rows) < len(CASES)


def _kill_workers(broken: ProcessPoolExecutor) -> None:
    for process in [*broken._processes.values()]:
        process.kill()


# --- what is refused


def test_a_sweep_is_continued_with_the_same_options_alone(two_faults: Sweep) -> None:
    target, out = two_faults.plan.target, two_faults.path
    assert refusal(sweep, target, CASES, out=out) == (
        f"--out {out} exists: continue it with --resume, or use a new file"
    )
    said = refusal(sweep, target, CASES[1:], out=out, resume=True, timeout=5, contract="block_k=16")
    first, *differ = said.splitlines()
    assert first == f"--resume needs the options with which {out} was begun:"
    assert differ[:2] == ['  options: was {}, is {"--contract": "block_k=16"}', "  --timeout: was 300, is 5"]
    assert differ[2].startswith("  cases: was 24 cases, ") and ", is 23 cases, " in differ[2] and len(differ) == 3


def test_nor_after_its_source_was_edited(tmp_path: Path, pool: Executor) -> None:
    out = tmp_path / "s.sqlite"
    sweep(kernel(tmp_path / "k"), CASES[:1], out=out, executor=pool)
    said = refusal(sweep, kernel(tmp_path / "k", "scale"), CASES[:1], out=out, executor=pool, resume=True)
    assert said.splitlines()[1].startswith("  source of TARGET: ")


def test_what_it_cannot_take_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = kernel(tmp_path / "k")
    out = tmp_path / "s.sqlite"
    of = {"out": out}
    assert refusal(sweep, len, CASES, **of) == (
        "a sweep runs its target in other processes: give <built-in function len> as path.py:function"
    )
    assert refusal(sweep, "flash", [], **of) == "a sweep needs at least one case; got none"
    assert refusal(sweep, "flash", CASES, feed={}, **of).endswith("contract, runs; got feed")
    assert refusal(sweep, "flash", CASES, timeout=0, **of) == "timeout must be a number above 0; got 0"
    assert refusal(sweep, "flash", CASES, jobs=1, scheduler="tcp://x", **of) == (
        "a sweep takes one of jobs, scheduler and executor; got jobs and scheduler"
    )
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "distributed", None)
        with pytest.raises(Unavailable) as missing:
            sweep(target, CASES, scheduler="tcp://x", out=tmp_path / "x.sqlite")
    assert str(missing.value) == (
        "--scheduler tcp://x needs distributed, which is not installed here: pip install 'attention-workbench[sweep]'"
    )
    assert not (tmp_path / "x.sqlite").exists()
    assert refusal(load_sweep, tmp_path / "none") == f"{tmp_path}/none: no such file; a sweep writes one with --out"
    (tmp_path / "other").write_text("text")
    assert "is not the file of a sweep" in refusal(load_sweep, tmp_path / "other")
    with pytest.raises(Refusal):
        sweep("nothing", CASES, **of)


@pytest.mark.skipif(gpu() is not None, reason="what is lacking is a GPU, which this machine has")
def test_what_the_machine_lacks_is_no_row(tmp_path: Path, pool: Executor) -> None:
    with pytest.raises(Unavailable, match="backend cuda needs an NVIDIA GPU"):
        sweep("flash", CASES[:1], out=tmp_path / "s.sqlite", executor=pool, backend="cuda")
    assert load_sweep(tmp_path / "s.sqlite").rows == ()


@pytest.mark.campaign
def test_kernels_of_ours_with_a_fault_that_no_line_of_some_builds_has(tmp_path: Path, pool: Executor) -> None:
    cases = [
        Case(seqlen=n, head_dim=8, block_q=16, block_k=16, causal=c) for n in (15, 16, 20, 33) for c in (0 > 1, True)
    ]
    options: dict[str, Any] = {"faults": ("flash-causal-off-by-one",), "backend": "emulator"}
    found = sweep("flash", cases, out=tmp_path / "s.sqlite", executor=pool, **options)
    (group,) = found.groups
    assert Counter(row.fails for row in found.rows) == {True: 4, False: 4}
    assert group.origin == "scores" and group.rule is not None and group.rule.terms == ("causal",)
    assert found.rows[0].settled == {}
