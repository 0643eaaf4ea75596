"""A victim has an origin: where nobody could judge it, it is at or before what was read and not judged."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from campaigns.known import unknown
from workbench import Case, Trace, diff, run

CASE = Case(seqlen_q=48, seqlen_k=96, head_dim=32, heads=2, block_q=16, block_k=16, splits=3)
PARTIALS = ("partial_max", "partial_sum", "partial_O")


def traced(*faults: str) -> Trace:
    return run("split_k", CASE, faults=faults, backend="emulator")


def changed(trace: Trace, **by: Any) -> Trace:
    stages = {name: np.asarray(by[name](x) if name in by else x) for name, x in trace.stages.items()}
    return replace(trace, stages=stages, rerun=None)


@pytest.mark.parametrize(
    ("wrong", "origin", "victims"),
    [
        ({"partial_O": lambda x: x * np.float32(1.5), "out": lambda x: x * np.float32(1.5)}, "partial_O", ("out",)),
        (
            {"partial_max": lambda x: x + np.float32(1), "lse": lambda x: x + np.float32(1)},
            "partial_sum",
            ("lse",),
        ),
    ],
)
def test_partials_of_unknown_splits_do_not_hide_a_wrong_end(
    wrong: dict[str, Any], origin: str, victims: tuple[str, ...]
) -> None:
    """out and lse are right on them, and wrong against q, k, v: the last of them that the other end does not clear."""
    judged = diff(unknown(changed(traced(), **wrong), (*PARTIALS, "out", "lse")))
    assert (judged.verdict, judged.origins, judged.victims) == ("bug", (origin,), victims)
    assert judged[origin].reason == (
        f"not judged itself; {victims[0]} is right given {origin} but wrong from q, k, v: "
        f"the bug is at or before {origin}"
    )
    assert "qk" in judged[origin].upstream and origin not in judged[origin].upstream


def test_right_partials_of_unknown_splits_blame_nobody() -> None:
    judged = diff(unknown(traced(), (*PARTIALS, "out", "lse")))
    assert judged.verdict == "rounding" and judged.origins == judged.victims == ()


def test_a_victim_with_an_origin_blames_nobody_else() -> None:
    judged = diff(traced("reduce-double-counts-sum"))
    assert judged.origins == ("merge_weight",) and judged.victims == ("out",)


def test_victims_of_what_was_put_in_are_exempt() -> None:
    wrong = {"partial_O": traced().stages["partial_O"] * np.float32(1.5)}
    judged = diff(run("split_k", CASE, feed=wrong, backend="emulator"))
    assert judged.verdict in ("exact", "rounding") and judged.origins == ()


def test_a_victim_all_of_whose_ancestors_were_judged_is_the_bug_itself() -> None:
    """Nothing that was judged can have made it: float64 itself says that out is not that of q, k, v."""
    trace = traced()
    other = trace.inputs["v"].copy()
    other[...] += np.float32(1)
    judged = diff(replace(trace, inputs=trace.inputs | {"v": other}, rerun=None))
    assert judged.verdict == "bug" and judged.origin is not None
