"""All faults, all benign variants and the kernels that both are derived from, by name."""

from collections.abc import Mapping

from workbench.bench.independent import layouts, masks, merges, outputs, precision, softmax
from workbench.bench.independent.benign import BENIGN as BENIGN
from workbench.bench.independent.eager import eager
from workbench.bench.independent.fault import Attention, Independent
from workbench.bench.independent.online import flash
from workbench.bench.independent.packed import packed
from workbench.bench.independent.split import decode, split_k

CORRECT: Mapping[str, Attention] = {
    "flash": flash,
    "split-k": split_k,
    "decode": decode,
    "packed": packed,
    "eager": eager,
}
FAULTS: Mapping[str, Independent] = {
    **masks.FAULTS,
    **layouts.FAULTS,
    **softmax.FAULTS,
    **merges.FAULTS,
    **precision.FAULTS,
    **outputs.FAULTS,
}
