"""What a user without extras asks, in one process; prints as JSON what came of each: its exit code and what it wrote."""

import contextlib
import io
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import workbench
import workbench.testing
from workbench import Case
from workbench.cli.main import main

SIZES = ("--seqlen", "16", "--head-dim", "8")
NORM = ("--reference", "mine.py:norm", "--inputs", "mine.py:inputs")
COMMANDS = {
    "help": ("--help",),
    "function": ("diff", "mine.py:attention", *SIZES),
    "trace": ("diff", "mine.safetensors"),
    "tensors": ("diff", "mine.npz"),
    "page": ("diff", "mine.py:twice", *SIZES, "--html", "twice.html"),
    "explain": ("explain", "mine.py:twice", *SIZES),
    "reference": ("diff", "mine.py:norm_without_root", *NORM, "--html", "norm.html"),
    "kernels": ("kernels",),
    "built-in kernel": ("diff", "flash"),
    "check": ("check", "mine.py:attention", *SIZES),
    "sweep": ("sweep", "flash", "--out", "flash.sqlite"),
    "calibrate": ("calibrate",),
    "pictures": ("diff", "mine.py:attention", *SIZES, "--out", "pictures"),
    "picture": ("measure", "mine.py:attention", *SIZES, "--picture", "measured.png"),
    "shrink": ("shrink", "mine.py:twice", *SIZES),
    "torch": ("diff", "torch:scaled_dot_product_attention", *SIZES),
    "bench": ("bench", "kernel", "flash"),
}
CALLS: dict[str, Callable[[], Any]] = {
    "run": lambda: workbench.run("flash"),
    "kernel": lambda: workbench.kernel("flash"),
    "cases": lambda: workbench.testing.cases,
    "plot": lambda: judged.plot(),
    "shrink()": lambda: workbench.shrink(workbench.diff(workbench.run(twice, case))),
}


def said(words: tuple[str, ...]) -> list[Any]:
    """Exit code, stdout and stderr of a command."""
    sys.argv = ["workbench", *words]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            main()
            code: Any = 0
        except SystemExit as ended:
            code = ended.code or 0
    return [code, out.getvalue(), err.getvalue()]


def raised(call: Callable[[], Any]) -> str:
    """What a call raises for want of an extra."""
    try:
        return f"nothing was raised: {call()!r}"
    except workbench.Unavailable as missing:
        return str(missing)


if __name__ == "__main__":
    from mine import attention, twice

    case = Case(seqlen=16, head_dim=8)
    trace = workbench.run(attention, case)
    judged = workbench.diff(trace)
    workbench.save(trace, "mine.safetensors")
    np.savez("mine.npz", **{name: trace.inputs[name] for name in "qkv"}, out=trace.stages["out"])
    workbench.testing.assert_attention(attention, case)
    failed = ""
    try:
        workbench.testing.assert_attention(twice, case)
    except AssertionError as error:
        failed = str(error)
    found = {name: said(words) for name, words in COMMANDS.items()}
    json.dump({**found, **{name: raised(call) for name, call in CALLS.items()}, "failed": failed}, sys.__stdout__)
