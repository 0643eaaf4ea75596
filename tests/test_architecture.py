"""The page on architecture names files that exist and the rooms that import-linter checks."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/explanation/architecture.md").read_text()


def test_its_files_exist() -> None:
    paths = set(re.findall(r"`((?:workbench|campaigns)/[\w/]+(?:\.py|/))`", PAGE))
    assert len(paths) > 20
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_its_rooms_are_those_of_the_linter_and_of_the_folder() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    floors = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    known = {name.strip(" ()") for floor in floors for name in re.split(r"[|:]", floor)}
    rooms = {path.parent.name for path in (ROOT / "workbench").glob("*/__init__.py")}
    told = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) & known
    assert rooms and told == rooms <= known


def test_its_table_is_the_table_of_the_reference() -> None:
    lines = re.findall(r'^"(\w+)": +(Stage\(.*?\)),(?: +#.*)?$', PAGE, re.MULTILINE)
    source = " ".join((ROOT / "workbench" / "reference" / "attention.py").read_text().split())
    assert len(lines) >= 5
    for name, stage in lines:
        plain = re.sub(r"\s+", " ", stage)
        assert f'"{name}": {plain}' in source, name
