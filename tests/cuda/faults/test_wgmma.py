"""The faults of the kernels for Hopper: named at their stages, or by a watched run where order hides them."""

import numpy as np
import pytest

from campaigns.showing import showing
from workbench import Case, check, diff, run
from workbench.cuda.faults.catalogue import CATALOGUE
from workbench.cuda.faults.wgmma import FAULTS

CASE = dict(heads=2, seqlen_q=40, seqlen_k=300, head_dim=64, dtype="float16")
#: fault -> a line that the watched run names; `python -m campaigns faults` runs all of them
WATCHED = {
    "wgmma-k-parity": "hopper.mbarrier_wait(bars, K_FULL + stage, (turn & 1) ^ 1)",
    "wgmma-v-emptied-too-early": "hopper.cp_async_bulk_tensor(tiles, place, v,",
}


def test_faults_begin_at_their_own_stages():
    """In one build: a stage is judged from those that were dumped before it."""
    known = [CATALOGUE[fault] for fault in ("wgmma-swizzle-off-by-a-phase", "wgmma-no-rescale")]
    assert known[0].needs == known[1].needs
    faults = [fault.id for fault in known]
    judged = diff(run("flash_wgmma", Case(**CASE, **known[0].needs), faults=faults, backend="emulator"))
    assert judged.verdict == "bug" and judged.origins == tuple(stage for fault in known for stage in fault.stages)


@pytest.mark.parametrize("fault", WATCHED)
def test_a_race_with_copies_is_named_with_its_line(fault):
    found = check("flash_wgmma", Case(**CASE | dict(CATALOGUE[fault].needs)), faults=[fault], probes="output")
    lines = [found.line(one.file, one.line) for one in found.findings if one.kind == CATALOGUE[fault].finding]
    assert any(WATCHED[fault] in line for line in lines)


@pytest.mark.gpu
@pytest.mark.parametrize("fault", [one.id for one in FAULTS if one.stages])
def test_gpu_shows_each_fault_at_its_stage(fault):
    case = showing(CATALOGUE[fault], np.random.default_rng(0))
    judged = diff(run(CATALOGUE[fault].kernel, case, faults=[fault], backend="cuda"))
    assert judged.origins == CATALOGUE[fault].stages
