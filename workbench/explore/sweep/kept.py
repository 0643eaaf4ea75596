"""The traces of failing cases, in a folder beside the file of a sweep, within a number of bytes."""

from pathlib import Path

from workbench.explore.sweep.store import Store
from workbench.files import write_atomically


class Kept:
    """The folder. What the first of a group leaves is worth more than the hundredth: that one goes for it."""

    def __init__(self, store: Store, most_bytes: float) -> None:
        self.folder = folder_of(store.path)
        self._store, self._most = store, most_bytes
        self._sizes = store.traces()
        self.full = False  #: whether a trace did not fit: no more are asked for then, but the first of groups

    def has(self, id: str) -> bool:
        """Whether the trace of a case is there."""
        return id in self._sizes

    def add(self, id: str, content: bytes, *, first: bool = False) -> None:
        """Keep the trace of a case where it fits; of the `first` of a group others go, the latest kept first."""
        others = [one for one, (_, is_first) in reversed(self._sizes.items()) if first and not is_first]
        while self._used + len(content) > self._most and others:
            self._drop(others.pop(0))
        if self._used + len(content) > self._most:
            self.full = True
            return
        write_atomically(self.folder / f"{id}.safetensors", content)
        self._sizes[id] = (len(content), first)
        self._store.add_trace(id, len(content), first)

    def mark_first(self, id: str) -> None:
        """Note that a trace that is there is the first of a group."""
        self._sizes[id] = (self._sizes[id][0], True)
        self._store.add_trace(id, self._sizes[id][0], True)

    @property
    def _used(self) -> int:
        return sum(size for size, _ in self._sizes.values())

    def _drop(self, id: str) -> None:
        (self.folder / f"{id}.safetensors").unlink(missing_ok=True)
        del self._sizes[id]
        self._store.drop_trace(id)


def folder_of(path: Path) -> Path:
    """The folder of the traces of a sweep."""
    return path.with_suffix(".traces")
