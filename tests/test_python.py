"""docs/reference/python.md has the Python of every command and option, and what it says of it is so."""

import ast
import importlib
import inspect
import json
import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner

import workbench
from workbench import Case, Diff, load, run, save
from workbench.cli.main import commands
from workbench.explore.swept import Swept
from workbench.foreign.call import run_foreign
from workbench.judge.against.pair import Against
from workbench.judge.against.runs import Runs
from workbench.judge.reference.causes.cause import Explained as ReferenceExplained
from workbench.judge.reference.diff import ReferenceDiff
from workbench.operations.backward_measure import BackwardMeasured
from workbench.operations.causes import OperationExplained
from workbench.operations.judge import OperationDiff
from workbench.readings.contract.measured import MeasuredContract
from workbench.readings.reader import Measured

PAGE = Path(__file__).parent.parent.joinpath("docs/reference/python.md").read_text()
#: command line -> Python, of the table that is run and of the one that takes too long
QUICK, SLOW = (
    [(row[1], row[2].replace("\\|", "|")) for row in re.finditer(r"^\| `(.*?)` \| `(.*?)`.*\|$", part, re.MULTILINE)]
    for part in PAGE.split("What takes minutes", 1)
)
KERNEL = """
def attention(q, k, v, *, scale, causal):
    import numpy as np
    scores = q @ np.swapaxes(k, -1, -2) * np.float32(scale)
    scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf) if causal else scores
    probs = np.exp(scores - scores.max(-1, keepdims=True))
    return probs @ v / probs.sum(-1, keepdims=True)
"""
KERNEL += """

def in_torch(q, k, v, *, scale, causal):
    import torch
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale, is_causal=causal)
"""
NORM = """
def rmsnorm(x, weight, *, eps):
    return x / ((x * x).mean(-1, keepdims=True) + x.dtype.type(eps)) ** 0.5 * weight
"""
NORM += """

def naive(x, weight, eps):
    return x / ((x * x).mean(-1, keepdims=True) + eps) ** 0.5 * weight


def inputs(seed, dtype, rows=4):
    import numpy as np
    x = np.random.default_rng(seed).standard_normal((rows, 16)).astype(dtype)
    return {"x": x, "weight": x[0], "eps": 1e-6}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("python")
    made.joinpath("my_kernel.py").write_text(KERNEL)
    made.joinpath("my_norm.py").write_text(NORM)
    save(run(f"{made}/my_kernel.py:attention", Case(seqlen=16)), made / "mine.safetensors")
    made.joinpath("run.log").write_text("WB scores 0 0 0 0 -16.1\n")
    q, k, v = Case(seqlen=8, head_dim=16).inputs()
    np.savez(made / "tensors.npz", q=q, k=k, v=v)
    causal = run(f"{made}/my_kernel.py:attention", Case(seqlen=16, causal=True))
    np.savez(made / "run.npz", **causal.inputs, **causal.stages)
    save(run("flash", Case(seqlen=33)), made / "run/trace.safetensors")
    mine = load(made / "mine.safetensors")
    for i in range(2):
        for side in ("training", "inference"):
            save(mine, made / f"{side}/calls/00000{i}.safetensors")
        np.savez(made / f"dump_{i}.npz", out=mine.stages["out"], **mine.inputs)
    (made / "dump").mkdir()
    for i in range(2):
        made.joinpath(f"dump_{i}.npz").rename(made / f"dump/layer{i}.npz")
    tensors = "\n".join(f'{x} = "layer{{call}}.npz:{x}"' for x in ("q", "k", "v", "out"))
    made.joinpath("mapping.toml").write_text(f"[tensors]\n{tensors}\n")
    return made


def names() -> dict[str, Any]:
    """What the page may use: what it imports, Path, and modules."""
    (imports,) = re.findall(r"^```python\n(from workbench import \*.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    found: dict[str, Any] = {"Path": Path, "workbench": workbench}
    exec(imports, found)
    return found


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize(("line", "python"), QUICK, ids=[line for line, _ in QUICK])
def test_both_do_the_same(line: str, python: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(folder)
    if modules := re.findall(r"\bworkbench\.([\w.]+)\.\w+", python):
        importlib.import_module(f"workbench.{modules[0]}")
    found = eval(python, names())
    assert capsys.readouterr() == ("", ""), "only the command line prints"
    words = shlex.split(line)[1:]
    shown = CliRunner().invoke(commands, [*words, "--json"])
    assert shown.exit_code in (0, 1), shown.output
    told = json.loads(shown.stdout)
    if isinstance(found, Measured):
        assert (found.calls, found.proved) == (told["calls"], told["proved"])
        assert [one.text for one in found.findings] == [one["text"] for one in told["findings"]]
    elif isinstance(found, MeasuredContract):
        assert found.fields == told["fields"] and found.unread == told["unread"] and found.calls == told["calls"]
    elif isinstance(found, OperationExplained):
        assert found.as_dict() == {name: told[name] for name in found.as_dict()} and found.causes
        assert [part.rstrip() for part in CliRunner().invoke(commands, words).stdout.splitlines()] == str(
            found
        ).splitlines()
    elif isinstance(found, ReferenceExplained):
        assert [one.elements for one in found.causes] == [one["elements"] for one in told["explained"]["causes"]]
        assert CliRunner().invoke(commands, words).stdout == f"{found}\n" and found.tried == told["explained"]["tried"]
    elif isinstance(found, BackwardMeasured):
        assert found.as_dict() == told
        assert CliRunner().invoke(commands, words).stdout == f"{found}\n"
    elif isinstance(found, Diff | Against | OperationDiff | ReferenceDiff | Runs | Swept) or words[0] == "check":
        document = found.as_dict()
        for one in (document, told):
            (one.get("measured") or {}).pop("seconds", None)
        assert document == told
        text = CliRunner().invoke(commands, words).stdout
        assert [part.rstrip() for part in text.splitlines()] == str(found).splitlines()
    elif "runs" in told:
        assert [row.verdict for row in found] == [one["verdict"] for one in told["runs"]]
        text = CliRunner().invoke(commands, words).stdout
        assert [part.rstrip() for part in text.splitlines()] == str(found).splitlines()
    elif words[0] == "show":
        rows = found if isinstance(found, list) else found.rows()
        assert [row["expected"] for row in rows] == [one["expected"] for one in told["elements"]] != []
    elif "--html" in words:
        assert found is None and Path("page.html").read_text().startswith("<!doctype html>")
    elif "--out" in words:
        assert Path("in.npz" if words[0] == "inputs" else "run/trace.safetensors").is_file()
    elif "-v" in words:
        text = CliRunner().invoke(commands, words).stdout
        assert [part.rstrip() for part in text.splitlines()] == found.splitlines()
    elif "--fail-on" in words:
        assert found is bool(shown.exit_code)
    else:
        parts = (part for part in told.values() if isinstance(part, list) and part and isinstance(part[0], dict))
        listed = [one.get("id") or one["name"] for one in next(parts)]
        assert listed == (
            [one["name"] if isinstance(one, dict) else one.name for one in found]
            if isinstance(found, list)
            else [*found]
        )


@pytest.mark.parametrize("python", [python for _, python in SLOW])
def test_what_takes_long_exists_and_takes_these_arguments(python: str) -> None:
    calls = [node for node in ast.walk(ast.parse(python)) if isinstance(node, ast.Call)]
    called = {ast.unparse(call.func): call for call in calls if ast.unparse(call.func).startswith("workbench.")}
    assert called
    for path, call in called.items():
        module, _, name = path.rpartition(".")
        function = getattr(importlib.import_module(module), name)
        inspect.signature(function).bind(*call.args, **{str(one.arg): one.value for one in call.keywords})


def test_every_command_and_option_has_its_way() -> None:
    lines = [shlex.split(line)[1:] for line, _ in QUICK + SLOW]
    arguments = {*inspect.signature(run).parameters, *inspect.signature(run_foreign).parameters}
    arguments |= {field.name for field in fields(Case)} | {"seqlen"}
    for path, command in leaves(commands, ()):
        assert [line for line in lines if tuple(line[: len(path)]) == path], f"no workbench {' '.join(path)}"
        for option in (one for one in command.params if isinstance(one, click.Option)):
            flag = option.opts[0]
            assert option.name in arguments or f"`{flag}`" in PAGE or any(flag in line for line in lines), (path, flag)


def leaves(command: click.Command, path: tuple[str, ...]) -> list[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(command, click.Group):
        return [(path, command)]
    return [leaf for name, one in command.commands.items() for leaf in leaves(one, (*path, name))]
