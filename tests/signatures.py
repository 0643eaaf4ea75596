"""Which laws each known fault breaks, as `workbench explain` reads it: `python -m tests.signatures` measures it anew."""

import json
import sys
from pathlib import Path

from campaigns.laws import measure

FILE = Path(__file__).parent.parent / "workbench/explore/laws/signatures.json"


def document(rows):
    """Fault -> its laws, of rows of `bench.laws`; without those that changed no bit."""
    broken = {row["fault"]: sorted(row["broken"]) for row in rows if row["broken"]}
    return {"schema": "workbench.laws-signatures/1", "faults": broken}


def write(rows):
    FILE.write_text(json.dumps(document(rows), indent=1) + "\n")


if __name__ == "__main__":
    write(measure(jobs=int(sys.argv[1]) if len(sys.argv) > 1 else 2)["faults"])
