"""The control is the kernel's own algorithm in float32: it gives the bits of kernels that add in its order."""

import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from workbench import Case, Trace, run
from workbench.cuda.kernels import KERNELS
from workbench.expectation.expectation import Expectation
from workbench.expectation.observed import Observed
from workbench.floats import round_to
from workbench.judge.control import ROWS, control, sampled
from workbench.reference import mode
from workbench.reference.mode import Mode

#: on a build that other tests compile too
CASE = Case(seqlen_q=48, seqlen_k=96, heads=2, kv_heads=1, head_dim=32, block_q=16, block_k=16)


def traced(kernel: str, case: Case = CASE) -> Trace:
    return run(kernel, case.but(splits=2 if KERNELS[kernel].splits else None), backend="emulator")


def controls(trace: Trace, given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return control(Expectation(Observed(trace), given))


@pytest.mark.parametrize("kernel", ["flash", "split_k"])
@pytest.mark.parametrize("causal", [False, True])
def test_control_gives_the_bits_of_kernels_that_add_in_its_order(kernel: str, causal: bool) -> None:
    trace = traced(kernel, case=CASE.but(heads=4, kv_heads=2, causal=causal, seqlen_k=75))
    computed = controls(trace, trace.stages)
    assert set(computed) == set(trace.stages) and all(x.dtype == np.float32 for x in computed.values())
    # exp and log are the host's in both; the kernels add up row_sum in four lanes and merge in another order
    off = {name for name in computed if computed[name].tobytes() != trace.stages[name].tobytes()}
    assert off <= {"correction", "probs", "row_sum", "merge_weight", "merge_sum", "lse"}
    for name in off:
        near = np.abs(computed[name] - trace.stages[name]) <= 1e-5 * np.abs(trace.stages[name])
        assert np.all(near | (computed[name] == trace.stages[name])), name


def test_control_carries_its_own_state_where_none_was_dumped() -> None:
    trace = traced("split_k")
    inner = {name: trace.stages[name] for name in ("correction", "probs")}
    computed = controls(trace, inner)
    assert computed["acc"].tobytes() == trace.stages["acc"].tobytes()
    assert computed["partial_O"].tobytes() == trace.stages["partial_O"].tobytes()
    alone = controls(trace, {})
    for name, stage in trace.stages.items():
        assert np.allclose(alone[name], stage, rtol=1e-4, atol=1e-5), name


def test_control_starts_from_the_dumped_state_and_anew_in_each_split() -> None:
    stages = {name: stage.copy() for name, stage in traced("flash").stages.items()}
    for name in ("row_sum", "acc"):
        stages[name][:] = 0
    computed = controls(traced("flash"), stages)
    tile = stages["probs"][..., 16:32]
    assert np.array_equal(computed["row_sum"][..., 1], np.add.accumulate(tile, axis=-1)[..., -1])
    assert not np.array_equal(computed["acc"][..., 1, :], traced("flash").stages["acc"][..., 1, :])
    trace = traced("split_k")  # tiles 0 to 2, then 3 to 5
    correction = trace.stages["correction"].copy()
    correction[..., [0, 3]] = 1
    computed = controls(trace, {**trace.stages, "correction": correction})
    assert computed["acc"].tobytes() == trace.stages["acc"].tobytes()


def test_control_casts_as_the_contract_says() -> None:
    trace = traced("split_k")
    casts = {"probs_dtype": "probs_cast", "partials_dtype": "partial_O", "scores_dtype": "scores"}
    for field, name in casts.items():
        narrow = replace(trace, contract=replace(trace.contract, **{field: "bfloat16"}))
        given = {key: stage for key, stage in trace.stages.items() if key not in ("qk", name)}
        cast = controls(narrow, given)[name]
        assert np.array_equal(cast, round_to(cast, "bfloat16")) and not np.array_equal(cast, trace.stages[name])


def test_rows_are_sampled_evenly_and_few() -> None:
    assert sampled(Case(seqlen=100)).tolist() == list(range(100))
    some = sampled(Case(seqlen=4096, heads=16))
    assert some.size == ROWS / 16 and some[0] == 0 and some[-1] == 4095 and set(np.diff(some)) == {273}
    assert sampled(Case(seqlen=4096, heads=600)).size == 1


def test_controls_that_share_sums_on_tensor_cores_have_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contracts and evaluation modes that leave products as they are make each of them once."""
    made: list[int] = []
    added = mode._aligned
    monkeypatch.setattr(mode, "_aligned", lambda *given: made.append(0) or added(*given))
    trace = traced("flash")
    e = Expectation(Observed(trace), {})
    contracts = [replace(trace.contract, row_sum_of_cast=x, probs_dtype="float16") for x in (False, True)]
    pairs = [(contract, biased) for contract in contracts for biased in (False, True)]
    apart = []
    for contract, biased in pairs:
        mode._MADE.clear()
        apart.append(control(e, contract, Mode(True, biased)))
    alone = len(made)
    mode._MADE.clear()
    together = [control(e, contract, Mode(True, biased)) for contract, biased in pairs]
    for one, other in zip(apart, together, strict=True):
        assert one.keys() == other.keys() and all(one[x].tobytes() == other[x].tobytes() for x in one)
    # scores once of four, the sums with V twice: probs are others where exp loses all that it may
    assert 0 < len(made) - alone <= alone // 2 and len(mode._MADE) == len(made) - alone
    assert any(apart[0][x].tobytes() != apart[1][x].tobytes() for x in ("probs", "acc"))
    assert apart[0]["row_sum"].tobytes() != apart[2]["row_sum"].tobytes()


def test_no_more_sums_are_kept_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mode, "KEPT_BYTES", 4096)
    mode._MADE.clear()
    rng = np.random.default_rng(0)
    for _ in range(5):
        a, b = (rng.standard_normal((1, 1, 16, 16)).astype(np.float32) for _ in "ab")
        made = Mode().add_products(None, a, b, traced("flash").contract)
        assert np.allclose(made, a @ b, atol=1e-5) and np.array_equal(
            Mode().add_products(None, a, b, traced("flash").contract), made
        )
    assert len(mode._MADE) == 4


def test_threads_that_judge_at_once_share_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs may be judged in two threads, which take sums from each other and drop them."""
    monkeypatch.setattr(mode, "KEPT_BYTES", 2000)
    mode._MADE.clear()
    told, before = traced("flash").contract, sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def sums(_: int) -> bool:
        sides = [
            (np.full((1, 1, 4, 3), i % 7, np.float32), np.full((1, 1, 3, 5), i % 5, np.float32)) for i in range(300)
        ]
        made = [Mode().add_products(None, a, b, told) for a, b in sides]
        return all(bool((x == 3 * (i % 7) * (i % 5)).all()) for i, x in enumerate(made))

    try:
        with ThreadPoolExecutor(8) as pool:
            assert [*pool.map(sums, range(8))] == 8 * [True]
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize("n", [8, 19])  # whole blocks, and a short one
def test_sums_of_some_columns_at_a_time_have_the_bits_of_all(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((1, 2, *dims)).astype(np.float32) for dims in ((6, n), (n, 33)))
    start = rng.standard_normal((1, 2, 6, 33)).astype(np.float32)
    told = traced("flash").contract
    whole = mode._aligned(start, a, b, told)
    monkeypatch.setattr(mode, "TERMS_BYTES", 1)  # one column
    assert mode._aligned(start, a, b, told).tobytes() == whole.tobytes()
    assert np.allclose(whole, start + a @ b, atol=1e-4)
    monkeypatch.setattr(mode, "TERMS_BYTES", 8 * 16 * 12 * 5)
    assert mode._aligned(start, a, b, told).tobytes() == whole.tobytes()
