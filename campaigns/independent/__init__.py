"""Attention kernels in five styles, and faults of public bug reports in them."""
