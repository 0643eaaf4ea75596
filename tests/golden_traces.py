"""The traces of `golden`: random runs, each from a seed of its own, as they are seen: whole, in part, printed, spoilt.

Run in the tree from which the traces are to come, whose modules and tests this reads.
"""

import json
import struct
import sys
from collections.abc import Callable, Mapping
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tests import golden_cases as ours
from tests import golden_kernels as foreign
from tests.golden import OPTIONS, module
from tests.golden_cases import Made, Random
from workbench import Case, Refusal, Trace, run, save
from workbench.trace.narrow import narrowed

SEED = 15
#: fields of a contract -> values that any kernel may say, true or not
_NARROW, _ROUNDINGS = ("float32", "bfloat16", "float16"), ("nearest", "toward-zero", "any")
CHOICES: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("scores_dtype", "partials_dtype", "out_dtype", "operands_dtype"), _NARROW),
    **dict.fromkeys(("accumulator_dtype", "scaled_q_dtype"), _NARROW),
    "probs_dtype": (*_NARROW, "float8_e4m3fn", "float8_e5m2"),
    **dict.fromkeys(("probs_rounding", "partials_rounding", "out_rounding"), _ROUNDINGS),
    **dict.fromkeys(("row_sum_of_cast", "probs_normalised"), (True, False, None)),
    **dict.fromkeys(("exp_flushes", "fast_math", "base2", "scores_scaled", "saturates"), (True, False)),
    "skips_masked_tiles": (True, False),
    "accumulation": ("nearest", "tensor-core", "any"),
    "acc_accumulation": ("nearest", "tensor-core", "any", None),
    "mma_block": (4, 8, 16, 32),
    "mma_extra_bits": (-10, 0, 1, 2, 9),
    "input_precision": ("ieee", "tf32", "tf32x3"),
    "exp_ulps": (0.5, 1.0, 2.5, 1500.0),
    "exp_ulps_per_x": (0.0, 1.173, 2.0),
    "exp_floor": (None, -20.0, -126.0),
    "exp_argument": ("difference", "fma", "any"),
    "row_max": ("running", "upper_bound", "any"),
    "normalisation": ("division", "lse", "any"),
    "tile_order": ("ascending", "descending"),
    "mask_sentinel": (-np.inf, -1e4, -1e6),
    "empty_out": (0.0, float("nan")),
    "empty_lse": (-np.inf, np.inf, 0.0),
}
FORMATS = ("%f", "%g", "%e", "%a", "%.9g", "%.3g", "%.12f")


def draw(folder: Path, count: int) -> None:
    """Write `count` traces into an empty folder, the same each time."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise SystemExit(f"{folder} is not empty")
    plan = [recipe for recipe, times in RECIPES.items() for _ in range(times)]
    order = np.random.default_rng(SEED).permutation(len(plan))
    with chdir(folder):
        for i in range(count):
            recipe = plan[order[i % len(plan)]]
            name = f"{i:03d}-{recipe.__name__.strip('_').replace('_', '-')}"
            _written(name, recipe, np.random.default_rng((SEED, i)))
            print(f"\r{i + 1} of {count} {name:50}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def _written(name: str, recipe: Callable[[Random], Made], rng: Random) -> None:
    """A trace of a recipe in a file; another one is drawn where the first is refused."""
    for _ in range(50):
        try:
            trace, options = recipe(rng)
            if "promises" in options:
                Path(f"{name}.log").write_text(_printed(rng, trace))
            else:
                trace, options = _seen(rng, trace, options)
                # of its code the file would hold the commit, which is another one each time
                save(replace(trace, provenance=None), f"{name}.safetensors")
                if options.pop("bare", False):
                    _bare(Path(f"{name}.safetensors"))
        except Refusal as refusal:
            print(f"\n{name}: drawn again: {str(refusal).splitlines()[0][:150]}", file=sys.stderr)
            continue
        if options:
            Path(f"{name}{OPTIONS}").write_text(json.dumps(options))
        return
    raise RuntimeError(f"{name}: 50 runs were refused")


def _promised(rng: Random) -> Made:
    """Any run, whose contract says other things than it did: what is expected of such a kernel, and how closely."""
    others = [recipe for recipe in RECIPES if recipe not in (_promised, _log)]
    trace, _ = others[rng.integers(len(others))](rng)
    fields = [name for name in CHOICES if rng.random() < 0.2] or ["scores_dtype"]
    other: dict[str, Any] = {}
    for name in fields:
        some = CHOICES[name]
        other[name] = some[rng.integers(len(some))]
    if rng.random() < 0.1:
        other |= {"block_k": None, "tile_order": "ascending"}
    tiles = len(replace(trace.contract, tile_order="ascending").tiling(trace.case.seqlen_k).keys)
    if rng.random() < 0.1 and trace.contract.block_k is not None and "block_k" not in other:
        other["tile_order"] = tuple(int(t) for t in rng.permutation(tiles))
    before = trace.contract.assumed
    assumed = tuple(name for name in before if name not in other or rng.random() < 0.3)
    assumed += tuple(name for name in other if name not in before and rng.random() < 0.3)
    return replace(trace, contract=replace(trace.contract, **other, assumed=assumed)), {}


def _log(rng: Random) -> Made:
    """A kernel whose values are printed; the options tell the case and the contract."""
    if rng.random() < 0.5:
        kernel = str(rng.choice(("flash", "split_k")))
        fixed: dict[str, Any] = {"probs_dtype": None}
        trace, _ = ours.of_kernel(rng, kernel, ours.of_build(rng, kernel) | fixed)
        said: dict[str, Any] = {} if rng.random() < 0.5 else dict(foreign.PLAIN)
    else:
        case = Case(**ours.drawn(rng, causal_alignment="bottom-right"))
        style, said = foreign.styled(rng, case)
        said = {name: list(x) if isinstance(x, tuple) else x for name, x in said.items()}
        trace = run(module("tests.numpy_kernels").kernel(style, said), case)
    case = trace.case.as_dict() | {
        "block_q": None,
        "splits": trace.case.splits if "partial_max" in trace.stages else None,
    }
    promises = {name: x for name, x in said.items() if name not in ("block_k", "splits")}
    return trace, {"case": case, "promises": promises}


def _printed(rng: Random, trace: Trace) -> str:
    """Lines of printf of some elements of some stages; an element may be wrong."""
    form = str(rng.choice(FORMATS))
    lines = ["starting kernel"]
    for name in [name for name in trace.stages if rng.random() < 0.6] or ["out"]:
        stage = trace.stages[name].astype(np.float64)
        for flat in rng.choice(stage.size, min(stage.size, int(rng.integers(1, 40))), replace=False):
            place = np.unravel_index(flat, stage.shape)
            x = float(stage[place]) * (1.01 if rng.random() < 0.02 else 1)
            lines.append(f"WB {name} {' '.join(map(str, place))} {x.hex() if form == '%a' else form % x}")
    return "\n".join((*lines, "done")) + "\n"


def _seen(rng: Random, trace: Trace, options: dict[str, Any]) -> Made:
    """Of a trace a part of its stages, with elements that went wrong, or a window."""
    if rng.random() < 0.15:
        trace = _spoilt(rng, trace)
    stages = dict(trace.stages)
    if rng.random() < 0.5 and len(stages) > 2:
        lean = ("scores", "row_max", "row_sum", "acc", "partial_max", "partial_sum", "partial_O", "out", "lse")
        which = rng.integers(3)
        wanted = lean if which == 0 else ("out", "lse") if which == 1 else [x for x in stages if rng.random() < 0.5]
        kept = {name: x for name, x in stages.items() if name in wanted or name in trace.put_in}
        if kept and trace.algorithm == "fp8" and rng.random() < 0.7:
            kept |= {name: x for name, x in stages.items() if name.startswith(("codes", "scale"))}
        stages = {name: stages[name] for name in trace.stages if name in kept} or stages
        requested = [x for x in trace.requested if x in stages or rng.random() < 0.03]
        sparse = {name: x for name, x in trace.sparse.items() if name in stages}
        trace = replace(trace, stages=stages, requested=tuple(requested), sparse=sparse)
    if rng.random() < 0.2:
        axis = "bhq"[rng.integers(3)]
        size = trace.case.sizes[axis]
        low = int(rng.integers(size))
        where = f"{axis}={low}:{int(rng.integers(low, size)) + 1}"
        cut = narrowed(trace, where)
        if rng.random() < 0.5:
            return cut, options  # the window is in the file
        options = options | {"where": where}
    return trace, options


def _spoilt(rng: Random, trace: Trace) -> Trace:
    """The trace with some elements NaN, infinite, unwritten or a little off."""
    names = [name for name, x in trace.stages.items() if x.dtype == np.float32 and name not in trace.put_in]
    if not names:
        return trace
    stages = dict(trace.stages)
    for name in rng.choice(names, min(len(names), int(rng.integers(1, 3))), replace=False):
        x = stages[name].copy()
        at = np.unravel_index(rng.choice(x.size, min(x.size, 3), replace=False), x.shape)
        with np.errstate(all="ignore"):
            x[at] = (np.float32(np.nan), np.float32(np.inf), -np.float32(np.inf), x[at] * np.float32(1.001))[
                rng.integers(4)
            ]
        if rng.random() < 0.2:
            x.view(np.uint32)[at] = 0x7FA0BEEF  # unwritten
        stages[name] = x
    return replace(trace, stages=stages)


def _bare(path: Path) -> None:
    """Take out of a trace file all that another program would not write: its contract says what was declared."""
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + size])
    manifest = json.loads(header["__metadata__"]["workbench"])
    contract = {name: x for name, x in manifest["contract"].items() if name not in manifest["contract"]["assumed"]}
    contract.pop("assumed")
    for one in ("checksum", "provenance", "versions", "backend", "algorithm"):
        manifest.pop(one, None)
    stated = {name: x for name, x in manifest["case"].items() if x is not None}
    manifest |= {"contract": {name: x for name, x in contract.items() if x is not None}, "case": stated}
    header["__metadata__"]["workbench"] = json.dumps(manifest)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size :])


#: recipe -> how many of 300 traces it makes
RECIPES: Mapping[Callable[[Random], Made], int] = {
    ours.flash: 13,
    ours.split_k: 15,
    foreign.masked: 10,
    ours.faulty: 16,
    ours.fp8: 14,
    ours.fp8_faulty: 10,
    ours.fed: 10,
    foreign.numpy_kernel: 48,
    foreign.sparse: 8,
    foreign.correct_style: 24,
    foreign.faulty_style: 6,
    foreign.foreign_codes: 12,
    _log: 14,
    _promised: 100,
}
