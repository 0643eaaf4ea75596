"""Which laws each known fault breaks, as `workbench explain` reads it; `python -m campaigns.signatures` measures it."""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import campaigns.faults  # noqa: F401  (the whole catalogue)
from campaigns.laws import measure
from workbench.case.case import Case
from workbench.cuda.faults.catalogue import CATALOGUE
from workbench.cuda.faults.fault import PARTIAL, Fault
from workbench.refusal import Refusal

FILE = Path(__file__).parent.parent / "workbench/explore/laws/signatures.json"
#: fields that a case must have for faults of them to be possible
_FEATURES = (
    *("causal", "window", "softcap", "alibi_slopes", "sinks", "mask_mod", "dropout_p", "pack_gqa", "page_size"),
    *("seqlens_q", "seqlens_k"),
)
#: fields of which a case must have the fault's own value for it to be possible
_VALUES = ("codes", "scale_of", "alibi_form", "kv_layout")
#: what there may be several of -> a case without
_SEVERAL: Mapping[str, dict[str, Any]] = {
    "batches": {"batch": 1},
    "heads": {"heads": 1, "kv_heads": 1},
    "kv_heads": {"kv_heads": 1},
    "groups": {"heads": 4, "kv_heads": 4},
}
_WITH = Case(
    batch=2, heads=4, kv_heads=2, seqlen_q=140, seqlen_k=157, head_dim=64, scale=0.4, splits=2, block_q=64, block_k=32
)
#: kernels of ours that multiply without tensor cores
_SCALAR = ("flash", "flash_tensor", "split_k", "fp8")
#: what stands in the words of a fault, or its kernel's, that only threads of a GPU can have
_OF_THREADS = re.compile("lane|warp|shuffle|register|fragment|flash_tensor")


def needs(fault: Fault) -> dict[str, Any]:
    """What a case and a kernel must have to have a fault: True, or the value of a field."""
    found: dict[str, Any] = {name: True for name in _FEATURES if fault.needs.get(name) not in (None, False)}
    found |= {name: fault.needs[name] for name in _VALUES if name in fault.needs}
    found |= {name: True for name, without in _SEVERAL.items() if _shows(fault, {}) and not _shows(fault, without)}
    of_kind = {
        "codes": fault.kernel.startswith("fp8") and "codes" not in found,
        "splits": fault.kernel.startswith("split") and _needs_splits(fault),
        "float16": fault.needs.get("dtype", "float32") != "float32",  # or bfloat16
        "width_of_v": "head_dim_v" in fault.needs,
        "tensor_cores": fault.kernel not in _SCALAR or fault.needs.get("scores") == "mma",
        "threads": _OF_THREADS.search(f"{fault.kernel} {fault.id} {fault.summary}") is not None,
    }
    return found | {name: True for name, needed in of_kind.items() if needed}


def _needs_splits(fault: Fault) -> bool:
    """Of a split kernel: whether it is of their merge, or shows where there are several alone."""
    merges = fault.file != PARTIAL and re.search("merge|split", f"{fault.summary} {' '.join(fault.stages)}") is not None
    return merges or (_shows(fault, {}) and not _shows(fault, {"splits": 1}))


def _shows(fault: Fault, changes: Mapping[str, Any]) -> bool:
    """Whether a case can show a fault; so it is where it may not have these changes."""
    own = {name: x for name, x in fault.needs.items() if name != "probs_dtype"}
    try:
        return fault.shows(_WITH.but(**{**own, **changes}))
    except Refusal:
        return True


def document(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Fault -> what it is, needs and breaks, of rows of `campaigns.laws`; without those that changed no bit."""
    known = [(CATALOGUE[row["fault"]], sorted(row["broken"])) for row in rows if row["broken"]]
    found = {
        one.id: {"summary": one.summary, "stages": one.stages, "needs": needs(one), "laws": laws} for one, laws in known
    }
    return {"schema": "workbench.laws-signatures/3", "faults": found}


def write(rows: Sequence[Mapping[str, Any]]) -> None:
    """Put them beside what reads them."""
    FILE.write_text(json.dumps(document(rows), indent=1) + "\n")


if __name__ == "__main__":
    write(measure(jobs=int(sys.argv[1]) if len(sys.argv) > 1 else 2)["faults"])
