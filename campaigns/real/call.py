"""How a function of the project is called with the inputs of a case: other names, heads before time, constants."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Call:
    """A function, and what it is called with. Inputs and results have time before heads: [batch, time, heads, dim]."""

    path: str  #: module:function of a kernel; file.py:function of a reference, or plain/FILE:function of one here
    takes: Mapping[str, str]  #: parameter -> input
    fixed: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))  #: parameter -> constant
    swapped: tuple[str, ...] = ()  #: parameters that have heads, or channels, before time
    swaps: tuple[int, ...] = ()  #: results that have
    results: tuple[Any, ...] | None = None  #: places of the results that are taken, each an index or several; None: all
    names: tuple[str, ...] = ()  #: what the results are called; in order where there are none
    stored: tuple[
        str, ...
    ] = ()  #: stages of a reference that the kernel keeps in the inputs' dtype, where it is narrow
    positional: bool = False  #: takes no keywords, as an autograd.Function
    #: adapter(function, **parameters), of a function that fills its arguments or takes them in another form; returns
    #: the results
    adapter: Callable[..., Any] | None = None

    @property
    def first(self) -> "Call":
        """With its first result alone."""
        return replace(self, results=((self.results or (0,))[0],), swaps=self.swaps[:1], names=self.names[:1])

    def of(self, function: Callable[..., Any], inputs: Iterable[str], *, staged: bool = False) -> Callable[..., Any]:
        """The function on the inputs of the case, by keyword; `staged`: its local variables are stages."""
        plain = function if self.adapter is None else partial(self.adapter, function)

        def called(**given_by_name: Any) -> Any:
            given = {parameter: given_by_name[name] for parameter, name in self.takes.items()}
            given |= {parameter: given[parameter].transpose(1, 2) for parameter in self.swapped}
            given |= self.fixed
            made = plain(*given.values()) if self.positional else plain(**given)
            found = made if isinstance(made, tuple) else (made,)
            found = found if self.results is None else tuple(_at(found, place) for place in self.results)
            found = tuple(x.transpose(1, 2) if i in self.swaps else x for i, x in enumerate(found))
            if self.names:
                return dict(zip(self.names, found, strict=True))
            return found if len(found) > 1 else found[0]

        named = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in inputs]
        called.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
        called.__name__ = called.__qualname__ = self.path.rpartition(":")[2]
        if staged:
            called.__wrapped__ = function  # type: ignore[attr-defined]
        return called


def _at(x: Any, place: Any) -> Any:
    for i in place if isinstance(place, tuple) else (place,):
        x = x[i]
    return x


def takes(*same: str, **other: str) -> dict[str, str]:
    """Parameters that are called as their inputs, and those that are not."""
    return {**{name: name for name in same}, **other}
