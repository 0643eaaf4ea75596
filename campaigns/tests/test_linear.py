"""The campaign of flash-linear-attention, without a checkout: calls, contracts, rows, and the table that they make."""

import json

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from campaigns.linear import faults, measure, row, runs  # noqa: E402
from campaigns.real import checkout  # noqa: E402
from campaigns.real.call import Call, takes  # noqa: E402
from campaigns.real.case import DTYPES, NARROW  # noqa: E402
from campaigns.real.plain import linear as plain  # noqa: E402
from campaigns.real.rows.fla import CASES, PROJECT  # noqa: E402
from campaigns.real.rows.fla_wrong import WRONG  # noqa: E402

RIGHT = {
    "operation": "attention", "dtype": "bfloat16", "T": 8, "commit": "a", "what": "forward", "wrong": None,
    "before": False, "fault": None, "verdict": "rounding", "doubt": "", "fails": False, "origin": None, "reference": "naive",
    "contract": "", "declared": "operands=bfloat16", "over_budget": 0.25, "assert_close": False, "rms": 1e-3,
    "own_test": True, "seconds": {"compile": 1.0, "kernel": 1e-4, "reference": 0.1, "judge": 0.2},
}  # fmt: skip


def bug(i: int, **more: object) -> dict:
    return {**RIGHT, "wrong": i, "before": True, "what": WRONG[i].wrong_in[0], "verdict": "bug", **more}


def test_enough_is_asked():
    assert sum(not one.rounds or one.gradients for one in CASES) == len(CASES) >= 40
    assert sum(one.gradients for one in CASES) >= 25
    assert {x for one in CASES for x in one.dtypes} == {*DTYPES, *NARROW}
    assert all(one.contract[x] for one in CASES for x in one.dtypes)
    assert len({one.operation for one in CASES}) == len(CASES)


def test_inputs_are_what_calls_take():
    for case in [*CASES, *(bug.case for bug in WRONG)]:
        made = {*case.inputs(0, torch.float32, 64)}
        for call in (case.kernel, *case.references):
            assert {*call.takes.values()} <= made, (case.operation, call.path)
            assert {*call.swapped} <= {*call.takes}, call.path


def test_an_adapter_renames_and_swaps_alone():
    def function(r, k, scale):
        return r * scale, {"state": (k,)}

    call = Call("m:function", takes("k", r="q"), {"scale": 2.0}, swapped=("r",), swaps=(0,), results=(0, (1, "state")))
    call = Call(**{**vars(call), "results": (0, (1, "state", 0))})
    q, k = torch.arange(6.0).reshape(1, 2, 3), torch.ones(1)
    out, state = call.of(function, ("q", "k"))(q=q, k=k)
    assert torch.equal(out, 2 * q) and state is k
    assert torch.equal(call.first.of(function, ("q", "k"))(q=q, k=k), 2 * q)


def test_the_contract_is_that_of_the_dtype_and_of_the_reference():
    case = next(one for one in CASES if one.operation == "KDA, chunks")
    naive, chunked = case.references

    def words(of, reference, dtype, gradients=False, device="cuda"):
        return row.contract(of, reference, {"dtype": dtype, "device": device}, gradients)

    said = [words(case, one, x) for one in (naive, chunked) for x in DTYPES]
    assert said == ["operands=scaled-tf32", "operands=scaled-bfloat16", "operands=scaled-tf32",
                    "operands=scaled-bfloat16,stored=u:bfloat16"]  # fmt: skip
    assert words(case, naive, "float32", device="cpu") == "operands=float32"
    attention = next(one for one in CASES if one.operation == "attention")
    assert words(attention, attention.references[0], "bfloat16", True).endswith("round=saved:bfloat16")


def test_own_references_are_the_recurrence():
    made = {name: x.double() for name, x in CASES[0].inputs(0, torch.float32, 6).items()}
    q, k, v, g = made["q"], made["k"], made["v"], made["g"][..., None].expand(made["k"].shape)
    state, out = torch.zeros(1, 2, 32, 32, dtype=torch.float64), []
    for t in range(6):
        state = state * g[:, t].exp()[..., None] + k[:, t, :, :, None] * v[:, t, :, None]
        out.append((q[:, t, :, :, None] * 32**-0.5 * state).sum(-2))
    found, last = plain.gla(q, k, v, g)
    assert torch.allclose(found, torch.stack(out, 1)) and torch.allclose(last, state)
    assert torch.allclose(plain.simple_gla(q, k, v, made["g"]), found)


def test_what_others_say_of_errors():
    x, allowed = torch.full((4,), 8.0), PROJECT.tolerance[""]

    def others(actual: list, naive: list) -> dict:
        return runs.others(dict(enumerate(actual)), dict(enumerate(naive)), allowed)

    assert others([x], [x]) == {"assert_close": True, "rms": 0.0, "own_test": True}
    off = others([x * 1.004, x], [x, x])
    assert off["own_test"] and not off["assert_close"] and off["rms"] == pytest.approx(0.004, rel=1e-3)
    nan = others([x, x * torch.nan], [x, x])
    assert nan["rms"] != nan["rms"] and not nan["own_test"] and not nan["assert_close"]


def test_the_table_says_what_was_asked_and_what_was_found():
    late = {"operation": "Comba, chunks", "dtype": "float32", "wrong": None, "before": False, "fault": None,
            "what": "forward", "error": "not done within 60 s"}  # fmt: skip
    rows = [RIGHT, late, bug(0), bug(0, before=False, verdict="rounding")]
    right, wrong, counts = measure.tables({"rows": rows})
    assert [x["verdict"] for x in right] == ["rounding", "none"] and "60 s" in right[1]["decided by"]
    assert right[0].keys() == right[1].keys()
    assert [(x["commit"], x["state"], x["verdict"]) for x in wrong] == [
        (WRONG[0].after, "before", "bug"), (WRONG[0].after, "after", "rounding")]  # fmt: skip
    assert [(x["truth"], x["dtype"], x["runs"], x["judged"], x["bug"]) for x in counts] == [
        ("right", "float32", 1, 0, 0), ("right", "bfloat16", 2, 2, 0), ("wrong", "bfloat16", 1, 1, 1)]  # fmt: skip


def test_a_right_run_that_is_called_wrong_fails_and_so_does_nothing():
    assert not measure.wrong({"rows": [RIGHT, bug(0)]})
    assert measure.wrong({"rows": [RIGHT | {"verdict": "bug"}]}) and measure.wrong({"rows": [bug(0, verdict="exact")]})
    error = {key: RIGHT[key] for key in ("what", "wrong", "before", "fault")} | {"error": "not done within 60 s"}
    assert measure.wrong({"rows": []}) == [{"error": "no rows"}] and measure.wrong({"rows": [RIGHT, error]}) == [error]


def test_a_fault_is_what_its_name_says_and_without_one_the_function_is_right():
    generator = torch.Generator().manual_seed(0)
    x = {name: torch.randn(1, 80, 2, 4, generator=generator) for name in "qkv"} | {"g": -torch.rand(1, 80, 2)}
    right, state = faults.recurrence(**x)
    assert torch.allclose(right, plain.gla(x["q"], x["k"], x["v"], x["g"][..., None].expand(1, 80, 2, 4))[0], atol=1e-5)
    off = {fault: faults.recurrence(**x, fault=fault) for fault in faults._OF["simple GLA, tokens"][2]}
    apart = {fault: (out != right).any(-1)[0].any(-1).nonzero().flatten().tolist() for fault, (out, _) in off.items()}
    assert apart[faults.NONE] == [] and apart[faults.TERM] == [40] and apart[faults.ROW] == [79]
    assert apart[faults.CHUNKS] == [*range(63, 80)] and len(apart[faults.STATE]) == 80 and len(apart[faults.DECAY]) > 70
    assert torch.equal(off[faults.STATE][1], off[faults.STATE][1].bfloat16().float()) and not torch.equal(
        off[faults.CHUNKS][1], state
    )


def test_a_fault_is_judged_from_a_run_that_was_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(checkout, "use", lambda project, root: None)
    reference = tmp_path / "checkouts" / "bc3b101d" / "fla" / "ops" / "attn"
    reference.mkdir(parents=True)
    reference.joinpath("naive.py").write_text(
        "def naive_parallel_attn(q, k, v):\n"
        "    scores = (q * q.shape[-1] ** -0.5).float().transpose(1, 2) @ k.float().permute(0, 2, 3, 1)\n"
        "    seen = scores.new_ones(scores.shape[-2:]).tril() == 1\n"
        "    out = scores.masked_fill(~seen, float('-inf')).softmax(-1) @ v.float().transpose(1, 2)\n"
        "    return (out.transpose(1, 2),)\n"
    )
    term = next(i for i, x in enumerate(faults.FAULTS) if (x.operation, x.fault) == ("attention", faults.TERM))
    asked = {"operation": "attention", "dtype": "float32", "wrong": None, "before": False, "fault": term, "seed": 0,
             "T": 12, "forward": False, "device": "cpu", "checkouts": str(tmp_path / "checkouts")}  # fmt: skip
    runs.save(asked, {"forward": tmp_path / "run"})
    row.write(asked, "forward", tmp_path / "run", tmp_path / "row")
    found = json.loads((tmp_path / "row").read_text())
    assert found["verdict"] == "bug" and found["origin"] == "result" and not found["assert_close"], found
    runs.save(asked | {"checkouts": str(tmp_path)}, {"forward": tmp_path / "none"})
    row.write(asked, "forward", tmp_path / "none", tmp_path / "row")
    assert json.loads((tmp_path / "row").read_text())["error"].startswith("FileNotFoundError at ")


def test_a_process_that_ends_early_has_a_row(tmp_path):
    asked = {"operation": "attention", "wrong": None, "before": False, "fault": None, "dtype": "float32", "T": None}
    task = measure._Task(asked, {"forward": tmp_path / "a", "gradients": tmp_path / "b"}, tmp_path)
    tmp_path.joinpath("a").touch()
    assert [*task.missing] == ["gradients"] and [one.what for one in task.judgements()] == ["forward"]
    (found,) = measure._missing(task.judgements()[0], "ended with -9")
    assert found["error"] == "ended with -9" and found["what"] == "forward" and found["T"] == 200
