"""An image file of an array: PNG (ISO/IEC 15948), which browsers show from the text of a page."""

import struct
import zlib

import numpy as np

SIGNATURE = b"\x89PNG\r\n\x1a\n"
#: of the header: 8 bits a channel, of red, green and blue; deflated, filtered by rows, not interlaced
_FORM = (8, 2, 0, 0, 0)


def png(pixels: np.ndarray) -> bytes:
    """The file of an image, uint8 [rows, columns, 3]."""
    rows, columns, _ = pixels.shape
    header = struct.pack(">IIBBBBB", columns, rows, *_FORM)
    # each row begins with the number of its filter: 0, the bytes as they are
    filtered = np.pad(pixels.reshape(rows, -1), ((0, 0), (1, 0))).tobytes()
    return SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(filtered, 9)) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
