"""Functions of torch tensors are called with these, although nobody says so; what functions raise begins with theirs."""

from pathlib import Path

import pytest

from workbench import Case, Refusal, diff, run
from workbench.explore.acceptance.run import accept
from workbench.foreign.plain import run_plain
from workbench.operations.call import diff_operation
from workbench.refusal import Raised

torch = pytest.importorskip("torch", reason="torch is not installed")

CASE = Case(seqlen=12, head_dim=8)
SAID = "called with torch tensors: it raises on NumPy arrays"
#: functions of torch alone, and how each fails on NumPy arrays
OF_TORCH = {
    "imports torch": "import torch\n{}\n    return torch.softmax(q @ k.mT * scale, -1) @ v\n",
    "imports a part of it": "from torch.nn.functional import softmax\n{}\n    return softmax(q @ k.mT * scale, -1) @ v\n",
    "imports nothing": "{}\n    return (q @ k.transpose(-1, -2) * scale).softmax(-1) @ v\n",
    "imports both": "import numpy, torch\n{}\n    return (q @ k.mT).mul(scale).softmax(-1) @ v.contiguous()\n",
}
HEAD = "def attention(q, k, v, *, scale, causal):"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "mine.py"


@pytest.mark.parametrize("text", OF_TORCH.values(), ids=[*OF_TORCH])
def test_a_function_of_torch_is_recognised(file: Path, text: str) -> None:
    file.write_text(text.format(HEAD))
    judged = diff(run(f"{file}:attention", CASE))
    assert judged.verdict == "rounding" and SAID in judged.trace.notes
    assert judged.trace.called_with.arrays == "torch"  # so is what repeats it


def test_accept_recognises_it(file: Path) -> None:
    file.write_text(OF_TORCH["imports nothing"].format(HEAD))
    spec = {"case": {"group": 1, "causal": False}}
    found = accept(f"{file}:attention", spec, unsafe=True, seed=1, only=0)
    assert found.failure is None and found.cases == 1


def test_a_function_of_an_operation_is_recognised(file: Path) -> None:
    file.write_text(
        "import torch\n\n\ndef rmsnorm(x, weight, *, eps):\n"
        "    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight\n"
    )
    assert diff_operation(f"{file}:rmsnorm", "rmsnorm").verdict == "rounding"


def test_a_function_of_numpy_is_not_called_twice(file: Path) -> None:
    file.write_text(
        f"import numpy\ncalls = []\n{HEAD}\n    calls.append(1)\n    return q @ k.contiguou() + len(calls)\n"
    )
    with pytest.raises(Refusal, match="raised on numpy arrays"):
        run(f"{file}:attention", CASE)
    file.write_text(f"import numpy\n{HEAD}\n    raise ValueError('my own rule')\n")
    with pytest.raises(Refusal, match="raised on numpy arrays:(.|\n)*my own rule\n$"):
        run(f"{file}:attention", CASE)


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("{}\n    raise ValueError('head_dim')\n", 2),  # its own
        ("import torch\n{}\n    return helper(q)\ndef helper(q):\n    assert 0\n", 3),  # of what it calls
        ("import torch\n{}\n    return torch.zeros(2) @ torch.zeros(3)\n", 3),  # of what it calls of a library
        ("{}\n    return np.zeros(2)\n1 / 0\n", 3),  # while the file is loaded
    ],
)
def test_what_it_raises_begins_with_its_own_line(file: Path, text: str, first: int) -> None:
    file.write_text(text.format(HEAD))
    with pytest.raises(Refusal) as refusal:
        run(f"{file}:attention", CASE)
    said = str(refusal.value).splitlines()
    assert said[1] == "Traceback (most recent call last):" and said[2].startswith(f'  File "{file}", line {first}, in ')
    assert not any("/workbench/" in line for line in said)


def test_so_does_what_an_operation_and_an_import_raise(file: Path) -> None:
    file.write_text("import numpy\n\n\ndef rmsnorm(x, weight, *, eps):\n    return x @ weight.T @ x @ x\n")
    with pytest.raises(Refusal) as refusal:
        diff_operation(f"{file}:rmsnorm", "rmsnorm")
    assert str(refusal.value).splitlines()[2].startswith(f'  File "{file}", line 5, in rmsnorm')
    file.write_text("def attention(:\n")
    with pytest.raises(Refusal) as refusal:
        run(f"{file}:attention", CASE)
    assert str(refusal.value).splitlines()[1].startswith(f'  File "{file}", line 1')


def test_a_function_that_raises_on_tensors_is_not_told_to_take_them() -> None:
    def kernel(x):
        raise AttributeError("'Tensor' object has no attribute 'astype'")

    with pytest.raises(Raised) as raised:
        run_plain(kernel, {"x": torch.ones(3)}, name="kernel")
    assert "--arrays" not in str(raised.value)
    with pytest.raises(Raised, match="pass --arrays torch"):
        run_plain(kernel, {"x": torch.ones(3).numpy()}, name="kernel", arrays="numpy")
