"""How a check is repeated."""

import subprocess
import sys

import numpy as np
import pytest

from workbench import Case
from workbench.case.user_code import function_of
from workbench.foreign.find import find, name_of
from workbench.testing.repeat import python_line


def at_the_top(q, k, v, *, scale, causal):
    return q


class Kernel:
    def method(self, q, k, v, *, scale, causal):
        return q


def test_a_function_at_the_top_of_a_file_has_the_name_of_the_command_line(monkeypatch, request):
    monkeypatch.chdir(request.config.rootpath)
    name = name_of(at_the_top)
    assert name == "tests/testing/test_repeat.py:at_the_top"
    assert find(name).__code__ == at_the_top.__code__
    monkeypatch.chdir("/")
    assert find(name_of(at_the_top)).__code__ == at_the_top.__code__


def test_what_no_file_gives_has_none():
    def local(q, k, v, *, scale, causal):
        return q

    assert [name_of(x) for x in (local, lambda q: q, Kernel().method, Kernel.method, np.matmul, subprocess.run)] == [
        None
    ] * 6


def test_a_function_of_a_module_that_only_its_package_can_import_has_none(tmp_path, monkeypatch):
    package = tmp_path / "of_a_package"
    package.mkdir()
    package.joinpath("__init__.py").touch()
    package.joinpath("numbers_of.py").write_text("ONE = 1\n")
    package.joinpath("kernel.py").write_text("from .numbers_of import ONE\n\ndef attention(q): return q\n")
    monkeypatch.syspath_prepend(tmp_path)
    from of_a_package.kernel import attention

    assert name_of(attention) is None
    with pytest.raises(Exception, match="relative import"):
        function_of(package / "kernel.py", "attention")
    for name in [name for name in sys.modules if name.startswith("of_a_package")]:
        monkeypatch.delitem(sys.modules, name)


def test_the_call_has_the_options_and_names_what_cannot_be_written():
    case = Case(seqlen=8)
    given = {"faults": ["flash-scale-twice"], "probes": "lean"}
    assert (
        python_line("flash", case, given)
        == "assert_attention('flash', Case(seqlen=8), faults=['flash-scale-twice'], probes='lean')"
    )
    arrays = {"q": np.zeros(3)}
    assert (
        python_line(at_the_top, case, {"inputs": arrays})
        == "assert_attention(at_the_top, Case(seqlen=8), inputs=inputs)"
    )
    assert python_line(lambda q: q, case, {}) == "assert_attention(kernel, Case(seqlen=8))"
