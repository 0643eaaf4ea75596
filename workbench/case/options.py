"""The options of a run beside its case, each declared once: who takes it, and what the command line says of it.

One record of them goes from the command line to what runs, and lies in the trace, where it prints itself again. It
imports no NumPy, so that `workbench --help` is quick.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from workbench.case.spellings import flag, said
from workbench.suggested import command

#: gigabytes of the dumps of a run, unless it says otherwise
LIMIT_GB = 4.0
#: who takes an option: kernels of ours, foreign ones, any that is run; and what a trace says that was not run here
OURS, FOREIGN, ANY, AT_REST = "ours", "foreign", "any", "at rest"
#: in the place of an array that was fed, or of a mapping in Python, which no command line has
NAMELESS = ""


def _option(role: str, help: str = "", /, *, default: Any = None, **click: Any) -> Any:
    """An option, with its help and what else its declaration for click says."""
    usual: dict[str, Any] = {"default_factory": dict} if default is dict else {"default": default}
    return field(**usual, metadata={"role": role, "click": {"help": help, **click}})


_CONTRACT = f"Declare the kernel's arithmetic: triton,block_k=64; `{command('contract')}` lists fields"
_FEED = "Feed stages with the reference, or from a FILE"
_WHERE = "Dump and judge only some heads or queries: b=0,h=3,q=64:128"
_ISOLATE = "Run your kernel in a separate process, which may crash"


@dataclass(frozen=True)
class Options:
    """Options of a run, in the order in which a command line repeats them."""

    faults: Sequence[str] = _option(
        OURS,
        f"Inject a fault of `{command('faults')}`; repeatable",
        default=(),
        multiple=True,
        metavar="ID",
    )
    #: of kernels of ours, and of those of numba.cuda that a foreign function launches
    backend: str = _option(
        ANY,
        "Where built-in and numba.cuda kernels run: auto, emulator or cuda [auto: a GPU if present]",
        default="auto",
    )
    isolate: bool = _option(FOREIGN, _ISOLATE, default=False, is_flag=True)
    values: str | None = _option(AT_REST)  #: the log in which the values were found
    arrays: str = _option(FOREIGN, "Array library: numpy, torch, cupy or jax [numpy]", default="numpy")
    device: str | None = _option(FOREIGN, "Device of the arrays: cpu or cuda [cpu; cupy: cuda]")
    #: of q, k, v and out; strided: of shape [b, h, s, d], but in memory [b, s, h, d]
    layout: str = _option(
        FOREIGN,
        "Layout of the arrays: bhsd, bshd, or strided (bhsd shape, bshd in memory) [bhsd]",
        default="bhsd",
    )
    calibration: str | None = _option(
        FOREIGN, f"File of `{command('calibrate')}`: sets the error of exp where your kernel declares none"
    )
    #: fields or words as of `presets.fields_of`, beside what the kernel says itself
    contract: str | Mapping[str, Any] | None = _option(FOREIGN, _CONTRACT)
    runs: int = _option(
        FOREIGN, "Run your kernel N times and check that its bits repeat [1]", default=1, type=int, metavar="N"
    )
    #: seconds from the start of a process of its own, and 1e9 bytes of that process
    timeout: float | None = _option(FOREIGN, "End the process after this many seconds", type=float, metavar="SECONDS")
    memory_gb: float | None = _option(
        FOREIGN, "End the process if it uses more than this many GB of memory", type=float
    )
    #: stage -> "reference", a file, or an array; what makes these stages alone does not run
    feed: Mapping[str, Any] = _option(ANY, _FEED, default=dict, multiple=True, metavar="STAGE[,...]=SOURCE")
    where: str | None = _option(ANY, _WHERE, metavar="PART")  #: as of `box.parse`; the kernel runs whole
    probes: str = _option(OURS, "Stages to dump: all, lean, output, or such as acc,out [all]", default="all")
    limit_gb: float = _option(OURS, "Refuse dumps larger than this many GB [4]", default=LIMIT_GB, type=float)
    inputs: Any = _option(
        ANY,
        "Arrays, of a .safetensors, .npz or .pt file; FILE.py:F beside --reference",
        metavar="FILE",
    )
    trace: str | None = _option(AT_REST)  #: the file, or files, in which the trace lay: its TARGET
    mapping: str | None = _option(AT_REST)  #: the file that names what lies in a dump of another program
    stated: Mapping[str, Any] = _option(AT_REST, default=dict)  #: fields of the case that were said beside the file
    against_trace: str | None = _option(AT_REST)  #: the file of an earlier run, beside which its code was held

    def __post_init__(self) -> None:
        faults = (self.faults,) if isinstance(self.faults, str) else tuple(self.faults)  # one may be given by itself
        object.__setattr__(self, "faults", faults)

    def given(self, *roles: str) -> list[str]:
        """The options of some roles that are not as usual."""
        usual = Options()
        return [name for name in of_role(*roles) if getattr(self, name) != getattr(usual, name)]

    def printable(self) -> "Options":
        """What a command line says of them: arrays have no name there, faults and backend are a trace's own."""
        from workbench.case.presets import words

        return replace(
            self,
            faults=(),
            backend="auto",
            isolate=self.isolate and self.timeout is None and self.memory_gb is None,  # either says that
            contract=words(self.contract) if self.contract and isinstance(self.contract, str | Mapping) else None,
            inputs=str(self.inputs) if isinstance(self.inputs, str | Path) else None,
            feed={name: str(x) if isinstance(x, str | Path) else NAMELESS for name, x in self.feed.items()},
        )

    def beside(self, other: "Options") -> "Options":
        """Those of two runs: where they differ these, unless they are as usual."""
        return replace(other, **{name: getattr(self, name) for name in self.given(OURS, FOREIGN, ANY, AT_REST)})

    def words(self) -> list[str]:
        """The command line's words for what is not as usual, quoted for a shell; all but faults and trace, which stand
        elsewhere in it.
        """
        values = {name: getattr(self, name) for name in self.given(OURS, FOREIGN, ANY, AT_REST)}
        apart = ("faults", "trace", "feed", "stated")
        feeds = [word for one in feed_words(self.feed) for word in (flag("feed"), one)]
        found = {name: f"{x:g}" if isinstance(x, float) else x for name, x in values.items() if name not in apart}
        return [*map(shlex.quote, [*said({**self.stated, **found}), *feeds])]


def feed_words(feed: Mapping[str, Any]) -> list[str]:
    """Words such as `partial_max,partial_sum=reference`, one for each source that has a name."""
    sources = dict.fromkeys(source for source in feed.values() if source)
    return [f"{','.join(name for name, one in feed.items() if one == source)}={source}" for source in sources]


def flag_of(name: str) -> str:
    """The command line's name of an option."""
    return "--fault" if name == "faults" else flag(name)


#: option -> who takes it
ROLES: Mapping[str, str] = {one.name: one.metadata["role"] for one in fields(Options)}
#: option -> what click is told of it
CLICK: Mapping[str, Mapping[str, Any]] = {one.name: one.metadata["click"] for one in fields(Options)}


def of_role(*roles: str) -> tuple[str, ...]:
    """The options of some roles, in their order."""
    return tuple(name for name, role in ROLES.items() if role in roles)
