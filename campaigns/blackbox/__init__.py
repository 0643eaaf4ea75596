"""Attention functions in NumPy with one or two faults each, beside their right twins."""

from . import fourth, layouts, masks, merges, second, softmax, third
from .record import BOXES, Box, case, wrong

__all__ = ["BOXES", "Box", "case", "fourth", "layouts", "masks", "merges", "second", "softmax", "third", "wrong"]
