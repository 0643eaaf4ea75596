"""What a script of a wrong run draws and decodes where the kernel takes codes, in NumPy alone."""

from collections.abc import Mapping

import numpy as np

from workbench.case.formats import FORMATS, TILE_ROWS
from workbench.case.stages import INPUTS
from workbench.trace.trace import Trace

#: format -> its table in NumPy
TABLES: Mapping[str, str] = {
    "simulated": "(np.arange(256) - 128) / 127 * 448",
    "e4m3": "floats(4, 3)",
    "e5m2": "floats(5, 2)",
    "nvfp4": "floats(2, 1)",
    "int8": "np.arange(256, dtype=np.uint8).view(np.int8).astype(float)",
    "int4": "np.arange(16.0)",
}
#: dtype of scales -> scales of rng, of a size; no two neighbours are alike for sure, and few are powers of two
SCALES: Mapping[str, str] = {
    "float32": "rng.uniform(0.5, 2.0, {shape})",
    "float8_e8m0fnu": "np.exp2(rng.integers(-2, 3, {shape}))",
    "float8_e4m3fn": "rng.integers(8, 16, {shape}) / 8",
}
#: standard deviations at the largest value
DEVIATIONS = 4
#: the zero point of codes that have one
ZERO = 8


def table(kind: str) -> str:
    """The table of a format, as source."""
    return TABLES[kind.removeprefix("mxfp8-")]


def power(kind: str) -> int:
    """The power of two by which codes of a format stand for more than what they were made of."""
    form = FORMATS[kind]
    largest = ZERO if form.zero else form.largest
    return int(np.round(np.log2(largest / DEVIATIONS)))


def drawn(trace: Trace, shapes: Mapping[str, tuple[int, ...]], narrow: str) -> dict[str, np.ndarray]:
    """What the source of `inputs` draws, by the names of stages."""
    made: dict[str, np.ndarray] = {}
    exec(f"import ml_dtypes\nimport numpy as np\n{inputs(trace, shapes, narrow)}", made)
    case, form = trace.case, FORMATS[str(trace.case.codes)]
    return {name: made[name] for name in INPUTS if name not in case.coded} | {
        f"{kind}_{name}": made[name if kind == "codes" else f"{kind}_{name}"]
        for name in case.coded
        for kind in ("codes", *form.kinds)
    }


def inputs(trace: Trace, shapes: Mapping[str, tuple[int, ...]], narrow: str) -> str:
    """Source that draws q, k and v, codes or numbers (`narrow`), with scale_q and so on, and decodes them in float64 as
    values["q"] and so on.
    """
    case = trace.case
    kind = str(case.codes)
    form, by = FORMATS[kind], 2.0 ** power(kind)
    lines = [
        _TABLE if "floats" in table(kind) else "",
        f"VALUES = {table(kind)}  # what each code of {kind} stands for before its scale",
        f"VALUES[abs(VALUES) > {form.largest}] = np.nan",
        "FINITE = np.flatnonzero(np.isfinite(VALUES))",
        'FINITE = FINITE[np.argsort(VALUES[FINITE], kind="stable")]',
        "MIDDLE = (VALUES[FINITE][1:] + VALUES[FINITE][:-1]) / 2",
        _DECODED,
        f"rng = np.random.default_rng({case.seed})",
        "values = {}",
    ]
    for x in INPUTS:
        lines.append(f"{x} = rng.standard_normal({shapes[x]}, np.float32)")
        if x not in case.coded:
            lines += [f"{x} = {x}.astype({narrow})", f'values["{x}"] = {x}']
            continue
        shape = trace.stages[f"scale_{x}"].shape
        lines += [
            f"{x} = FINITE[np.searchsorted(MIDDLE, {x} * {by}{f' + {ZERO}' if form.zero else ''})].astype(np.uint8)",
            f"scale_{x} = {SCALES[form.scale_dtype].format(shape=shape)}",
        ]
        if case.scale_of == "tile":
            lines.append(f"scale_{x} = scale_{x}[:, :, np.arange({shape[2]}) // {TILE_ROWS} * {TILE_ROWS}]")
        lines.append(f"scale_{x} = (scale_{x}{'' if form.tensor_scale else f' / {by}'}).astype(np.float32)")
        more = [f"scale_{x}"]
        if form.zero:
            lines.append(f"zero_{x} = np.full({shape}, {ZERO}, np.float32)")
            more.append(f"zero=zero_{x}")
        if form.tensor_scale:
            lines.append(f"global_{x} = np.full({shapes[x][1]}, {1 / by}, np.float32)")
            more.append(f"over=global_{x}")
        size = case.head_dim if len(shape) == 1 or shape[3] == 1 else form.block
        lines.append(f'values["{x}"] = decoded({x}, {size}, {", ".join(more)})')
    return "\n".join(["", *lines, ""])


def keywords(trace: Trace) -> list[str]:
    """The names of what the kernel is given beside codes."""
    return [name for name in trace.put_in if name.partition("_")[0] in ("scale", "zero", "global")]


_TABLE = '''
def floats(exponent, mantissa):
    """The numbers of all codes of a sign, an exponent and a mantissa of so many bits; of NaN and infinities others."""
    code, bias = np.arange(2 << exponent + mantissa), (1 << exponent - 1) - 1
    e, m = code >> mantissa & (1 << exponent) - 1, code & (1 << mantissa) - 1
    size = (m + (e > 0) * 2.0**mantissa) * 2.0 ** (np.maximum(e, 1) - bias - mantissa)
    return np.where(code >> exponent + mantissa, -size, size)

'''

_DECODED = '''

def decoded(codes, block, scale, zero=None, over=None):
    """What codes [b, h, row, dim] stand for in float64; scale [h], or [b, h, row, dim / block]."""
    dims = codes.shape[-1]
    wide = (lambda x: x[:, None, None]) if scale.ndim == 1 else lambda x: np.repeat(x, block, -1)[..., :dims]
    found = VALUES[codes] - (0 if zero is None else wide(zero))
    return found * wide(scale.astype(np.float64)) * (1 if over is None else over.astype(np.float64)[:, None, None])

'''
