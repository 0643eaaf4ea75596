"""Five operations, each a plain torch reference, right kernels in the styles of GPU kernels, and twelve wrong ones.

`OP.py` has the reference and its `inputs`, `OP_right.py` right kernels (`KERNELS`: name, contract, dtypes),
`OP_faults.py` wrong ones (`FAULTS`) beside their right twins. `runs.runs()` yields 1,000 right runs, `truths.json`
has a row a fault, and `measure.py` measures both against the references in float64.

A row of truths.json: reference, also (second references), inputs, file, function, twin (the same code without the
fault, in the same file), dtypes, axes and seed; size (fine: near the rounding of the dtype; gross), what, kind,
line (of the reference); stages (the names the kernel returns, or none) and first_wrong (the first of them that
differs from the twin's); effect, effect_right and ratio by dtype: median and maximum of |fault - exact|, of |twin
- exact| over all results, and their quotients.
"""
