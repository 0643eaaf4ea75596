"""A small form of the campaign on attention that nobody here wrote, and what an unknown contract costs."""

import json

import pytest

from campaigns import foreign as bench_foreign
from campaigns.foreign import BACKENDS, KNOWN, _called, measure, reason, tables
from campaigns.known import unknown
from campaigns.tally import Called
from workbench import Case, diff, run

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
CUDA = torch.cuda.is_available()
DIMS = (32, 96)
#: a few, of which out alone does not show all: each is a compile, and the command takes every one
FAULTS = ("reduce-double-counts-sum", "flash-scale-float16", "flash-no-correction", "flash-lse-no-log")


@pytest.fixture(scope="module")
def results():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench_foreign, "FAULTS", FAULTS)
        patch.setattr(bench_foreign, "DIMS", DIMS)
        return measure(lengths=[(33, 65)], per_fault=1)


def test_attention_of_pytorch_is_never_called_wrong(results):
    assert list(results["foreign"]) == list(BACKENDS["cuda" if CUDA else "cpu"])
    assert results["float32_matmul"] == "highest"
    for row in results["foreign"].values():
        assert row["runs"] + sum(row["refused"].values()) == len(DIMS) * 3 * 2
        assert row["verdicts"].get("bug", 0) == 0 < row["runs"], row["not_right"]


def test_the_less_is_known_the_fewer_faults_are_found(results):
    lost = results["lost"]
    assert [row["fault"] for row in lost["faults"]] == list(FAULTS)
    for row in (*lost["faults"], lost["all_faults"]):
        full, known, unknown, out_only = (row[name] for name in KNOWN)
        assert row["runs"] >= row["effective"] >= full >= known >= unknown >= out_only
    sums = lost["all_faults"]
    assert sums["full dump"] > sums["out, contract unknown"] > 0


def test_the_document_is_json_and_its_tables_have_equal_columns(results):
    assert json.loads(json.dumps(results)) == results
    for rows in tables(results):
        assert len({tuple(row) for row in rows}) == 1
    assert tables(results)[-1][-1] == {"fault": "all", **results["lost"]["all_faults"]}


@pytest.mark.parametrize("names", [("out", "lse"), ("out",)])
def test_an_unknown_run_declares_nothing(names):
    trace = run("split_k", Case(seqlen=40, head_dim=8, block_q=16, block_k=16, dtype="float16"), backend="emulator")
    found = unknown(trace, names)
    assert tuple(found.stages) == names and found.requested == ()
    assert all(found.stages[name].tobytes() == trace.stages[name].tobytes() for name in names)
    assert (found.contract.block_k, found.contract.splits, found.contract.out_dtype) == (None, None, "float16")
    assert {"block_k", "splits", "probs_dtype", "fast_math"} <= set(found.contract.assumed)
    assert diff(found).verdict == "rounding"


def test_an_unknown_run_may_be_of_any_case():
    """Of sequences of several lengths too, in pages or not, which a function without a keyword for them refused."""
    case = Case(batch=3, seqlen_q=8, seqlen_k=40, seqlens_k=(33, 40, 7), head_dim=8, block_q=16, block_k=16)
    for one in (case, case.but(page_size=8)):
        found = unknown(run("flash", one, backend="emulator"), ("out",))
        assert diff(found).verdict == "rounding" and found.case.seqlens_k == (33, 40, 7)


def test_a_backend_that_refuses_says_why():
    """No CPU has this backend."""
    refused = _called(("EFFICIENT_ATTENTION", Case(seqlen=8, head_dim=8)), device="cpu")
    assert isinstance(refused, str) and refused.startswith("No viable backend for scaled_dot_product_attention")
    assert isinstance(_called(("MATH", Case(seqlen=8, head_dim=8)), device="cpu"), Called)


def test_the_reason_is_the_first_warning_about_the_backend_itself():
    said = [
        "Memory efficient kernel not used because: (Triggered internally at sdp_utils.cpp:911.)",
        "Memory Efficient attention has been runtime disabled. (Triggered internally at sdp_utils_cpp.h:551.)",
        "Flash attention kernel not used because: (Triggered internally at sdp_utils.cpp:913.)",
        "Expected query, key and value to all be of dtype: {Half, BFloat16}. Got Query dtype: float, Key dtype: float, "
        "and Value dtype: float instead. (Triggered internally at sdp_utils_cpp.h:137.)",
    ]
    assert reason(said, "No available kernel. Aborting execution.") == (
        "Expected query, key and value to all be of dtype: {Half, BFloat16}."
    )
    assert reason(said[:3], "No available kernel.\nstack") == "No available kernel."


@pytest.mark.gpu
def test_every_backend_of_a_gpu_is_judged(results):
    assert results["device"] == torch.cuda.get_device_name()
    assert list(results["foreign"]) == ["MATH", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION"]
    assert results["foreign"]["MATH"]["refused"] == {}
    refused = results["foreign"]["FLASH_ATTENTION"]["refused"]
    assert sum(refused.values()) >= len(DIMS) * 2, "it takes no float32"
