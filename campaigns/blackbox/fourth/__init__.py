"""Sixty more, drawn from reports without a list of what is there; not looked at before their first run."""

from . import layouts, masks, merges, softmax

__all__ = ["layouts", "masks", "merges", "softmax"]
