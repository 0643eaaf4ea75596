"""A public project: where its tree lies, how its functions are imported, what its own tests allow."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Tolerance:
    """What a project's own tests allow: all elements within atol + rtol |expected|, or a relative error as a whole."""

    atol: float = 0.0
    rtol: float = 0.0
    rms: float | None = None  #: root mean square of the errors over that of the expected; None: elements are compared


@dataclass(frozen=True)
class Project:
    """A project, at any of its commits."""

    name: str  #: of the repository, and of its folder below --checkouts
    owner: str
    newest: str  #: the commit that is audited, and whose naive references judge every other
    paths: tuple[str, ...]  #: files and folders that are taken of a commit; those that it lacks are left out
    tolerance: Mapping[str, Tolerance]  #: by dtype, of cases that have none of their own
    root: str = "."  #: the folder that is imported from
    stubs: tuple[str, ...] = ()  #: packages whose own `__init__` is not run: empty ones of these names stand in
    says: Mapping[str, Any] = field(default_factory=lambda: NONE)  #: attributes of the stubs, such as __version__
    #: modules, and their packages, that are imported and not installed; nothing that is run needs them
    absent: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=lambda: NONE)  #: set before the first import
