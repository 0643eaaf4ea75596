"""Instructions of NVIDIA GPUs that `numba.cuda` has no words for, callable in a kernel: tensor cores, asynchronous
copies, packed conversions, wide loads and stores. The emulator performs the same calls on the CPU.

"PTX ISA 9.0" says what each does, under the name of the instruction that it emits. Operands are taken as they are and
never converted: registers are uint32, sums float32, several of them a tuple. A place in memory is an array and an
index, an int or a tuple of ints; from there on as many bytes are meant as the instruction moves, whatever the array's
dtype. Their address must be a multiple of their number (of 16 for ``ldmatrix``), so a shared array that they are in
wants ``alignment=16``.

=============================== ====================================================================================
``mma_m16n8k16_{f16,bf16}``     D = A B + C, 4 float32 of a 16x8 tile; A is 16x16, B 16x8; all lanes of the warp
``mma_m16n8k32_{e4m3,e5m2}``    the same with A 16x32, B 32x8 (sm_89); ``_e4m3_e5m2`` names the types of A and B
``cvt_f16x2_f32(low, high)``    both rounded to nearest even, packed in a uint32; ``bf16x2`` likewise
``cvt_e4m3x2_f32(low, high)``   both rounded, at most 448 in size, in a uint16; ``e5m2x2``: 57344 (sm_89)
``cvt_f32_f16x2(packed)``       (low, high) as float32
``cvt_f16x2_e4m3x2(packed)``    a uint32 of two float16; ``e5m2x2`` likewise (sm_89)
``ex2_approx(x)``               2**x within 2 ulp; subnormals are 0
``tanh_approx(x)``              tanh(x) within 2^-11 of its value (sm_75)
``ldmatrix_x{1,2,4}``           of array, index: a uint32 of each 8x8 matrix in shared memory, as a tuple; also
                                ``_trans``; all lanes of the warp
``cp_async_{4,8,16}``           nothing; copies bytes from a global array to a shared one, done when waited for
``cp_async_commit()``           nothing; the copies since the last commit are a group
``cp_async_wait_group(n)``      nothing; until at most the last n (a constant) groups are under way; or ``_all()``
``ld_v{2,4}_{f32,u32}``         of array, index: neighbours in memory, as a tuple
``st_v{2,4}_{f32,u32}``         nothing; stores a tuple, given array, index and tuple
``red_add_v4_f32``              nothing; adds a tuple to neighbours in a global array, each sum atomic (sm_90)
``st_cs_v2_f32``                the same into a global array, of what is not read again soon: caches evict it first
=============================== ====================================================================================
"""

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.core.errors import TypingError
from numba.cuda.extending import intrinsic
from numba.cuda.typing.templates import signature

from workbench.cuda.ptx_emit import F32, GLOBAL, I16, I32, SHARED, address, asm, braced, checked, misplaced

float32, uint32, uint16 = types.float32, types.uint32, types.uint16

_A, _B, _C = types.UniTuple(uint32, 4), types.UniTuple(uint32, 2), types.UniTuple(float32, 4)
_PAIR = types.UniTuple(float32, 2)
_MMA = {"a": _A, "b": _B, "c": _C}
_LOW_HIGH = {"low": float32, "high": float32}
MMA_TYPES = {
    **{f"mma_m16n8k16_{t}": ("m16n8k16", t, t) for t in ("f16", "bf16")},
    **{f"mma_m16n8k32_{t}": ("m16n8k32", t, t) for t in ("e4m3", "e5m2")},
    "mma_m16n8k32_e4m3_e5m2": ("m16n8k32", "e4m3", "e5m2"),
    "mma_m16n8k32_e5m2_e4m3": ("m16n8k32", "e5m2", "e4m3"),
}
#: operation -> name and type of each operand
OPERANDS = {
    **dict.fromkeys(MMA_TYPES, _MMA),
    **dict.fromkeys(("cvt_f16x2_f32", "cvt_bf16x2_f32", "cvt_e4m3x2_f32", "cvt_e5m2x2_f32"), _LOW_HIGH),
    "cvt_f32_f16x2": {"packed": uint32},
    **dict.fromkeys(("cvt_f16x2_e4m3x2", "cvt_f16x2_e5m2x2"), {"packed": uint16}),
    **dict.fromkeys(("ex2_approx", "tanh_approx"), {"x": float32}),
    **{name: {"values": _PAIR} for name in ("st_v2_f32", "st_cs_v2_f32")},
    **dict.fromkeys(("st_v4_f32", "red_add_v4_f32"), {"values": types.UniTuple(float32, 4)}),
    **{f"st_v{n}_u32": {"values": types.UniTuple(uint32, n)} for n in (2, 4)},
}


def mismatch(name, given) -> str | None:
    """Return how the types of operands differ from `OPERANDS`, or None."""
    for (operand, wanted), found in zip(OPERANDS[name].items(), given, strict=True):
        if str(found) != str(wanted):  # numba and numba-cuda have each their own types of one name
            return f"{name}: {operand} must be {wanted}, not {found}"
    return None


def _mma(name):
    """Return the operation mma.sync: a, b, c -> d, tuples of 4 uint32, 2 uint32, 4 float32 and 4 float32."""
    shape, a_type, b_type = MMA_TYPES[name]
    operands = f"{braced(0, 4)}, {braced(4, 4)}, {braced(8, 2)}, {braced(10, 4)};"
    text = f"mma.sync.aligned.{shape}.row.col.f32.{a_type}.{b_type}.f32 {operands}"

    @intrinsic
    def mma(typingctx, a, b, c):
        checked(mismatch(name, (a, b, c)))

        def codegen(context, builder, sig, args):
            registers = [x for tuple_ in args for x in cgutils.unpack_tuple(builder, tuple_)]
            return cgutils.pack_array(builder, asm(builder, text, [F32] * 4, registers))

        return signature(_C, a, b, c), codegen

    return mma


def _ldmatrix(count, transposed):
    """Return the operation ldmatrix: array, index -> ``count`` uint32, one of each 8x8 matrix of 16-bit elements.

    Lane i gives the place of row ``i % 8`` of matrix ``i // 8``; other lanes' places are not used. The array is shared.
    """
    suffix = ".trans" if transposed else ""
    text = f"ldmatrix.sync.aligned.m8n8.x{count}{suffix}.shared.b16 {braced(0, count)}, [${count}];"

    @intrinsic
    def ldmatrix(typingctx, array, index):
        checked(misplaced("ldmatrix", array, index))

        def codegen(context, builder, sig, args):
            place = address(context, builder, sig.args, args, SHARED)
            return cgutils.pack_array(builder, asm(builder, text, [I32] * count, [place]))

        return signature(types.UniTuple(uint32, count), array, index), codegen

    return ldmatrix


def _cp_async(size):
    """Return the operation cp.async of ``size`` bytes: shared array, its index, global array, its index -> nothing."""
    text = f"cp.async.{'cg' if size == 16 else 'ca'}.shared.global [$0], [$1], {size};"

    @intrinsic
    def cp_async(typingctx, target, target_index, source, source_index):
        checked(misplaced("cp_async", target, target_index) or misplaced("cp_async", source, source_index))

        def codegen(context, builder, sig, args):
            places = [
                address(context, builder, sig.args[:2], args[:2], SHARED),
                address(context, builder, sig.args[2:], args[2:], GLOBAL),
            ]
            asm(builder, text, [], places)
            return context.get_dummy_value()

        return signature(types.none, target, target_index, source, source_index), codegen

    return cp_async


def _fence(text):
    @intrinsic
    def fence(typingctx):
        def codegen(context, builder, sig, args):
            asm(builder, text, [], [])
            return context.get_dummy_value()

        return signature(types.none), codegen

    return fence


@intrinsic
def cp_async_wait_group(typingctx, n):
    """Wait until at most the ``n`` groups committed last are still being copied; ``n`` is a constant."""
    if not isinstance(n, types.IntegerLiteral) or n.literal_value < 0:  # numba tries again with what is constant
        raise TypingError(f"cp_async_wait_group: n must be a constant and not negative, not {n}")
    text = f"cp.async.wait_group {n.literal_value};"

    def codegen(context, builder, sig, args):
        asm(builder, text, [], [])
        return context.get_dummy_value()

    return signature(types.none, n), codegen


def _unary(name, text, result, parts):
    """Return an operation on one register; ``parts`` are the LLVM types of its results."""

    @intrinsic
    def unary(typingctx, x):
        checked(mismatch(name, (x,)))

        def codegen(context, builder, sig, args):
            results = asm(builder, text, parts, args, pure=True)
            return cgutils.pack_array(builder, results) if len(parts) > 1 else results[0]

        return signature(result, x), codegen

    return unary


def _pack(name, instruction, result):
    """Return a conversion of two float32 into one register; PTX names the upper one first."""

    @intrinsic
    def pack(typingctx, low, high):
        checked(mismatch(name, (low, high)))

        def codegen(context, builder, sig, args):
            return asm(builder, f"{instruction} $0, $2, $1;", [I16 if result is uint16 else I32], args, pure=True)[0]

        return signature(result, low, high), codegen

    return pack


def _vector(builder, address, element, count):
    return builder.bitcast(address, ir.VectorType(element, count).as_pointer())


def _load(count, kind, element):
    """Return the operation array, index -> ``count`` neighbours at once, from memory of any kind."""

    @intrinsic
    def load(typingctx, array, index):
        checked(misplaced("ld", array, index))

        def codegen(context, builder, sig, args):
            pointer = _vector(builder, address(context, builder, sig.args, args), element, count)
            vector = builder.load(pointer, align=4 * count)
            return cgutils.pack_array(builder, [builder.extract_element(vector, I32(i)) for i in range(count)])

        return signature(types.UniTuple(kind, count), array, index), codegen

    return load


def _store(name, count, element):
    """Return the operation array, index, values -> nothing, ``count`` values stored at once, to memory of any kind."""

    @intrinsic
    def store(typingctx, array, index, values):
        checked(misplaced(name, array, index) or mismatch(name, (values,)))

        def codegen(context, builder, sig, args):
            pointer = _vector(builder, address(context, builder, sig.args[:2], args[:2]), element, count)
            vector = ir.VectorType(element, count)(ir.Undefined)
            for i, value in enumerate(cgutils.unpack_tuple(builder, args[2])):
                vector = builder.insert_element(vector, value, I32(i))
            builder.store(vector, pointer, align=4 * count)
            return context.get_dummy_value()

        return signature(types.none, array, index, values), codegen

    return store


def _to_global(name, instruction, count):
    """Return the operation array, index, values -> nothing, on ``count`` float32 neighbours in a global array."""
    text = f"{instruction} [$0], {braced(1, count)};"

    @intrinsic
    def sent(typingctx, array, index, values):
        checked(misplaced(name, array, index) or mismatch(name, (values,)))

        def codegen(context, builder, sig, args):
            place = address(context, builder, sig.args[:2], args[:2], GLOBAL)
            asm(builder, text, [], [place, *cgutils.unpack_tuple(builder, args[2])])
            return context.get_dummy_value()

        return signature(types.none, array, index, values), codegen

    return sent


mma_m16n8k16_f16, mma_m16n8k16_bf16 = _mma("mma_m16n8k16_f16"), _mma("mma_m16n8k16_bf16")
mma_m16n8k32_e4m3, mma_m16n8k32_e5m2 = _mma("mma_m16n8k32_e4m3"), _mma("mma_m16n8k32_e5m2")
mma_m16n8k32_e4m3_e5m2, mma_m16n8k32_e5m2_e4m3 = _mma("mma_m16n8k32_e4m3_e5m2"), _mma("mma_m16n8k32_e5m2_e4m3")
ldmatrix_x1, ldmatrix_x2, ldmatrix_x4 = (_ldmatrix(n, False) for n in (1, 2, 4))
ldmatrix_x1_trans, ldmatrix_x2_trans, ldmatrix_x4_trans = (_ldmatrix(n, True) for n in (1, 2, 4))
cp_async_4, cp_async_8, cp_async_16 = (_cp_async(size) for size in (4, 8, 16))
cp_async_commit, cp_async_wait_all = _fence("cp.async.commit_group;"), _fence("cp.async.wait_all;")
ex2_approx = _unary("ex2_approx", "ex2.approx.ftz.f32 $0, $1;", float32, [F32])
tanh_approx = _unary("tanh_approx", "tanh.approx.f32 $0, $1;", float32, [F32])
cvt_f16x2_f32 = _pack("cvt_f16x2_f32", "cvt.rn.f16x2.f32", uint32)
cvt_bf16x2_f32 = _pack("cvt_bf16x2_f32", "cvt.rn.bf16x2.f32", uint32)
cvt_e4m3x2_f32 = _pack("cvt_e4m3x2_f32", "cvt.rn.satfinite.e4m3x2.f32", uint16)
cvt_e5m2x2_f32 = _pack("cvt_e5m2x2_f32", "cvt.rn.satfinite.e5m2x2.f32", uint16)
cvt_f16x2_e4m3x2 = _unary("cvt_f16x2_e4m3x2", "cvt.rn.f16x2.e4m3x2 $0, $1;", uint32, [I32])
cvt_f16x2_e5m2x2 = _unary("cvt_f16x2_e5m2x2", "cvt.rn.f16x2.e5m2x2 $0, $1;", uint32, [I32])
_HALVES = "{ .reg .b16 l, h; mov.b32 {l, h}, $2; cvt.f32.f16 $0, l; cvt.f32.f16 $1, h; }"
cvt_f32_f16x2 = _unary("cvt_f32_f16x2", _HALVES, _PAIR, [F32] * 2)
ld_v2_f32, ld_v4_f32 = _load(2, float32, F32), _load(4, float32, F32)
ld_v2_u32, ld_v4_u32 = _load(2, uint32, I32), _load(4, uint32, I32)
st_v2_f32, st_v4_f32 = _store("st_v2_f32", 2, F32), _store("st_v4_f32", 4, F32)
st_cs_v2_f32 = _to_global("st_cs_v2_f32", "st.global.cs.v2.f32", 2)
red_add_v4_f32 = _to_global("red_add_v4_f32", "red.global.add.v4.f32", 4)
st_v2_u32, st_v4_u32 = _store("st_v2_u32", 2, I32), _store("st_v4_u32", 4, I32)

#: the operations by name
OPERATIONS = {name: value for name, value in dict(globals()).items() if type(value) is type(cp_async_wait_group)}
