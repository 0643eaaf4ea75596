"""A contract is read off kernels that have a property, and is not of those that have it not."""

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.readings.contract_kernels import BF16, kernel
from workbench import Case, Refusal, diff, run
from workbench.case.contract import of_foreign
from workbench.explore.read import measure_contract
from workbench.readings.contract.ends import ends
from workbench.readings.contract.measured import measured_contract
from workbench.readings.contract.operands import operands
from workbench.readings.contract.probs import cast, probs
from workbench.readings.contract.row_sum import exp, row_sum
from workbench.readings.contract.scores import products_of, rounded, scores
from workbench.readings.contract.subject import Subject
from workbench.readings.contract.sums import kept, sums
from workbench.readings.contract.tiles import tiles

HALF = Case(seqlen_q=64, seqlen_k=70, head_dim=32, dtype="float16")
BRAIN = HALF.but(dtype="bfloat16")
SINGLE = HALF.but(dtype="float32")


def subject(case: Case, **options: Any) -> Subject:
    return Subject(run(kernel(**options), case))


def read(found: Any) -> dict[str, Any]:
    return {one.name: one.value for one in found if one.is_read}


def of_scores(one: Subject) -> dict[str, Any]:
    with np.errstate(all="ignore"):
        return read(scores(one, rounded(one), kept(one).values))


@pytest.mark.campaign(but=5)
@pytest.mark.parametrize(
    ("case", "options", "expected"),
    [
        (HALF, {}, {"scores_dtype": "float32", "scaled_q_dtype": "float32", "scale_in": "scores"}),
        (HALF, {"scale_in": "q"}, {"scores_dtype": "float32", "scale_in": "q"}),
        (BRAIN, {"scaled_q": BF16}, {"scores_dtype": "float32", "scaled_q_dtype": "bfloat16"}),
        (BRAIN, {"scale_in": "k"}, {"scores_dtype": "float32", "scale_in": "k"}),
        (HALF, {"scores": np.float16}, {"scores_dtype": "float16", "scaled_q_dtype": "float32"}),
        (BRAIN, {"scores": BF16}, {"scores_dtype": "bfloat16", "scaled_q_dtype": "float32"}),
        (HALF, {"scaled_q": np.float16}, {"scores_dtype": "float32", "scaled_q_dtype": "float16"}),
    ],
)
def test_scores(case: Case, options: dict[str, Any], expected: dict[str, Any]) -> None:
    found = of_scores(subject(case, **options))
    assert {name: found[name] for name in expected} == expected
    assert ("scale_in" in found) == ("scores" not in options and "scaled_q" not in options)
    assert found.get("exp_argument", "difference") == "difference"


@pytest.mark.campaign(but=5)
@pytest.mark.parametrize(
    ("case", "options", "expected"),
    [
        (HALF, {}, ("float32", None, None)),
        (HALF, {"probs": "inputs"}, ("float16", "nearest", False)),
        (BRAIN, {"probs": "inputs"}, ("bfloat16", "nearest", False)),
        (BRAIN, {"probs": "inputs", "normalised": True}, ("bfloat16", "nearest", True)),
        (HALF, {"probs": ml_dtypes.float8_e4m3fn}, ("float8_e4m3fn", "nearest", False)),
        (SINGLE, {"probs": BF16}, ("bfloat16", "nearest", False)),
        (SINGLE, {"probs": np.float16}, ("float16", "nearest", False)),
        (SINGLE, {"operands": lambda x: cast(x, "tf32", "nearest").astype(np.float32)}, ("float32", None, None)),
    ],
)
def test_probs(case: Case, options: dict[str, Any], expected: tuple[Any, ...]) -> None:
    found = read(probs(subject(case, **options)))
    assert tuple(map(found.get, ("probs_dtype", "probs_rounding", "probs_normalised"))) == expected


@pytest.mark.parametrize("lse", [True, False], ids=["lse", "out alone"])
@pytest.mark.parametrize("of_cast", [True, False])
def test_row_sum(of_cast: bool, lse: bool) -> None:
    one = subject(HALF, probs="inputs", sum_of_cast=of_cast, lse=lse)
    found = row_sum(one, "float16", "nearest")
    assert found.is_read and found.value is of_cast
    unknown, uncast = (row_sum(one, dtype, "nearest") for dtype in (None, "float32"))
    assert not unknown.is_read and uncast.evidence == "probs are not cast"


def test_exp() -> None:
    found = exp(subject(BRAIN, probs="inputs", cubic=True))
    assert 1440 <= found.value <= 2000 and "the field adds a 25% margin" in found.evidence
    assert "lse cannot show errors below" in exp(subject(BRAIN, probs="inputs")).evidence
    assert "a row_sum that adds probs" in exp(subject(BRAIN, probs="inputs", sum_of_cast=True)).evidence


@pytest.mark.parametrize(
    ("case", "options", "expected"),
    [
        (HALF, {}, {"accumulator_dtype": "float32", "accumulation": "nearest"}),
        (
            HALF,
            {"bounds": lambda n: [0, 40, n]},
            {"accumulator_dtype": "float32", "partials_dtype": "float32", "accumulation": "nearest"},
        ),
        (HALF, {"sums": np.float16}, {"accumulator_dtype": "float16", "accumulation": "nearest"}),
        (BRAIN, {"sums": BF16}, {"accumulator_dtype": "bfloat16", "accumulation": "nearest"}),
        (
            BRAIN.but(seqlen_k=64),
            {"stored": BF16, "bounds": lambda n: [*range(0, n, 16), n]},
            {"accumulator_dtype": "float32", "partials_dtype": "bfloat16"},
        ),
    ],
)
def test_sums(case: Case, options: dict[str, Any], expected: dict[str, Any]) -> None:
    one = subject(case, **options)
    with np.errstate(all="ignore"):
        assert read(sums(one, kept(one), products_of(rounded(one)), bool(options.get("bounds")))) == expected


def test_products_that_a_cast_or_an_accumulator_rounds_are_not_told_apart() -> None:
    with np.errstate(all="ignore"):
        one = subject(HALF, sums=np.float16)
        how = rounded(one)
        (unknown, *_) = scores(one, how, None)
        (known, *_) = scores(one, how, "float16")
    assert not unknown.is_read and unknown.evidence == "q.k is rounded to float16, by a cast or by its accumulator"
    assert known.value == "float32"


@pytest.mark.campaign(but=4)
@pytest.mark.parametrize(
    ("case", "options", "expected"),
    [
        (BRAIN.but(seqlen_k=40), {"block": 1}, {"block_k": 1}),
        (HALF.but(seqlen_k=40), {"block": 128}, {}),
        (HALF.but(seqlen_k=40), {"probs": "inputs", "backwards": True}, {"block_k": 16, "tile_order": "descending"}),
        (
            HALF,
            {"bounds": lambda n: [0, 48, n]},
            {"block_k": 16, "tile_order": "ascending", "split_bounds": (0, 48, 70)},
        ),
    ],
)
def test_tiles(case: Case, options: dict[str, Any], expected: dict[str, Any]) -> None:
    found = read(tiles(subject(case.but(seqlen_q=64), **options)))
    splits = found.pop("splits", None)
    assert splits is None or "split_bounds" not in found
    if splits is not None:
        assert (splits, expected.get("split_bounds")) == (2, (0, 48, 70))
        expected = {name: x for name, x in expected.items() if name != "split_bounds"}
    assert found == expected


def test_a_maximum_that_lags_hides_tiles() -> None:
    found = list(tiles(subject(HALF.but(seqlen_k=40), probs="inputs", lags=5.5)))
    assert not read(found) and "but not by 0.75: it rescales lazily" in found[0].evidence


def test_tiles_take_rows() -> None:
    found = list(tiles(subject(HALF.but(seqlen_q=1), block=16)))
    assert not read(found) and found[0].evidence == "only 1 rows see all keys; at least 2 must"


@pytest.mark.parametrize("cut", [True, False])
def test_the_rounding_of_out(cut: bool) -> None:
    with np.errstate(all="ignore"):
        found = read(ends(subject(BRAIN, probs="inputs", out="cut" if cut else "nearest"), "bfloat16", False, True))
    assert found["out_rounding"] == ("toward-zero" if cut else "nearest") and found["out_dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ("division", None, False)),
        ({"by_lse": True}, ("lse", None, False)),
        ({"floor": True}, ("division", -127.0, "")),
        ({"cubic": True}, ("division", None, True)),
    ],
)
def test_what_divides_and_what_becomes_of_tiny_weights(options: dict[str, Any], expected: tuple[Any, ...]) -> None:
    with np.errstate(all="ignore"):
        found = read(ends(subject(SINGLE, **options), "float32", None, True))
    assert (found["normalisation"], found["exp_floor"], found.get("exp_flushes", "")) == expected


@pytest.mark.parametrize("how", ["nearest", "toward-zero"])
def test_operands(how: str) -> None:
    rounding = lambda x: cast(x, "tf32", how).astype(np.float32)  # noqa: E731
    with np.errstate(all="ignore"):
        found = read(operands(subject(SINGLE, operands=rounding)))
        plain = read(operands(subject(SINGLE)))
    assert found == {"input_precision": "tf32", "input_rounding": how} and plain == {"input_precision": "ieee"}
    assert not read(operands(subject(HALF)))


def test_a_contract_makes_an_undeclared_kernel_right() -> None:
    """What is suspicious of a kernel that tells nothing is right of one of which that was read."""
    function = kernel(probs="inputs", sum_of_cast=True, block=32)
    case = BRAIN.but(causal=True, seqlen_q=70)
    assert diff(run(function, case)).verdict == "suspicious"
    found = measure_contract(function, case)
    told = {"block_k": 32, "probs_dtype": "bfloat16", "row_sum_of_cast": True, "accumulator_dtype": "float32"}
    assert {name: found.fields[name] for name in told} == told
    assert found.evidence.keys() == found.fields.keys() and not found.evidence.keys() & found.unread.keys()
    of_foreign(found.fields, case)  # every field is one of a contract, within its rule
    assert diff(run(function, case, contract=dict(found.fields))).verdict in ("exact", "rounding")
    assert "row_sum_of_cast = true: lse shows" in str(found) and found.calls < 200
    again = measure_contract(function, case)
    assert again == found or dict(again.fields) == dict(found.fields)


def test_keys_are_shown_where_the_function_lets_them() -> None:
    """Of a function that is causal whatever it is told, rows that see all keys are few."""
    plain, causal = kernel(), lambda q, k, v, *, scale, causal: kernel()(q, k, v, scale=scale, causal=True)
    case = HALF.but(causal=True, seqlen_k=64)
    assert len(Subject(run(plain, case)).whole) == 64 and len(Subject(run(causal, case)).whole) == 1
    with np.errstate(all="ignore"):
        assert of_scores(Subject(run(causal, case)))["scores_dtype"] == "float32"


def test_what_cannot_be_read_is_refused() -> None:
    trace = run(kernel(), HALF)
    with pytest.raises(Refusal, match="plain attention \\(scale \\* q @ k.*has softcap"):
        measured_contract(replace(trace, case=HALF.but(softcap=20.0)))
    with pytest.raises(Refusal, match="is a dump: a contract can only be measured on"):
        measured_contract(replace(trace, rerun=None))
