"""Mistakes of real kernels have names, from out alone, and from out and lse."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.judge.explain.named_kernels import (
    as_bhsd,
    as_bshd,
    by_exp,
    by_lse_of,
    kernel,
    merged,
    of_lanes,
    only,
    over_heads,
    softmax,
    wide,
    zeros_behind,
)
from workbench import Case, diff, run
from workbench.case.formats import FORMATS
from workbench.expectation.observed import Observed
from workbench.judge.explain.cover import wrong_of
from workbench.judge.explain.fit import fit
from workbench.judge.explain.library import library
from workbench.judge.explain.scene import Scene
from workbench.judge.explain.unknown.difference import of_stage
from workbench.judge.explain.unknown.sums import summed
from workbench.judge.explain.unknown.tensors import Tensors
from workbench.readings.reader import measured

HEADS = Case(heads=4, kv_heads=2, seqlen=24, head_dim=16)
ROWS = Case(heads=1, seqlen=72, head_dim=32)
WIDE = Case(heads=2, seqlen=40, head_dim=24)
LANES = Case(heads=1, seqlen=40, head_dim=64)
LARGE = Case(heads=1, seqlen=64, head_dim=32, scale=5.0)

BSHD = "[b, h, s, d] is read with the strides of [b, s, h, d]"
BHSD = "[b, s, h, d] is read with the strides of [b, h, s, d]"
OVER_HEADS = "attention runs over heads instead of rows"
BY_EXP = "weights e^lse"
#: what is wrong -> the kernel, its case, the hypothesis that it is, and what this says
NAMED = {
    "all as bshd": (kernel(as_bshd, as_bshd, as_bshd), HEADS, "layout.as-bshd-qkv", f"q, k and v: {BSHD}"),
    "all and out as bshd": (
        kernel(as_bshd, as_bshd, as_bshd, as_bhsd), HEADS, "layout.as-bshd-qkv-out", f"q, k and v: {BSHD}, out is",
    ),
    "all, out and lse as bshd": (
        kernel(as_bshd, as_bshd, as_bshd, as_bhsd, as_bhsd), HEADS, "layout.as-bshd-qkv-out-lse", f"{BSHD}, out and lse",
    ),
    "all and out as bhsd": (
        kernel(as_bhsd, as_bhsd, as_bhsd, as_bshd), HEADS.but(causal=True), "layout.as-bhsd-qkv-out", f"{BHSD}, out is",
    ),
    "q and out as bshd": (kernel(q=as_bshd, out=as_bhsd), HEADS, "layout.as-bshd-q-out", f"q: {BSHD}, out is"),
    "k and v as bhsd": (kernel(k=as_bhsd, v=as_bhsd), HEADS, "layout.as-bhsd-kv", f"k and v: {BHSD}"),
    "q and v as bshd": (kernel(q=as_bshd, v=as_bshd), HEADS, "layout.as-bshd-qv", f"q and v: {BSHD}"),
    "over heads": (kernel(of=over_heads), HEADS, "layout.over-heads", OVER_HEADS),
    "over heads, causal": (
        kernel(of=over_heads), HEADS.but(kv_heads=4, causal=True, batch=2), "layout.over-heads", OVER_HEADS,
    ),
    "over heads, lse as rows": (
        kernel(of=over_heads, lse=as_bhsd), HEADS, "layout.over-heads-lse-rows-first", "lse is stored as",
    ),
    "zeros in q and v": (
        kernel(q=zeros_behind(32, 16), v=zeros_behind(32, 16)), ROWS, "layout.zeros-in-tile-16-32-qv", "tiles of q and v",
    ),
    "zeros in all": (kernel(*(zeros_behind(32, 16),) * 3), ROWS, "layout.zeros-in-tile-16-32-qkv", "tiles of q, k and v"),
    "zeros in v, 8 apart": (kernel(v=zeros_behind(64, 8)), ROWS, "layout.zeros-in-tile-8-64-v", "row padding of 8"),
    "zeros in k and v": (
        kernel(k=zeros_behind(16, 8), v=zeros_behind(16, 8)), ROWS, "layout.zeros-in-tile-8-16-kv", "tiles of k and v",
    ),
    "72 dims as 80": (kernel(wide(16), wide(16)), WIDE.but(head_dim=72), "layout.wide-16-zeros", "a multiple of 16 dims"),
    "24 dims as 32": (kernel(wide(32), wide(32)), WIDE, "layout.wide-32-zeros", "a multiple of 32 dims"),
    "24 dims as 128": (kernel(wide(128), wide(128)), WIDE, "layout.wide-128-zeros", "a multiple of 128 dims"),
    "20 dims as 24": (
        kernel(wide(8), wide(8)), WIDE.but(head_dim=20, kv_heads=1), "layout.wide-8-zeros", "a multiple of 8 dims",
    ),
    "lane of the row": (
        kernel(q=only(lambda c, i, d: c // 2 == i % 32)), LANES, "layout.dot-of-row-pair-32", "only lane i % 32",
    ),
    "lane 0": (kernel(q=only(lambda c, i, d: c % 32 == 0)), LANES, "layout.dot-of-first-apart-32", "only lane 0"),
    "lane of the key": (
        kernel(k=only(lambda c, i, d: c // 2 == i % 32)), LANES, "layout.dot-of-key-pair-32", "lane j % 32, for key j",
    ),
    "own lane of out": (
        kernel(of=of_lanes(32, lambda c: c // 2)), LANES, "layout.dot-of-own-pair-32", "its own softmax",
    ),
    "4 lanes": (kernel(of=of_lanes(4, lambda c: c % 4)), LANES, "layout.dot-of-own-apart-4", "4 lanes that share"),
    "merged by e^lse": (kernel(of=merged(4, by_exp)), LARGE, "output.merged-exp-lse-4", BY_EXP),
    "merged by e^lse, 2 splits": (kernel(of=merged(2, by_exp)), LARGE.but(heads=2), "output.merged-exp-lse-2", BY_EXP),
    "merged by e^lse, 3 splits": (
        kernel(of=merged(3, by_exp)), LARGE.but(seqlen=96), "output.merged-exp-lse-3", BY_EXP,
    ),
    "merged by e^lse, few": (kernel(of=merged(8, by_exp)), LARGE.but(seqlen=128), "output.merged-exp-lse-8", BY_EXP),
}  # fmt: skip
#: those of each kind that are searched for in the whole library
SEARCHED = (
    "all and out as bshd",
    "over heads, causal",
    "zeros in q and v",
    "24 dims as 128",
    "own lane of out",
    "merged by e^lse",
)
#: what kernels on codes promise: nothing is rounded behind what they decode
TOLD = {"probs_dtype": "float32", "scores_dtype": "float32", "accumulator_dtype": "float32"}
EVERY = {one.id: one for one in library()}


@pytest.mark.parametrize("lse", [False, True])
@pytest.mark.parametrize("name", NAMED)
def test_mistakes_of_real_kernels_are_in_the_library(name: str, lse: bool) -> None:
    made, case, id_, text = NAMED[name]
    scene = Scene.of(Observed(run(made(lse), case)))
    assert "out" in scene.wrong and text in EVERY[id_].text
    found = fit(scene, EVERY[id_], scene.wrong)
    assert found is not None and {*found.stages} == {*scene.wrong}


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("name", SEARCHED)
def test_and_are_found_there(name: str) -> None:
    made, case, _, text = NAMED[name]
    found = diff(run(made(True), case)).explain()
    (cause,) = found.causes
    assert any(text in said for said in cause.names) and cause.stands and not found.unexplained and not found.withdrawn


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (lambda h, group: h % group, "head h % 3"),
        (lambda h, group: h // group, "head h // 3"),
        (lambda h, group: h % 2, "head h % 2"),
        (lambda h, group: h // group * group, "the first head of each 3"),
    ],
)
def test_a_merge_by_the_lse_of_another_head(head: Callable[[Any, int], Any], words: str) -> None:
    made, case = kernel(of=merged(4, by_lse_of(head))), Case(heads=6, kv_heads=2, seqlen=48, head_dim=16)
    (finding,) = measured(run(made(True), case)).findings
    assert f"takes the lse of splits from the wrong place: of {words}" in finding.text


@pytest.mark.parametrize(("head", "text"), [
    (lambda h, kv: h % kv, "h % kv_heads in place of h // group"),
    (lambda h, kv: 0 * h, "head 0 for all"),
    (lambda h, kv: np.minimum(h, kv - 1), "min(h, kv_heads - 1) in place of h // group"),
    (lambda h, kv: (h // 2 + 1) % kv, "the next head"),
])  # fmt: skip
@pytest.mark.parametrize("operands", ["kv", "v"])
def test_scales_of_codes_by_query_head(head: Callable[[Any, int], Any], text: str, operands: str) -> None:
    case = Case(heads=4, kv_heads=2, seqlen=48, head_dim=32, codes="e4m3")

    def attention(
        q: Any, k: Any, v: Any, *, scale_q: Any, scale_k: Any, scale_v: Any, scale: float, causal: bool
    ) -> dict[str, Any]:
        h, read = np.arange(4), {}
        for name, codes, scales in (("q", q, scale_q), ("k", k, scale_k), ("v", v, scale_v)):
            values = np.repeat(FORMATS["e4m3"].values[codes], 4 // codes.shape[1], 1)
            of = h if name == "q" else head(h, 2) if name in operands else h // 2
            read[name] = (values * scales[of][:, None, None]).astype(np.float32)
        out, _ = softmax(read["q"], read["k"], read["v"], scale, causal)
        return {"out": out.astype(np.float32), "contract": TOLD}

    found = diff(run(attention, case))
    scene = Scene.of(found.run)
    wrong = wrong_of(scene, [stage for stage in found.stages if stage.role == "origin"])
    assert wrong
    fits = [x for one in library(["codes"]) if "-of-query-" in one.id and (x := fit(scene, one, wrong))]
    nearest = min(fits, key=lambda one: one.residual).hypothesis.text
    assert nearest == f"codes are decoded with the scale of the wrong kv head: {text} ({', '.join(operands)})"


SUMS = Case(heads=1, seqlen=128, head_dim=32)


def summed_in(dtype: Any, size: int, each: bool = False) -> Callable[..., tuple[Any, Any]]:
    """Online softmax whose row sum is kept in a dtype, tiles of `size` keys; `each`: key by key."""

    def of(q: Any, k: Any, v: Any, scale: float, causal: bool) -> tuple[Any, Any]:
        scores = q @ k.swapaxes(-1, -2) * np.float32(scale)
        top = np.full(scores.shape[:-1], -np.inf, np.float32)
        total, acc = np.zeros_like(top).astype(dtype), np.zeros_like(v)
        for first in range(0, k.shape[2], size):
            tile = scores[..., first : first + size]
            new = np.maximum(top, tile.max(-1))
            p, shrink = np.exp(tile - new[..., None]), np.exp(top - new)
            total = (total.astype(np.float32) * shrink).astype(dtype)
            for part in np.moveaxis(p, -1, 0) if each else [p.sum(-1)]:
                total = (total.astype(np.float32) + part).astype(dtype)
            acc, top = acc * shrink[..., None] + p @ v[:, :, first : first + size], new
        total = total.astype(np.float32)
        return acc / total[..., None], top + np.log(total)

    return of


@pytest.mark.parametrize("lse", [False, True])
@pytest.mark.parametrize(
    ("of", "case", "name"),
    [
        (summed_in(ml_dtypes.bfloat16, 32), SUMS, "bfloat16"),
        (summed_in(ml_dtypes.bfloat16, 128, each=True), SUMS, "bfloat16"),
        (summed_in(np.float16, 16, each=True), SUMS, "float16"),
        (summed_in(ml_dtypes.bfloat16, 64, each=True), SUMS.but(dtype="float16"), "bfloat16"),
    ],
)
def test_sums_of_16_bits_in_whatever_order(
    of: Callable[..., tuple[Any, Any]], case: Case, name: str, lse: bool
) -> None:
    explained = diff(run(kernel(of=of)(lse), case)).explain()
    (cause,) = explained.causes
    assert cause.text == f"row_sum is kept in {name}: rows are divided by {name} values"
    assert cause.stands and cause.trial is not None and cause.trial.of >= 2 and explained.tried == 1


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("keys", [1, 3, 128])
def test_right_sums_are_not_of_16_bits(dtype: str, keys: int) -> None:
    found = diff(run(kernel(out=lambda x: x * np.float32(1.3))(False), SUMS.but(dtype=dtype, seqlen_k=keys)))
    out = found["out"]
    assert found.verdict == "bug" and summed(of_stage(out), Tensors(found.run, out)) == []


def _racing(with_lse: bool) -> Callable[..., Any]:
    """Rows 8 to 11 are other numbers in each run, and rows 16 to 19 are 0 in all."""
    calls = iter(range(1000))

    def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        out, lse = softmax(*(x.astype(np.float32) for x in (q, k, v)), scale, causal)
        out[:, :, 8:12] += np.float32(next(calls) + 1)
        out[:, :, 16:20] = 0
        return (out, lse) if with_lse else out

    return attention


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("lse", [False, True])
def test_what_differs_between_two_runs_is_said_first_and_what_does_not(lse: bool) -> None:
    explained = diff(run(_racing(lse), Case(heads=1, seqlen=24, head_dim=16))).explain(0.02)
    said = str(explained).splitlines()
    assert any(line == explained.unstable for line in said[:2])
    assert "differ in 64 of 384 elements of out, in rows 8-11" in explained.unstable
    assert "64 elements have the same wrong value in both, in rows 16-19" in explained.unstable


def test_it_is_said_beside_sums_of_16_bits_too() -> None:
    calls = iter(range(1000))
    summed_up = summed_in(np.float32, 32)

    def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        out, lse = summed_in(ml_dtypes.bfloat16, 32)(q, k, v, scale, causal)
        right = summed_up(q, k, v, scale, causal)[0]
        out[:, :, 0] = right[:, :, 0] * np.float32(1 + next(calls) % 2 * 1e-6)
        return out, lse

    explained = diff(run(attention, SUMS)).explain(0.02)
    (cause,) = explained.causes
    assert "row_sum is kept in bfloat16" in cause.text
    assert explained.unstable.startswith("two runs on the same inputs differ in ")


def test_of_runs_that_are_alike_nothing_is_said() -> None:
    explained = diff(run(kernel(out=lambda x: 2 * x)(False), Case(heads=1, seqlen=24, head_dim=16))).explain(0.02)
    assert explained.causes and not explained.unstable
