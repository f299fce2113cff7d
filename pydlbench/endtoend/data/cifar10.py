"""Reader of CIFAR-10's binary version: records of one label and 3072 bytes, in six files."""

from __future__ import annotations

import tarfile
import zlib
from typing import TYPE_CHECKING, Final

from pydlbench.endtoend.data.dataset import CLASSES, Dataset, Split
from pydlbench.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["ARCHIVE", "RECORD", "SIZE", "decode", "load_cifar10"]

SIZE: Final = 32
CHANNELS: Final = 3
#: Bytes of a record: the label, then red, green and blue planes, row by row.
RECORD: Final = 1 + CHANNELS * SIZE * SIZE
ARCHIVE: Final = "cifar-10-binary.tar.gz"
_FOLDER: Final = "cifar-10-batches-bin"
_TRAIN: Final = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_TEST: Final = "test_batch.bin"
# A published file holds 10,000 records; this bounds what a damaged archive can unpack to.
_LARGEST: Final = 100_000 * RECORD


def load_cifar10(folder: Path) -> Dataset:
    """Read CIFAR-10 from its files, in ``folder`` or in its subfolder, or from the archive.

    The archive is read in place: nothing is unpacked to disk.

    Raises:
        UsageError: a file is missing, is no whole number of records, or has a label above 9.
    """
    for place in (folder, folder / _FOLDER):
        if (place / _TEST).is_file() or (place / _TRAIN[0]).is_file():
            return _dataset({name: _read(place / name) for name in (*_TRAIN, _TEST)}, place)
    archive = folder / ARCHIVE
    if not archive.is_file():
        raise UsageError(
            f"--data {folder}: neither {_TEST} nor {ARCHIVE} there; nearest: --download URL-BASE"
        )
    return _dataset(_unpack(archive), archive)


def decode(content: bytes, name: str) -> Split:
    """Split records into images ``(count, 3, 32, 32)`` and labels.

    Args:
        content: of a file.
        name: of the file, for messages.

    Raises:
        UsageError: it is no whole number of records, or a label is above 9.
    """
    import numpy as np

    count, rest = divmod(len(content), RECORD)
    if rest or not count:
        raise UsageError(
            f"{name}: {len(content)} bytes are no whole number of {RECORD}-byte records; "
            f"nearest: {max(count, 1) * RECORD}"
        )
    records: NDArray[np.uint8] = np.frombuffer(content, np.uint8).reshape(count, RECORD)
    labels = records[:, 0].astype(np.int64)
    if int(labels.max()) >= CLASSES:
        raise UsageError(
            f"{name}: label {int(labels.max())} in record {int(labels.argmax())}; "
            f"nearest: {CLASSES - 1}, the largest"
        )
    images = np.ascontiguousarray(records[:, 1:]).reshape(count, CHANNELS, SIZE, SIZE)
    return Split(images=images, labels=labels)


def _dataset(contents: dict[str, bytes], source: Path) -> Dataset:
    import numpy as np

    parts = [decode(contents[name], name) for name in _TRAIN]
    test = decode(contents[_TEST], _TEST)
    return Dataset(
        name="cifar10",
        train=Split(
            images=np.concatenate([part.images for part in parts]),
            labels=np.concatenate([part.labels for part in parts]),
        ),
        validation=Split(images=test.images[:0], labels=test.labels[:0]),
        test=test,
        source=str(source),
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read ({error.strerror or error}); nearest: --download URL-BASE"
        ) from error


def _unpack(archive: Path) -> dict[str, bytes]:
    """Return the six files' contents, whatever folder they are in within the archive."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(archive, "r:*") as opened:
            for member in opened:
                name = member.name.rpartition("/")[2]
                if name not in (*_TRAIN, _TEST) or name in found:
                    continue
                # No links: what they point at may lie anywhere.
                good = member.isreg() and member.size <= _LARGEST
                stream = opened.extractfile(member) if good else None
                if stream is None:
                    raise UsageError(
                        f"{archive}: {member.name} is no file of CIFAR-10's; nearest: the "
                        f"published {ARCHIVE}"
                    )
                found[name] = stream.read()
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(":")
        raise UsageError(
            f"{archive}: cannot be unpacked ({reason}); nearest: download it again"
        ) from error
    if missing := [name for name in (*_TRAIN, _TEST) if name not in found]:
        raise UsageError(f"{archive}: lacks {missing[0]}; nearest: the published {ARCHIVE}")
    return found
