"""The emulator's model of tensor cores, which tests take in the place of a machine."""

import numpy as np

from workbench.cuda import ptx
from workbench.cuda.emulator import tensor


def declared(name: str) -> tuple[int, int]:
    """The block length and the extra bits that the model has for an operation."""
    _, kind, _ = ptx.MMA_TYPES[name]
    return tensor.ACCUMULATION[kind if kind in tensor.ACCUMULATION else "fp8"]


def model(name: str, a: np.ndarray, b: np.ndarray, c: np.ndarray, block: int, extra_bits: int) -> np.ndarray:
    """What the model gives, as a `probe_mma.Multiply` does."""
    codes = [tensor.CODES[kind] for kind in ptx.MMA_TYPES[name][1:]]
    return np.stack([tensor.product(*tiles, *codes, block, extra_bits) for tiles in zip(a, b, c, strict=True)])
