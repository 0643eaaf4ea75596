"""Matrices spread over the lanes of a warp: what lanes offer to mma and ldmatrix, what the scheduler makes of it.

Who owns an element is defined in "PTX ISA 9.0", warp-level matrix instructions: lane ``4 g + t`` holds in a register of
A or B neighbours along k, of row ``g`` (and ``g + 8``) of A and of column ``g`` of B; they begin at ``t``
times their number, and 4 times further in a second register. Of C and D it holds columns ``2 t`` and ``2 t + 1``.
"""

import numpy as np
from numba import types

from workbench.cuda.emulator import kinds, tensor
from workbench.cuda.emulator.context import Record
from workbench.cuda.emulator.inner import inner
from workbench.cuda.emulator.intrinsics import bits_of, from_bits, words_at
from workbench.cuda.emulator.places import load_words, typed

float32, uint32 = types.float32, types.uint32
_FULL = 0xFFFFFFFF
#: kind - MMA_F16 -> types of A and B
_FACTORS = tuple(
    (tensor.CODES[a], tensor.CODES[b])
    for a, b in (("f16",) * 2, ("bf16",) * 2, ("e4m3",) * 2, ("e5m2",) * 2, ("e4m3", "e5m2"), ("e5m2", "e4m3"))
)


@inner
def offer_mma(c, a, b, d):
    """Leave the registers of A, B and C for the scheduler."""
    typed("mma_m16n8k16_f16", (a, b, d))
    record = words_at(c.record, Record.WORDS)
    record[Record.MASK] = _FULL
    for i in range(4):
        record[Record.REGISTERS + i] = a[i]
        record[Record.REGISTERS + 6 + i] = bits_of(d[i])
    for i in range(2):
        record[Record.REGISTERS + 4 + i] = b[i]


@inner
def _float(record, i):
    return from_bits(record[Record.REGISTERS + i], float32(0))


@inner
def take_mma(c, offered, waited):
    """Return the registers of D."""
    record = words_at(c.record, Record.WORDS)
    return _float(record, 0), _float(record, 1), _float(record, 2), _float(record, 3)


def _offer_ldmatrix(count):
    @inner
    def offer_ldmatrix(c, array, index):
        record = words_at(c.record, Record.WORDS)
        record[Record.MASK] = _FULL
        if c.lane < 8 * count:
            row = load_words(array, index, 4, uint32)
            for i in range(4):
                record[Record.REGISTERS + i] = row[i]

    return offer_ldmatrix


def _take_ldmatrix(count):
    @inner
    def take_ldmatrix(c, offered, waited):
        """Return the lane's register of each matrix, as a tuple."""
        r = words_at(c.record, Record.WORDS)[Record.REGISTERS :]
        return (uint32(r[0]), uint32(r[1]), uint32(r[2]), uint32(r[3]))[:count]

    return take_ldmatrix


offer_ldmatrix_x1, offer_ldmatrix_x2, offer_ldmatrix_x4 = (_offer_ldmatrix(count) for count in (1, 2, 4))
take_ldmatrix_x1, take_ldmatrix_x2, take_ldmatrix_x4 = (_take_ldmatrix(count) for count in (1, 2, 4))


@inner(_nrt=True)
def spread_rows(registers, transposed):
    """Replace the rows of 8x8 matrices that lanes loaded, 8 lanes a matrix, by each lane's pair of every matrix."""
    rows = registers[:, :4].copy()
    for lane in range(32):
        g, t = lane // 4, lane % 4
        for matrix in range(4):
            if transposed:  # column g, of rows 2 t and 2 t + 1
                low, high = rows[8 * matrix + 2 * t, g // 2], rows[8 * matrix + 2 * t + 1, g // 2]
                shift = 16 * (g % 2)
                registers[lane, matrix] = low >> shift & 0xFFFF | (high >> shift & 0xFFFF) << 16
            else:
                registers[lane, matrix] = rows[8 * matrix + g, t]


@inner(_nrt=True)
def multiply(registers, a_code, b_code):
    """Replace the registers of A, B and C by those of D."""
    packed = 4 if a_code >= tensor.E4M3 else 2
    width = 32 // packed
    a = np.empty((16, 8 * packed), np.int64)
    b = np.empty((8, 8 * packed), np.int64)
    c = np.empty((16, 8), np.int64)
    for lane in range(32):
        g, t = lane // 4, lane % 4
        for register in range(4):
            c[g + register // 2 * 8, 2 * t + register % 2] = registers[lane, 6 + register]
            for i in range(packed):
                k = packed * (t + register // 2 * 4) + i
                bits = registers[lane, register] >> (width * i)
                a[g + register % 2 * 8, k] = bits & ((1 << width) - 1)
        for register in range(2):
            for i in range(packed):
                bits = registers[lane, 4 + register] >> (width * i)
                b[g, packed * (t + register * 4) + i] = bits & ((1 << width) - 1)
    d = tensor.mma(a, b, c, a_code, b_code)
    for lane in range(32):
        for register in range(4):
            registers[lane, register] = d[lane // 4 + register // 2 * 8, 2 * (lane % 4) + register % 2]


@inner(_nrt=True)
def exchange_fragments(records, kind):
    """Perform an aligned operation on the records of a warp."""
    registers = records[:, Record.REGISTERS :]
    if kind == kinds.LDMATRIX or kind == kinds.LDMATRIX_TRANS:
        spread_rows(registers, kind == kinds.LDMATRIX_TRANS)
    else:
        a_code, b_code = _FACTORS[kind - kinds.MMA_F16]
        multiply(registers, a_code, b_code)
