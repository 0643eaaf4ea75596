"""Records are shown by functions of the room `report`, which they name as texts: every text is one that is there."""

import re
from importlib import import_module
from pathlib import Path

import workbench

NAMED = re.compile(r'shown_by\(\s*"([\w.]+)"')


def test_what_records_are_shown_by_is_there() -> None:
    sources = Path(workbench.__file__).parent.rglob("*.py")
    names = sorted({name for source in sources for name in NAMED.findall(source.read_text())})
    lacking = []
    for name in names:
        module, _, function = name.rpartition(".")
        if not callable(getattr(import_module(f"workbench.report.{module}"), function, None)):
            lacking.append(name)
    assert len(names) > 10 and lacking == []
