"""Who may import heavy libraries, who may print, and what starting the command line may cost; who may import whom is in
pyproject.toml (import-linter).
"""

import ast
import functools
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "workbench").rglob("*.py"))
}


def imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[str]:
    """Absolute names of what `tree`, the source of `module`, imports; `from a import b` gives both a and a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = module.split(".")
            # one dot is the package that holds the module, which is the module itself where it is an __init__.py
            base = parts[: len(parts) - node.level + is_package] if node.level else []
            source = ".".join([*base, *(node.module.split(".") if node.module else [])])
            yield source
            yield from (f"{source}.{alias.name}" for alias in node.names)


def at_import_time(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when a module is imported: no function bodies, no `if TYPE_CHECKING`."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from at_import_time(node.orelse)
            continue
        blocks = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
        blocks += [handler.body for handler in getattr(node, "handlers", [])]
        if not any(blocks):
            yield node
        for block in blocks:
            yield from at_import_time(block)


def prints(tree: ast.AST) -> list[int]:
    """Lines of `tree` that call print."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]


@functools.cache
def parse(module: str) -> ast.Module:
    return ast.parse(SOURCES[module].read_text(), SOURCES[module].name)


def imported_by(module: str) -> set[str]:
    return set(imports(without_types(parse(module)), module, SOURCES[module].name == "__init__.py"))


def without_types(tree: ast.Module) -> ast.Module:
    """The module without what only a type checker reads: types share no arithmetic."""
    kept = [node for node in tree.body if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")]
    return ast.Module(kept, [])


def within(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def importers(library: str) -> list[str]:
    return [module for module in SOURCES if any(within(name, library) for name in imported_by(module))]


def test_scan_sees_every_kind_of_import():
    source = "import numba\ndef f():\n    from ..reference import dense\n    from . import build"
    assert set(imports(ast.parse(source), "workbench.cuda.run", is_package=False)) == {
        "numba",
        "workbench.reference",
        "workbench.reference.dense",
        "workbench.cuda",
        "workbench.cuda.build",
    }
    assert set(imports(ast.parse("from . import run"), "workbench.cuda", is_package=True)) == {
        "workbench.cuda",
        "workbench.cuda.run",
    }


def test_scan_sees_what_runs_at_import():
    source = """
if TYPE_CHECKING:
    import a
try:
    import b
except ImportError:
    import c
class C:
    import d
def f():
    import e
"""
    names = (name for node in at_import_time(ast.parse(source).body) for name in imports(node, "m", is_package=False))
    assert list(names) == ["b", "c", "d"]


def test_scan_leaves_out_types():
    tree = without_types(ast.parse("if TYPE_CHECKING:\n    import a\nif x:\n    import b\ndef f():\n    import c"))
    assert set(imports(tree, "m", is_package=False)) == {"b", "c"}


def test_scan_sees_prints():
    assert prints(ast.parse("x = 1\ndef f():\n    print(x)\n# print\nconsole.print()")) == [3]


def test_one_file_reaches_up_by_name():
    """What is imported by name is not seen by import-linter; the kernels are of the room that lists them."""
    found = {module: re.findall(r'import_module\(f"([\w.]*)', path.read_text()) for module, path in SOURCES.items()}
    by_name = {module: names for module, names in found.items() if names}
    assert by_name == {"workbench.cuda.kernels": ["workbench.cuda."], "workbench.shown": ["workbench."]}


def test_what_records_show_of_themselves_is_there():
    rooms = {"shown_by": "workbench.report.", "above": "workbench."}
    calls = [
        rooms[node.func.id] + node.args[0].value
        for module in SOURCES
        for node in ast.walk(parse(module))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in rooms
        if isinstance(node.args[0], ast.Constant)
    ]
    assert len(calls) > 10 and "workbench.explore.explain.laws" in calls
    for name in calls:
        module, _, function = name.rpartition(".")
        assert callable(getattr(importlib.import_module(module), function))


def test_numba_only_under_cuda():
    assert [module for module in importers("numba") if not within(module, "workbench.cuda")] == []


def test_matplotlib_only_under_report():
    assert [module for module in importers("matplotlib") if not within(module, "workbench.report")] == []


def test_torch_is_imported_where_it_is_used():
    """It takes a second, and is an extra. Files named torch_ have classes of it, and are imported where they are used."""
    of_torch = {module for module in SOURCES if ".torch_" in module}
    early = [
        (module, name)
        for module, path in SOURCES.items()
        if module not in of_torch
        for node in at_import_time(parse(module).body)
        for name in imports(node, module, path.name == "__init__.py")
        if within(name, "torch") or name in of_torch
    ]
    assert early == []


def test_only_the_command_line_and_reports_print():
    others = (module for module in SOURCES if not within(module, "workbench.cli", "workbench.report"))
    assert {module: lines for module in others if (lines := prints(parse(module)))} == {}


@pytest.mark.parametrize(
    "start",
    ["import workbench", "from workbench.cli.main import main; sys.argv[1:] = ['--help']; main()"],
    ids=["api", "help"],
)
def test_start_is_light(start):
    """numba, matplotlib and torch take half a second or more each; who asks for help waits for none of them."""
    heavy = "{'numba', 'matplotlib', 'torch'} & sys.modules.keys()"
    # at exit, since a command ends the process
    code = f"import atexit, sys; atexit.register(lambda: print('loaded', *{heavy})); {start}"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (run.returncode, run.stderr, run.stdout.splitlines()[-1]) == (0, "", "loaded")


def normalise(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_constraints_pin_every_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *sum(project["optional-dependencies"].values(), [])]
    names = {normalise(re.match(r"[\w.-]+", requirement).group()) for requirement in wanted}
    names.remove(project["name"])  # an extra of several others
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pins = {normalise(line.partition("==")[0]) for line in lines}
    assert names - pins == set()
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
