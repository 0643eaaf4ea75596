"""The campaign of probes: what dumping every stage costs, beside a copy of as many bytes."""

import json

import pytest
from click.testing import CliRunner

from campaigns import probes
from campaigns.cli import commands
from campaigns.probes import CASES, NAMES, measure, tables
from tests.refusals import refusal
from workbench import Case
from workbench.cuda.kernels import KERNELS
from workbench.cuda.plan import resolve

pytest.importorskip("torch", reason="PyTorch is not installed")

SMALL = Case(seqlen=64, head_dim=64, heads=2, dtype="float16")
ROW = {"kernel": "flash_mma", "case": SMALL.as_dict(), "plain_us": 10.0, "probed_us": 30.04, "dumped_bytes": 2 * 10**9}


def test_every_kernel_takes_the_cases():
    assert all(resolve(KERNELS[name], case).block_q for name in NAMES for case in CASES)


def test_a_kernel_that_is_none_of_ours():
    assert refusal(measure, ["sdpa"]) == f"probes times built-in kernels: {', '.join(KERNELS)}; got 'sdpa'"


def test_the_table(monkeypatch):
    given = []
    monkeypatch.setattr(probes, "torch_on_gpu", lambda *given, **options: _Torch)
    monkeypatch.setattr(probes, "_copied", lambda: 3000.0)
    monkeypatch.setattr(probes, "_row", lambda *one: given.append(one) or ROW | {"dump_ratio": 1.504})
    results = measure(["flash_mma"], [SMALL])
    assert given == [("flash_mma", SMALL, 3000.0)]
    assert (results["schema"], results["device"], results["copy_gb_per_s"]) == (probes.SCHEMA, "a GPU", 3000.0)
    assert json.loads(json.dumps(results))["rows"] == [ROW | {"dump_ratio": 1.504}]
    assert tables(results) == [
        [
            {
                "kernel": "flash_mma",
                "case": "--seqlen 64 --heads 2 --dtype float16",
                "plain us": 10.0,
                "probed us": 30.0,
                "GB dumped": 2.0,
                "of a copy's time": 1.5,
            }
        ]
    ]


class _Torch:
    class cuda:
        @staticmethod
        def get_device_name():
            return "a GPU"


@pytest.mark.gpu
def test_a_run_on_a_gpu():
    found = CliRunner().invoke(
        commands, ["probes", "flash_mma", "--seqlen", "512", "--heads", "4", "--dtype", "float16", "--json"]
    )
    assert found.exit_code == 0, found.output
    (row,) = json.loads(found.stdout)["rows"]
    assert 0 < row["plain_us"] < row["probed_us"] and row["dump_ratio"] > 0
    # qk, scores, probs and their casts are float32 of every query and key
    assert row["dumped_bytes"] > 4 * 4 * 4 * 512**2
