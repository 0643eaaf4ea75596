"""What attention should give, in float64.

`dense` is the referee, in two passes; `tables` has every stage in a kernel's own tile order, which `walk` computes and
bounds. Nothing here imports a kernel: the comparison is worth what the independence of its two sides is worth.
"""
