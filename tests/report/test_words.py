"""What a report says where a stage is wrong and out is right, and where a victim cannot be judged by itself."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.stored import stored
from workbench import Case, Diff, diff, load, run
from workbench.judge.explain.explain import Explained
from workbench.judge.stage import IfDeclared
from workbench.report.words import findings
from workbench.trace.file import save

CASE = Case(seqlen=24, head_dim=8)


def kernel(dump: Callable[[np.ndarray, float], np.ndarray], *, out: float = 1.0, lse: bool = True) -> Any:
    """Attention that is right but for a factor of `out`, and dumps `dump` of its scores and its scale as scores."""

    def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> dict[str, Any]:
        scores = q @ k.swapaxes(-1, -2) * np.float32(scale)
        top = scores.max(axis=-1)
        probs = np.exp(scores - top[..., None])
        total = probs.sum(axis=-1)
        made = probs @ v / total[..., None] * np.float32(out)
        ends = {"out": made, "lse": top + np.log(total)} if lse else {"out": made}
        return {"scores": dump(scores, scale), **ends}

    return attention


def next_key(scores: np.ndarray, scale: float) -> np.ndarray:
    return np.roll(scores, 1, axis=-1)


def right(scores: np.ndarray, scale: float) -> np.ndarray:
    return scores


def sentences(judged: Diff) -> list[str]:
    return [line for line in findings(judged) if not line.startswith(("  ", "effect", "contract", "the budget"))]


SUSPECT = (
    "right from q, k and v: suspect the probe of scores first (wrong variable or index), then errors that cancel or "
    "are too small to show"
)
FIRST = "verdict: bug; first wrong stage: scores, should be qk * scale, -inf where masked"
OUT = "acc / row_sum after the last tile, cast to the output dtype; 0 where row_sum is 0"


@pytest.mark.campaign
def test_a_probe_of_another_value_is_suspected_where_out_and_lse_are_right() -> None:
    judged = diff(run(kernel(next_key), CASE))
    assert judged.verdict == "bug" and judged.results_despite_origin == ("out", "lse")
    assert sentences(judged) == [
        FIRST,
        f"wrong given its dumped inputs, right from q, k and v: out, should be {OUT}",
        f"out and lse are {SUSPECT}",
    ]
    assert diff(run(kernel(next_key, lse=False), CASE)).results_despite_origin == ("out",)


def test_it_is_not_where_one_of_them_is_wrong_or_nothing_is() -> None:
    judged = diff(run(kernel(next_key, out=1.01), CASE))
    assert judged.origins == ("scores", "out") and judged.results_despite_origin == ()
    assert diff(run(kernel(right), CASE)).results_despite_origin == ()


def test_it_is_not_of_a_kernel_of_ours_whose_probes_are_right() -> None:
    trace = stored("flash", CASE)
    wrong = replace(trace, stages={**trace.stages, "scores": np.roll(trace.stages["scores"], 1, axis=-1)})
    assert diff(wrong).origin == "scores" and diff(wrong).results_despite_origin == ()
    assert diff(replace(wrong, backend="foreign")).results_despite_origin == ("out", "lse")


def test_a_victim_whose_inputs_are_nan_is_not_said_to_be_right() -> None:
    def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> dict[str, Any]:
        return kernel(right)(q * np.float32(np.nan), k, v, scale=scale, causal=causal)

    judged = diff(run(attention, CASE))
    assert (judged.origins, judged.victims) == (("scores",), ("out", "lse"))
    assert [judged[name].maybe_victim for name in ("out", "lse")] == [True, True]
    assert sentences(judged) == [
        FIRST,
        "victim?: out, lse (cannot be judged apart from an earlier wrong stage)",
    ]
    assert [line for line in findings(judged) if "untestable" in line] == [
        "  out is untestable: no element could be judged: 192 read NaN, 0 have no finite budget",
        "  lse is untestable: no element could be judged: 24 read NaN, 0 have no finite budget",
    ]


def scale_twice(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> dict[str, Any]:
    scores = q @ k.swapaxes(-1, -2) * np.float32(scale) ** 2
    probs = np.exp(scores - scores.max(axis=-1, keepdims=True))
    out = probs @ v / probs.sum(axis=-1, keepdims=True)
    return {"scores": scores, "out": out}


def rows_of_v(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> dict[str, Any]:
    v = np.roll(v, -1, axis=-2)
    scores = q @ k.swapaxes(-1, -2) * np.float32(scale)
    probs = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return {"scores": scores, "out": probs @ v / probs.sum(axis=-1, keepdims=True)}


def of_no_family(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    scores = q @ k.swapaxes(-1, -2) * np.float32(scale) + np.sin(np.arange(k.shape[2]) ** 2.0)
    probs = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return probs @ v / probs.sum(axis=-1, keepdims=True)


def test_of_out_alone_the_cause_comes_first_and_no_line_that_it_does_not_name() -> None:
    def out_alone(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        return scale_twice(q, k, v, scale=scale, causal=causal)["out"]

    judged = diff(run(out_alone, CASE))
    found = findings(judged)
    assert found[0] == "verdict: bug; first wrong stage: out or one before it (only out was given)"
    assert found[1].startswith("  cause, one of 4 that fit: the scale is applied twice (")
    at_rest = diff(replace(judged.trace, rerun=None))
    vars(at_rest).update(explained=judged.explained)  # which takes a second
    line = findings(at_rest)[1]
    assert line.startswith("  cause, one of 4 that fit: the scale is applied twice; or ") and line.count("; or ") == 2
    assert line.endswith("; 1 more (-v)")
    assert "tells them apart" in found[1] and "tells them apart" not in line
    assert "look at: " not in "".join(found)
    assert len([line for line in found if "cause, " in line]) == 1


def test_what_to_declare_of_a_trace_at_rest_is_declared_where_it_is_made(tmp_path: Path) -> None:
    def empty_rows(q: Any, k: Any, v: Any, *, scale: float, causal: bool, mask: Any) -> Any:
        out = scale_once(q, k, v, scale, mask)
        return np.where(mask.any(-1, keepdims=True), out, np.float32(7))

    inputs = dict(zip("qkv", CASE.inputs(), strict=True))
    inputs["mask"] = np.tri(CASE.seqlen_q, CASE.seqlen_k, -1, dtype=bool)
    trace = run(empty_rows, CASE, inputs=inputs)
    save(trace, tmp_path / "run.safetensors")
    begins = "only empty rows are wrong: if your kernel may leave anything there, declare "
    said = []
    for one in (trace, load(tmp_path / "run.safetensors")):
        judged = diff(one)
        vars(judged).update(explained=Explained((), ("out",), (), 0, "", 0.0))  # which takes a second
        said += [line.strip() for line in findings(judged) if begins in line]
    assert said == [
        f"{begins}--contract empty_out=any",
        f"{begins}empty_out=any, where the trace is made (`contract=` of a capture)",
    ]


def scale_once(q: Any, k: Any, v: Any, scale: float, mask: Any) -> Any:
    scores = np.where(mask, q @ k.swapaxes(-1, -2) * np.float32(scale), -np.inf)
    probs = np.exp(scores - np.maximum(scores.max(axis=-1, keepdims=True), np.float32(-1e30)))
    return (probs @ v / np.maximum(probs.sum(axis=-1, keepdims=True), np.float32(1e-30))).astype(np.float32)


@pytest.mark.campaign
def test_what_it_might_declare_is_said_last_and_beside_a_cause_only_where_a_budget_tells() -> None:
    named, unknown = diff(run(scale_twice, CASE)), diff(replace(run(of_no_family, CASE), rerun=None))

    def said(judged: Diff, *, tells: bool) -> list[str]:
        first = replace(judged.stages[0], if_declared=IfDeclared("declare it", tells))
        other = replace(judged, stages=(first, *judged.stages[1:]))
        vars(other).update(explained=judged.explained)  # which takes seconds
        return findings(other)

    with_cause = said(named, tells=True)
    assert with_cause[0] == FIRST and with_cause[1].startswith("  cause") and "  declare it" in with_cause[2:]
    assert "  declare it" not in said(named, tells=False)
    for tells in (True, False):
        found = said(unknown, tells=tells)
        assert (
            found[0] == "verdict: bug; first wrong stage: out or one before it (only out was given)"
            and "look at: " not in "".join(found)
        )
        assert [line for line in found if line.startswith("  ")][-1] == "  declare it"


def test_a_cause_sends_to_the_line_that_computes_what_it_names() -> None:
    """A scale: where scores are made of it; rows of v are another line's than out, and which nobody knows."""
    scale, rows = (findings(diff(run(f, CASE))) for f in (scale_twice, rows_of_v))
    assert [x.split(": ")[2] for x in scale if "look at: " in x] == [
        "scores = q @ k.swapaxes(-1, -2) * np.float32(scale) ** 2"
    ]
    assert any("  cause" in x and " v" in x for x in rows) and not any("look at: " in x for x in rows)
