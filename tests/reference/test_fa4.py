"""FlashAttention-4's arithmetic: a maximum that lags, probs with an offset, exp2 by a polynomial."""

from dataclasses import replace

import numpy as np
import pytest

from tests.fa4 import FAULTS, FAULTS_OF_OFFSETS, POLYNOMIALS, Style, fa4
from workbench import Case, Diff, Refusal, diff, run
from workbench.case.contract import of_foreign
from workbench.reference.losses import polynomial_error

CASE = Case(seqlen_q=24, seqlen_k=80, heads=2, head_dim=32, input_std=2.5, seed=1)
E4M3 = "float8_e4m3fn"


def judged(style: Style, case: Case = CASE, fault: str = "", names: tuple[str, ...] = ()) -> Diff:
    return diff(run(fa4(style, fault, names), case))


def drawn(seed: int) -> tuple[Style, Case, tuple[str, ...]]:
    """A style, a case and what is dumped."""
    rng = np.random.default_rng(seed)
    dtype = str(rng.choice(["float32", "float16", "bfloat16"]))
    offset = int(rng.choice([0, 4]))
    style = Style(
        block_k=int(rng.choice([8, 16, 32])),
        lag=float(rng.choice([0.0, 1.5, 4.0])) if offset else float(rng.choice([0.0, 4.0, 8.0])),
        offset=offset,
        offset_in=str(rng.choice(["exp", "cast"])),
        degree=[None, *POLYNOMIALS][int(rng.integers(6))],
        share=int(rng.integers(1, 5)),
        probs_dtype=E4M3 if offset and dtype != "float32" and rng.integers(2) else dtype,
        row_sum_of_cast=bool(rng.integers(2)),
    )
    case = Case(
        seqlen_q=int(rng.integers(1, 40)),
        seqlen_k=int(rng.integers(1, 120)),
        heads=2,
        kv_heads=int(rng.integers(1, 3)),
        head_dim=int(rng.choice([8, 32])),
        causal=bool(rng.integers(2)),
        dtype=dtype,
        input_std=float(rng.choice([0.5, 1.0, 3.0])),
        distribution=str(rng.choice(["normal", "large", "tiny", "peaked", "constant-v", "outlier-channels"])),
        seed=seed,
    )
    return style, case, () if rng.integers(3) else ("out", "lse")


def is_right(seed: int) -> None:
    style, case, names = drawn(seed)
    found = judged(style, case, names=names)
    assert found.verdict in ("exact", "rounding", "suspicious", "biased", "untestable") and len(list(found)) > 1, (
        seed,
        style,
        case,
        str(found),
    )
    assert found.origins == ()


def test_right_kernels_are_right() -> None:
    for seed in range(8):
        is_right(seed)


@pytest.mark.campaign
def test_no_right_kernel_of_200_is_called_wrong() -> None:
    for seed in range(200):
        is_right(seed)


@pytest.mark.campaign(every=2)
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found_at_their_stage(fault: str) -> None:
    assert judged(Style(), fault=fault).origins[0] == FAULTS[fault]
    assert judged(Style(probs_dtype="bfloat16"), CASE.but(dtype="bfloat16"), fault).origins[0] == FAULTS[fault]


@pytest.mark.parametrize(("fault", "where"), FAULTS_OF_OFFSETS)
def test_faults_of_offsets_are_found_at_their_stage(fault: str, where: str) -> None:
    style = Style(offset=4, lag=4.0, offset_in=where, probs_dtype=E4M3)
    assert judged(style, CASE.but(dtype="bfloat16"), fault).origins[0] == FAULTS_OF_OFFSETS[fault, where]
    assert not judged(style, CASE.but(dtype="bfloat16")).origins


def test_a_lag_is_held_to_its_threshold() -> None:
    """The nearest number within it is what is expected; what is above the running maximum, infinite or NaN is wrong."""
    trace = run(fa4(Style(degree=None)), CASE)
    row_max, place = trace.stages["row_max"], (0, 1, 5, 3)
    running = np.maximum.accumulate(trace.stages["scores"].reshape(1, 2, 24, 5, 16).max(-1), -1)[place]
    lag = 8 * np.log(2) / CASE.scale
    for value, right in (
        (running, True), (running - lag * (1 - 1e-6), True), (running - lag * (1 + 1e-5), False),
        (np.nextafter(running, np.float32(np.inf)), False), (np.nan, False), (-np.inf, False),
    ):  # fmt: skip
        changed = row_max.copy()
        changed[place] = value
        found = diff(replace(trace, stages={**trace.stages, "row_max": changed}, rerun=None))
        assert ("row_max" in found.origins) != right, value
    assert diff(run(fa4(Style(lag=4.0)), CASE)).origins == ()
    told = fa4(Style(lag=8.0))

    def tighter(*inputs: np.ndarray, **numbers: float) -> dict[str, object]:
        made = told(*inputs, **numbers)
        return {**made, "contract": {**made["contract"], "row_max_lag": 4.0}}

    assert diff(run(tighter, CASE)).origins == ("row_max",)


def test_what_is_not_declared_is_told() -> None:
    """A maximum that lags, of a kernel that does not say so, is right of one with row_max=lagging alone."""
    told = fa4(Style(degree=None))

    def silent(*inputs: np.ndarray, **numbers: float) -> dict[str, object]:
        made = told(*inputs, **numbers)
        return {**made, "contract": {x: y for x, y in made["contract"].items() if not x.startswith("row_max")}}

    found = diff(run(silent, CASE))
    assert found.origins == ()
    assert found["row_max"].reason.startswith("within budget only with row_max=lagging; otherwise a bug (")
    assert of_foreign({"row_max": "lagging"}, CASE).assumed.count("row_max_lag") == 1


@pytest.mark.parametrize("degree", POLYNOMIALS)
def test_the_error_of_a_polynomial_is_its_own(degree: int) -> None:
    """That of its float32 evaluation, and no more than 2 u for each of its steps above it."""
    x = np.linspace(0, 1, 30_011).astype(np.float32)
    y = np.float32(0)
    for factor in POLYNOMIALS[degree]:
        y = (y * x.astype(np.float64) + np.float64(np.float32(factor))).astype(np.float32)
    off = np.max(abs(y / np.exp2(x.astype(np.float64)) - 1))
    assert off <= polynomial_error(degree) <= off + 2.5 * degree * 2.0**-24
    assert (degree == 3) == (8.7e-5 < off < 8.8e-5)  # FlashAttention-4's


def test_budgets_of_a_polynomial_are_as_wide_as_they_have_to_be() -> None:
    found = judged(Style(degree=3, share=1))["probs"].isolated
    assert found is not None and found.summary.worst is not None
    assert 0.9 < found.summary.worst.over_budget <= 1
    assert judged(Style(degree=2, share=1)).origins == ()


def test_a_polynomial_of_a_higher_degree_that_was_declared_is_found_out() -> None:
    coarse = fa4(Style(degree=3))

    def finer(*inputs: np.ndarray, **numbers: float) -> dict[str, object]:
        made = coarse(*inputs, **numbers)
        return {**made, "contract": {**made["contract"], "exp_polynomial": 4}}

    assert diff(run(finer, CASE)).origins == ("probs",)


@pytest.mark.parametrize(
    ("contract", "message"),
    [
        ({"row_max_lag": -1}, '"contract" field row_max_lag must be a number from 0 to 64; got -1'),
        ({"probs_offset": 0.5}, '"contract" field probs_offset must be a whole number from 0 to 64; got 0.5'),
        ({"exp_polynomial": 6}, '"contract" field exp_polynomial must be a degree from 1 to 5, or None; got 6'),
        (
            {"probs_offset": 4, "offset_in": "cast"},
            '"contract" fields probs_offset and offset_in=cast need row_sum_of_cast, which decides whether row_sum includes '
            "the offset",
        ),
    ],
)
def test_what_is_refused(contract: dict[str, object], message: str) -> None:
    with pytest.raises(Refusal) as refused:
        of_foreign(contract, CASE)
    assert str(refused.value) == message


def test_out_alone_has_room_for_a_polynomial_that_is_declared() -> None:
    ends = ("out", "lse")
    for share in (1, 2):
        assert judged(Style(degree=2, share=share), names=ends).origins == ()
        told = fa4(Style(degree=2, share=share), names=ends)

        def silent(*inputs: np.ndarray, **numbers: float) -> dict[str, object]:
            made = told(*inputs, **numbers)  # noqa: B023
            return {**made, "contract": {**made["contract"], "exp_polynomial": None}}

        assert diff(run(silent, CASE)).origins


def test_what_a_lag_and_an_offset_cost_out_alone() -> None:
    """Longer arguments of exp and of log, by the lag twice and by the offset: a few u, which no run above is short of."""

    def budgets(style: Style) -> dict[str, np.ndarray]:
        found = {}
        for stage in judged(style, names=("out", "lse")):
            assert stage.propagated is not None
            found[stage.name] = stage.propagated.budget
        return found

    plain, lag, offset = (budgets(replace(Style(degree=None, lag=0.0), **x)) for x in ({}, {"lag": 8.0}, {"offset": 8}))
    u = 8 * np.log(2) * 2.0**-24
    # 5 u of an argument that is made of raw scores and u of max_scaled; 2 u of the units of max, or of the sum, which is
    # rounded, and 4 u of a log of 2 ulps
    for more, times in ((lag, 2 * (5 + 1) + 2 + 4), (offset, (5 + 1) + 2 + 4)):
        np.testing.assert_allclose((more["lse"] - plain["lse"]) / u, times, rtol=1e-3)
    assert np.all(lag["out"] > plain["out"]) and np.all(offset["out"] > plain["out"])
