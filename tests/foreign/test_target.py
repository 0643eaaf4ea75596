"""What a TARGET is, found once."""

from pathlib import Path

import pytest

from workbench.cuda.kernels import KERNELS
from workbench.foreign import target
from workbench.foreign.run import run
from workbench.foreign.target import Kind, known, target_of, targets_of
from workbench.refusal import Refusal


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with a kernel `theirs`."""
    monkeypatch.setattr(target, "installed", lambda: {"theirs": object()})


def attention() -> None:
    """Stand-in for a kernel."""


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ("flash", Kind.OURS),
        ("mine.py:attention", Kind.FUNCTION),
        (attention, Kind.FUNCTION),
        (3, Kind.FUNCTION),
        ("theirs", Kind.INSTALLED),
        ("run.safetensors", Kind.AT_REST),
        ("a.safetensors,b.safetensors", Kind.AT_REST),
        ("attention", None),
        ("flash,split_k", None),
    ],
)
def test_every_kind_of_target(given: object, kind: Kind | None) -> None:
    found = known(given)  # type: ignore[arg-type]
    assert (None if found is None else found.kind) is kind
    if found is not None:
        assert found.kernel is (KERNELS["flash"] if kind is Kind.OURS else None)
        assert found.is_foreign == (kind in (Kind.FUNCTION, Kind.INSTALLED))


def test_a_folder_is_a_trace_and_several_kernels_are_several_targets(tmp_path: Path) -> None:
    assert target_of(str(tmp_path)).kind is Kind.AT_REST
    assert [found.name for found in targets_of("flash,split_k")] == ["flash", "split_k"]
    assert [found.name for found in targets_of("mine.py:a,b")] == ["mine.py:a,b"]


def test_what_is_no_target_is_refused(tmp_path: Path) -> None:
    ours = ", ".join(KERNELS)
    with pytest.raises(Refusal) as refused:
        target_of("ring")
    assert str(refused.value) == (
        f"unknown kernel 'ring'; kernels are {ours}, theirs; pass your own as path.py:function, a trace as "
        "FILE.safetensors, arrays as FILE.npz or .pt"
    )
    with pytest.raises(Refusal) as refused:
        run("run.safetensors")
    assert str(refused.value) == "run.safetensors is a trace, which cannot be run: read it with `workbench.load`"
    with pytest.raises(Refusal) as refused:
        run(3)  # type: ignore[arg-type]
    assert str(refused.value) == "a target must be a kernel's name, path.py:function, or a function; got 3"


def test_a_file_without_a_name_lists_what_is_in_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "raise RuntimeError('nothing of it runs')\n\n@cuda.jit\ndef tile(x):\n    pass\n\n"
        "def attention(q, k, v):\n    pass\n\ndef _helper():\n    pass\n"
    )
    with pytest.raises(Refusal) as refused:
        target_of(str(file))
    assert str(refused.value) == (
        f"give your kernel as path.py:function; got '{file}'; functions in it: attention; kernels, which a "
        "function launches: tile"
    )
    file.write_text("x = 1\n")
    with pytest.raises(Refusal, match=f"got '{file}'; functions in it: none$"):
        target_of(str(file))
    with pytest.raises(Refusal, match="^nowhere.py: no such file$"):
        target_of("nowhere.py")
