"""Kernels of linear attention of flash-linear-attention, judged by that project's own naive references.

Nothing of it is here: `cases.py` says which function takes which inputs by which names, and a checkout of the project
is given on the command line.
"""
