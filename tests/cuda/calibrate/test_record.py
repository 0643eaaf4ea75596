"""A calibration as data: to a file and back, whole messages for what is none, and what contracts take from it."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.refusals import refusal
from workbench import Case
from workbench.case.contract import of_foreign
from workbench.cli import main as cli
from workbench.cuda.calibrate.record import (
    EXPONENTIALS,
    LOGARITHMS,
    Calibration,
    Cast,
    Errors,
    TensorCore,
    check_free,
    contract_fields,
    document,
    load,
    save,
)
from workbench.foreign.run import run
from workbench.refusal import Refusal

ERRORS = Errors(1000, 1.8404, 0.0, 1.8404, -12.5, True, False, 0.9)
CORE = TensorCore(16, 2, "toward-zero", "toward-zero", None)
CAST = Cast("nearest-even", False, "infinity", "infinity", "nan")
MEASURED = Calibration(
    backend="cuda",
    device="NVIDIA H200",
    compute_capability=(9, 0),
    driver="13.0",
    versions={"python": "3.12.1"},
    functions={
        **dict.fromkeys((*EXPONENTIALS, *LOGARITHMS), ERRORS),
        "fast_exp": replace(ERRORS, ulps=2.0, ulps_per_x=1.1571, largest=100.0, flushes=True),
        "fast_log_near_1": replace(ERRORS, flushes=None, subnormal_ulps=None),
    },
    tensor_cores={"mma_m16n8k16_f16": CORE, "mma_m16n8k32_e4m3": replace(CORE, c_rounding="nearest-even")},
    casts={"cvt_f16x2_f32": CAST},
)


# ---- what contracts take


def test_contract_fields_of_the_accurate_exp() -> None:
    assert contract_fields(MEASURED) == {
        "exp_ulps": 1.841,  # rounded up, with the error of the reference
        "exp_ulps_per_x": 0.0,
        "exp_flushes": False,
        "accumulation": "tensor-core",
        "mma_block": 16,
        "mma_extra_bits": 2,
    }


def test_a_foreign_kernel_may_declare_them() -> None:
    fields = contract_fields(MEASURED, exp="fast_exp")
    contract = of_foreign(fields, Case())
    assert {name: getattr(contract, name) for name in fields} == fields
    assert not set(fields) & set(contract.assumed) and contract.assumed


def test_a_run_takes_from_a_file_what_a_foreign_kernel_does_not_say(tmp_path: Path) -> None:
    """Of exp the fast one, since nobody said which; whether tensor cores are used stays unknown."""
    save(MEASURED, tmp_path / "h200.json")

    def kernel(q, k, v, *, scale, causal):
        return {"out": q, "contract": {"exp_ulps": 1.0}}

    promise = run(kernel, Case(dtype="float16"), calibration=str(tmp_path / "h200.json")).contract
    assert (promise.exp_ulps, promise.exp_ulps_per_x, promise.mma_block, promise.mma_extra_bits) == (1.0, 1.158, 16, 2)
    assert promise.accumulation == "any" and "accumulation" in promise.assumed
    assert not {"exp_ulps", "exp_ulps_per_x", "exp_flushes", "mma_block"} & set(promise.assumed)
    declared = {"contract": "tensor_core=ampere", "calibration": str(tmp_path / "h200.json")}
    promise = run(kernel, Case(dtype="float16"), **declared).contract
    assert (promise.mma_block, promise.mma_extra_bits, promise.exp_ulps_per_x) == (8, 1, 1.158)


def test_contract_fields_of_another_exp() -> None:
    fields = contract_fields(MEASURED, exp="fast_exp")
    assert (fields["exp_ulps"], fields["exp_ulps_per_x"], fields["exp_flushes"]) == (2.001, 1.158, True)
    assert refusal(contract_fields, MEASURED, "log") == "exp must be one of exp, fast_exp, ex2, ex2_ftz; got 'log'"


def test_contract_fields_are_of_the_operation_with_the_widest_bound() -> None:
    narrow = replace(
        MEASURED, tensor_cores={"a": CORE, "b": replace(CORE, extra_bits=-10), "c": replace(CORE, block=4)}
    )
    assert (contract_fields(narrow)["mma_block"], contract_fields(narrow)["mma_extra_bits"]) == (16, -10)
    short = replace(MEASURED, tensor_cores={"a": CORE, "c": replace(CORE, block=4)})
    assert (contract_fields(short)["mma_block"], contract_fields(short)["mma_extra_bits"]) == (4, 2)


def test_sums_of_unknown_rounding_give_no_contract() -> None:
    odd = replace(MEASURED, tensor_cores={"mma_m16n8k16_f16": replace(CORE, sum_rounding="other")})
    assert refusal(contract_fields, odd) == (
        "the rounding of tensor-core sums is unknown: mma_m16n8k16_f16 on NVIDIA H200 has TensorCore(block=16, "
        "extra_bits=2, addend_rounding='toward-zero', sum_rounding='other', c_rounding=None)"
    )


def test_an_infinite_error_stays_infinite() -> None:
    lost = replace(MEASURED, functions={**MEASURED.functions, "exp": replace(ERRORS, ulps=math.inf)})
    assert contract_fields(lost)["exp_ulps"] == math.inf


# ---- at rest


def test_to_a_file_and_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "calibration.json"
    save(MEASURED, path)
    assert load(path) == MEASURED
    text = path.read_text()
    assert text == json.dumps(document(MEASURED), indent=1) and '"schema": "workbench.calibration/1"' in text
    other = replace(MEASURED, device="emulator", compute_capability=None, driver=None, backend="emulator")
    save(other, path)
    assert load(path) == other and [file.name for file in path.parent.iterdir()] == ["calibration.json"]


def test_numbers_that_are_not_finite_are_strings(tmp_path: Path) -> None:
    lost = replace(ERRORS, ulps=math.inf, largest=math.inf)
    save(replace(MEASURED, functions={**MEASURED.functions, "exp": lost}), tmp_path / "c.json")
    data = json.loads((tmp_path / "c.json").read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert data["functions"]["exp"]["ulps"] == "inf"
    assert load(tmp_path / "c.json").functions["exp"] == lost


def test_a_whole_number_is_a_float_where_one_is_due(tmp_path: Path) -> None:
    data = document(MEASURED)
    data["functions"]["exp"]["ulps"] = 2
    (tmp_path / "c.json").write_text(json.dumps(data))
    assert repr(load(tmp_path / "c.json").functions["exp"].ulps) == "2.0"


def test_an_absent_file_is_refused(tmp_path: Path) -> None:
    assert refusal(load, tmp_path / "c.json") == f"{tmp_path}/c.json: no such file"


@pytest.mark.parametrize("size", [0, 1, 100, -2])
def test_a_truncated_file_is_refused_at_any_length(tmp_path: Path, size: int) -> None:
    path = tmp_path / "c.json"
    save(MEASURED, path)
    path.write_bytes(path.read_bytes()[:size])
    assert refusal(load, path).startswith(f"{path}: not a complete JSON document (")


def test_a_truncated_file_has_a_whole_message(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text('{"schema": ')
    assert refusal(load, path) == f"{path}: not a complete JSON document (Expecting value: line 1 column 12 (char 11))"


def changed(change) -> str:
    data = document(MEASURED)
    change(data)
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", ": a calibration has the schema 'workbench.calibration/1'; got None"),
        ('{"schema": "workbench.trace/1"}', ": a calibration has the schema 'workbench.calibration/1'; got 'workbench.trace/1'"),
        (changed(lambda d: d.pop("casts")), " lacks casts"),
        (changed(lambda d: d.update(colour="red")), " has unknown fields colour"),
        (changed(lambda d: d["functions"].pop("ex2")), ": functions lacks ex2"),
        (changed(lambda d: d.update(functions=[])), ": functions must be a mapping; got []"),
        (changed(lambda d: d["functions"].update(exp=1)), ": functions.exp must be a mapping; got 1"),
        (changed(lambda d: d["functions"]["exp"].pop("ulps")), ": functions.exp lacks ulps"),
        (changed(lambda d: d["functions"]["exp"].update(ulps="2")), ": functions.exp.ulps must be of type float; got '2'"),
        (changed(lambda d: d["functions"]["exp"].update(ulps=True)), ": functions.exp.ulps must be of type float; got True"),
        (
            changed(lambda d: d["functions"]["exp"].update(flushes=1)),
            ": functions.exp.flushes must be of type bool or null; got 1",
        ),
        (
            changed(lambda d: d["tensor_cores"]["mma_m16n8k16_f16"].update(block=16.5)),
            ": tensor_cores.mma_m16n8k16_f16.block must be of type int; got 16.5",
        ),
        (changed(lambda d: d["tensor_cores"].clear()), ": tensor_cores must have an entry; got none"),
        (changed(lambda d: d["casts"]["cvt_f16x2_f32"].pop("nan")), ": casts.cvt_f16x2_f32 lacks nan"),
        (changed(lambda d: d.update(device=None)), ": device must be of type str; got None"),
        (changed(lambda d: d.update(versions=3)), ": versions must be a mapping; got 3"),
        (
            changed(lambda d: d.update(compute_capability=[9])),
            ": compute_capability must be two whole numbers or null; got [9]",
        ),
    ],
)  # fmt: skip
def test_what_is_no_calibration_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(text)
    assert refusal(load, path) == f"{path}{message}"


def test_nothing_else_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "notes.json"
    path.write_text("{}")
    expected = (
        "only an existing calibration is overwritten; give another file\n"
        f"{path}: a calibration has the schema 'workbench.calibration/1'; got None"
    )
    assert refusal(save, MEASURED, path) == refusal(check_free, path) == expected
    assert path.read_text() == "{}"
    assert refusal(check_free, tmp_path).startswith("only an existing calibration is overwritten")


# ---- the command


@pytest.fixture
def calibrate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """calibrate(*words): the command in an empty folder, on a machine that is measured at once."""
    from workbench.cuda.calibrate import measure as module

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "measure", lambda backend: MEASURED)
    return lambda *words: CliRunner().invoke(cli.commands, ["calibrate", *words])


def test_the_command_prints_a_table_and_writes_the_file(calibrate) -> None:
    result = calibrate()
    assert result.exit_code == 0
    first, header, *rows, last = (line.rstrip() for line in result.stdout.splitlines())
    assert first.startswith("NVIDIA H200, compute capability 9.0, driver for CUDA 13.0: 7e+03 function results")
    assert header.split() == ["what", "measured", "assumed", "remark"]
    assert rows[0].split("  ")[0] == "math.exp" and "1.84 ulp, subnormals are kept" in rows[0]
    assert len(rows) == 7 + 2 + 1 and last == "written: calibration.json"
    assert load(Path("calibration.json")) == MEASURED
    assert calibrate().exit_code == 0  # a calibration may be made anew


def test_the_command_prints_the_document_of_the_file(calibrate) -> None:
    result = calibrate("--json", "--out", "c.json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == document(MEASURED) == json.loads(Path("c.json").read_text())


def test_the_command_measures_nothing_where_it_may_not_write(calibrate, monkeypatch) -> None:
    Path("calibration.json").write_text("mine")
    monkeypatch.setattr("workbench.cuda.calibrate.measure.measure", lambda backend: pytest.fail("measured"))
    result = calibrate()
    assert isinstance(result.exception, Refusal) and Path("calibration.json").read_text() == "mine"


def test_no_gpu_is_an_environment_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr("workbench.cuda.run.gpu", lambda: None)
    monkeypatch.setattr("sys.argv", ["workbench", "calibrate", "--backend", "cuda", "--out", str(tmp_path / "c.json")])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 3 and not (tmp_path / "c.json").exists()
    assert capsys.readouterr().err == (
        "workbench: backend cuda needs an NVIDIA GPU and its driver; none was found. `--backend emulator` runs on the CPU\n"
    )


def test_reading_a_file_needs_no_numba(tmp_path: Path) -> None:
    """Whoever judges with a calibration does not wait for a compiler to be imported."""
    save(MEASURED, tmp_path / "c.json")
    code = (
        "import sys; from pathlib import Path; from workbench.cuda.calibrate.record import *; "
        f"contract_fields(load(Path({str(tmp_path / 'c.json')!r}))); print('numba' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (run.stdout, run.stderr) == ("False\n", "")
