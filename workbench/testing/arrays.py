"""An assertion on arrays alone: out, and lse where there is one, held against what q, k and v make of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workbench.arrays import as_numpy
from workbench.case.case import Case
from workbench.case.fields import typed
from workbench.case.inputs import normalised
from workbench.case.options import Options
from workbench.case.stages import INPUTS, LSE, OUT
from workbench.foreign.call import run_foreign
from workbench.judge.diff import Diff, diff
from workbench.judge.fails import classed, failing
from workbench.refusal import Refusal
from workbench.suggested import command
from workbench.testing.attention import held
from workbench.testing.message import in_a_line
from workbench.testing.packed import unpacked_all
from workbench.testing.settings import current
from workbench.trace.inputs import case_of

WHERE = "assert_attention_close"
#: axes of q, k, v and out -> the other order of them
LAYOUTS = {"bhsd": "bshd", "bshd": "bhsd"}
#: fields that a failure says where there are any
_SAID = ("seqlens_q", "seqlens_k", "alibi_slopes", "sinks", "dropout_p")


@dataclass(frozen=True)
class Given:
    """What was given: arrays in NumPy, with the axes of `layout`, and what is known of the problem."""

    inputs: Mapping[str, np.ndarray]  #: q, k, v, and what there is beside them
    stages: Mapping[str, np.ndarray]  #: out, lse
    layout: str
    problem: Mapping[str, Any]  #: fields of the case that shapes do not tell
    contract: str | Mapping[str, Any] | None

    def judged(self, **changes: Any) -> Diff:
        """The judgement, with `changes` of the problem, or of the layout."""
        layout = changes.pop("layout", self.layout)
        inputs = {name: _turned(name, x, layout) for name, x in self.inputs.items()}
        stages = {name: _turned(name, x, layout) for name, x in self.stages.items()}
        case = case_of(inputs, WHERE, **{**self.problem, **changes})

        def arrays(*_: Any, seqlens_q: Any = None, seqlens_k: Any = None, **__: Any) -> Mapping[str, np.ndarray]:
            return stages  # lengths are keywords, so that q, k and v come in boxes

        options = Options(inputs=inputs, contract=self.contract)
        made = run_foreign(arrays, case, options, name="arrays")
        return diff(replace(made, rerun=None))  # arrays answer no other inputs

    def fits(self, layout: str) -> bool:
        """Whether shapes agree with each other where the axes are those of `layout`."""
        arrays = {**self.inputs, **self.stages}
        q, k, v, out = (_turned(name, arrays[name], layout).shape for name in (*INPUTS, OUT))
        lse = arrays[LSE].shape if LSE in arrays else q[:-1]
        of_sequences = k[:-1] == v[:-1] and out == (*q[:-1], v[-1]) and lse == q[:-1]
        return of_sequences and (q[0], q[3]) == (k[0], k[3]) and q[1] % k[1] == 0


def assert_attention_close(
    out: Any,
    q: Any,
    k: Any,
    v: Any,
    *,
    lse: Any = None,
    scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    mask: Any = None,
    bias: Any = None,
    attn_mask: Any = None,
    alibi_slopes: Any = None,
    alibi_form: str = "distance",
    sinks: Any = None,
    dropout_p: float | None = None,
    dropout_mask: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    causal_alignment: str = "bottom-right",
    layout: str = "bhsd",
    contract: str | Mapping[str, Any] | None = None,
    fail_on: str | None = None,
) -> Diff:
    """The judgement of `out`, which is right: within the error budget of a kernel that keeps `contract`, element by
    element.

    Arrays are of NumPy, torch, JAX, CuPy or any library that speaks DLPack. out [batch, heads, seqlen_q, dim of v], q
    [batch, heads, seqlen_q, dim], k [batch, kv_heads, seqlen_k, dim] and v [batch, kv_heads, seqlen_k, dim of v]; with
    `layout` bshd the lengths stand before the heads. With cu_seqlens_q and cu_seqlens_k, int [batch + 1], which are
    alike where one is given, sequences lie behind each other, as of flash_attn_varlen_func: [total, heads, dim], and
    lse is [heads, total]. q, k and v as the kernel read them, float32, float16 or bfloat16; out as it stored it, or in
    float64, which is judged as float32. lse, of natural logarithms, [batch, heads, seqlen_q]. scale: 1/sqrt(dim) where
    it is None. window, softcap, alibi_form and causal_alignment as in `Case`; mask and bias as in
    `workbench.case.inputs.normalised`; attn_mask is torch's: a mask where it is bool, else a bias. alibi_slopes and
    sinks [heads]. dropout_mask, bool [batch, heads, seqlen_q, seqlen_k], True where dropout_p kept. contract as of
    `workbench.run`; what it leaves out is assumed to be the weakest choice. A row without keys has out 0 and lse -inf.

    AttentionError as of `assert_attention`; a NaN in out is an error where no NaN of the inputs reaches. Refusal for
    shapes and dtypes that do not fit, for dropout without its mask, and for inputs that are infinite.

    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 16, 8), np.float32)
    >>> weights = np.exp(q @ k.swapaxes(-1, -2) / np.float32(8**0.5))
    >>> assert_attention_close(weights @ v / weights.sum(-1, keepdims=True), q, k, v).verdict
    'rounding'
    """
    __tracebackhide__ = True
    fails = failing(fail_on or current.get().fail_on)
    if (dropout_p is None or dropout_p == 0) != (dropout_mask is None):
        raise Refusal(f"{WHERE}: give both dropout_p and dropout_mask; got one of them")
    problem: dict[str, Any] = {"scale": scale, "causal": causal, "window": window, "softcap": softcap}
    problem["dropout_p"] = dropout_p or None
    inputs = _present(q=q, k=k, v=v, **_masks(mask, bias, attn_mask), dropout_mask=dropout_mask)
    stages = {name: as_numpy(x, f"{WHERE}: {name}") for name, x in _present(out=out, lse=lse).items()}
    if cu_seqlens_q is not None or cu_seqlens_k is not None:
        if layout != "bhsd":
            raise Refusal(f"{WHERE}: packed sequences must be [total, heads, dim] and take no layout; got {layout!r}")
        ends = {"q": cu_seqlens_k if cu_seqlens_q is None else cu_seqlens_q}
        ends["k"] = cu_seqlens_q if cu_seqlens_k is None else cu_seqlens_k
        inputs, stages, lengths = unpacked_all(inputs, stages, ends, WHERE)
        problem |= lengths
    given = Given(
        normalised({**inputs, **_present(alibi_slopes=alibi_slopes, sinks=sinks)}, WHERE),
        stages,
        layout,
        {**problem, "alibi_form": alibi_form, "causal_alignment": causal_alignment},
        contract,
    )
    _check(given)
    judged = given.judged()

    def text(judged: Diff) -> str:
        return "\n\n".join([in_a_line(judged), str(judged), "\n".join(_beside(given, judged, fails))])

    return held(judged, fails, text)


def _masks(mask: Any, bias: Any, attn_mask: Any) -> dict[str, Any]:
    """The mask and the bias, of which torch has one word."""
    if attn_mask is None:
        return {"mask": mask, "bias": bias}
    if mask is not None or bias is not None:
        other = "bias" if mask is None else "mask"
        raise Refusal(f"{WHERE}: give attn_mask or {other}; got both")
    return {"mask" if str(attn_mask.dtype).endswith("bool") else "bias": attn_mask}


def _present(**arrays: Any) -> dict[str, Any]:
    return {name: x for name, x in arrays.items() if x is not None}


def _turned(name: str, x: np.ndarray, layout: str) -> np.ndarray:
    """An array of `layout` as [b, h, s, d]; what has no such axes as it is."""
    return x.swapaxes(1, 2) if layout == "bshd" and name in (*INPUTS, OUT) and x.ndim == 4 else x


def _check(given: Given) -> None:
    """Refusal for an unknown layout, and for shapes that do not agree with each other."""
    if given.layout not in LAYOUTS:
        raise Refusal(f"{WHERE}: layout must be one of {', '.join(LAYOUTS)}; got {given.layout!r}")
    out = given.stages[OUT]
    if out.ndim != 4:
        raise Refusal(f"{WHERE}: out must have axes {' '.join(given.layout)}; got shape {list(out.shape)}")
    if given.fits(given.layout):
        return
    shapes = ", ".join(f"{name} {list(x.shape)}" for name, x in {**given.inputs, **given.stages}.items())
    rule = f"{WHERE}: in layout {given.layout} k needs q's batch and dim and a number of heads that divides "
    rule += f"q's; v needs k's shape, out q's with v's dim, lse q's without dim; got {shapes}"
    other = LAYOUTS[given.layout]
    q, stored = given.inputs["q"].shape, out.shape
    if given.fits(other):
        rule += f": these are shapes of {other}: pass layout={other!r}"
    elif q != stored and q == (stored[0], stored[2], stored[1], stored[3]):
        rule += ": the second and third axes of out are swapped relative to q: give both in one layout"
    raise Refusal(rule)


def _beside(given: Given, judged: Diff, fails: frozenset[str]) -> Iterator[str]:
    """What was assumed, under which other assumption the same arrays pass, and what would tell more."""
    case, stages = judged.trace.case, given.stages
    diagonal = f", causal_alignment={case.causal_alignment!r}" if case.causal or case.window else ""
    said = f"layout={given.layout!r}, scale={case.scale:.6g}, causal={case.causal}{diagonal}, window={case.window}"
    also = [f"{name}={typed(x)}" for name in _SAID if (x := getattr(case, name)) is not None]
    also += [f"alibi_form={case.alibi_form!r}"] if case.alibi_slopes is not None else []
    also += [f"a {name}" for name in ("mask", "bias") if name in given.inputs]
    yield ", ".join([f"judged with {said}, softcap={case.softcap}", *also])
    if stages[OUT].dtype == np.float64:
        yield "out is float64: it is judged as float32"
    for changes in _others(given, case):
        if _passes(given, changes, fails):
            yield f"it passes with {', '.join(f'{name}={value!r}' for name, value in changes.items())}"
    if "mask" in given.inputs:
        inputs = {**given.inputs, "mask": ~given.inputs["mask"]}
        if _passes(replace(given, inputs=inputs), {}, fails):
            yield "it passes with the mask inverted: True must mean a visible key"
    if LSE not in stages:
        yield "pass lse= to separate score errors from later ones"
    if given.contract is None:
        fields = f"`{command('contract')}` lists fields"
        yield f"pass contract= to declare the kernel's arithmetic and tighten budgets: {fields}"
    yield "use assert_attention(kernel, case) to run the kernel and find the smallest failing case"


def _passes(given: Given, changes: Mapping[str, Any], fails: frozenset[str]) -> bool:
    try:
        return classed(given.judged(**changes)) not in fails
    except Refusal:  # a mask, say, that does not fit the other layout
        return False


def _others(given: Given, case: Case) -> Iterator[dict[str, Any]]:
    """What one may have forgotten to say."""
    if given.fits(other := LAYOUTS[given.layout]):
        yield {"layout": other}
    yield {"causal": not case.causal}
    if case.seqlen_q != case.seqlen_k:
        alignment = "top-left" if case.causal_alignment == "bottom-right" else "bottom-right"
        yield {"causal": True, "causal_alignment": alignment}
    if case.scale != 1:
        yield {"scale": 1.0}
    if case.alibi_slopes is not None and LSE in given.stages:
        yield {"alibi_form": "column" if case.alibi_form == "distance" else "distance"}
