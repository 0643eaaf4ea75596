"""Kernels that installed packages ship: found by name, listed, and refused where they are not what they say."""

import json
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner

from workbench import Case, Refusal, diff, run
from workbench.cli.main import commands
from workbench.foreign.find import installed

KERNEL = """
import numpy as np


def forward(q, k, v, *, scale, causal):
    scores = q @ np.swapaxes(k, -1, -2) * np.float32(scale)
    probs = np.exp(scores - scores.max(-1, keepdims=True))
    return probs / probs.sum(-1, keepdims=True) @ v
"""


def ship(folder: Path, package: str, entries: dict[str, str]) -> None:
    """What pip writes of a package that has `entries` in the group."""
    made = folder / f"{package}-1.5.dist-info"
    made.mkdir(parents=True)
    (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.5\n")
    lines = "\n".join(f"{name} = {value}" for name, value in entries.items())
    (made / "entry_points.txt").write_text(f"[workbench.kernels]\n{lines}\n")
    (folder / f"{package}_kernels.py").write_text(KERNEL)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.campaign
def test_a_kernel_of_a_package_is_a_target(site: Path) -> None:
    ship(site, "shippedone", {"shipped": "shippedone_kernels:forward", "flash": "shippedone_kernels:forward"})
    judged = diff(run("shipped", Case(seqlen=8)))
    assert judged.verdict == "rounding" and judged.trace.target == "shipped" and judged.trace.backend == "foreign"
    listed = json.loads(CliRunner().invoke(commands, ["kernels", "--json"]).stdout)["installed"]
    function = {"function": "shippedone_kernels:forward", "package": "shippedone 1.5"}
    assert listed == [{"name": "shipped", **function, "hidden": False}, {"name": "flash", **function, "hidden": True}]
    table = " ".join(CliRunner().invoke(commands, ["kernels"]).stdout.split())
    assert "shipped shippedone_kernels:forward shippedone 1.5" in table
    assert "flash shippedone_kernels:forward shippedone 1.5 by a built-in kernel" in table
    result = CliRunner().invoke(commands, ["diff", "shipped", "--seqlen", "8"])
    assert result.exit_code == 0 and result.stdout.startswith("shipped: float32 b=1 h=1 q=8 k=8")
    assert run("flash", Case(seqlen=8, block_q=16, block_k=16), backend="emulator").backend == "emulator"


def test_nothing_is_listed_where_no_package_ships_any() -> None:
    assert installed() == {} and version("attention-workbench")
    assert "hidden" not in CliRunner().invoke(commands, ["kernels"]).stdout


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"shipped": "nowhere_to_be_found:forward"}, "^shipped of shippedtwo 1.5 could not be imported:\nTraceback"),
        ({"shipped": "shippedtwo_kernels:backward"}, "has no attribute 'backward'"),
        (
            {"shipped": "shippedtwo_kernels:__name__"},
            "^shipped of shippedtwo 1.5 must be a function; shippedtwo_kernels:__name__ is 'shippedtwo_kernels'$",
        ),
        (
            {},
            "^unknown kernel 'shipped'; kernels are flash, flash_tensor, flash_mma, flash_wgmma, split_k, split_mma, fp8, fp8_mma, fp8_wgmma; pass your own as path.py:function",
        ),
        (
            {"other": "shippedtwo_kernels:forward"},
            "^unknown kernel 'shipped'; kernels are flash, flash_tensor, flash_mma, flash_wgmma, split_k, split_mma, fp8, fp8_mma, fp8_wgmma, other; ",
        ),
    ],
    ids=["no module", "no function", "not a function", "none", "another"],
)
def test_what_cannot_be_run_is_refused(site: Path, entries: dict[str, str], message: str) -> None:
    ship(site, "shippedtwo", entries)
    with pytest.raises(Refusal, match=message):
        run("shipped", Case(seqlen=8))


def test_one_name_of_two_packages_is_refused(site: Path) -> None:
    for package in ("shippedone", "shippedtwo"):
        ship(site, package, {"shipped": f"{package}_kernels:forward"})
    with pytest.raises(Refusal) as refusal:
        run("shipped", Case(seqlen=8))
    assert str(refusal.value) in [
        f"two packages ship a kernel 'shipped', {a} 1.5 ({a}_kernels:forward) and {b} 1.5 ({b}_kernels:forward): "
        "uninstall one, or give the function as path.py:function"
        for a, b in (("shippedone", "shippedtwo"), ("shippedtwo", "shippedone"))
    ]


def test_faults_are_for_kernels_of_ours(site: Path) -> None:
    ship(site, "shippedone", {"shipped": "shippedone_kernels:forward"})
    with pytest.raises(
        Refusal,
        match=r"^--fault is for built-in kernels \(flash, flash_tensor, flash_mma, flash_wgmma, split_k, split_mma, fp8, fp8_mma, fp8_wgmma\); shipped is not built in$",
    ):
        run("shipped", Case(seqlen=8), faults=["x"])
