"""Which cases are drawn at random: one table of ranges, and how a case is made of values drawn from them.

Hypothesis draws from it (`strategies.py`), for tests that search and shrink; and a seeded generator (`sample.py`), for
campaigns, whose draws must be independent and the same tomorrow.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from workbench.case.case import Case
from workbench.case.distributions import DISTRIBUTIONS
from workbench.case.fields import ALIGNMENTS, FIELDS
from workbench.cuda.kernel import Kernel
from workbench.cuda.kernels import KERNELS
from workbench.explore.draw import Among, Between, Draw
from workbench.explore.features import EMPTY_ROWS, FEATURES
from workbench.floats import DTYPES
from workbench.refusal import Refusal, unknown


class Build(NamedTuple):
    """What a kernel of ours is compiled for."""

    block_q: int
    block_k: int
    head_dim: Between
    dtype: str


#: few, since each is one compile for every kernel function
BUILDS = (
    Build(16, 16, Between(1, 32), "float32"),
    Build(32, 16, Between(1, 32), "bfloat16"),
    Build(32, 32, Between(65, 128), "float32"),
    Build(64, 64, Between(33, 64), "float32"),
    Build(64, 64, Between(33, 64), "float16"),
)
#: small integers first, what overflows and cancels last
_PLAINEST = ("exact", "exact-ties", "index-coded", "one-hot", "constant-v", "zero-head", "uniform", "normal")
#: what is drawn of a case: its fields, and in the place of heads how many share a kv head, of window its two sides.
#: Lengths are short: a tile has 64 keys at most, so that these have several, ragged ones, and rows without keys.
RANGES: Mapping[str, Between | Among] = {
    "batch": Between(1, 2),
    "kv_heads": Between(1, 2),
    "group": Between(1, 3),
    "seqlen_q": Between(1, 99),
    "seqlen_k": Between(1, 149),
    "head_dim": Between(1, 128),
    "dtype": Among(tuple(DTYPES)),
    "causal": Among((False, True)),
    "causal_alignment": Among(ALIGNMENTS),
    "scale": Among((None, None, None, 1.0, 0.125, 0.3, -0.5)),
    "softcap": Among((None, None, None, 50.0, 5.0)),
    "windowed": Among((False, False, False, True)),
    "left": Between(-1, 64),
    "right": Between(-1, 64),
    "splits": Between(1, 5),
    "codes": Among(("simulated", "e4m3", "e5m2")),
    "distribution": Among((*_PLAINEST, *sorted({*DISTRIBUTIONS} - {*_PLAINEST}))),
    "seed": Between(0, 2**32 - 1),
    "feature": Among((None,)),
}
#: what a foreign function is not told of a case, unless it takes a keyword for it
_UNTOLD: Mapping[str, Any] = {"causal_alignment": ALIGNMENTS[0], "windowed": False, "softcap": None}
#: and of features
_UNTOLD_OF_FEATURES: Mapping[str, Any] = {"alibi_form": "distance", "kv_layout": "NHD"}


#: lengths that are bounds of those of sequences
_BOUNDS = ("batch", "seqlen_q", "seqlen_k")


def drawn(
    draw: Draw,
    kernel: str | None,
    given: Mapping[str, Any],
    *,
    empty_rows: bool,
    usual: Mapping[str, Any] = MappingProxyType({}),
) -> Case:
    """A case of which `draw` gives every value, from the ranges, those of them that `usual` replaces, or from what is
    `given` in their place: fields of a case, `seqlen`, which is both lengths, and names of RANGES. What a feature makes
    of a case stands above ranges, and below what is given; of sequences given lengths are bounds.

    `kernel`: of ours, for which tiles, dtype and head_dim are those of few builds; None: a foreign one, which chooses
    tiles itself, and is told of the mask that it is causal, and no more: unless they are given, there is neither window
    nor softcap, the diagonal ends at the last key, ALiBi counts distances and pages lie as NHD. A distribution that
    does not fit the case becomes normal. Without `empty_rows` lengths of sequences leave each row a key; a mask may
    still leave it none (`has_empty_rows`).
    Refusal for an unknown kernel or name.
    """
    if others := [name for name in given if name not in {*RANGES, *FIELDS, "seqlen"}]:
        raise Refusal(unknown("a random case has no", others[0], dict.fromkeys((*FIELDS, *RANGES))))
    if kernel is not None and kernel not in KERNELS:
        raise Refusal(f"cases are drawn for a built-in kernel ({', '.join(KERNELS)}) or for none; got {kernel!r}")
    ours = None if kernel is None else KERNELS[kernel]
    ranges = {**RANGES, **({} if kernel is not None else _UNTOLD), **usual, **given}

    def one(name: str) -> Any:
        return draw(ranges[name])

    fields: dict[str, Any] = _built(draw, ours, given, ranges) | _heads(draw, given, ranges)
    fields |= {name: one(name) for name in ("batch", "causal", "causal_alignment", "scale", "distribution", "seed")}
    if "seqlen" in given:
        fields["seqlen_q"] = fields["seqlen_k"] = one("seqlen")
    else:
        fields |= {name: one(name) for name in ("seqlen_q", "seqlen_k")}
    if ours is not None and ours.splits:
        fields["splits"] = one("splits")
    if ours is not None and ours.quantised:  # it takes neither softcap nor window
        fields["codes"] = draw(given.get("codes", Among(ours.codes) if ours.codes else RANGES["codes"]))
    else:
        fields["softcap"] = one("softcap")
        windowed = "window" not in given and one("windowed")
        fields["window"] = (one("left"), one("right")) if windowed else draw(given.get("window"))
    if (feature := one("feature")) is not None:
        untold = {} if kernel is not None else _UNTOLD_OF_FEATURES
        made = _feature(feature)(draw, {**fields, EMPTY_ROWS: empty_rows})
        fields |= {name: untold.get(name, x) for name, x in made.items() if name not in given or name in _BOUNDS}
    others = [name for name in given if name in FIELDS and name not in fields]
    fields |= {name: one(name) for name in others}
    try:
        return Case(**fields)
    except Refusal:
        if "distribution" in given:
            raise
        return Case(**fields | {"distribution": "normal"})


def rows_asked(kernel: str | None, empty_rows: bool | None) -> bool:
    """Whether rows that see no key are asked for: of kernels of ours, whose out is 0 and lse -inf there, unless it is
    said otherwise; of others, whose conventions differ, where it is said.
    """
    return kernel is not None if empty_rows is None else empty_rows


def has_empty_rows(case: Case) -> bool:
    """Whether a row of a case sees no key."""
    rows = case.mask().any(axis=-1)
    if case.ragged:
        rows |= ~(np.arange(case.seqlen_q) < case.lengths_q[:, None])[:, None]
    return not bool(rows.all())


def _feature(name: Any) -> Callable[[Draw, dict[str, Any]], dict[str, Any]]:
    if name not in FEATURES:
        raise Refusal(f"feature must be one of {', '.join(FEATURES)}; got {name!r}")
    return FEATURES[name]


def _built(draw: Draw, kernel: Kernel | None, given: Mapping[str, Any], ranges: Mapping[str, Any]) -> dict[str, Any]:
    """dtype and head_dim, of kernels of ours with tiles: of one of BUILDS, as far as these are not `given`."""
    if kernel is None:
        return {name: draw(ranges[name]) for name in ("dtype", "head_dim")}
    fits = [build for build in BUILDS if _fits(build, kernel, given)]
    if not fits:  # a build of its own
        own = {**RANGES, "dtype": Among(kernel.dtypes), **given}
        return {name: draw(own[name]) for name in ("dtype", "head_dim")}
    build: Build = draw(Among(tuple(fits)))
    head_dim: Between | Among = build.head_dim
    if kernel.dims > 1:
        first = -(-build.head_dim.low // kernel.dims) * kernel.dims
        head_dim = Among(tuple(range(first, build.head_dim.high + 1, kernel.dims)))
    fixed = {"block_q": build.block_q, "block_k": build.block_k, "dtype": build.dtype, "head_dim": head_dim}
    return {name: draw(given.get(name, x)) for name, x in fixed.items()}


def _heads(draw: Draw, given: Mapping[str, Any], ranges: Mapping[str, Any]) -> dict[str, Any]:
    """heads and kv_heads, which divide them."""
    if "heads" in given:
        heads = draw(given["heads"])
        divisors = tuple(n for n in range(1, heads + 1) if heads % n == 0)
        return {"heads": heads, "kv_heads": draw(given.get("kv_heads", Among(divisors)))}
    kv_heads, group = (draw(ranges[name]) for name in ("kv_heads", "group"))
    return {"heads": kv_heads * group, "kv_heads": kv_heads}


def _fits(build: Build, kernel: Kernel, given: Mapping[str, Any]) -> bool:
    """Whether a build is one of the kernel with what is given."""
    if any(given.get(name, getattr(build, name)) != getattr(build, name) for name in ("block_q", "block_k")):
        return False
    if isinstance(head_dim := given.get("head_dim"), int) and not build.head_dim.low <= head_dim <= build.head_dim.high:
        return False
    if build.dtype not in kernel.dtypes or min(build.block_q, build.block_k) < kernel.least_block:
        return False
    if kernel.quantised:  # tables of codes leave no room for tiles of 64 rows in static shared memory
        return build.block_q < 64 or kernel.dynamic
    return bool(given.get("dtype", build.dtype) == build.dtype)
