"""What a report says where a stage is wrong and out is right, and where a victim cannot be judged by itself."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tests.stored import stored
from workbench import Case, Diff, diff, run
from workbench.report.words import findings

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
    "right, each element within its budget from q, k and v: suspect the probe of scores first (another value than the "
    "stage's, or at another index), then errors that cancel or are too small to be seen there"
)
FIRST = "first wrong stage: scores = qk * scale, -inf where masked"
OUT = "acc / row_sum of the last tile, cast to the output dtype; 0 where row_sum is 0"


def test_a_probe_of_another_value_is_suspected_where_out_and_lse_are_right() -> None:
    judged = diff(run(kernel(next_key), CASE))
    assert judged.verdict == "bug" and judged.right_ends == ("out", "lse")
    assert sentences(judged) == [
        f"out and lse are {SUSPECT}",
        FIRST,
        f"wrong given what was dumped before it, right without: out = {OUT}",
    ]
    assert diff(run(kernel(next_key, lse=False), CASE)).right_ends == ("out",)


def test_it_is_not_where_one_of_them_is_wrong_or_nothing_is() -> None:
    judged = diff(run(kernel(next_key, out=1.01), CASE))
    assert judged.origins == ("scores", "out") and judged.right_ends == ()
    assert diff(run(kernel(right), CASE)).right_ends == ()


def test_it_is_not_of_a_kernel_of_ours_whose_probes_are_right() -> None:
    trace = stored("flash", CASE)
    wrong = replace(trace, stages={**trace.stages, "scores": np.roll(trace.stages["scores"], 1, axis=-1)})
    assert diff(wrong).origin == "scores" and diff(wrong).right_ends == ()
    assert diff(replace(wrong, backend="foreign")).right_ends == ("out", "lse")


def test_a_victim_whose_inputs_are_nan_is_not_said_to_be_right() -> None:
    def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> dict[str, Any]:
        return kernel(right)(q * np.float32(np.nan), k, v, scale=scale, causal=causal)

    judged = diff(run(attention, CASE))
    assert (judged.origins, judged.victims) == (("scores",), ("out", "lse"))
    assert [judged[name].maybe_victim for name in ("out", "lse")] == [True, True]
    assert sentences(judged) == [
        FIRST,
        "victim?: out, lse (wrong from q, k and v, as a stage before is; by itself it may be right)",
    ]
    assert [line for line in findings(judged) if "untestable" in line] == [
        "  out is untestable by itself: no element could be judged: 192 poisoned, 0 with a budget that says nothing",
        "  lse is untestable by itself: no element could be judged: 24 poisoned, 0 with a budget that says nothing",
    ]
