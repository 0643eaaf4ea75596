"""What is refused, in the words that a user reads."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.stored import from_files
from workbench import Refusal
from workbench.cli.main import commands


def _missing() -> str:
    try:
        inspect.signature(lambda *, x: x).bind()
    except TypeError as error:
        return str(error).removesuffix(": 'x'")
    raise AssertionError


#: what this Python says of a missing keyword: 3.12 calls it one, 3.11 an argument
MISSING_KEYWORD = _missing()


def refusal(call: Callable[..., object], *arguments: Any, **options: Any) -> str:
    """The message with which a call is refused."""
    with pytest.raises(Refusal) as refused:
        call(*arguments, **options)
    return str(refused.value)


def invoked(*words: Any) -> Result:
    """What a command does, which reads the traces of our kernels from files (`tests.stored`); a refusal is its
    exception, which `cli.main` ends with exit code 2.
    """
    with from_files():
        return CliRunner().invoke(commands, [str(word) for word in words])


def refused(*words: Any) -> str:
    """The message of a refused command, which prints nothing."""
    result = invoked(*words)
    assert isinstance(result.exception, Refusal) and result.stdout == ""
    return str(result.exception)
