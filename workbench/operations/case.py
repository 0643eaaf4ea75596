"""A case of an operation: sizes, dtype, numbers, conventions, and the inputs that are drawn for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from workbench.case.fields import name_of
from workbench.floats import DTYPES
from workbench.operations.operation import Operation, Setting
from workbench.refusal import Refusal


@dataclass(frozen=True)
class OperationCase:
    """One case of one operation; sizes, numbers and conventions that are not said are the operation's own.

    Raises Refusal for a name that the operation does not have, a size below 1, and a value that a convention has not.
    """

    operation: Operation
    sizes: Mapping[str, int] = field(default_factory=dict)  #: axis, by name or letter -> how long it is
    dtype: str = "float32"
    distribution: str = ""  #: of the operation's; the usual one where nothing is said
    seed: int = 0
    numbers: Mapping[str, float] = field(default_factory=dict)
    conventions: Mapping[str, Any] = field(default_factory=dict)
    optional: tuple[str, ...] = ()  #: inputs of the operation's optional ones that there are
    functions: Mapping[str, Any] = field(default_factory=dict)  #: keyword -> a function, or its name as path.py:name

    def __post_init__(self) -> None:
        of = self.operation
        letters = {name: letter for letter, name in of.axes.items()} | {letter: letter for letter in of.axes}
        if unknown := [axis for axis in self.sizes if axis not in letters]:
            raise Refusal(f"axes of {of.name} must be among {_listed(of.axes.values())}; got {unknown[0]!r}")
        _known(f"numbers of {of.name}", self.numbers, of.numbers)
        _known(f"conventions of {of.name}", self.conventions, of.conventions)
        _known(f"optional inputs of {of.name}", self.optional, of.optional)
        _known(f"functions of {of.name}", self.functions, of.functions)
        if self.dtype not in DTYPES:
            raise Refusal(f"dtype must be one of {', '.join(DTYPES)}; got {self.dtype!r}")
        chosen = self.distribution or next(iter(of.distributions))
        _known(f"distributions of {of.name}", [chosen], of.distributions)
        said = {**of.sizes, **{letters[name]: n for name, n in self.sizes.items()}}
        sizes = {axis: int(said[n] if isinstance(n, str) else n) for axis, n in said.items()}
        if low := [of.axes[axis] for axis, n in sizes.items() if n < 1]:
            raise Refusal(f"{of.name}: {low[0]} must be at least 1; got {sizes[letters[low[0]]]}")
        for name, value in self.conventions.items():
            if value not in of.conventions[name]:
                raise Refusal(f"{of.name}: {name} must be one of {_listed(of.conventions[name])}; got {value!r}")
        usual = {name: choices[0] for name, choices in of.conventions.items()}
        for name, value in (
            ("sizes", sizes),
            ("distribution", chosen),
            ("numbers", self._numbers(sizes)),
            ("conventions", {**usual, **self.conventions}),
            ("optional", tuple(name for name in of.optional if name in self.optional)),
        ):
            object.__setattr__(self, name, value)
        if why := of.rule(self.setting):
            raise Refusal(f"{of.name}: {why}")

    def _numbers(self, sizes: Mapping[str, int]) -> dict[str, float]:
        known = self.operation.numbers
        types = {
            name: x if isinstance(x, type) else bool if isinstance(x, bool) else float for name, x in known.items()
        }
        found = {**_usual(self.operation, sizes), **self.numbers}
        for name, x in found.items():
            if types[name] is int and x != int(x):
                raise Refusal(f"{self.operation.name}: {name} must be a whole number; got {x:g}")
        return {name: types[name](found[name]) for name in known if name in found}

    @property
    def setting(self) -> Setting:
        """What its stages depend on."""
        return Setting(self.sizes, self.numbers, self.conventions, self.dtype, self.optional, functions=self.functions)

    @property
    def takes(self) -> dict[str, str]:
        """Its inputs, and the axes of each."""
        of = self.operation
        return {**of.inputs, **{name: of.optional[name] for name in self.optional}}

    @property
    def unusual(self) -> dict[str, dict[str, Any]]:
        """What is not the operation's own, by its name: axes, numbers, contract."""
        of, usual = self.operation, _usual(self.operation, self.sizes)
        sizes = {of.axes[axis]: self.sizes[n] if isinstance(n, str) else n for axis, n in of.sizes.items()}
        return {
            "axes": {name: n for name, n in self.told.items() if n != sizes[name]},
            "numbers": {name: x for name, x in self.numbers.items() if x != usual.get(name)},
            "contract": {name: x for name, x in self.conventions.items() if x != of.conventions[name][0]},
        }

    @property
    def words(self) -> tuple[str, ...]:
        """The command line's words for it, but for those that say what is usual."""
        return self.words_of()

    def words_of(self, *beside: str) -> tuple[str, ...]:
        """The same, with other words of --operation."""
        of, unusual = self.operation, self.unusual
        numbers = [name if x is True else f"{name}={_plain(x)}" for name, x in unusual.pop("numbers").items()]
        said = {
            "operation": ",".join([of.name, *numbers, *self.optional, *beside]),
            **{option: ",".join(f"{name}={_plain(x)}" for name, x in some.items()) for option, some in unusual.items()},
            "dtype": self.dtype if self.dtype != "float32" else "",
            "distribution": self.distribution if self.distribution != next(iter(of.distributions)) else "",
            "seed": str(self.seed) if self.seed else "",
        }
        return tuple(word for option, value in said.items() if value for word in (f"--{option}", value))

    @property
    def told(self) -> dict[str, int]:
        """Axis, by its name -> how long it is; without those of inputs that the case does not have."""
        of = self.operation
        idle = {*"".join(of.optional.values())} - {*"".join(self.takes.values()), *"".join(of.inputs.values())}
        return {name: self.sizes[axis] for axis, name in of.axes.items() if axis not in idle}

    def as_dict(self) -> dict[str, Any]:
        """As plain Python values, for documents."""
        return {
            "operation": self.operation.name, "axes": dict(self.told), "dtype": self.dtype,
            "distribution": self.distribution, "seed": self.seed, "numbers": dict(self.numbers),
            "conventions": dict(self.conventions), "optional": list(self.optional),
        }  # fmt: skip

    def inputs(self) -> dict[str, np.ndarray]:
        """The inputs as a kernel reads them, in their dtypes."""
        drawn = self.operation.distributions[self.distribution](self.setting, np.random.default_rng(self.seed))
        return {name: drawn[name].astype(self.dtype_of(name)) for name in self.takes}

    def dtype_of(self, name: str) -> np.dtype:
        """That of an input."""
        dtype = self.operation.dtypes.get(name, self.dtype)
        return DTYPES[dtype] if dtype in DTYPES else np.dtype(dtype)

    def __str__(self) -> str:
        sizes = " ".join(f"{name}={n}" for name, n in self.told.items())
        told = [name for name, x in self.numbers.items() if x is True]
        told += [f"{name}={x:g}" for name, x in self.numbers.items() if not isinstance(x, bool)]
        told += self.optional
        told += [f"{name}={name_of(function)}" for name, function in self.functions.items()]
        told += [f"{name}={x}" for name, x in self.unusual["contract"].items()]
        return f"{self.dtype} {sizes}, {', '.join([*told, self.distribution])} inputs, seed {self.seed}"


def _usual(of: Operation, sizes: Mapping[str, int]) -> dict[str, float]:
    """Its numbers where nothing is said."""
    return {name: x(sizes) if callable(x) else x for name, x in of.numbers.items() if not isinstance(x, type)}


def _plain(x: Any) -> Any:
    return int(x) if isinstance(x, bool) else repr(x) if isinstance(x, float) else x


def _known(what: str, given: Any, known: Any) -> None:
    if unknown := [name for name in given if name not in known]:
        raise Refusal(f"{what} are {_listed(known) or 'none'}; got {unknown[0]!r}")


def _listed(names: Any) -> str:
    return ", ".join(map(str, names))
