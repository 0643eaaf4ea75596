"""Kernels, the builds that are made of them, and the two machines that run them: a GPU and the emulator."""
