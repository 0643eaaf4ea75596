"""The campaign of the backward kernels in small, and each fault that the package has not."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from campaigns import backward
from campaigns.faults.backward import FAULTS
from workbench.operations.call import check_operation, diff_operation
from workbench.operations.judge import judged

#: what is rounded once more to 16 bits moves gradients in 16 bits by less than they are rounded by
UNSEEN = ("backward-delta-in-16-bits", "backward-dscores-of-cast-probs", "backward-dscores-cast-early")
BY_ID = {fault.id: fault for fault in FAULTS}


@pytest.mark.parametrize("id", [id for id, fault in BY_ID.items() if fault.stages])
def test_a_fault_shows_at_its_stage_first_and_in_the_gradients(id: str) -> None:
    fault = BY_ID[id]
    got = diff_operation(fault.kernel, "attention_backward", faults=[id], backend="emulator")
    assert got.origin in fault.stages and got.verdict == "bug"
    alone = judged(replace(got.run, stages={name: got.run.stages[name] for name in ("dq", "dk", "dv")}))
    assert (alone.origin is None) == (id in UNSEEN)


@pytest.mark.parametrize("id", [id for id, fault in BY_ID.items() if fault.finding])
def test_a_watched_run_finds_what_a_fault_says(id: str) -> None:
    fault = BY_ID[id]
    small = {axis: n for axis, n in backward.WATCHED.items() if axis not in fault.needs}
    found = check_operation(fault.kernel, "attention_backward", axes=small, faults=[id])
    assert fault.finding in {finding.kind for finding in found.findings}


def test_in_small(monkeypatch: pytest.MonkeyPatch) -> None:
    few = ("backward-dk-scaled-twice", "atomic-dq-without-atomics")
    monkeypatch.setattr(backward, "FAULTS", {id: backward.FAULTS[id] for id in few})
    results = backward.measure(correct=8, per_fault=2)
    assert sum(row["runs"] for row in results["right"]) == 8 and results["not_right"] == []
    assert sum(row["rounding"] + row["exact"] for row in results["right"]) == 8
    seen, race = results["faults"]
    assert seen == {
        **{"fault": few[0], "stages": "dk", "runs": 2, "shown": 2, "at_stage": 2, "detected": 2, "visible": 2},
        **{"both": 2, "cause": 2, "cause_alone": 2, "check": None, "elsewhere": [], "false": []},
    }
    # one block after the other, as the emulator has them, loses nothing
    assert (race["shown"], race["detected"], race["visible"], race["check"]) == (0, 0, 0, True)
    assert not backward.wrong(results)
    right, faults = backward.tables(results)
    assert {*right[0]} >= {"of", "runs", "rounding", "bug", "assert_close fails"}
    assert faults[-1]["fault"] == "2 faults" and faults[-1]["runs"] == 4 and faults[-1]["visible"] == 2


@pytest.mark.parametrize(
    "change",
    [
        {"right": {"bug": 1}},
        {"right": {"biased": 1}},
        {"faults": {"elsewhere": ["dv: ..."]}},
        {"faults": {"false": ["dk is multiplied by 2: ..."]}},
        {"faults": {"check": False}},
    ],
    ids=["bug", "biased", "elsewhere", "false cause", "check"],
)
def test_what_is_wrong(change: dict[str, Any]) -> None:
    clean: dict[str, dict[str, Any]] = {
        "right": {"bug": 0, "biased": 0, "missing": 0},
        "faults": {"elsewhere": [], "false": [], "check": None},
    }
    assert not backward.wrong({name: [row] for name, row in clean.items()})
    assert backward.wrong({name: [row | change.get(name, {})] for name, row in clean.items()})


def test_a_drawn_case_keeps_what_is_fixed() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        drawn = backward.drawn(rng, {"heads": 2, "causal": True, "dtype": "float16"})
        assert "heads" not in drawn["axes"] and drawn["numbers"] == {} and 2 % drawn["axes"]["kv_heads"] == 0
        assert drawn["dtype"] == "float16" and 65 <= drawn["axes"]["queries"] <= 96
        free = backward.drawn(rng, {})["axes"]
        assert free["heads"] % free["kv_heads"] == 0
