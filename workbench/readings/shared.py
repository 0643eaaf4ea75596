"""Absorbed MLA: V is the first dims of K, one tensor. The dims behind V's are read as attention of its own.

With q = 0 in the dims that V shares, scores are those of the other dims alone, and V can be chosen. What the shared
dims of Q and K do is read afterwards: V is then what K holds there, and weights are solved for.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product

import numpy as np

from workbench.case.case import Case
from workbench.case.fields import GIVEN
from workbench.readings.finding import Finding
from workbench.readings.model import Model
from workbench.readings.of_operands import elements
from workbench.readings.of_scores import STILL
from workbench.readings.proof import LEFT, rms
from workbench.readings.target import Target, Weights
from workbench.refusal import Refusal
from workbench.trace.trace import Trace


def of_own_dims(trace: Trace) -> Trace:
    """The run of the dims of q and k that V does not share, the others of q 0, as attention with a V of its own.
    Refusal where there are none, or where q or k are codes or sequences have several lengths.
    """
    case = trace.case
    width = case.head_dim_v
    if width == case.head_dim or case.codes is not None or (case.ragged and case.page_size is None):
        raise Refusal(
            f"{trace.target} cannot be measured: its v is "
            f"{'all of its k' if width == case.head_dim else 'a part of its k, and inputs are codes or ragged'}. "
            "Use head_dim > head_dim_v, one length and no codes"
        )
    return _part(trace, slice(width, case.head_dim))


def _part(trace: Trace, dims: slice) -> Trace:
    """The run whose q has some `dims` alone, and 0 in the others."""
    case, rerun = trace.case, trace.rerun
    assert rerun is not None
    width = case.head_dim_v
    own = case.but(shared_kv=False, head_dim=dims.stop - dims.start, head_dim_v=width, scale=case.scale)

    def again(asked: Case, inputs: Mapping[str, np.ndarray] | None = None) -> Trace:
        whole = case.but(seed=asked.seed, distribution=case.distribution)
        given = {name: x for name, x in trace.inputs.items() if name not in "qkv"}
        if inputs is None:
            given |= dict(zip("qkv", whole.inputs(), strict=True)) if case.distribution != GIVEN else trace.inputs
            q = given["q"][..., dims]
        else:
            given |= inputs
            q, latent = inputs["q"], np.zeros((*inputs["v"].shape[:3], case.head_dim), inputs["v"].dtype)
            latent[..., :width] = inputs["v"]
            latent[..., dims] = inputs["k"]
            given["k"] = latent
        wide = np.zeros((*q.shape[:3], case.head_dim), q.dtype)
        wide[..., dims] = q
        k = np.ascontiguousarray(given["k"])
        made = rerun(whole.but(distribution=GIVEN), {**given, "q": wide, "k": k, "v": k[..., :width].copy()})
        parts = {name: np.ascontiguousarray(made.inputs[name][..., dims]) for name in "qk"}
        return replace(
            made, case=own.but(seed=asked.seed, distribution=asked.distribution), rerun=again,
            inputs={**made.inputs, **parts, "v": k[..., :width]}, requested=(), resident=None,
            stages={name: x for name, x in made.stages.items() if name in ("out", "lse")},
        )  # fmt: skip

    return again(case)


class OfShared(Target):
    """The dims that V shares: K is V, and weights are solved for."""

    def __init__(self, trace: Trace, of_own: Target) -> None:
        super().__init__(_part(trace, slice(0, trace.case.head_dim_v)), of_own.effort, of_own.work)
        self.of_own = of_own

    @cached_property
    def identity(self) -> Weights:
        """Those of the other dims, whose arithmetic is the same."""
        return self.of_own.identity

    def weights(self, dims: np.ndarray | None = None, keys: np.ndarray | None = None, **chosen: np.ndarray) -> Weights:
        """What `out` makes of a V that is K."""
        k = np.broadcast_to(chosen["k"], self.trace.inputs["k"].shape)
        made = self(**chosen, v=k)
        count, width = k.shape[2:]
        return Weights((made,), (self.inputs_of(k, "k")[0, 0],), 1.0, tuple(range(width)), None, np.arange(count))


def of_shared(
    whole: Target, of_own: Target, model: Model, found: Sequence[Finding]
) -> tuple[Model, tuple[Finding, ...], int]:
    """Model of the whole run, all that was found of it, and the calls that it took.

    `model`, `found`: of the other dims, which `of_own` was measured on.
    """
    best, text = min(_joined(whole, model), key=lambda one: _left(whole, one[0]))
    found = tuple(replace(one, text=text) if text and one.reading == "response" else one for one in found)
    error = rms(whole.natural, whole.natural.expected)
    keys, width = whole.trace.inputs["v"].shape[2:]
    if _left(whole, best) <= LEFT**2 * error or not whole.natural.wrong.any() or keys > width:
        return best, found, 0
    target = OfShared(whole.coded, of_own)
    index = np.arange(keys * width).reshape(keys, width)
    base, before = model.but(sources={"v": model.sources.get("v", index)}), _left(whole, best)
    for name in "kq":
        read, told = elements(target, base, name)
        if not told:
            continue
        made, _ = min(_joined(whole, model, {name: read.sources[name]}), key=lambda one: _left(whole, one[0]))
        if _left(whole, made) < LEFT * before:
            text = told[0].text.replace("is read wrong:", f"is read wrong in its first {width} dims, which V shares:")
            return made, (*found, replace(told[0], text=text)), target.calls
    return best, found, target.calls


def _left(whole: Target, model: Model) -> float:
    return rms(whole.natural, model.predicted(whole.natural))


def _joined(whole: Target, model: Model, shared: Mapping[str, np.ndarray] | None = None) -> Iterator[tuple[Model, str]]:
    """Models of all dims, and words where they are no longer those that were read: the other dims are as they were
    measured; the shared ones as `shared`, else as they should be, as V is read, or with rows that are read as in the
    other dims.
    """
    case = whole.case
    width, maps = case.head_dim_v, dict[str, list[np.ndarray]]()
    for name in "qk":
        rows = whole.trace.inputs[name].shape[2]
        row, dim = np.divmod(np.arange(rows * case.head_dim).reshape(rows, -1), case.head_dim)
        plain, own = row * case.head_dim + dim, model.sources.get(name)
        if own is not None and own.ndim == 2:
            there = own // (case.head_dim - width) * case.head_dim + width + own % (case.head_dim - width)
            plain[:, width:] = np.where(own >= 0, there, -1)
        ways = [plain]
        firsts = [shared[name]] if shared is not None and name in shared else []
        if not firsts and name == "k" and "v" in model.sources:
            firsts.append(model.sources["v"])
        for first in firsts:
            way = plain.copy()
            way[:, :width] = np.where(first >= 0, first // width * case.head_dim + first % width, -1)
            ways.append(way)
        if own is not None and own.ndim == 2 and (own >= 0).all():
            way = plain.copy()
            way[:, :width] = own[:, :1] // (case.head_dim - width) * case.head_dim + dim[:, :width]
            ways.append(way)
        maps[name] = ways
    for q, k in product(maps["q"], maps["k"]):
        yield model.but(sources={**model.sources, "q": q, "k": k}), ""
        if np.all(abs(np.asarray(model.factor)) < STILL):  # of the other dims alone
            none = k.copy()
            none[:, width:] = -1
            text = f"scores ignore dims {width}-{case.head_dim - 1} of q and k, which V does not share"
            yield model.but(sources={**model.sources, "q": q, "k": none}, factor=1.0), text
