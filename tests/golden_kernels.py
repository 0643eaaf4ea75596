"""The foreign kernels of `golden`, with contracts declared in full, in part, by a preset or not at all."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.golden import module
from tests.golden_cases import Made, Random, drawn, masks
from workbench import Case, run

PRESETS = ("triton", "flash-attention-2", "torch-eager", "torch-sdpa")
#: what `tests.numpy_kernels` does, unless a style says otherwise
PLAIN: Mapping[str, Any] = {
    "scores_dtype": "float32",
    "probs_dtype": "float32",
    "partials_dtype": "float32",
    "row_sum_of_cast": False,
    "accumulation": "nearest",
    "exp_ulps": 1.0,
    "exp_ulps_per_x": 1.2,
    "exp_flushes": False,
    "exp_argument": "difference",
    "normalisation": "division",
    "fast_math": False,
    "out_rounding": "nearest",
}
#: fields without which a dump means something else
UNITS = ("block_k", "splits", "split_bounds", "tile_order", "base2", "scores_scaled", "mask_sentinel", "row_max")


# ----------------------------------------------------------------------------------------------------- foreign kernels


def styled(rng: Random, case: Case) -> tuple[Any, dict[str, Any]]:
    """A kernel of `tests.numpy_kernels` with some of its choices, and the contract that declares them."""
    kernels = module("tests.numpy_kernels")
    block_k = int(rng.choice((8, 16, 32)))
    tiles = -(-case.seqlen_k // block_k)
    choices: dict[str, Any] = {"block_k": block_k}
    said: dict[str, Any] = {**PLAIN, "block_k": block_k}

    def choose(share: float, choice: Mapping[str, Any], declared: Mapping[str, Any]) -> None:
        if rng.random() < share:
            choices.update(choice)
            said.update(declared)

    splits, middle = int(rng.integers(2, 5)), int(rng.integers(0, case.seqlen_k + 1))
    choose(0.35, {"splits": splits}, {"splits": splits})
    if "splits" not in choices:
        bounds = (0, middle, case.seqlen_k)
        choose(0.2, {"split_bounds": bounds}, {"split_bounds": bounds})
    if "split_bounds" not in choices:
        order = "descending" if rng.random() < 0.6 else tuple(int(t) for t in rng.permutation(tiles))
        choose(0.25, {"tile_order": order}, {"tile_order": order})
    choose(0.2, {"units": "log2"}, {"base2": True})
    if "units" not in choices:
        choose(0.25, {"units": "raw"}, {"scores_scaled": False})
    choose(0.3, {"exp_argument": "fma"}, {"exp_argument": "fma"})
    narrow = str(rng.choice(("bfloat16", "float16")))
    choose(0.4, {"probs_dtype": narrow}, {"probs_dtype": narrow, "probs_rounding": "nearest"})
    choose(0.3, {"row_sum_of_cast": True}, {"row_sum_of_cast": True})
    choose(0.15, {"sentinel": -1e6}, {"mask_sentinel": -1e6})
    choose(0.15, {"skips": True}, {"skips_masked_tiles": True})
    choose(0.1, {"floor": -40.0}, {"exp_floor": -40.0})
    choose(0.1, {"maximum": _raised}, {"row_max": "any"})
    if "maximum" not in choices:
        choose(0.1, {"maximum": _above}, {"row_max": "upper_bound"})
    choose(0.15, {"normalisation": "lse"}, {"normalisation": "lse"})
    choose(0.1, {"exp2": kernels.cubic_exp2}, {"exp_ulps": 1500.0})
    choose(0.1, {"scale_q": narrow}, {"scaled_q_dtype": narrow})
    products, declared = [
        ({"qk": f, "pv": f}, said_)
        for f, said_ in (
            (kernels.accumulated("bfloat16", fused=False, block=4), {"accumulator_dtype": "bfloat16"}),
            (kernels.accumulated("float16", fused=True), {"accumulator_dtype": "float16"}),
            (kernels.on_tf32(1), {"input_precision": "tf32"}),
            (kernels.on_tf32(3), {"input_precision": "tf32x3"}),
        )
    ][rng.integers(4)]
    choose(0.25, products, declared)
    return kernels.Style(**choices), said


def _raised(previous: Any, top: Any) -> Any:
    return np.where(top == -np.inf, np.float32(4), top + np.float32(3.3))


def _above(previous: Any, top: Any) -> Any:
    return np.maximum(previous, np.where(top == -np.inf, top, np.ceil(top)))


def numpy_kernel(rng: Random) -> Made:
    """A kernel in NumPy whose contract is declared in full, in part, by a preset, or not at all."""
    case = Case(**drawn(rng, causal_alignment="bottom-right"))
    style, said = styled(rng, case)
    level = str(rng.choice(("full", "full", "part", "preset", "nothing")))
    more: dict[str, Any] = {}
    units = {name: x for name, x in said.items() if name in UNITS}
    if level == "part":
        said = units | {name: x for name, x in said.items() if rng.random() < 0.5}
    if level == "preset":
        dropped = {"tile_order", "skips_masked_tiles", "base2", "scores_scaled", "mask_sentinel"}
        own = {name: x for name, x in units.items() if name not in dropped and name != "split_bounds"}
        text = ",".join(f"{name}={x}" for name, x in own.items())
        more["contract"] = f"{rng.choice(PRESETS)},{text}"
    if level in ("preset", "nothing"):
        said = {}
    names = (None, None, ("out", "lse"), ("scores", "row_max", "row_sum", "acc", "out", "lse"))[rng.integers(4)]
    kernel = module("tests.numpy_kernels").kernel(style, said, names)
    return run(kernel, case, **more), {"bare": bool(rng.random() < 0.4)}


def sparse(rng: Random) -> Made:
    """A kernel in NumPy that gives some elements of some stages alone."""
    case = Case(**drawn(rng, causal_alignment="bottom-right"))
    style, said = styled(rng, case)
    kernel = module("tests.numpy_kernels").kernel(style, said)

    def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> dict[str, Any]:
        found = kernel(q, k, v, scale=scale, causal=causal)
        own = np.random.default_rng(case.seed)
        for name, x in found.items():
            if isinstance(x, np.ndarray) and own.random() < 0.5:
                flat = own.choice(x.size, min(x.size, 30), replace=False)
                at = np.stack(np.unravel_index(flat, x.shape), 1)
                found[name] = {"indices": at, "values": x[tuple(at.T)].astype(np.float32)}
        return dict(found)

    return run(attention, case), {}


def masked(rng: Random) -> Made:
    """A kernel in NumPy that is given a mask, a bias, or both."""
    case = Case(**drawn(rng, causal_alignment="bottom-right"))
    block_k = int(rng.choice((8, 16, 32)))
    said = {**PLAIN, "block_k": block_k, "exp_ulps": 4.0}
    if (level := rng.integers(3)) > 0:
        said = {name: x for name, x in said.items() if level == 1 and (name == "block_k" or rng.random() < 0.5)}

    def attention(q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, **of_case: Any) -> dict[str, Any]:
        return _online(q, k, v, mask, bias, block_k, **of_case) | {"contract": said}

    return run(attention, case, inputs=masks(rng, case)), {"bare": bool(rng.random() < 0.3)}


@np.errstate(all="ignore")
def _online(
    q: Any, k: Any, v: Any, mask: Any, bias: Any, block_k: int, *, scale: float, causal: bool
) -> dict[str, Any]:
    """Every stage of a flash kernel in float32 with a mask and a bias."""
    dtype, group = q.dtype, q.shape[1] // k.shape[1]
    q, k, v = (x.astype(np.float32) for x in (q, np.repeat(k, group, 1), np.repeat(v, group, 1)))
    qk = q @ k.swapaxes(-1, -2)
    visible = np.ones(qk.shape, bool) if mask is None else np.broadcast_to(mask, qk.shape)
    if causal:
        visible = visible & np.tril(np.ones(qk.shape[2:], bool), qk.shape[3] - qk.shape[2])
    scores = qk * np.float32(scale)
    scores = np.where(visible, scores if bias is None else scores + bias, np.float32(-np.inf)).astype(np.float32)
    m, l, acc = np.full(qk.shape[:3], -np.inf, np.float32), np.zeros(qk.shape[:3], np.float32), np.zeros_like(q)
    probs, tiles = np.zeros_like(scores), []
    for first in range(0, qk.shape[3], block_k):
        keys = slice(first, first + block_k)
        new = np.maximum(m, scores[..., keys].max(-1))
        safe = np.where(new == -np.inf, np.float32(0), new)
        correction = np.exp(m - safe)
        p = probs[..., keys] = np.exp(scores[..., keys] - safe[..., None])
        m, l, acc = new, correction * l + p.sum(-1), correction[..., None] * acc + p @ v[:, :, keys]
        tiles.append((m, correction, l, acc))
    names = ("row_max", "correction", "row_sum", "acc")
    found = {name: np.stack(x, 3) for name, x in zip(names, zip(*tiles, strict=True), strict=True)}
    empty = l == 0
    out = np.where(empty[..., None], np.float32(0), acc / np.where(empty, np.float32(1), l)[..., None]).astype(dtype)
    lse = np.where(empty, np.float32(-np.inf), m + np.log(l)).astype(np.float32)
    return found | {"qk": qk, "scores": scores, "probs": probs, "probs_cast": probs, "out": out, "lse": lse}


def correct_style(rng: Random) -> Made:
    """A kernel of the bench's own, which says of its contract all, its units, or nothing."""
    styles = module("campaigns.styles", "workbench.bench.styles")
    while True:
        style = styles.CORRECT[rng.integers(len(styles.CORRECT))]
        options = drawn(rng, dtype=str(rng.choice(style.dtypes)), causal_alignment="bottom-right")
        if style.fits(options | {"input_std": options.get("input_std", 1.0)}):
            break
    level = str(rng.choice(("full", "full", "units", "silent")))
    return run(styles.declared(style, level), Case(**options)), {"bare": bool(rng.random() < 0.4)}


def faulty_style(rng: Random) -> Made:
    styles = module("campaigns.styles", "workbench.bench.styles")
    while True:
        fault = styles.FAULTY[rng.integers(len(styles.FAULTY))]
        options = drawn(rng, dtype=str(rng.choice(fault.dtypes)), causal_alignment="bottom-right")
        if fault.hits(options | {"input_std": options.get("input_std", 1.0)}):
            return run(fault.function, Case(**options)), {}


def foreign_codes(rng: Random) -> Made:
    """A foreign kernel on codes: it is given them or makes them; of a format that is known or not."""
    foreign = module("tests.foreign.test_codes", "tests.test_foreign_codes")
    kind = str(rng.choice(foreign.KINDS))
    names = [name for name in ("dequant_q", "dequant_k", "dequant_v", "scores") if rng.random() < 0.5] + ["out"]
    faults = [{}, {}, {"v_by": 1.02}, {"scale_by": 1.5}][rng.integers(4)]
    fixed = {"heads": 4, "kv_heads": 2, "causal": False, "dtype": "float32"}
    if rng.random() < 0.5:
        dtype = (np.float16, np.float32)[rng.integers(2)]
        said = foreign.DECLARED | {"operands_dtype": np.dtype(dtype).name} if rng.random() < 0.5 else None
        kernel = foreign.given_codes(kind, *names, dtype=dtype, contract=said, **faults)
    else:
        made = [f"{what}_{x}" for what in ("codes", "scale") for x in "qkv"]
        names = [*(name for name in made if rng.random() < 0.7), *names]
        kernel = foreign.given_floats(kind, *names, **faults)
        if rng.random() < 0.4:  # nobody tells the format
            return run(kernel, Case(**drawn(rng, **fixed))), {}
    return run(kernel, Case(**drawn(rng, **fixed, codes=kind))), {}
