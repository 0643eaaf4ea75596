"""Every sentence that a user may read: what the code can print, help texts, and the pages of the documentation.

A sentence of the code is a string literal with three words in a row that is neither a docstring nor source code; what
an f-string fills in is shown in braces. The docstring of a command is its help. A sentence of a page is split off its
prose; blocks of code are left out.
"""

import ast
import io
import re
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

SCHEMA = "workbench.sentences/1"
ROOT = Path(__file__).parent.parent
CODE = ("workbench/*.py", "campaigns/*.py")
#: packages of kernels that campaigns judge: their truths are data, fixed before the first run
_DATA = re.compile(r"campaigns/(backward_reports|blackbox|cheats|in_models|independent|merges|reports|styles|twins)/")
PAGES = ("README.md", "CONTRIBUTING.md", "docs/*.md", "workbench/report/page/page.html")
_WORDS = re.compile(r"[A-Za-z{][\w{}'-]*,? [a-z{][\w{}'-]*,? [a-z{][\w{}'-]*")
_CODE_BLOCK = re.compile(r"```.*?```|<!--.*?-->|<(script|style)>.*?</\1>", re.DOTALL)
_ENDS = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`\[*(])|\n\s*\n|\n(?=[-*#|\d])|(?<=\|)\s")
#: counts of the document that are shown below those of folders
_COUNTS = ("words", "before", "words_before", "new", "gone")
#: more lines than a message has: the literal is source code
_MOST_LINES = 4


@dataclass(frozen=True)
class Sentence:
    """What a user may read, and where it is written."""

    file: str
    line: int
    text: str


def measure(since: str = "", draw: int = 0, seed: int = 0) -> dict[str, Any]:
    """The JSON document: how many sentences and words there are, by folder. `since`: a revision of git; how many of
    today's were not there, and how many of its own are gone. `draw`: so many sentences at random are listed.
    """
    now = [*of_files(_now)]
    document = {"schema": SCHEMA, "sentences": len(now), "words": _words(now), "folders": _folders(now)}
    if since:
        before = [*of_files(lambda patterns: _at(since, patterns))]
        old, new = ({one.text for one in some} for some in (before, now))
        document |= {
            "since": since,
            "before": len(before),
            "words_before": _words(before),
            "new": sum(one.text not in old for one in now),
            "gone": sum(one.text not in new for one in before),
        }
    if draw:
        chosen = np.random.default_rng(seed).choice(len(now), min(draw, len(now)), replace=False)
        document["drawn"] = [asdict(now[i]) for i in sorted(chosen)]
    return document


def tables(found: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Counts, then the sentences that were drawn, as tables for a screen."""
    total = {"folder": "all", "sentences": found["sentences"]}
    folders = [{"folder": name, "sentences": n} for name, n in found["folders"].items()]
    counts = [{"what": name, "count": found[name]} for name in _COUNTS if name in found]
    drawn = [{"at": f"{one['file']}:{one['line']}", "text": one["text"]} for one in found.get("drawn", ())]
    return [one for one in ([*folders, total], counts, drawn) if one]


def of_files(read: Any) -> Iterator[Sentence]:
    """The sentences of all files; `read`: patterns -> pairs of a file's name and its text."""
    for name, text in read(CODE):
        if "/tests/" not in name and not (_DATA.match(name) and not name.endswith("/measure.py")):
            yield from of_code(name, text)
    for name, text in read(PAGES):
        yield from of_page(name, text)


def of_code(name: str, source: str) -> Iterator[Sentence]:
    """The sentences of a file of Python, in the order of its lines."""
    tree = ast.parse(source)
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and _docstring(node):
            if not _is_command(node):
                skipped.add(id(node.body[0].value))  # type: ignore[attr-defined]
        elif isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
    strings = (node for node in ast.walk(tree) if isinstance(node, ast.Constant | ast.JoinedStr))
    for node in sorted(strings, key=lambda node: (node.lineno, node.col_offset)):
        text = "" if id(node) in skipped else _text(node)
        if _WORDS.search(text) and text.count("\n") <= (10**3 if "\n\n" in text else _MOST_LINES):
            yield Sentence(name, node.lineno, " ".join(text.split()))


def of_page(name: str, source: str) -> Iterator[Sentence]:
    """The sentences of a page, without its blocks of code."""
    prose = _CODE_BLOCK.sub(lambda found: "\n" * found[0].count("\n"), source)
    at = 0
    for part in _ENDS.split(prose):
        if part is None:
            continue
        at = max(prose.find(part, at), at)
        text = re.sub(r"<[^>]*>", "", part)
        if _WORDS.search(text):
            yield Sentence(name, prose.count("\n", 0, at) + 1, " ".join(text.split()))


def _docstring(node: Any) -> bool:
    first = node.body[0] if node.body else None
    return isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)


def _is_command(node: Any) -> bool:
    decorators = [ast.unparse(one) for one in getattr(node, "decorator_list", ())]
    return any(".command(" in one or one.startswith("click.group") for one in decorators)


def _text(node: ast.Constant | ast.JoinedStr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    parts = (str(x.value) if isinstance(x, ast.Constant) else f"{{{ast.unparse(x.value)}}}" for x in node.values)  # type: ignore[attr-defined]
    return "".join(parts)


def _words(some: list[Sentence]) -> int:
    return sum(len(one.text.split()) for one in some)


def _folders(some: list[Sentence]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for one in some:
        folder = "/".join(one.file.split("/")[:-1][:2]) or one.file
        counts[folder] = counts.get(folder, 0) + 1
    return counts


def _now(patterns: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for name in _git("ls-files", "--", *patterns).splitlines():
        yield name, (ROOT / name).read_text()


def _at(revision: str, patterns: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The files of an older revision, by names that are the same kind of file today."""
    archive = subprocess.run(["git", "archive", revision], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for one in files:
            if one.isfile() and any(fnmatch(one.name, pattern) for pattern in patterns):
                yield one.name, files.extractfile(one).read().decode()  # type: ignore[union-attr]


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout
