"""Which laws each known fault breaks, as `workbench explain` reads it; `python -m campaigns.signatures` measures it."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import campaigns.faults  # noqa: F401  (the whole catalogue)
from campaigns.laws import measure
from workbench.cuda.faults.catalogue import CATALOGUE

FILE = Path(__file__).parent.parent / "workbench/explore/laws/signatures.json"


def document(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Fault -> what it is and its laws, of rows of `campaigns.laws`; without those that changed no bit."""
    known = [(CATALOGUE[row["fault"]], sorted(row["broken"])) for row in rows if row["broken"]]
    found = {one.id: {"summary": one.summary, "stages": one.stages, "laws": laws} for one, laws in known}
    return {"schema": "workbench.laws-signatures/2", "faults": found}


def write(rows: Sequence[Mapping[str, Any]]) -> None:
    """Put them beside what reads them."""
    FILE.write_text(json.dumps(document(rows), indent=1) + "\n")


if __name__ == "__main__":
    write(measure(jobs=int(sys.argv[1]) if len(sys.argv) > 1 else 2)["faults"])
