"""Calls of a transformer of 12 layers on the CPU, watched."""

import json
import timeit
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from workbench import Refusal, capture, diff, load
from workbench.cli.main import commands
from workbench.explore.capturing import sources, verdict
from workbench.explore.capturing.judging import FIRST

torch = pytest.importorskip("torch", reason="torch is not installed")
from tests.explore.capturing import toy  # noqa: E402 - needs torch


def decode(count: int, capturing: Any, tokens: int = 6) -> None:
    """So many calls of the toy's attention, each of few rows."""
    layers, x = toy.weights(), toy.tokens(count=tokens)
    for _ in range(0, count, toy.LAYERS):
        toy.forward(x, layers, capturing.function)


def sdpa_at(wrong: int, how: Any) -> Any:
    """Right attention, but for one call of it."""
    calls = iter(range(10**9))

    def attend(q: Any, k: Any, v: Any) -> Any:
        return how(q, k, v) if next(calls) == wrong else toy.causal(q, k, v)

    return attend


FAULTS = {
    "mask": lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v),
    "scale": lambda q, k, v: toy.by_hand(q, k, v, scale=0.3),
    "one element": lambda q, k, v: toy.causal(q, k, v).index_fill(2, torch.tensor([3]), 0.25),
    "stale": lambda q, k, v: torch.zeros_like(q),
    "nan": lambda q, k, v: toy.causal(q, k, v) * torch.nan,
}


def test_right_calls_keep_nothing(tmp_path: Path) -> None:
    with capture(torch.nn.functional.scaled_dot_product_attention, tmp_path) as c:
        toy.forward(toy.tokens(), toy.weights(), toy.causal)
    found = c.report
    assert (found.calls, found.sampled, found.judged, found.wrong) == (12, 12, 12, 0)
    assert found.kept is None and not found.dropped and not found.unread and found.verdict == "rounding"
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
    assert 0 < found.worst.over_budget < 1 and 0 < found.worst.max_abs < 1e-5
    told = json.loads((tmp_path / "report.json").read_text())
    assert told == found.as_dict() and told["schema"] == "workbench.capture/1"
    assert "12 calls, 12 sampled, 12 judged, 0 dropped, 0 wrong" in str(found)
    shown = CliRunner().invoke(commands, ["diff", str(tmp_path)])
    assert (shown.exit_code, shown.stdout) == (0, f"{tmp_path}: no wrong call was kept: 12 judged, 0 wrong\n")
    assert json.loads(CliRunner().invoke(commands, ["diff", str(tmp_path), "--json"]).stdout) == told


def test_a_folder_of_right_calls_names_those_that_it_keeps(tmp_path: Path) -> None:
    with capture(torch.nn.functional.scaled_dot_product_attention, tmp_path, keep="all") as c:
        toy.forward(toy.tokens(), toy.weights(), toy.causal)
    assert (c.report.judged, c.report.wrong) == (12, 0)
    (first, *_) = sorted((tmp_path / "calls").iterdir())
    shown = CliRunner().invoke(commands, ["diff", str(tmp_path)])
    assert (shown.exit_code, shown.stdout) == (
        0,
        f"{tmp_path}: no wrong call was kept: 12 judged, 0 wrong; for every judged call see {tmp_path}/calls, such as "
        f"{first}\n",
    )
    assert CliRunner().invoke(commands, ["diff", str(first)]).exit_code == 0


def test_kept_calls_are_a_table(tmp_path: Path) -> None:
    with capture(sdpa_at(1, FAULTS["stale"]), tmp_path, spec=toy.spec, keep="all") as c:
        for _ in range(3):
            c.function(*torch.ones(3, 1, 1, 4, 8))
    shown = CliRunner().invoke(commands, ["diff", str(tmp_path / "calls")])
    rows = [line for line in shown.stdout.splitlines() if line.startswith("call ")]
    assert [row.partition(":")[0] for row in rows] == ["call 0", "call 1", "call 2"] and shown.exit_code == 1
    assert ["bug" in row for row in rows] == [False, True, False]


def test_a_capture_that_judged_nothing_does_not_exit_with_0(tmp_path: Path) -> None:
    with capture(sdpa_at(-1, None), tmp_path, spec=toy.spec):
        pass
    shown = CliRunner().invoke(commands, ["diff", str(tmp_path)])
    assert (shown.exit_code, shown.stdout) == (1, f"{tmp_path}: no wrong call was kept: 0 judged, 0 wrong\n")


def test_capture_is_said_to_be_a_call_of_python() -> None:
    said = str(CliRunner().invoke(commands, ["capture", "model", "--help"]).exception)
    assert 'with workbench.capture(model, "seen") as c:' in said and "print(c.report)" in said


@pytest.mark.campaign(but=2)
@pytest.mark.parametrize("fault", FAULTS)
def test_one_wrong_call_is_kept_and_judged_again(fault: str, tmp_path: Path) -> None:
    attend = sdpa_at(8, FAULTS[fault])
    with capture(attend, tmp_path, spec=toy.spec) as c:
        toy.forward(toy.tokens(), toy.weights(), c.function)
    found = c.report
    assert (found.verdict, found.judged, found.wrong, found.kept.call) == ("bug", 12, 1, 8)
    again = diff(load(tmp_path / FIRST))
    assert (again.verdict, again.origin) == (found.kept.verdict, found.kept.stage) == ("bug", "out")
    assert again.trace.notes[0] == "call 8: all rows" and "torch.initial_seed()" in again.trace.notes[1]
    assert again.trace.provenance is not None and again.trace.provenance.versions["torch"] == torch.__version__
    if fault == "scale":
        shown = CliRunner().invoke(commands, ["diff", str(tmp_path)])
        assert shown.exit_code == 1 and "scores are multiplied by 1.2" in shown.stdout, shown.output
    assert found.worst.call != 8 and found.worst.over_budget < 1


@pytest.mark.campaign
def test_one_wrong_call_of_a_thousand_is_caught(tmp_path: Path) -> None:
    attend = sdpa_at(777, FAULTS["scale"])
    with capture(attend, tmp_path, spec=toy.spec) as c:
        decode(1000, c)
    assert (c.report.judged, c.report.wrong, c.report.kept.call) == (1008, 1, 777)
    assert diff(load(tmp_path / FIRST)).verdict == "bug"


def test_of_a_sample_the_calls_are_chosen_by_chance_and_the_same_again(tmp_path: Path) -> None:
    chosen = []
    for i in range(2):
        with capture(sdpa_at(-1, None), tmp_path / str(i), spec=toy.spec, sample=1 / 12, keep="all", seed=5) as c:
            decode(240, c)
        chosen.append(sorted(path.name for path in tmp_path.glob(f"{i}/calls/*")))
        assert len(chosen[-1]) == c.report.sampled == c.report.judged
    assert chosen[0] == chosen[1]
    # 20 are expected, standard deviation 4.3; every twelfth would be the same layer each time
    assert 5 <= len(chosen[0]) <= 40 and len({int(name[:6]) % 12 for name in chosen[0]}) > 4


def test_of_a_large_call_some_rows_of_one_head_are_judged(tmp_path: Path) -> None:
    made = torch.Generator().manual_seed(0)
    q = torch.randn(2, 4, 600, 16, generator=made)
    k, v = (torch.randn(2, 2, 600, 16, generator=made) for _ in "kv")
    sdpa = torch.nn.functional.scaled_dot_product_attention
    for wrong in (False, True):

        def attend(q: Any, k: Any, v: Any, wrong: bool = wrong) -> Any:
            return sdpa(q, k, v, is_causal=not wrong, enable_gqa=True)

        told = lambda q, k, v: {**toy.spec(q, k, v), "causal_alignment": "top-left"}  # noqa: E731
        with capture(attend, tmp_path / str(wrong), spec=told, keep="all") as c:
            for _ in range(4):
                c.function(q, k, v)
        assert (c.report.judged, c.report.wrong) == (4, 4 * wrong)
    cases = [load(path) for path in sorted((tmp_path / "False/calls").iterdir())]
    assert {(x.case.batch, x.case.heads, x.case.kv_heads, x.case.seqlen_q) for x in cases} == {(1, 2, 1, 54)}
    assert len({x.notes for x in cases}) == 4, "other rows of other heads"
    assert all(x.case.score_count <= 2**16 for x in cases)


def test_inputs_that_change_meanwhile_are_dropped(tmp_path: Path) -> None:
    def attend(q: Any, k: Any, v: Any) -> Any:
        out = toy.causal(q, k, v)
        k[:, :, 0] += 1
        return out

    with capture(attend, tmp_path, spec=toy.spec) as c:
        made = c.function(*(torch.ones(1, 2, 8, 16) for _ in "qkv"))
    assert (c.report.judged, c.report.verdict) == (0, "untestable") and made.shape == (1, 2, 8, 16)
    assert [*c.report.dropped.values()] == [1] and "its inputs changed while it ran" in str(c.report)


def test_inputs_that_the_caller_writes_into_afterwards_were_judged_before(tmp_path: Path) -> None:
    q, k, v = (torch.randn(1, 2, 8, 16) for _ in "qkv")
    with capture(sdpa_at(-1, None), tmp_path, spec=toy.spec, keep="all") as c:
        for _ in range(3):
            c.function(q, k, v)
            k += 1
    assert (c.report.judged, c.report.wrong) == (3, 0)
    first, second = (load(tmp_path / f"calls/00000{i}.safetensors").inputs["k"] for i in (0, 1))
    assert np.allclose(first + 1, second)


def test_a_model_never_fails_because_it_is_watched(tmp_path: Path) -> None:
    def broken(q: Any, k: Any, v: Any) -> Any:
        raise KeyError("of the spec")

    with capture(sdpa_at(-1, None), tmp_path, spec=broken) as c:
        c.function(*(torch.ones(1, 2, 8, 16) for _ in "qkv"))
    assert c.report.unread == {"KeyError: 'of the spec'": 1} and c.report.verdict == "untestable"


def test_errors_of_the_function_are_its_callers(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError),
        capture(torch.nn.functional.scaled_dot_product_attention, tmp_path) as c,
    ):
        torch.nn.functional.scaled_dot_product_attention(torch.ones(1, 2, 8, 16), torch.ones(3), torch.ones(3))
    assert not hasattr(torch.nn.functional.scaled_dot_product_attention, "__wrapped__")
    assert c.report.calls == 1


def test_methods_and_decorators_are_watched(tmp_path: Path) -> None:
    told = lambda self, q, k, v: toy.spec(q, k, v)  # noqa: E731

    @capture(Layer.attend, tmp_path, spec=told)
    def step() -> Any:
        q = torch.ones(1, 2, 8, 16)
        return Layer().attend(q, q, q)

    right = Layer.attend
    step()
    assert Layer.attend is right
    assert json.loads((tmp_path / "report.json").read_text())["judged"] == 1


class Layer:
    def attend(self, q: Any, k: Any, v: Any) -> Any:
        return toy.causal(q, k, v)


def test_a_compiled_caller_is_seen_whenever_it_was_compiled(tmp_path: Path) -> None:
    def model(q: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, q, q) * 2

    before, after = (torch.compile(model, backend="eager") for _ in range(2))
    q = torch.randn(1, 2, 16, 16)
    before(q)
    with capture(torch.nn.functional.scaled_dot_product_attention, tmp_path, sample=0.5) as c:
        for _ in range(2):
            before(q)
            after(q)
        # what is compiled is what is around the call, and not again for each that is sampled
        with torch._dynamo.config.patch(error_on_recompile=True):
            for _ in range(8):
                before(q)
                after(q)
    assert c.report.calls == 20 and 3 < c.report.judged == c.report.sampled < 17
    assert c.report.verdict == "rounding" and not c.report.unread


def test_what_could_not_be_judged_is_told(tmp_path: Path) -> None:
    with capture(sdpa_at(-1, None), tmp_path, spec=toy.spec, contract={"exp_ulps": 1e9}, keep="all") as c:
        c.function(*(torch.ones(1, 2, 8, 16) for _ in "qkv"))
    assert (c.report.judged, c.report.verdict) == (0, "untestable")
    assert c.report.unread == {"no element could be judged": 1}
    assert diff(load(tmp_path / "calls/000000.safetensors")).verdict == "untestable"


def test_what_passes_by_is_told(tmp_path: Path) -> None:
    with capture(sdpa_at(-1, None), tmp_path, spec=toy.spec) as c:
        pass
    assert c.report.verdict == "untestable" and "no module has this function as an attribute: call c.function" in str(
        c.report
    )
    with capture(torch.nn.functional.scaled_dot_product_attention, tmp_path) as c:
        pass
    assert c.report.verdict == "untestable" and "no call was seen" in str(c.report)


def test_a_function_held_in_a_dict_is_said_to_pass_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attend = sdpa_at(-1, None)
    held = {"mine": attend}
    monkeypatch.setattr(toy, "attend", attend, raising=False)
    q = torch.ones(1, 2, 8, 16)
    with capture(attend, tmp_path, spec=toy.spec) as c:
        held["mine"](q, q, q)
    assert c.report.calls == 0 and "in a dict, a closure or a default" in str(c.report)
    assert "let them call c.function" in str(c.report)


def test_a_function_that_takes_what_torchs_attention_takes_needs_no_spec_of_its_own(tmp_path: Path) -> None:
    def attend(q: Any, k: Any, v: Any, attn_mask: Any = None, *, is_causal: bool = False, blind: bool = False) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, None if blind else attn_mask, 0.0, is_causal)

    q, mask = torch.randn(1, 2, 6, 8), torch.ones(6, 6, dtype=torch.bool).tril(2)
    with capture(attend, tmp_path / "right", spec="sdpa") as c:
        c.function(q, q, q, mask)
        c.function(q, q, q, is_causal=True)
    assert (c.report.judged, c.report.wrong) == (2, 0)
    with capture(attend, tmp_path / "wrong", spec="sdpa") as c:
        c.function(q, q, q, mask, blind=True)
    assert c.report.judged == 0 and c.report.unread == {f"{attend.__module__}.{attend.__qualname__} with blind": 1}
    with pytest.raises(Refusal, match="spec is \"sdpa\", or a function that returns the inputs of a call; got 'spda'"):
        capture(attend, tmp_path / "no", spec="spda")


class Engine:
    """Attention as a method, whose q, k and v have names of their own."""

    def attend(self, q: Any, k: Any, v: Any, *, is_causal: bool = False, **more: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal, **more)


def test_a_method_that_takes_what_torchs_attention_takes_is_read(tmp_path: Path) -> None:
    q, engine = torch.randn(1, 2, 6, 8), Engine()
    with capture(Engine.attend, tmp_path, spec="sdpa") as c:
        engine.attend(q, q, q, is_causal=True)
        engine.attend(q=q, k=q, v=q, scale=0.3)
        engine.attend(q, q, v=q, attn_mask=torch.ones(6, 6, dtype=torch.bool).tril())
    assert (c.report.judged, c.report.wrong, c.report.unread) == (3, 0, {})


def test_a_function_of_any_arguments_is_read_as_torchs_attention_is(tmp_path: Path) -> None:
    q = torch.randn(1, 2, 6, 8)
    with capture(lambda *args, **more: toy.F.scaled_dot_product_attention(*args, **more), tmp_path, spec="sdpa") as c:
        c.function(q, q, q, torch.ones(6, 6, dtype=torch.bool).tril(), scale=0.3)
    assert (c.report.judged, c.report.wrong, c.report.unread) == (1, 0, {})


def _weighted(q: Any, k: Any, v: Any, scale: float = 0.25) -> Any:
    hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
    return torch.softmax((q @ k.mT * scale).masked_fill(hidden, -torch.inf), -1)


@pytest.mark.parametrize(
    ("wrong", "stage"),
    [(None, None), ("weights", "probs"), ("out", "out"), ("both", "probs")],
    ids=["right", "weights", "out", "both"],
)
def test_weights_that_a_function_returns_are_judged(wrong: str | None, stage: str | None, tmp_path: Path) -> None:
    def attend(q: Any, k: Any, v: Any) -> Any:
        weights = _weighted(q, k, v, 0.3 if wrong == "both" else 0.25)
        out = weights @ v
        return (out * 1.1 if wrong == "out" else out), weights.roll(1, 2) if wrong == "weights" else weights

    q, k, v = torch.randn(3, 1, 2, 7, 16, generator=torch.Generator().manual_seed(0))
    with capture(attend, tmp_path, spec=toy.spec) as c:
        c.function(q, k, v)
    assert (c.report.judged, c.report.wrong) == (1, int(wrong is not None))
    if wrong is not None:
        assert (c.report.kept.verdict, c.report.kept.stage) == ("bug", stage)
        assert diff(load(tmp_path / FIRST)).verdict == "bug"
        assert ({"k": 0} if stage == "probs" else {"d": 0}).keys() <= c.report.kept.element["index"].keys()


def test_arrays_of_numpy_are_judged(tmp_path: Path) -> None:
    def attend(q: Any, k: Any, v: Any) -> Any:
        return toy.causal(*map(torch.from_numpy, (q, k, v))).numpy() * (2 if q.shape[2] == 3 else 1)

    every = np.random.default_rng(0).normal(size=(3, 1, 2, 5, 8))
    with capture(attend, tmp_path, spec=toy.spec) as c:
        for kind in (np.float32, np.float16):
            c.function(*every.astype(kind))
        c.function(*every.astype(np.float32)[..., :3, :])
        c.function(*every)
    assert (c.report.judged, c.report.wrong, c.report.kept.call) == (3, 1, 2)
    assert c.report.unread == {"unsupported dtype torch.float64": 1}


def test_a_call_that_is_not_sampled_costs_less_than_3_us(tmp_path: Path) -> None:
    def nothing(q: Any, k: Any, v: Any, *, is_causal: bool) -> None:
        return None

    watched = capture(nothing, tmp_path, spec=toy.spec, sample=1e-9).function
    each = [
        min(timeit.repeat(lambda f=f: f(1, 2, 3, is_causal=True), number=2000, repeat=20)) / 2000
        for f in (nothing, watched)
    ]
    assert each[1] - each[0] < 3e-6


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sample": 0}, "sample .the share of calls to judge. must be above 0"),
        ({"sample": 2}, "sample .the share of calls to judge. must be above 0"),
        ({"keep": "last"}, "keep must be one of first, all"),
        ({"limit_mb": 0}, "limit_mb .* must be above 0"),
        ({"contract": {"probs_dtypo": "float32"}}, "probs_dtypo"),
    ],
)
def test_what_it_does_not_take_is_refused(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=said):
        capture(torch.nn.functional.scaled_dot_product_attention, tmp_path, **given)


def test_a_folder_that_holds_a_case_is_not_written_over(tmp_path: Path) -> None:
    with capture(sdpa_at(0, FAULTS["stale"]), tmp_path, spec=toy.spec) as c:
        c.function(*(torch.ones(1, 2, 8, 16) for _ in "qkv"))
    with pytest.raises(Refusal, match=f"has {FIRST} of an earlier capture"):
        capture(torch.nn.functional.scaled_dot_product_attention, tmp_path)


def test_a_head_of_more_than_the_limit_is_told(tmp_path: Path) -> None:
    with capture(sdpa_at(-1, None), tmp_path, spec=toy.spec, limit_mb=0.001) as c:
        c.function(*(torch.ones(1, 2, 64, 16) for _ in "qkv"))
    assert c.report.judged == 0 and "a part of 0.0234 MB, more than limit_mb=0.000999" in next(iter(c.report.unread))


@pytest.mark.parametrize(("beyond", "wrong"), [(7.0, 1), (1e6, 0)])
def test_what_no_chance_explains_is_kept_though_no_bound_is_broken(
    beyond: float, wrong: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdict, "BEYOND", beyond)
    q, k, v = (torch.randn(1, 4, 48, 16, generator=torch.Generator().manual_seed(i)) for i in range(3))
    slightly, scales = (lambda q, k, v: toy.causal(q, k, v) * next(scales)), iter([1.0, 1 + 7e-6, 1.1])
    with capture(slightly, tmp_path, spec=toy.spec, contract="torch-eager") as c:
        for _ in range(2):
            c.function(q, k, v)
        found = c.report
        assert (found.judged, found.wrong, found.doubted) == (2, wrong, 1 - wrong)
        assert found.verdict == ("suspicious" if wrong else "rounding")
        if wrong:
            again = diff(load(tmp_path / FIRST))
            assert (again.verdict, found.kept.stage, found.kept.call) == (found.kept.verdict, "out", 1)
        # what breaks a bound says more, and takes its place
        c.function(q, k, v)
        assert (c.report.verdict, c.report.kept.call, c.report.wrong) == ("bug", 2, wrong + 1)
        assert diff(load(tmp_path / FIRST)).verdict == "bug"


def test_calls_that_are_recorded_into_a_graph_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.explore.capturing.capture._recording", lambda: lambda: True)
    with capture(sdpa_at(-1, None), tmp_path, spec=toy.spec) as c:
        c.function(*(torch.ones(1, 2, 8, 16) for _ in "qkv"))
    assert (c.report.calls, c.report.sampled, c.report.verdict) == (1, 0, "untestable")
    assert "recorded into a CUDA graph" in str(c.report)


def test_at_the_dispatcher_every_caller_is_seen(tmp_path: Path) -> None:
    held = torch.nn.functional.scaled_dot_product_attention
    compiled = torch.compile(lambda q: held(q, q, q, is_causal=True) * 2, backend="aot_eager")
    q = torch.randn(2, 4, 16, 16)
    compiled(q)
    with capture(torch.ops.aten.scaled_dot_product_attention, tmp_path, keep="all") as c:
        compiled(q)
        held(q, q, q, attn_mask=torch.rand(16, 16) < 0.7, scale=0.3)
        held(q, q, q, dropout_p=0.5)
        with torch.inference_mode():
            held(q, q, q)
    held(q, q, q)
    found = c.report
    assert (found.calls, found.judged, found.wrong, found.verdict) == (3, 3, 0, "rounding"), "dropout is of math"
    cases = [load(path).case for path in sorted((tmp_path / "calls").iterdir())]
    assert len(cases) == 3 and cases[1].scale == pytest.approx(0.3, rel=1e-6)
    assert "lse" in load(tmp_path / "calls/000000.safetensors").stages


def test_an_operation_with_attention_inside_is_told(tmp_path: Path) -> None:
    layer = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
    x = torch.randn(1, 8, 16)
    with capture(torch.ops.aten.scaled_dot_product_attention, tmp_path) as c, torch.no_grad():
        layer(x, x, x, need_weights=False)
    assert c.report.unread == {"aten._native_multi_head_attention computes attention inside one operation": 1}
    assert c.report.verdict == "untestable"


def test_a_wrong_kernel_is_caught_at_the_dispatcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = sources.called
    monkeypatch.setattr(sources, "called", lambda op, *args, **kwargs: _third(right(op, *args, **kwargs)))
    q = torch.randn(2, 4, 16, 16)
    with capture(torch.ops.aten.scaled_dot_product_attention, tmp_path) as c:
        torch.nn.functional.scaled_dot_product_attention(q, q, q)
    assert c.report.verdict == "bug" and diff(load(tmp_path / FIRST)).verdict == "bug"


def _third(made: Any) -> Any:
    return (made[0] / 3, *made[1:]) if isinstance(made, tuple) else made
