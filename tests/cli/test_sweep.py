"""The commands `sweep` and `compare`: what they print, their documents, exit codes, and the kernel before and after a fix."""

import json
import re
from concurrent.futures import Executor
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.explore.sweep.conftest import kernel, pool
from tests.refusals import invoked, refused
from workbench import Case, sweep
from workbench.explore.sweep.sweep import load as load_sweep

__all__ = ["pool"]  # the fixture, whose processes are those of the tests of sweeps

WORDS = ("--seqlen", "33,36,39", "--head-dim", "8", "--causal", "no,yes")
CASES = [Case(seqlen=n, head_dim=8, causal=causal) for n in (33, 36, 39) for causal in (False, True)]


@pytest.fixture(scope="module")
def before_and_after(tmp_path_factory: pytest.TempPathFactory, pool: Executor) -> tuple[Path, Path, str]:
    """A kernel whose lse is in base 2 for some lengths, and the same after that was mended and the scale broken."""
    folder, files = tmp_path_factory.mktemp("compare"), []
    for name, faults in (("old", ("base 2",)), ("new", ("scale",))):
        target = kernel(folder / "k", *faults)
        files.append(sweep(target, CASES, out=folder / f"{name}.sqlite", executor=pool).path)
    return files[0], files[1], target


@pytest.mark.campaign
def test_a_sweep_prints_its_groups_and_resumes(tmp_path: Path) -> None:
    """On processes of Dask, as it does without options."""
    target, out = kernel(tmp_path / "k", "base 2"), tmp_path / "s.sqlite"
    result = invoked("sweep", target, *WORDS, "--out", out)
    assert result.exit_code == 1, result.output
    printed = re.sub(r"\d+ (?=rounding|suspicious)", "N ", result.stdout).splitlines()
    assert (
        printed[0] == "24 cases: 6 combinations, plus 18 with comb or needle inputs"
    )  # two combs and a needle beside each
    assert printed[1] == f"{target}: 24 cases: 16 bug, N rounding, 2 exact"
    assert printed[3] == "lse: 16 cases: lse is in base 2, not in base e"
    assert "fails where seqlen % 4 != 0 (all 16 of these, none of 8 others" in printed[4]
    assert printed[-6:] == [
        "    seqlen: always 33, 39; never 36",
        "  smallest: Case(seqlen=33, head_dim=8)",
        f"  trace: {tmp_path}/s.traces/{load_sweep(out).groups[0].smallest.id}.safetensors",
        f"  repeat: workbench diff {target} --seqlen 33 --head-dim 8",
        "",
        "16 of 24 cases fail, in 1 group",
    ]
    assert "exists: continue it with --resume" in refused("sweep", target, *WORDS, "--out", out)
    again = invoked("sweep", target, *WORDS, "--out", out, "--resume", "--json")
    document = json.loads(again.stdout)
    assert again.exit_code == 1 and document["schema"] == "workbench.sweep/1"
    assert (document["cases"], document["rows"], document["failing"]) == (24, 24, 16)
    (group,) = document["groups"]
    assert (group["origin"], group["kind"], group["cases"]) == ("lse", "lse is in base N, not in base e", 16)
    assert group["smallest"]["case"]["seqlen_k"] == 33 and group["rule"]["failing"] == 16
    command = group["command"].split()[1:]
    assert json.loads(invoked(*command, "--json").stdout)["origin"] == "lse"


@pytest.mark.campaign
def test_exactly_what_was_fixed_is_better_and_what_was_broken_worse(before_and_after: Any) -> None:
    old, new, _ = before_and_after
    result = invoked("compare", old, new, "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 1 and document["schema"] == "workbench.compare/1"
    changes = {(one["case"]["seqlen_k"], one["case"]["causal"]): one["change"] for one in document["cases"]}
    # lse was wrong where seqlen % 4 != 0; scores are where causal; both are one failure that has become another
    assert changes == {
        (33, False): "better",
        (39, False): "better",
        (33, True): "changed",
        (39, True): "changed",
        (36, True): "worse",
    }
    assert document["counts"] == {
        "worse": 1, "better": 2, "changed": 2, "same": 1, "only_in_old": 0, "only_in_new": 0,
    }  # fmt: skip
    assert {*document["conditions"]} == {"code"}


@pytest.mark.campaign
def test_nothing_worse_exits_with_0(before_and_after: Any, tmp_path: Path) -> None:
    old, _, _ = before_and_after
    result = invoked("compare", old, old)
    assert result.exit_code == 0 and result.stdout == f"{old} -> {old}: 0 worse, 6 same\n"


def test_a_comparison_in_lines(before_and_after: Any) -> None:
    old, new, target = before_and_after
    first, code, *lines = invoked("compare", old, new).stdout.splitlines()
    assert first == f"{old} -> {new}: 1 worse, 2 better, 2 changed, 1 same" and code.startswith("  code: ")
    assert lines[0] == "worse:" and lines[2] == "better:" and lines[5] == "changed:"
    assert lines[1].startswith("  rounding, ") and lines[1].endswith(": Case(seqlen=36, head_dim=8, causal=True)")
    assert "x budget -> bug at scores, " in lines[1]
    assert lines[-1] == f"repeat: workbench diff {target} --seqlen 36 --head-dim 8 --causal"


def test_a_comparison_as_markdown(before_and_after: Any) -> None:
    old, new, target = before_and_after
    lines = invoked("compare", old, new, "--markdown").stdout.splitlines()
    assert lines[0] == f"### Something got worse: `{target}`" and "| worse | 1 |" in lines
    assert lines.count("</details>") == 3 and "| `Case(seqlen=36, head_dim=8, causal=True)` | " in "\n".join(lines)
    rows = [line for line in lines if line.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", line)) in (3, 4) for line in rows)


def test_a_comparison_as_junit(before_and_after: Any, tmp_path: Path) -> None:
    old, new, target = before_and_after
    assert invoked("compare", old, new, "--junit", tmp_path / "j.xml").exit_code == 1
    (suite,) = ElementTree.parse(tmp_path / "j.xml").getroot()
    assert {name: suite.get(name) for name in ("tests", "failures", "skipped")} == dict(
        tests="6", failures="1", skipped="0"
    )
    (failed,) = suite.iter("failure")
    assert "workbench diff" in (failed.text or "") and " -> bug at scores" in str(failed.get("message"))


def test_what_they_refuse(before_and_after: Any, tmp_path: Path) -> None:
    old, new, target = before_and_after
    assert refused("compare", old, new, "--json", "--markdown") == "--json and --markdown exclude each other; got both"
    assert "no such file" in refused("compare", old, tmp_path / "none")
    assert refused("sweep", target, *WORDS, "--scheduler", "tcp://x", "--jobs", 1, "--out", tmp_path / "s").startswith(
        "a sweep takes one of jobs, scheduler and executor"
    )
    assert "unknown kernel 'nothing'" in refused("sweep", "nothing", "--out", tmp_path / "s")
    assert invoked("sweep", target, "--timeout", "0").exit_code == 2
    assert not (tmp_path / "s").exists()
