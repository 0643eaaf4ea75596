"""A wrong run as a script of NumPy alone, or torch: inputs, formula, call, the element that is off. For the tracker of
whoever owns the kernel.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from workbench.case.case import Case
from workbench.case.fields import GIVEN
from workbench.case.stages import INPUTS, LSE, RESULTS
from workbench.floats import DTYPES
from workbench.judge.diff import Diff, diff
from workbench.refusal import Refusal
from workbench.report.numbers import value
from workbench.report.pictures.style import worst_element
from workbench.report.script_of_codes import drawn as of_codes
from workbench.report.script_of_codes import inputs as inputs_of_codes
from workbench.report.script_of_codes import keywords
from workbench.trace.trace import Trace

#: dtype -> as the script names it
_NARROW = {"float32": "np.float32", "float16": "np.float16", "bfloat16": "ml_dtypes.bfloat16"}
#: fields of a case for which the script has no formula
_BEYOND = ("page_size", "score_mod", "mask_mod", "dropout_p", "seqlens_q", "seqlens_k")


def script(judged: Diff) -> str:
    """A script that calls the kernel of a wrong run on random inputs of its shape and fails at the element of out (or
    lse) that is farthest beyond its budget. Of a kernel that takes codes these and their scales are drawn.

    Refusal for a run that is not wrong there, or cannot be repeated, and for a case whose formula the script lacks:
    codes that a function makes itself, pages, sequences of several lengths, masks of one's own, dropout.
    """
    trace, case = judged.trace, judged.trace.case
    if trace.rerun is None or ":" not in trace.target or not Path(trace.target.partition(":")[0]).suffix == ".py":
        raise Refusal(f"a script calls a function of a file, path.py:function; {trace.target} is none")
    beyond = [name for name in _BEYOND if getattr(case, name)] + [x for x in ("mask", "bias") if x in trace.inputs]
    coded = case.codes is not None
    if coded and not keywords(trace):
        beyond.append("codes that a function makes itself")
    if beyond or case.shared_kv:
        raise Refusal(f"the script has no formula for {', '.join(beyond) or 'shared_kv'}")
    given = of_codes(trace, _shapes(case), _NARROW[case.dtype]) if coded else _drawn(case)
    again = diff(trace.rerun(case.but(distribution=GIVEN), given))
    name = next((x for x in RESULTS if x in again.trace.stages and _wrong(again, x)), None)
    if name is None:
        raise Refusal(
            f"{trace.target} gives the right out and lse on normal inputs of this shape, so a script would show nothing"
        )
    comparison = again[name].propagated or again[name].isolated
    assert comparison is not None
    place = tuple(map(int, np.unravel_index(worst_element(comparison) or 0, comparison.state.shape)))
    actual, expected, allowed = (float(x[place]) for x in (comparison.actual, comparison.expected, comparison.budget))
    words = {
        "target": f"{Path(trace.target.rpartition(':')[0]).name}:{trace.target.rpartition(':')[2]}",
        "stage": name,
        "place": ", ".join(map(str, place)),
        "actual": value(actual),
        "expected": value(expected),
        "allowed": repr(allowed),
        "allowed_short": value(allowed),
    }
    inputs = _inputs(trace)
    return _HEAD.format(**words) + inputs + _FORMULA + _settings(case) + _call(again, name) + _CHECK.format(**words)


def _wrong(judged: Diff, name: str) -> bool:
    found = judged[name].propagated or judged[name].isolated
    return found is not None and bool(found.outside.any())


def _drawn(case: Case) -> Mapping[str, np.ndarray]:
    """What the script draws."""
    rng = np.random.default_rng(case.seed)
    shapes = _shapes(case)
    return {name: rng.standard_normal(shapes[name], np.float32).astype(DTYPES[case.dtype]) for name in INPUTS}


def _shapes(case: Case) -> dict[str, tuple[int, ...]]:
    return {
        "q": (case.batch, case.heads, case.seqlen_q, case.head_dim),
        "k": (case.batch, case.kv_heads, case.seqlen_k, case.head_dim),
        "v": (case.batch, case.kv_heads, case.seqlen_k, case.head_dim_v),
    }


_HEAD = '''"""{target} gives a wrong {stage}: {stage}[{place}] is {actual}, should be {expected}; rounding allows
{allowed_short}. Run it beside the kernel's file; it fails where the kernel is wrong.
"""

import importlib.util

import numpy as np
'''

_FORMULA = '''

def reference(q, k, v, scale, causal, window=(-1, -1), softcap=0.0, alibi_slopes=None, sinks=None):
    """out and lse in float64. q [b, h, q, d], k and v [b, kv_heads, k, d]; causal: aligned to the bottom right."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scores = q @ k.swapaxes(-1, -2) * scale
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    i, j = np.indices(scores.shape[-2:])
    distance = j - i - (k.shape[2] - q.shape[2]) * ALIGNED
    if alibi_slopes is not None:
        scores = scores - np.asarray(alibi_slopes)[:, None, None] * abs(distance)
    seen = (distance <= 0) | (not causal)
    seen &= ((window[0] < 0) | (distance >= -window[0])) & ((window[1] < 0) | (distance <= window[1]))
    scores = np.where(seen, scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    probs = np.exp(scores - top)
    total = probs.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(np.asarray(sinks)[:, None, None] - top)
    with np.errstate(divide="ignore"):
        return probs @ v / np.where(total > 0, total, 1.0), (top + np.log(total))[..., 0]

'''

_CHECK = """
worst = abs(actual - expected)[{place}]
print(f"{stage}[{place}] is {{actual[{place}]}}, should be {{expected[{place}]}}")
assert worst <= {allowed}, f"off by {{worst:.6g}}; rounding allows {allowed_short}"
"""


def _inputs(trace: Trace) -> str:
    case = trace.case
    shapes = _shapes(case)
    narrow = _NARROW[case.dtype]
    lines = ["import ml_dtypes"] if case.dtype == "bfloat16" else []
    if case.codes is not None:
        lines.append(inputs_of_codes(trace, shapes, narrow))
    else:
        lines += ["", f"rng = np.random.default_rng({case.seed})"]
        lines += [f"{x} = rng.standard_normal({shapes[x]}, np.float32).astype({narrow})" for x in INPUTS]
    return "\n".join([*lines, f"ALIGNED = {case.causal_alignment == 'bottom-right'}", ""])


def _more(case: Case) -> dict[str, Any]:
    """Keywords of a case beside scale and causal."""
    found: dict[str, Any] = {} if case.window is None else {"window": tuple(case.window)}
    found |= {"softcap": case.softcap} if case.softcap else {}
    for name, numbers in (("alibi_slopes", case.slopes), ("sinks", case.sink_logits)):
        if getattr(case, name) is not None:
            found[name] = [float(x) for x in np.asarray(numbers)]
    return found


def _settings(case: Case) -> str:
    said = "".join(f", {name}={x!r}" for name, x in _more(case).items())
    read = "q, k, v" if case.codes is None else "*values.values()"
    return f"\nexpected_out, expected_lse = reference({read}, {case.scale!r}, {case.causal}{said})\n"


def _call(judged: Diff, name: str) -> str:
    trace, case = judged.trace, judged.trace.case
    path, _, function = trace.target.rpartition(":")
    torch = trace.called_with.arrays == "torch"

    def handed(array: str) -> str:
        return f"torch.from_numpy({array})" if torch else array

    given = [handed(x) for x in INPUTS]
    more = []
    for x, said in _more(case).items():
        made = handed(f"np.array({said!r}, np.float32)") if isinstance(said, list) else repr(said)
        more.append(f"{'window_size' if x == 'window' else x}={made}")
    more += [f"{x}={handed(x)}" for x in keywords(trace)]
    lines = [
        *(["import torch"] if torch else []),
        f'spec = importlib.util.spec_from_file_location("kernel", {Path(path).name!r})',
        "kernel = importlib.util.module_from_spec(spec)",
        "spec.loader.exec_module(kernel)",
        f"found = kernel.{function}({', '.join([*given, f'scale={case.scale!r}', f'causal={case.causal}', *more])})",
    ]
    if name == LSE:
        lines.append('found = found["lse"] if isinstance(found, dict) else found[1]')
    else:
        lines.append(
            'found = found["out"] if isinstance(found, dict) else found[0] if isinstance(found, tuple) else found'
        )
    lines.append(f"actual = np.asarray({'found.float()' if torch else 'found'}, np.float64)")
    lines.append(f"expected = expected_{name}")
    return "\n".join(lines) + "\n"
