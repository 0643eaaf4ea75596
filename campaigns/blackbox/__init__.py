"""Attention functions in NumPy with one or two faults each, beside their right twins."""

from . import layouts, masks, merges, softmax
from .record import BOXES, Box, case, wrong

__all__ = ["BOXES", "Box", "case", "layouts", "masks", "merges", "softmax", "wrong"]
