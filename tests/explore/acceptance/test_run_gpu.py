"""Functions on a GPU, in a process of their own."""

import pytest

from campaigns.cheats import DEVICE, RIGHT
from workbench.explore.acceptance.run import accept

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.gpu


def test_a_right_function_passes():
    one = next(right for right in RIGHT if right.name == "transposed")
    found = accept(one.target, {**one.spec, "device": "cuda"}, seconds=5)
    assert found.verdict == "pass" and found.cases >= 40, str(found)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("first_half_keys", "wrong"),
        ("gpu_side_stream", "wrong"),  # which a wait for the device before results are read would hide
        ("offset_ignored", "wrong"),
        ("q_overwritten", "overwritten"),
        ("static_buffer", "overwritten"),
    ],
)
def test_a_cheat_fails(name, kind):
    one = next(cheat for cheat in DEVICE if cheat.name == name)
    found = accept(one.target, {**one.spec, "device": "cuda"}, seconds=5)
    assert found.failure is not None and found.failure.kind == kind, str(found)
