"""Which element of all of V each query head reads at each place: of heads that read other heads' memory."""

import numpy as np

from workbench.readings.finding import Finding
from workbench.readings.model import Model
from workbench.readings.of_operands import told_of_all
from workbench.readings.of_values import CHECKED, aims, base_of, choosing
from workbench.readings.target import Target


def values_of_all(target: Target, model: Model) -> tuple[Model, list[Finding]]:
    """By rows that choose one key, and digits of indices in the whole of V as values."""
    shape, heads = target.trace.inputs["v"].shape, target.trace.inputs["q"].shape[:2]
    (keys, dims), size = shape[2:], int(np.prod(shape))
    base = base_of(target)
    powers = max(1, int(np.ceil(np.log(size + 1) / np.log(base))))
    index = 1 + np.arange(size).reshape(shape)  # 0 is what is not read at all
    checks = int(np.ceil(CHECKED / np.log2(base)))
    check = np.random.default_rng(29).integers(base > 2, base, (checks, size))
    words = [index // base**p % base for p in range(powers)] + [one.reshape(shape) for one in check]
    source = np.full((*heads, keys, dims), -2)
    for aim in aims(model, anchored=False):
        if target.spent:
            break
        chosen = choosing(target, model, aim, anchored=False)
        read = [model.result(target(**chosen, v=one).out) for one in words]
        with np.errstate(invalid="ignore"):
            levels = np.round(np.stack(read))
            sure = np.all(abs(np.stack(read) - levels) < 0.2, axis=0)
            levels = np.where(sure, levels, 0).astype(int)
        got = np.tensordot(base ** np.arange(powers), levels[:powers], 1)
        sure &= (got >= 0) & (got <= size)
        zero = sure & (got == 0) & np.all(levels[powers:] == 0, axis=0)
        got = np.where(sure, got, 0)
        sure &= (got > 0) & np.all(check[:, np.maximum(got - 1, 0)] == levels[powers:], axis=0)
        found = np.where(zero, -1, np.where(sure, got - 1, -2))
        source[:, :, aim] = np.where(found > -2, found, source[:, :, aim])
    own = model.heads["v"][..., None, None] * keys * dims + np.arange(keys * dims).reshape(keys, dims)
    return told_of_all(model, "v", "out", source, own, size, source.size)
