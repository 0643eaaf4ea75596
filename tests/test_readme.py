"""What README.md shows is what a reader gets: its screens are printed again, its Python is run."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SCREENS = re.findall(r"<!-- screen: ([^>]*) -->\n```\n(.*?)```", README, re.DOTALL)
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)

#: digits differ between machines, whose exp and sums of NumPy's do
NUMBER = re.compile(r"-?\d[\d.e+-]*|[bhqkdst]=\d+")


def without_numbers(text):
    return [re.sub(r"\s+", " ", NUMBER.sub("", line)).strip() for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize(("command", "screen"), SCREENS, ids=[command for command, _ in SCREENS])
def test_screen(command, screen, tmp_path):
    (kernel,) = (block for block in PYTHON if block.startswith("# my_kernel.py"))
    (tmp_path / "my_kernel.py").write_text(kernel)
    words = [sys.executable, "-c", "from workbench.cli import main; main()", *shlex.split(command)[1:]]
    result = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 1, result.stderr
    printed = [
        line for line in without_numbers(result.stdout.replace(f"{ROOT}/", "")) if not line.startswith("repeat:")
    ]
    assert printed == without_numbers(screen)
    assert len(printed) >= 4


def test_python():
    (example,) = (block for block in PYTHON if block.startswith("from workbench import"))
    names = {}
    exec(example, names)
    found = names["d"]
    assert repr((found.verdict, found.origin, found.victims)) in example


def test_links():
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert links
    assert all((ROOT / link).is_file() for link in links)
