"""What may be wrong in a backward pass of attention, beside what any table has."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.judge.explain.hypothesis import Change, Edit, Hypothesis, altered, read_as
from workbench.operations.backward_inputs import mod_slope
from workbench.operations.backward_loops import in_tiles, lost_pairs, rows_of_elsewhere
from workbench.operations.backward_masks import masks, named, weights
from workbench.operations.backward_steps import AddedUp
from workbench.operations.causes.neutral import rolled
from workbench.operations.operation import Setting
from workbench.reference.stage import Ref


def hypotheses(of: Setting) -> Iterator[Hypothesis]:
    """All of them."""
    yield from masks(of)
    yield from weights(of)
    yield from _groups(of)
    yield from rows_of_elsewhere(of)
    yield from lost_pairs(of)
    yield from in_tiles(of)
    yield from _of_options(of)
    yield from _unwritten(of)


# ---- groups of heads


def _groups(of: Setting) -> Iterator[Hypothesis]:
    heads, kv_heads = of.sizes["h"], of.sizes["g"]
    group = heads // kv_heads
    if group == 1:
        return
    for name, what in (("dk_group", "dK"), ("dv", "dV")):
        for id, place, said in (
            ("last", -1, f"each kv head gets {what} of the last query head of its group only"),
            ("first", 0, f"each kv head gets {what} of the first query head of its group only"),
        ):
            yield named(f"group.{name}.{id}", said, _one_of_group(name, place))
    for id, place in (("last", -1), ("first", 0)):
        yield named(f"group.both.{id}", f"each kv head gets dK and dV of the {id} query head of its group only",
                  _one_of_group("dk_group", place), _one_of_group("dv", place))  # fmt: skip
    if kv_heads > 1:
        rows = [_tiled(name, ref, group) for name, ref in (("k_rows", "k"), ("v_rows", "v"))]
        sums = [_modulo_sums("dk_group", kv_heads), _modulo_sums("dv", kv_heads)]
        said = "query head h reads kv head h % kv_heads"
        yield named("group.modulo.read", f"{said}, but adds to the kv head of its group", *rows)
        yield named("group.modulo", f"{said}, and adds to it", *rows, *sums)
        yield named("group.modulo.written", "query head h adds to kv head h % kv_heads", *sums)


def _one_of_group(name: str, place: int) -> Edit:
    def changed(step: Any) -> Any:
        assert isinstance(step, AddedUp)
        return _Chosen(step.of, step.split, step.shape, place)

    return Edit(name, changed)


@dataclass(frozen=True)
class _Chosen:
    """One query head of each group, in the place of their sum."""

    of: Ref
    split: tuple[int, ...]
    shape: tuple[int, ...]
    place: int

    def value(self, at: Any) -> np.ndarray:
        return np.asarray(at(self.of).reshape(self.split)[:, :, self.place].reshape(self.shape))

    words = "{of} of one query head per group"


def _tiled(name: str, ref: str, group: int) -> Edit:
    """Kv heads of which the first comes after the last, for each query head."""
    return altered(name, lambda at, x: np.tile(at(ref), (1, group, 1, 1)), ref)


def _modulo_sums(name: str, kv_heads: int) -> Edit:
    def changed(step: Any) -> Any:
        assert isinstance(step, AddedUp)
        b, g, group, *rest = step.split
        return AddedUp(step.of, (b, group, g, *rest), (1,), step.shape, "query heads h with the same h % kv_heads")

    return Edit(name, changed)


# ---- what a case may have


def _of_options(of: Setting) -> Iterator[Hypothesis]:
    cap = of.numbers.get("softcap")
    if cap:
        yield named("softcap.left-out", "the softcap derivative is left out",
                  altered("cap_slope", lambda at, x: np.ones_like(x)))  # fmt: skip
        yield named("softcap.capped", "the softcap derivative is evaluated at the capped score",
                  altered("cap_slope", lambda at, x: 1 - np.tanh(at("capped") / cap) ** 2, "capped"))  # fmt: skip
        yield named("softcap.unsquared", "the softcap derivative is 1 - tanh, not 1 - tanh^2",
                  altered("cap_slope", lambda at, x: 1 - at("tanh"), "tanh"))  # fmt: skip
    if "score_mod" in of.functions:
        read = "capped" if cap else "scores"
        yield named("mod.left-out", "score_mod is left out when P is recomputed",
                  altered("modded", lambda at, x: at(read), read))  # fmt: skip
        yield named("mod.slope", "the score_mod derivative is left out",
                  altered("mod_slope", lambda at, x: np.ones_like(x)))  # fmt: skip
        yield named("mod.slope-of-modded", "the score_mod derivative is evaluated at the modified score",
                  altered("mod_slope", lambda at, x: mod_slope(of, at("modded")), "modded"))  # fmt: skip
    if "dropout_mask" in of.optional:
        factor = 1 / (1 - of.numbers["dropout_p"])
        for stage, said in (("dkept", "dP"), ("dropped", "P in dV")):
            what = "dprobs" if stage == "dkept" else "probs"
            yield named(f"dropout.{stage}", f"dropout is left out of {said}",
                      altered(stage, _instead(what), what))  # fmt: skip
            yield named(f"dropout.{stage}.factor", f"{said} is not divided by 1 - p",
                      altered(stage, lambda at, x: x / factor))  # fmt: skip
        for axis, what in enumerate(("batch", "head", "query", "key")):
            for off in (1, -1):
                yield named(f"dropout.{what}{off:+d}", f"the dropout mask of another {what} is used",
                          *(read_as(stage, "dropout_mask", rolled(off, axis))
                            for stage in ("dkept", "dropped")))  # fmt: skip
    if "bias" in of.optional:
        yield named("bias", "the bias is left out when P is recomputed", altered("wide_bias", lambda at, x: 0.0 * x))
    if "sinks" in of.optional:
        for place, said in ((0, "first"), (-1, "last")):
            yield named(f"dsink.{said}", f"dsink is that of the {said} row, not the sum over rows",
                      altered("dsink", _of_row(place),
                              "dsink_rows"))  # fmt: skip
        yield named("dsink.batch", "dsink sums over the first batch only",
                  altered("dsink", lambda at, x: at("dsink_rows")[0].sum(-1), "dsink_rows"))  # fmt: skip
    if "dlse" in of.optional:
        edits = [read_as("centred", "dlse", lambda at, x: 0.0 * x)]
        if "sinks" in of.optional:
            yield named("dlse.dsink", "dlse is left out of dsink",
                      read_as("delta_of_sink", "dlse", lambda at, x: 0.0 * x))  # fmt: skip
            edits.append(read_as("delta_of_sink", "dlse", lambda at, x: 0.0 * x))
        yield named("dlse", "dlse is ignored", *edits)


def _unwritten(of: Setting) -> Iterator[Hypothesis]:
    """Dims of a result that are not written, since another axis has fewer."""
    pairs: Mapping[str, tuple[str, str]] = {"dq": ("d", "e"), "dk": ("d", "e"), "dv": ("e", "d")}
    for name, (own, other) in pairs.items():
        n, m = of.sizes[own], of.sizes[other]
        if m >= n:
            continue
        for said, x in (("are not written", np.nan), ("are 0", 0.0)):
            yield named(f"unwritten.{name}.{x}", f"dims of {name} from {m} on {said}; {m} is the other head dim",
                      altered(name, _unwritten_from(m, x)))  # fmt: skip


def _instead(what: str) -> Change:
    return lambda at, x: at(what)


def _of_row(place: int) -> Change:
    return lambda at, x: at("dsink_rows")[:, :, place].sum(0)


def _unwritten_from(first: int, value: float) -> Change:
    return lambda at, x: np.where(np.arange(x.shape[-1]) < first, x, value)
