"""Tests that `make test` spares: another one runs each line of the package that they run, or nearly. `make campaigns`
runs them.

    SPARED=folder pytest -n 2 -p campaigns.spared  which lines each test runs, and its CPU seconds; Python 3.12 or newer
    python -m campaigns.spared FOLDER [ROWS.json]  writes tests/spared.txt

Tests whose work no line shows are kept: of compiled kernels, of other processes, of the repository itself. So are those
that killed a mutant in ROWS.json, which `python -m campaigns.mutants run` writes.
"""

import json
import os
import re
import resource
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = f"{ROOT}/workbench/"
SPARED = ROOT / "tests" / "spared.txt"
#: CPU seconds of a test that is worth sparing, and those of other processes, whose lines nobody sees
WORTH_S, UNSEEN_S = 0.03, 0.05
#: CPU seconds for each line that no other test runs, above which a test is left to `make campaigns` all the same
DEAR_S = 0.3
#: tests that are kept whatever lines they run
KEPT = re.compile(r"tests/(test_|cuda/|examples/)|workbench/|campaigns/")

Ran = Mapping[str, tuple[float, float, Set[str]]]  #: test -> CPU seconds, those of other processes, lines

_ran: dict[str, tuple[float, float, set[str]]] = {}
_lines: set[str] = set()


def _cpu() -> tuple[float, float]:
    own, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime, others.ru_utime + others.ru_stime


def _line(code: Any, line: int) -> Any:
    if code.co_filename.startswith(PACKAGE):
        _lines.add(f"{code.co_filename[len(PACKAGE) :]}:{line}")
    return sys.monitoring.DISABLE  # type: ignore[attr-defined]


def pytest_configure() -> None:
    """Watch lines, each once for a test."""
    watch = sys.monitoring  # type: ignore[attr-defined]
    watch.use_tool_id(watch.COVERAGE_ID, "spared")
    watch.register_callback(watch.COVERAGE_ID, watch.events.LINE, _line)
    watch.set_events(watch.COVERAGE_ID, watch.events.LINE)


def pytest_runtest_protocol(item: Any) -> None:
    """Watch anew."""
    _lines.clear()
    sys.monitoring.restart_events()  # type: ignore[attr-defined]
    own, others = _cpu()
    _ran[item.nodeid] = own, others, set()


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Note what the test ran."""
    if nodeid in _ran:  # of the process that runs it
        begun, (own, others) = _ran[nodeid], _cpu()
        _ran[nodeid] = own - begun[0], others - begun[1], {*_lines}


def pytest_sessionfinish() -> None:
    """Write what was seen."""
    watch = sys.monitoring  # type: ignore[attr-defined]
    watch.free_tool_id(watch.COVERAGE_ID)
    found = {test: (own, others, sorted(lines)) for test, (own, others, lines) in _ran.items()}
    (Path(os.environ["SPARED"]) / f"{os.getpid()}.json").write_text(json.dumps(found))


def spared(ran: Ran, killers: Set[str] = frozenset()) -> Iterator[str]:
    """Tests each of whose lines another one runs that is not spared, the dearest first, and those that take more than
    DEAR_S for each line that none runs; none of the `killers`.
    """
    counts = Counter(line for *_, lines in ran.values() for line in lines)
    for test, (own, others, lines) in sorted(ran.items(), key=lambda one: -one[1][0]):
        if KEPT.match(test) or test in killers or own < WORTH_S or others > UNSEEN_S:
            continue
        if own > DEAR_S * sum(counts[line] == 1 for line in lines):
            counts.subtract(lines)
            yield test


def killers_of(rows: str) -> Set[str]:
    """The tests that killed a mutant."""
    told = [row["killed_by"] for row in json.loads(Path(rows).read_text())]
    return {one.removeprefix("FAILED ").partition(" - ")[0] for one in told if one.startswith("FAILED ")}


def main() -> None:
    """Put the files of the processes together."""
    ran: dict[str, tuple[float, float, set[str]]] = {}
    for path in sorted(Path(sys.argv[1]).glob("*.json")):
        read = json.loads(path.read_text())
        ran |= {test: (own, others, {*lines}) for test, (own, others, lines) in read.items()}
    found = sorted(spared(ran, killers_of(sys.argv[2]) if len(sys.argv) > 2 else frozenset()))
    SPARED.write_text("".join(f"{test}\n" for test in found))
    print(f"{len(found)} tests, {sum(ran[test][0] for test in found):.0f} s")


if __name__ == "__main__":
    main()
