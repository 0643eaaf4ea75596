"""Instructions that NVIDIA's Hopper GPUs (sm_90a) alone have, callable in a kernel: products of four warps at once
(wgmma), copies of whole tiles (TMA), and the barriers in shared memory that wait for both. As in `ptx`, registers are
uint32, sums float32, and a place in memory is an array and an index.

Barriers are elements of a shared array of uint64. Tiles lie in shared memory as rows of 128 bytes, of which 16-byte
chunk c of row r is at c ^ (r % 8) ("128-byte swizzle"), and begin at a multiple of 1024 bytes; an index into one counts
as if nothing were swizzled.

======================================= ============================================================================
``mbarrier_init(bars, i, count)``       nothing; so many arrivals complete a phase
``fence_barrier_init()``                nothing; copies see the barriers that this thread has initialised
``mbarrier_arrive(bars, i)``            nothing; one arrival
``mbarrier_expect_tx(bars, i, bytes)``  nothing; one arrival, and so many bytes come before the phase completes
``mbarrier_wait(bars, i, parity)``      nothing; until the phase of this parity, 0 or 1, is complete
``cp_async_bulk_tensor``                nothing; (target, index, x, map, (b, h, row, dim), rows, bars, i): a box of so
                                        many rows of 128 bytes of x [b, h, rows, dims], zeros outside of it, whose bytes
                                        come to barrier i; ``map`` is the number of its tensor map; one thread asks
``fence_async_shared()``                nothing; wgmma sees what this thread has stored in shared memory
``wgmma_fence(acc, count)``             nothing; before the first wgmma, and after registers that it reads were written
``wgmma_m64n{N}k16_{f16,bf16}``         acc += A B: (acc, a, index, b, index, accumulate), acc 64 x N in N / 2 registers
                                        of 128 threads; A 64 x 16, rows in shared memory; B 16 x N, its columns in rows
                                        there; accumulate 0: acc = A B
``..._rs``                              A in 4 registers of each thread: (acc, registers, i, b, index, accumulate)
``..._rs_trans``                        B by rows, in tiles of 64 columns that are ``leading`` bytes apart:
                                        (acc, registers, i, b, index, leading, accumulate)
``wgmma_m64n{N}k32_e4m3`` (``_rs``)     the same of float8, A 64 x 32
``wgmma_commit()``                      nothing; the products since the last commit are a group
``wgmma_wait(n, acc, count)``           nothing; until at most the last n groups are under way: acc may be read
``set_max_registers_{inc,dec}(n)``      nothing; registers of each thread of the warp group from here on
``named_barrier(i, threads)``           nothing; until so many threads, multiples of 32, are at barrier i, 1 to 15
``named_barrier_arrive(i, threads)``    nothing; the same without waiting
======================================= ============================================================================
"""

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.core.errors import TypingError
from numba.cuda.extending import intrinsic
from numba.cuda.np.arrayobj import make_array
from numba.cuda.typing.templates import signature

from workbench.cuda.ptx_emit import F32, I64, SHARED, address, asm, braced, checked, misplaced
from workbench.cuda.tensor_maps import tensor_map_name

#: columns of a product
WIDTHS = (64, 128)
#: name in the instruction -> products at once
_DEPTHS = {"f16": 16, "bf16": 16, "e4m3": 32}
#: a place in a tile as wgmma takes it ("PTX ISA 9.0", matrix descriptor): address / 16 in bits 0 to 13, the distance in
#: bytes / 16 of tiles in bits 16 to 29, that of groups of 8 rows in bits 32 to 45, and 1 for the 128-byte swizzle
_GROUP_BYTES, _SWIZZLED = 8 * 128, 1 << 62


def _constant(name, operand, given):
    """The value of a constant; raises a TypingError for what is none: numba tries again with literals."""
    if not isinstance(given, types.IntegerLiteral) or given.literal_value < 0:
        raise TypingError(f"{name}: {operand} must be a constant and not negative, not {given}")
    return given.literal_value


def _at_barrier(name, text):
    """Return an operation on a barrier: bars, i and, where its text has a $1, an int -> nothing."""

    def emit(context, builder, sig, args):
        operands = [address(context, builder, sig.args[:2], args[:2], SHARED)]
        operands += [context.cast(builder, args[2], sig.args[2], types.uint32)] if len(args) == 3 else []
        asm(builder, text, [], operands)
        return context.get_dummy_value()

    def typed(bars, i, *number):
        checked(misplaced(name, bars, i))
        if str(bars.dtype) != "uint64":
            raise TypingError(f"{name}: barriers are uint64, not {bars.dtype}")
        return signature(types.none, bars, i, *number), emit

    if "$1" in text:

        @intrinsic
        def operation(typingctx, bars, i, number):
            return typed(bars, i, number)
    else:

        @intrinsic
        def operation(typingctx, bars, i):
            return typed(bars, i)

    return operation


def _plain(text):
    @intrinsic
    def plain(typingctx):
        def emit(context, builder, sig, args):
            asm(builder, text, [], [])
            return context.get_dummy_value()

        return signature(types.none), emit

    return plain


def _registers(name, text):
    """Return an operation whose operand is a constant in its text."""

    @intrinsic
    def operation(typingctx, n):
        value = _constant(name, "n", n)

        def emit(context, builder, sig, args):
            asm(builder, text.format(value), [], [])
            return context.get_dummy_value()

        return signature(types.none, n), emit

    return operation


def _named(instruction):
    """Return an operation on a barrier with a number: i, threads -> nothing."""

    @intrinsic
    def operation(typingctx, i, threads):
        def emit(context, builder, sig, args):
            operands = [context.cast(builder, x, kind, types.uint32) for x, kind in zip(args, sig.args, strict=True)]
            asm(builder, f"{instruction} $0, $1;", [], operands)
            return context.get_dummy_value()

        return signature(types.none, i, threads), emit

    return operation


def _through(context, builder, kind, array, count, text):
    """Emit an instruction that the first elements of a local array pass through: uses of them stay behind it."""
    places = _elements(context, builder, kind, array, 0, count)
    _tied(builder, text, [builder.load(place) for place in places], [], places)
    return context.get_dummy_value()


def _elements(context, builder, kind, array, first, count):
    """The addresses of elements of a one-dimensional array; `first` an int or an LLVM value."""
    data = make_array(kind)(context, builder, array).data
    first = I64(first) if isinstance(first, int) else first
    return [builder.gep(data, [builder.add(first, I64(i))], inbounds=True) for i in range(count)]


def _tied(builder, text, registers, operands, places):
    """Emit an instruction that changes `registers` and reads `operands`, numbered behind the registers twice; and store
    the registers.
    """
    count = len(registers)
    codes = {"float": "f", "i32": "r", "i64": "l"}
    constraints = ["=f"] * count + [codes[str(x.type)] for x in operands] + [str(i) for i in range(count)]
    result = ir.LiteralStructType([F32] * count)
    function = ir.FunctionType(result, [x.type for x in (*operands, *registers)])
    made = ir.InlineAsm(function, text, ",".join([*constraints, "~{memory}"]), side_effect=True)
    called = builder.call(made, [*operands, *registers], attrs=("convergent",))
    for i, place in enumerate(places):
        builder.store(builder.extract_value(called, i), place)


@intrinsic
def wgmma_fence(typingctx, acc, count):
    """Order what was written to registers, `count` of `acc` among them, before the products that follow."""
    number = _constant("wgmma_fence", "count", count)

    def emit(context, builder, sig, args):
        return _through(context, builder, sig.args[0], args[0], number, "wgmma.fence.sync.aligned;")

    return signature(types.none, acc, count), emit


@intrinsic
def wgmma_wait(typingctx, n, acc, count):
    """Wait until at most the last `n` groups are under way; `count` registers of `acc` may be read then."""
    groups, number = _constant("wgmma_wait", "n", n), _constant("wgmma_wait", "count", count)

    def emit(context, builder, sig, args):
        text = f"wgmma.wait_group.sync.aligned {groups};"
        return _through(context, builder, sig.args[1], args[1], number, text)

    return signature(types.none, n, acc, count), emit


@intrinsic
def cp_async_bulk_tensor(typingctx, target, target_index, x, number, place, rows, bars, i):
    """Ask for a box of a tensor map; on a GPU the map knows its array and its rows."""
    checked(misplaced("cp_async_bulk_tensor", target, target_index) or misplaced("cp_async_bulk_tensor", bars, i))
    name = tensor_map_name(_constant("cp_async_bulk_tensor", "map", number))
    text = (
        f"{{ .reg .b64 m; mov.b64 m, {name}; cvta.param.u64 m, m; "
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[$0], [m, {$2, $3, $4, $5}], [$1]; }"
    )

    def emit(context, builder, sig, args):
        places = [address(context, builder, sig.args[j : j + 2], args[j : j + 2], SHARED) for j in (0, 6)]
        axes = [
            context.cast(builder, one, kind, types.int32)
            for one, kind in zip(cgutils.unpack_tuple(builder, args[4]), sig.args[4], strict=True)
        ]
        asm(builder, text, [], [*places, *reversed(axes)])
        return context.get_dummy_value()

    return signature(types.none, target, target_index, x, number, place, rows, bars, i), emit


def _descriptor(context, builder, kinds, args, leading):
    """The descriptor of a place in a tile."""
    at = builder.zext(address(context, builder, kinds, args, SHARED), I64)
    at = builder.lshr(builder.and_(at, I64(0x3FFFF)), I64(4))
    return builder.or_(at, I64((leading >> 4) << 16 | (_GROUP_BYTES >> 4) << 32 | _SWIZZLED))


def _wgmma(name, width, kind, registers, transposed):
    """Return the operation wgmma: A in `registers` or shared memory, B by columns or, `transposed`, by rows."""
    count = width // 2
    # operands are numbered behind the sums
    a, b = (braced(count, 4), f"${count + 4}") if registers else (f"${count}", f"${count + 1}")
    accumulate = f"${count + 5}" if registers else f"${count + 2}"
    orders = "" if kind == "e4m3" else f", {int(transposed)}" if registers else f", 0, {int(transposed)}"
    shape = f"m64n{width}k{_DEPTHS[kind]}.f32.{kind}.{kind}"
    text = (
        f"{{ .reg .pred p; setp.ne.b32 p, {accumulate}, 0; wgmma.mma_async.sync.aligned.{shape} {braced(0, count)}, "
        f"{a}, {b}, p, 1, 1{orders}; }}"
    )

    def typed(acc, a, a_at, b, b_at, leading, accumulate):
        checked(misplaced(name, a, a_at) or misplaced(name, b, b_at))
        for what, given, wanted in (("acc", acc, "float32"), ("a", a, "uint32" if registers else str(a.dtype))):
            if str(given.dtype) != wanted:
                raise TypingError(f"{name}: {what} must be of {wanted}, not {given.dtype}")
        distance = 16 if leading is None else _constant(name, "leading", leading)

        def emit(context, builder, sig, args):
            kinds = sig.args
            if registers:
                first = context.cast(builder, args[2], kinds[2], types.intp)
                operands = [builder.load(x) for x in _elements(context, builder, kinds[1], args[1], first, 4)]
            else:
                operands = [_descriptor(context, builder, kinds[1:3], args[1:3], 16)]
            operands.append(_descriptor(context, builder, kinds[3:5], args[3:5], distance))
            operands.append(context.cast(builder, args[-1], kinds[-1], types.uint32))
            places = _elements(context, builder, kinds[0], args[0], 0, count)
            _tied(builder, text, [builder.load(x) for x in places], operands, places)
            return context.get_dummy_value()

        given = (acc, a, a_at, b, b_at) + (() if leading is None else (leading,))
        return signature(types.none, *given, accumulate), emit

    if transposed:

        @intrinsic
        def wgmma(typingctx, acc, a, a_at, b, b_at, leading, accumulate):
            return typed(acc, a, a_at, b, b_at, leading, accumulate)
    else:

        @intrinsic
        def wgmma(typingctx, acc, a, a_at, b, b_at, accumulate):
            return typed(acc, a, a_at, b, b_at, None, accumulate)

    return wgmma


def _products():
    """Name -> operation of all products."""
    made = {}
    for width in WIDTHS:
        for kind, depth in _DEPTHS.items():
            for registers in (False, True):
                for transposed in (False, True) if kind != "e4m3" else (False,):
                    name = f"wgmma_m64n{width}k{depth}_{kind}{'_rs' * registers}{'_trans' * transposed}"
                    made[name] = _wgmma(name, width, kind, registers, transposed)
    return made


PRODUCTS = _products()
globals().update(PRODUCTS)

_WAIT = "{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1; @p bra DONE; bra AGAIN; DONE: }"
mbarrier_init = _at_barrier("mbarrier_init", "mbarrier.init.shared::cta.b64 [$0], $1;")
mbarrier_arrive = _at_barrier("mbarrier_arrive", "mbarrier.arrive.shared::cta.b64 _, [$0];")
mbarrier_expect_tx = _at_barrier("mbarrier_expect_tx", "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;")
mbarrier_wait = _at_barrier("mbarrier_wait", _WAIT)
fence_barrier_init = _plain("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;")
fence_async_shared = _plain("fence.proxy.async.shared::cta;")
wgmma_commit = _plain("wgmma.commit_group.sync.aligned;")
set_max_registers_inc = _registers("set_max_registers_inc", "setmaxnreg.inc.sync.aligned.u32 {};")
set_max_registers_dec = _registers("set_max_registers_dec", "setmaxnreg.dec.sync.aligned.u32 {};")
named_barrier, named_barrier_arrive = _named("bar.sync"), _named("bar.arrive")

#: the operations by name
OPERATIONS = {name: value for name, value in dict(globals()).items() if type(value) is type(wgmma_commit)}
