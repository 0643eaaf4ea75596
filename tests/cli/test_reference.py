"""`workbench diff --reference` and `show --reference`: what is printed, exit codes, refusals."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from workbench.cli.main import commands
from workbench.refusal import Refusal

FILES = {
    "naive.py": """
import numpy as np

def softmax(x):
    weights = np.exp(x - x.max(-1, keepdims=True))
    out = weights / weights.sum(-1, keepdims=True)
    return out

def another(x):
    return x * 2.0
""",
    "make.py": """
import numpy as np

def inputs(seed, dtype, rows=4, dim=32):
    return {"x": np.random.default_rng(seed).standard_normal((rows, dim)).astype(dtype)}
""",
    "kernel.py": """
import numpy as np

def right(x):
    weights = np.exp2((x.astype(np.float32) - x.max(-1, keepdims=True).astype(np.float32)) * np.float32(1.442695041))
    return (weights / weights.sum(-1, keepdims=True)).astype(x.dtype)

def wrong(x):
    weights = np.exp(x.astype(np.float32))
    return {"weights": weights, "out": (weights / weights.sum(-1, keepdims=True)).astype(x.dtype)}
""",
    "gates.py": """
import torch

def gated(x, gate):
    weight = torch.sigmoid(gate)
    out = x * weight
    return out

def inputs(seed, dtype, rows=4, dim=8):
    g = torch.Generator().manual_seed(seed)
    return {name: torch.randn(rows, dim, generator=g).to(getattr(torch, dtype)) for name in ("x", "gate")}

class Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gate):
        ctx.save_for_backward(x, gate)
        return x * torch.sigmoid(gate)

    @staticmethod
    def backward(ctx, dout):
        x, gate = ctx.saved_tensors
        weight = torch.sigmoid(gate)
        return dout * weight, dout * x * weight  # the bug: not times 1 - weight

def kernel(x, gate):
    return Gate.apply(x, gate)
""",
}
ASKED = ["--reference", "naive.py:softmax", "--inputs", "make.py:inputs"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, source in FILES.items():
        (tmp_path / name).write_text(source)
    monkeypatch.chdir(tmp_path)


def run(*words: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(commands, [*words])


def test_explain_names_the_line_of_the_reference_and_exits_with_1() -> None:
    done = run("explain", "kernel.py:wrong", *ASKED)
    assert done.exit_code == 1, done.output
    cause = next(line for line in done.stdout.splitlines() if "cause: " in line)
    assert cause.startswith(
        "  cause: weights reads x in place of x - (max of x) (naive.py:5); reproduces 128 of 128 elements"
    )
    assert cause.endswith("within budget, and on 2 fresh inputs")
    found = json.loads(run("explain", "kernel.py:wrong", *ASKED, "--json").stdout)["explained"]
    assert found["causes"][0]["names"][0]["code"].startswith("weights = np.exp(")
    assert (found["causes"][0]["proved"], found["unexplained"], found["complete"]) == (True, [], True)


def test_explain_with_a_reference_takes_no_symptoms() -> None:
    done = run("explain", "kernel.py:wrong", *ASKED, "--symptoms", "a.json")
    assert str(done.exception) == "--reference takes no --symptoms"


def test_a_right_kernel_is_said_so_in_three_lines_and_a_command_and_exits_with_0() -> None:
    done = run("diff", "kernel.py:right", *ASKED, "--dtype", "bfloat16", "--axes", "rows=3,dim=8")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "kernel.py:right against naive.py:softmax: rows=3, dim=8, bfloat16, seed 0"
    assert lines[1].split()[:2] == ["stage", "verdict"] and lines[2].split()[0] == "out" and "0/24" in lines[2]
    assert lines[3].startswith("verdict: ") and "every judged element" in lines[3]
    repeat = "repeat: workbench diff kernel.py:right --reference naive.py:softmax --inputs make.py:inputs"
    assert lines[4] == f"{repeat} --dtype bfloat16 --axes rows=3,dim=8"
    assert len(lines) == 5


def test_a_wrong_stage_is_named_with_its_line_and_exits_with_1() -> None:
    done = run("diff", "kernel.py:wrong", *ASKED)
    assert done.exit_code == 1 and len(done.stdout.splitlines()) <= 12
    assert (
        "verdict: bug; first wrong stage: weights, should be np.exp(x - x.max(-1, keepdims=True)) (naive.py:5)"
        in done.stdout
    )
    full = run("diff", "kernel.py:wrong", *ASKED, "-v").stdout
    assert "the budget of weights[" in full and "100% its own rounding to float32" in full  # where x is the maximum


def test_several_references_and_several_runs() -> None:
    both = ["--reference", "naive.py:another", *ASKED]
    done = run("diff", "kernel.py:right", *both)
    assert (
        done.exit_code == 0 and "against naive.py:softmax" in done.stdout and "wrong by naive.py:another" in done.stdout
    )
    documents = json.loads(
        run("diff", "kernel.py:right", *ASKED, "--seed", "0,1", "--dtype", "float32,float16", "--json").stdout
    )
    assert documents["schema"] == "workbench.references/1" and len(documents["runs"]) == 4
    assert {one["verdict"] for one in documents["runs"]} <= {"rounding", "exact"}


def test_a_document_says_what_the_report_says() -> None:
    found = json.loads(run("diff", "kernel.py:wrong", *ASKED, "--json").stdout)
    assert found["schema"] == "workbench.reference/1" and found["origin"] == "weights" and found["fails"]
    stage = found["stages"][0]
    assert stage["line"] == "naive.py:5" and stage["code"].startswith("weights = np.exp") and stage["role"] == "origin"
    assert stage["outside"] <= stage["judged"] == stage["size"] == 128 and len(stage["worst"]["index"]) == 2


def test_pages_and_pictures_are_written(tmp_path: Path) -> None:
    done = run("diff", "kernel.py:right", *ASKED, "--html", "page.html", "--out", "seen")
    assert done.exit_code == 0 and "page: page.html" in done.stdout and "pictures: seen/" in done.stdout
    written = {path.name for path in (tmp_path / "seen").iterdir()}
    stages = {f"01-out-{kind}.png" for kind in ("histogram", "errors", "heatmap", "sources")}
    assert written == {"overview.png", "diff.json", *stages}
    html = (tmp_path / "page.html").read_text()
    assert "every judged element is within its budget" in html and html.count("data:image/png;base64") == 3
    both = run("diff", "kernel.py:right", *ASKED, "--distribution", "large,tiny", "--html", "both.html", "--json")
    assert [one["case"] for one in json.loads(both.stdout)["runs"]] == [
        "float32, large inputs, seed 0",
        "float32, tiny inputs, seed 0",
    ]
    assert "0 of 2 runs fail" in (tmp_path / "both.html").read_text()


def test_show_prints_elements_and_where_the_budget_comes_from() -> None:
    done = run("show", "kernel.py:wrong", "weights[0,0:2]", *ASKED)
    assert done.exit_code == 0, done.output
    assert "weights = np.exp(x - x.max(-1, keepdims=True)) (naive.py:5)" in done.stdout
    assert "naive.py:5: weights" in done.stdout and done.stdout.count("bug") >= 2
    narrow = run("show", "kernel.py:right", "out[0,0]", *ASKED, "--dtype", "bfloat16").stdout
    shares = [line.split() for line in narrow.splitlines() if "% " in line]
    assert shares[0][1:] == ["its", "own", "rounding", "to", "bfloat16"] and "naive.py:5:" in narrow
    assert "seed 0" in run("show", "kernel.py:right", "out", "--worst", "1", *ASKED).stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["diff", "kernel.py:right", "--reference", "--inputs", "make.py:inputs"], "--expected shows what elements"),
        (["show", "flash", "qk", "--reference"], "--expected shows what elements"),
        (["diff", "kernel.py:right", "--reference", "naive.py:softmax"], "--inputs is missing"),
        (["diff", *ASKED], "TARGET is missing"),
        (["diff", "flash", *ASKED], "TARGET is FILE.py:FUNCTION, or a function; got flash"),
        (["diff", "kernel.py:right", *ASKED, "--causal"], "--reference takes no --causal"),
        (["diff", "kernel.py:right", *ASKED, "--measure"], "--reference takes no --measure"),
        (["diff", "kernel.py:right", *ASKED, "--operation", "rope"], "--reference takes no --operation"),
        (["diff", "kernel.py:right", *ASKED, "--axes", "rows=2.5"], "--axes rows is a whole number"),
        (["diff", "kernel.py:right", *ASKED, "--contract", "stored=weight"], "contract stores 'weight'; did you mean"),
        (["diff", "kernel.py:right", "--axes", "rows=2"], "--axes is for other operations"),
        (["show", "flash", "qk", "--axes", "rows=2"], "--axes needs --reference"),
        (["show", "kernel.py:right", "probs", *ASKED], "stage 'probs'"),
    ],
)  # fmt: skip
def test_what_is_refused(words: list[str], said: str) -> None:
    done = run(*words)
    assert isinstance(done.exception, Refusal) and said in str(done.exception), done.output


def test_gradients_are_rows_of_the_same_table_and_named_by_the_line_of_the_forward_pass() -> None:
    pytest.importorskip("torch")
    asked = ["--reference", "gates.py:gated", "--inputs", "gates.py:inputs"]
    done = run("diff", "gates.py:kernel", *asked, "--gradients")
    lines = done.stdout.splitlines()
    assert done.exit_code == 1 and [line.split()[0] for line in lines[2:5]] == ["out", "dx", "dgate"]
    said = (
        "verdict: bug; first wrong stage: dgate, should be the gradient through weight = torch.sigmoid(gate) (backward"
    )
    assert any(line.startswith(f"{said} of gates.py:5)") for line in lines) and lines[-1].endswith("--gradients")
    assert run("diff", "gates.py:kernel", *asked).exit_code == 0
    shown = run("show", "gates.py:kernel", "dgate[0,0:2]", *asked, "--gradients")
    assert shown.exit_code == 0 and "backward of gates.py:5" in shown.stdout


@pytest.mark.parametrize("words", [("diff", "kernel.py:right"), ("show", "kernel.py:right", "out[0]")])
def test_gradients_without_a_reference_are_refused(words: tuple[str, ...]) -> None:
    done = run(*words, "--gradients")
    assert isinstance(done.exception, Refusal) and "--gradients needs --reference" in str(done.exception)


def test_gradients_of_a_reference_in_numpy_are_refused_in_one_sentence() -> None:
    done = run("diff", "kernel.py:right", *ASKED, "--gradients")
    said = "gradients go through torch.autograd: naive.py:softmax is in NumPy; it must be in torch"
    assert isinstance(done.exception, Refusal) and str(done.exception) == said


@pytest.mark.parametrize("words", (["diff"], ["explain"], ["shrink"], ["sweep"]))
def test_gradients_alone_are_refused_by_every_command(words: list[str]) -> None:
    done = CliRunner().invoke(commands, [*words, "flash", "--gradients"])
    assert isinstance(done.exception, Refusal) and "--gradients needs --reference" in str(done.exception)
