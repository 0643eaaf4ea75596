"""A plugin of pytest that writes which lines of workbench/ each test file ran, into the folder REACH: a file for each
process, put together by `python -m campaigns.reach FOLDER OUT.json`. Python 3.12 or newer (PEP 669).

    REACH=folder pytest -p campaigns.reach

A test file counts as running a kernel's source where it ran the file that plans its builds: compiled code has no lines.
"""

import json
import os
import sys
from collections import defaultdict
from pathlib import Path

ROOT = f"{Path(__file__).resolve().parent.parent}/"
PACKAGE = f"{ROOT}workbench/"
#: what plans the builds of several sources
PLANNED = {
    "workbench/cuda/flash_build.py": ("workbench/cuda/flash.py", "workbench/cuda/split_k.py"),
    "workbench/cuda/split_mma_build.py": ("workbench/cuda/split_mma.py", "workbench/cuda/split_mma_reduce.py"),
    "workbench/cuda/fp8_mma.py": ("workbench/cuda/flash_mma.py",),
    "workbench/cuda/fp8_wgmma.py": ("workbench/cuda/flash_wgmma.py",),
    "workbench/cuda/fp8_build.py": ("workbench/cuda/fp8.py", "workbench/cuda/quantize.py"),
}
ran: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
current = ""


def _line(code, line):
    if current and code.co_filename.startswith(PACKAGE):
        ran[current][code.co_filename[len(ROOT) :]].add(line)
    return sys.monitoring.DISABLE


def pytest_configure():
    """Watch lines, each once for a test file."""
    tool = sys.monitoring.COVERAGE_ID
    sys.monitoring.use_tool_id(tool, "reach")
    sys.monitoring.register_callback(tool, sys.monitoring.events.LINE, _line)
    sys.monitoring.set_events(tool, sys.monitoring.events.LINE)


def pytest_runtest_protocol(item):
    """Watch again where another file begins."""
    global current
    file = item.location[0]
    if file != current:
        current = file
        sys.monitoring.restart_events()


def pytest_sessionfinish():
    """Write what was seen."""
    sys.monitoring.free_tool_id(sys.monitoring.COVERAGE_ID)
    found = {tests: {file: sorted(lines) for file, lines in files.items()} for tests, files in ran.items()}
    (Path(os.environ["REACH"]) / f"{os.getpid()}.json").write_text(json.dumps(found))


def main() -> None:
    """Put the files of the processes together, and what plans a kernel's builds beside its source."""
    folder, out = map(Path, sys.argv[1:])
    whole: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for path in sorted(folder.glob("*.json")):
        for tests, files in json.loads(path.read_text()).items():
            for file, lines in files.items():
                whole[tests][file].update(lines)
                for source in PLANNED.get(file, (file.replace("_build.py", ".py"),)):
                    whole[tests][source].add(0)
    out.write_text(json.dumps({t: {f: sorted(x) for f, x in files.items()} for t, files in whole.items()}))


if __name__ == "__main__":
    main()
