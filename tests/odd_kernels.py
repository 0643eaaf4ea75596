"""A right kernel in NumPy with odd bugs, each in one stage, which nobody would look for by name."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.numpy_kernels import Style, stages
from workbench import Case, diff, run
from workbench.case.stages import stages_of
from workbench.judge.stage import StageDiff
from workbench.trace.trace import Trace

CASE = Case(seqlen=96, heads=4, kv_heads=2, head_dim=32, block_q=16, block_k=16, causal=True, scale=0.2)
SPLITS = CASE.but(splits=3)

Change = Callable[[np.ndarray, dict[str, np.ndarray]], np.ndarray]


def judged(name: str, change: Change, case: Case = CASE, only: bool = False, **style: Any) -> tuple[Trace, StageDiff]:
    """A run that dumps the stages up to `name`, or that one `only`, with `change` of the stage and of what it was made
    with (all stages, and q, k and v by query heads); and the stage as it was judged.
    """
    algorithm = "split_k" if case.splits else "flash"
    known = [*stages_of(algorithm, case.numbers)]
    kept = [name] if only else known[: known.index(name) + 1]
    made_as = Style(block_k=case.block_k, splits=case.splits or 1, **style)

    def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> dict[str, Any]:
        made = stages(made_as, q, k, v, scale=scale, causal=causal)
        group = q.shape[1] // k.shape[1]
        read = made | {"q": q, "k": np.repeat(k, group, 1), "v": np.repeat(v, group, 1)}
        made[name] = np.asarray(change(made[name].copy(), read), made[name].dtype)
        declared = {"block_k": case.block_k, "splits": made_as.splits}
        return {stage: made[stage] for stage in kept if stage in made} | {"contract": declared}

    found = diff(run(attention, case))
    assert found[name].role == "origin"
    return found.trace, found[name]


def scaled(mask: Callable[[dict[str, np.ndarray]], Any]) -> Change:
    """A stage that is wrong where `mask` of what it was made with is True, by a factor of its own for each element."""

    def change(stage: np.ndarray, made: dict[str, np.ndarray]) -> np.ndarray:
        factor = np.random.default_rng(0).uniform(1.1, 1.5, stage.shape)
        return np.where(mask(made), stage * factor, stage)

    return change


def scaled_where(mask: Callable[..., Any]) -> Change:
    """As `scaled`, with a mask of the stage's indices."""
    return lambda stage, _: scaled(lambda _: mask(*np.indices(stage.shape)))(stage, {})
