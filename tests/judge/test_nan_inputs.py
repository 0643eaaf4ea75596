"""Inputs that hold NaN: where it must go it is right, and nothing else is; what it does not reach is judged as usual."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.online import Arrays, online, promise
from workbench import Case, Refusal
from workbench.case.contract import of_foreign
from workbench.case.inputs import by_name
from workbench.case.stages import ALGORITHMS
from workbench.judge.diff import Diff, diff
from workbench.trace.trace import Trace, check, check_inputs

CASE = Case(heads=2, kv_heads=1, seqlen_q=40, seqlen_k=48, head_dim=16, causal=True, seed=3)
#: the input, and where its NaN is; rows that do not see key 30 are not reached by it
PLACES = {"q": (0, 1, 7, 3), "k": (0, 0, 30, 2), "v": (0, 0, 30, 5)}
Change = Callable[[Arrays], None]


def inputs_with(*names: str) -> Arrays:
    found = {name: x.copy() for name, x in by_name(CASE).items()}
    for name in names:
        found[name][PLACES[name]] = np.nan
    return found


def judged(
    *names: str, only: tuple[str, ...] = (), change: Change = lambda stages: None, splits: int = 1, **online_with: Any
) -> Diff:
    read = inputs_with(*names)
    stages = online(CASE, read, splits=splits, **online_with)
    change(stages)
    algorithm = "split_k" if splits > 1 else "flash"
    kept = {name: stages[name] for name in only or ALGORITHMS[algorithm] if name != "capped"}
    trace = Trace("mine", algorithm, CASE, of_foreign(promise(CASE, splits=splits), CASE), read, kept, requested=())
    return diff(check(trace, "mine"))


def skipped(stages: Arrays) -> None:
    """What a kernel holds that reads no v behind the diagonal."""
    clean = online(CASE, inputs_with(), splits=3)
    for name in ("acc", "partial_O", "out"):
        axis = ALGORITHMS["split_k"][name].axes.index("q")
        np.moveaxis(stages[name], axis, 0)[:22] = np.moveaxis(clean[name], axis, 0)[:22]


@pytest.mark.campaign(every=3)
@pytest.mark.parametrize("only", [(), ("out", "lse")])
@pytest.mark.parametrize("names", [("q",), ("k",), ("v",), ("q", "k", "v")])
@pytest.mark.parametrize("larger", [np.maximum, np.fmax])
def test_a_right_kernel_is_right_whether_its_maxima_pass_over_nan(
    names: tuple[str, ...], only: tuple[str, ...], larger: np.ufunc
) -> None:
    found = judged(*names, only=only, splits=3, larger=larger)
    assert found.verdict == "rounding"
    out = found["out"].judged
    assert out.summary.judged == out.summary.size and np.isnan(out.elements.actual).any()
    assert np.array_equal(np.isnan(out.expected), np.isnan(out.elements.actual))


@pytest.mark.parametrize("only", [(), ("out",)])
def test_a_kernel_that_skips_what_is_masked_need_not_spread_its_nan(only: tuple[str, ...]) -> None:
    found = judged("v", only=only, change=skipped, splits=3)
    assert found.verdict == "rounding" and found["out"].judged.summary.judged == found["out"].judged.summary.size


def lost(name: str) -> Change:
    return lambda stages: stages.update({name: np.nan_to_num(stages[name])})


def spread(stages: Arrays) -> None:
    stages["out"][0, 0, 20, 7] = np.nan


def scaled(stages: Arrays) -> None:
    stages["out"][0, 0, 20] *= 1.001


@pytest.mark.parametrize("only", [(), ("out", "lse")])
@pytest.mark.parametrize(
    ("change", "name"),
    [(lost("out"), "out"), (lost("lse"), "lse"), (spread, "out"), (scaled, "out")],
    ids=["out is 0 for NaN", "lse is 0 for NaN", "one NaN more", "wrong where no NaN is"],
)
def test_what_is_wrong_is_found_beside_it(change: Change, name: str, only: tuple[str, ...]) -> None:
    found = judged("q", "v", only=only, change=change, splits=3)
    assert (found.verdict, found.origins) == ("bug", (name,))


def test_a_nan_that_is_lost_on_the_way_is_found_where_it_is_lost() -> None:
    found = judged("q", change=lambda stages: stages.update(scores=np.nan_to_num(stages["scores"], neginf=-np.inf)))
    assert found.origins[0] == "scores"


def test_infinities_are_refused_still() -> None:
    read = inputs_with()
    read["k"][PLACES["k"]] = np.inf
    with pytest.raises(Refusal) as refusal:
        check_inputs(CASE, read, "mine")
    assert str(refusal.value) == "mine: inputs must be finite, or NaN; k holds inf at b=0, h=0, k=30, d=2"
