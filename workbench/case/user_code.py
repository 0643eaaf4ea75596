"""Files of users: loaded as `python file.py` would, with the modules beside them, and kept apart from each other.

What a file imports from its own folder is in sys.modules only while code of that folder is loaded or runs, so that two
files may each have a utils.py beside them, and nobody else gets it in place of a library.
"""

import importlib.util
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from workbench.extras import not_found
from workbench.files import of_python, sha256_of, sources_beside
from workbench.raised import as_raised
from workbench.refusal import Refusal, Unavailable

Function = Callable[..., Any]

#: folders whose files were looked at in this command; None outside of one
_looked_at: ContextVar[set[Path] | None] = ContextVar("looked_at", default=None)
_LOCK = threading.RLock()  # sys.path and sys.modules are everybody's


@contextmanager
def command() -> Iterator[None]:
    """What runs inside is one command: a file is loaded once, whatever becomes of it meanwhile, and what user code
    prints goes to stderr, since stdout is for results. Outside, a file is loaded again where it, or what was loaded
    from its folder, has changed.
    """
    token = _looked_at.set(set())
    try:
        yield
    finally:
        _looked_at.reset(token)


@contextmanager
def prints_aside() -> Iterator[None]:
    """Within it, and within a command, what Python code prints goes to stderr."""
    with nullcontext() if _looked_at.get() is None else redirect_stdout(sys.stderr):
        yield


@dataclass(eq=False)
class _Home:
    """A folder of files of a user, and what was loaded from it."""

    folder: Path
    targets: dict[Path, ModuleType] = field(default_factory=dict)
    modules: dict[str, ModuleType] = field(default_factory=dict)  #: what these imported from the folder
    made_of: dict[Path, str] = field(default_factory=dict)  #: files of all of them, and sources beside -> sha256

    @contextmanager
    def entered(self, targets: Sequence[Path]) -> Iterator[None]:
        """Within it modules of the folder can be imported, as from files of `targets` that Python runs."""
        with _LOCK:
            entries = os.listdir(self.folder) if self.folder.is_dir() else ()  # what is loaded runs without it
            own_names = {entry.removesuffix(".py") for entry in entries}
            others = {name for name in own_names & {*sys.modules} if self._stands_in(name)}
            hidden = [name for name in [*sys.modules] if name.partition(".")[0] in others] if others else []
            taken = {name: sys.modules.pop(name) for name in hidden}
            before = {*sys.modules}
            sys.modules.update(self.modules)
            finder, folder = _Libraries(self.folder, [path.stem for path in targets]), str(self.folder)
            sys.meta_path.insert(0, finder)
            sys.path.insert(0, folder)
            importlib.invalidate_caches()
            # bytecode knows its source's time to a second: a file that is edited within one would run as it was
            writes_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
            try:
                yield
            finally:
                sys.dont_write_bytecode = writes_bytecode
                own = {x for x in {*sys.modules} - before if self._holds(sys.modules.get(x.partition(".")[0]))}
                self.modules |= {name: sys.modules.pop(name) for name in own}
                self._remember(path for one in self.modules.values() if (path := getattr(one, "__file__", None)))
                if folder in sys.path:
                    sys.path.remove(folder)
                sys.meta_path.remove(finder)
                sys.modules.update(taken)

    def load(self, path: Path) -> ModuleType:
        """The module that a file of the folder makes; Refusal of what it raises where it cannot be imported, and
        Unavailable where it imports what is not installed.
        """
        if path in self.targets:
            return self.targets[path]
        # under a name of its own: a file named torch.py or sparse.py must not stand in for the library
        spec = importlib.util.spec_from_file_location(f"workbench_target_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        self._remember([path, *sources_beside(self.folder)])
        sys.modules[spec.name] = module  # dataclasses and pickles of the file look themselves up there
        with prints_aside(), self.entered([path]):
            try:
                spec.loader.exec_module(module)
            except KeyboardInterrupt:
                raise
            except Refusal as refusal:  # of ours, which says what is wrong
                own = [x.lineno for x in traceback.extract_tb(refusal.__traceback__) if x.filename == str(path)]
                raise Refusal(f"{path} could not be imported because of its line {own[-1]}:\n{refusal}") from refusal
            except ModuleNotFoundError as error:
                raise Unavailable(not_found(error, str(path))) from error
            except BaseException as error:  # sys.exit among them
                raise Refusal(f"{path} could not be imported:\n{as_raised(error)}") from error
        self.targets[path] = module
        return module

    def changed(self) -> bool:
        """Whether a file that something here was made of is another one now."""
        return any(sha256_of(path) != before for path, before in self.made_of.items())

    def _remember(self, paths: Any) -> None:
        for path in map(Path, paths):
            if path not in self.made_of:
                self.made_of[path] = sha256_of(path)

    def _holds(self, module: ModuleType | None) -> bool:
        """Whether a module lies in the folder itself, as a file or a package."""
        file = getattr(module, "__file__", None)
        places = [file] if file and not hasattr(module, "__path__") else [*getattr(module, "__path__", ())]
        return any(os.path.dirname(place) == str(self.folder) for place in places)

    def _stands_in(self, name: str) -> bool:
        """Whether a module that somebody else imported has the name of one in the folder."""
        module = sys.modules[name]
        file = getattr(module, "__file__", None)
        if not file or name == "workbench" or self._holds(module):
            return False
        ours = (self.folder / f"{name}.py").is_file() or (self.folder / name / "__init__.py").is_file()
        return ours and not of_python(Path(file))


@dataclass(frozen=True, eq=False)
class _Libraries:
    """Finds the library that has the name of a file, in the place of that file."""

    folder: Path
    names: Sequence[str]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The spec of a package that is installed; None leaves the name to others."""
        if name not in self.names:
            return None
        spec = PathFinder.find_spec(name, [one for one in sys.path if Path(one or ".").resolve() != self.folder])
        return spec if spec is not None and spec.loader is not None else None


#: by folder: those in use; and every function that was found, with its home at that time
_HOMES: dict[Path, _Home] = {}
_FOUND: list[tuple[Function, _Home]] = []


def function_of(file: Path, name: str) -> Function:
    """The function `name` of a file; Refusal where the file cannot be imported, as of `_Home.load`, or has none. A file
    that was loaded before is loaded again only as `command` says.
    """
    path = file.resolve()
    looked_at = _looked_at.get()
    home = _HOMES.get(path.parent)
    if home is None or (path.parent not in (looked_at or ()) and home.changed()):
        home = _HOMES[path.parent] = _Home(path.parent)
    if looked_at is not None:
        looked_at.add(path.parent)
    module = home.load(path)
    function = getattr(module, name, None)
    if not callable(function):
        own = [key for key, x in vars(module).items() if getattr(x, "__module__", "") == module.__name__]
        defined = ", ".join(key for key in own if callable(vars(module)[key]) and not key.startswith("_"))
        raise Refusal(f"{file} defines no function {name!r}; it defines: {defined or 'none'}")
    if not any(one is function and of is home for one, of in _FOUND):
        _FOUND.append((function, home))
    return function


@contextmanager
def running(function: Function) -> Iterator[None]:
    """Within it a function may import from the folder of its file, and prints as of `command`."""
    home = next((home for one, home in reversed(_FOUND) if one is function), None)
    with prints_aside(), nullcontext() if home is None else home.entered([*home.targets]):
        yield
