"""Every public name once, for a type checker: `mypy --strict examples/typed.py`. It is not meant to run."""

from typing import Any, assert_type

import numpy as np
from hypothesis import given

import workbench as wb
import workbench.testing as wt

Array = np.ndarray[tuple[Any, ...], np.dtype[Any]]
CASE = wb.Case(seqlen=64, head_dim=32, dtype="float16", causal=True)


def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    out, _lse = wb.kernel("flash_mma")(q, k, v, scale=scale, causal=causal)
    return out


def naive(x: Array) -> Array:
    doubled: Array = wb.stage("doubled", 2.0 * x)
    return doubled


def one_case() -> str | None:
    trace: wb.Trace = wb.run(attention, CASE, arrays="torch", device="cuda", contract="triton,block_k=64")
    wb.save(trace, "run.safetensors")
    found: wb.Diff = wb.diff(wb.load("run.safetensors"), measure=True)
    assert_type(trace.stages["out"], Array)
    assert_type(found["out"].verdict, str)
    assert_type(found.victims, tuple[str, ...])
    assert_type([cause.text for cause in wb.explain(found).causes], list[str])
    assert_type(wb.shrink(found, seconds=10).smallest, wb.Case)
    return found.origin


def more(version: str = wb.__version__) -> bool:
    try:
        rows = wb.sweep("my_kernel.py:attention", [CASE], jobs=2, backend="emulator").rows
        outcomes = {row.case.seqlen_q: row.outcome for row in rows}
        with wb.capture(attention, "seen", sample=0.1) as calls:
            attention(*CASE.inputs(), scale=0.125, causal=True)
        print(version, outcomes, calls.report, wb.compare_runs("a", "b").verdict)
    except (wb.Refusal, wb.Unavailable) as error:
        print(error)
    broken = [finding.law for finding in wb.laws(attention, CASE).broken]
    read = [finding.text for finding in wb.measure(attention, CASE, effort=2).findings]
    return bool(broken or read) or wb.check("flash", CASE).passed or wb.accept("my_kernel.py:attention").passed


@given(case=wt.cases("flash", dtype="float16"), x=wt.awkward_values("float16"), arrays=wt.tensors(CASE))
def test_attention(case: wb.Case, x: float, arrays: dict[str, Array]) -> None:
    assert_type(wt.PROFILES["ci"]["max_examples"], Any)
    try:
        assert_type(wt.assert_attention(attention, case, fail_on="bug", inputs=arrays), wb.Diff)
    except wt.AttentionError as error:
        assert_type(error.diff.verdict, str)
    assert_type(wt.assert_attention_close(arrays["v"], arrays["q"], arrays["k"], arrays["v"], causal=True).verdict, str)
    assert_type(wt.assert_close(2 * arrays["q"], naive, {"x": arrays["q"]}).verdict, str)
    assert_type(wt.assert_operation("norm.py:rmsnorm", "rmsnorm", dtype="bfloat16").origin, str | None)


WARNINGS: tuple[type[UserWarning], ...] = (wt.AttentionWarning, wt.GradientWarning)
