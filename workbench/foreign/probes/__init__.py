"""Probes in kernels of others."""
