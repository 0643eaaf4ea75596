"""Places in memory as the operations of `workbench.cuda.ptx` name them: array and index; accesses go here."""

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.core.typing import signature
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from workbench.cuda import ptx
from workbench.cuda import ptx_emit as inline
from workbench.cuda.emulator.inner import inner_overload

_I64 = ir.IntType(64)


@intrinsic
def typed(typingctx, operation, operands):
    """Do nothing; where types are compiled, refuse operands that the operation on a GPU would refuse."""
    if not isinstance(operation, types.StringLiteral):
        raise TypingError("typed: the operation must be a constant")
    if problem := ptx.mismatch(operation.literal_value, list(operands)):
        raise TypingError(problem)
    return signature(types.none, operation, operands), lambda context, builder, sig, args: context.get_dummy_value()


@intrinsic
def shuffled(typingctx, value):
    """Return the value; where types are compiled, refuse one that shuffles on a GPU would refuse."""
    if types.unliteral(value) not in (types.int32, types.int64, types.float32, types.float64):
        raise TypingError(f"shuffles take int32, int64, float32 and float64, not {types.unliteral(value)}")
    return signature(value, value), lambda context, builder, sig, args: args[0]


@intrinsic
def address_of(typingctx, array, index):
    """Return the address of an element as an int64."""
    if problem := inline.misplaced("address_of", array, index):
        raise TypingError(problem)

    def codegen(context, builder, sig, args):
        array_type, index_type = sig.args
        several = isinstance(index_type, types.BaseTuple)
        indices = cgutils.unpack_tuple(builder, args[1], len(index_type)) if several else [args[1]]
        index_types = list(index_type) if several else [index_type]
        indices = [context.cast(builder, i, kind, types.intp) for i, kind in zip(indices, index_types, strict=True)]
        struct = make_array(array_type)(context, builder, args[0])
        return builder.ptrtoint(cgutils.get_item_pointer(context, builder, array_type, struct, indices), _I64)

    return signature(types.int64, array, index), codegen


def _word_pointer(builder, address, i, kind):
    return builder.gep(builder.inttoptr(address, kind.as_pointer()), [ir.Constant(_I64, i)])


@intrinsic
def _loaded(typingctx, address, count, kind):
    if not isinstance(count, types.IntegerLiteral):
        raise TypingError("_loaded: the count must be a constant")
    result = types.UniTuple(kind.dtype, count.literal_value)

    def codegen(context, builder, sig, args):
        word = context.get_value_type(kind.dtype)
        words = [builder.load(_word_pointer(builder, args[0], i, word), align=4) for i in range(len(result))]
        return cgutils.pack_array(builder, words)

    return signature(result, types.int64, count, kind), codegen


@intrinsic
def _stored(typingctx, address, words):
    def codegen(context, builder, sig, args):
        for i, word in enumerate(cgutils.unpack_tuple(builder, args[1])):
            builder.store(word, _word_pointer(builder, args[0], i, word.type), align=4)
        return context.get_dummy_value()

    return signature(types.none, types.int64, words), codegen


def aligned_address(array, index, size):
    """Return the address of an element; raises ValueError where it is not a multiple of ``size``."""


@inner_overload(aligned_address)
def _aligned_address(array, index, size):
    def implementation(array, index, size):
        address = address_of(array, index)
        if address % size:
            raise ValueError("misaligned")
        return address

    return implementation


def load_words(array, index, count, kind):
    """Return ``count`` (a constant) words, uint32 or float32, from array[index] on; their address is a multiple of
    their size.
    """


@inner_overload(load_words, prefer_literal=True)
def _load_words(array, index, count, kind):
    n = count.literal_value
    return lambda array, index, count, kind: _loaded(aligned_address(array, index, 4 * n), n, kind)


def store_words(array, index, words):
    """Store a tuple of words from array[index] on; their address is a multiple of their size."""


@inner_overload(store_words)
def _store_words(array, index, words):
    size = 4 * len(words)
    return lambda array, index, words: _stored(aligned_address(array, index, size), words)
