"""Strategies of hypothesis: cases, tensors of a case, and values that break kernels.

They shrink to one head, short lengths, small tiles, no mask and small integers.
"""

from typing import Any

import ml_dtypes
import numpy as np

from workbench.case.case import Case
from workbench.case.distributions import shapes
from workbench.case.stages import INPUTS
from workbench.explore.draw import Among, Between
from workbench.explore.ranges import drawn, has_empty_rows, rows_asked
from workbench.extras import needed
from workbench.floats import DTYPES, round_to
from workbench.refusal import Refusal

with needed("workbench.testing.cases, tensors and awkward_values need", "hypothesis"):
    from hypothesis import assume
    from hypothesis import strategies as st

#: how rows of q, k and v are made of few values: the plainest first
_PATTERNS = ("alike", "scattered", "one hot", "cancelling", "outlier channels")
#: values that an array is made of, at most
_PALETTE = 4


@st.composite
def cases(draw: st.DrawFn, kernel: str | None = None, *, empty_rows: bool | None = None, **given: Any) -> Case:
    """Cases of any shape, mask, scale and distribution.

    `kernel`: one of ours, whose tiles and splits are drawn too, from few builds; None for a function of yours, which is
    told `causal` and no more of the mask: windows and softcaps are drawn where they are asked for
    (`windowed=st.booleans()`), and `causal_alignment="top-left"` is for one whose diagonal begins at the first key.
    `given`: fields of a case, each a value or a strategy, in place of what is drawn (`ranges.RANGES`); `group`, query
    heads that share a kv head, is 1 to 3; `feature`, one of `features.FEATURES` (sinks, alibi, dropout, packed, paged
    and others), is none unless it is given. Among the cases are lengths of 1, ragged tiles, scores that overflow, and
    sums that cancel; rows that see no key of kernels of ours, and with `empty_rows` of others. `workbench accept` draws
    the same.

    >>> from hypothesis import given, settings
    >>> from hypothesis import strategies as st
    >>> from workbench.testing import assert_attention
    >>> @settings(max_examples=3, database=None)
    ... @given(cases(dtype="float32", seqlen=st.integers(1, 20)))
    ... def test_attention(case):
    ...     assert_attention("examples/numpy_attention.py:attention", case)
    >>> test_attention()
    """

    def one(range_: Any) -> Any:
        if isinstance(range_, Between):
            return draw(st.integers(range_.low, range_.high))
        if isinstance(range_, Among):
            return draw(st.sampled_from(range_.values))
        return draw(range_) if isinstance(range_, st.SearchStrategy) else range_

    asked = rows_asked(kernel, empty_rows)
    case = drawn(one, kernel, given, empty_rows=asked)
    assume(asked or not has_empty_rows(case))
    return case


def awkward_values(dtype: str) -> st.SearchStrategy[float]:
    """Finite numbers of a dtype (float32, float16, bfloat16) on which kernels break, as floats: zeros of either sign,
    small integers, powers of two, subnormals, numbers near the largest, and outliers of 20 to 2000.

    >>> from hypothesis import find
    >>> find(awkward_values("float16"), lambda x: x > 60000)
    65504.0
    """
    if dtype not in DTYPES:
        raise Refusal(f"dtype must be one of {', '.join(DTYPES)}; got {dtype!r}")
    info = ml_dtypes.finfo(DTYPES[dtype])
    least, low, high = (int(np.log2(float(x))) for x in (info.smallest_subnormal, info.tiny, info.max))
    spacing = 2.0 ** (high - info.nmant)
    sizes = st.one_of(
        st.integers(0, 8).map(float),
        st.integers(low, high).map(lambda e: 2.0**e),
        st.integers(20, 2000).map(lambda n: float(round_to(n, DTYPES[dtype]))),
        st.integers(1, 2 ** (low - least) - 1).map(lambda n: n * 2.0**least),
        st.integers(0, 8).map(lambda n: float(info.max) - n * spacing),
    )
    return st.tuples(sizes, st.sampled_from((1.0, -1.0))).map(lambda pair: pair[0] * pair[1])


@st.composite
def tensors(draw: st.DrawFn, case: Case, values: st.SearchStrategy[float] | None = None) -> dict[str, np.ndarray]:
    """q, k and v of a case by name, in its shapes and dtype, made of at most four `values` each, awkward ones where
    none are given: all rows alike (equal scores), scattered, one hot, of sums that cancel, and with outlier channels. v
    is a part of k where it is one in the case.

    For `workbench.run(kernel, case, inputs=...)` and `assert_attention(kernel, case, inputs=...)`.

    >>> from hypothesis import given, settings
    >>> from hypothesis import strategies as st
    >>> from workbench.testing import assert_attention
    >>> case = Case(seqlen=3, head_dim=2)
    >>> @settings(max_examples=3, database=None)
    ... @given(tensors(case, st.sampled_from([0.0, 0.5, 8.0])))
    ... def test_attention(inputs):
    ...     assert_attention("examples/numpy_attention.py:attention", case, inputs=inputs)
    >>> test_attention()
    """
    values = awkward_values(case.dtype) if values is None else values
    dtype = DTYPES[case.dtype]
    found = {}
    for name, shape in zip(INPUTS, shapes(case), strict=True):
        palette = np.array(draw(st.lists(values, min_size=1, max_size=_PALETTE)))
        pattern, seed = draw(st.sampled_from(_PATTERNS)), draw(st.integers(0, 2**32 - 1))
        largest = float(ml_dtypes.finfo(dtype).max)
        made = np.clip(_made(pattern, palette, shape, np.random.default_rng(seed)), -largest, largest)
        found[name] = made.astype(np.float32).astype(dtype)
    return found | ({"v": found["k"][..., : case.head_dim_v]} if case.shared_kv else {})


def _made(pattern: str, palette: np.ndarray, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    """An array of float64 [b, h, rows, dims] of a pattern."""
    rows, dims = np.arange(shape[2])[:, None], np.arange(shape[3])
    if pattern == "alike":
        return np.broadcast_to(palette[random.integers(len(palette), size=shape[3])], shape)
    scattered = palette[random.integers(len(palette), size=shape)]
    if pattern == "one hot":
        return np.where(dims == rows % shape[3], scattered, 0.0)
    if pattern == "cancelling":  # neighbours, over rows and over dims
        return np.where((rows + dims) % 2 == 0, 1.0, -1.0) * palette[0] + 2.0**-7 * scattered
    return scattered * np.where(dims % 16 == 0, 20.0, 1.0) if pattern == "outlier channels" else scattered
