"""Where numbers are that tensor cores multiply: in the registers of a lane, and in rows of shared memory.

Of a 16x8 tile of sums lane 4 g + t holds rows g and g + 8, columns 2 t and 2 t + 1 ("PTX ISA 9.0", matrix fragments for
mma.m16n8k16). Rows of shared memory are chunks of 8 dims, 16 bytes, that change places by the last bits of their row.
"""

from numba import cuda, int32, uint16, uint64

from workbench.cuda import ptx


@cuda.jit(device=True)
def chunk(i, half, lane):
    """Where dims 16 i + 8 half, ... begin in a row of which the last bits are those of the lane, as ldmatrix's are."""
    return ((2 * i | half) ^ (lane & 7)) * 8


@cuda.jit(device=True)
def dims(at, i):
    """Where a row has dims 16 i, ... if dims 0, ... are at `at`: a chunk changes places only with those of its 64 dims,
    whatever the row, so that an i that is known leaves one XOR and a constant.
    """
    return i // 4 * 64 + (at ^ i % 4 * 16)


@cuda.jit(device=True)
def register(r, i, columns):
    """Where a lane has element i of its row r, of so many `columns`: of 16 rows it has g and g + 8, pairs in turn."""
    return r // 2 * (columns // 2) + i // 2 * 4 + r % 2 * 2 + i % 2


@cuda.jit(device=True)
def column(i, t):
    """The column of that element: of every 8 columns a lane has two neighbours."""
    return i // 2 * 8 + 2 * t + i % 2


@cuda.jit(device=True)
def to_bfloat16(x):
    """Bits (uint16) of float32 `x` rounded to the nearest bfloat16 without a branch, of which 64 in a row keep numba's
    compiler from taking a loop apart, and the array that it indexes out of memory; GPUs from 8.0 on have it.
    """
    return uint16(ptx.cvt_bf16x2_f32(x, x) & 0xFFFF)


@cuda.jit(device=True)
def lane_row(array, row, first, end, x, r, columns, t):
    """Store what a lane has of its row r in registers x into a row of a float32 array, from its column `first` on,
    which is even; only what lies before `end`. Neighbours are one store where rows of the array have even lengths.

    Nobody reads them before the kernel ends, and they fill whole sectors of 32 bytes. So L2 evicts them first, and
    keeps row_max and the like, of which a tile stores 4 bytes of a sector for each row, until the tiles beside it have
    filled the sector. On an H100 a dump of every stage of flash_mma (head_dim 128, 13 GB) takes 5.4 ms instead of 7.0.
    """
    at = first + 2 * t
    left = int32(end - at)
    if array.shape[-1] % 2 == 0 and left > columns - 8 + 1:
        for i in range(columns // 8):
            y = register(r, 2 * i, columns)
            ptx.st_cs_v2_f32(array, row + (at + 8 * i,), (x[y], x[y + 1]))
    else:
        for i in range(columns // 4):
            if column(i, 0) < left:
                array[row + (uint64(at + column(i, 0)),)] = x[register(r, i, columns)]  # unsigned: none is from the end
