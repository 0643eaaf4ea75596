"""A wrong call is made again with other numbers, and its cause is found by that."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench import Case, Refusal, capture
from workbench.explore.capturing import judging
from workbench.explore.capturing.asking import Again
from workbench.explore.capturing.elsewhere import found_of, portable
from workbench.trace.trace import Trace

torch = pytest.importorskip("torch", reason="torch is not installed")
F = torch.nn.functional

Change = Callable[[Any], Any]
SPEC = "which the spec does not mention: if that is intended, fix the spec"


#: arguments of calls, of a module's own: what functions close over is put back
SEEN: list[tuple[Any, ...]] = []


class Layer(torch.nn.Module):
    """As transformers hands over."""

    def __init__(self) -> None:
        super().__init__()
        self.layer_idx, self.count = 3, 0
        self.register_buffer("cached", torch.zeros(4))


def attention(**changes: Change) -> Callable[..., Any]:
    """Attention as models write it, with some of its steps changed."""

    def attend(
        module: Any, q: Any, k: Any, v: Any, attention_mask: Any, scaling: float = 0.25, dropout: float = 0.0, **_: Any
    ) -> Any:
        k, v = (
            changes.get(name, lambda x: x)(x.repeat_interleave(q.shape[1] // x.shape[1], 1))
            for name, x in (("k", k), ("v", v))
        )
        scores = changes.get("scores", lambda x: x)(q @ k.mT * scaling)
        mask = changes.get("mask", lambda m: m)(attention_mask)
        if mask is not None:
            scores = torch.where(mask, scores, changes.get("hidden", lambda x: torch.tensor(-torch.inf))(scores))
        weights = changes.get("softmax", lambda x: torch.softmax(x, -1))(scores)
        return (changes.get("weights", lambda x: x)(weights) @ v).transpose(1, 2).contiguous(), None

    return attend


def spec(module: Any, q: Any, k: Any, v: Any, attention_mask: Any, scaling: float = 0.25, **_: Any) -> dict[str, Any]:
    return {"q": q, "k": k, "v": v, "mask": attention_mask, "scale": scaling, "layout": "bshd"}


def causal(rows: int, keys: int) -> Any:
    return torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows)


def padded(*first: int, rows: int = 20, keys: int = 20) -> Any:
    """A causal mask of a batch whose sequences begin later."""
    return (torch.arange(keys) >= torch.tensor(first)[:, None])[:, None, None] & causal(rows, keys)


def captured(
    folder: Path, attend: Any, mask: Any = None, *, rows: int = 20, dtype: Any = torch.float32, **given: Any
) -> Any:
    """The report of one call."""
    batch = 2 if mask is None else max(2, mask.shape[0] if mask.ndim == 4 else 2)
    made = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(batch, h, n, 16, generator=made).to(dtype) for h, n in ((4, rows), (2, 20), (2, 20)))
    with capture(attend, folder, spec=spec, **given) as c:
        c.function(Layer(), q, k, v, mask)
    return c.report


def newest(x: Any) -> Any:
    return torch.cat([x[:, :, :-2], x[:, :, -1:], torch.zeros_like(x[:, :, -1:])], 2)


#: what is wrong -> the function, what it was given as mask, options of the call, what is said
CAUSES: dict[str, tuple[dict[str, Change], Any, dict[str, Any], str]] = {
    "dropout": (
        {"weights": lambda x: F.dropout(x, 0.1)}, None, {},
        "a second call on the same inputs gives different numbers; resetting the random seed gives the same numbers: "
        "dropout is on",
    ),
    "causal": ({"mask": lambda m: causal(20, 20)}, None, {}, f"the function hides keys after the query (causal), {SPEC}"),
    "window": (
        {"mask": lambda m: m & ~causal(20, 20).tril(-5)}, causal(20, 20), {},
        f"the function hides keys more than 4 before the query (a window of 5 keys), {SPEC}",
    ),
    "chunks": (
        {"mask": lambda m: torch.arange(20)[:, None] // 4 == torch.arange(20) // 4}, None, {},
        f"the function hides keys outside the chunk of 4 keys of the query, {SPEC}",
    ),
    "padding": ({"mask": lambda m: causal(20, 20)}, padded(0, 7), {}, "the padding mask of the first keys is not applied"),
    "all padded": ({"mask": lambda m: causal(20, 20)}, padded(2, 7), {}, "the padding mask of the first keys is not applied"),
    "a leak": ({"hidden": lambda x: torch.tensor(-10.0)}, causal(20, 20), {}, "masked scores are -10, not -inf"),
    "a larger leak": ({"hidden": lambda x: torch.tensor(-1.0)}, causal(20, 20), {}, "masked scores are -1, not -inf"),
    "an odd leak": (
        {"hidden": lambda x: x - 6.5}, causal(20, 20), {},
        "the mask adds -6.5, not -inf, to the scores of keys from i + 1 on in row i",
    ),
    "softmax": (
        {"softmax": lambda x: torch.softmax(x.bfloat16(), -1).float()}, None, {},
        "the softmax is computed in bfloat16: scores and weights are rounded to it",
    ),
    "a slot": (
        {"k": newest}, None, {"rows": 1}, "the newest row of k is written one slot too early, and its own slot is 0",
    ),
    "a slot of v": (
        {"v": newest}, None, {"rows": 1}, "the newest row of v is written one slot too early, and its own slot is 0",
    ),
    "a factor": ({"scores": lambda x: 1.1 * x}, causal(20, 20), {}, "scores are multiplied by 1.1"),
}  # fmt: skip


@pytest.mark.campaign(but=2)
@pytest.mark.parametrize("name", CAUSES)
def test_a_wrong_call_is_asked_at_once(name: str, tmp_path: Path) -> None:
    changes, mask, options, said = CAUSES[name]
    found = captured(tmp_path, attention(**changes), mask, **options)
    assert (found.verdict, found.causes) == ("bug", (said,))
    assert f"  cause: {said}" in str(found).splitlines() and found.as_dict()["causes"] == [said]


def asked(
    folder: Path, attend: Any, monkeypatch: pytest.MonkeyPatch, mask: Any = None, **options: Any
) -> tuple[Trace, Again]:
    """A wrong call, and what makes it again."""
    held: list[Any] = []
    monkeypatch.setattr(judging, "causes", lambda *asked: held.extend(asked) or ())
    captured(folder, attend, mask, **options)
    trace, snapshot, question, name, said, limit = held
    return trace, Again(question, snapshot, trace, name, said, limit)


def test_a_call_is_made_again_on_other_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SEEN.clear()
    attend = attention(scores=lambda x: 3 * x)

    def seen(module: Any, q: Any, k: Any, v: Any, attention_mask: Any, **more: Any) -> Any:
        SEEN.append((module, q, k, v, attention_mask, torch.is_grad_enabled()))
        return attend(module, q, k, v, attention_mask, **more)

    trace, again = asked(tmp_path, seen, monkeypatch, causal(20, 20), dtype=torch.bfloat16)
    same = again(trace.case, trace.inputs)
    assert np.array_equal(same.stages["out"], trace.stages["out"]) and same.contract == trace.contract
    other = again(trace.case.but(distribution="normal", seed=5))
    assert not np.array_equal(other.stages["out"], trace.stages["out"])
    assert all(
        np.array_equal(x, y)
        for x, y in zip(
            trace.case.but(distribution="normal", seed=5).inputs(), map(other.inputs.get, "qkv"), strict=True
        )
    )
    (module, *own, mask, _), (again_module, *others, again_mask, grad) = SEEN[0], SEEN[-1]
    assert again_module is module and torch.equal(mask, again_mask) and not grad
    for x, y in zip(own, others, strict=True):
        assert (x.shape, x.dtype, x.stride()) == (y.shape, y.dtype, y.stride()) and x.data_ptr() != y.data_ptr()


@pytest.mark.parametrize("but", [{"seqlen_q": 8}, {"scale": 0.5}, {"causal": True}, {"softcap": 3.0}])
def test_another_case_is_refused(but: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace, again = asked(tmp_path, attention(scores=lambda x: 3 * x), monkeypatch)
    with pytest.raises(Refusal, match="with other values, not on another case"):
        again(trace.case.but(**but))


def test_another_mask_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    holed = causal(20, 20).clone()
    holed[..., 10, 3] = False  # a band alone would be told by the case
    trace, again = asked(tmp_path, attention(scores=lambda x: 3 * x), monkeypatch, holed)
    with pytest.raises(Refusal, match="with its own mask"):
        again(trace.case, {**trace.inputs, "mask": ~trace.inputs["mask"]})


def test_of_a_part_the_rest_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.explore.capturing.snapshot.SCORES", 100)
    SEEN.clear()
    attend = attention(scores=lambda x: 3 * x)

    def seen(module: Any, q: Any, *rest: Any) -> Any:
        SEEN.append((q,))
        return attend(module, q, *rest)

    trace, again = asked(tmp_path, seen, monkeypatch)
    assert trace.case.heads == 2 and trace.case.seqlen_q < 20
    again(trace.case.but(distribution="normal"))
    changed = (SEEN[0][0] != SEEN[-1][0]).any(-1).sum()
    assert changed == trace.case.batch * trace.case.heads * trace.case.seqlen_q


def test_arguments_of_more_than_the_limit_are_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace, again = asked(tmp_path, attention(scores=lambda x: 3 * x), monkeypatch)
    with pytest.raises(Refusal, match="its arguments span 0.0195 MB, more than limit_mb=0.00954"):
        Again(again._question, again._before, trace, "mine", None, 10_000)


def test_calls_are_counted_by_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace, again = asked(tmp_path, attention(scores=lambda x: 3 * x), monkeypatch)
    again._work.allowed = 1.1  # a call of 3200 scores takes 0.6
    for _ in range(2):
        again(trace.case, trace.inputs)
    with pytest.raises(Refusal, match="a call of 3,200 scores cannot be repeated more often"):
        again(trace.case, trace.inputs)


def test_q_that_is_made_by_the_spec_is_no_argument(tmp_path: Path) -> None:
    def made(x: Any) -> dict[str, Any]:
        return {"q": x * 1, "k": x, "v": x}

    x = torch.randn(1, 2, 8, 16)
    with capture(lambda x: x / 3, tmp_path, spec=made) as c:
        c.function(x)
    assert c.report.verdict == "bug" and not c.report.unread


def stateful() -> Callable[..., Any]:
    """Wrong in its first call alone."""
    calls = iter([3.0])

    def attend(*given: Any, **more: Any) -> Any:
        return attention(scores=lambda x: next(calls, 1.0) * x)(*given, **more)

    return attend


@pytest.mark.campaign
def test_a_function_with_state_is_explained_by_its_call_alone(tmp_path: Path) -> None:
    found = captured(tmp_path, stateful())
    first, cause = found.causes
    assert first.startswith("two runs on the same inputs differ in 2560 of 2560 elements of out")
    assert cause.startswith("scores are multiplied by 3")


def test_what_writes_into_a_cache_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attend = attention(scores=lambda x: 3 * x)
    layers: list[Any] = []

    def caching(module: Any, *given: Any) -> Any:
        layers.append(module)
        module.cached += 1
        return attend(module, *given)

    trace, again = asked(tmp_path, caching, monkeypatch)
    with pytest.raises(Refusal, match="it writes into an existing tensor \\(aten.add_"):
        again(trace.case, trace.inputs)
    assert torch.equal(layers[0].cached, torch.ones(4)), "of the call itself"


def test_what_is_written_past_torch_is_no_other_argument_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[Any] = []
    monkeypatch.setattr(judging, "causes", lambda *asked: held.extend(asked) or ())

    def counting(q: Any, k: Any, v: Any, calls: Any) -> Any:
        calls.numpy()[0] += 2
        return F.scaled_dot_product_attention(q, k, v) * calls

    q, k, v = (torch.randn(1, 2, 8, 16, generator=torch.Generator().manual_seed(i)) for i in range(3))
    calls = torch.ones(1)
    with capture(counting, tmp_path, spec=lambda q, k, v, calls: {"q": q, "k": k, "v": v}) as c:
        c.function(q, k, v, calls)
    trace, snapshot, question, *rest = held
    again = Again(question, snapshot, trace, *rest)
    first, second = (again(trace.case, trace.inputs).stages["out"] for _ in range(2))
    assert np.array_equal(first, second) and calls == 3


def test_random_numbers_and_attributes_are_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attend, counts, layers = attention(scores=lambda x: 3 * x), [0], list[Any]()
    total = 0

    def counting(module: Any, *given: Any) -> Any:
        nonlocal total
        layers.append(module)
        module.count, total = module.count + 1, total + 1
        counts.append(counts[-1] + 1)
        torch.rand(3), np.random.rand(3)
        return attend(module, *given)

    trace, again = asked(tmp_path, counting, monkeypatch)
    torch.manual_seed(3)
    np.random.seed(3)
    expected = torch.rand(2), np.random.rand(2)
    torch.manual_seed(3)
    np.random.seed(3)
    for _ in range(2):
        again(trace.case, trace.inputs)
    assert torch.equal(torch.rand(2), expected[0]) and np.array_equal(np.random.rand(2), expected[1])
    assert (layers[0].count, total, counts) == (1, 1, [0, 1])


@pytest.mark.campaign
def test_what_is_raised_in_a_second_call_is_no_error_of_the_model(tmp_path: Path) -> None:
    SEEN.clear()

    def attend(*given: Any) -> Any:
        SEEN.append(())
        if len(SEEN) > 1:
            raise RuntimeError("once is enough")
        return attention(scores=lambda x: 3 * x)(*given)

    found = captured(tmp_path, attend)
    assert found.verdict == "bug" and found.causes[0].startswith("scores are multiplied by 3") and not found.unread


@pytest.mark.campaign
def test_what_a_thread_judges_is_asked_by_who_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SEEN.clear()
    attend = attention(mask=lambda m: causal(20, 20))

    def submit(self: judging.Judging, snapshot: Any, question: Any = None) -> None:
        here = portable(snapshot.on_host())
        found = found_of(here, self._name, None, None)
        thread = threading.Thread(target=lambda: self._counted(here, found, question))
        thread.start()
        thread.join()

    def seen(*given: Any) -> Any:
        SEEN.append((threading.get_ident(),))
        return attend(*given)

    monkeypatch.setattr(judging.Judging, "submit", submit)
    found = captured(tmp_path, seen)
    assert found.causes == (f"the function hides keys after the query (causal), {SPEC}",)
    assert len(SEEN) > 10 and {one for (one,) in SEEN} == {threading.get_ident()}


def test_a_right_call_is_made_once(tmp_path: Path) -> None:
    SEEN.clear()

    def attend(*given: Any) -> Any:
        SEEN.append(())
        return attention()(*given)

    found = captured(tmp_path, attend, causal(20, 20))
    assert (found.verdict, found.causes, len(SEEN)) == ("rounding", (), 1)


def test_a_case_with_its_own_numbers_is_one() -> None:
    from workbench.judge.explain.counter_cases import of_other_numbers

    case = Case(heads=2, seqlen_q=5, seqlen_k=7)
    assert len({(one.seed, one.input_std) for one in of_other_numbers(case)}) == 3
    assert {one.but(seed=0, input_std=1.0) for one in of_other_numbers(case)} == {case.but(seed=0, input_std=1.0)}
