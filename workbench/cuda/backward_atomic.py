"""The backward pass of attention in one pass over tiles of keys: `backward.py` built with ATOMIC."""

from dataclasses import replace
from functools import partial

from workbench.cuda import backward
from workbench.cuda.backward_build import work

KERNEL = replace(
    backward.KERNEL,
    name="backward_atomic",
    functions=dict.fromkeys(("backward_delta", "backward_keys", "backward_scale"), backward.KERNEL.file),
    summary="Attention backward: delta; then one loop over key tiles, dQ by float32 atomics",
    work=partial(work, atomic=True),
)
