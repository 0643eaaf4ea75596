"""1,000 runs of right kernels: 200 an operation, the dtypes in turn, sizes and seeds that change."""

import importlib.util
import itertools
from pathlib import Path

HERE = Path(__file__).resolve().parent
OPERATIONS = ("attention", "gated_delta", "norm_glu", "cross_entropy", "selective_scan")
PER_OPERATION = 200


def load(file):
    """A module of this folder, by its file's name."""
    spec = importlib.util.spec_from_file_location("plain_" + file.removesuffix(".py"), HERE / file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def runs():
    """Dicts: operation, reference, inputs, file, function, dtype, axes, seed, and three keys more.

    contract has the words after --contract, or ''. also has further references, in the form of a kernel that rounds
    operands which the plain one has not. other_algorithm is true where the kernel does not walk the recurrence.
    """
    for operation in OPERATIONS:
        module = load(f"{operation}_right.py")
        count = 0
        for turn in itertools.count():
            for at, (function, (contract, dtypes, *forms)) in enumerate(module.KERNELS.items()):
                for dtype in dtypes:
                    if count == PER_OPERATION:
                        break
                    yield {
                        "operation": operation,
                        "reference": f"{operation}.py:{operation}",
                        "inputs": f"{operation}.py:inputs",
                        "file": f"{operation}_right.py",
                        "function": function,
                        "dtype": dtype,
                        "axes": dict(module.AXES[(at + turn) % len(module.AXES)]),
                        "seed": 100 * turn + count,
                        "contract": contract.format(dtype=dtype),
                        "also": [f"{operation}.py:{form}" for form in forms if dtype != "float32"],
                        "other_algorithm": function.rsplit("_", 1)[0] in getattr(module, "OTHER", ()),
                    }
                    count += 1
            if count == PER_OPERATION:
                break
