"""Mutation tests of the suite: small wrong edits of sources, drawn from a seed, and which of them the tests notice.

    python -m campaigns.mutants draw REACH.json OUT.json     25 faults of kernels, 60 edits of judge and reference
    python -m campaigns.mutants run MUTANTS.json REACH.json OUT.json [--jobs N] [--seconds S]

REACH.json holds, for each test file, the lines that its tests ran: {"tests/x.py": {"workbench/y.py": [1, 2]}}, as
`pytest -p campaigns.reach` writes it. Each mutant is tried in a copy of the tree with `pytest -x` on the test files
that ran the changed line; one that no test notices, or that no test reaches, survives.
"""

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Queue

SEED = 32
FAULTS = 25
EDITS_OF_A_KIND = 15
ROOMS = ("workbench/judge/", "workbench/reference/")
#: tests of the catalogue itself notice any change of the lines that a fault names, whatever it does
CATALOGUE_TESTS = "tests/cuda/faults/"
SIGNS: dict[type[ast.operator], str] = {ast.Add: "-", ast.Sub: "+"}
ORDERS: dict[type[ast.cmpop], str] = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}

Reach = dict[str, dict[str, list[int]]]


@dataclass(frozen=True)
class Mutant:
    """`before` at `offset` of `file` becomes `after`."""

    kind: str
    file: str
    line: int
    offset: int
    before: str
    after: str

    def applied(self, text: str) -> str:
        """The source with the edit; AssertionError where it is another source."""
        end = self.offset + len(self.before)
        assert text[self.offset : end] == self.before, f"{self.file}:{self.line} has changed"
        return text[: self.offset] + self.after + text[end:]


def edits(file: str, text: str) -> Iterator[Mutant]:
    """Every small edit of a source: a sign, off by one, a bound halved, a condition negated."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def place(line: int, column: int) -> int:
        row = text[starts[line - 1] : starts[line]]
        return starts[line - 1] + len(row.encode()[:column].decode())

    def edit(kind: str, node: ast.expr, after: str) -> Mutant:
        start, end = place(node.lineno, node.col_offset), place(node.end_lineno or 0, node.end_col_offset or 0)
        return Mutant(kind, file, node.lineno, start, text[start:end], after)

    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.BinOp) and type(node.op) in SIGNS:
            left, right = ast.get_source_segment(text, node.left), ast.get_source_segment(text, node.right)
            yield edit("sign", node, f"(({left}) {SIGNS[type(node.op)]} ({right}))")
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            yield edit("sign", node, f"({ast.get_source_segment(text, node.operand)})")
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in ORDERS:
            left, right = ast.get_source_segment(text, node.left), ast.get_source_segment(text, node.comparators[0])
            yield edit("off by one", node, f"(({left}) {ORDERS[type(node.ops[0])]} ({right}))")
        if isinstance(node, ast.Constant) and type(node.value) is int:
            yield edit("off by one", node, str(node.value + 1))
        if isinstance(node, ast.Constant) and (type(node.value) is float or type(node.value) is int and node.value > 1):
            yield edit("halved", node, repr(node.value / 2 if type(node.value) is float else node.value // 2))
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            yield edit("negated", node.test, f"(not ({ast.get_source_segment(text, node.test)}))")


def draw(reach: Reach) -> list[Mutant]:
    """Faults of the catalogue to write into kernels' sources, and edits of lines of judge and reference that ran."""
    import campaigns.faults  # noqa: F401  (the whole catalogue)
    from workbench.cuda.faults.catalogue import CATALOGUE
    from workbench.cuda.kernels import KERNELS

    rng = random.Random(SEED)
    chosen = []
    for fault in rng.sample(sorted(CATALOGUE.values(), key=lambda fault: fault.id), FAULTS):
        path = Path("workbench/cuda") / (fault.file or Path(KERNELS[fault.kernel].file).name)
        offset = path.read_text().index(fault.before)
        line = path.read_text()[:offset].count("\n") + 1
        chosen.append(Mutant(f"fault {fault.id}", str(path), line, offset, fault.before, fault.after))
    ran: dict[str, set[int]] = {}
    for files in reach.values():
        for file, lines in files.items():
            if file.startswith(ROOMS):
                ran.setdefault(file, set()).update(lines)
    candidates = [one for file in sorted(ran) for one in edits(file, Path(file).read_text()) if one.line in ran[file]]
    for kind in ("sign", "off by one", "halved", "negated"):
        chosen += rng.sample([one for one in candidates if one.kind == kind], EDITS_OF_A_KIND)
    return chosen


def reaching(mutant: Mutant, reach: Reach) -> list[str]:
    """The test files that ran the line, those that ran least first; of a kernel's source, which no test sees run, those
    that planned its builds, those that bear its name first.
    """
    kernel = mutant.kind.startswith("fault")
    stem = Path(mutant.file).stem
    found = []
    for tests, files in reach.items():
        if kernel and tests.startswith(CATALOGUE_TESTS):
            continue
        if mutant.file in files if kernel else mutant.line in files.get(mutant.file, ()):
            found.append((not (kernel and stem in tests), sum(map(len, files.values())), tests))
    return [tests for *_, tests in sorted(found)]


def tried(mutant: Mutant, tests: list[str], tree: Path, seconds: float) -> tuple[str, float]:
    """What became of a mutant in a copy of the tree: the test that failed, "" for none, "timeout"."""
    path, began = tree / mutant.file, time.monotonic()
    if not tests:
        return "", 0.0
    clean = path.read_text()
    path.write_text(mutant.applied(clean))
    try:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not gpu", "-p", "no:cacheprovider", *tests]
        paths = filter(None, (str(tree), os.environ.get("PYTHONPATH")))  # for processes that tests start
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=seconds, env=env)
        failed = [x for x in done.stdout.splitlines() if x.startswith(("FAILED", "ERROR"))]
        killed = failed[0][:200] if failed else "" if done.returncode == 0 else f"exit {done.returncode}"
    except subprocess.TimeoutExpired:
        killed = "timeout"
    finally:
        path.write_text(clean)
    return killed, time.monotonic() - began


def run(mutants: list[Mutant], reach: Reach, jobs: int, seconds: float) -> list[dict[str, object]]:
    """Each mutant with what became of it, on several copies of the tree at once."""
    trees: Queue[Path] = Queue()
    with tempfile.TemporaryDirectory() as folder:
        for job in range(jobs):
            skip = shutil.ignore_patterns(".git", ".venv", ".whl", "__pycache__", ".hypothesis")
            trees.put(Path(shutil.copytree(".", Path(folder) / str(job), ignore=skip, symlinks=True)))

        def one(mutant: Mutant) -> dict[str, object]:
            tests, tree = reaching(mutant, reach), trees.get()
            try:
                killed, took = tried(mutant, tests, tree, seconds)
            finally:
                trees.put(tree)
            row = {**asdict(mutant), "killed_by": killed, "seconds": round(took, 1), "test_files": len(tests)}
            print(f"{mutant.kind:40.40} {mutant.file}:{mutant.line} {took:5.0f} s  {killed or 'SURVIVED'}", flush=True)
            return row

        with ThreadPoolExecutor(jobs) as pool:
            return list(pool.map(one, mutants))


def main() -> None:
    """Draw or run."""
    parser = argparse.ArgumentParser(prog="python -m campaigns.mutants")
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw")
    running = commands.add_parser("run")
    running.add_argument("mutants", type=Path)
    for one in (drawing, running):
        one.add_argument("reach", type=Path)
        one.add_argument("out", type=Path)
    running.add_argument("--jobs", type=int, default=2)
    running.add_argument("--seconds", type=float, default=600.0)
    asked = parser.parse_args()
    reach = json.loads(asked.reach.read_text())
    if asked.command == "draw":
        asked.out.write_text(json.dumps([asdict(one) for one in draw(reach)], indent=1))
    else:
        mutants = [Mutant(**one) for one in json.loads(asked.mutants.read_text())]
        rows = run(mutants, reach, asked.jobs, asked.seconds)
        asked.out.write_text(json.dumps(rows, indent=1))
        print(f"{sum(bool(row['killed_by']) for row in rows)} of {len(rows)} killed")


if __name__ == "__main__":
    main()
