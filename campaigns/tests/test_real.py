"""The campaign of real kernels, without a checkout: rows, calls, contracts, truths, and the tables that they make."""

import json
import subprocess

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from campaigns.real import checkout, measure, pages, row, rows, said, tables  # noqa: E402
from campaigns.real.call import Call, takes  # noqa: E402
from campaigns.real.case import DTYPES, NARROW  # noqa: E402
from campaigns.real.others import others  # noqa: E402
from campaigns.real.plain import linear  # noqa: E402
from campaigns.real.project import Project, Tolerance  # noqa: E402
from campaigns.real.rows import CASES, NUMBERS, PROJECTS, WRONG  # noqa: E402
from campaigns.real.rows.fla import named  # noqa: E402
from campaigns.real.wrong import KINDS, Truth  # noqa: E402
from workbench.judge.reference.causes.cause import PROOF, Cause, Explained, Named  # noqa: E402
from workbench.reference.graph.node import Line  # noqa: E402
from workbench.refusal import Raised, Refusal  # noqa: E402

EVERY = [*(case for cases in CASES.values() for case in cases), *(bug.case for bug in WRONG.values())]
FIRST = next(iter(WRONG))
JUDGED = {
    "project": "flash-linear-attention", "operation": "attention", "dtype": "bfloat16", "T": 8, "commit": "a",
    "what": "forward", "wrong": FIRST, "before": True, "verdict": "bug", "doubt": "", "fails": True, "origin": "o",
    "wrong_stages": ["o"], "line": "a line", "over_budget": 25.0, "gates": [], "reasons": [],
    "bare": {"verdict": "bug", "fails": True}, "declared": {"verdict": "rounding", "fails": False}, "cause": "named",
    "causes": [{"names": ["o is 0"]}], "assert_close": False, "own_test": True, "differs": True, "times": 30.0,
    "extreme": False, "accuracy": {"o": {"kernel": 2e-3, "torch": 1e-3}}, "seconds": {"judge": 0.2},
}  # fmt: skip
RIGHT = JUDGED | {"before": False, "verdict": "rounding", "fails": False, "origin": None, "assert_close": True,
                  "bare": {"verdict": "rounding", "fails": False}, "wrong_stages": []}  # fmt: skip


def counted(rows: list[dict]) -> dict[str, str]:
    return {one["count"]: one["runs"] for one in tables.counts(rows)}


def test_rows_are_whole():
    assert [*NUMBERS.values()] == [*range(1, sum(len(getattr(x, "WRONG", ())) for x in rows._MODULES) + 1)]
    for bug in WRONG.values():
        assert bug.project in PROJECTS and bug.truth.kind in KINDS and bug.dtypes, bug
        assert bug.shows or bug.truth.changed, bug
        assert {*bug.wrong_in} <= {"forward", "gradients"}, bug
        assert bug.truth.line or bug.truth.kind == "no edit", bug
    for name, cases in CASES.items():
        assert len({one.operation for one in cases}) == len(cases), name
    asked = [(case, x) for cases in CASES.values() for case in cases for x in case.dtypes]
    asked += [(bug.case, x) for bug in WRONG.values() for x in bug.dtypes]
    assert all(case.contract[x] for case, x in asked) and {x for _, x in asked} <= {*DTYPES, *NARROW}


def test_inputs_are_what_calls_take():
    for case in EVERY:
        made = {*case.inputs(0, torch.float32, case.T)}
        for call in (case.kernel, *case.references):
            assert {*call.takes.values()} <= made, (case.operation, call.path)
            assert {*call.swapped} <= {*call.takes}, call.path


def test_an_adapter_renames_swaps_and_fills():
    def function(r, k, scale):
        return r * scale, {"state": (k,)}

    call = Call("m:function", takes("k", r="q"), {"scale": 2.0}, swapped=("r",), swaps=(0,),
                results=(0, (1, "state", 0)))  # fmt: skip
    q, k = torch.arange(6.0).reshape(1, 2, 3), torch.ones(1)
    out, state = call.of(function, ("q", "k"))(q=q, k=k)
    assert torch.equal(out, 2 * q) and state is k
    assert torch.equal(call.first.of(function, ("q", "k"))(q=q, k=k), 2 * q)

    def fills(x, out):
        out.copy_(2 * x)

    def adapter(function, x):
        out = torch.empty_like(x)
        function(x, out)
        return out

    assert torch.equal(Call("m:fills", takes(x="q"), adapter=adapter).of(fills, ("q",))(q=q), 2 * q)


def test_the_contract_is_that_of_the_dtype_and_of_the_reference():
    case = named("KDA, chunks")
    naive, chunked = case.references
    words = [row.contract(case, one, x, "cuda", False) for one in (naive, chunked) for x in DTYPES]
    assert words == ["operands=scaled-tf32", "operands=scaled-bfloat16", "operands=scaled-tf32",
                     "operands=scaled-bfloat16,stored=u:bfloat16"]  # fmt: skip
    assert row.contract(case, naive, "float32", "cpu", False) == "operands=float32"
    attention = named("attention")
    assert row.contract(attention, attention.references[0], "bfloat16", "cuda", True).endswith("round=saved:bfloat16")


def test_own_references_are_the_recurrence():
    made = {name: x.double() for name, x in named("GLA, chunks").inputs(0, torch.float32, 6).items()}
    q, k, v, g = (made[name] for name in ("q", "k", "v", "g"))
    state, out = torch.zeros(1, 2, 32, 32, dtype=torch.float64), []
    for t in range(6):
        state = state * g[:, t].exp()[..., None] + k[:, t, :, :, None] * v[:, t, :, None]
        out.append((q[:, t, :, :, None] * 32**-0.5 * state).sum(-2))
    found, last = linear.gla(q, k, v, g)
    assert torch.allclose(found, torch.stack(out, 1)) and torch.allclose(last, state)


def test_what_others_say_of_errors():
    x, rms = torch.full((4,), 8.0), Tolerance(rms=0.005)
    assert others({"o": x}, {"o": x}, rms) == {"assert_close": True, "rms": 0.0, "own_test": True}
    off = others({"o": x * 1.004}, {"o": x}, rms)
    assert off["own_test"] and not off["assert_close"] and off["rms"] == pytest.approx(0.004, rel=1e-3)
    assert not others({"o": x * 1.004}, {"o": x}, Tolerance(atol=0.01, rtol=1e-3))["own_test"]
    nan = others({"o": x * torch.nan}, {"o": x}, rms)
    assert nan["rms"] != nan["rms"] and not nan["own_test"] and not nan["assert_close"]


def test_a_commit_is_a_folder_or_taken_from_a_clone(tmp_path):
    project = Project("p", "o", "HEAD", ("ops", "gone"), {"": Tolerance()})
    with pytest.raises(Refusal, match="no clone of o/p"):
        checkout.tree(tmp_path, project, "HEAD", tmp_path / "made")
    clone = tmp_path / "p"
    (clone / "ops").mkdir(parents=True)
    (clone / "ops" / "k.py").write_text("x = 1\n")
    (clone / "other.py").write_text("")
    mine = ["git", "-C", str(clone), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "one"]):
        subprocess.run([*mine, *words], check=True)
    made = checkout.tree(tmp_path, project, "HEAD", tmp_path / "made")
    assert (made / "ops" / "k.py").read_text() == "x = 1\n" and not (made / "other.py").exists()
    with pytest.raises(Refusal, match="git ls-tree"):
        checkout.tree(tmp_path, project, "0" * 40, tmp_path / "made")
    (clone / "abc").mkdir()
    assert checkout.tree(tmp_path, project, "abc", tmp_path / "made") == clone / "abc"


def test_a_cause_is_the_truth_on_its_line_and_of_its_kind(tmp_path):
    file = tmp_path / "naive.py"
    file.write_text("a = x\nout = F.linear(gated, linear)\n")

    def told(*names: Named, moved: int = PROOF, also: str = "") -> str:
        causes = (Cause(names, ("out",), 10, 0, 1, moved, 0.0, None, None),) if names else ()
        return said.told(Explained(causes), Truth("linear(gated", "operand", also))

    right, elsewhere = (Named("gated is normed", Line(str(file), n), "operand") for n in (2, 1))
    other = Named("is squared", Line(str(file), 2), "power")
    assert told() == "none" and told(right) == "named" and told(other, right) == "among"
    assert told(elsewhere) == "false" and told(other) == "false" and told(elsewhere, also="a = x") == "named"
    few = PROOF - 1
    assert [told(x, moved=few) for x in (right, elsewhere)] == ["perhaps named", "perhaps false"]
    assert told(other, right, moved=few) == "perhaps among"
    assert (
        said.told(Explained((Cause((right,), ("out",), 1, 0, 1, PROOF, 0.0, None, None),)), Truth("", "no edit"))
        == "false"
    )


def test_how_far_halves_are_apart(tmp_path):
    expected = np.array([1.0, 2.0])

    def times(was: list[float], now: list[float]) -> float:
        for name, x in (("before", was), ("after", now)):
            np.savez(tmp_path / f"{name}.npz", **{"actual.o": np.array(x), "expected.o": expected})
        found = said.apart(tmp_path / "before.npz", tmp_path / "after.npz", ("o",))
        assert found["differs"] == (found["times"] > 2) and found["extreme"] == (found["times"] > 1000)
        return found["times"]

    assert times([1.0, 2.5], [1.0, 2.1]) == pytest.approx(4) and times([1.1, 2.0], [1.0, 2.1]) == pytest.approx(1)
    assert times([1.0, np.nan], [1.0, 2.1]) == np.inf and times([1.0, 2.1], [1.0, 2.1]) == 0
    assert times([1.0, 3.0], [1.0, 2.0]) > 1000  # of a right half without an error


def test_tables_and_counts():
    late = {key: JUDGED[key] for key in ("project", "operation", "dtype", "what")} | {
        "wrong": [*WRONG][1], "before": True, "error": "not done within 60 s"}  # fmt: skip
    verdicts, causes, missing, counts = tables.tables({"audit": False, "rows": [JUDGED, RIGHT, late]})
    (one,) = verdicts
    assert (one["row"], one["before"], one["after"], one["times"]) == (1, "bug", "rounding", "30")
    assert one["own tests"] == "passes/passes" and one["assert_close"] == "fails/passes"
    assert causes[0]["cause"] == "named" and causes[0]["says"] == "o is 0" and "60 s" in missing[0]["cannot run"]
    found = {one["count"]: one["runs"] for one in counts}
    assert found["wrong half judged"] == "1 of 2" and found["before: bug, where it differs"] == "1 of 1"
    assert (
        found["after: exit code 0"] == "1 of 1" and found["NaN, infinity or over 1,000 times, in all runs"] == "0 of 1"
    )
    assert counted([JUDGED | {"verdict": "rounding"}, RIGHT])["before: bug, where it differs"] == "0 of 1"
    assert counted([JUDGED | {"differs": False}, RIGHT])["before: bug, where it differs"] == "0 of 0"
    assert counted([JUDGED, JUDGED | {"dtype": "float32", "cause": "false"}])["cause false"] == "1 of 2"
    table, audited = tables.tables({"audit": True, "rows": [RIGHT | {"wrong": None}]})
    assert table[0]["beside torch's"] == "2" and table[0]["declared"] == "rounding"
    assert {one["count"]: one["n"] for one in audited}["right"] == 1


def test_a_verdict_against_the_truth_fails_and_so_does_nothing():
    def wrong(*rows: dict, audit: bool = False) -> list:
        return tables.wrong({"audit": audit, "rows": rows})

    assert not wrong(JUDGED, RIGHT) and not wrong(JUDGED | {"verdict": "rounding", "differs": False})
    assert wrong(JUDGED | {"verdict": "suspicious"}) and wrong(RIGHT | {"verdict": "suspicious", "fails": True})
    assert wrong() and wrong(RIGHT | {"verdict": "bug"}, audit=True) and not wrong(RIGHT, audit=True)


def test_a_process_that_ends_early_has_a_row(tmp_path):
    asked = {"project": "flash-linear-attention", "operation": "attention", "wrong": None, "before": False,
             "dtype": "float32"}  # fmt: skip
    found = measure._read(asked, tmp_path / "none", "ended with -9")
    assert [(one["what"], one["error"]) for one in found] == [
        ("forward", "ended with -9"),
        ("gradients", "ended with -9"),
    ]
    (tmp_path / "some").write_text('{"what": "forward", "cause": "none"}\n{"what": "forward", "cause": "named"}\n')
    found = measure._read(asked, tmp_path / "some", "not done within 60 s")
    assert found[0]["cause"] == "named" and [one["what"] for one in found] == ["forward", "gradients"]


def test_pages_are_of_documents():
    late = {"project": "flash-linear-attention", "operation": "KDA, chunks", "dtype": "float32", "wrong": None,
            "before": False, "what": "forward", "error": "AttributeError: a|b"}  # fmt: skip
    found = [{"seed": seed, "rows": [RIGHT | {"wrong": None, "over_budget": 0.1 * seed}, late]} for seed in (1, 2)]
    page = pages.audit(found)
    assert "1 functions of 1 projects" in page and "seeds 1 and 2: 2 of 2 runs pass" in page
    assert "| 0.2 | 2 |  |" in page and "`parallel_attn` (attention)" in page and "a\\|b" in page
    page = pages.bugs([{"rows": [JUDGED, RIGHT, JUDGED | {"dtype": "float32", "verdict": "suspicious"}]}])
    assert WRONG[FIRST].after in page and "| bug or suspicious | rounding | o | named | fail, then pass |" in page


def test_findings_are_short_scripts():
    found = pages.findings()
    assert found and all(said and len(file.read_text().splitlines()) <= 32 for file, said in found)
    assert not any("workbench" in file.read_text().replace("without the workbench", "") for file, _ in found)


def test_what_is_known_is_in_the_file_before_all_have_run(tmp_path, monkeypatch):
    def interrupted(*_):
        yield [{"verdict": "bug"}]
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "_spread", interrupted)
    monkeypatch.setattr(measure, "_warm", lambda device: None)
    monkeypatch.setattr(measure, "_trees", lambda *_: dict.fromkeys(PROJECTS, {}))
    with pytest.raises(KeyboardInterrupt):
        measure.measure(str(tmp_path), audit=True, file=tmp_path / "known.json")
    assert json.loads((tmp_path / "known.json").read_text())["rows"] == [{"verdict": "bug"}]


def test_an_error_of_a_kernel_is_its_last_line_without_a_path():
    said = 'f raised:\nTraceback (most recent call last):\n  File "/a/call.py", line 4, in f\n'
    last = "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 262144"
    assert row._error(Raised(f"{said}    raise err\n{last}")) == last
    assert row._error(Raised(f"{said}    g()\nValueError: no")) == "ValueError: no"
