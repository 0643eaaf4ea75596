"""The rest of the catalogue: faults beyond those that the package has. Importing this adds them to `CATALOGUE`."""

from campaigns.faults import (
    backward,
    blocks,
    codes,
    flash_mma,
    fp8,
    fp8_mma,
    inputs,
    results,
    scores,
    softmax,
    split_mma,
    wgmma,
)
from workbench.cuda.faults.catalogue import add

#: in data-flow order, those of codes last, and of other operations
FILES = (inputs, scores, softmax, results, flash_mma, split_mma, wgmma, codes, blocks, fp8, fp8_mma, backward)
FAULTS = tuple(fault for file in FILES for fault in file.FAULTS)
add(FAULTS)
