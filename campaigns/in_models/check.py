"""Measures right functions and bugs in their models, each call against float64 on its own inputs.

python -m campaigns.in_models.check [right] [bugs] [pairs]
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface

from campaigns.in_models import models, right

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Seen:
    """One call: its largest error, the same in units of the bound, the spread of scores, where it is beyond the bound.

    `weights` are "right", "wrong" or "none" of the probs that were handed back: wrong by more than 8 eps and 1e-5.
    """

    layer: int
    step: int
    error: float
    ratio: float
    spread: float
    where: str
    weights: str


def listed(numbers: list[int]) -> str:
    """Numbers, a run of them as first-last."""
    said: list[str] = []
    for number in numbers:
        if said and int(said[-1].split("-")[-1]) == number - 1:
            said[-1] = f"{said[-1].split('-')[0]}-{number}"
        else:
            said.append(str(number))
    return " ".join(said) or "none"


def watched(
    name: str, dtype: str, factory: Callable[[str], right.Attention], style: str, run: str, padding: str
) -> list[Seen]:
    """The calls of one run, each judged."""
    seen: list[Seen] = []
    step = [-1]
    function = factory(style)

    def watching(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        before = [x.clone() for x in (query, key, value)]
        out, weights = function(module, query, key, value, attention_mask, scaling, dropout, **kwargs)
        assert all(a.equal(b) or a.isnan().any() for a, b in zip(before, (query, key, value), strict=True))
        call = right.read(style, module, query, key, value, attention_mask, scaling, kwargs)
        should, bound, probs = right.exact(call)
        assert out.shape == should.shape and out.dtype == query.dtype, (out.shape, should.shape, out.dtype)
        error = (out.double() - should).abs()
        ratio = torch.where(error.isnan() & ~should.isnan(), torch.inf, error / bound).nan_to_num(0.0, torch.inf)
        scores = call.capped(call.q @ call.keys.mT * call.scale)
        layer: Any = module.layer_idx if module.layer_idx is not None else -1
        error = error.nan_to_num(torch.inf)
        beyond = (ratio > 1.5).nonzero()
        axes = [sorted({int(i[axis]) for i in beyond}) for axis in range(3)]
        where = ", ".join(f"{name} {listed(i)}" for name, i in zip(("sequences", "rows", "heads"), axes, strict=True))
        given = "none"
        if weights is not None:
            allowed = 1e-5 + 8 * float(torch.finfo(query.dtype).eps) * probs.amax(-1, keepdim=True)
            given = "right" if bool(((weights.double() - probs).abs() <= allowed).all()) else "wrong"
        seen.append(
            Seen(int(layer), max(step[0], 0), float(error.max()), float(ratio.max()), float(scores.std()), where, given)
        )
        return out, weights

    with models.registered("watched", watching, style):
        model, inputs = models.make(name, DTYPES[dtype], "watched", run, padding)
        model.register_forward_pre_hook(lambda *_: step.__setitem__(0, step[0] + 1))
        torch.manual_seed(0)
        models.go(model, inputs)
    return seen


def rights() -> int:
    """Right functions in all styles, runs and paddings: beyond the bound, beyond 1e-5 in float32, or wrong weights."""
    failed = 0
    for name, dtype in itertools.product(models.NAMES, DTYPES):
        for computed, compute in right.variants(name).items():
            seen: list[Seen] = []
            for style, run, padding in itertools.product(models.STYLES, models.LENGTH, ("none", "left", "right")):
                if (run, name) != ("generate", "bert") and (style != "is_causal" or padding == "none"):
                    seen += watched(name, dtype, right.attention_of(compute), style, run, padding)
            error, ratio = max(s.error for s in seen), max(s.ratio for s in seen)
            spread = min(s.spread for s in seen), max(s.spread for s in seen)
            bad = ratio > 1 or (dtype == "float32" and error > 1e-5) or any(s.weights == "wrong" for s in seen)
            failed += bad
            print(
                f"{name:8} {computed:7} {dtype:8} calls {len(seen):3} error {error:.2e} x of bound {ratio:.3f} "
                f"scores {spread[0]:.2f} to {spread[1]:.2f}{' WRONG' if bad else ''}"
            )
    return failed


def wrongs() -> int:
    """Bugs: the first call beyond the bound, in each style and dtype, beside what each bug says of itself."""
    from campaigns.in_models import bugs

    failed = 0
    for bug in bugs.BUGS:
        for style in bug.styles:
            for dtype in DTYPES:
                seen = watched(bug.model, dtype, bug.attention, style, bug.run, bug.padding)
                wrong = [s for s in seen if s.ratio > 1.5]
                layers = sorted({s.layer for s in wrong})
                first = min((s.step for s in wrong), default=None)
                says = dtype in bug.visible_in
                every = sorted({s.layer for s in seen})
                bad = bool(wrong) != says
                if says and not bad:
                    # In 16 bits a bug may pass the bound a step or two later.
                    early = first is None or first < bug.first_step
                    bad = early or (first != bug.first_step and dtype == "float32")
                    bad = bad or layers != (every if bug.layer is None else [bug.layer])
                failed += bad
                ratio = max(s.ratio for s in seen)
                print(
                    f"{bug.name:34} {bug.model:8} {style:9} {dtype:8} x of bound {ratio:10.3g} "
                    f"layers {layers} of {every} first step {first} wrong calls {len(wrong)}/{len(seen)}"
                    f"{f', first: {wrong[0].where}; weights {wrong[0].weights}' if wrong else ''}"
                    f"{' DISAGREES' if bad else ''}"
                )
    return failed


class Recorder:
    """Stands in for a capture: q, k, v and out of each call of a model, by folder."""

    seen: dict[str, list[tuple[int, int, dict[str, torch.Tensor]]]] = {}

    def __init__(self, model: torch.nn.Module, folder: str, keep: str) -> None:
        assert keep == "all"
        self.model, self.step = model, -1
        self.calls: list[tuple[int, int, dict[str, torch.Tensor]]] = []
        Recorder.seen[folder] = self.calls

    def __enter__(self) -> Recorder:
        self.before = AttentionInterface.get_interface

        def get_interface(table: Any, name: str, default: Any) -> Any:
            function = self.before(table, name, default)

            def recording(module: Any, q: Any, k: Any, v: Any, mask: Any, **kwargs: Any) -> Any:
                kept = {"q": q.clone(), "k": k.clone(), "v": v.clone()}
                out, weights = function(module, q, k, v, mask, **kwargs)
                self.calls.append((module.layer_idx, max(self.step, 0), kept | {"out": out.transpose(1, 2).clone()}))
                return out, weights

            return recording

        AttentionInterface.get_interface = get_interface
        self.hook = self.model.register_forward_pre_hook(self._steps)
        return self

    def _steps(self, *_: Any) -> None:
        self.step += 1

    def __exit__(self, *_: Any) -> None:
        AttentionInterface.get_interface = self.before
        self.hook.remove()


def as_one(calls: list[tuple[int, int, dict[str, torch.Tensor]]]) -> dict[tuple[int, str], torch.Tensor]:
    """All rows of each layer: q and out of its calls in a row, k and v of the last one."""
    layers: dict[tuple[int, str], torch.Tensor] = {}
    for layer, _, kept in calls:
        for name, x in kept.items():
            key = (layer, name)
            joined = name in ("q", "out") and key in layers
            layers[key] = torch.cat((layers[key], x.float()), 2) if joined else x.float()
    return layers


def off(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The absolute difference, kv heads repeated where one side has more."""
    heads = max(a.shape[1], b.shape[1])
    a, b = (x.repeat_interleave(heads // x.shape[1], 1) for x in (a, b))
    return (a.double() - b.double()).abs()


def paired() -> int:
    """Pairs: where two runs differ first, and by how much, beside what each pair says of itself."""
    from campaigns.in_models import pairs

    failed = 0
    for pair in pairs.PAIRS:
        pair.runs("a", "b", Recorder)
        a, b = Recorder.seen["a"], Recorder.seen["b"]
        if pair.only_rounds:
            one, two = as_one(a), as_one(b)
            left = 6 if "left" in pair.name else 0
            largest = 0.0
            for key in one:
                differs = off(one[key], two[key])
                differs[0, :, :left] = 0.0
                largest = max(largest, float(differs.max()))
            narrow = any(x["q"].dtype == torch.bfloat16 for _, _, x in a + b)
            bad = not largest < (0.3 if narrow else 3e-5)
            said = f"largest difference {largest:.2e}"
        else:
            bad, said = True, "no difference"
            assert len(a) == len(b)
            for (layer, step, x), (_, _, y) in zip(a, b, strict=True):
                by = {name: off(x[name], y[name]) for name in x}
                first = next((name for name in x if float(by[name].max()) > 1e-4), None)
                if first is not None:
                    where = (by[first] > 1e-4).amax((1, 3)).nonzero()
                    rows = [sorted({int(r) for s, r in where if s == sequence}) for sequence in (0, 1)]
                    sizes = ", ".join(f"{name} {float(d.max()):.2e}" for name, d in by.items())
                    bad = (layer, step, first) != (pair.first_layer, pair.first_step, pair.first_of)
                    said = f"first layer {layer} step {step} {first}; {sizes}; rows of sequences 0 and 1: {rows}"
                    break
        failed += bad
        print(f"{pair.name:28} {'rounds' if pair.only_rounds else 'fault':6} {said}{' DISAGREES' if bad else ''}")
    return failed


if __name__ == "__main__":
    torch.set_num_threads(1)
    asked = sys.argv[1:] or ["right", "bugs", "pairs"]
    parts = {"right": rights, "bugs": wrongs, "pairs": paired}
    sys.exit(bool(sum(parts[part]() for part in asked)))
