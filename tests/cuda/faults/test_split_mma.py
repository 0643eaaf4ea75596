"""The faults of Split-K on tensor cores: named at their stages, or by a watched run where order hides them."""

import numpy as np
import pytest

from campaigns.showing import showing
from workbench import Case, check, diff, run
from workbench.cuda.faults.catalogue import CATALOGUE
from workbench.cuda.faults.split_mma import FAULTS as OF_SPLITS
from workbench.cuda.faults.split_mma_merge import FAULTS as OF_MERGE

#: a build of two warps; three tiles in two splits, so that one has two and the other a ragged one
CASE = dict(heads=4, kv_heads=2, seqlen_q=5, seqlen_k=90, head_dim=64, dtype="float16", block_k=32, splits=2)
#: one for each mechanism, in a build for each group of them; `python -m campaigns faults` runs all of them
MECHANISMS = (
    ("split-mma-stage-not-turned",),  # copies
    # packed rows, what warps share, and the merge, at stages of their own
    ("split-mma-rows-swapped", "split-mma-row-max-of-own-warp", "split-mma-merge-in-base-2"),
)


@pytest.mark.parametrize("faults", MECHANISMS, ids=lambda faults: faults[0])
def test_faults_begin_at_their_own_stages(faults):
    """A stage is judged from those that were dumped before it."""
    known = [CATALOGUE[fault] for fault in faults]
    assert all({**CASE, **fault.needs} == CASE for fault in known)
    judged = diff(run("split_mma", Case(**CASE), faults=faults, backend="emulator"))
    assert judged.verdict == "bug" and judged.origins == tuple(stage for fault in known for stage in fault.stages)


def test_an_empty_split_that_leaves_nothing_is_seen():
    """Four splits of three tiles: what the merge reads of the last nobody wrote."""
    fault = "split-mma-empty-split-not-written"
    judged = diff(run("split_mma", Case(**CASE | {"splits": 4}), faults=[fault], backend="emulator"))
    assert judged.verdict == "missing" and judged.origins == CATALOGUE[fault].stages


def test_a_group_of_copies_too_few_is_named_with_its_line():
    fault = "split-mma-one-group-too-few"
    found = check("split_mma", Case(**CASE), faults=[fault], probes="output")
    lines = [found.line(one.file, one.line) for one in found.findings if one.kind == CATALOGUE[fault].finding]
    assert any("b0, b1, b2, b3 = ptx.ldmatrix_x4(tiles, " in line for line in lines)


@pytest.mark.gpu
@pytest.mark.parametrize("fault", [one.id for one in (*OF_SPLITS, *OF_MERGE) if one.stages and not one.finding])
def test_gpu_shows_each_fault_where_the_emulator_does(fault):
    case = showing(CATALOGUE[fault], np.random.default_rng(0))
    on_gpu, on_emulator = (
        diff(run("split_mma", case, faults=[fault], backend=backend)).origins for backend in ("cuda", "emulator")
    )
    assert on_gpu and on_gpu == on_emulator
