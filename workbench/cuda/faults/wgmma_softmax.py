"""Faults of the softmax and of the results of the kernels for Hopper."""

from workbench.cuda.faults.conditions import scaled
from workbench.cuda.faults.fault import Fault
from workbench.cuda.faults.online_softmax import online_softmax

FAULTS: tuple[Fault, ...] = (
    *online_softmax("flash_wgmma", "wgmma", "CAST", -(1 << 16), 12),
    Fault(
        "wgmma-softcap-of-raw-scores",
        "flash_wgmma",
        "scores are capped before they are scaled",
        "                    s[i] = libdevice.fmul_rn(s[i], scale)\n",
        "                    pass\n",
        ("capped",),
        needs={"softcap": 5.0},
        shows=scaled,
        source="synthetic",
    ),
    # of the fraction of float8 (e4m3) 3 bits, of float32 23
    *online_softmax("fp8_wgmma", "fp8-wgmma", "cast", -(1 << 20), 12),
)
