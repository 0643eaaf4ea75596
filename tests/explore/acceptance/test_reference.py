"""Verdicts on functions by a plain reference, on families of inputs of any function."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tests.refusals import invoked, refusal
from workbench.explore.acceptance.caller import started
from workbench.explore.acceptance.file import read, spec_of
from workbench.explore.acceptance.plain_caller import Strided
from workbench.explore.acceptance.reference_families import FAMILIES, ReferenceProblem, families_of, made, problem
from workbench.explore.acceptance.reference_judging import ReferenceJudge
from workbench.explore.acceptance.reference_spec import ReferenceSpec
from workbench.explore.acceptance.run import Acceptance, accept
from workbench.explore.draw import Between
from workbench.explore.reference_shrink import shrink_reference
from workbench.foreign.plain import Returned
from workbench.foreign.plain import read as returned
from workbench.operations.reference.case import ReferenceCase

NAIVE = """
import numpy as np


def naive(x, gate, mode):
    total = x.cumsum(0)
    out = total * gate
    return out


def inputs(seed, dtype, T=12, D=8, mode=0):
    rng = np.random.default_rng(seed)
    x, gate = rng.standard_normal((2, T, D))
    return {"x": x.astype(dtype), "gate": (1 / (1 + np.exp(-gate))).astype(dtype), "mode": mode}


def in_chunks(seed, dtype, T=32):
    assert T % 16 == 0
    return {**inputs(seed, dtype, T, 2)}
"""
#: a bug for each mode, and what of a case shows it
KERNEL = """
import numpy as np

kept = {}


def kernel(x, gate, mode):
    x32 = x.astype(np.float32)
    total = x32.cumsum(0)
    out = (total * gate).astype(x.dtype)
    if mode == 1 and len(x) % 16:
        out = np.empty_like(out)
        out[: len(x) // 16 * 16] = (total * gate)[: len(x) // 16 * 16]
    if mode == 2:
        out = (total * np.maximum(gate, np.float32(0.125))).astype(x.dtype)
    if mode == 3:
        flat = np.ravel(x, "K")  # as it lies in memory
        out = (flat.reshape(x.shape).astype(np.float32).cumsum(0) * gate).astype(x.dtype)
    if mode == 4:
        out = kept.setdefault((x.ctypes.data, x.shape), out)
    if mode == 5:
        out = kept.setdefault((x[0].tobytes(), gate[0].tobytes()), out)
    if mode == 6:
        gate[:] = 0
    if mode == 7:
        total = total + np.float32(0.5)
        return {"total": total, "out": total * gate}
    if mode == 8:
        return out[1:]
    if mode == 9:
        raise ValueError("no mode 9")
    return out
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("reference")
    (found / "naive.py").write_text(NAIVE)
    (found / "kernel.py").write_text(KERNEL)
    return found


@pytest.fixture(scope="module")
def spec(folder: Path) -> ReferenceSpec:
    made = {"reference": f"{folder}/naive.py:naive", "inputs": f"{folder}/naive.py:inputs"}
    found = spec_of({**made, "axes": {"T": {"from": 1, "to": 40}, "D": [4, 8], "mode": 0}}, "spec")
    assert isinstance(found, ReferenceSpec)
    return found


@pytest.fixture(scope="module")
def judge(folder: Path, spec: ReferenceSpec) -> Iterator[ReferenceJudge]:
    with started(f"{folder}/kernel.py:kernel", arrays="", device=None, unsafe=True, memory_gb=8, plain=True) as caller:
        yield ReferenceJudge(caller, spec)


def case(mode: int, T: int = 17, **more: Any) -> ReferenceCase:
    return ReferenceCase({"T": T, "D": 8, "mode": mode}, "float32", 3, **more)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_right_function_stands_every_family(judge: ReferenceJudge, family: str) -> None:
    one = FAMILIES[family](judge.spec, np.random.default_rng(1))
    before = judge.judged_cases[family]
    assert judge.failure_at(one, 0) is None and judge.judged_cases[family] == before + 1


@pytest.mark.parametrize(
    ("mode", "hidden", "shown", "kind", "words"),
    [
        (1, ReferenceProblem("random", case(1, 16)), ReferenceProblem("tail", case(1, 33)), "wrong", "never written"),
        (2, ReferenceProblem("gates-open", case(2, distribution="gates-open")),
         ReferenceProblem("gates-shut", case(2, distribution="gates-shut")), "wrong", "over budget"),
        (3, ReferenceProblem("random", case(3)), ReferenceProblem("strided", case(3), lying=Strided(1, 1, True)),
         "wrong", "over budget"),
        (4, ReferenceProblem("one", case(4, 1)), ReferenceProblem("again", case(4), again=2), "wrong",
         "the result of a previous call"),
        (5, ReferenceProblem("random", case(5)), ReferenceProblem("nudged", case(5, 24), nudged=True), "wrong",
         "the result of a previous call"),
        (6, None, ReferenceProblem("random", case(6)), "overwritten", "input gate was overwritten"),
        (8, None, ReferenceProblem("random", case(8)), "raised", "returned out of shape [16, 8]; out of the reference"),
        (9, None, ReferenceProblem("random", case(9)), "raised", "no mode 9"),
    ],
)  # fmt: skip
def test_a_family_shows_what_it_is_for(
    judge: ReferenceJudge, mode: int, hidden: Any, shown: ReferenceProblem, kind: str, words: str
) -> None:
    if hidden is not None:
        assert judge.failure_at(hidden, 1) is None
    found = judge.failure_at(shown, 1)
    assert found is not None and found.kind == kind and words in found.words, found


def test_a_failure_is_made_small_and_is_a_document(judge: ReferenceJudge) -> None:
    small = shrink_reference(judge.judged_case, case(1, 33))
    assert (small.case.axes, small.case.distribution) == ({"T": 1, "D": 1, "mode": 1}, "signs")
    one = ReferenceProblem("tail", case(1, 33))
    found = Acceptance("f", judge.spec, None, {"unsafe": False}, 1, {}, ("tail",), {}, 0, 1, 1.0, 1.0, None, None,
                       judge.failure_at(one, 1))  # fmt: skip
    failed = json.loads(json.dumps(found.as_dict(), allow_nan=False))["failure"]
    assert failed["family"] == "tail" and failed["case"]["axes"]["mode"] == 1 and failed["origins"] == ["out"]


def test_the_first_wrong_stage_is_named(judge: ReferenceJudge) -> None:
    found = judge.failure_at(ReferenceProblem("random", case(7)), 1)
    assert found is not None and found.judged is not None and found.judged.origins == ("total",)


def test_what_no_reference_takes_is_not_judged(folder: Path, judge: ReferenceJudge) -> None:
    spec = ReferenceSpec(f"{folder}/naive.py:naive", f"{folder}/naive.py:in_chunks", {"T": Between(1, 64)})
    other = ReferenceJudge(judge.caller, spec)
    assert other.failure_at(ReferenceProblem("edges", ReferenceCase({"T": 17}, "float32")), 1) is None
    assert other.untestable["edges"] == 1 and "AssertionError" in other.why and not other.judged_cases


def states(x: Any, y: Any) -> Any:
    state = np.zeros((x.shape[1], y.shape[1]))
    for t in range(len(x)):
        state = state + (x[t] * 1.1)[:, None] * y[t][None, :]
    return state


def tokens(seed: int, dtype: str, T: int = 4, K: int = 8) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {name: random.standard_normal((T, n)).astype(dtype) for name, n in (("x", K), ("y", 8))}


@pytest.mark.parametrize(("K", "off", "verdict"), [(8, 0.0, "judged"), (1, 0.0, "untestable"), (1, np.nan, "fails")])
def test_a_kernel_that_rounds_operands_is_not_wrong_where_its_product_reads_as_a_scaling(
    K: int, off: float, verdict: str
) -> None:
    """An outer product with a vector of one element has the shapes of a scaling, whose operands nobody rounds."""

    class Here(ReferenceJudge):
        def _call(self, one: Any, what: Any, inputs: Any = None) -> Returned:
            x, y = (one.astype(np.float32) for one in what.inputs.values())
            narrow = (x * np.float32(1.1)).astype("bfloat16").astype(np.float32)
            return returned((narrow.T @ y).astype(np.float32) + np.float32(off), "kernel")

    judge = Here(cast(Any, SimpleNamespace(target="kernel")), ReferenceSpec(states, tokens, {"K": Between(1, 8)}))
    failure = judge.failure_at(ReferenceProblem("one", ReferenceCase({"K": K}, "bfloat16")), 1)
    found = "fails" if failure else "untestable" if judge.untestable else "judged"
    assert found == verdict and ("is no product of matrices" in judge.why) == (verdict == "untestable")


def test_families_are_those_of_the_inputs(spec: ReferenceSpec) -> None:
    inputs = made(spec, spec.usual)
    assert spec.usual.axes == {"T": 12, "D": 8, "mode": 0}
    assert {*families_of(spec, inputs)} == {*FAMILIES}
    without_gates = families_of(spec, {"x": inputs["x"]})
    assert not {"gates-open", "gates-shut"} & {*without_gates} and "large" in without_gates
    fixed = ReferenceSpec(spec.reference, spec.inputs, {"T": 8}, contiguous=True)
    assert not {"edges", "tail", "powers", "one", "ends", "strided"} & {*families_of(fixed, inputs)}


def test_problems_follow_from_a_seed_and_stay_in_their_ranges(spec: ReferenceSpec) -> None:
    names = families_of(spec, made(spec, spec.usual))
    found = [problem(spec, names, 5, i) for i in range(3 * len(names))]
    assert found == [problem(spec, names, 5, i) for i in range(3 * len(names))]
    assert all(1 <= one.case.axes["T"] <= 40 and one.case.axes["D"] in (4, 8) for one in found)
    ends = {one.case.axes["T"] for one in found if one.family == "edges"}
    assert ends <= {15, 16, 17, 31, 32, 33}, ends
    assert {one.case.axes["T"] for one in found if one.family == "tail"} <= {33}


def test_a_spec_in_a_file_names_files_beside_it(folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    path = folder / "spec.toml"
    path.write_text('reference = "naive.py:naive"\ninputs = "naive.py:inputs"\ndtype = ["float16", "float32"]\n')
    monkeypatch.chdir(tmp_path)
    found = read(path)
    assert isinstance(found, ReferenceSpec) and found.inputs == f"{folder.resolve()}/naive.py:inputs"
    assert found.axes == {"T": Between(1, 25), "D": Between(1, 17), "mode": Between(1, 1)}
    assert found.dtypes == ("float16", "float32")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"inputs": ""}, "spec: inputs is missing"),
        ({"axes": {"S": 3}}, "spec: inputs take no axis 'S'"),
        ({"axes": {"T": [1.5]}}, "spec: sizes of T are whole numbers; got 1.5"),
        ({"dtype": "float64"}, "spec: dtype must be one of"),
        ({"without": ["gates"]}, "spec: there is no family 'gates'"),
        ({"case": {}}, "spec: a spec with a reference has no 'case'"),
        ({"fresh": 1}, "spec: fresh must be of type bool; got 1"),
    ],
)
def test_what_is_no_spec_is_refused(folder: Path, more: Any, said: str) -> None:
    given = {"reference": f"{folder}/naive.py:naive", "inputs": f"{folder}/naive.py:inputs", **more}
    assert refusal(spec_of, given, "spec").startswith(said)


def test_a_function_in_the_file_of_its_reference_is_refused(folder: Path) -> None:
    where = f"{folder}/naive.py"
    said = refusal(accept, f"{where}:naive", {"reference": f"{where}:naive", "inputs": f"{where}:inputs"})
    assert "move it to a file of its own" in said


def test_the_command(folder: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(folder)
    (folder / "narrow.toml").write_text(
        'reference = "naive.py:naive"\ninputs = "naive.py:inputs"\nwithout = ["random"]\n'
        "[axes]\nT = {from = 1, to = 40}\nD = 4\nmode = 1\n"
    )
    ran = invoked("accept", "kernel.py:kernel", "--spec", "narrow.toml", "--seed", "4", "--only", "0")
    assert ran.exit_code == 1 and "kernel.py:kernel: fail: the first judged case failed" in ran.stdout, ran.stdout
    assert "  family edges, T=" in ran.stdout and "    should be total * gate (naive.py:7)" in ran.stdout
    assert "repeat: workbench accept kernel.py:kernel --spec narrow.toml --seed 4 --only 0" in ran.stdout
    assert "in full: workbench diff kernel.py:kernel --reference naive.py:naive --inputs naive.py:inputs" in ran.stdout
