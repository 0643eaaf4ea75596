"""What attention, and other operations, should give, in float64.

`dense` is the referee, in two passes; `tables` has every stage in a kernel's own tile order, which `walk` computes and
bounds. `rmsnorm` and `rope` are plain functions, of whose `graph` values and bounds are. Nothing here imports a kernel:
the comparison is worth what the independence of its two sides is worth.
"""
