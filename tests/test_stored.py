"""The stored traces are those of today's kernels: the same bits, but for what exp may do on another CPU."""

import ml_dtypes
import numpy as np
import pytest

from tests.stored import FOLDER, MANIFEST, asked_again, at_rest, file_of, manifest, read, stored, today
from workbench import Case, Refusal, Trace
from workbench.case.options import Options
from workbench.cuda.plan import plan
from workbench.floats import DTYPES, to_float64
from workbench.trace.trace import unwritten

#: of every change: right kernels on the builds of fewest seconds, which other tests compile too
OFTEN = [
    file
    for file, asked in manifest().items()
    if asked["kernel"] in ("flash", "split_k")
    and {*asked} == {"kernel", "case"}
    and {"head_dim": 8, "block_q": 16, "block_k": 16}.items() <= asked["case"].items()
    and not {"dtype", "probs_dtype", "softcap", "window", "sinks"} & {*asked["case"]}
]
#: stages that no exp comes before
EXACT = (
    *(f"{stage}_{x}" for stage in ("scale", "codes", "lut", "dequant") for x in "qkv"),
    *("qk", "scores", "row_max", "partial_max", "merge_max"),
)


def test_the_manifest_names_every_file() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {*manifest(), MANIFEST.name}
    assert all(file == file_of(asked) for file, asked in manifest().items())
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 10e6


def test_they_are_of_what_is_planned_today() -> None:
    """The case, its inputs, the contract and the stages; no kernel runs."""
    for file, asked in manifest().items():
        trace = read(file)
        name, case, options = asked_again(asked, trace)
        try:
            planned = plan(name, case, options, again=True).trace
        except Refusal as refusal:
            raise AssertionError(f"{file} is of a run that is refused today; take it out of {MANIFEST}") from refusal
        for field in ("algorithm", "contract", "faults", "put_in"):
            assert getattr(trace, field) == getattr(planned, field), f"{file}: {field}; python -m tests.stored"
        assert trace.case_run == planned.case, file


def test_right_scalar_kernels_do_the_same_today() -> None:
    for file in OFTEN:
        assert_same(today(file), read(file), file)


@pytest.mark.campaign
@pytest.mark.parametrize("file", manifest())
def test_all_kernels_do_the_same_today(file: str) -> None:
    assert_same(today(file), read(file), file)


def assert_same(found: Trace, kept: Trace, file: str) -> None:
    """The same bits in stages that no exp comes before, and behind it no more apart than an exp of one ulp more or less
    and the roundings after it make them.
    """
    assert [*found.stages] == [*kept.stages], file
    told = {name: (to_float64(found.stages[name]), to_float64(kept.stages[name])) for name in found.stages}
    for name, (one, other) in told.items():
        if found.stages[name].tobytes() == kept.stages[name].tobytes():
            continue
        assert name not in EXACT, f"{file}: {name} has other bits than today; python -m tests.stored"
        assert np.array_equal(unwritten(found.stages[name]), unwritten(kept.stages[name])), f"{file}: {name}"
        np.testing.assert_allclose(one, other, rtol=0, atol=apart(kept, name, other), err_msg=f"{file}: {name}")


def apart(trace: Trace, name: str, values: np.ndarray) -> float:
    """Bound of the difference of a stage, whose terms add up to `size`: each term has an exp of one ulp, is multiplied by
    as many corrections as there are tiles, and rounded with every sum.
    """
    contract, keys = trace.contract, trace.case.seqlen_k
    narrow = {contract.probs_dtype or "float32", contract.partials_dtype, contract.out_dtype or trace.case.dtype}
    unit = max(float(ml_dtypes.finfo(DTYPES[x]).eps) for x in narrow if x in DTYPES)
    tiles = len(contract.tiling(keys).keys)
    finite = np.abs(values[np.isfinite(values)])
    largest = float(finite.max()) if finite.size else 0.0
    of_v = float(np.abs(to_float64(trace.inputs["v"])).max()) if "v" in trace.inputs else 1.0
    size = max(largest, keys * of_v if name in ("acc", "partial_O") else of_v if name == "out" else 1.0)
    return (2 + 2 * tiles + keys) * unit * size


def test_what_is_not_stored_fails_the_test_that_asks_for_it_and_says_how_to_add_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("STORE", raising=False)
    case = Case(seqlen=3, head_dim=8, block_q=16, block_k=16, seed=1234567)
    message = r'^no trace is stored for \{"kernel": "flash".*\}; STORE=1 .* records it$'
    with pytest.raises(pytest.fail.Exception, match=message):
        stored("flash", case, faults=["flash-no-correction"])
    assert stored("flash", case).stages["out"].shape == (1, 1, 3, 8)  # of a right one the kernel runs
    with pytest.raises(Refusal, match="unknown fault"):
        stored("flash", case, faults=["none"])


def test_a_stored_trace_runs_again_from_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STORE", raising=False)
    name, case, options = asked_again(manifest()[OFTEN[0]], read(OFTEN[0]))
    trace = at_rest(name, case, options)
    assert trace.rerun is not None and trace.called_with == Options() and trace.backend == "emulator"
    assert trace.rerun(case).stages.keys() == trace.stages.keys()
