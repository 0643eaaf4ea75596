"""Judging needs no extra: where none is installed all works but what one brings, which says so in a sentence."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.python_path import python_path
from workbench.bench.harness import torch_for
from workbench.case import mods
from workbench.cli.accept import _explained
from workbench.cuda.gpu import look_for_gpu
from workbench.extras import absent, install, lacking, needed
from workbench.refusal import Unavailable
from workbench.testing.profiles import load

HERE = Path(__file__).parent / "light"
#: command -> exit code, and what it says
WORKS = {
    "help": (0, "doctor"),
    "function": (0, "verdict: rounding"),
    "trace": (0, "verdict: rounding"),
    "tensors": (0, "verdict: rounding"),
    "page": (1, "cause: the scale is doubled"),
    "explain": (1, "confirmed on 3 fresh cases"),
    "reference": (1, "cause: rstd is squared"),
}
KERNELS = "built-in kernels and numba.cuda kernels need numba"
#: command or call -> what it needs, and the extra
SENTENCES = {
    **dict.fromkeys(("built-in kernel", "check", "sweep", "calibrate", "bench", "run", "kernel"), (KERNELS, "kernels")),
    "pictures": ("--out needs matplotlib", "plot"),
    "picture": ("--picture needs matplotlib", "plot"),
    "plot": ("pictures need matplotlib", "plot"),
    **dict.fromkeys(("shrink", "shrink()"), ("shrinking a case of attention needs hypothesis", "test")),
    "cases": ("workbench.testing.cases, tensors and awkward_values need hypothesis", "test"),
    "torch": ("torch:scaled_dot_product_attention needs torch", "torch"),
}


def sentence(needs: str, extra: str) -> str:
    return f"{needs}, which is not installed here: pip install 'attention-workbench[{extra}]'"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found: Path = shutil.copytree(HERE, tmp_path_factory.mktemp("light") / "user")
    return found


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": python_path(folder, Path(__file__).parents[1])}
    return subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    done = python(folder, "everything.py")
    assert done.returncode == 0, done.stderr
    what: dict[str, Any] = json.loads(done.stdout)
    return what


@pytest.mark.parametrize(("name", "code", "said"), [(name, *one) for name, one in WORKS.items()], ids=str)
def test_what_judges_needs_no_extra(found: dict[str, Any], name: str, code: int, said: str) -> None:
    assert (found[name][0], said in found[name][1], found[name][2]) == (code, True, "")


@pytest.mark.parametrize(("name", "needs", "extra"), [(name, *one) for name, one in SENTENCES.items()], ids=str)
def test_what_needs_an_extra_says_which(found: dict[str, Any], name: str, needs: str, extra: str) -> None:
    said = sentence(needs, extra)
    assert found[name] == (said if isinstance(found[name], str) else [3, "", f"workbench: {said}\n"])


def test_what_is_lost_in_part_is_said(found: dict[str, Any], folder: Path) -> None:
    missing = "no smaller case was searched for: shrinking a case of attention needs hypothesis"
    assert "the scale is doubled" in found["failed"] and found["failed"].endswith(sentence(missing, "test"))
    code, listed, error = found["kernels"]
    assert code == 0 and "needle" in listed and "flash_mma" not in listed
    assert error == f"{sentence('built-in kernels need numba', 'kernels')}\n"
    pages = {name: (folder / f"{name}.html").read_text() for name in ("norm", "twice")}
    assert "pictures of errors need matplotlib, which is not installed here" in pages["norm"]
    assert "matplotlib" not in pages["twice"] and "data:image/png;base64," in pages["twice"]
    assert not (folder / "flash.sqlite").exists() and not (folder / "pictures").exists()


@pytest.mark.campaign
def test_processes_of_a_sweep_need_none(folder: Path) -> None:
    command = "from workbench.cli.main import main; main()"
    sizes = ("--seqlen", "32", "--head-dim", "8", "--out", "twice.sqlite")
    done = python(folder, "-c", command, "sweep", "mine.py:twice", *sizes)
    assert (done.returncode, "2 of 3 cases fail, in 1 group" in done.stdout) == (1, True), done.stdout + done.stderr


def test_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    assert absent("it needs", "cupy") == "it needs cupy, which is not installed here"
    assert install("plot") == "pip install 'attention-workbench[plot]'"
    assert lacking("numbers need", "numpy") == ""
    monkeypatch.setitem(sys.modules, "numba", None)
    assert lacking("kernels need", "numba") == sentence("kernels need numba", "kernels")
    with pytest.raises(Unavailable) as broken, needed("kernels need", "numba"):
        raise SystemError("initialization failed")
    assert str(broken.value) == (
        "kernels need numba, which cannot be imported here (SystemError: initialization failed): `workbench doctor` "
        "says what to install"
    )


def test_sentences_of_what_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    with pytest.raises(Unavailable) as profile:
        load("ci")
    assert str(profile.value) == sentence("the profile ci needs hypothesis", "test")
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    found = look_for_gpu.__wrapped__()
    assert found == f"cannot query the driver: {sentence('this needs cuda.bindings', 'kernels')}"
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(Unavailable) as derivative:
        mods.derivative(abs, "score_mod", (), np.zeros(1))
    assert str(derivative.value) == sentence("score_mod=builtins:abs: its derivative needs torch", "torch")
    monkeypatch.setattr("workbench.bench.harness.torch_if_installed", lambda: None)
    with pytest.raises(Unavailable) as peer:
        torch_for("PyTorch's attention")
    assert str(peer.value) == sentence("PyTorch's attention needs torch", "torch")


def test_a_verdict_stands_without_what_explains_it() -> None:
    class Failed:
        def explain(self) -> None:
            raise Unavailable("it needs hypothesis")

    assert _explained(Failed()) == ["no cause was searched for: it needs hypothesis"]  # type: ignore[arg-type]
