"""Attention functions in NumPy with one or two faults each, beside their right twins."""

from . import eighth, fifth, fourth, layouts, masks, merges, second, seventh, sixth, softmax, third
from .record import BOXES, Box, case, wrong

__all__ = [
    "BOXES", "Box", "case", "eighth", "fifth", "fourth", "layouts", "masks", "merges", "second", "seventh", "sixth",
    "softmax", "third", "wrong",
]  # fmt: skip
