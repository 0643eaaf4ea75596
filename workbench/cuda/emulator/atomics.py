"""`cuda.atomic`: plain read-modify-write, since only one thread of a kernel that uses atomics runs at a time.

Each function takes an array, an index and a value, and returns the old element. The new one is stored in the array's
dtype, so unsigned arithmetic wraps. Other dtypes than `numba.cuda` has an operation for are refused.
"""

from numba.core import types

from workbench.cuda.emulator.inner import inner, inner_overload

_UNSIGNED = (types.uint32, types.uint64)
_INTEGERS = (types.int32, types.int64, *_UNSIGNED)
_NUMBERS = (*_INTEGERS, types.float32, types.float64)


def _atomic(name, dtypes, changed):
    """Return a function that compiled code may call for arrays of these element types; `changed` gives the new element
    of the old one and a value of its type.
    """
    change = inner(changed)

    def function(array, index, value):
        raise AssertionError("atomics are for compiled code")

    @inner_overload(function, strict=False)
    def typed(array, index, value):
        def implementation(array, index, value):
            old = array[index]
            array[index] = change(old, array.dtype.type(value))
            return old

        return implementation if array.dtype in dtypes else None

    function.__name__ = name
    return function


add = _atomic("add", _NUMBERS, lambda old, value: old + value)
sub = _atomic("sub", _NUMBERS, lambda old, value: old - value)
# nothing changes where either is NaN
max = _atomic("max", _NUMBERS, lambda old, value: value if value > old else old)
min = _atomic("min", _NUMBERS, lambda old, value: value if value < old else old)
# a NaN that is stored gives way to a number, and a NaN as the value is ignored
nanmax = _atomic("nanmax", _NUMBERS, lambda x, value: value if value > x or (x != x and value == value) else x)
nanmin = _atomic("nanmin", _NUMBERS, lambda x, value: value if value < x or (x != x and value == value) else x)
and_ = _atomic("and_", _INTEGERS, lambda old, value: old & value)
or_ = _atomic("or_", _INTEGERS, lambda old, value: old | value)
xor = _atomic("xor", _INTEGERS, lambda old, value: old ^ value)
# counts up, from the value on to 0; counts down, from 0 or above the value to it
inc = _atomic("inc", _UNSIGNED, lambda old, value: 0 if old >= value else old + 1)
dec = _atomic("dec", _UNSIGNED, lambda old, value: value if old == 0 or old > value else old - 1)
exch = _atomic("exch", _INTEGERS, lambda old, value: value)


def cas(array, index, old, value):
    """Store ``value`` where the element is ``old``."""


def compare_and_swap(array, old, value):
    """`cas` on element 0 of a 1-d array."""


@inner_overload(cas, strict=False)
def _cas(array, index, old, value):
    def implementation(array, index, old, value):
        current = array[index]
        if current == array.dtype.type(old):
            array[index] = value
        return current

    return implementation if array.dtype in _INTEGERS else None


@inner_overload(compare_and_swap, strict=False)
def _compare_and_swap(array, old, value):
    return (lambda array, old, value: cas(array, 0, old, value)) if array.dtype in _INTEGERS else None
