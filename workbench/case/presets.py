"""What a user says of a kernel's contract beside what the kernel says of itself: fields, and presets by name."""

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.case.case import Case
from workbench.case.contract import EX2_ULPS, numbers
from workbench.case.fields import SHORT
from workbench.case.promises import LIBRARIES, OfPreset, plain, unwrapped
from workbench.refusal import Refusal, unknown
from workbench.suggested import command

#: as a dtype: that of q, k and v
INPUTS = "inputs"

#: name -> fields. What differs between GPUs (tensor_core), shapes (block_k, splits) or versions is left
#: out, and so assumed.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    # FlashAttention-2 in CUDA (Dao 2023, arXiv 2307.08691; github.com/Dao-AILab/flash-attention, csrc/flash_attn/src)
    "flash-attention-2": {
        "scores_dtype": "float32",  # accumulators of mma.sync, never rounded
        "scores_scaled": False,  # the scale enters with exp2 only
        "scale_in": "scores",
        "exp_argument": "fma",  # exp2f(x * scale_log2 - max_scaled), contracted; max_scaled is rounded before
        "exp_ulps": EX2_ULPS,  # exp2f under --use_fast_math is ex2.approx.ftz
        "exp_ulps_per_x": 0.0,
        "exp_flushes": True,
        "accumulation": "tensor-core",
        "row_sum_of_cast": False,  # summed in float32 before probs are converted ...
        "row_sum_lanes": 4,  # ... by each lane of a quad, whose sums meet at the end
        "probs_normalised": False,
        "probs_dtype": INPUTS,
        "probs_rounding": "nearest",
        "partials_dtype": "float32",  # Oaccum of its splits, normalised ...
        "partial_stats": "lse",  # ... beside softmax_lseaccum
        "out_dtype": INPUTS,
        "out_rounding": "nearest",
        "fast_math": True,  # --use_fast_math, and __logf for lse
        "tile_order": "descending",  # from the last tile that a block of queries sees ...
        "skips_masked_tiles": True,  # ... to the first
        "empty_lse": float("inf"),  # as it stores for rows without keys; out is 0
    },
    # softmax(q @ k^T * scale) @ v, an operation of torch each, as models write it; in 16 bits each result is rounded
    "torch-eager": {
        "scores_dtype": INPUTS,
        "scale_in": "scores",
        "exp_argument": "difference",
        "exp_ulps": 2.5,  # CUDA's expf has 2 (CUDA programming guide), counted from the nearest; SLEEF's on a CPU 1
        "exp_ulps_per_x": 0.0,
        "fast_math": False,
        "normalisation": "division",  # in float32 inside softmax ...
        "probs_normalised": True,
        "probs_dtype": INPUTS,  # ... and rounded where softmax ends, not before it normalises
        "row_sum_of_cast": False,
        "out_dtype": INPUTS,
        "out_rounding": "nearest",
        "empty_out": LIBRARIES,  # NaN of softmax of nothing but -inf, the mean of v of nothing but finfo.min
    },
    # scaled_dot_product_attention, whichever backend torch takes: what flash, mem-efficient, cuDNN and math have alike
    "torch-sdpa": {
        "scores_dtype": "float32",  # math computes 16-bit inputs in float32, since torch 2.5
        "probs_dtype": INPUTS,  # of math they are not even that
        "partials_dtype": "float32",
        "out_dtype": INPUTS,
        "out_rounding": "nearest",
        "empty_out": LIBRARIES,
    },
    # Triton's tutorial on fused attention and what descends from it (triton-lang.org, 06-fused-attention)
    "triton": {
        "scores_dtype": "float32",  # what tl.dot returns
        "scale_in": "scores",
        "base2": True,  # qk_scale = scale * log2(e), maxima in its units; the compiler may contract, or not
        "exp_ulps": EX2_ULPS,  # tl.math.exp2 is ex2.approx
        "exp_ulps_per_x": 0.0,
        "row_sum_of_cast": False,  # l_ij = tl.sum(p, 1), before p.to(dtype)
        "probs_normalised": False,
        "probs_dtype": INPUTS,
        "probs_rounding": "nearest",
        "partials_dtype": "float32",
        "out_dtype": INPUTS,
        "out_rounding": "nearest",
        "fast_math": True,  # `/` is div.full.f32, log2 lg2.approx
        "mask_sentinel": -1e6,  # added to masked scores; -inf is masked, too
    },
}

_WORD = re.compile(r"(?:\[[^]]*\]|[^,\[])+")  # up to a comma that is in no list


def parse(text: str) -> dict[str, Any]:
    """The fields of `triton,block_k=64,tile_order=[1,0]`: those of presets (`promises.OfPreset`), and of files
    (`@measured.json`, as of `workbench contract TARGET --measure --out`), and others, which override them. Refusal for
    a word that is none of these, for a file that holds no contract, and for a field that is said twice.
    """
    preset: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    for one in (one.strip() for one in _WORD.findall(text)):
        name, equals, value = (part.strip() for part in one.partition("="))
        if one.startswith("@"):
            preset |= _of_file(one.removeprefix("@"))
            continue
        if not equals and name in PRESETS:
            preset |= {field: OfPreset(value) for field, value in PRESETS[name].items()}
            continue
        if not equals or not name:
            raise Refusal(unknown("--contract takes FIELD=VALUE, @FILE or a preset; unknown preset", one, PRESETS))
        if name in fields:
            raise Refusal(f"--contract gives {name} twice, {word(fields[name])} and {value}")
        fields[name] = _value(value)
    return preset | fields


def _of_file(name: str) -> dict[str, Any]:
    """The fields of a contract in a file."""
    try:
        fields = json.loads(Path(name).read_text())["fields"]
    except OSError as error:
        raise Refusal(f"--contract @{name}: the file cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise Refusal(
            f'--contract @{name}: the file must be a JSON object with "fields", as '
            f"`{command('contract', 'TARGET', ['--measure', '--out', shlex.quote(name)])}` writes it"
        ) from error
    if not isinstance(fields, dict):
        raise Refusal(f'--contract @{name}: its "fields" must be an object; got {fields!r}')
    return plain(numbers(fields))


def _value(text: str) -> Any:
    """A value as the command line has it: true, false, none, a number, a list of numbers, or a word."""
    if text.lower() in ("none", "true", "false"):
        return {"none": None, "true": True, "false": False}[text.lower()]
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return float(text)  # inf and nan
    except ValueError:
        return SHORT.get(text, text)


def words(said: str | Mapping[str, Any]) -> str:
    """What `parse` reads."""
    if isinstance(said, str):
        return said
    return ",".join(f"{name}={word(value)}" for name, value in unwrapped(plain(said))[0].items())


def word(value: Any) -> str:
    """A value as `parse` reads it."""
    if isinstance(value, tuple):
        return f"[{','.join(map(word, value))}]"
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def fields_of(said: str | Mapping[str, Any], case: Case) -> dict[str, Any]:
    """The fields that a user says of a kernel on a case, in words (`parse`) or by name, with dtypes for INPUTS."""
    if not isinstance(said, str | Mapping):
        raise Refusal(f"a contract must be a dict of its fields, or text such as triton,block_k=64; got {said!r}")
    fields, of_preset = unwrapped(plain(parse(said) if isinstance(said, str) else said))
    fields |= {name: case.dtype for name, value in fields.items() if value == INPUTS and name.endswith("_dtype")}
    return fields | {name: OfPreset(fields[name]) for name in of_preset}


def merged(declared: Mapping[str, Any], own: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What a user says of the kernel `name` and what it says itself (both as of `fields_of`) as one: fields of its own
    override those of a preset. Refusal where the two contradict each other.
    """
    of_preset, presumed = (unwrapped(fields)[1] for fields in (declared, own))
    declared = {field: x for field, x in declared.items() if field not in of_preset or field not in own}
    own = {field: x for field, x in own.items() if field not in presumed or field not in declared}
    for field in (field for field in own if field in declared):
        # NaN is itself
        if declared[field] != own[field] and not (declared[field] != declared[field] and own[field] != own[field]):
            raise Refusal(
                f'{name} says {field}={word(own[field])} in its "contract", but --contract says '
                f"{field}={word(declared[field])}: leave out the wrong one"
            )
    return {**declared, **own}
