"""Right runs under budgets of plain functions: what declarations are mapped to, and that a wrong run is outside."""

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from campaigns.cli import commands
from campaigns.plain import counts, faults, functions
from campaigns.plain import measure as plain
from campaigns.plain.sayable import said
from campaigns.styles import CORRECT, declared
from campaigns.styles.style import drawn, every_row_has_keys
from workbench import Case, run
from workbench.floats import to_float64
from workbench.reference import dense
from workbench.reference.bound import Budget
from workbench.trace.trace import Trace

STYLES = {style.name: style for style in CORRECT}


def traced(name: str, dtype: str = "float16", **fields: object) -> Trace:
    given = {"seqlen_q": 20, "seqlen_k": 70, "head_dim": 16, "heads": 2, "kv_heads": 1, "causal": True} | fields
    return run(declared(STYLES[name], "full"), Case(**given, dtype=dtype))


@pytest.mark.parametrize(
    ("name", "dtype", "function", "contract"),
    [
        ("fa2_forward", "float16", "flash", {"operands": "float16", "stored": {"out": "float16"}}),
        ("fa2_small_tiles", "float32", "flash", {"operands": "float32", "stored": {}}),
        ("sums_cast_probs", "bfloat16", "flash",
         {"operands": "float32", "stored": {"tiles.probs": "bfloat16", "out": "bfloat16"}}),
        ("probs_bfloat16", "float32", "flash", {"operands": "float32", "stored": {"probs_cast": "bfloat16"}}),
        ("float16_accumulators", "float16", "naive", {"accumulate": "float16"}),
        ("partials_in_16_bits", "float16", "split_k", {"stored": {"partial_O": "float16", "out": "float16"}}),
        ("scaled_q", "float16", "flash",
         {"operands": "float16", "stored": {"operands.scaled_q": "float16", "out": "float16"}}),
        ("torch_eager", "float16", "softmax", {"stored": {"qk": "float16", "scores": "float16", "out": "float16"}}),
        ("tf32", "float32", "flash", {"operands": "tf32"}),
        ("cubic_exp2", "float32", "flash", {"exp_ulps": 1600.0}),
    ],
)  # fmt: skip
def test_what_a_kernel_declares_is_said_in_words_of_the_graph(name, dtype, function, contract):
    found = said(traced(name, dtype))
    assert found.f is getattr(functions, function)
    assert {key: getattr(found.contract, key) for key in contract} == contract


@pytest.mark.parametrize(
    ("name", "dtype", "field"),
    [
        ("headroom", "float32", "row_max"),
        ("clamped_exp2", "float32", "exp_floor"),
        ("two_pass_softmax", "float32", "normalisation"),
        ("reciprocal", "float32", "fast_math"),
        ("tf32x3", "float32", "input_precision"),
        ("out_toward_zero", "float16", "out_rounding"),
    ],
)
def test_what_cannot_be_said_is_left_out_by_its_field(name, dtype, field):
    assert said(traced(name, dtype)) == field


def test_what_no_field_says_is_not_said():
    trace = traced("fa2_forward")
    for field, value in (("accumulation", "tensor-core"), ("exp_ulps_per_x", 3.0), ("scale_in", "any"),
                         ("row_sum_of_cast", None), ("probs_rounding", "any"), ("probs_normalised", True)):  # fmt: skip
        changed = replace(trace, contract=replace(trace.contract, **{field: value}))
        assert said(changed) == field


@pytest.mark.parametrize("name", ["naive", "softmax", "flash", "split_k"])
def test_functions_are_attention(name):
    case = Case(seqlen_q=9, seqlen_k=40, head_dim=8, heads=4, kv_heads=2, causal=True, softcap=5.0)
    q, k, v = (to_float64(x) for x in case.inputs())
    tiles = [slice(0, 16), slice(16, 32), slice(32, 40)]
    more = {"flash": {"visits": tiles}, "split_k": {"splits": [tiles[:2], tiles[2:]]}}.get(name, {})
    expected = dense.attention(q, k, v, scale=case.scale, mask=case.mask(), softcap=case.softcap)
    units = {
        "scores": functions.Units(of_scores=(case.scale,), softcap=5.0),
        "q": functions.Units(of_q=(case.scale,), softcap=5.0),
    }
    for one in units.values():
        out, lse = getattr(functions, name)(q, k, v, mask=case.mask(), units=one, **more)
        assert np.allclose(out, expected["out"]) and np.allclose(lse, expected["lse"])


@pytest.mark.parametrize("name", ["fa2_forward", "fa3_base2", "fast_expf"])
def test_units_are_those_of_the_kernel(name):
    """In base 2, raw, and by a product with log2(e): out is out, whatever the units."""
    trace = traced(name, "float32")
    found = said(trace)
    q, k, v = (to_float64(trace.inputs[x]) for x in "qkv")
    out, lse = found.f(q, k, v, **found.how)
    expected = dense.attention(q, k, v, scale=trace.case.scale, mask=trace.case.mask())
    assert np.allclose(out, expected["out"]) and np.allclose(lse, expected["lse"])
    rough = faults.rough(found.how["units"])
    worse, _ = found.f(q, k, v, **{**found.how, "units": rough})
    off = abs(worse - out).max()
    assert 1e-7 < off < 1e-4


def test_every_style_runs_and_is_within():
    sayable, left_out = plain._sayable()
    assert len(sayable) > 150 and {"row_max", "exp_floor", "normalisation"} <= {*left_out}
    for name in ("fa2_split_kv", "row_sum_by_mma", "torch_eager", "splits_descending", "work_tiles"):
        style = STYLES[name]
        dtype = style.dtypes[-1]
        (fields,) = drawn((dtype,), lambda case: every_row_has_keys(case) and case["seqlen_q"] < 40, 1, 3)
        row = plain._row((name, Case(**fields).as_dict()))
        assert not row["found"] and row["parts"]["out"]["judged"] == row["parts"]["out"]["elements"] > 0


def test_a_wrong_run_is_outside(monkeypatch):
    """The kernel itself, not the plain function, forgets a key."""
    case = Case(seqlen_q=8, seqlen_k=70, head_dim=16)
    right = STYLES["fa2_small_tiles"]

    def forgets(q, k, v, *, scale, causal):
        return right.function(q, k[:, :, 1:], v[:, :, 1:], scale=scale, causal=causal)

    assert not plain._row((right.name, case.as_dict()))["found"]
    monkeypatch.setitem(plain._STYLES, right.name, replace(right, function=forgets))
    row = plain._row((right.name, case.as_dict()))
    assert {"out", "lse"} <= {*row["found"]} and row["parts"]["out"]["outside"] > 0


def test_sizes_of_faults_stand_beside_what_is_found_of_them():
    row = plain._row(("fa2_small_tiles", Case(seqlen_q=8, seqlen_k=70, head_dim=16).as_dict()))
    found = {one["fault"]: one for one in plain._faults([row])}
    assert {*found} == {*faults.FAULTS} and all(one["dtype"] == "float32" for one in found.values())
    assert found["one key dropped"]["outside"] == found["probs in 16 bits"]["outside"] == 1
    assert 0 < float(found["one key dropped"]["least found"]) < 1 and found["one key dropped"]["most missed"] == "0"


def test_no_budget_and_no_number_pass_nothing():
    value = np.array([1.0, 1.0, -np.inf, -np.inf, 1.0, 1.0])
    actual = np.array([1.0, np.nan, -np.inf, 0.0, 5.0, 5.0])
    bound = np.array([np.nan, 1.0, 0.0, 0.0, np.inf, 8.0])
    part, worst, _ = counts.compared(actual, value, Budget(bound, bound, np.array([np.inf] * 5 + [4.0])))
    assert (part.elements, part.judged, part.outside) == (6, 4, 3)
    assert np.array_equal(worst > 1, [True, True, False, True, False, False])


def test_few_judged_and_no_runs_are_wrong():
    whole = {"elements": 100, "judged": 100}
    right = {"runs": 1, "outside": [], "all": {"out": whole, "lse": whole}}
    assert not plain.wrong(right)
    assert plain.wrong(right | {"runs": 0}) and plain.wrong(right | {"outside": [{"out": ""}]})
    assert plain.wrong(right | {"all": {"out": whole | {"judged": 98}, "lse": whole}})


def test_the_command_prints_the_document():
    found = CliRunner().invoke(commands, ["plain", "--runs", "4", "--json"], catch_exceptions=False)
    document = json.loads(found.stdout.splitlines()[-1])
    assert found.exit_code == 0 and document["runs"] == 4 and not document["outside"]
    assert {row["kernel"] for row in document["rows"]} == {"flash", "split_k", "fa2_forward"}
    assert sum(row["runs"] for row in document["faults"] if row["fault"] == "1.4427") == 4
    assert plain.tables(document)
