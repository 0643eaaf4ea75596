"""Scripts of wrong runs: they need NumPy alone, fail where the kernel is wrong and pass where it is right."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.readings import kernels
from tests.refusals import refusal
from workbench import Case, diff, run
from workbench.case.formats import FORMATS
from workbench.report.script import script
from workbench.report.script_of_codes import _TABLE, table

FEATURES = """
import numpy as np

def attention(q, k, v, *, scale, causal, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, sinks=None):
    k, v = (np.repeat(x, q.shape[1] // k.shape[1], 1) for x in (k, v))
    s = q @ np.swapaxes(k, -1, -2) * np.float32(scale)
    if softcap:
        s = np.float32(softcap) * np.tanh(s / np.float32(softcap))
    i, j = np.indices(s.shape[-2:])
    d = j - i - (s.shape[-1] - s.shape[-2])
    if alibi_slopes is not None:
        s = s - alibi_slopes[:, None, None] * abs(d).astype(np.float32)
    left, right = window_size
    seen = ((d <= 0) | (not causal)) & ((left < 0) | (d >= -left)) & ((right < 0) | (d <= right))
    s = np.where(seen, s, np.float32(-np.inf))
    m = s.max(-1, keepdims=True)
    p = np.exp(s - m)
    total = p.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks[:, None, None] - m)
    return (FACTOR * (p @ v / total)).astype(q.dtype), (m + np.log(total))[..., 0].astype(np.float32)
"""
CASES = {
    "causal": {"causal": True, "seqlen_q": 20},
    "grouped": {"heads": 4, "kv_heads": 2},
    "window": {"causal": True, "window": (8, 0)},
    "softcap": {"softcap": 5.0},
    "sinks": {"heads": 2, "sinks": "normal"},
    "alibi": {"heads": 2, "causal": True, "alibi_slopes": "geometric"},
    "float16": {"dtype": "float16"},
}


def alone(folder: Path) -> "subprocess.CompletedProcess[str]":
    """The script in a process that has no workbench."""
    command = [sys.executable, "-I", "-c", "import runpy, sys; sys.path[:] = [p for p in sys.path if 'work' not in p or "
               "'site-packages' in p]; runpy.run_path('repro.py')"]  # fmt: skip
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize("name", CASES)
def test_it_fails_where_the_kernel_is_wrong_alone(name: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FEATURES.replace("FACTOR", "np.float32(1.02)"))
    case = Case(seqlen_k=32, head_dim=16, **{"seqlen_q": 32, **CASES[name]})
    made = script(diff(run(f"{file}:attention", case)))
    assert str(tmp_path) not in made and "workbench" not in made
    (tmp_path / "repro.py").write_text(made)
    failed = alone(tmp_path)
    assert failed.returncode == 1 and "AssertionError: off by " in failed.stderr and "out[" in failed.stdout
    file.write_text(FEATURES.replace("FACTOR", "1"))
    assert alone(tmp_path).returncode == 0


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize(
    "bug",
    [
        "heads",
        "k transposed",
        "v swizzled",
        "last dims",
        "capped",
        "last key",
        "no correction",
        "phantom",
        "undivided",
        "base 2",
    ],
)
def test_the_error_of_a_fault_shows(bug: str, tmp_path: Path) -> None:
    source = Path(kernels.__file__).read_text().replace('bug: str = ""', f"bug: str = {bug!r}")
    (tmp_path / "mine.py").write_text(source)
    case = Case(heads=4, kv_heads=2, seqlen=48, head_dim=16)
    (tmp_path / "repro.py").write_text(script(diff(run(f"{tmp_path}/mine.py:attention", case))))
    failed = alone(tmp_path)
    assert failed.returncode == 1 and "AssertionError: off by " in failed.stderr


def test_what_it_cannot_say_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FEATURES.replace("FACTOR", "1"))

    def asked(target: Any, **options: Any) -> str:
        return str(refusal(lambda: script(diff(run(target, Case(seqlen=16, head_dim=16, **options))))))

    assert "gives the right out and lse on normal inputs of this shape" in asked(f"{file}:attention")
    assert "a script calls a function of a file, path.py:function; flash is none" in asked("flash")


#: of codes: tables, scales and the call of any format
CODED = """
import numpy as np

TABLE = np.array(VALUES, np.float32)

def attention(q, k, v, *, KEYWORDS, scale, causal):
    given = locals()
    x = {}
    for name in "qkv":
        of = given[name]
        if "scale_" + name not in given:
            x[name] = of.astype(np.float32)
            continue
        s = given["scale_" + name]
        wide = (lambda a: a[:, None, None]) if s.ndim == 1 else lambda a: np.repeat(
            a, of.shape[-1] if a.shape[-1] == 1 else BLOCK, -1)[..., :of.shape[-1]]
        x[name] = TABLE[of]
        if "zero_" + name in given:
            x[name] = x[name] - wide(given["zero_" + name])
        x[name] = x[name] * wide(FAULT if name == "v" else s)
        if "global_" + name in given:
            x[name] = x[name] * given["global_" + name][:, None, None]
    s = x["q"] @ np.swapaxes(x["k"], -1, -2) * np.float32(scale)
    p = np.exp(s - s.max(-1, keepdims=True))
    return p @ x["v"] / p.sum(-1, keepdims=True)
"""
#: format, what shares a scale, and which inputs are codes
KINDS = [("e4m3", "head", "qkv"), ("e4m3", "block", "qkv"), ("mxfp8-e4m3", "block", "qkv"), ("nvfp4", "block", "qkv"), ("int4", "token", "kv"),
         ("simulated", "head", "qkv"), ("e4m3", "tile", "qkv"), ("mxfp8-e5m2", "block", "qkv"),
         ("int8", "token", "kv"), ("int4", "block", "qkv")]  # fmt: skip


@pytest.mark.campaign(but=5)
@pytest.mark.parametrize(("codes", "by", "of"), KINDS, ids=["-".join(x) for x in KINDS])
def test_of_a_kernel_on_codes_codes_and_scales_are_drawn(codes: str, by: str, of: str, tmp_path: Path) -> None:
    file, form = tmp_path / "mine.py", FORMATS[codes]
    source = CODED.replace("KEYWORDS", ", ".join(f"{kind}_{x}" for kind in form.kinds for x in of))
    source = source.replace("VALUES", str(form.values.tolist()).replace("nan", "np.nan").replace("inf", "np.inf"))
    source = source.replace("BLOCK", str(form.block))
    fault = "4 * s" if by == "tile" else "np.roll(s, 1, 0 if s.ndim == 1 else 1)"  # those of tiles are nearly alike
    file.write_text(source.replace("FAULT", fault))
    case = Case(heads=2, seqlen_q=20, seqlen_k=140, head_dim=64, codes=codes, scale_of=by, codes_of=of)
    made = script(diff(run(f"{file}:attention", case)))
    assert str(tmp_path) not in made and "workbench" not in made and "ml_dtypes" not in made
    (tmp_path / "repro.py").write_text(made)
    failed = alone(tmp_path)
    assert failed.returncode == 1 and "AssertionError: off by " in failed.stderr and "out[" in failed.stdout
    file.write_text(source.replace("FAULT", "s"))
    assert alone(tmp_path).returncode == 0


def test_tables_in_numpy_are_those_of_the_formats() -> None:
    for name, form in FORMATS.items():
        space: dict[str, Any] = {"np": np}
        exec(_TABLE, space)
        values = eval(table(name), space)
        held = abs(form.values) <= form.largest
        assert np.array_equal(values[held], form.values[held]) and np.all(abs(values[~held]) > form.largest)


def test_codes_that_a_function_makes_itself_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FEATURES.replace("FACTOR", "2"))
    judged = diff(run(f"{file}:attention", Case(seqlen=16, head_dim=16, codes="e4m3")))
    assert "no formula for codes that a function makes itself" in str(refusal(lambda: script(judged)))
