"""Attention kernels with the faults of public bug reports, and correct ones in the same styles."""
