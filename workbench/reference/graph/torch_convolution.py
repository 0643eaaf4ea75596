"""ATen's convolution in one dimension and its backward pass, as products of matrices of windows."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from workbench.reference.graph import functions
from workbench.reference.graph.arrays import Traced, held
from workbench.reference.graph.contractions import matmul
from workbench.reference.graph.torch_elementwise import noting, promoted
from workbench.reference.graph.torch_moves import flip, pad


def convolution(
    x: Traced, weight: Traced, bias: Traced | None, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int,
) -> Traced:  # fmt: skip
    """A contraction over the channels of a group and the width."""
    step, margin, apart = _numbers(x, weight, transposed, stride, padding, dilation)
    windows = _windows(pad(x, (margin, margin)), weight, step, apart, groups)
    n, _, count, _ = windows.shape
    made = weight.shape[0]
    right = weight.reshape(groups, made // groups, -1).transpose(0, 2, 1)
    y = matmul(windows, right).transpose(0, 1, 3, 2).reshape(n, made, count)
    return noting(y if bias is None else y + bias[:, None], promoted(x, weight))


def convolution_backward(
    g: Traced, x: Traced, weight: Traced, bias_sizes: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int, mask: Sequence[bool],
) -> tuple[Traced | None, ...]:  # fmt: skip
    """Of x the convolution of the gradient with the weights backwards; of the weights the sum over all windows."""
    step, margin, apart = _numbers(x, weight, transposed, stride, padding, dilation)
    made, each, width = weight.shape
    n, _, count = g.shape
    reach, length = apart * (width - 1), x.shape[-1]
    of_x = of_weight = None
    if mask[0]:
        wide = held(x.run, np.zeros((n, made, (count - 1) * step + 1)), g.dtype)
        wide[:, :, ::step] = g
        before = reach - margin
        wide = pad(wide, (before, length + reach - before - wide.shape[-1]))
        back = flip(weight, [2]).reshape(groups, made // groups, each, width).swapaxes(1, 2)
        back = back.reshape(groups * each, made // groups, width)
        of_x = noting(convolution(wide, back, None, [1], [0], [apart], False, [0], groups), x.dtype)
    if mask[1]:
        windows = _windows(pad(x, (margin, margin)), weight, step, apart, groups)
        left = g.reshape(n, groups, made // groups, count).transpose(1, 2, 0, 3).reshape(groups, made // groups, -1)
        right = windows.transpose(1, 0, 2, 3).reshape(groups, n * count, -1)
        of_weight = noting(matmul(left, right).reshape(weight.shape), weight.dtype)
    return of_x, of_weight, noting(functions.sum_(g, (0, 2)), g.dtype) if mask[2] else None


def _numbers(x: Traced, weight: Traced, transposed: bool, *listed: Any) -> tuple[int, int, int]:
    if transposed or weight.ndim != 3:
        x.run.refuse("no rule for this convolution; only conv1d has one")
    (step,), (margin,), (apart,) = listed
    return step, margin, apart


def _windows(x: Traced, weight: Traced, step: int, apart: int, groups: int) -> Traced:
    """What each result reads: sequence, group, result, channels of the group and width."""
    n, _, length = x.shape
    _, each, width = weight.shape
    count = (length - apart * (width - 1) - 1) // step + 1
    places = step * np.arange(count)[:, None] + apart * np.arange(width)
    windows = x[:, :, places].reshape(n, groups, each, count, width)
    made: Traced = windows.transpose(0, 1, 3, 2, 4).reshape(n, groups, count, each * width)
    return made


CONVOLUTION: Mapping[str, Callable[..., Any]] = {
    "convolution": convolution,
    "convolution_backward": convolution_backward,
}
