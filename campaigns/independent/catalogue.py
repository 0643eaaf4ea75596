"""All faults, all benign variants and the kernels that both are derived from, by name."""

from collections.abc import Mapping

from campaigns.independent import layouts, masks, merges, outputs, precision, softmax
from campaigns.independent.benign import BENIGN as BENIGN
from campaigns.independent.eager import eager
from campaigns.independent.fault import Attention, Independent
from campaigns.independent.online import flash
from campaigns.independent.packed import packed
from campaigns.independent.split import decode, split_k

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
