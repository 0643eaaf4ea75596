"""Whether a fault is in what is built: where a switch leaves out the lines that it changes the kernel is right, and may
not be called faulty.
"""

import ast
import functools
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from workbench.case.case import Case
from workbench.case.fields import FIELDS
from workbench.case.formats import FORMATS
from workbench.cuda.build import Switches, text_of
from workbench.cuda.faults.fault import Fault
from workbench.cuda.kernel import Constants, Kernel
from workbench.cuda.kernels import KERNELS
from workbench.refusal import Refusal

#: switch of a kernel, but those of OF_FORMAT -> what a case has where it is on, and where it is off
CHOICES: Mapping[str, tuple[str, str]] = {
    "SPLIT": ("splits", "no splits"),
    "CAUSAL": ("causal", "no causal"),
    "SOFTCAP": ("softcap", "no softcap"),
    "SCALED": ("softcap or a scale of 0 or less", "no softcap and a scale above 0"),
    "WINDOW": ("window", "no window"),
    "MASK": ("a mask among the inputs or mask_mod", "no mask among the inputs and no mask_mod"),
    "BIAS": ("a bias among the inputs", "no bias among the inputs"),
    "DROPOUT": ("dropout_p", "no dropout_p"),
    "ALIBI": ("alibi_slopes", "no alibi_slopes"),
    "COLUMN": ("alibi_slopes and alibi_form=column", "no alibi_slopes or alibi_form=distance"),
    "SINKS": ("sinks", "no sinks"),
    "DIM_V": ("another head_dim_v than head_dim", "head_dim_v as head_dim"),
    "RAGGED": ("seqlens_q or seqlens_k", "no seqlens_q and no seqlens_k"),
    "PACKED_Q": ("seqlens_q", "no seqlens_q"),
    "PACKED_K": ("seqlens_q and seqlens_k and no page_size", "no seqlens_q or no seqlens_k or page_size"),
    "LENGTHS": ("page_size, or seqlens_k and no seqlens_q", "no page_size, and seqlens_q or no seqlens_k"),
    "PAGED": ("page_size", "no page_size"),
    "PACK_GQA": ("pack_gqa", "no pack_gqa"),
    "WHOLE": ("head_dim and head_dim_v up to 128", "head_dim or head_dim_v above 128"),
    "Q_IN_REGISTERS": ("head_dim or block_q up to 64", "head_dim and block_q above 64"),
    "PADDED": ("head_dim that is neither 64 nor 128", "head_dim of 64 or 128"),
    "TURNS": ("block_q=128", "block_q of 64 or 192"),
    "HANDS_ON": ("block_q above 64", "block_q=64"),
    "CODES": ("a kernel of quantised inputs", "a kernel of floats"),
    "HEADS": ("scale_of=head", "another scale_of than head"),
    "CODED_Q": ("codes_of=qkv", "codes_of=kv"),
    "TABLE": ("decode=table", "decode=direct"),
    "MMA": ("scores=mma", "scores=scalar"),
}
#: switches of the format of codes: the formats themselves are named
OF_FORMAT = frozenset({"SIMULATED", "INTEGERS", "INT8", "FOUR_BITS", "E8M0", "E4M3", "ZEROS", "TENSOR_SCALE"})
Bound = tuple[tuple[str, bool], ...]


def effective(fault: Fault, case: Case) -> bool:
    """Whether a fault is in what its kernel is built of for a resolved case with inputs of its own."""
    kernel = KERNELS[fault.kernel]
    functions = _functions(kernel, fault)
    bound = _switches(kernel.constants(case))
    return not functions or any(_stands(kernel.functions[one], one, fault, bound) for one in functions)


def stands(file: Path, function: str, fault: Fault, constants: Constants) -> bool:
    """Whether a function of a source is built of something else with a fault."""
    return _stands(file, function, fault, _switches(constants))


def check(kernel: Kernel, case: Case, constants: Constants, faults: Sequence[Fault], launched: Collection[str]) -> None:
    """Refusal for a fault that changes nothing of what the kernel is built of with `constants`, of a resolved case, or
    that reads what it has not. `launched`: the functions that run; a fault in another is no matter.
    """
    bound = _switches(constants)
    for fault in faults:
        functions = _functions(kernel, fault)
        if not functions:  # of the quantiser, which is no kernel
            continue
        run = [one for one in functions if one in launched]
        if not run:  # its results come from outside: what is right then has none of its blame
            continue
        if not any(_stands(kernel.functions[one], one, fault, bound) for one in run):
            words = _missing(kernel, case, fault, run, dict(bound))
            given = dict.fromkeys(name for name in re.findall(r"\w+", words) if name in FIELDS)
            got = ", ".join(f"{name}={getattr(case, name)}" for name in given)
            raise Refusal(
                f"a fault is in lines that are built: what {fault.id} changes or reads is in {kernel.name} only with "
                f"{words}{got and f'; got {got}'}. Choose such a case, or another fault"
            )


def _functions(kernel: Kernel, fault: Fault) -> list[str]:
    """The kernel functions whose source a fault changes."""
    return [name for name, file in kernel.functions.items() if kernel.faults_of(file, [fault])]


def _switches(constants: Constants) -> Bound:
    return tuple((name, value) for name, value in constants.names().items() if isinstance(value, bool))


def _missing(kernel: Kernel, case: Case, fault: Fault, functions: Sequence[str], bound: dict[str, bool]) -> str:
    """What a case would have to have for a fault to be in a kernel: the switches that may not be as they are bound,
    where those before them that may be are, first those that it does not need; one that is not bound leaves both of its
    branches.
    """

    def needed(name: str) -> bool:
        return bool({*fault.needs} & {*re.findall(r"\w+", CHOICES.get(name, ("codes",))[0])})

    decided: dict[str, bool] = {}
    for name in sorted(bound, key=needed):
        tried = {**decided, name: bound[name]}
        if any(_stands(kernel.functions[one], one, fault, tuple(tried.items())) for one in functions):
            decided = tried
    left = [name for name in bound if name not in decided]
    words = [CHOICES.get(name, (f"{name} on", f"{name} off"))[bound[name]] for name in left if name not in OF_FORMAT]
    if OF_FORMAT & {*left}:
        words.append(f"codes={' or '.join(_formats(kernel, case, fault))}")
    return " and ".join(words)


def _formats(kernel: Kernel, case: Case, fault: Fault) -> list[str]:
    """The formats of codes with which a fault is in a kernel."""
    found = []
    for codes in kernel.codes or FORMATS:
        other = kernel.resolves(kernel, case.but(codes=codes, scale_of=None, decode=None))
        found += [codes] if effective(fault, other) else []
    return found


@functools.lru_cache(maxsize=4096)
def _stands(file: Path, function: str, fault: Fault, bound: Bound) -> bool:
    """Whether a kernel function is built of something else with a fault, and of nothing that only other builds have."""
    faulty, clean = (_built(file, function, some, bound) for some in ((fault,), ()))
    if not (new := faulty[function].loaded - clean[function].loaded - faulty[function].stored):
        return faulty != clean
    return not new & _built(file, function, (), ())[function].stored


class _Syntax(NamedTuple):
    """That of a function or a constant."""

    dump: str
    loaded: frozenset[str]  #: names that are read
    stored: frozenset[str]  #: names that are assigned to and are no arguments


@functools.lru_cache(maxsize=16)
def _built(file: Path, function: str, faults: tuple[Fault, ...], bound: Bound) -> dict[str, _Syntax]:
    """What a kernel function is built of: its syntax, and that of whatever of its file it reaches, by name."""
    tree = ast.parse(text_of(file, faults))
    defined = {name: node for node in tree.body for name in _defines(node)}
    switches, found, names = Switches(dict(bound)), dict[str, _Syntax](), [function]
    while names:
        name = names.pop()
        if name in defined and name not in found:
            node = switches.visit(defined[name])
            every = [*ast.walk(node)]
            loaded = frozenset(x.id for x in every if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Load))
            stored = frozenset(x.id for x in every if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store))
            stored -= {x.arg for x in every if isinstance(x, ast.arg)}
            found[name] = _Syntax(ast.dump(node), loaded, stored)
            names += loaded
    return found


def _defines(node: ast.stmt) -> list[str]:
    """The names that a statement of a file gives to functions and constants."""
    if isinstance(node, ast.FunctionDef):
        return [node.name]
    return (
        [target.id for target in node.targets if isinstance(target, ast.Name)] if isinstance(node, ast.Assign) else []
    )
