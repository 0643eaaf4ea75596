"""NumPy arrays that record what is done with them. They hold float64, and note the dtype that the reference would have.

A view is a real view of the real memory, so that writes are seen as in NumPy; of nodes it knows the array that it is a
view of, and makes its own anew after a write.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from workbench.floats import unit_roundoff
from workbench.reference.graph.blank import blank
from workbench.reference.graph.recording import Recording
from workbench.reference.graph.rules import RULES

#: as many elements a float array may have that the reference made without its own np, such as coefficients
FEW = 16
#: methods of arrays beyond those below, and what is made of several primitives: `functions` and `ufuncs` have them
METHODS: dict[str, Callable[..., Any]] = {}
BEHIND: dict[str, Callable[..., Any]] = {}


class Traced(NDArrayOperatorsMixin):
    """An array of a run."""

    __slots__ = (
        "run",
        "value",
        "dtype",
        "_fixed",
        "_node",
        "_root",
        "_version",
        "_parent",
        "_step",
        "_how",
        "assigned",
    )

    def __init__(self, run: Recording, value: np.ndarray, node: int, dtype: Any, fixed: bool = False) -> None:
        if run.values is not None and not fixed and type(value) is np.ndarray:
            value = blank(value)
        self.run, self.value, self._node, self.dtype = run, value, node, np.dtype(dtype)
        self._fixed = fixed
        self._version = 0
        self.assigned = 0  #: how often all of it was written over, as by +=
        self._root: Traced | None = None  # of a view: what has the memory. Itself would be a cycle, freed late
        self._parent: Traced | None = None
        self._step: str = ""  #: of a view: the move that made it of its parent
        self._how: Mapping[str, Any] = {}

    # what an array is

    shape = property(lambda self: self.value.shape)
    ndim = property(lambda self: self.value.ndim)
    size = property(lambda self: self.value.size)
    itemsize = property(lambda self: self.dtype.itemsize)
    nbytes = property(lambda self: self.size * self.dtype.itemsize)
    strides = property(lambda self: self.value.strides)
    flags = property(lambda self: self.value.flags)

    @property
    def fixed(self) -> bool:
        """Whether it depends on whole numbers and constants alone, what was written to its memory too."""
        return self._whole()._fixed

    @property
    def whole(self) -> bool:
        """Whether it holds whole numbers or truths."""
        return self.value.dtype.kind in "biu"

    @property
    def known(self) -> np.ndarray:
        """Its value, computed now where the arrays of the run are blank."""
        values = self.run.values
        return self.value if values is None or self.fixed else values.of(self.node_of_run)

    def _whole(self) -> "Traced":
        """The array that has the memory."""
        return self if self._root is None else self._root

    @property
    def is_current(self) -> bool:
        """Whether nothing was written to what it is a view of since its node was made."""
        return self._parent is None or self._version == self._whole()._version

    @property
    def node_of_run(self) -> int:
        """The node that has its value now."""
        parent = self._parent
        if parent is not None and self._version != self._whole()._version:
            self._node = self.run.add(self._step, (parent.node_of_run,), self._how, self.value, self.dtype)
            self._version = self._whole()._version
        return self._node

    def made(self, op: str, attributes: Mapping[str, Any], value: np.ndarray, dtype: Any = None) -> "Traced":
        """What a primitive makes of it: a view of it where `value` shares its memory."""
        dtype = self.dtype if dtype is None else np.dtype(dtype)
        new = Traced(
            self.run, value, self.run.add(op, (self.node_of_run,), attributes, value, dtype), dtype, self.fixed
        )
        if value.size and np.may_share_memory(value, self.value):
            new._root, new._parent, new._step, new._how = self._whole(), self, op, attributes
            new._version = self._whole()._version
        return new

    def again(self) -> "Traced":
        """All of it, as a node of its own."""
        return self.made("named", {}, self.value[...])

    # writes

    def put(self, node: int, fixed: bool) -> None:
        """A node in the place of its own, after its memory was written."""
        self._whole()._fixed &= fixed
        if self._parent is None:
            self._node, self._version = node, self._version + 1
            return
        how = {"step": self._step, "how": self._how}
        parent = self._parent
        parent.put(self.run.add("write", (parent.node_of_run, node), how, parent.value, parent.dtype), fixed)
        self._node, self._version = node, self._whole()._version

    def __setitem__(self, index: Any, x: Any) -> None:
        index, x = plain_index(self.run, index), as_traced(self.run, x)
        x = x.astype(self.dtype) if x.dtype != self.dtype else x
        how = {"step": "index", "how": {"index": index}}
        node = self.node_of_run
        self.value[index] = x.value
        self.put(self.run.add("write", (node, x.node_of_run), how, self.value, self.dtype), x.fixed)

    def replace(self, x: "Traced") -> "Traced":
        """x written over all of it, as `out=self` says."""
        x = x.astype(self.dtype) if x.dtype != self.dtype else x
        node = x.node_of_run
        if x.shape != self.shape:
            wide = np.broadcast_to(x.value, self.shape)
            node = self.run.add("broadcast", (node,), {"shape": self.shape}, wide, self.dtype)
        self.value[...] = x.value
        self.put(node, x.fixed)
        self.assigned += 1
        return self

    # reads

    def __getitem__(self, index: Any) -> "Traced":
        found = BEHIND["gathered"](self, index)
        if found is not None:
            return found
        index = plain_index(self.run, index)
        value = self.value[index]
        return self.made("index", {"index": index}, np.asarray(value))

    def __iter__(self) -> Iterator["Traced"]:
        if not self.ndim:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(len(self)))

    def __len__(self) -> int:
        return len(self.value)

    def astype(self, dtype: Any, **_: Any) -> "Traced":
        """A copy: casts among wide floats are noted, others are made."""
        dtype = np.dtype(dtype)
        if dtype == self.dtype:
            return self.copy()
        if dtype.kind in "biu" or (_is_float(dtype) and dtype.itemsize == 1):
            if self.fixed and self.whole:
                return held(self.run, self.value.astype(dtype), dtype)
            bits = 1 if dtype.kind == "b" else round(-float(np.log2(unit_roundoff(dtype)))) if _is_float(dtype) else 53
            how = {"dtype": dtype.name, "bits": bits}
            value = executed(self.value, dtype)
            return Traced(self.run, value, self.run.add("executed", (self.node_of_run,), how, value, dtype), dtype)
        if not _is_float(dtype):
            self.run.refuse(f"no rule for a cast to {dtype}")
        if self.whole:  # whole numbers become floats: what float32 has not of them is not followed
            value = self.value.astype(np.float64)
            if self.fixed:
                return held(self.run, value, dtype)
            return Traced(self.run, value, self.run.add("as_float", (self.node_of_run,), {}, value, dtype), dtype)
        node = self.run.add("cast", (self.node_of_run,), {"dtype": dtype.name}, self.value, dtype)
        return Traced(self.run, self.value.copy(), node, dtype, self.fixed)

    def copy(self, order: str = "C") -> "Traced":
        """Memory of its own."""
        return Traced(self.run, self.value.copy(), self.node_of_run, self.dtype, self.fixed)

    __copy__ = copy

    def __deepcopy__(self, _: Any) -> "Traced":
        return self.copy()

    # decisions

    def _taken(self, words: str) -> np.ndarray:
        value = self.known
        if not self.fixed:
            self.run.decide(self.node_of_run, words, value)
        return value

    def __bool__(self) -> bool:
        return bool(self._taken("if"))

    def __float__(self) -> float:
        return float(self._taken("float()"))

    def __int__(self) -> int:
        return int(self._taken("int()"))

    def __index__(self) -> int:
        return self._taken("index").__index__()

    def item(self, *at: int) -> Any:
        """The float64 value, as a decision."""
        return self._taken("item()").item(*at)

    def tolist(self) -> Any:
        """The float64 values, as a decision."""
        return self._taken("tolist()").tolist()

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        self.run.refuse(
            "an array of the reference would become a plain one here, and what follows could not be judged. Make arrays"
            " with the np of the reference's own module, and casts with astype"
        )

    def __repr__(self) -> str:
        return f"Traced({self.known!r}, dtype={self.dtype})"

    # what is done with it

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return BEHIND["of_ufunc"](self.run, ufunc, method, inputs, **kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return BEHIND["of_function"](self.run, function, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in METHODS:
            return lambda *args, **kwargs: self._called(METHODS[name], *args, **kwargs)
        if name.startswith("_") or not hasattr(np.ndarray, name):
            raise AttributeError(f"'numpy.ndarray' object has no attribute {name!r}")
        self.run.refuse(f"no rule for ndarray.{name}")

    def _called(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        first = len(self.run.nodes)
        made = method(self, *args, **kwargs)
        self.run.one_call(first, [made.node_of_run] if isinstance(made, Traced) else [])
        return made

    @property
    def T(self) -> "Traced":
        """The axes in reverse."""
        return self.transpose()

    @property
    def mT(self) -> "Traced":
        """The last two axes exchanged."""
        return self.swapaxes(-1, -2)


def as_traced(run: Recording, x: Any) -> Traced:
    """x as an array of the run: whole numbers and constants of a few elements may come from anywhere."""
    if isinstance(x, Traced):
        if x.run is not run:
            run.refuse("an array of another run; a reference keeps nothing from one call to the next")
        return x
    if isinstance(x, list | tuple):
        return BEHIND["array"](run, x)
    array_ = np.asarray(x)
    if array_.dtype.kind not in "biu" and not _is_float(array_.dtype):
        run.refuse(f"no rule for {array_.dtype}")
    if array_.dtype.kind not in "biu" and array_.size > FEW:
        run.refuse(
            f"an array of {array_.size} floats that was not made in this run meets one that was, and may be rounded."
            " Pass it as an input, or make it with the np of the reference's own module"
        )
    return held(run, array_, array_.dtype)


def held(run: Recording, value: np.ndarray, dtype: Any) -> Traced:
    """A constant: whole numbers as they are, floats in float64."""
    wide = np.array(value) if value.dtype.kind in "biu" else np.array(value, np.float64)
    return Traced(run, wide, run.hold(wide.copy(), np.dtype(dtype)), dtype, True)


def plain_index(run: Recording, index: Any) -> Any:
    """An index without arrays of the run: whole numbers as they are, a mask as a decision."""
    if isinstance(index, tuple):
        return tuple(plain_index(run, part) for part in index)
    if isinstance(index, slice):
        ends = (None if end is None else end.__index__() for end in (index.start, index.stop, index.step))
        return slice(*ends)
    if isinstance(index, list):
        return np.asarray([plain_index(run, part) for part in index])
    if not isinstance(index, Traced):
        return index
    if not index.fixed and index.dtype != bool:
        run.refuse("no rule for this index by computed places; use np.take_along_axis")
    value = index._taken("a mask as an index")
    return value.item() if not value.ndim and value.dtype.kind in "iu" else value.copy()


def executed(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """As the primitive makes it."""
    with np.errstate(all="ignore"):
        return np.asarray(RULES["executed"].value(x, dtype=dtype.name))


def noted(types: list[Any], value: np.ndarray) -> np.dtype:
    """The dtype that NumPy's promotion gives: of whole numbers alone float64 where the result is a float."""
    dtype = np.result_type(*types)
    return value.dtype if dtype.kind in "biu" and value.dtype.kind not in "biu" else dtype


def _is_float(dtype: np.dtype) -> bool:
    return dtype.kind == "f" or dtype.name.startswith(("bfloat", "float"))
