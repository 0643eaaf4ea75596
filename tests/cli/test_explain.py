"""The command `explain`: exit codes, documents, refusals."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.stored import stored
from workbench import Case, Refusal, diff, explain, load, run, save
from workbench.cli.main import commands
from workbench.trace.narrow import narrowed

KERNEL = """
import numpy as np

def attention(q, k, v, *, scale, causal):
    scores = q @ np.swapaxes(k, -1, -2) * np.float32(scale)
    top = scores.max(-1)
    probs = np.exp(scores - top[..., None])
    total = probs.sum(-1)
    return {"scores": scores, "out": probs @ v / total[..., None], "lse": (top + np.log(total)) * np.float32(FACTOR)}
"""


def explained(folder: Path, factor: str, *words: str) -> Any:
    (folder / "mine.py").write_text(KERNEL.replace("FACTOR", factor))
    return CliRunner().invoke(
        commands,
        ["explain", f"{folder}/mine.py:attention", "--seqlen", "64", "--head-dim", "16", "--heads", "2", *words],
    )


def test_a_cause_is_printed_with_its_proof_and_exits_with_1(tmp_path: Path) -> None:
    result = explained(tmp_path, "1.4426950408889634", "--effort", "0.5")
    lines = result.stdout.splitlines()
    assert result.exit_code == 1 and "lse: lse is in base 2, not in base e" in lines
    assert any(line.startswith("  proof: reproduces 128 of 128 elements within budget") for line in lines)
    assert any(line.startswith("  confirmed on ") and "fresh case" in line for line in lines)


def test_a_right_kernel_has_nothing_to_explain_and_exits_with_0(tmp_path: Path) -> None:
    result = explained(tmp_path, "1")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1:] == ["nothing to explain: every stage is right given its inputs"]


def test_the_document_names_its_schema_and_the_cause(tmp_path: Path) -> None:
    document = json.loads(explained(tmp_path, "1.4426950408889634", "--effort", "0.5", "--json").stdout)
    assert document["schema"] == "workbench.explain/1" and document["origins"] == ["lse"]
    (cause,) = document["explanations"]
    assert cause["id"] == "output.lse-base-2" and cause["proved"] and cause["falsifier"]["held"]
    assert document["unknown"] == {"stages": [], "patterns": [], "formulas": []} and document["complete"]


def test_a_table_of_symptoms_takes_no_target(tmp_path: Path) -> None:
    result = CliRunner().invoke(commands, ["explain", "flash", "--symptoms", "largest.json"])
    assert isinstance(result.exception, Refusal)
    assert str(result.exception) == ("--symptoms largest.json replaces TARGET and takes no other option")


RACING = """
import numpy as np
from numba import cuda, float32

@cuda.jit
def copied(x, y):
    part = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    part[i] = x[i]
    BARRIER
    y[i] = part[63 - i]

def attention(q, k, v, *, scale, causal):
    out = cuda.device_array(64, np.float32)
    copied[1, 64](cuda.to_device(v.ravel()), out)
    return out.copy_to_host().reshape(v.shape)
"""


def of_racing(folder: Path, barrier: str, *words: str) -> Any:
    (folder / "mine.py").write_text(RACING.replace("BARRIER", barrier))
    asked = ["explain", f"{folder}/mine.py:attention", "--seqlen", "8", "--head-dim", "8", "--effort", "0.01"]
    return CliRunner().invoke(commands, [*asked, *words])


def test_a_race_is_told_before_any_cause_and_laws_are_not_asked(tmp_path: Path) -> None:
    lines = of_racing(tmp_path, "pass").stdout.splitlines()
    assert lines[1] == "fix this first: it can corrupt any number, and may be the cause of what follows"
    assert [line.split(":")[0] for line in lines if line.startswith("  ") and "[" in line and "is " in line] == [
        "  uninitialised-read",
        "  race",
    ]
    last = max(i for i, line in enumerate(lines) if line.startswith("    first in block"))
    assert lines[last + 1].startswith("out: ") and not any(line.startswith("laws: ") for line in lines)
    document = json.loads(of_racing(tmp_path, "pass", "--json").stdout)
    assert [one["kind"] for one in document["watched"]] == ["uninitialised-read", "race"] and document["laws"] is None


ODD = """
import numpy as np

def attention(q, k, v, *, scale, causal):
    probs = np.exp(q @ np.swapaxes(k, -1, -2) * np.float32(scale))
    odd = np.sin(np.arange(q.shape[2], dtype=np.float32) ** 3)[:, None] * np.abs(q) ** np.float32(1.5)
    return probs @ v / probs.sum(-1, keepdims=True) + odd
"""


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize(("kernel", "beside"), [(RACING, "fix this first"), (ODD, "laws: ")])
def test_print_shows_what_the_command_line_shows(tmp_path: Path, kernel: str, beside: str) -> None:
    """What a watched run finds among it, and the laws that are broken."""
    (tmp_path / "mine.py").write_text(kernel.replace("BARRIER", "pass"))
    target = f"{tmp_path}/mine.py:attention"
    asked = ["explain", target, "--seqlen", "8", "--head-dim", "8", "--effort", "0.01"]
    shown = [x.rstrip() for x in CliRunner().invoke(commands, asked).stdout.splitlines() if x]
    found = explain(target, Case(seqlen=8, head_dim=8), effort=0.01)
    assert [x.rstrip() for x in str(found).splitlines() if x] == shown
    found.save_html(tmp_path / "page.html")
    for text in ("\n".join(shown), (tmp_path / "page.html").read_text(), found._repr_html_()):
        assert beside in text


def test_explain_takes_a_judgement_and_a_trace_too(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(KERNEL.replace("FACTOR", "1.4426950408889634"))
    save(run(f"{tmp_path}/mine.py:attention", Case(seqlen=8, head_dim=8)), tmp_path / "run.safetensors")
    trace = load(tmp_path / "run.safetensors")
    for one in (trace, diff(trace)):
        assert [cause.id for cause in explain(one).causes] == ["output.lse-base-2"]


def test_what_has_run_takes_no_case() -> None:
    for given, what in (({"case": Case()}, "case"), ({"faults": ["flash-scale-twice"]}, "faults")):
        with pytest.raises(Refusal, match=f"^explain runs a target, but this one has run: it takes no {what}$"):
            explain(stored("flash", Case(seqlen=4, head_dim=8)), **given)


@pytest.mark.campaign
def test_a_wrong_kernel_in_which_nothing_is_found_is_said_to_be_watched(tmp_path: Path) -> None:
    lines = of_racing(tmp_path, "cuda.syncthreads()").stdout.splitlines()
    assert lines[1] == "checked: no race, no unwritten read, no access out of bounds"
    assert json.loads(of_racing(tmp_path, "cuda.syncthreads()", "--json").stdout)["watched"] == []


def test_a_run_that_is_too_large_to_be_watched_unasked_names_the_command(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("workbench.foreign.check.IN_SECONDS", 63)
    last = of_racing(tmp_path, "pass").stdout.splitlines()[-1]
    assert (
        last
        == f"check for races and uninitialised reads: workbench check {tmp_path}/mine.py:attention --seqlen 8 --head-dim 8"
    )


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("form", ["log", "file", "folder"])
def test_it_takes_what_diff_takes(tmp_path: Path, form: str) -> None:
    """A log, a file and a folder of parts: the same cause of each, on no fresh case."""
    (tmp_path / "mine.py").write_text(KERNEL.replace("FACTOR", "1.4426950408889634"))
    trace = run(f"{tmp_path}/mine.py:attention", Case(seqlen=24, head_dim=8, heads=2))
    save(trace, tmp_path / "run.safetensors")
    for h in range(2):
        save(narrowed(trace, f"h={h}"), tmp_path / "parts" / f"{h}.safetensors")
    lines = [f"WB lse {b} {h} {q} {x.hex()}" for (b, h, q), x in np.ndenumerate(trace.stages["lse"].astype(float))]
    (tmp_path / "run.log").write_text("\n".join(lines))
    words = {
        "log": ["--values", f"{tmp_path}/run.log", "--seqlen", "24", "--head-dim", "8", "--heads", "2"],
        "file": [f"{tmp_path}/run.safetensors"],
        "folder": [f"{tmp_path}/parts"],
    }
    result = CliRunner().invoke(commands, ["explain", *words[form], "--effort", "0.2"])
    said = result.stdout.splitlines()
    assert result.exit_code == 1 and "lse: lse is in base 2, not in base e" in said, result.exception
    assert "  not tried on a fresh case: a trace cannot be run again" in said


def test_what_it_takes_in_the_place_of_a_target_is_said_where_there_is_none() -> None:
    missing = CliRunner().invoke(commands, ["explain"]).exception
    assert str(missing).endswith("`diff` and `explain` also take --values LOG")
