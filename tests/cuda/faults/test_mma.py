"""The faults of the kernel on tensor cores: named at their stages, or by a watched run where order hides them."""

import numpy as np
import pytest

from campaigns.showing import showing
from workbench import Case, check, diff, run
from workbench.cuda.faults.catalogue import CATALOGUE
from workbench.cuda.faults.mma import FAULTS as OF_TILES
from workbench.cuda.faults.mma_softmax import FAULTS as OF_SOFTMAX

CASE = dict(heads=2, seqlen_q=37, seqlen_k=50, head_dim=64, dtype="float16")
#: one for each mechanism, at stages of their own; `python -m campaigns faults` runs all of them
MECHANISMS = ("mma-k-not-unswizzled", "mma-mask-of-upper-row", "mma-v-not-transposed", "mma-row-sum-of-one-lane")
#: fault -> a line that the watched run names
WATCHED = {
    "mma-v-not-waited-for": "ptx.ldmatrix_x4_trans(tiles, ",  # reads what is on its way
    "mma-next-k-too-early": "ptx.cp_async_16(tiles, ",  # writes where others read
}


def test_faults_begin_at_their_own_stages():
    """All in one build: a stage is judged from those that were dumped before it."""
    known = [CATALOGUE[fault] for fault in MECHANISMS]
    case = Case(**CASE | {"block_k": 32, "causal": True})
    assert all(fault.needs.items() <= case.as_dict().items() for fault in known)
    judged = diff(run("flash_mma", case, faults=MECHANISMS, backend="emulator"))
    assert judged.verdict == "bug" and judged.origins == tuple(stage for fault in known for stage in fault.stages)


@pytest.mark.parametrize("fault", WATCHED)
def test_an_early_copy_or_read_is_named_with_its_line(fault):
    """The second gives right numbers on the emulator, which makes copies late."""
    case = Case(**CASE | {"block_q": 64, "block_k": 64, "seqlen_k": 150})
    found = check("flash_mma", case, faults=[fault], probes="output")
    assert CATALOGUE[fault].finding in {one.kind for one in found.findings}
    lines = [found.line(one.file, one.line) for one in found.findings if one.kind == CATALOGUE[fault].finding]
    assert any(WATCHED[fault] in line for line in lines)


@pytest.mark.gpu
@pytest.mark.parametrize("fault", [one.id for one in (*OF_TILES, *OF_SOFTMAX) if one.stages and not one.finding])
def test_gpu_shows_each_fault_where_the_emulator_does(fault):
    case = showing(CATALOGUE[fault], np.random.default_rng(0))
    on_gpu, on_emulator = (
        diff(run("flash_mma", case, faults=[fault], backend=backend)).origins for backend in ("cuda", "emulator")
    )
    assert on_gpu and on_gpu == on_emulator
