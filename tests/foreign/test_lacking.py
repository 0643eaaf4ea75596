"""What a foreign function lacks on this machine is exit code 3, and no fault of the function."""

from pathlib import Path

import pytest

from workbench import Case, Unavailable, run
from workbench.foreign.probes.interpreter import HINT, NO_GPU

CASE = Case(seqlen=4, head_dim=8)
SIGNATURE = "def attention(q, k, v, *, scale, causal):"


def unavailable(path: Path, text: str) -> str:
    path.write_text(text)
    with pytest.raises(Unavailable) as raised:
        run(f"{path}:attention", CASE)
    return str(raised.value)


def test_a_package_that_is_not_installed(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    absent = "needs no_such_package, which is not installed here"
    assert unavailable(path, f"import no_such_package.ops as ops\n{SIGNATURE} ...\n") == (
        f"{path} {absent} ({path}:1: import no_such_package.ops as ops)"
    )
    assert unavailable(path, f"{SIGNATURE}\n    import no_such_package\n") == (
        f"{path}:attention {absent} ({path}:2: import no_such_package)"
    )


def test_a_gpu_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    assert unavailable(path, f"{SIGNATURE}\n    raise RuntimeError({NO_GPU!r})\n") == (
        f"{path}:attention launches a Triton kernel, and there is no GPU. {HINT}"
    )
