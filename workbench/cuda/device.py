"""Device functions that the kernels share: reductions over the threads of a row, and 16-bit floats as bits."""

from numba import cuda, float32, int32, uint16
from numba.cuda import libdevice

from workbench.case.formats import FLOAT8
from workbench.cuda import ptx

#: threads that share a query row: neighbours in one warp, so that two shuffles reduce a row
LANES = 4
FULL_WARP = 0xFFFFFFFF


@cuda.jit(device=True)
def row_max_of(x):
    """Largest x among the LANES threads of a row, in each of them; every lane of the warp takes part."""
    offset = LANES // 2
    while offset > 0:
        x = max(x, cuda.shfl_xor_sync(FULL_WARP, x, offset))
        offset //= 2
    return x


@cuda.jit(device=True)
def row_sum_of(x):
    """Sum of x over the LANES threads of a row, bit-identical in each of them; every lane of the warp takes part."""
    offset = LANES // 2
    while offset > 0:
        x = x + cuda.shfl_xor_sync(FULL_WARP, x, offset)
        offset //= 2
    return x


@cuda.jit(device=True)
def load_bfloat16(bits):
    """The float32 value of bfloat16 `bits` (uint16): exact, since bfloat16 is the upper half of a float32."""
    return libdevice.int_as_float(int32(bits << 16))


@cuda.jit(device=True)
def round_float16(x):
    """float32 `x` rounded to the nearest float16, ties to even, as a float32."""
    return libdevice.half2float(libdevice.float2half_rn(x))


@cuda.jit(device=True)
def round_bfloat16(x):
    """float32 `x` rounded to the nearest bfloat16, ties to even, as a float32."""
    return load_bfloat16(store_bfloat16(x))


@cuda.jit(device=True)
def round_e4m3(x):
    """float32 `x` rounded to e4m3, as a float32."""
    return ptx.cvt_f32_f16x2(ptx.cvt_f16x2_e4m3x2(ptx.cvt_e4m3x2_f32(x, x)))[0]


@cuda.jit(device=True)
def store_bfloat16(x):
    """Bits (uint16) of float32 `x` rounded to the nearest bfloat16, ties to even; NaN gives the quiet NaN 0x7fc0."""
    if x != x:
        return uint16(0x7FC0)
    bits = libdevice.float_as_int(float32(x)) & 0xFFFFFFFF
    # adding just under half of the last kept bit, or half when that bit is odd, carries into it when x must round up
    return uint16((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)


#: storage dtype -> (LOAD, STORE); float16 arrays convert on assignment, bfloat16 arrays hold bits
CONVERSIONS = {
    "float32": (float32, float32),
    "float16": (float32, float32),
    "bfloat16": (load_bfloat16, store_bfloat16),
}
#: dtype to which probs are cast -> CAST
CASTS = {"float32": float32, "float16": round_float16, "bfloat16": round_bfloat16, FLOAT8["e4m3"]: round_e4m3}
