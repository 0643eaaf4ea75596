"""`cuda.atomic`: plain read-modify-write, since only one thread of a kernel that uses atomics runs at a time.

Each function returns the old element. The new one is stored in the array's dtype, so unsigned arithmetic wraps. Other
dtypes than `numba.cuda` has an operation for are refused.
"""

from numba.core import types

from workbench.cuda.emulator.inner import inner_overload

_UNSIGNED = (types.uint32, types.uint64)
_INTEGERS = (types.int32, types.int64, *_UNSIGNED)
_NUMBERS = (*_INTEGERS, types.float32, types.float64)


def _atomic(dtypes):
    """Return a decorator: the function, which compiled code may call for arrays of these element types."""

    def decorate(implementation):
        def function(*arguments):
            raise AssertionError("atomics are for compiled code")

        def typed(array, *others):
            return implementation if array.dtype in dtypes else None

        function.__name__ = implementation.__name__
        function.__doc__ = implementation.__doc__
        inner_overload(function, strict=False)(typed)
        return function

    return decorate


@_atomic(_NUMBERS)
def add(array, index, value):
    """Add ``value``."""
    old = array[index]
    array[index] = old + array.dtype.type(value)
    return old


@_atomic(_NUMBERS)
def sub(array, index, value):
    """Subtract ``value``."""
    old = array[index]
    array[index] = old - array.dtype.type(value)
    return old


@_atomic(_NUMBERS)
def max(array, index, value):
    """Keep the larger; nothing changes where either is NaN."""
    old = array[index]
    if array.dtype.type(value) > old:
        array[index] = value
    return old


@_atomic(_NUMBERS)
def min(array, index, value):
    """Keep the smaller; nothing changes where either is NaN."""
    old = array[index]
    if array.dtype.type(value) < old:
        array[index] = value
    return old


@_atomic(_NUMBERS)
def nanmax(array, index, value):
    """Keep the larger; a NaN that is stored gives way to ``value``, a NaN as ``value`` is ignored."""
    old = array[index]
    value = array.dtype.type(value)
    if value > old or (old != old and value == value):
        array[index] = value
    return old


@_atomic(_NUMBERS)
def nanmin(array, index, value):
    """Keep the smaller; a NaN that is stored gives way to ``value``, a NaN as ``value`` is ignored."""
    old = array[index]
    value = array.dtype.type(value)
    if value < old or (old != old and value == value):
        array[index] = value
    return old


@_atomic(_INTEGERS)
def and_(array, index, value):
    """Keep the common bits."""
    old = array[index]
    array[index] = old & array.dtype.type(value)
    return old


@_atomic(_INTEGERS)
def or_(array, index, value):
    """Keep the bits of either."""
    old = array[index]
    array[index] = old | array.dtype.type(value)
    return old


@_atomic(_INTEGERS)
def xor(array, index, value):
    """Keep the bits that differ."""
    old = array[index]
    array[index] = old ^ array.dtype.type(value)
    return old


@_atomic(_UNSIGNED)
def inc(array, index, value):
    """Count up, from ``value`` on to 0."""
    old = array[index]
    array[index] = 0 if old >= array.dtype.type(value) else old + 1
    return old


@_atomic(_UNSIGNED)
def dec(array, index, value):
    """Count down, from 0 or above ``value`` to ``value``."""
    old = array[index]
    limit = array.dtype.type(value)
    array[index] = limit if old == 0 or old > limit else old - 1
    return old


@_atomic(_INTEGERS)
def exch(array, index, value):
    """Store ``value``."""
    old = array[index]
    array[index] = value
    return old


@_atomic(_INTEGERS)
def cas(array, index, old, value):
    """Store ``value`` where the element is ``old``."""
    current = array[index]
    if current == array.dtype.type(old):
        array[index] = value
    return current


@_atomic(_INTEGERS)
def compare_and_swap(array, old, value):
    """`cas` on element 0 of a 1-d array."""
    return cas(array, 0, old, value)
