"""`cuda.atomic`: plain read-modify-write, since only one thread of a kernel that uses atomics runs at a time.

Each function returns the old element. The new one is stored in the array's dtype, so unsigned arithmetic wraps.
"""

from numba import njit


@njit(_nrt=False)
def add(array, index, value):
    """Add ``value``."""
    old = array[index]
    array[index] = old + array.dtype.type(value)
    return old


@njit(_nrt=False)
def sub(array, index, value):
    """Subtract ``value``."""
    old = array[index]
    array[index] = old - array.dtype.type(value)
    return old


@njit(_nrt=False)
def max(array, index, value):
    """Keep the larger; a NaN that is stored gives way to ``value``, a NaN as ``value`` is ignored."""
    old = array[index]
    value = array.dtype.type(value)
    if value > old or old != old:
        array[index] = value
    return old


@njit(_nrt=False)
def min(array, index, value):
    """Keep the smaller; NaN as in `max`."""
    old = array[index]
    value = array.dtype.type(value)
    if value < old or old != old:
        array[index] = value
    return old


@njit(_nrt=False)
def and_(array, index, value):
    """Keep the common bits."""
    old = array[index]
    array[index] = old & array.dtype.type(value)
    return old


@njit(_nrt=False)
def or_(array, index, value):
    """Keep the bits of either."""
    old = array[index]
    array[index] = old | array.dtype.type(value)
    return old


@njit(_nrt=False)
def xor(array, index, value):
    """Keep the bits that differ."""
    old = array[index]
    array[index] = old ^ array.dtype.type(value)
    return old


@njit(_nrt=False)
def inc(array, index, value):
    """Count up, from ``value`` on to 0."""
    old = array[index]
    array[index] = 0 if old >= array.dtype.type(value) else old + 1
    return old


@njit(_nrt=False)
def dec(array, index, value):
    """Count down, from 0 or above ``value`` to ``value``."""
    old = array[index]
    limit = array.dtype.type(value)
    array[index] = limit if old == 0 or old > limit else old - 1
    return old


@njit(_nrt=False)
def exch(array, index, value):
    """Store ``value``."""
    old = array[index]
    array[index] = value
    return old


@njit(_nrt=False)
def cas(array, index, old, value):
    """Store ``value`` where the element is ``old``."""
    current = array[index]
    if current == array.dtype.type(old):
        array[index] = value
    return current


@njit(_nrt=False)
def compare_and_swap(array, old, value):
    """`cas` on element 0 of a 1-d array."""
    return cas(array, 0, old, value)
