"""Calls whose masks are told as a boolean, as -inf, or as finite numbers: the style changes no verdict."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench import capture, diff, load
from workbench.explore.capturing.judging import EACH, FIRST
from workbench.judge.explain.fit import fit
from workbench.judge.explain.library import FAMILIES
from workbench.judge.explain.scene import Scene

torch = pytest.importorskip("torch", reason="torch is not installed")
SHAPE = (2, 2, 20, 16)
LEFT = 5
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
STYLES: dict[str, Callable[[Any], float | None]] = {
    "boolean": lambda dtype: None,
    "-inf": lambda dtype: -math.inf,
    "least": lambda dtype: torch.finfo(dtype).min,
    "-1e9": lambda dtype: max(-1e9, torch.finfo(dtype).min),
    "-1e4": lambda dtype: -1e4,
}


def seen(left: int = LEFT, window: int | None = None) -> Any:
    """Causal, in a window, and behind the padding of the second sequence."""
    rows, keys = torch.arange(SHAPE[2])[:, None], torch.arange(SHAPE[2])
    band = (keys <= rows) & (True if window is None else keys > rows - window)
    return band & (keys >= torch.tensor([0, left])[:, None, None, None])


def eager(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """transformers' eager attention, which takes numbers; of a boolean it makes its own."""
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=q.dtype).masked_fill(~mask, torch.finfo(q.dtype).min)
    return torch.softmax(q @ k.mT * 0.25 + mask, -1, dtype=torch.float32).to(q.dtype) @ v


def garbled(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """Right, but for rows that see no key."""
    out = eager(q, k, v, mask)
    out[1, :, :LEFT] = 3 * v[1, :, :LEFT]
    return out


def shifted(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return eager(q, k, v, mask.roll(-1, -1))


def of_first(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return eager(q, k, v, mask[:1].expand_as(mask))


def one_wrong(q: Any, k: Any, v: Any, mask: Any) -> Any:
    out = eager(q, k, v, mask)
    out[1, 0, 12, 3] += 0.5
    return out


#: what is run of all styles and dtypes without a campaign
QUICK = (("boolean", "float32"), ("-1e9", "float32"), ("least", "bfloat16"))
FAULTS = (shifted, of_first, one_wrong, garbled)


def spec(q: Any, k: Any, v: Any, mask: Any) -> dict[str, Any]:
    return {"q": q, "k": k, "v": v, "mask": mask, "scale": 0.25}


def watched(how: Any, folder: Path, dtype: str, asked: Callable[..., Any] = spec, *given: Any, **options: Any) -> Any:
    """The report of one call."""
    made = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(SHAPE, generator=made).to(DTYPES[dtype]) for _ in range(3))
    with capture(how, folder, spec=asked, **options) as c:
        c.function(q, k, v, *given)
    return c.report


def told(style: str, dtype: str) -> Any:
    """The mask of a call."""
    low = STYLES[style](DTYPES[dtype])
    return seen() if low is None else torch.zeros(seen().shape, dtype=DTYPES[dtype]).masked_fill(~seen(), low)


@pytest.mark.parametrize(("style", "dtype"), [
    *(pytest.param(style, dtype, marks=() if (style, dtype) in QUICK else pytest.mark.campaign)
      for dtype in DTYPES for style in STYLES),
])  # fmt: skip
def test_no_style_of_a_mask_hides_a_wrong_call(style: str, dtype: str, tmp_path: Path) -> None:
    """Rows without keys are right as libraries make them, and are not what is shown of a call that is wrong elsewhere;
    `diff` of what was kept says the same.
    """
    mask = told(style, dtype)
    right = watched(eager, tmp_path / "right", dtype, spec, mask, keep="all")
    assert (right.judged, right.wrong, right.verdict) == (1, 0, "rounding")
    assert diff(load(tmp_path / "right" / EACH.format(0))).verdict == right.worst.verdict
    for how in FAULTS:
        found = watched(how, tmp_path / how.__name__, dtype, spec, mask)
        assert (found.judged, found.wrong, found.verdict) == (1, 1, "bug"), how.__name__
        assert found.target.endswith(how.__name__) and load(tmp_path / how.__name__ / FIRST).target == found.target
        without_keys = found.kept.element["index"]["b"] == 1 and found.kept.element["index"]["q"] < LEFT
        assert without_keys == (how is garbled)
        assert diff(load(tmp_path / how.__name__ / FIRST)).verdict == "bug"


@pytest.mark.parametrize(
    "dtype", ["bfloat16", *(pytest.param(x, marks=pytest.mark.campaign) for x in DTYPES if x != "bfloat16")]
)
def test_a_position_bias_is_judged_beside_a_mask_of_numbers(dtype: str, tmp_path: Path) -> None:
    """T5's, as one tensor or as two: left out, it is missed."""
    position = torch.randn((1, 2, 20, 20), generator=torch.Generator().manual_seed(2)).to(DTYPES[dtype])
    mask = told("least", dtype)

    def asked(q: Any, k: Any, v: Any, *added: Any) -> dict[str, Any]:
        beside = dict(zip(("mask", "bias"), added, strict=True)) if len(added) == 2 else {"bias": added[0]}
        return {"q": q, "k": k, "v": v, "scale": 0.25, **beside}

    def t5(q: Any, k: Any, v: Any, *added: Any) -> Any:
        return eager(q, k, v, sum(reversed(added)))

    def without(q: Any, k: Any, v: Any, *added: Any) -> Any:
        return eager(q, k, v, mask)

    for n, given in enumerate(((mask, position), (mask + position,))):
        assert watched(t5, tmp_path / f"right{n}", dtype, asked, *given, contract="torch-eager").verdict == "rounding"
        assert watched(without, tmp_path / f"wrong{n}", dtype, asked, *given).verdict == "bug"


@pytest.mark.parametrize(
    "style", ["least", *(pytest.param(x, marks=pytest.mark.campaign) for x in ("boolean", "fields"))]
)
def test_a_window_that_is_too_long_is_named_beside_padding(style: str, tmp_path: Path) -> None:
    """As the case has a window and padding of its own, whichever way these were told."""
    low = torch.finfo(torch.float32).min
    masks = {
        "boolean": {"mask": seen(window=6)},
        "least": {"bias": torch.zeros(2, 1, 20, 20).masked_fill(~seen(window=6), low)},
        "fields": {"causal": True, "window": (5, 0), "mask": seen()[:, :, -1:]},
    }
    asked = lambda q, k, v: {"q": q, "k": k, "v": v, "scale": 0.25, **masks[style]}  # noqa: E731
    longer = lambda q, k, v: eager(q, k, v, seen(window=7))  # noqa: E731
    assert watched(longer, tmp_path, "float32", asked).verdict == "bug"
    judged = diff(load(tmp_path / FIRST))
    case = judged.trace.case
    assert case.causal and case.window == (5, 0)
    assert judged.trace.inputs["mask"].shape[2:] == (1, 20)
    scene = Scene.of(judged.run)
    wrong = {"out": judged["out"].decisive.outside}
    assert not wrong["out"][1, :, :LEFT].any() and wrong["out"][1].any()
    fits = [one.id for one in FAMILIES["bias"]() if "left" in one.id and fit(scene, one, wrong) is not None]
    assert fits == ["bias.beside-mask-left-+1"]


def test_gradients_of_rows_without_keys_are_no_verdict(tmp_path: Path) -> None:
    q, k, v = (torch.randn(SHAPE, requires_grad=True) for _ in range(3))
    with capture(eager, tmp_path, spec=spec) as c:
        c.function(q, k, v, seen()).square().sum().backward()
    assert c.report.gradients == 0 and c.report.verdict == "rounding"
    assert c.report.unread == {"gradients of empty rows, which kernels define differently": 1}


def test_what_numbers_make_of_a_row_is_held_against_them(tmp_path: Path) -> None:
    """-1e4 in float32 keeps the scores of a row that it hides whole; the mean, 0 and NaN are right there, too."""
    mask = told("-1e4", "float32")
    own = lambda q, k, v, mask: torch.softmax(q @ k.mT * 0.25 + mask, -1) @ v  # noqa: E731
    for n, value in enumerate((None, 0.0, math.nan, "mean", 0.01)):

        def how(q: Any, k: Any, v: Any, mask: Any, value: Any = value) -> Any:
            out = own(q, k, v, mask)
            out[1, :, :LEFT] = (
                out[1, :, :LEFT] if value is None else v[1].mean(-2, keepdim=True) if value == "mean" else value
            )
            return out

        found = watched(how, tmp_path / str(n), "float32", spec, mask)
        assert found.verdict == ("bug" if value == 0.01 else "rounding"), value
        if value == 0.01:
            assert np.isfinite(found.kept.over_budget)


@pytest.mark.parametrize("style", ["boolean", "least"])
def test_rows_without_keys_have_no_lse(style: str, tmp_path: Path) -> None:
    """torch's flash attention on a CPU gives 0 there, which its caller does not read."""
    q, k, v = (torch.randn(SHAPE, generator=torch.Generator().manual_seed(n)) for n in range(3))
    with capture(torch.ops.aten.scaled_dot_product_attention, tmp_path) as c:
        torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=told(style, "float32"))
    assert (c.report.judged, c.report.verdict) == (1, "rounding")
