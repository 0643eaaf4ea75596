"""`workbench.load` reads whatever is judged at rest, and the command line reads it by the same function."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.stored import stored
from tests.trace.test_ranks import leave
from workbench import Case, Refusal, diff, load, save
from workbench.cli.main import commands
from workbench.trace.narrow import narrowed

CASE = Case(seqlen=20, heads=2, head_dim=8, block_q=16, block_k=16, splits=2, causal=True)
FAULTS = ["reduce-double-counts-sum"]
MAPPING = {
    "tensors": {x: f"call{{call}}.npz:{x}" for x in ("q", "k", "v", "out")},
    "case": {"causal": True},
    "contract": {"splits": 2},
}


def dump(folder: Path, calls: int) -> Path:
    """A dump of another program, of a wrong kernel."""
    trace = stored("split_k", CASE, faults=FAULTS)
    folder.mkdir()
    for i in range(calls):
        np.savez(folder / f"call{i}.npz", out=trace.stages["out"], **trace.inputs)
    return folder


def shown(*words: str) -> dict[str, Any]:
    """What the command line makes of it."""
    return dict(json.loads(CliRunner().invoke(commands, ["diff", *words, "--json"]).stdout))


@pytest.mark.parametrize("name", ["run.safetensors", "run.trace", "run"])
def test_a_trace_whatever_its_name(name: str, tmp_path: Path) -> None:
    save(stored("split_k", CASE, faults=FAULTS), tmp_path / name)
    found = diff(load(tmp_path / name))
    assert found.origin == "merge_weight" and found.trace.called_with.trace == str(tmp_path / name)
    assert shown(str(tmp_path / name)) == found.as_dict()


def test_parts_of_one_run_and_what_ranks_left(tmp_path: Path) -> None:
    whole = stored("split_k", CASE, faults=FAULTS)
    for i in range(2):
        save(narrowed(whole, f"h={i}"), tmp_path / f"parts/head{i}.safetensors")
    found = load(tmp_path / "parts")
    assert np.array_equal(found.stages["out"], whole.stages["out"]) and diff(found).origin == "merge_weight"
    leave(tmp_path / "ranks")
    found = load(tmp_path / "ranks")
    assert len(found.ranks) == 3 and shown(str(tmp_path / "ranks")) == diff(found).as_dict()


def test_a_dump_of_another_program(tmp_path: Path) -> None:
    found = diff(load(dump(tmp_path / "one", 1), mapping=MAPPING))
    assert found.origin == "out" and np.array_equal(
        found.trace.stages["out"], stored("split_k", CASE, faults=FAULTS).stages["out"]
    )
    folder = dump(tmp_path / "two", 2)
    with pytest.raises(Refusal) as refused:
        load(folder, mapping=MAPPING)
    assert str(refused.value) == (
        f"{folder} holds 2 calls, but a trace is one call: use workbench.trace.dumped.load_dump, which returns all"
    )


def test_the_file_of_records_is_a_dump(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    trace = stored("split_k", CASE, faults=FAULTS)
    arrays = {x: torch.tensor(array) for x, array in {**trace.inputs, "out": trace.stages["out"]}.items()}
    torch.save([{"op": "relu"}, {"op": "attention", **arrays}], tmp_path / "records.pt")
    told = {"op": "attention", "tensors": {x: x for x in ("q", "k", "v", "out")}, "case": {"causal": True}}
    of_file, of_folder = (
        load(tmp_path / "records.pt", mapping=told),
        load(tmp_path, mapping={**told, "records": "records.pt"}),
    )
    assert np.array_equal(of_file.stages["out"], of_folder.stages["out"]) and diff(of_file).origin == "out"
    with pytest.raises(Refusal, match=r"^the mapping: the records are in 'other.pt'; got 'records.pt'$"):
        load(tmp_path / "records.pt", mapping={**told, "records": "other.pt"})


def test_values_that_a_kernel_printed(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text("launch\nWB qk 0 0 5 6 100\n")
    found = diff(load(log, Case(seqlen=24, head_dim=16)))
    assert found.origin == "qk" and found["qk"].judged.summary.size == 1
    assert shown("--values", str(log), "--seqlen", "24", "--head-dim", "16") == found.as_dict()


def test_what_is_none_of_these_and_what_says_itself_what_it_holds_are_refused(tmp_path: Path) -> None:
    log, trace, folder = tmp_path / "run.log", tmp_path / "run.safetensors", dump(tmp_path / "dump", 1)
    log.write_text("WB qk 0 0 5 6 100\n")
    save(stored("split_k", CASE, faults=FAULTS), trace)
    case = Case(seqlen=24)
    for given, message in (
        ((tmp_path / "none",), f"{tmp_path}/none: no such file"),
        ((tmp_path / "none.safetensors",), f"{tmp_path}/none.safetensors: no such file"),
        (
            (log,),
            f"{log}: not a trace; printed values need their case, as in load('{log}', case=Case(...))",
        ),
        ((trace, case), f"{trace}: a trace brings its own case; got case={case!r}"),
        ((trace, None, None, "triton"), f"{trace}: a trace brings its own case; got contract='triton'"),
        ((folder, case, MAPPING), "the mapping: [case] has causal=True; got causal=False"),
        ((trace, None, MAPPING), f"{trace}: a trace names its own arrays; leave the mapping out"),
        (
            (tmp_path / "none", None, MAPPING),
            f"{tmp_path}/none: a mapping reads a file of arrays, a folder, or a file of records; it does not exist",
        ),
        (
            (folder,),
            f"{folder}: no .safetensors file there; read files of another program with --mapping FILE",
        ),
    ):
        with pytest.raises(Refusal) as refused:
            load(*given[:3], contract=given[3] if len(given) > 3 else None)
        assert str(refused.value) == message
