"""However a trace is cut, wherever it is judged and whether its elements are kept: the judgement is the same."""

import io
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from campaigns.known import reduced
from tests.stored import stored
from workbench import Case, Refusal, Trace, Unavailable, diff, run
from workbench.expectation.elements import Comparison
from workbench.expectation.observed import Observed
from workbench.judge import blocks as parts
from workbench.judge.against.pair import against
from workbench.progress import shown
from workbench.trace.trace import blank

CASES = {
    "flash": Case(
        seqlen_q=50, seqlen_k=36, heads=2, head_dim=16, block_q=16, block_k=16, dtype="bfloat16", probs_dtype="bfloat16"
    ),
    "split_k": Case(
        seqlen_q=30, seqlen_k=40, heads=4, kv_heads=2, batch=2, head_dim=16, block_q=16, block_k=16, causal=True, splits=5,
        dtype="float16",
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=[(kernel, probes) for kernel in CASES for probes in ("all", "lean", "output")],
                ids=lambda param: "-".join(param))  # fmt: skip
def trace(request: pytest.FixtureRequest) -> Trace:
    """A run with one NaN, one slot that nobody wrote and one wrong number in lse, so that every state occurs."""
    kernel, probes = request.param
    # cut from a run with all probes: one build each
    made = reduced(stored(kernel, CASES[kernel]), probes)
    lse = made.stages["lse"]
    lse[0, 0, 20:23] = np.nan, blank((1,), lse.dtype)[0], 7.0
    return made


def assert_same(found: Comparison | None, expected: Comparison | None) -> None:
    assert (found is None) == (expected is None)
    if found is None or expected is None:
        return
    assert found.summary.states.tolist() == expected.summary.states.tolist()
    assert found.summary.bins.tolist() == expected.summary.bins.tolist()
    assert found.summary.worst is not None and expected.summary.worst is not None
    assert found.summary.worst.place == expected.summary.worst.place
    # a matrix product of fewer rows may add up in another order: some 1e-16 of the expectation, more of its error
    np.testing.assert_allclose(found.elements.budget, expected.elements.budget, rtol=1e-6)
    np.testing.assert_array_equal(found.elements.state, expected.elements.state)


@pytest.mark.campaign(but=4)
@pytest.mark.parametrize("limit", [300, 1000])
def test_parts_add_up_to_the_whole(trace: Trace, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = parts.comparisons(Observed(trace), list(trace.stages), "cpu")
    monkeypatch.setattr(parts, "AT_ONCE_ON_CPU", limit)
    cut = parts.comparisons(Observed(trace), list(trace.stages), "cpu")
    assert len(list(parts.parts_of(trace.case, "cpu"))) > 1 and set(cut) == set(whole)
    for name in whole:
        for found, expected in zip(cut[name], whole[name], strict=True):
            assert_same(found, expected)


def test_progress_tells_how_many_parts_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = reduced(stored("flash", CASES["flash"]), "output")
    monkeypatch.setattr(parts, "AT_ONCE_ON_CPU", 1000)
    n, stream, said = len(list(parts.parts_of(trace.case, "cpu"))), io.StringIO(), []

    @contextmanager
    def step(name: str, estimate_s: float | None = None) -> Iterator[Callable[[str], None]]:
        yield lambda text: said.append(f"{name}: {text}")

    with shown(stream, patience=0.0):
        diff(trace)
    assert re.fullmatch(r"judge flash took \d+\.\d s\n", stream.getvalue())
    monkeypatch.setattr(parts, "step", step)
    diff(trace)
    assert said == [f"judge flash: {i + 1} of {n} parts" for i in range(n)] and n > 1


def test_elements_that_were_not_kept_are_computed_again(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = diff(trace)
    monkeypatch.setattr(parts, "KEPT", 0)
    for stage in diff(trace):
        for found, expected in (
            (stage.isolated, kept[stage.name].isolated),
            (stage.propagated, kept[stage.name].propagated),
        ):
            assert_same(found, expected)


def test_torch_gives_the_same_verdicts(trace: Trace) -> None:
    assert_torch_judges_alike(trace)


def test_torch_gives_the_same_verdicts_where_nobody_knows_what_row_sum_adds_up() -> None:
    """Probs, or what they are cast to."""
    made = stored("flash", CASES["flash"])
    given = {name: made.stages[name] for name in ("scores", "probs", "out", "lse")}
    case = CASES["flash"].but(block_q=None, block_k=None, probs_dtype=None)
    assert_torch_judges_alike(run(lambda *qkv, **options: given, case, contract={"block_k": 16}))


def test_torch_gives_the_same_verdicts_of_a_function_of_scores_in_numpy() -> None:
    def doubled(score: np.ndarray, b: np.ndarray, h: np.ndarray, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        return np.where(k > q, 2 * score, score)

    case = Case(seqlen=9, head_dim=4, score_mod=doubled)
    assert_torch_judges_alike(run(lambda q, k, v, **options: v, case))


def test_torch_gives_the_same_verdicts_of_rows_without_keys_that_are_to_be_nan() -> None:
    case = Case(seqlen_q=9, seqlen_k=5, head_dim=4, causal=True)

    def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, **options: Any) -> np.ndarray:
        out = np.zeros_like(q)
        out[..., :4, :] = np.nan
        out[..., :1, :] = 0
        return out

    assert_torch_judges_alike(run(attention, case, contract={"empty_out": np.nan}))


def assert_torch_judges_alike(trace: Trace) -> None:
    """On the cpu, to torch a device like others, but that NumPy takes its tensors: of those of a GPU it takes none, nor
    do these meet what was made on no device.
    """
    torch = pytest.importorskip("torch", reason="torch is the library whose tensors are judged here")
    by_numpy = parts.comparisons(Observed(trace), list(trace.stages), "cpu")
    with pytest.MonkeyPatch.context() as patch, torch.device("meta"):
        patch.delattr(torch.Tensor, "__array__")
        by_torch = parts.comparisons(Observed(trace), list(trace.stages), "cpu:0")
    for name in by_numpy:
        for found, expected in zip(by_torch[name], by_numpy[name], strict=True):
            assert_same(found, expected)


@pytest.mark.parametrize("there", [True, False])
def test_a_large_run_is_judged_on_a_gpu_where_there_is_one(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large is what is computed: scores, whatever was dumped, and dumped elements."""
    torch = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: there))
    monkeypatch.setattr(parts, "module", lambda name: torch)

    def placed(seqlen: int, head_dim: int) -> str:
        case = Case(seqlen=seqlen, head_dim=head_dim)
        trace = run(lambda q, k, v, **options: np.zeros_like(q), case)
        return parts.placed(Observed(trace), "auto")

    at_most = math.isqrt(parts.LARGE) - 1  # squared and with its outputs, of 2 dims
    assert at_most**2 + 2 * at_most == parts.LARGE - 1
    assert placed(at_most, 2) == "cpu"
    assert placed(at_most, 4) == placed(at_most + 1, 2) == ("cuda" if there else "cpu")


def test_a_gpu_that_is_full_leaves_a_run_to_the_cpu_unless_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes may have taken its memory meanwhile."""

    class Full(Exception):
        pass

    def full() -> None:
        raise Full

    cuda = SimpleNamespace(is_available=lambda: True, mem_get_info=full)
    torch = SimpleNamespace(cuda=cuda, OutOfMemoryError=Full, AcceleratorError=Full)
    monkeypatch.setattr(parts, "module", lambda name: torch)
    monkeypatch.setattr(parts, "LARGE", 0)
    trace = reduced(stored("flash", CASES["flash"]), "output")
    assert diff(trace).verdict == diff(trace, device="cpu").verdict == "rounding"
    assert against(diff(trace), diff(trace)).verdict == "identical"
    with pytest.raises(Full):
        diff(trace, device="cuda")


def test_devices_that_do_not_exist_are_refused() -> None:
    trace = reduced(stored("flash", CASES["flash"]), "output")
    with pytest.raises(Refusal, match=r"^device must be one of auto, cpu, cuda; got 'gpu'$"):
        diff(trace, device="gpu")
    torch = pytest.importorskip("torch", reason="without torch another message says so")
    if not torch.cuda.is_available():
        with pytest.raises(Unavailable, match=r"^device cuda needs an NVIDIA GPU that torch can use; none was found$"):
            diff(trace, device="cuda")
