"""What a shell completes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from workbench.case.distributions import DISTRIBUTIONS
from workbench.case.spellings import WORDS as SPELLED
from workbench.case.stages import ALGORITHMS, PROBE_SETS
from workbench.cli.completion import FILES, WORDS
from workbench.cli.main import commands
from workbench.cli.spec import Spec
from workbench.cuda.faults.catalogue import CATALOGUE
from workbench.cuda.kernels import KERNELS, OF_OPERATIONS
from workbench.floats import DTYPES

DOCS = Path(__file__).parent.parent.parent / "docs"


def completed(*words):
    """What stands for the last of the words typed: values, and "file" where the shell adds its files."""
    found = ShellComplete(commands, {}, "workbench", "_WORKBENCH_COMPLETE").get_completions([*words[:-1]], words[-1])
    return ["file" if item.type == "file" else item.value for item in found]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("diff", ""), ["file", *KERNELS]),
        (("diff", "spl"), ["file", "split_k", "split_mma"]),
        (("check", "fl"), ["file", "flash", "flash_tensor", "flash_mma", "flash_wgmma"]),
        (("diff", "flash,"), ["file", *(f"flash,{name}" for name in KERNELS)]),
        (("diff", "--operation", "attention_backward", ""), ["file", *OF_OPERATIONS]),
        (("check", "backward_atomic", "--fault", ""), ["atomic-dq-without-atomics"]),
        (("diff", "flash", "--dtype", ""), [*DTYPES, "probs="]),
        (("diff", "flash", "--dtype", "float16,probs=float32/b"), ["float16,probs=float32/bfloat16"]),
        (("diff", "flash", "--causal", ""), ["no", "yes", "align="]),
        (("diff", "flash", "--heads", "8,"), ["8,kv=", "8,pack_gqa"]),
        (("diff", "k.py:f", "--arrays", "torch,device="), ["torch,device=cpu", "torch,device=cuda"]),
        (("diff", "flash", "--dtype", "float16,b"), ["float16,bfloat16"]),
        (("diff", "flash", "--distribution", "near"), ["near-cancelling"]),
        (("diff", "flash", "--distribution", ""), [*DISTRIBUTIONS, "std="]),
        (("diff", "--fault", ""), [*CATALOGUE]),
        (("diff", "split_k", "--fault", ""), [fault.id for fault in CATALOGUE.values() if fault.kernel == "split_k"]),
        (("diff", "split_k", "--fault", "reduce-d"), ["reduce-double-counts-sum"]),
        (("diff", "flash", "--probes", ""), [*PROBE_SETS, *ALGORITHMS["flash"], "limit_gb="]),
        (("diff", "flash", "--probes", "acc,o"), ["acc,output", "acc,out"]),
        (("diff", "split_k", "--feed", "partial_"), ["partial_max", "partial_sum", "partial_O"]),
        (("show", "flash", "a"), ["acc"]),
        (("show", "split_k", "merge_w"), ["merge_weight"]),
        (("diff", "flash", "--against", "s"), ["file", "split_k", "split_mma", "since="]),
        (("diff", "fp8", "--codes", "e"), ["e4m3", "e5m2"]),
        (("diff", "k.py:f", "--arrays", "t"), ["torch"]),
        (("diff", "k.py:f", "--inputs", "x"), ["file"]),
        (
            ("diff", "k.py:f", "--contract", "t"),
            ["torch-eager", "torch-sdpa", "triton", "tensor_core=", "tanh=", "tile_order="],
        ),
        (("diff", "k.py:f", "--contract", "triton,block"), ["triton,block_k="]),
        (("diff", "flash", "--fail-on", "b"), ["bug", "biased"]),
        (("diff", "flash", "--dtype", "none"), []),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, tuple) else "",
)
def test_words(words, expected):
    assert completed(*words) == expected


def test_every_list_belongs_to_a_parameter_that_asks_for_it():
    every = [*commands.commands.values(), *commands.commands["bench"].commands.values()]
    asking = [param for command in every for param in command.params if param._custom_shell_complete]
    spelled = {name for param in asking if isinstance(param.type, Spec) for name in SPELLED[param.name].values()}
    named = {param.name for param in asking} | spelled
    assert {*WORDS, *FILES} <= named
    unknown = {param.name for command in every for param in command.params if param.name in {*WORDS, *FILES}} - named
    assert unknown == set()
    assert all(isinstance(command, click.Command) for command in every)


def test_an_answer_loads_nothing_heavy():
    """As the shell asks: by environment variables, of the command itself."""
    program = (
        "import atexit, sys\n"
        "from workbench.cli.main import main\n"
        "heavy = ('numba', 'rich', 'matplotlib', 'torch', 'llvmlite', 'safetensors')\n"
        "atexit.register(lambda: print('loaded:', [name for name in heavy if name in sys.modules]))\n"
        "main()\n"
    )
    typed = {"COMP_WORDS": "workbench diff split_k --fault reduce-d", "COMP_CWORD": "4"}
    environment = {**os.environ, **typed, "_WORKBENCH_COMPLETE": "bash_complete"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["plain,reduce-double-counts-sum", "loaded: []"], done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_documented_line_gives_the_script_of_the_shell(shell):
    page = (DOCS / "reference/command-line.md").read_text()
    (variable,) = set(re.findall(rf"(_\w+_COMPLETE)={shell}_source workbench", page))
    program = "from workbench.cli.main import main; main()"
    environment = {**os.environ, variable: f"{shell}_source"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert f"{variable}={shell}_complete" in done.stdout, done.stderr
