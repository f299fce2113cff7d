"""Reader of the idx format, MNIST's: a magic number, the dimensions, then bytes."""

from __future__ import annotations

import gzip
import struct
import zlib
from typing import IO, TYPE_CHECKING, Final

from pydlbench.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["read_idx"]

#: Third byte of the magic number: unsigned bytes. MNIST has no other type.
_UNSIGNED_BYTE: Final = 0x08
_CHUNK: Final = 1 << 20
_GZIP_MAGIC: Final = b"\x1f\x8b"


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read an idx file of unsigned bytes, plain or compressed with gzip (told by its content).

    Args:
        path: of the file.
        dimensions: how many it must have: 3 for images, 1 for labels.

    Returns:
        An array with the shape that the file states.

    Raises:
        UsageError: it cannot be read, is of another type or number of dimensions, or its length is
            not what its header says.
    """
    try:
        with path.open("rb") as raw:
            compressed = raw.read(2) == _GZIP_MAGIC
            raw.seek(0)
            if not compressed:
                return _read(raw, path, dimensions)
            with gzip.open(raw) as stream:
                return _read(stream, path, dimensions)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(
            f"{path}: damaged gzip file ({error}); nearest: download it again"
        ) from error
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read ({error.strerror or error}); nearest: another --data folder"
        ) from error


def _read(stream: IO[bytes] | gzip.GzipFile, path: Path, dimensions: int) -> NDArray[np.uint8]:
    import numpy as np

    header = stream.read(4 + 4 * dimensions)
    expected = _UNSIGNED_BYTE << 8 | dimensions
    magic = int.from_bytes(header[:4], "big")
    if len(header) >= 4 and magic != expected:
        raise UsageError(
            f"{path}: magic number 0x{magic:08x} is not that of unsigned bytes in {dimensions} "
            f"dimensions; nearest: a file that begins with 0x{expected:08x}"
        )
    if len(header) < 4 + 4 * dimensions:
        raise UsageError(
            f"{path}: only {len(header)} bytes, too short for a header of {4 + 4 * dimensions}; "
            "nearest: download it again"
        )
    shape = struct.unpack(f">{dimensions}I", header[4:])
    count = 1
    for extent in shape:
        count *= extent
    # In pieces: a damaged header must not make Python set aside what it claims.
    found = bytearray()
    while len(found) <= count and (piece := stream.read(min(_CHUNK, count + 1 - len(found)))):
        found += piece
    if len(found) != count:
        more = "more than " if len(found) > count else ""
        stated = "x".join(str(extent) for extent in shape)
        raise UsageError(
            f"{path}: {more}{min(len(found), count)} bytes of data where its header says "
            f"{stated}, {count} bytes; nearest: download it again"
        )
    return np.frombuffer(bytes(found), np.uint8).reshape(shape)
