"""The faults of the kernel on tensor cores with plain loads: named at their stages, or with their line by a watched run."""

from workbench import Case, check, diff, run
from workbench.cuda.faults.catalogue import CATALOGUE

CASE = Case(heads=2, seqlen_q=37, seqlen_k=150, head_dim=64, dtype="float16", block_q=64, block_k=64)


def test_faults_begin_at_their_own_stages():
    """In one build: a stage is judged from those that were dumped before it."""
    faults = ["tensor-k-words-neighbours", "tensor-pair-swapped"]
    judged = diff(run("flash_tensor", CASE, faults=faults, backend="emulator"))
    stages = tuple(stage for fault in faults for stage in CATALOGUE[fault].stages)
    assert judged.verdict == "bug" and judged.origins == stages


def test_a_load_over_what_others_read_is_named_with_its_line():
    found = check("flash_tensor", CASE, faults=["tensor-no-barrier-before-load"], probes="output")
    lines = [found.line(one.file, one.line) for one in found.findings if one.kind == "race"]
    assert any("ptx.st_v4_u32(tile, " in line for line in lines)
