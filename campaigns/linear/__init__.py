"""Kernels of linear attention of flash-linear-attention, judged by that project's own naive references.

Cases and bugs are those of `campaigns.real.rows.fla`. Here kernels run on a device, a few processes at once, and are
judged from what they gave on all others; `faults` are the smallest that can be made.
"""
