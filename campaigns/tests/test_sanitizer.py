"""The comparison with compute-sanitizer, on reports as it prints them; the tools themselves need a GPU."""

import json

import pytest

from campaigns import sanitizer as bench_sanitizer
from campaigns.sanitizer import main, tables
from workbench.foreign.sanitizer import TOOLS

NOTHING = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
RACE = """========= Error: Race reported between Write access at flash_forward(float)+0x3260 in flash.py:30
=========     and Read access at flash_forward(float)+0x51d0 in flash.py:70 [16384 hazards]
=========
========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)
"""
ELSEWHERE = "========= Invalid __global__ read of size 4 bytes\n========= ERROR SUMMARY: 12 errors\n"


def row(own: list, **reports: str) -> dict:
    results = [(f"a warning\n{json.dumps(own)}\n", [9.0, 1.0])]
    results += [(reports.get(tool, NOTHING), [3.0]) for tool in TOOLS]
    return bench_sanitizer._row(("some-fault", "flash"), results)


def test_a_row_tells_who_found_what() -> None:
    found = row([["flash.py", 70]], racecheck=RACE, memcheck=ELSEWHERE, synccheck="")
    assert found == {
        "fault": "some-fault",
        "kernel": "flash",
        "emulator": {"found": True, "line": True, "seconds": 9.0, "cached_seconds": 1.0},
        "memcheck": {"found": True, "line": False, "seconds": 3.0},
        "racecheck": {"found": True, "line": True, "seconds": 3.0},
        "initcheck": {"found": False, "line": None, "seconds": 3.0},
        "synccheck": {"found": None, "line": None, "seconds": 3.0},
    }
    assert tables({"rows": [found, found | {"fault": ""}], "versions": {"numba": "1"}}) == [
        [
            {
                "fault": fault,
                "kernel": "flash",
                "emulator": "found, line (9 s, 1 s cached)",
                "memcheck": "found (3 s)",
                "racecheck": "found, line (3 s)",
                "initcheck": "- (3 s)",
                "synccheck": "no report (3 s)",
            }
            for fault in ("some-fault", "none")
        ],
        [{"numba": "1"}],
    ]


def test_nothing_found_is_nothing_found() -> None:
    found = row([])
    assert [found[name]["found"] for name in ("emulator", *TOOLS)] == [False] * 5


@pytest.mark.parametrize(("fault", "lines"), [("", False), ("flash-no-barrier-after-load", True)])
def test_the_emulators_process_prints_the_places(fault, lines, capsys) -> None:  # noqa: ANN001
    main("flash", fault, "emulator")
    places = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert bool(places) == lines
    assert all(file == "flash.py" and isinstance(line, int) for file, line in places)
