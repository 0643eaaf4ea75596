"""One question in several spellings is one question; other keys, or other values, are others."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench import Refusal, capture, compare_runs, load
from workbench.expectation.observed import Observed
from workbench.explore.capturing import snapshot
from workbench.judge.against.asked import apart, asked_otherwise, in_one_form
from workbench.judge.against.question import Question, question

torch = pytest.importorskip("torch", reason="torch is not installed")
from tests.judge.against import decoder  # noqa: E402 - needs torch
from tests.judge.against.decoder import DIM, HEADS, KV_HEADS, repeated, seen  # noqa: E402

GROUP = HEADS // KV_HEADS


def call(queries: int = 6, keys: int = 9, seed: int = 0, batch: int = 2) -> tuple[Any, ...]:
    """q, k, v and out of a call."""
    made = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(batch, heads, rows, DIM, generator=made)
        for heads, rows in ((HEADS, queries), (KV_HEADS, keys), (KV_HEADS, keys))
    )
    return q, k, v, decoder.plain(q, k, v)


def added(number: float) -> Any:
    def told(q: Any, k: Any, v: Any, out: Any) -> dict[str, Any]:
        bias = torch.zeros(q.shape[2], k.shape[2]).masked_fill(~seen(q, k), number)
        return {"q": q, "k": k, "v": v, "out": out, "bias": bias}

    return told


def causal(q: Any, k: Any, v: Any, out: Any) -> dict[str, Any]:
    return {"q": q, "k": k, "v": v, "out": out, "causal": True}


def with_heads_repeated(q: Any, k: Any, v: Any, out: Any) -> dict[str, Any]:
    return {"q": q, "k": repeated(k), "v": repeated(v), "out": out, "mask": seen(q, k)}


def with_heads_in_the_batch(q: Any, k: Any, v: Any, out: Any) -> dict[str, Any]:
    def flat(x: Any) -> Any:
        return x.flatten(0, 1)[:, None]

    return {"q": flat(q), "k": flat(repeated(k)), "v": flat(repeated(v)), "out": flat(out), "mask": seen(q, k)}


def packed_by_head(q: Any, k: Any, v: Any, out: Any) -> dict[str, Any]:
    """The rows of the heads of a kv head beside each other."""

    def rows(x: Any) -> Any:
        return x.unflatten(1, (KV_HEADS, GROUP)).flatten(2, 3)

    return {"q": rows(q), "k": k, "v": v, "out": rows(out), "mask": seen(q, k).repeat(GROUP, 1)}


def packed_by_query(q: Any, k: Any, v: Any, out: Any) -> dict[str, Any]:
    def rows(x: Any) -> Any:
        return x.unflatten(1, (KV_HEADS, GROUP)).transpose(2, 3).flatten(2, 3)

    return {"q": rows(q), "k": k, "v": v, "out": rows(out), "mask": seen(q, k).repeat_interleave(GROUP, 0)}


def in_a_cache_of_fixed_size(q: Any, k: Any, v: Any, out: Any) -> dict[str, Any]:
    """Slots that nobody wrote yet hold something, and are hidden."""
    k, v = (torch.cat([x, torch.ones_like(x)], 2) for x in (k, v))
    mask = torch.cat(
        [seen(q, k[:, :, : k.shape[2] // 2]), torch.zeros(q.shape[2], k.shape[2] // 2, dtype=torch.bool)], 1
    )
    return {"q": q, "k": k, "v": v, "out": out, "mask": mask}


def scaled_before(q: Any, k: Any, v: Any, out: Any) -> dict[str, Any]:
    return {"q": q * 0.3, "k": k, "v": v, "out": out, "mask": seen(q, k), "scale": DIM**-0.5 / 0.3}


SPELLINGS = {
    "-inf": added(-np.inf), "finfo.min": added(float(np.finfo(np.float32).min)), "-1e9": added(-1e9), "causal": causal,
    "heads repeated": with_heads_repeated, "heads in the batch": with_heads_in_the_batch, "by head": packed_by_head,
    "by query": packed_by_query, "fixed cache": in_a_cache_of_fixed_size, "scaled before": scaled_before,
}  # fmt: skip


def asks(told: Any, given: tuple[Any, ...]) -> Question:
    return question(Observed(decoder.trace_of(**told(*given))))


def between(a: Question, b: Question) -> tuple[dict[str, tuple[str, str]], float]:
    a, b = in_one_form(a, b, "call 0")
    return asked_otherwise(a, b, 1e-6), max(float(apart(a, b, name).max()) for name in "qkv")


@pytest.mark.parametrize("queries", [1, 6])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_one_question_in_two_spellings_is_one(spelling: str, queries: int) -> None:
    told = SPELLINGS[spelling]
    given = call(queries)
    for a, b in ((decoder.asked, told), (told, decoder.asked), (told, packed_by_head)):
        one, other = asks(a, given), asks(b, given)
        asked, farthest = between(one, other)
        assert not asked and 0 <= farthest < 1e-6
        one, other = in_one_form(one, other, "call 0")
        assert np.array_equal(one.seen, other.seen) and one.seen.any(-1).all()
        given_k = (*given[:1], given[1] * 1.01, *given[2:])
        assert between(asks(a, given), asks(b, given_k))[1] > 5e-3, "and other keys are seen in it"


def windowed(size: int) -> Any:
    def told(q: Any, k: Any, v: Any, out: Any) -> dict[str, Any]:
        return {"q": q, "k": k, "v": v, "out": out, "mask": seen(q, k).triu(k.shape[2] - q.shape[2] - size + 1)}

    return told


def one_key_short(q: Any, k: Any, v: Any, out: Any) -> dict[str, Any]:
    return {"q": q, "k": k[:, :, 1:], "v": v[:, :, 1:], "out": out, "mask": seen(q, k)[:, 1:]}


def other(**fields: Any) -> Any:
    return lambda *given: decoder.asked(*given) | fields


@pytest.mark.parametrize(
    ("a", "b", "what", "values"),
    [
        (windowed(3), windowed(4), "mask", ("144 of 216 keys hidden (row 0 sees 1-3)", "120 of 216 keys hidden (row 0 sees 0-3)")),
        (decoder.asked, added(-10.0), "mask", ("(row 0 sees 0-3)", "(row 0 sees 0-8)")),
        (decoder.asked, one_key_short, "keys", ("9 (row 0 sees 0-3)", "8 (row 0 sees 0-2)")),
        (decoder.asked, other(scale=0.3), "scale", ("0.25", "0.3")),
        (decoder.asked, other(softcap=2.0), "softcap", ("none", "2")),
        (decoder.asked, other(sinks=[0.0] * HEADS), "sinks", ("-inf", "0")),
        (decoder.asked, lambda *given: added(-np.inf)(*given) | {"bias": added(-np.inf)(*given)["bias"] + torch.arange(9) / 8},
         "bias", ("0 (row 5)", "1 (row 5)")),
    ],
    ids=["window", "leak", "short", "scale", "softcap", "sinks", "bias"],
)  # fmt: skip
def test_other_keys_and_other_values_are_other_questions(a: Any, b: Any, what: str, values: tuple[str, str]) -> None:
    given = call(batch=1, queries=6)
    asked, _ = between(asks(a, given), asks(b, given))
    assert list(asked) == [what]
    assert all(value in said for value, said in zip(values, asked[what], strict=True)), asked


def test_what_is_added_to_all_keys_of_a_row_changes_nothing() -> None:
    given = call()
    shifted = lambda *given: decoder.asked(*given) | {"bias": torch.arange(6.0)[:, None]}  # noqa: E731
    assert between(asks(decoder.asked, given), asks(shifted, given)) == ({}, 0.0)


@pytest.mark.parametrize("number", [float(np.finfo(np.float32).min), -1e9, -np.inf])
def test_rows_without_keys_are_asked_by_nobody(number: float) -> None:
    """A padded query, whose keys are all hidden, has no right answer, and what is made of it in the next layer no rule."""
    q, k, v, out = call()
    told = added(number)(q, k, v, out)
    told["bias"][0] = number
    mask = seen(q, k)
    mask[0] = False
    a = question(Observed(decoder.trace_of(q, k, v, out, mask=mask)))
    changed = torch.cat([q[:, :, :1] + 1, q[:, :, 1:]], 2)
    b = question(Observed(decoder.trace_of(**(told | {"q": changed}))))
    assert between(a, b) == ({}, 0.0) and not b.asked[:, 0].any() and b.asked[:, 1:6].all()


def test_other_tokens_are_refused() -> None:
    with pytest.raises(
        Refusal, match="call 0 has different shapes in A and B, .*use different models or different tokens"
    ):
        between(asks(decoder.asked, call(6)), asks(decoder.asked, call(5)))


def test_runs_in_two_spellings_differ_by_rounding_alone() -> None:
    model, steps = decoder.Decoder(layers=2), [decoder.prompt(8, 2), decoder.prompt(1, 2, seed=1)]
    a = decoder.traces(model, steps)
    for told in (packed_by_query, with_heads_repeated):
        found = compare_runs(a, decoder.traces(model, steps, decoder.plain, told))
        assert found.verdict == "rounding" and 0 < max(pair.largest for pair in found.pairs) < 1e-5
        assert found.shares or not found.pairs[0].shares


@pytest.mark.campaign
def test_parts_of_large_calls_are_held_against_each_other_where_they_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A capture takes some rows of one kv head, and where kv heads are repeated that is fewer heads and more rows."""
    monkeypatch.setattr(snapshot, "SCORES", 12 * 12)
    steps, places = [decoder.prompt(12, 2)], []
    for name, model, told in (
        ("grouped", decoder.Decoder(layers=2), decoder.asked),
        ("repeated", decoder.Decoder(layers=2), with_heads_repeated),
        ("turned", decoder.Decoder(layers=2, base=5e5), with_heads_repeated),
    ):

        def spec(q: Any, k: Any, v: Any, told: Any = told) -> dict[str, Any]:
            return {x: y for x, y in told(q, k, v, None).items() if x != "out"} | {"scale": DIM**-0.5}

        with torch.no_grad(), capture(decoder.plain, tmp_path / name, spec=spec, keep="all") as c:
            model.run(steps, c.function)
        places.append(load(tmp_path / name / "calls/000000.safetensors").notes[0])
    assert places[0] != places[1] and "in steps of" not in places[1]
    found = compare_runs(tmp_path / "grouped", tmp_path / "grouped")
    assert found.verdict == "identical" and not any(pair.whole for pair in found.pairs)
    found = compare_runs(tmp_path / "grouped", tmp_path / "repeated")
    assert found.verdict in ("rounding", "identical") and len(found.pairs) == 2 and not found.alone
    turned = compare_runs(tmp_path / "grouped", tmp_path / "turned")
    assert turned.departed.call == 0 and list(turned.departed.inputs) == ["q", "k"]
