"""Kernels of others, run: what they are called with, and what they return."""
