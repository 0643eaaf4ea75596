"""Every fault in the catalogue leads to its own stage, and the catalogue refuses what it cannot do."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.refusals import refusal
from workbench import Case, Diff, diff, run
from workbench.case.stages import ALGORITHMS
from workbench.cuda.faults.catalogue import CATALOGUE, chosen
from workbench.cuda.faults.fault import applied
from workbench.cuda.kernels import KERNELS
from workbench.cuda.quantised import QUANTISER

CASE = Case(seqlen=96, heads=2, head_dim=32, block_q=32, block_k=32, causal=True)


def judged(kernel: str, faults: Sequence[str], case: Case = CASE, backend: str = "emulator") -> Diff:
    splits = 3 if KERNELS[kernel].splits else None
    return diff(run(kernel, case.but(splits=splits), faults=faults, backend=backend))


def case_of(fault: str) -> Case:
    """The rows that see no key exist only where there are more queries than keys."""
    case = CASE.but(seqlen_k=64) if fault == "flash-no-masked-tile-guard" else CASE
    return case.but(**CATALOGUE[fault].needs)


#: the kernels on floats; those on codes are in test_fp8.py
FLOATS = [kernel.name for kernel in KERNELS.values() if not kernel.quantised]


@pytest.mark.parametrize("kernel", FLOATS)
def test_without_a_fault_there_is_no_origin(kernel: str) -> None:
    assert (judged(kernel, []).origins, judged(kernel, [], CASE.but(seqlen_k=64)).origins) == ((), ())


@pytest.mark.parametrize("fault", [fault.id for fault in CATALOGUE.values() if fault.stages and fault.kernel in FLOATS])
def test_each_fault_is_found_at_its_own_stage(fault: str) -> None:
    found = judged(CATALOGUE[fault].kernel, [fault], case_of(fault))
    assert found.verdict in ("bug", "missing") and found.origin in CATALOGUE[fault].stages
    assert set(found.origins) <= set(CATALOGUE[fault].stages), "what comes after the fault is a victim"
    if fault == "flash-bshd-strides":  # q and k are read wrongly, and so is v
        assert found.origins == ("qk", "acc")


SUBTLE = (
    "flash-probs-truncated",
    "partial-O-float16",
    "flash-scale-float16",
    "flash-max-before-scale",
    "flash-exp-bfloat16",
    "flash-out-truncated",
    "flash-lse-no-log",
    "flash-lse-base-2",
)


@pytest.mark.parametrize("fault", SUBTLE)
def test_subtle_faults_are_bugs_though_out_is_within_the_usual_tolerance(fault: str) -> None:
    found = judged(CATALOGUE[fault].kernel, [fault], case_of(fault))
    out = found["out"].propagated
    assert out is not None and np.all(np.abs(out.error) < 1e-2) and out.error.size
    assert found.verdict == "bug" and found.origins == CATALOGUE[fault].stages


@pytest.mark.parametrize(
    ("kernel", "faults", "origins"),
    [
        ("flash", ["flash-scale-twice", "flash-no-correction"], ("scores", "acc")),
        ("flash", ["flash-stale-max", "flash-k-tile-stale"], ("qk", "probs")),
        ("split_k", ["reduce-double-counts-sum", "partial-offset-wrong-split"], ("partial_O", "merge_weight")),
    ],
)
def test_two_faults_give_two_origins(kernel: str, faults: list[str], origins: tuple[str, ...]) -> None:
    assert judged(kernel, faults).origins == origins


@pytest.mark.parametrize("fault", list(CATALOGUE.values()), ids=list(CATALOGUE))
def test_each_fault_changes_one_place_of_its_kernel_and_keeps_the_lines(fault) -> None:  # noqa: ANN001
    kernel = KERNELS[fault.kernel]
    sources = {file.name: file for file in (*kernel.functions.values(), QUANTISER)}
    file = sources[fault.file or kernel.file.name]
    text = file.read_text()
    faulty = applied(text, [fault], file.name)
    assert faulty != text and faulty.count("\n") == text.count("\n")
    assert {*fault.stages, *fault.biased} <= set(ALGORITHMS[kernel.algorithm])
    assert fault.stages or fault.biased or fault.finding, "somebody must be able to see it"
    assert fault.summary and set(fault.needs) <= set(CASE.as_dict())


def test_choosing_is_refused() -> None:
    own = [fault.id for fault in CATALOGUE.values() if fault.kernel == "split_k"]
    assert refusal(chosen, ["no-such"], "flash") == (
        f"unknown fault 'no-such'; `workbench faults` lists them: {', '.join(CATALOGUE)}"
    )
    assert refusal(chosen, ["flash-stale-max"], "split_k") == (
        f"fault flash-stale-max belongs to kernel flash, not to split_k; faults of split_k: {', '.join(own)}"
    )
    assert refusal(chosen, ["flash-stale-max"] * 2, "flash") == "fault flash-stale-max is given twice; once is enough"


def test_text_that_no_longer_matches_is_refused() -> None:
    fault = CATALOGUE["flash-scale-twice"]
    assert refusal(applied, "x = 1\n", [fault], "flash.py") == (
        "fault flash-scale-twice: its text must occur exactly once in flash.py; it occurs 0 times:\n"
        "s = libdevice.fmul_rn(dot, scale)"
    )
    twice = f"{fault.before}\n{fault.before}\n"
    assert "it occurs 2 times" in refusal(applied, twice, [fault], "flash.py")
    longer = replace(fault, after="s = 0\ns = 1")
    assert refusal(applied, fault.before, [longer], "flash.py") == (
        "fault flash-scale-twice: its change must keep the number of lines, so that line numbers stay true"
    )


def test_overlapping_faults_are_refused() -> None:
    faults = [CATALOGUE["flash-no-causal-mask"], CATALOGUE["flash-causal-off-by-one"]]
    assert refusal(applied, KERNELS["flash"].file.read_text(), faults, "flash.py") == (
        "faults flash-no-causal-mask and flash-causal-off-by-one change the same text of flash.py; choose one of them"
    )


def test_all_texts_are_matched_on_the_clean_source() -> None:
    """A fault whose new text holds another's old text does not make that one ambiguous."""
    one = replace(CATALOGUE["flash-scale-twice"], id="one", before="a = 1", after="b = 2")
    other = replace(CATALOGUE["flash-scale-twice"], id="other", before="b = 2", after="c = 3")
    assert applied("a = 1\nb = 2\n", [one, other], "x.py") == "b = 2\nc = 3\n"
