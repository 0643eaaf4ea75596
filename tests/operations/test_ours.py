"""Kernels of ours as functions of operations: the right ones are right, and each fault is found where it says."""

import shlex
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.fault_rules import broken_rules
from tests.refusals import invoked, refusal
from workbench.cuda import operation_run, run
from workbench.cuda.faults import backward
from workbench.cuda.gpu import Gpu
from workbench.cuda.kernels import OF_OPERATIONS
from workbench.explore.laws.backward_every import GRADIENT_LAWS, gradient_laws
from workbench.operations.call import check_operation, diff_operation
from workbench.operations.every import OPERATIONS
from workbench.operations.judge import OperationDiff, judged
from workbench.refusal import Unavailable
from workbench.report.operation import repeat_command

BACKWARD = OPERATIONS["attention_backward"]
RESULTS = ("dq", "dk", "dv")
#: those of the package; where campaigns ran before in this process the catalogue has more
FAULTS = {fault.id: fault for fault in backward.FAULTS}
#: batches, groups of three heads, several tiles of which the last is not full, dims that fill no tile, v of others
RAGGED = {"batch": 2, "heads": 6, "kv_heads": 2, "queries": 75, "keys": 70, "dim": 24, "dim_v": 16}
#: faults that numbers show in some orders of threads and blocks alone
RACES = [id for id, fault in FAULTS.items() if fault.finding == "race"]


def made(kernel: str, **given: Any) -> OperationDiff:
    return diff_operation(kernel, "attention_backward", backend="emulator", **given)


def from_gradients(found: OperationDiff) -> OperationDiff:
    return judged(replace(found.run, stages={name: found.run.stages[name] for name in RESULTS}))


RUNS = [(kernel, dtype) for dtype in ("bfloat16", "float32", "float16") for kernel in OF_OPERATIONS]
RUNS = [(kernel, dtype) for kernel, dtype in RUNS if dtype in OF_OPERATIONS[kernel].dtypes]
#: each with a mask and without; the first two are of two kernels
MASKED = [(*RUNS[(n + step) % len(RUNS)], not step) for n in range(len(RUNS)) for step in (0, 1)]


@pytest.mark.campaign(but=2)
@pytest.mark.parametrize(("kernel", "dtype", "causal"), MASKED)
def test_right_kernels_are_right(kernel: str, dtype: str, causal: bool) -> None:
    for n, distribution in enumerate(BACKWARD.distributions):
        axes = RAGGED if n % 2 else {**RAGGED, "queries": 70, "keys": 75, "kv_heads": 6}
        got = made(kernel, axes=axes, dtype=dtype, distribution=distribution, seed=n, numbers={"causal": causal})
        assert got.verdict in ("exact", "rounding"), str(got)
        casts = [] if dtype == "float32" else ["probs_cast", "dscores_cast"]
        dumped = {"qk", "scores", "probs", "dprobs", "delta", "dscores", *casts, *RESULTS}
        assert {stage.name for stage in got.stages} == dumped and from_gradients(got).verdict == "rounding"


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("sizes", [{"queries": 1, "keys": 1}, {"queries": 50, "keys": 3}, {"dim": 128}, {"dim_v": 56}])
@pytest.mark.parametrize("kernel", OF_OPERATIONS)
def test_edges_are_right(kernel: str, sizes: dict[str, int]) -> None:
    """A tile of one pair; more queries than keys, most of which see none; the largest dims, which have smaller tiles."""
    axes = {"dim": 8, "dim_v": 8, "queries": 20, "keys": 37, **sizes}
    got = made(kernel, axes=axes, dtype=OF_OPERATIONS[kernel].dtypes[0], numbers={"causal": 1})
    assert got.verdict in ("exact", "rounding"), str(got)
    if sizes.get("queries") == 50:
        # row 47 sees one key, so that its dS is 0 but for rounding
        assert not got.run.stages["dq"][:, :, :47].any() and got.run.stages["dq"][:, :, 48:].all()


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("id", [id for id, fault in FAULTS.items() if fault.stages])
def test_a_fault_shows_at_its_stage_first_and_in_the_gradients(id: str) -> None:
    fault = FAULTS[id]
    got = made(fault.kernel, faults=[id])
    assert got.origin in fault.stages and got.verdict == "bug"
    # products of numbers in 16 bits are off by less than 16 bits of gradients show
    assert from_gradients(got).origin in (RESULTS if id != "backward-dscores-in-16-bits" else (None,))


def test_what_a_fault_changes_is_in_the_kernel_and_no_two_are_one() -> None:
    assert broken_rules(FAULTS.values()) == []
    assert len({(fault.kernel, fault.before, fault.after) for fault in FAULTS.values()}) == len(FAULTS) >= 12
    fault = FAULTS["backward-dq-unscaled"]
    elsewhere = replace(fault, kernel="backward_atomic", stages=("merge_max",), summary="")
    assert [line.partition(": ")[2] for line in broken_rules([elsewhere])] == [
        "what it changes is not in what is built of the case that it needs",
        "backward_atomic has no stages merge_max",
        "it has a summary and a source",
    ]


SMALL = {"heads": 2, "kv_heads": 2, "queries": 40, "keys": 48, "dim": 16, "dim_v": 16}


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("kernel", ["backward_atomic", "backward", "backward_mma"])
def test_nothing_is_found_in_a_right_kernel(kernel: str) -> None:
    """In any order of blocks: parts of dQ that atomics add have any, and three of them other bits in another."""
    for axes in ({**SMALL, "keys": 100}, {**SMALL, "kv_heads": 1, "queries": 70}):
        given: dict[str, Any] = {"dtype": OF_OPERATIONS[kernel].dtypes[0], "numbers": {"causal": True}}
        found = check_operation(kernel, "attention_backward", axes=axes, **given, schedules=3)
        assert found.findings == () and found.passed and found.launches == 3 and found.blocks >= 6


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("id", sorted(RACES))
def test_a_race_is_found(id: str) -> None:
    """One that a GPU may never show: without atomics the numbers are right on the emulator, which runs block by block."""
    found = check_operation(FAULTS[id].kernel, "attention_backward", axes=SMALL, faults=[id])
    assert {finding.kind for finding in found.findings} == {"race"}
    lines = {found.line(finding.file, finding.line) for finding in found.findings}
    if id == "atomic-dq-without-atomics":
        assert [finding.array for finding in found.findings] == ["dq_sum"]
        assert lines == {"dq_sum[b, h, first_row + c, d] += part"}
        assert str(found).startswith(
            "workbench check backward_atomic --fault atomic-dq-without-atomics --operation attention_backward --axes "
            "queries=40,keys=48,dim=16,dim_v=16: 1 finding"
        )


#: of which two probes show what comes before the fault and the fault
WRONG = {"faults": ["backward-dscores-in-16-bits"], "probes": "probs,dscores", "axes": {"dim": 8, "dim_v": 8}}


def test_probes_are_chosen() -> None:
    few = made("backward", probes="output", dtype="bfloat16", axes=WRONG["axes"])
    assert [one.name for one in few.stages] == ["dq", "dk", "dv"]
    assert [one.name for one in made("backward", **WRONG | {"probes": "dscores, probs"}).stages] == [
        "probs",
        "dscores",
        "dq",
        "dk",
        "dv",
    ]
    assert refusal(made, "backward", probes="probs,acc") == (
        "probes of backward: all, output, or some of qk, scores, probs, dprobs, delta, dscores; got acc"
    )


def test_what_a_kernel_promises_is_not_assumed() -> None:
    found = made("backward", axes={"dim": 8, "dim_v": 8}, probes="output", dtype="bfloat16")
    assert found.assumed == {} and "assumed" not in str(found)
    told = replace(found, run=replace(found.run, told=("delta", "delta_dtype")))
    assert "conventions assumed: qk_dtype=float32, probs_dtype=inputs" in str(told)


def test_what_a_kernel_promises_is_not_what_another_convention_explains() -> None:
    """dS rounded on the way is what torch's own operations do, which a function that tells nothing may be."""
    found = made("backward", **WRONG)
    assert found.origin == "dscores" and found.explained_by == ()
    silent = replace(found, run=replace(found.run, told=()))
    assert [words.partition(":")[0] for words, _ in silent.explained_by] == ["as in torch's own operations"]


def test_the_command_that_repeats_a_run_has_its_faults_and_probes() -> None:
    found = made("backward", **WRONG)
    command = repeat_command(found)
    assert command == (
        "workbench diff backward --fault backward-dscores-in-16-bits --operation attention_backward --axes "
        "dim=8,dim_v=8 --dtype bfloat16 --backend emulator --probes probs,dscores"
    )
    again = invoked(*shlex.split(command)[1:])
    assert again.exit_code == 1 and again.stdout.split() == str(found).split()


def backward(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, scale: float, causal: bool) -> Any:
    return np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)


def test_a_function_that_has_the_name_of_a_kernel_is_not_repeated_as_one() -> None:
    found = diff_operation(backward, BACKWARD)
    assert found.run.target == "backward" and repeat_command(found) == ""


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("kernel", OF_OPERATIONS)
def test_right_kernels_keep_the_laws(kernel: str) -> None:
    """Of more queries than keys, so that some rows see no key; a key that nobody sees needs a mask or a window."""
    axes = {"heads": 4, "queries": 28, "keys": 24, "dim": 8, "dim_v": 8}
    found = gradient_laws(kernel, axes=axes, dtype="bfloat16", numbers={"causal": True}, backend="emulator")
    key = "gradients-of-a-key-that-nobody-sees-are-0"
    assert found.signature == {law: None if law == key else True for law in GRADIENT_LAWS}, found.signature


def test_a_fault_breaks_a_law() -> None:
    axes = {"queries": 20, "keys": 24, "dim": 8, "dim_v": 8}
    found = gradient_laws("backward", axes=axes, faults=["backward-dq-unscaled"], backend="emulator")
    assert [one.law.name for one in found.broken] == ["directional-derivative"]


def test_inputs_are_not_written() -> None:
    case = made("backward_atomic", axes={"dim": 8, "dim_v": 8}, probes="output").run
    for name, x in case.case.inputs().items():
        assert np.array_equal(case.inputs[name], x)


@pytest.mark.parametrize(
    ("kernel", "given", "said"),
    [
        ("backward", {"faults": ["atomic-dq-without-atomics"]}, "fault atomic-dq-without-atomics belongs to kernel "),
        ("backward", {"faults": ["no-such"]}, "unknown fault 'no-such'"),
        (
            "backward",
            {"faults": ["backward-mask-forgotten"], "numbers": {"causal": 0}},
            "shows only with causal=True; ",
        ),
        ("backward", {"faults": ["backward-group-overwritten"], "axes": {"h": 2}}, "shows only with heads=4; got 2"),
        ("backward", {"faults": ["backward-dscores-in-16-bits"], "dtype": "float32"}, "only with dtype=bfloat16; got"),
        ("backward", {"axes": {"dim": 129}}, "backward kernels take dim and dim_v up to 128; got 129"),
        ("backward_mma", {}, "kernel backward_mma takes float16 or bfloat16; got float32"),
        ("backward_mma", {"dtype": "float16", "axes": {"dim_v": 60}}, "takes dim and dim_v in multiples of 8; got 60"),
        (
            "backward",
            {"contract": {"delta": "probs"}},
            "contract: only for your own functions; backward is a built-in ",
        ),
        ("backward", {"arrays": "torch", "gradients": True}, "gradients, arrays: only for your own functions; "),
        ("backward", {"numbers": {"softcap": 30.0}}, "backward takes scale, causal; got softcap"),
        (
            "backward_mma",
            {"optional": ["sinks", "dlse"], "numbers": {"window_left": 4}, "dtype": "float16"},
            "backward_mma takes scale, causal; got window_left, dlse, sinks",
        ),
        (
            lambda q, k: q,
            {"faults": ["backward-mask-forgotten"]},
            "faults and probes need a built-in kernel (backward, ",
        ),
    ],
    ids=[
        "kernel",
        "fault",
        "number of a fault",
        "axis",
        "dtype",
        "dim",
        "mma dtype",
        "mma dim",
        "contract",
        "gradients",
        "number",
        "optional",
        "function",
    ],
)
def test_what_is_refused(kernel: Any, given: dict[str, Any], said: str) -> None:
    assert said in refusal(made, kernel, **given)


def test_kernels_are_of_their_operation() -> None:
    assert refusal(diff_operation, "backward", "rmsnorm") == (
        "backward computes attention_backward; got operation rmsnorm"
    )
    assert refusal(check_operation, "flash", "attention_backward") == (
        "built-in kernels of operations: backward, backward_atomic, backward_mma; got 'flash'"
    )


def test_a_gpu_without_its_instructions_is_told_before_it_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """red.add of four float32 came with compute capability 9.0."""
    for module in (operation_run, run):
        monkeypatch.setattr(module, "gpu", lambda: Gpu("an A100", (8, 0), "13.0"))
    with pytest.raises(Unavailable) as raised:
        diff_operation("backward_mma", BACKWARD, dtype="float16", backend="cuda")
    assert str(raised.value) == (
        "backward_mma needs compute capability 9.0 or newer; this GPU has 8.0; `--backend emulator` runs it on the CPU"
    )


@pytest.mark.gpu
@pytest.mark.parametrize(("kernel", "dtype"), RUNS)
def test_right_kernels_are_right_on_a_gpu(kernel: str, dtype: str) -> None:
    for n, distribution in enumerate(BACKWARD.distributions):
        for causal in (False, True):
            given = {"axes": {**RAGGED, "dim": 64 if n % 2 else 128}, "dtype": dtype, "distribution": distribution}
            got = diff_operation(kernel, BACKWARD, **given, numbers={"causal": causal}, backend="cuda")
            assert got.verdict in ("exact", "rounding"), str(got)
            plain = diff_operation(
                kernel, BACKWARD, **given, numbers={"causal": causal}, backend="cuda", probes="output"
            )
            assert plain.verdict in ("exact", "rounding"), str(plain)
            for name in RESULTS if kernel == "backward" else ("dk", "dv"):  # parts of dQ have any order
                assert got.run.stages[name].tobytes() == plain.run.stages[name].tobytes()
