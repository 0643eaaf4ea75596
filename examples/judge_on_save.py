"""Judge a kernel now, and again each time its file is saved; Ctrl-C ends it.

python examples/judge_on_save.py mine.py:attention --seqlen 64,65,128 --causal

The arguments are those of `workbench diff`, the kernel first.
"""

import subprocess
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    source = Path("".join(sys.argv[1:2]).rpartition(":")[0])
    if not source.is_file():
        sys.exit(__doc__)
    judged = None
    while True:
        # an editor that replaces the file leaves a moment without one
        saved = source.stat().st_mtime_ns if source.is_file() else judged
        if saved != judged:
            subprocess.run(["workbench", "diff", *sys.argv[1:]])
            judged = saved
        time.sleep(0.1)
