"""The faults of the package keep their rules, one of each mechanism is seen at its stage, and what the catalogue refuses."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.fault_rules import broken_rules
from tests.refusals import refusal, refused
from workbench import Case, Diff, diff, run
from workbench.cuda.faults import catalogue
from workbench.cuda.faults.benign import BENIGN
from workbench.cuda.faults.catalogue import CATALOGUE, FILES, add, chosen, elsewhere
from workbench.cuda.faults.fault import applied
from workbench.cuda.kernels import KERNELS

CASE = Case(seqlen=96, heads=2, head_dim=32, block_q=16, block_k=16, causal=True)


def judged(kernel: str, faults: Sequence[str], case: Case = CASE, backend: str = "emulator") -> Diff:
    splits = 3 if KERNELS[kernel].splits else None
    return diff(run(kernel, case.but(splits=splits), faults=faults, backend=backend))


# ---- what the catalogue says, without a compile


@pytest.mark.campaign
def test_every_fault_keeps_the_rules() -> None:
    assert broken_rules([*CATALOGUE.values(), *BENIGN.values()]) == []
    fault = CATALOGUE["flash-scale-twice"]
    comment = replace(fault, before="# no key seen yet", after="# some key seen")
    wrong = [comment, replace(fault, before="no such text"), replace(fault, stages=("merge_sum",), source="")]
    assert [line.partition(":")[2].partition(";")[0] for line in broken_rules(wrong)] == [
        " it changes comments alone",
        " what it changes is not in what is built of the case that it needs",
        " fault flash-scale-twice: its text must occur exactly once in flash.py",
        " flash has no stages merge_sum",
        " it has a summary and a source",
    ]


def test_no_two_faults_have_one_id_or_one_change() -> None:
    listed = [fault.id for file in FILES for fault in file.FAULTS]
    assert len(listed) == len({*listed}) == len(CATALOGUE) and not {*CATALOGUE} & {*BENIGN}
    faults = [*CATALOGUE.values(), *BENIGN.values()]
    assert len({(fault.kernel, fault.file, fault.before, fault.after) for fault in faults}) == len(faults)


def test_the_catalogue_is_used() -> None:
    """A fault that nobody names belongs to campaigns/faults/; tests/judge/test_bias.py takes all that are biased."""
    root = Path(__file__).parents[3]
    pages = [root / "README.md"]
    for folder, kinds in (("docs", "*.md"), ("notebooks", "*.py"), ("examples", "*.py"), ("tests", "*.py")):
        pages += (root / folder).rglob(kinds)
    words = {word for page in pages for word in re.findall(r"[\w-]+", page.read_text())}
    assert {fault.id for file in FILES for fault in file.FAULTS if not fault.biased} <= words


# ---- compiled: one for each mechanism; those on tensor cores in test_tensor_cores.py

#: fault -> the case, but for what it needs
MECHANISMS = {
    "flash-no-correction": CASE,  # plain
    "partial-no-masked-tile-guard": CASE.but(seqlen_k=64),  # in the file of another kernel; more queries than keys
    "partial-acc-uninitialised": CASE,  # memory that nobody wrote
    "scale-of-head-0": Case(heads=4, seqlen=128),  # codes
    "quantiser-truncates": Case(heads=4, seqlen=128),  # no kernel at all
    "flash-last-page-whole": Case(heads=2, head_dim=32, seqlen_q=40),  # what a cache holds where nobody may look
}


@pytest.mark.campaign(but=2)
@pytest.mark.parametrize("fault", MECHANISMS)
def test_a_fault_shows_at_its_own_stage_first(fault: str) -> None:
    known = CATALOGUE[fault]
    assert judged(known.kernel, [fault], MECHANISMS[fault].but(**known.needs)).origin in known.stages


@pytest.mark.parametrize("kernel", ["flash", "split_k"])
def test_without_a_fault_there_is_no_origin(kernel: str) -> None:
    assert (judged(kernel, []).origins, judged(kernel, [], CASE.but(seqlen_k=64)).origins) == ((), ())


@pytest.mark.campaign
@pytest.mark.parametrize("faults", [("flash-max-before-scale", "flash-lse-base-2"), ("partial-O-float16",)])
def test_subtle_faults_are_bugs_though_out_is_within_the_usual_tolerance(faults: Sequence[str]) -> None:
    """Two faults give two origins."""
    found = judged(CATALOGUE[faults[0]].kernel, faults)
    out = found["out"].propagated
    assert out is not None and np.all(np.abs(out.error) < 1e-2) and out.error.size
    assert found.verdict == "bug" and found.origins == tuple(x for fault in faults for x in CATALOGUE[fault].stages)


@pytest.mark.campaign
@pytest.mark.parametrize("change", ["tiles-descending", "masked-tile-first"])
def test_benign_changes_are_right(change: str) -> None:
    assert judged("flash", [change]).verdict == "rounding"


# ---- faults from elsewhere


def test_one_that_is_elsewhere_is_said_to_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    id, own = "flash-kv-head-modulo", {fault.id: fault for file in FILES for fault in file.FAULTS}
    assert id in elsewhere() and not {*elsewhere()} & {*own}
    monkeypatch.setattr(catalogue, "CATALOGUE", own)
    assert refused("diff", "flash", "--fault", id) == (
        f"fault {id} is in the catalogue of campaigns, not in the package: run `python -m campaigns.faults` instead of `workbench`; in Python, import campaigns.faults first"
    )


def test_faults_are_added_under_ids_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "CATALOGUE", dict(CATALOGUE))
    one = replace(CATALOGUE["flash-scale-twice"], id="one")
    for id in ("flash-scale-missing", "tiles-descending", "one"):
        assert refusal(add, [one, replace(one, id=id)]) == (
            f"fault id {id} is already in the catalogue: choose another id"
        )
    assert "one" not in catalogue.CATALOGUE
    add([one])
    assert chosen(["one"], "flash") == (one,)


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
    assert refusal(chosen, ["flash-stale-max"] * 2, "flash") == "fault flash-stale-max is given twice"


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
        "fault flash-scale-twice: its change must keep the number of lines"
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
