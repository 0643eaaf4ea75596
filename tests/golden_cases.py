"""The cases of `golden`, and runs of our own kernels on them; each function draws from a generator of its own."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.golden import module
from workbench import Case, Refusal, Trace, run
from workbench.case.distributions import FIXED

Random = np.random.Generator
Made = tuple[Trace, dict[str, Any]]  #: a trace, and the options of its file

LENGTHS = (1, 5, 15, 16, 17, 31, 32, 33, 40, 48, 63, 64, 65, 70)
HEADS = ((1, 1), (2, 2), (2, 1), (4, 2), (3, 1))
#: block_q, block_k and dtype of our kernels: few, since each is compiled
BUILDS = ((16, 16, "float32"), (32, 16, "bfloat16"), (16, 16, "float16"))
DISTRIBUTIONS = (
    *("normal", "normal", "normal", "uniform", "large", "outlier-channels", "near-cancelling", "near-cancelling"),
    *("peaked", "constant-v", "tiny", "zero-head", "one-hot", "exact", "exact-ties", "index-coded"),
)


# ---------------------------------------------------------------------------------------------------------------- cases


def drawn(rng: Random, **fixed: Any) -> dict[str, Any]:
    """Options of a small case, ragged and grouped; with normal inputs where others do not fit it."""
    heads, kv_heads = HEADS[rng.integers(len(HEADS))]
    lengths = [int(rng.choice(LENGTHS)) if rng.random() < 0.5 else int(rng.integers(1, 71)) for _ in range(2)]
    if rng.random() < 0.5:
        lengths[0] = lengths[1]
    options = {
        "batch": int(rng.integers(1, 3)),
        "heads": heads,
        "kv_heads": kv_heads,
        "seqlen_q": lengths[0],
        "seqlen_k": lengths[1],
        "head_dim": int(rng.choice((3, 8, 16, 17, 24))),
        "dtype": str(rng.choice(("float32", "float16", "bfloat16"))),
        "causal": bool(rng.random() < 0.5),
        "causal_alignment": str(rng.choice(("bottom-right", "bottom-right", "top-left"))),
        "distribution": str(rng.choice(DISTRIBUTIONS)),
        "seed": int(rng.integers(2**31)),
    }
    if rng.random() < 0.2:
        options["scale"] = float(rng.choice((1.0, 0.3, 0.125)))
    if options["distribution"] not in FIXED:
        options["input_std"] = float(rng.choice((0.1, 1.0, 1.0, 4.0)))
    options |= fixed
    try:
        Case(**options)
    except Refusal:
        options |= {"distribution": "normal"}
    return options


def of_build(rng: Random, kernel: str) -> dict[str, Any]:
    block_q, block_k, dtype = BUILDS[rng.integers(len(BUILDS))]
    fixed: dict[str, Any] = {"block_q": block_q, "block_k": block_k, "dtype": dtype}
    if kernel == "split_k":
        fixed["splits"] = int(rng.integers(1, 5))
    if dtype != "float32" and rng.random() < 0.5:
        fixed["probs_dtype"] = dtype
    return drawn(rng, **fixed)


def masks(rng: Random, case: Case) -> dict[str, np.ndarray]:
    """q, k and v of a case with a mask, a bias, or both; of two axes or four."""
    found = dict(zip("qkv", case.inputs(), strict=True))
    dims = (case.batch, case.heads, case.seqlen_q, case.seqlen_k)[2 * int(rng.integers(2)) :]
    which = rng.integers(3)
    if which != 1:
        found["mask"] = rng.random(dims) < rng.choice((0.2, 0.7))
    if which != 0:
        bias = rng.standard_normal(dims).astype(np.float32) * np.float32(rng.choice((0.5, 10)))
        found["bias"] = np.where(rng.random(dims) < 0.1, np.float32(-np.inf), bias) if rng.random() < 0.4 else bias
    return found


# --------------------------------------------------------------------------------------------------------- our kernels


def of_kernel(rng: Random, kernel: str, options: Mapping[str, Any], **more: Any) -> Made:
    return run(kernel, Case(**options), backend="emulator", **more), {}


def flash(rng: Random) -> Made:
    return of_kernel(rng, "flash", of_build(rng, "flash"))


def split_k(rng: Random) -> Made:
    return of_kernel(rng, "split_k", of_build(rng, "split_k"))


def faulty(rng: Random) -> Made:
    return _with_fault(rng, ("flash", "split_k"))


def _codes(rng: Random, **fixed: Any) -> dict[str, Any]:
    words = {
        "codes": ("simulated", "e4m3", "e5m2"),
        "scores": ("mma", "scalar"),
        "decode": ("table", "direct"),
        "quantiser_scale": ("dynamic", "static"),
    }
    fixed = {name: str(rng.choice(some)) for name, some in words.items()} | fixed
    fixed = {"head_dim": 16, "dtype": "float32", "probs_dtype": str(rng.choice(("float16", "float32")))} | fixed
    return drawn(rng, **fixed)


def fp8(rng: Random) -> Made:
    return of_kernel(rng, "fp8", _codes(rng))


def fp8_faulty(rng: Random) -> Made:
    return _with_fault(rng, ("fp8",))


def _with_fault(rng: Random, kernels: tuple[str, ...]) -> Made:
    catalogue = module("workbench.cuda.faults.catalogue", "workbench.cuda.faults.catalogue").CATALOGUE
    some = [one for one in catalogue.values() if one.kernel in kernels and (one.stages or one.biased)]
    fault = some[rng.integers(len(some))]
    if fault.kernel == "fp8":
        options = _codes(rng, heads=4, kv_heads=2)
    else:
        options = drawn(rng, block_q=32, block_k=32, dtype="float32")
    options |= {"seqlen_q": int(rng.integers(40, 71)), "seqlen_k": int(rng.integers(33, 71))}
    if fault.kernel == "split_k":
        options["splits"] = int(rng.integers(2, 5))
    return of_kernel(rng, fault.kernel, options | dict(fault.needs), faults=[fault.id])


def fed(rng: Random) -> Made:
    """Stages that were put in: partial results, or codes and scales."""
    if rng.random() < 0.4:
        names = [f"{what}_{x}" for what in ("codes", "scale") for x in "qkv"]
        return of_kernel(rng, "fp8", _codes(rng), feed=dict.fromkeys(names, "reference"))
    feed = dict.fromkeys(("partial_O", "partial_max", "partial_sum"), "reference")
    if rng.random() < 0.5:
        return of_kernel(rng, "split_k", of_build(rng, "split_k"), feed=feed)
    return run(_reduce, Case(**drawn(rng, block_k=16, splits=int(rng.integers(2, 5)))), feed=feed), {}


def _reduce(partial_O: Any, partial_max: Any, partial_sum: Any, *, scale: float, causal: bool) -> dict[str, Any]:
    """What merges the splits of a foreign kernel, in float32."""
    with np.errstate(all="ignore"):
        top = partial_max.max(2)
        weight = np.exp(partial_max - np.where(top == -np.inf, np.float32(0), top)[:, :, None])
        total = (weight * partial_sum).sum(2)
        out = (weight[..., None] * partial_O).sum(2) / np.where(total == 0, np.float32(1), total)[..., None]
        return {"out": out, "lse": np.where(total == 0, np.float32(-np.inf), top + np.log(total)).astype(np.float32)}
