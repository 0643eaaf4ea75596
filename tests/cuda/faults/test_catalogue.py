"""Every fault in the catalogue is a change of its kernel, some are seen to lead to their stage, and what the catalogue refuses."""

import ast
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from campaigns.bits import fault_row
from campaigns.showing import showing
from tests.refusals import refusal
from workbench import Case, Diff, diff, run
from workbench.case.stages import ALGORITHMS, OF_QUANTISER, scaled
from workbench.cuda.faults.benign import BENIGN
from workbench.cuda.faults.catalogue import CATALOGUE, FILES, chosen
from workbench.cuda.faults.fault import Fault, applied
from workbench.cuda.kernels import KERNELS
from workbench.cuda.plan import settle
from workbench.cuda.quantised import QUANTISER

CASE = Case(seqlen=96, heads=2, head_dim=32, block_q=32, block_k=32, causal=True)
EVERY = {**CATALOGUE, **BENIGN}


def judged(kernel: str, faults: Sequence[str], case: Case = CASE, backend: str = "emulator") -> Diff:
    splits = 3 if KERNELS[kernel].splits else None
    return diff(run(kernel, case.but(splits=splits), faults=faults, backend=backend))


# ---- what the catalogue says, without a compile


@cache
def sources(kernel: str) -> dict[str, str]:
    files = (KERNELS[kernel].file, *KERNELS[kernel].functions.values(), *([QUANTISER] if kernel == "fp8" else []))
    return {file.name: file.read_text() for file in files}


@cache
def tree(text: str) -> str:
    return ast.dump(ast.parse(text))


def test_there_are_as_many_faults_as_real_kernels_had() -> None:
    """No two of them are one change."""
    assert len({fault.source for fault in CATALOGUE.values()} - {"synthetic"}) >= 78
    assert len(BENIGN) >= 8 and not {*CATALOGUE} & {*BENIGN}
    changes = [(fault.kernel, fault.file, fault.before, fault.after) for fault in EVERY.values()]
    assert len({*changes}) == len(changes) == len(CATALOGUE) + len(BENIGN)


def test_no_two_faults_have_one_id() -> None:
    listed = [fault.id for file in FILES for fault in file.FAULTS]
    assert len(listed) == len({*listed}) == len(CATALOGUE)


@pytest.mark.parametrize("kernel", [name for name in KERNELS if name != "flash_tensor"])
def test_every_stage_of_a_kernel_has_a_fault(kernel: str) -> None:
    """But for capped, which kernels on codes have not, and for their quantiser, which they share. The softmax of
    flash_tensor is that of flash_mma, after scores that are scaled.
    """
    stages = {name for fault in CATALOGUE.values() if fault.kernel == kernel for name in (*fault.stages, *fault.biased)}
    lacking = {*ALGORITHMS[KERNELS[kernel].algorithm]} - stages - {*KERNELS[kernel].without}
    of_codes = {"capped"} if kernel == "fp8" else {"capped", *OF_QUANTISER, "lut_k", "lut_v"}
    assert lacking == (of_codes & {*ALGORITHMS[KERNELS[kernel].algorithm]} if KERNELS[kernel].quantised else set())


@pytest.mark.parametrize("fault", EVERY.values(), ids=list(EVERY))
def test_a_fault_changes_one_place_of_its_kernel_and_keeps_the_lines(fault: Fault) -> None:
    kernel = KERNELS[fault.kernel]
    name = fault.file or kernel.file.name
    text = sources(fault.kernel)[name]
    faulty = applied(text, [fault], name)
    assert tree(faulty) != tree(text) and faulty.count("\n") == text.count("\n")


@pytest.mark.parametrize("fault", EVERY.values(), ids=list(EVERY))
def test_what_a_fault_says_of_itself_exists(fault: Fault) -> None:
    assert fault.summary and fault.kernel in KERNELS
    assert {*fault.needs} <= {*CASE.as_dict()}
    case = settle(KERNELS[fault.kernel], showing(fault, np.random.default_rng(0)))
    assert {*fault.stages, *fault.biased} <= {*ALGORITHMS[scaled(KERNELS[fault.kernel].algorithm, case.scale_of)]}
    assert all(getattr(case, name) == value for name, value in fault.needs.items()) and fault.shows(case) is True
    seen = fault.stages or fault.biased or fault.finding
    assert bool(seen) == (fault.id in CATALOGUE), "of a fault somebody must be able to see something"
    assert fault.source or fault.id in BENIGN


def test_a_patch_that_changes_comments_alone_is_none() -> None:
    text = sources("flash")["flash.py"]
    comment = replace(CATALOGUE["flash-scale-twice"], before="# no key seen yet", after="# some key seen")
    assert tree(applied(text, [comment], "flash.py")) == tree(text)


# ---- compiled: one for each mechanism; `python -m campaigns faults` runs all of them

MECHANISMS = (
    "flash-no-correction",  # plain
    "flash-no-masked-tile-guard",  # needs options, and more queries than keys
    "partial-O-wrong-row",  # in the file of another kernel
    "partial-acc-uninitialised",  # memory that nobody wrote
    "q-scale-of-kv-head",  # codes
    "quantiser-truncates",  # no kernel at all
    "flash-last-page-whole",  # what a cache holds where nobody may look
)


@pytest.mark.parametrize("fault", MECHANISMS)
def test_a_fault_shows_at_its_own_stage_first(fault: str) -> None:
    row = fault_row(fault, runs=1, seed=0)
    assert (row["shown"], row["wrong"]) == (1, []) and {*row["roots"]} <= {*CATALOGUE[fault].stages}


@pytest.mark.parametrize("kernel", ["flash", "split_k"])
def test_without_a_fault_there_is_no_origin(kernel: str) -> None:
    assert (judged(kernel, []).origins, judged(kernel, [], CASE.but(seqlen_k=64)).origins) == ((), ())


@pytest.mark.parametrize("faults", [("flash-max-before-scale", "flash-lse-base-2"), ("partial-O-float16",)])
def test_subtle_faults_are_bugs_though_out_is_within_the_usual_tolerance(faults: Sequence[str]) -> None:
    """Two faults give two origins."""
    found = judged(CATALOGUE[faults[0]].kernel, faults)
    out = found["out"].propagated
    assert out is not None and np.all(np.abs(out.error) < 1e-2) and out.error.size
    assert found.verdict == "bug" and found.origins == tuple(x for fault in faults for x in CATALOGUE[fault].stages)


@pytest.mark.parametrize("change", ["tiles-descending", "masked-tile-first"])
def test_benign_changes_are_right(change: str) -> None:
    assert judged("flash", [change]).verdict == "rounding"


# ---- refusals


def test_choosing_is_refused() -> None:
    own = [fault.id for fault in CATALOGUE.values() if fault.kernel == "split_k"]
    assert refusal(chosen, ["no-such"], "flash") == "unknown fault 'no-such'; `workbench faults` lists them"
    assert refusal(chosen, ["flash-scale-twise"], "flash") == (
        "unknown fault 'flash-scale-twise'; `workbench faults` lists them; the nearest: flash-scale-twice, "
        "flash-scale-missing, mma-scale-twice"
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
