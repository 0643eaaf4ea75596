"""The public names of `workbench` and `workbench.testing`: listed in stubs, imported when first used."""

import doctest
import subprocess
import sys
from pathlib import Path

import pytest

import workbench
import workbench.testing
from workbench.lazy import names

PUBLIC = (
    "Case, run, load, save, diff, explain, Diff, Trace, sweep, shrink, accept, capture, compare_runs, measure, laws, "
    "check, kernel, stage, Refusal, Unavailable"
)
#: name that was public -> the line that imports it now
MOVED = {
    "table": "from workbench.judge.table import table",
    "load_inputs": "from workbench.trace.inputs import load as load_inputs",
    "load_ranks": "from workbench import load as load_ranks",
}


def test_the_public_names_are_these_and_no_more() -> None:
    assert {*workbench.__all__} == {*PUBLIC.split(", ")} and len(workbench.__all__) == 20
    assert {*workbench.__all__} < {*dir(workbench)}


@pytest.mark.parametrize("package", [workbench, workbench.testing])
def test_each_name_of_a_stub_is_what_it_says(package: object) -> None:
    listed = names(package.__file__)  # type: ignore[attr-defined]
    assert listed
    for name, (module, own) in listed.items():
        assert getattr(package, name) is getattr(sys.modules[module], own)


@pytest.mark.parametrize("package", [workbench, workbench.testing])
def test_each_public_name_has_an_example_that_runs(package: object, capsys: pytest.CaptureFixture[str]) -> None:
    """`--doctest-modules` runs those of a file, but for classes that say they are of the package; what is data is
    documented by its module.
    """
    without = []
    for name, (module, own) in names(package.__file__).items():  # type: ignore[attr-defined]
        public = getattr(package, name)
        documented = public if callable(public) else sys.modules[module]
        examples = doctest.DocTestParser().get_examples(documented.__doc__ or "")
        if not any(not one.options.get(doctest.SKIP) for one in examples):
            without.append(name)
        elif callable(public) and public.__module__ != module:
            doctest.run_docstring_examples(public, {}, name=own)
    assert without == [] and capsys.readouterr().out == ""


def test_packages_tell_type_checkers_that_they_have_types() -> None:
    root = Path(workbench.__file__).parent
    assert (root / "py.typed").is_file() and (root / "__init__.pyi").is_file()


@pytest.mark.parametrize(("name", "line"), MOVED.items())
def test_a_name_that_moved_says_where_it_is(name: str, line: str) -> None:
    with pytest.raises(AttributeError) as asked:
        getattr(workbench, name)
    with pytest.raises(ImportError) as imported:
        exec(f"from workbench import {name}")
    assert str(asked.value) == str(imported.value) == f"workbench.{name} has moved: {line}"
    assert not hasattr(workbench, name)
    exec(line)


def test_every_moved_name_is_where_it_is_said_to_be() -> None:
    for name in workbench._MOVED:
        with pytest.raises(AttributeError) as moved:
            getattr(workbench, name)
        exec(str(moved.value).partition("has moved: ")[2])


def test_no_other_name_is_there() -> None:
    with pytest.raises(AttributeError, match="^module 'workbench' has no attribute 'dif'$"):
        workbench.dif  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'dif' from 'workbench'"):
        exec("from workbench import dif")


def test_importing_the_packages_imports_nothing_heavy() -> None:
    code = (
        "import sys, workbench, workbench.testing; print({'ast', 'numpy', 'click', 'workbench.case'} & {*sys.modules})"
    )
    root = Path(workbench.__file__).parent.parent
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout == "set()\n"
