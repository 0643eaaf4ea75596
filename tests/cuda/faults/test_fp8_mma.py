"""The faults of the kernel that decodes codes for tensor cores: named at their stages, or by a watched run."""

import numpy as np
import pytest

from campaigns.showing import showing
from workbench import Case, check, diff, run
from workbench.cuda.faults.catalogue import CATALOGUE
from workbench.cuda.faults.fp8_mma import FAULTS

CASE = Case(codes="e4m3", heads=2, kv_heads=2, seqlen_q=40, seqlen_k=100, head_dim=64, block_q=32, block_k=32)
#: in one build, in data-flow order; `python -m campaigns faults` runs each
TOGETHER = (
    "fp8-mma-order-of-bytes",
    "fp8-mma-scale-of-q-twice",
    "fp8-mma-v-not-transposed",
    "fp8-mma-v-scale-not-in-out",
)


def test_faults_begin_at_their_own_stages():
    """A stage is judged from those that were dumped before it."""
    judged = diff(run("fp8_mma", CASE, faults=TOGETHER, backend="emulator"))
    assert judged.verdict == "bug"
    assert judged.origins == tuple(stage for fault in TOGETHER for stage in CATALOGUE[fault].stages)


def test_what_is_read_before_it_has_come_is_named_with_its_line():
    found = check("fp8_mma", CASE, faults=["fp8-mma-wait-of-two-groups"], probes="output")
    lines = [found.line(one.file, one.line) for one in found.findings if one.kind == "uninitialised-read"]
    assert any("codes = ptx.ld_v4_u32(tiles, (codes_at + i * THREADS" in line for line in lines)


@pytest.mark.gpu
@pytest.mark.parametrize("fault", [one.id for one in FAULTS if one.stages])
def test_gpu_shows_each_fault_at_its_stage(fault):
    case = showing(CATALOGUE[fault], np.random.default_rng(0))
    judged = diff(run(CATALOGUE[fault].kernel, case, faults=[fault], backend="cuda"))
    assert judged.origins == CATALOGUE[fault].stages
