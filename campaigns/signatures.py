"""Which laws each known fault breaks, as `workbench explain` reads it; `python -m campaigns.signatures` measures it."""

import json
import sys
from pathlib import Path

import campaigns.faults  # noqa: F401  (the whole catalogue)
from campaigns.laws import measure
from workbench.cuda.faults.catalogue import CATALOGUE

FILE = Path(__file__).parent.parent / "workbench/explore/laws/signatures.json"


def document(rows):
    """Fault -> what it is and its laws, of rows of `bench.laws`; without those that changed no bit."""
    known = [(CATALOGUE[row["fault"]], sorted(row["broken"])) for row in rows if row["broken"]]
    found = {one.id: {"summary": one.summary, "stages": one.stages, "laws": laws} for one, laws in known}
    return {"schema": "workbench.laws-signatures/2", "faults": found}


def write(rows):
    FILE.write_text(json.dumps(document(rows), indent=1) + "\n")


if __name__ == "__main__":
    write(measure(jobs=int(sys.argv[1]) if len(sys.argv) > 1 else 2)["faults"])
