"""The whole catalogue: the rules that every fault keeps, the line that a report names of it, and how many there are."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import campaigns.faults
from campaigns.faults import conditions
from campaigns.showing import hiding, showing
from tests.cuda.test_lines import changed, clean, lines
from tests.fault_rules import broken_rules
from workbench import Case
from workbench.case.stages import ALGORITHMS, OF_QUANTISER
from workbench.cuda.faults.benign import BENIGN
from workbench.cuda.faults.catalogue import CATALOGUE, OF_OPERATIONS, elsewhere
from workbench.cuda.kernels import KERNELS
from workbench.cuda.plan import resolve


def test_what_the_package_says_is_elsewhere_is_here() -> None:
    assert list(elsewhere()) == sorted(fault.id for fault in campaigns.faults.FAULTS)


def test_every_fault_keeps_the_rules() -> None:
    assert broken_rules(campaigns.faults.FAULTS) == []


def test_there_are_as_many_faults_as_real_kernels_had() -> None:
    """No two of them are one change."""
    assert len({fault.source for fault in CATALOGUE.values()} - {"synthetic"}) >= 78
    faults = [*CATALOGUE.values(), *BENIGN.values()]
    assert len({(fault.kernel, fault.file, fault.before, fault.after) for fault in faults}) == len(faults)


def test_every_stage_of_a_kernel_has_a_fault() -> None:
    """But for capped, which kernels on codes have not, and for their quantiser, which they share. The softmax of
    flash_tensor is that of flash_mma, after scores that are scaled.
    """
    for name in KERNELS.keys() - {"flash_tensor"}:
        kernel, own = KERNELS[name], [fault for fault in CATALOGUE.values() if fault.kernel == name]
        stages = {*ALGORITHMS[kernel.algorithm]} - {*kernel.without}
        if kernel.quantised:
            stages -= {"capped"} if name == "fp8" else {"capped", *OF_QUANTISER, "lut_k", "lut_v"}
        assert stages <= {stage for fault in own for stage in (*fault.stages, *fault.biased)}, name


def test_every_fault_has_cases_that_show_it() -> None:
    for fault in CATALOGUE.values():
        case = resolve(KERNELS[fault.kernel], showing(fault, np.random.default_rng(0)))
        assert all(getattr(case, name) == value for name, value in fault.needs.items()), fault.id
        assert fault.shows(case) is True, fault.id


CONDITIONS = [one for one in vars(conditions).values() if getattr(one, "__module__", "") == conditions.__name__]


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_condition_holds_in_some_cases_and_not_in_others(condition: Callable[[Case], bool]) -> None:
    fault, random = replace(CATALOGUE["partial-O-wrong-row"], shows=condition), np.random.default_rng(0)
    for _ in range(20):
        other = hiding(fault, random)
        assert condition(showing(fault, random)) is True and other is not None and condition(other) is False


def test_faults_are_at_the_lines_where_they_are_looked_for() -> None:
    """The line of the first wrong stage is that of the clean source, or one that the fault changed. Of the kernels that
    are made to be read: each fault costs a fifth of a second.
    """
    shown = {
        fault.id: (fault.stages or fault.biased)[0]
        for fault in CATALOGUE.values()
        if fault.kernel in ("flash", "split_k", "fp8") and (fault.stages or fault.biased)
    }
    on_it, elsewhere = set(), set()
    for id, stage in shown.items():
        fault = CATALOGUE[id]
        line = lines(fault.kernel, fault.needs, (fault,))[stage]
        before = clean(fault.kernel, frozenset(fault.needs.items()))[stage]
        file, text, numbers = changed(fault)
        if line.path == file and line.line in numbers:
            on_it.add(id)
            assert text[line.line - 1].strip().startswith(line.text), "the text is that of what ran"
        elif line != before:
            elsewhere.add(id)
    assert len(shown) >= 226 and len(on_it) >= 87
    # what computed the stage is gone: the line is that of what stands in its place
    assert elsewhere == {"partial-softcap-dropped"}


def test_the_command_line_has_them() -> None:
    words = [sys.executable, "-m", "campaigns.faults"]
    listed = subprocess.run([*words, "faults", "--json"], capture_output=True, text=True, check=True).stdout
    assert [fault["id"] for fault in json.loads(listed)["faults"]] == [*CATALOGUE, *OF_OPERATIONS]
