"""What suggests commands: reports, messages and pages, each made in a folder with a file of kernels."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from workbench import Case, Refusal, compare_runs, diff, explain, load, measure, run, save
from workbench.cli.main import commands
from workbench.explore.capturing.report import Report
from workbench.explore.capturing.verdict import Judged
from workbench.explore.sweep.plan import Plan
from workbench.explore.sweep.row import CRASHED, Row
from workbench.judge.explain.hypothesis import Hypothesis
from workbench.judge.explain.measurement import Measurement
from workbench.judge.explain.plausible import Plausible, Range
from workbench.judge.explain.symptom_table import Entry, SymptomTable
from workbench.judge.explain.symptoms import Symptoms
from workbench.operations.call import diff_operation
from workbench.operations.stored import save as save_operation
from workbench.report.page import two_runs
from workbench.report.sweep import repeat

SMALL = ["--seqlen", "8", "--head-dim", "8"]
CASE = Case(seqlen=8, head_dim=8)
OURS_STUCK = "flash --seqlen-q 5 --seqlen-k 20 --head-dim 8 --block-q 16 --block-k 16 --fault flash-barrier-in-branch"
KERNELS = """
import ml_dtypes
import numpy as np
from numba import cuda, float32


def probs(q, k, scale):
    made = np.exp(q @ np.swapaxes(k, -1, -2) * np.float32(scale))
    return made / made.sum(-1, keepdims=True)


def right(q, k, v, *, scale, causal):
    return probs(q, k, scale) @ v


def odd(q, k, v, *, scale, causal):
    wave = np.sin(np.arange(q.shape[2], dtype=np.float32) ** 3)[:, None]
    return probs(q, k, scale) @ v + wave * np.abs(q) ** np.float32(1.5)


def cast(q, k, v, *, scale, causal):
    q, k = (x.astype(ml_dtypes.bfloat16).astype(np.float32) for x in (q, k))
    return probs(q, k, scale) @ v


def in_torch(q, k, v, *, scale, causal):
    import torch
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale, is_causal=causal)


def norm(x, weight, *, eps):
    return x * weight


def naive_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def norm_inputs(seed, dtype, rows=2):
    x = np.random.default_rng(seed).standard_normal((rows, 8)).astype(dtype)
    return {"x": x, "weight": x[0], "eps": 1e-6}


@cuda.jit
def copied(x, y):
    part = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    part[i] = x[i]
    y[i] = part[63 - i]


@cuda.jit
def parted(x):
    if cuda.threadIdx.x == 0:
        cuda.syncthreads()
    x[cuda.threadIdx.x] = float32(0)
    cuda.syncthreads()


def racing(q, k, v, *, scale, causal):
    out = cuda.device_array(64, np.float32)
    copied[1, 64](cuda.to_device(v.ravel()), out)
    return out.copy_to_host().reshape(v.shape)


def stuck(q, k, v, *, scale, causal):
    parted[1, 64](cuda.to_device(v.ravel()))
    return v


def launch():
    copied[1, 64](cuda.to_device(np.arange(64, dtype=np.float32)), cuda.device_array(64, np.float32))
"""
MINE = "my kernel.py"


def cli(*words: str) -> str:
    """What a command says, a refusal among it."""
    shown = CliRunner().invoke(commands, [*words])
    assert shown.exception is None or isinstance(shown.exception, SystemExit | Refusal), shown.exception
    return shown.output + str(shown.exception or "")


def of_runs() -> None:
    """Two captured runs, of which one is wrong in a way that nothing explains, as text and as a page."""
    for side in ("right", "odd"):
        save(run(f"{MINE}:{side}", CASE), f"{side} run/calls/000000.safetensors")
    found = compare_runs("right run", "odd run")
    assert "explain" in str(found) and two_runs.page(found).commands
    in_memory = compare_runs(*({0: load(f"{side} run/calls/000000.safetensors")} for side in ("right", "odd")))
    assert two_runs.page(in_memory).commands == []


def of_symptoms() -> None:
    """Two causes of a table, and what would tell them apart."""
    case = Case(seqlen=8, head_dim=8, causal=True)
    table = SymptomTable("flash", "out", (case,), (Entry(0, 5, 0.12, 0.005),), False, {})
    causes = tuple(Plausible((Hypothesis(f"a.{i}", f"cause {i}", ()),), 0.2, {}, ({},)) for i in range(2))
    measured = Measurement(case, 3, (Range(0.5, 0.5), Range(1.0, 1.0)), 2)
    assert "to decide" in str(Symptoms(table, (), causes, 0, measured, 7, 1.0))


def of_capture() -> None:
    """A call, and a backward pass, that a capture kept."""
    kept = Judged(0, "bug", True, "out", 9.0, 1.0, {})
    told = dict.fromkeys(("calls", "sampled", "judged", "wrong", "doubted", "gradients", "wrong_gradients"), 1)
    report = Report("mine", "my capture", dropped={}, unread={}, worst=None, kept=kept, causes=(), kept_gradients=kept,
                    host_s=1.0, judging_s=1.0, **told)  # fmt: skip
    for folder in ("my capture", "my capture/backward"):
        save(run(f"{MINE}:odd", CASE), f"{folder}/first-wrong.safetensors")
    assert "backward" in str(report)


def of_sweep() -> None:
    """The smallest failing case of a sweep, of a function and of one that ended its process."""
    plan = Plan(f"{MINE}:odd", (CASE,))
    assert repeat(plan, Row(CASE, "bug")) != repeat(plan, Row(CASE, CRASHED))


def at_rest() -> None:
    """A trace of out alone, of which another kernel's inputs show more."""
    save(run(f"{MINE}:right", replace(CASE, seqlen_q=16, seqlen_k=16)), "run.safetensors")
    assert "workbench inputs" in str(diff(load("run.safetensors")))


def with_mapping() -> None:
    """A dump of another program, by a file that says what lies there; by one of Python's no command does."""
    trace = run(f"{MINE}:odd", CASE)
    Path("my dump").mkdir()
    np.savez("my dump/call.npz", out=trace.stages["out"], **trace.inputs)
    tensors = {x: f"call.npz:{x}" for x in ("q", "k", "v", "out")}
    Path("m.toml").write_text("[tensors]\n" + "".join(f'{x} = "{at}"\n' for x, at in tensors.items()))
    assert "workbench explain 'my dump' --mapping m.toml" in cli("diff", "my dump", "--mapping", "m.toml")
    assert "workbench" not in str(diff(load("my dump", mapping={"tensors": tensors})))


def since_a_trace() -> None:
    """What a run says beside an earlier one: to explain it takes no --against."""
    save(run(f"{MINE}:odd", CASE), "earlier.safetensors")
    assert "--against since=" in cli("diff", f"{MINE}:odd", *SMALL, "--against", "since=earlier.safetensors")


def of_a_contract() -> None:
    """A file that is no contract, and what writes one."""
    Path("my contract.json").write_text("[]")
    assert "writes it" in cli("diff", f"{MINE}:right", *SMALL, "--contract", "@my contract.json")
    assert "--measure" in cli("contract", f"{MINE}:right", *SMALL)


def in_the_place_of_kernels(message: str) -> None:
    """What the placeholders of a message stand for."""
    Path("mine.py").write_text(KERNELS.replace("def right", "def attention"))
    Path("run.log").write_text("WB qk 0 0 5 6 100\n")
    save(run(f"{MINE}:right", CASE), "run.safetensors")
    assert "run.log" in message


def of_a_stored_operation() -> None:
    """What is said of a file that holds a run of an operation."""
    save_operation(diff_operation(f"{MINE}:norm", "rmsnorm", axes={"rows": 2, "dim": 16}).run, "my run.safetensors")
    with pytest.raises(Refusal, match="a run of an operation"):
        load("my run.safetensors")


@dataclass(frozen=True)
class Scene:
    """Something that suggests commands, and their kinds."""

    say: Callable[[], Any]
    kinds: tuple[str, ...]
    torch: bool = False
    marks: list[Any] = field(default_factory=list)


COMMAND = "workbench.report.command"
SCENES = {
    "wrong": Scene(lambda: cli("diff", f"{MINE}:odd", *SMALL), (f"{COMMAND}.run_command diff", f"{COMMAND}.run_command explain")),
    "broken laws": Scene(lambda: str(explain(f"{MINE}:odd", CASE, effort=0.01)), (f"{COMMAND}.run_command laws",)),
    "laws": Scene(lambda: cli("laws", f"{MINE}:right", *SMALL, "--invariant"), (f"{COMMAND}.run_command laws",)),
    "a cast": Scene(lambda: str(measure(f"{MINE}:cast", CASE, contract="torch-eager")), (f"{COMMAND}.run_command contract",)),
    "lost unseen": Scene(
        lambda: cli("diff", f"{MINE}:right", "--seqlen", "16", "--head-dim", "8"), (f"{COMMAND}.telling_command diff",)
    ),
    "at rest": Scene(at_rest, (f"{COMMAND}.telling_command inputs",)),
    "a mapping": Scene(with_mapping, (f"{COMMAND}.run_command explain",)),
    "since": Scene(since_a_trace, (f"{COMMAND}.run_command explain",)),
    "against": Scene(
        lambda: cli("diff", f"{MINE}:odd", *SMALL, "--against", f"{MINE}:right"), (f"{COMMAND}.against_command diff",)
    ),
    "races": Scene(lambda: cli("diff", f"{MINE}:racing", *SMALL), (f"{COMMAND}.watch_command check",)),
    "watched": Scene(lambda: cli("check", f"{MINE}:racing", *SMALL), (f"{COMMAND}.check_command check",)),
    "stuck": Scene(lambda: cli("diff", f"{MINE}:stuck", *SMALL), ("workbench.foreign.call._watched_by check",)),
    "ours stuck": Scene(
        lambda: cli("diff", *shlex.split(OURS_STUCK)),
        ("workbench.cuda.run._watched_by check",),
        marks=[pytest.mark.campaign],  # compiles two kernels
    ),
    "no function": Scene(lambda: cli("diff", f"{MINE}:copied"), ("workbench.foreign.target.function check",)),
    "a contract": Scene(of_a_contract, ("workbench.case.presets._of_file contract", "workbench.cli.contract.contract contract")),
    "inputs": Scene(
        lambda: in_the_place_of_kernels(cli("inputs", *SMALL, "--out", "my inputs.npz")), ("workbench.cli.inputs.inputs diff",)
    ),
    "symptoms": Scene(of_symptoms, ("workbench.report.symptoms._deciding inputs",)),
    "capture": Scene(of_capture, ("workbench.report.captured.lines diff",)),
    "sweep": Scene(of_sweep, ("workbench.report.sweep.repeat diff",)),
    "two runs": Scene(of_runs, ("workbench.report.runs.verdict explain", "workbench.report.page.two_runs.page compare-runs")),
    "accept": Scene(
        lambda: cli("accept", f"{MINE}:odd", "--seconds", "60", "--unsafe"), ("workbench.report.acceptance.repeat accept",)
    ),
    "an operation": Scene(
        lambda: cli("diff", f"{MINE}:norm", "--operation", "rmsnorm", "--axes", "rows=2,dim=16"),
        ("workbench.report.operation.operation_command diff",),
    ),
    "a reference": Scene(
        lambda: cli("diff", f"{MINE}:norm", "--reference", f"{MINE}:naive_norm", "--inputs", f"{MINE}:norm_inputs",
                    "--dtype", "float16", "--axes", "rows=3", "--contract", "exp_ulps=3", "--seed", "1"),
        ("workbench.operations.reference.repeat.repeat_command diff",),
    ),
    "a stored operation": Scene(of_a_stored_operation, ("workbench.trace.file._read diff",)),
    "gradients": Scene(
        lambda: cli("laws", f"{MINE}:in_torch", "--operation", "attention_backward,gradients", "--axes", "queries=4,keys=4"),
        ("workbench.report.operation.operation_command laws",),
        torch=True,
    ),
}  # fmt: skip
