"""The options of a run print themselves as the command line that gives them."""

import shlex
from dataclasses import fields, replace

import click
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from workbench.case.options import AT_REST, FOREIGN, ROLES, Options, of_role
from workbench.cli.options import given as asked_for
from workbench.cli.options import run_options
from workbench.foreign.feed import parse


@run_options
def _command(**options: object) -> None:
    """Stand-in for a command."""


def parsed(words: list[str]) -> Options:
    """The options of words of the command line."""
    command = click.Command("runs", params=list(reversed(_command.__click_params__)))  # type: ignore[attr-defined]
    options = asked_for(command.make_context("runs", words).params)
    return Options(**options | {"feed": parse(options.get("feed", ()))})


WORD = st.text("abc d'=$", min_size=1).map(str.strip).filter(bool)
SIZE = st.floats(0.001, 9).map(lambda x: float(f"{x:g}"))
VALUES = {
    "faults": st.just(()),
    "backend": st.sampled_from(["emulator", "cuda"]),
    "isolate": st.just(True),
    "runs": st.integers(2, 9),
    "timeout": SIZE,
    "memory_gb": SIZE,
    "limit_gb": SIZE,
    "feed": st.dictionaries(st.sampled_from(["acc", "out", "lse"]), st.sampled_from(["reference", "a file.npz"])),
    **dict.fromkeys(("calibration", "contract", "where", "inputs"), WORD),
    # an equals sign is behind a word of theirs
    **dict.fromkeys(("arrays", "device", "layout", "probes"), WORD.filter(lambda said: "=" not in said)),
}


@given(st.fixed_dictionaries({}, optional=VALUES))
def test_the_words_of_options_give_them(chosen: dict) -> None:
    assert {*VALUES} == {*ROLES} - {*of_role(AT_REST)}
    options = Options(**chosen)
    found = parsed(shlex.split(" ".join(options.words())))
    limited = options.timeout is not None or options.memory_gb is not None
    assert found == replace(options, isolate=options.isolate or limited), "a limit is of a process of its own"


def test_every_option_has_a_taker() -> None:
    assert [one.name for one in fields(Options)] == [*ROLES] and "contract" in of_role(FOREIGN)


def test_what_a_command_line_says() -> None:
    array = np.zeros(3)
    options = Options(
        faults=["late"], backend="cuda", isolate=True, timeout=5.0, contract={"block_k": 64, "fast_math": True},
        inputs=(array, array, array), feed={"acc": array, "out": "reference"},
    )  # fmt: skip
    told = options.printable()
    assert told == Options(timeout=5.0, contract="block_k=64,fast_math=true", feed={"acc": "", "out": "reference"})
    assert told.words() == [
        "--contract", "block_k=64,fast_math=true", "--isolate", "timeout=5", "--feed", "out=reference"
    ]  # fmt: skip
    assert Options(contract={}).printable().words() == Options(contract="").printable().words() == []
    assert options.given(FOREIGN) == ["isolate", "contract", "timeout"]


def test_options_of_two_runs() -> None:
    a, b = Options(arrays="torch", where="q=3"), Options(arrays="cupy", device="cuda", where="q=3")
    assert a.beside(b) == Options(arrays="torch", device="cuda", where="q=3")


def test_one_fault_may_be_given_by_itself():
    assert Options(faults="no-saturation") == Options(faults=["no-saturation"])
