"""Faults, which are put into our kernels."""
