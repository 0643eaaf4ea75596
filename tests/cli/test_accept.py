"""`workbench accept`: what it prints, and its exit codes."""

import json

import pytest
from click.testing import CliRunner

from campaigns.cheats import CHEATS
from workbench.cli.main import commands

CHEAT = next(one for one in CHEATS if one.name == "constant")


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "spec.toml"
    path.write_text('without = ["cold"]\n[case]\ndtype = "float16"\n')
    return path


def test_a_cheat_exits_with_1_and_leaves_junit(spec, tmp_path):
    junit = tmp_path / "accept.xml"
    done = CliRunner().invoke(commands, ["accept", CHEAT.target, "--spec", str(spec), "--json", "--junit", str(junit)])
    assert done.exit_code == 1, done.output
    document = json.loads(done.stdout)
    assert (
        document["verdict"] == "fail" and document["spec"] == str(spec) and "--spec" in document["failure"]["command"]
    )
    assert b"<failure" in junit.read_bytes()


def test_only_is_refused_without_a_seed(spec):
    done = CliRunner().invoke(commands, ["accept", CHEAT.target, "--only", "3"])
    assert type(done.exception).__name__ == "Refusal" and "--seed" in str(done.exception)
