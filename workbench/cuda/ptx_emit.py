"""Inline PTX for intrinsics of `numba.cuda`: how an instruction, and the address of an array's element, are emitted."""

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.core.errors import TypingError
from numba.cuda.np.arrayobj import make_array

F32, I64, I32, I16 = ir.FloatType(), ir.IntType(64), ir.IntType(32), ir.IntType(16)
SHARED, GLOBAL = 3, 1  #: address spaces
_CODES = {"float": "f", "i16": "h", "i32": "r", "i64": "l"}


def misplaced(name, array, index) -> str | None:
    """Return why types are not those of an array and an index of it, or None."""
    kinds = list(index) if hasattr(index, "count") else [index]
    if getattr(array, "ndim", None) != len(kinds) or not all(hasattr(kind, "signed") for kind in kinds):
        return f"{name}: {index} is not an index of {array}"
    return None


def checked(problem):
    """Raise a TypingError that says the problem, if there is one."""
    if problem is not None:
        raise TypingError(problem)


def asm(builder, text, results, operands, *, pure=False):
    """Return the results of an instruction as a list; unless pure, it keeps its place among others and its branch."""
    codes = [f"={_CODES[str(kind)]}" for kind in results] + [_CODES[str(operand.type)] for operand in operands]
    result = ir.LiteralStructType(results) if len(results) > 1 else results[0] if results else ir.VoidType()
    function = ir.FunctionType(result, [operand.type for operand in operands])
    constraints = ",".join(codes if pure else [*codes, "~{memory}"])
    called = builder.call(
        ir.InlineAsm(function, text, constraints, side_effect=not pure), operands, attrs=() if pure else ("convergent",)
    )
    return cgutils.unpack_tuple(builder, called, len(results)) if len(results) > 1 else [called]


def braced(first, count):
    """Return the text for ``count`` operands from number ``first`` on."""
    return "{" + ", ".join(f"${first + i}" for i in range(count)) + "}"


def address(context, builder, kinds, values, space=None):
    """Return the address of an array's element, given the types and values of array and index."""
    (array_type, index_type), (array, index) = kinds, values
    indices, index_types = [index], [index_type]
    if isinstance(index_type, types.BaseTuple):
        indices, index_types = cgutils.unpack_tuple(builder, index, len(index_type)), list(index_type)
    indices = [context.cast(builder, i, kind, types.intp) for i, kind in zip(indices, index_types, strict=True)]
    struct = make_array(array_type)(context, builder, array)
    # by its strides, which a compiler adds up from place to place, and not by products of shape; from loads and stores
    # themselves that would hide that the array is global or shared
    if array_type.ndim > 1 and space is not None:
        array_type = array_type.copy(layout="A")
    pointer = cgutils.get_item_pointer(context, builder, array_type, struct, indices)
    if space is None:
        return pointer
    pointer = builder.addrspacecast(pointer, ir.PointerType(pointer.type.pointee, space))
    return builder.ptrtoint(pointer, I32 if space == SHARED else I64)
