"""The example over torch.distributed, in processes of their own, two and four of them."""

import subprocess
import sys
from pathlib import Path

import pytest

from workbench import Diff, diff, load

torch = pytest.importorskip("torch", reason="torch is not installed")
if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("torch has no gloo", allow_module_level=True)

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "ring_attention.py"


def ring(folder: Path, *options: str) -> Diff:
    command = [sys.executable, str(EXAMPLE), str(folder), "--seqlen", "32", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return diff(load(folder))


@pytest.mark.campaign
@pytest.mark.parametrize("options", [["--ranks", "2"], ["--ranks", "4", "--order", "zigzag"]], ids=["2", "4 zigzag"])
def test_ring_attention_is_right(tmp_path: Path, options: list[str]) -> None:
    found = ring(tmp_path, *options)
    assert found.verdict == "rounding" and len(found.stages) == 8
