"""Fifty more, of other reports, written after the readings; theirs were never looked at before their first run."""

from . import layouts, masks, merges, softmax

__all__ = ["layouts", "masks", "merges", "softmax"]
