"""What a shell completes of the command line: kernels, faults, dtypes, stages, and the other words that options take.

Each list is imported when somebody presses the key for it, so that an answer takes no longer than `workbench --help`.
"""

from collections.abc import Callable, Iterable, Mapping

import click
from click.shell_completion import CompletionItem

from workbench.case.fields import FIELDS, Truth, Word
from workbench.case.spellings import TRUTHS
from workbench.case.spellings import WORDS as SPELLED


def _targets(ctx: click.Context) -> list[str]:
    """What was typed as TARGET, so far; it stands among other words where an option lacks its value still."""
    given = ctx.params.get("target") or ctx.args
    words = [given] if isinstance(given, str) else given
    return [name for word in words for name in word.split(",")]


def _kernels(ctx: click.Context) -> Iterable[str]:
    from workbench.cuda.kernels import KERNELS, OF_OPERATIONS

    return OF_OPERATIONS if ctx.params.get("operation") else KERNELS


def _faults(ctx: click.Context) -> Iterable[str]:
    """Those of the TARGET, where it is a kernel of ours."""
    from workbench.cuda.faults.catalogue import CATALOGUE, OF_OPERATIONS

    every = {**CATALOGUE, **OF_OPERATIONS}
    own = [fault.id for fault in every.values() if fault.kernel in _targets(ctx)]
    return own or CATALOGUE


def _stages(ctx: click.Context) -> Iterable[str]:
    """Those of the TARGET, where it is a kernel of ours."""
    from workbench.case.stages import ALGORITHMS, STAGES
    from workbench.cuda.kernels import KERNELS

    own = [ALGORITHMS[KERNELS[name].algorithm] for name in _targets(ctx) if name in KERNELS]
    return own[0] if own else STAGES


def _probes(ctx: click.Context) -> Iterable[str]:
    from workbench.case.stages import PROBE_SETS

    return (*PROBE_SETS, *_stages(ctx))


def _contract(ctx: click.Context) -> Iterable[str]:
    """Presets, and fields with the sign that follows them."""
    from workbench.case.assumptions import listing
    from workbench.case.presets import PRESETS

    return (*PRESETS, *(f"{field['name']}=" for field in listing()))


def _one_of(*words: str) -> Callable[[click.Context], Iterable[str]]:
    return lambda ctx: words


_BACKENDS = _one_of("auto", "emulator", "cuda")
#: parameter of a command -> the words that it takes; those of a case are in its fields
WORDS: Mapping[str, Callable[[click.Context], Iterable[str]]] = {
    "target": _kernels,
    "against": _kernels,
    "faults": _faults,
    "elements": _stages,
    "feed": _stages,
    "probes": _probes,
    "backend": _BACKENDS,
    "arrays": _one_of("numpy", "torch", "cupy", "jax"),
    "device": _one_of("cpu", "cuda"),
    "contract": _contract,
    "layout": _one_of("bhsd", "bshd", "strided"),
    "fail_on": _one_of("bug", "biased", "evidence", "suspicious"),
}
#: parameters whose value may be a file as well
FILES = ("target", "against", "inputs", "values", "calibration")


def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The words that begin with what was typed after the last comma; where it may be a file too, the shell's files."""
    name = str(param.name)
    before, comma, last = incomplete.rpartition(",")
    of = SPELLED.get(name, {})
    word, equals, value = last.partition("=")
    if equals and word in of:  # whose values a slash separates
        several, slash, last = value.rpartition("/")
        before, words = f"{before}{comma}{word}={several}{slash}", _words(of[word], ctx)
    else:
        before = f"{before}{comma}"
        words = [*_words(name, ctx), *(one if _is_truth(field) else f"{one}=" for one, field in of.items())]
    found = [CompletionItem(f"{before}{word}") for word in words if word.startswith(last)]
    return [*([CompletionItem(incomplete, type="file")] if name in FILES else []), *found]


def _words(name: str, ctx: click.Context) -> Iterable[str]:
    """The words that an option takes, or a word of one."""
    rule = FIELDS[name].rule if name in FIELDS else None
    if name in TRUTHS:
        return ("no", "yes")
    return rule.words() if isinstance(rule, Word) else WORDS[name](ctx) if name in WORDS else ()


def _is_truth(name: str) -> bool:
    return name in FIELDS and isinstance(FIELDS[name].rule, Truth)
