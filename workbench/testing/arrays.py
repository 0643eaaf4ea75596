"""An assertion on arrays alone: out, and lse where there is one, held against what q, k and v make of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.arrays import as_numpy
from workbench.case.case import Case
from workbench.case.inputs import normalised
from workbench.case.options import Options
from workbench.foreign.call import run_foreign
from workbench.judge.diff import Diff, diff
from workbench.judge.fails import failing, outcome
from workbench.refusal import Refusal
from workbench.testing.attention import held
from workbench.testing.message import in_a_line
from workbench.testing.settings import current
from workbench.trace.inputs import case_of

WHERE = "assert_attention_close"
#: axes of q, k, v and out -> the other order of them
LAYOUTS = {"bhsd": "bshd", "bshd": "bhsd"}


@dataclass(frozen=True)
class Given:
    """What was given: arrays in NumPy, with the axes of `layout`, and what is known of the problem."""

    inputs: Mapping[str, np.ndarray]  #: q, k, v, mask, bias
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
        options = Options(inputs=inputs, contract=self.contract)
        return diff(run_foreign(lambda *_, **__: stages, case, options, name="arrays"))

    def fits(self, layout: str) -> bool:
        """Whether shapes agree with each other where the axes are those of `layout`."""
        arrays = {**self.inputs, **self.stages}
        q, k, v, out = (_turned(name, arrays[name], layout).shape for name in ("q", "k", "v", "out"))
        lse = arrays["lse"].shape if "lse" in arrays else q[:-1]
        return k == v and out == q and lse == q[:-1] and (q[0], q[3]) == (k[0], k[3]) and q[1] % k[1] == 0


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
    causal_alignment: str = "bottom-right",
    layout: str = "bhsd",
    contract: str | Mapping[str, Any] | None = None,
    fail_on: str | None = None,
) -> Diff:
    """The judgement of `out`, which is right: within the error budget of a kernel that keeps `contract`, element by
    element.

    Arrays are of NumPy, torch, JAX, CuPy or any library that speaks DLPack. out and q [batch, heads, seqlen_q, dim], k
    and v [batch, kv_heads, seqlen_k, dim]; with `layout` bshd the lengths stand before the heads. q, k and v as the
    kernel read them, float32, float16 or bfloat16; out as it stored it, or in float64, which is judged as float32. lse,
    of natural logarithms, [batch, heads, seqlen_q]. scale: 1/sqrt(dim) where it is None. window, softcap and
    causal_alignment as in `Case`; mask and bias as in `workbench.case.inputs.normalised`. contract as of
    `workbench.run`; what it leaves out is assumed to be the weakest choice. A row without keys has out 0 and lse -inf.

    AttentionError as of `assert_attention`; a NaN in out is an error. Refusal for shapes and dtypes that do not fit,
    and for inputs that are not finite.
    """
    __tracebackhide__ = True
    fails = failing(fail_on or current.get().fail_on)
    problem = {"scale": scale, "causal": causal, "window": window, "softcap": softcap}
    given = Given(
        normalised(_present(q=q, k=k, v=v, mask=mask, bias=bias), WHERE),
        {name: as_numpy(x, f"{WHERE}: {name}") for name, x in _present(out=out, lse=lse).items()},
        layout,
        {**problem, "causal_alignment": causal_alignment},
        contract,
    )
    _check(given)
    judged = given.judged()

    def text() -> str:
        return "\n\n".join([in_a_line(judged), str(judged), "\n".join(_beside(given, judged, fails))])

    return held(judged, fails, text)


def _present(**arrays: Any) -> dict[str, Any]:
    return {name: x for name, x in arrays.items() if x is not None}


def _turned(name: str, x: np.ndarray, layout: str) -> np.ndarray:
    """An array of `layout` as [b, h, s, d]; what has no such axes as it is."""
    return x.swapaxes(1, 2) if layout == "bshd" and name in ("q", "k", "v", "out") and x.ndim == 4 else x


def _check(given: Given) -> None:
    """Refusal for an unknown layout, and for shapes that do not agree with each other."""
    if given.layout not in LAYOUTS:
        raise Refusal(f"{WHERE}: layout is one of {', '.join(LAYOUTS)}; got {given.layout!r}")
    out = given.stages["out"]
    if out.ndim != 4:
        raise Refusal(f"{WHERE}: out must have axes {' '.join(given.layout)}; got shape {list(out.shape)}")
    if given.fits(given.layout):
        return
    shapes = ", ".join(f"{name} {list(x.shape)}" for name, x in {**given.inputs, **given.stages}.items())
    rule = f"{WHERE}: in layout {given.layout} q and out have one shape, k and v another, of the same batch and dim, "
    rule += f"with a number of heads that divides q's, and lse has q's without the last; got {shapes}"
    other = LAYOUTS[given.layout]
    q, stored = given.inputs["q"].shape, out.shape
    if given.fits(other):
        rule += f": these are shapes of {other}: pass layout={other!r}"
    elif q != stored and q == (stored[0], stored[2], stored[1], stored[3]):
        rule += ": out has its second and third axis the other way round than q: give both in one layout"
    raise Refusal(rule)


def _beside(given: Given, judged: Diff, fails: frozenset[str]) -> Iterator[str]:
    """What was assumed, under which other assumption the same arrays pass, and what would tell more."""
    case, stages = judged.trace.case, given.stages
    diagonal = f", causal_alignment={case.causal_alignment!r}" if case.causal or case.window else ""
    said = f"layout={given.layout!r}, scale={case.scale:.6g}, causal={case.causal}{diagonal}, window={case.window}"
    yield f"judged with {said}, softcap={case.softcap}"
    if stages["out"].dtype == np.float64:
        yield "out is float64: it is judged as what a kernel stores in float32"
    for changes in _others(given, case):
        if _passes(given, changes, fails):
            yield f"it passes with {', '.join(f'{name}={value!r}' for name, value in changes.items())}"
    if "lse" not in stages:
        yield "lse= would tell the scores from what is made of them"
    if given.contract is None:
        yield "contract= would say how the kernel computes, and make budgets tighter: `workbench contract` lists fields"
    yield "assert_attention(kernel, case) would run the kernel, and find the smallest case that fails"


def _passes(given: Given, changes: Mapping[str, Any], fails: frozenset[str]) -> bool:
    try:
        return outcome(given.judged(**changes)) not in fails
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
