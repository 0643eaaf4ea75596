"""From a stage of a foreign function to the line that computes it; nothing where that is not clear."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench import Case, diff, load, run, save
from workbench.case.stages import STAGES
from workbench.foreign.collect import of_run
from workbench.foreign.find import find
from workbench.foreign.lines import lines_of

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"
SMALL = Case(seqlen=16, head_dim=8)

NUMPY = """
import numpy as np


def softmax(scores):
    row_max = scores.max(-1)
    probs = np.exp(scores - row_max[..., None])
    row_sum = probs.sum(-1)
    return probs, row_max, row_sum


def attention(q, k, v, *, scale, causal):
    scores = q @ np.swapaxes(k, -1, -2) * np.float32(scale)
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    probs, row_max, row_sum = softmax(scores)
    found = {"scores": scores, "contract": {}}
    found["out"] = (probs @ v / row_sum[..., None]).astype(q.dtype)
    lse = row_max + np.log(row_sum)
    found |= {"lse": lse.astype(np.float32)}
    return found


def merged(q, k, v, **options):
    return {"probs": None, **attention(q, k, v, **options)} | dict(row_max=None)


def pair(q, k, v, *, scale, causal):
    out, lse = (attention(q, k, v, scale=scale, causal=causal)[name] for name in ("out", "lse"))
    return out, lse


def tuple_of(q, k, v, *, scale, causal):
    out = attention(q, k, v, scale=scale, causal=causal)["out"]
    return out, out.sum(-1)


def alone(q, k, v, *, scale, causal):
    return tuple_of(q, k, v, scale=scale, causal=causal)[0] * 1


def at_run_time(q, k, v, *, scale, causal):
    found = attention(q, k, v, scale=scale, causal=causal)
    return {name: x for name, x in found.items()}


def two_ways(q, k, v, *, scale, causal):
    if causal:
        return {"out": q + 1, "lse": q.sum(-1)}
    return {"out": q + 2}


def entries(q, k, v, *, scale, causal):
    kept = {}
    kept["out"] = q + v
    kept["lse"] = q.sum(-1)
    return {"out": kept["out"], "lse": kept["lse"]}


nameless = lambda q, k, v, *, scale, causal: {"out": q + v}
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(NUMPY)
    return tmp_path / "mine.py"


def texts(function: Callable[..., Any]) -> dict[str, str]:
    return {stage: line.text for stage, line in lines_of(function, [*STAGES], of_run(function)).items()}


ATTENTION = {
    "scores": "scores = q @ np.swapaxes(k, -1, -2) * np.float32(scale)",
    "mask": "scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)",
    "out": 'found["out"] = (probs @ v / row_sum[..., None]).astype(q.dtype)',
    "lse": "lse = row_max + np.log(row_sum)",
}


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("attention", ATTENTION),
        ("merged", ATTENTION),
        ("tuple_of", {"out": NUMPY.split("def tuple_of")[1].splitlines()[1].strip(), "lse": "return out, out.sum(-1)"}),
        ("alone", {"out": "return tuple_of(q, k, v, scale=scale, causal=causal)[0] * 1"}),
        ("pair", dict.fromkeys(("out", "lse"), NUMPY.split("def pair")[1].splitlines()[1].strip())),
        ("at_run_time", {}),
        ("two_ways", {"lse": 'return {"out": q + 1, "lse": q.sum(-1)}'}),
        ("entries", {}),
        ("nameless", {}),
    ],
)
def test_numpy(mine: Path, name: str, lines: Mapping[str, str]) -> None:
    assert texts(find(f"{mine}:{name}")) == lines


def test_what_has_no_source() -> None:
    names: dict[str, Any] = {}
    exec("def typed_in(q, k, v, *, scale, causal):\n    return {'out': q}", names)
    assert texts(names["typed_in"]) == texts(np.dot) == texts(type("Module", (), {"__call__": len})()) == {}


def test_a_file_that_changed_since_it_was_loaded(mine: Path) -> None:
    function = find(f"{mine}:attention")
    for other in (
        "# one line more\n" + NUMPY,
        NUMPY.replace("    if causal:", "    scores = scores + 0\n    if causal:", 1),
    ):
        mine.write_text(other)
        assert texts(function) == {}
    mine.write_text("def attention(:")
    assert texts(function) == {}


def test_a_run_keeps_them_and_so_does_its_file(mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trace = run("mine.py:attention", SMALL)
    assert "lines" not in vars(trace), "nothing is looked for before it is asked"
    assert (
        str(trace.lines["lse"])
        == f"mine.py:{NUMPY.splitlines().index('    lse = row_max + np.log(row_sum)') + 1}: lse = row_max + np.log(row_sum)"
    )
    assert {*trace.lines} == {"scores", "mask", "out", "lse"}
    save(trace, tmp_path / "run.safetensors")
    mine.unlink()
    assert load(tmp_path / "run.safetensors").lines == trace.lines
    assert not diff(load(tmp_path / "run.safetensors")).origins


def test_in_a_process_of_its_own(mine: Path) -> None:
    trace = run(f"{mine}:attention", SMALL, isolate=True)
    assert {stage: line.text for stage, line in trace.lines.items()} == ATTENTION


# --- numba.cuda, Triton, CUDA C++


@pytest.fixture
def numba_kernel(tmp_path: Path) -> str:
    """A kernel of a user's, with scores as an output of the kernel, no probe, under a name that no other
    test imports.
    """
    source = (ROOT / "tests/cuda/my_numba_kernel.py").read_text()
    for before, after in (
        ("q, k, v, out, lse, scale", "q, k, v, out, lse, dump, scale"),
        ("probe.scores[", "dump["),
        ("out, lse, np.float32(scale)", "out, lse, scores, np.float32(scale)"),
        ("    grid = ", "    scores = cuda.device_array((1, 1, 16, 16), np.float32)\n    grid = "),
        ("return out.copy_to_host(), lse.copy", 'return {"scores": scores, "out": out.copy_to_host(), "lse": lse.copy'),
        ("lse.copy_to_host()", "lse.copy_to_host()}"),
    ):
        assert source.count(before) == 1
        source = source.replace(before, after)
    (tmp_path / "in_numba.py").write_text(source)
    return f"{tmp_path}/in_numba.py:attention"


def test_numba(numba_kernel: str) -> None:
    assert texts(find(numba_kernel)) == {
        "scores": "score *= scale",
        "row_max": "row_max, row_sum = larger, row_sum * correction + prob",
        "out": "out[b, h, row, d] = acc[d] / row_sum",
        "lse": "lse[b, h, row] = row_max + math.log(row_sum)",
    }


@pytest.fixture
def triton_flash() -> Iterator[Callable[..., Any]]:
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    yield find(f"{EXAMPLES}/triton_flash.py:stale_acc")


def test_triton(triton_flash: Callable[..., Any]) -> None:
    found = texts(triton_flash)
    assert found["scores"] == 'scores = tl.where(visible, qk * scale_log2, float("-inf"))'
    assert found["acc"] == 'acc = tl.dot(probs_cast, v_tile, acc, input_precision="ieee")'
    assert found["out"] == "(acc / total[:, None]).to(out.dtype.element_ty),"
    assert found["lse"].startswith("tl.store(lse + (b * heads + h) * seqlen_q + rows, (row_max + tl.log2(total)) * ln2")
    assert found["mask"] == found["scores"]
    stages = {"qk", "scores", "row_max", "correction", "probs", "probs_cast", "row_sum", "acc", "out", "lse"}
    assert {*found} == {*stages, "mask"}


@pytest.fixture
def split_k(tmp_path: Path) -> Path:
    """The example in CUDA C++ in a folder of its own, with a kernel beside it that has probes, too."""
    for name in ("cuda_split_k.py", "split_k.cu"):
        shutil.copy(EXAMPLES / name, tmp_path)
    shutil.copy(EXAMPLES / "split_k.cu", tmp_path / "another.cu")
    return tmp_path / "cuda_split_k.py"


def test_cuda_cpp(split_k: Path) -> None:
    function = find(f"{split_k}:counts_sum_twice")
    found = lines_of(function, [*STAGES], of_run(function))
    assert {Path(line.path).name for line in found.values()} == {"split_k.cu"}
    assert found["merge_weight"].text == "WB_PROBE(merge_weight, weight, b, h, s, row);"
    assert found["probs"].text.startswith("WB_PROBE_TILE(probs, i, BLOCK_Q, ")
    source = split_k.with_name("split_k.cu")
    assert [source.read_text().splitlines()[line.line - 1].strip() for line in found.values()] == [
        line.text for line in found.values()
    ]
    ran = of_run(function)
    source.write_text("// one line more\n" + source.read_text())
    assert lines_of(function, [*STAGES], ran) == {}, "what is there is not what ran"


def test_cuda_cpp_that_is_not_named_and_in_comments_and_twice(split_k: Path) -> None:
    split_k.write_text(split_k.read_text().replace("split_k.cu", "built elsewhere"))
    split_k.with_name("split_k.cu").unlink()
    source = split_k.with_name("another.cu")
    source.write_text(source.read_text() + "// WB_PROBE(merge_sum, l, b, h, row);\nWB_PROBE(acc, 0, 0);\n")
    found = texts(find(f"{split_k}:split_k"))
    assert found["merge_sum"] == "WB_PROBE(merge_sum, l, b, h, row);" and "acc" not in found


def test_probes_beside_a_function_that_uses_none(mine: Path) -> None:
    shutil.copy(EXAMPLES / "split_k.cu", mine.parent)
    assert texts(find(f"{mine}:at_run_time")) == {}


MASKED = """
import numpy as np


def attention(q, k, v, *, scale, causal):
    scores = q @ np.swapaxes(k, -1, -2) * np.float32(scale * SCALE)
    if causal:
        scores[..., ~np.tri(*scores.shape[-2:], k=OFF, dtype=bool)] = HIDDEN
    probs = np.exp(scores - scores.max(-1, keepdims=True))
    return {"scores": scores, "out": probs @ v / probs.sum(-1)[..., None]}
"""


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"OFF": "1"}, "scores[..., ~np.tri(*scores.shape[-2:], k=1, dtype=bool)] = -np.inf"),
        ({"OFF": "-1"}, "scores[..., ~np.tri(*scores.shape[-2:], k=-1, dtype=bool)] = -np.inf"),
        ({"HIDDEN": "-1.0"}, "scores[..., ~np.tri(*scores.shape[-2:], k=0, dtype=bool)] = -1.0"),
        ({"SCALE": "2"}, "scores = q @ np.swapaxes(k, -1, -2) * np.float32(scale * 2)"),
    ],
)
def test_what_is_masked_wrongly_is_the_fault_of_the_line_of_the_mask(
    tmp_path: Path, change: Mapping[str, str], line: str
) -> None:
    text = MASKED
    for word, value in {"SCALE": "1", "OFF": "0", "HIDDEN": "-np.inf", **change}.items():
        text = text.replace(word, value)
    (tmp_path / "masked.py").write_text(text)
    with np.errstate(invalid="ignore"):
        judged = diff(run(f"{tmp_path}/masked.py:attention", SMALL.but(causal=True)))
    assert judged.origin == "scores"
    found = judged.explanation("scores").line
    assert found is not None and found.text == line


def test_of_several_lines_that_mask_none_is_told(tmp_path: Path) -> None:
    text = MASKED.replace("SCALE", "1").replace("OFF", "1").replace("HIDDEN", "-np.inf")
    (tmp_path / "masked.py").write_text(
        text.replace("    probs =", "    if scale > 1:\n        scores += 1\n    probs =")
    )
    judged = diff(run(f"{tmp_path}/masked.py:attention", SMALL.but(causal=True)))
    assert judged.origin == "scores" and "scores" in judged.trace.lines
    assert judged.explanation("scores").line is None
