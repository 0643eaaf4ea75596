"""The example in Triton: right as it stands, each fault named, and no bit other for its probes.

It runs on a GPU where there is one, else in Triton's interpreter (conftest.py).
"""

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.python_path import python_path
from workbench import Case, diff, run
from workbench.foreign.find import find

torch = pytest.importorskip("torch", reason="torch is not installed")
triton = pytest.importorskip("triton", reason="triton is not installed")
tl = triton.language

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "triton_flash.py"
ON = {"arrays": "torch", "device": "cuda" if torch.cuda.is_available() else "cpu"}
#: ragged tiles of queries and keys, heads that share keys, a head_dim that is padded
CASE = Case(heads=2, kv_heads=1, seqlen_q=70, seqlen_k=75, head_dim=24, dtype="float16", causal=True)
#: of tests that run the kernel
runs = pytest.mark.usefixtures("loops")
STAGES = ["qk", "scores", "row_max", "correction", "probs", "probs_cast", "row_sum", "acc", "out", "lse"]


@triton.jit
def counted(out, n, BLOCK: tl.constexpr):
    for tile in range(tl.cdiv(n, BLOCK)):
        tl.store(out + tile, tile)


@pytest.fixture(scope="module")
def loops() -> None:
    """Skips where Triton's interpreter itself runs no loop up to a number that a kernel is given: 3.6 makes that an int
    of an array of one element, which NumPy 2.5 refuses.
    """
    try:
        counted[(1,)](torch.zeros(2, dtype=torch.int32, device=ON["device"]), 4, BLOCK=2)
    except triton.runtime.errors.InterpreterError as error:
        versions = f"Triton {triton.__version__} under NumPy {np.__version__}"
        pytest.skip(f"the interpreter of {versions} runs no loop: {error}")


@pytest.mark.campaign(but=1)
@runs
@pytest.mark.parametrize("dtype", ["float32", "float16", pytest.param("bfloat16", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    "changes", [{}, {"causal": False}, {"seqlen_q": 75, "seqlen_k": 40}], ids=["causal", "full", "rows without keys"]
)
def test_every_stage_is_within_its_budget(dtype: str, changes: dict[str, Any]) -> None:
    judged = diff(run(f"{EXAMPLE}:attention", CASE.but(dtype=dtype, **changes), **ON))
    assert judged.verdict == "rounding" and [stage.name for stage in judged] == STAGES


@runs
@pytest.mark.parametrize("dtype", ["float16", pytest.param("bfloat16", marks=pytest.mark.gpu)])
def test_its_own_fault_is_named(dtype: str) -> None:
    judged = diff(run(f"{EXAMPLE}:stale_acc", CASE.but(dtype=dtype), **ON))
    assert judged.origins == ("acc",) and judged.victims == ("out",)


@pytest.mark.campaign(but=1)
@runs
@pytest.mark.parametrize(
    ("before", "after", "origins"),
    [
        ("<= rows[:, None] + seqlen_k - seqlen_q", "<= rows[:, None]", ("scores",)),
        ("row_sum * correction + tl.sum(probs, 1)", "row_sum + tl.sum(probs, 1)", ("row_sum",)),
        ("tl.exp2(previous_max - finite_max)", "tl.exp(previous_max - finite_max)", ("correction",)),
        ("(row_max + tl.log2(total)) * ln2", "row_max + tl.log2(total)", ("lse",)),
    ],
    ids=["alignment", "stale row_sum", "base of correction", "base of lse"],
)
def test_faults_are_named(tmp_path: Path, before: str, after: str, origins: tuple[str, ...]) -> None:
    source = EXAMPLE.read_text()
    assert source.count(before) == 1
    (tmp_path / EXAMPLE.name).write_text(source.replace(before, after))
    assert diff(run(f"{tmp_path / EXAMPLE.name}:attention", CASE, **ON)).origins == origins


@pytest.mark.campaign(but=1)
@runs
@pytest.mark.parametrize(
    ("dtype", "causal"),
    [("float32", True), ("float16", False), pytest.param("bfloat16", True, marks=pytest.mark.gpu)],
)
def test_probes_change_no_bit(dtype: str, causal: bool) -> None:
    attention, case = find(f"{EXAMPLE}:attention"), CASE.but(dtype=dtype, causal=causal)
    probed = run(attention, case, **ON).stages
    bare = run(partial(attention, probes=False), case, **ON).stages
    assert list(bare) == ["out", "lse"] and list(probed) == STAGES
    for name, x in bare.items():
        assert x.size and x.tobytes() == probed[name].tobytes()


@pytest.mark.campaign
@runs
def test_strides_are_the_kernels_own_business() -> None:
    """Heads next to dims, and a batch that is one in memory."""
    attention = find(f"{EXAMPLE}:attention")
    q, k, v = (torch.from_numpy(x[:1]).to(ON["device"]) for x in CASE.inputs())
    whole = attention(q, k, v, scale=CASE.scale, causal=True)["out"]
    bshd = [x.transpose(1, 2).contiguous().transpose(1, 2).expand(2, -1, -1, -1) for x in (q, k, v)]
    assert not any(x.is_contiguous() for x in bshd)
    assert torch.equal(attention(*bshd, scale=CASE.scale, causal=True)["out"], whole.expand(2, -1, -1, -1))


def test_probes_cost_two_lines_and_a_word_in_four() -> None:
    """New are the import and the buffers. The word stands where the kernel declares its argument, where it is passed,
    where a caller can leave the probes out, and where the stages are returned.
    """
    _, _, code = EXAMPLE.read_text().split('"""', 2)
    touched = [line.strip() for line in code.splitlines() if re.search(r"\b(probes?|buffers|stages)\b", line)]
    others = [line for line in touched if not line.startswith("probe(")]
    assert len(touched) - len(others) == 8 and len(others) == 6
    assert [line for line in others if "buffers" in line] == [others[0], others[3]] and others[0].startswith("from ")


COMPILE = """
import sys
from pathlib import Path
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from workbench.foreign.find import find
from workbench.foreign.probes.triton import Probes

values = dict(CAUSAL=True, RESCALES_ACC=True, HEAD_DIM=64, DIMS=64, BLOCK_Q=64, BLOCK_K=32)
for path in map(Path, sys.argv[1:]):
    kernel = find(f"{path}:flash_forward")
    types = dict.fromkeys(kernel.arg_names, "i32") | dict.fromkeys(("q", "k", "v", "out"), "*fp16")
    types |= dict.fromkeys(values, "constexpr") | {"lse": "*fp32", "scale_log2": "fp32"}
    types |= {name: ("i32",) * 4 for name in types if name.endswith("strides")}
    fixed = {(kernel.arg_names.index(name),): value for name, value in values.items()}
    if "probes" in types:
        types["probes"] = Probes(*["constexpr"] * len(Probes._fields))
        fixed |= {(kernel.arg_names.index("probes"), i): None for i in range(len(Probes._fields))}
    for capability in (80, 90):
        made = compile(ASTSource(kernel, types, fixed), target=GPUTarget("cuda", capability, 32))
        (path.parent / str(capability)).write_bytes(made.asm["cubin"])
"""


@pytest.mark.campaign
def test_without_buffers_it_is_the_kernel_without_probes(tmp_path: Path) -> None:
    """The same machine code, to the byte."""
    source = EXAMPLE.read_text()
    stripped = "".join(
        "" if line.strip().startswith("probe(") else line.replace(" probes,", "").replace(", probe,", ",")
        for line in source.splitlines(keepends=True)
    )
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_DISABLE_LINE_INFO": "1", "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    environment["PYTHONPATH"] = python_path(EXAMPLE.parent.parent)
    paths = [tmp_path / name / EXAMPLE.name for name in ("probed", "stripped")]
    for path, text in zip(paths, (source, stripped), strict=True):
        path.parent.mkdir()
        path.write_text(text)
    subprocess.run([sys.executable, "-c", COMPILE, *paths], check=True, env=environment)
    assert not re.search(r"\bprobe\(|\bprobes,", stripped)
    for capability in ("80", "90"):
        probed, plain = ((path.parent / capability).read_bytes() for path in paths)
        assert probed == plain and probed[:4] == b"\x7fELF"
