"""On a GPU every fault of the whole catalogue is found at the stages that the emulator, or the catalogue, tells."""

import numpy as np
import pytest

import campaigns.faults  # noqa: F401  (the whole catalogue)
from campaigns.showing import showing
from workbench import diff, run
from workbench.cuda.faults.catalogue import CATALOGUE

pytestmark = pytest.mark.gpu

SHOWN = [fault for fault in CATALOGUE.values() if fault.stages and not fault.unwritten_memory]
#: those of which both runs are short
EMULATED = ("flash", "split_k", "fp8")
#: those whose runs on a GPU race where a watched run has a finding
COPYING = ("flash_mma", "split_mma")
OTHERS = ("flash_wgmma", "fp8_wgmma", "fp8_mma")


def origins(fault, backend):
    case = showing(CATALOGUE[fault], np.random.default_rng(0))
    return diff(run(CATALOGUE[fault].kernel, case, faults=[fault], backend=backend)).origins


@pytest.mark.parametrize(
    "fault", [x.id for x in SHOWN if x.kernel in EMULATED or x.kernel in COPYING and not x.finding]
)
def test_a_fault_has_the_same_origins_as_on_the_emulator(fault):
    on_gpu = origins(fault, "cuda")
    assert on_gpu and on_gpu == origins(fault, "emulator")
    assert CATALOGUE[fault].kernel not in ("flash", "split_k") or on_gpu[0] in CATALOGUE[fault].stages


@pytest.mark.parametrize("fault", [x.id for x in SHOWN if x.kernel in OTHERS])
def test_a_fault_begins_at_its_stages(fault):
    assert origins(fault, "cuda") == CATALOGUE[fault].stages
