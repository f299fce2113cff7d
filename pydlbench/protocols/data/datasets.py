"""MNIST and CIFAR-10 from their own files, or images that a small network can learn.

In generated images each class has a smooth pattern. An image is the pattern of its class, shifted
by a few pixels, plus noise of the same amplitude. Error rates on these only show whether a network
learns.
"""

import gzip
import struct
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from pydlbench.errors import UsageError
from pydlbench.store.place import user_path

#: Number of classes of both data sets.
CLASSES: Final = 10
_TITLES: Final = {"mnist": "MNIST", "cifar10": "CIFAR-10"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Images and their labels.

    Attributes:
        images: ``(count, channels, height, width)``, float32, as the network takes them: MNIST's
            in [-0.5, 0.5], CIFAR-10's of :func:`standardized_crops`.
        labels: classes of the images, ``(count,)``, int64.
    """

    images: NDArray[Any]
    labels: NDArray[np.int64]

    def __post_init__(self) -> None:
        """Check that there is a label for each image."""
        if len(self.images) != len(self.labels):
            raise ValueError(f"{len(self.images)} images with {len(self.labels)} labels")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A data set for training.

    Attributes:
        name: ``mnist`` or ``cifar10``.
        train: training images.
        validation: validation images; empty for CIFAR-10, whose script has none.
        test: test images.
        source: folder of the files, or ``generated``.
        generated: whether the images are generated.
    """

    name: Literal["mnist", "cifar10"]
    train: Split
    validation: Split
    test: Split
    source: str
    generated: bool = False

    @property
    def remark(self) -> str:
        """Remark on the meaning of error rates; empty for real images."""
        if not self.generated:
            return ""
        title = _TITLES[self.name]
        return (
            f"generated images (class patterns and noise), not {title}: an error rate says whether "
            f"the network learns, and nothing about {title}"
        )


# -----------------------------------------------------------------------------
# Reader of CIFAR-10's binary version: records of one label and 3072 bytes, in six files.

SIZE: Final = 32
#: Height and width of the network's input.
CROP: Final = 24
CHANNELS: Final = 3
#: Bytes of a record: the label, then red, green and blue planes, row by row.
RECORD: Final = 1 + CHANNELS * SIZE * SIZE
ARCHIVE: Final = "cifar-10-binary.tar.gz"
_FOLDER: Final = "cifar-10-batches-bin"
_TRAIN: Final = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_TEST: Final = "test_batch.bin"
# A published file holds 10,000 records; this limits the size of damaged archives.
_LARGEST: Final = 100_000 * RECORD
# Images that are standardised together, to limit temporary memory.
_CHUNK_IMAGES: Final = 5000


def load_cifar10(folder: Path) -> Dataset:
    """Read CIFAR-10 from its files, in ``folder`` or in its subfolder, or from the archive.

    The archive is not unpacked to disk.

    Raises:
        UsageError: a file is missing, has a partial record, or a label above 9.
    """
    for place in (folder, folder / _FOLDER):
        if (place / _TEST).is_file() or (place / _TRAIN[0]).is_file():
            return _dataset({name: _read_cifar10(place / name) for name in (*_TRAIN, _TEST)}, place)
    archive = folder / ARCHIVE
    if not archive.is_file():
        raise UsageError(
            f"--data {folder}: neither {_TEST} nor {ARCHIVE} there; nearest: omit --data"
        )
    return _dataset(_unpack(archive), archive)


def decode(content: bytes, name: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Split records into images ``(count, 3, 32, 32)`` and labels ``(count,)``.

    Args:
        content: content of a file.
        name: name of the file, for messages.

    Raises:
        UsageError: there is a partial record, or a label above 9.
    """
    count, rest = divmod(len(content), RECORD)
    if rest or not count:
        raise UsageError(
            f"{name}: {len(content)} bytes are not a multiple of {RECORD}-byte records; "
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
    return images, labels


def standardized_crops(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the centres of images, each with mean 0 and deviation 1 over pixels and channels.

    The deviation used is at least ``1 / sqrt(values)``, so that an image of one colour becomes zero
    (TensorFlow's ``per_image_standardization``).

    Args:
        images: images of shape ``(count, channels, 32, 32)``.

    Returns:
        ``(count, channels, 24, 24)``.
    """
    edge = (SIZE - CROP) // 2
    middle = slice(edge, edge + CROP)
    adjusted = np.empty((len(images), images.shape[1], CROP, CROP), np.float32)
    floor = np.float32(adjusted[:1].size ** -0.5)
    for begin in range(0, len(images), _CHUNK_IMAGES):
        crops = adjusted[begin : begin + _CHUNK_IMAGES]
        crops[:] = images[begin : begin + _CHUNK_IMAGES, :, middle, middle]
        crops -= crops.mean(axis=(1, 2, 3), keepdims=True)
        crops /= np.maximum(crops.std(axis=(1, 2, 3), keepdims=True), floor)
    return adjusted


def cifar10_dataset(
    train: tuple[NDArray[np.uint8], NDArray[np.int64]],
    test: tuple[NDArray[np.uint8], NDArray[np.int64]],
    *,
    source: str,
    generated: bool = False,
) -> Dataset:
    """Return a data set of images ``(count, 3, 32, 32)`` and labels, without validation."""
    parts = [
        Split(images=standardized_crops(images), labels=labels) for images, labels in (train, test)
    ]
    return Dataset(
        name="cifar10",
        train=parts[0],
        validation=Split(images=parts[1].images[:0], labels=parts[1].labels[:0]),
        test=parts[1],
        source=source,
        generated=generated,
    )


def _dataset(contents: dict[str, bytes], source: Path) -> Dataset:
    images, labels = zip(*(decode(contents[name], name) for name in _TRAIN), strict=True)
    train = np.concatenate(images), np.concatenate(labels)
    return cifar10_dataset(train, decode(contents[_TEST], _TEST), source=str(source))


def _read_cifar10(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read ({error.strerror or error}); nearest: omit --data"
        ) from error


def _unpack(archive: Path) -> dict[str, bytes]:
    """Return the contents of the six files, in any folder of the archive."""
    parts: dict[str, bytes] = {}
    try:
        with tarfile.open(archive, "r:*") as opened:
            for member in opened:
                name = member.name.rpartition("/")[2]
                if name not in (*_TRAIN, _TEST) or name in parts:
                    continue
                # Links are rejected, since they may point to any file.
                good = member.isreg() and member.size <= _LARGEST
                stream = opened.extractfile(member) if good else None
                if stream is None:
                    raise UsageError(
                        f"{archive}: {member.name} is not a file of CIFAR-10; nearest: the "
                        f"published {ARCHIVE}"
                    )
                parts[name] = stream.read()
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(":")
        raise UsageError(
            f"{archive}: cannot be unpacked ({reason}); nearest: download it again"
        ) from error
    if missing := [name for name in (*_TRAIN, _TEST) if name not in parts]:
        raise UsageError(f"{archive}: lacks {missing[0]}; nearest: the published {ARCHIVE}")
    return parts


# -----------------------------------------------------------------------------
# Reader of the idx format, MNIST's: a magic number, the dimensions, then bytes.

#: Third byte of the magic number: unsigned bytes. MNIST has no other type.
_UNSIGNED_BYTE: Final = 0x08
_CHUNK: Final = 1 << 20
_GZIP_MAGIC: Final = b"\x1f\x8b"


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read an idx file of unsigned bytes, plain or compressed with gzip, as its content shows.

    Args:
        path: path of the file.
        dimensions: expected number of dimensions: 3 for images, 1 for labels.

    Returns:
        An array with the shape in the file's header.

    Raises:
        UsageError: the file cannot be read, has another type or number of dimensions, or its length
            differs from its header.
    """
    try:
        with path.open("rb") as raw:
            compressed = raw.read(2) == _GZIP_MAGIC
            raw.seek(0)
            if not compressed:
                return _read_idx(raw, path, dimensions)
            with gzip.open(raw) as stream:
                return _read_idx(stream, path, dimensions)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(
            f"{path}: damaged gzip file ({error}); nearest: download it again"
        ) from error
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read ({error.strerror or error}); nearest: another --data folder"
        ) from error


def _read_idx(stream: IO[bytes] | gzip.GzipFile, path: Path, dimensions: int) -> NDArray[np.uint8]:
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
    # In pieces, so that a damaged header does not cause a large allocation.
    content = bytearray()
    while len(content) <= count and (piece := stream.read(min(_CHUNK, count + 1 - len(content)))):
        content += piece
    if len(content) != count:
        more = "more than " if len(content) > count else ""
        stated = "x".join(str(extent) for extent in shape)
        raise UsageError(
            f"{path}: {more}{min(len(content), count)} bytes of data, but the header has "
            f"{stated}, {count} bytes; nearest: download it again"
        )
    return np.frombuffer(bytes(content), np.uint8).reshape(shape)


# -----------------------------------------------------------------------------
# MNIST as in the tutorial: 55,000 training, 5,000 validation and 10,000 test images.

#: Validation images, from the start of the training file.
VALIDATION: Final = 5000
_SIZE: Final = 28
_DEPTH: Final = 255


def scale(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Scale bytes to [-0.5, 0.5]: ``(x - 127.5) / 255``, in float32 as the script does."""
    scaled = images.astype(np.float32)
    scaled -= np.float32(_DEPTH / 2)
    scaled /= np.float32(_DEPTH)
    return scaled


def load_mnist(folder: Path, write: Callable[[str], None], validation: int = VALIDATION) -> Dataset:
    """Read MNIST's four files, each plain or compressed.

    Args:
        folder: folder of the files with their published names, with or without ``.gz``.
        write: called with the lines ``Extracting ...`` of the script.
        validation: number of training images used for validation.

    Raises:
        UsageError: a file is missing, damaged, or not MNIST's.
    """
    parts = []
    for prefix in ("train", "t10k"):
        images = _find(folder, f"{prefix}-images", 3)
        labels = _find(folder, f"{prefix}-labels", 1)
        write(f"Extracting {images}")
        pixels = read_idx(images, 3)
        if pixels.shape[1:] != (_SIZE, _SIZE):
            raise UsageError(
                f"{images}: images of {pixels.shape[1]}x{pixels.shape[2]}; nearest: MNIST's 28x28"
            )
        write(f"Extracting {labels}")
        classes = read_idx(labels, 1)
        if len(classes) != len(pixels):
            raise UsageError(
                f"{labels}: {len(classes)} labels for {len(pixels)} images of {images.name}; "
                "nearest: files of the same download"
            )
        if len(classes) and int(classes.max()) >= CLASSES:
            raise UsageError(
                f"{labels}: label {int(classes.max())}; nearest: {CLASSES - 1}, MNIST's largest"
            )
        parts.append((scale(pixels)[:, None], classes))
    if len(parts[0][1]) <= validation:
        raise UsageError(
            f"--data {folder}: {len(parts[0][1])} training images, too few for {validation} "
            f"validation images; nearest: {validation + 1}"
        )
    return split_off(*parts, validation=validation, source=str(folder))


def split_off(
    train: tuple[NDArray[np.float32], NDArray[np.uint8]],
    test: tuple[NDArray[np.float32], NDArray[np.uint8]],
    *,
    validation: int,
    source: str,
    generated: bool = False,
) -> Dataset:
    """Return a data set whose first ``validation`` training images are for validation."""
    images, labels = train[0], train[1].astype(np.int64)
    return Dataset(
        name="mnist",
        train=Split(images=images[validation:], labels=labels[validation:]),
        validation=Split(images=images[:validation], labels=labels[:validation]),
        test=Split(images=test[0], labels=test[1].astype(np.int64)),
        source=source,
        generated=generated,
    )


def _find(folder: Path, stem: str, dimensions: int) -> Path:
    name = f"{stem}-idx{dimensions}-ubyte"
    # Some programs replace the dash with a dot when unpacking.
    for candidate in (name, f"{name}.gz", name.replace("-idx", ".idx")):
        if (folder / candidate).is_file():
            return folder / candidate
    raise UsageError(f"--data {folder}: no {name}, compressed or not; nearest: omit --data")


def load(name: Literal["mnist", "cifar10"], folder: str, write: Callable[[str], None]) -> Dataset:
    """Read a data set.

    Args:
        name: ``mnist`` or ``cifar10``.
        folder: value of ``--data``.
        write: called with the lines that the script prints while reading.

    Raises:
        UsageError: the folder or a file is missing, or a file is damaged.
    """
    path = user_path(folder)
    if not path.is_dir():
        near = next((parent for parent in path.parents if parent.is_dir()), Path())
        raise UsageError(f"--data {folder}: no such directory; nearest: {near}")
    return load_mnist(path, write) if name == "mnist" else load_cifar10(path)


_SHAPES: Final = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32)}
#: Published numbers of training images (for MNIST including validation) and test images.
_COUNTS: Final = {"mnist": (60_000, 10_000), "cifar10": (50_000, 10_000)}
_CELL: Final = 4
_PATTERN: Final = 60
_NOISE: Final = 60
_SHIFT: Final = 2


def generate(
    name: Literal["mnist", "cifar10"],
    *,
    seed: int = 0,
    train: int | None = None,
    test: int | None = None,
    validation: int = VALIDATION,
) -> Dataset:
    """Return generated images with the shapes, types and, by default, counts of a data set.

    Args:
        name: name of the data set: ``mnist`` or ``cifar10``.
        seed: seed of patterns, labels and noise.
        train: number of training images, validation included.
        test: number of test images.
        validation: number of validation images of MNIST.
    """
    rng = np.random.default_rng(seed)
    shape = _SHAPES[name]
    patterns = _patterns(shape, rng)
    many, few = _COUNTS[name]
    first = _draw(patterns, many if train is None else train, rng)
    second = _draw(patterns, few if test is None else test, rng)
    if name == "mnist":
        return split_off(
            (scale(first[0]), first[1]),
            (scale(second[0]), second[1]),
            validation=validation,
            source="generated",
            generated=True,
        )
    train_part, test_part = ((part[0], part[1].astype(np.int64)) for part in (first, second))
    return cifar10_dataset(train_part, test_part, source="generated", generated=True)


def _patterns(shape: tuple[int, int, int], rng: np.random.Generator) -> NDArray[np.int16]:
    """Return a pattern per class, of coarse squares, so that shifts by a pixel or two are small."""
    channels, height, width = shape
    coarse = rng.integers(
        -_PATTERN, _PATTERN + 1, (CLASSES, channels, -(-height // _CELL), -(-width // _CELL))
    )
    fine = coarse.repeat(_CELL, axis=2).repeat(_CELL, axis=3)
    return fine[:, :, :height, :width].astype(np.int16)


def _draw(
    patterns: NDArray[np.int16], count: int, rng: np.random.Generator
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    labels = rng.integers(CLASSES, size=count).astype(np.uint8)
    images = np.empty((count, *patterns.shape[1:]), np.uint8)
    # All shifts of all patterns.
    moves = [(y, x) for y in range(-_SHIFT, _SHIFT + 1) for x in range(-_SHIFT, _SHIFT + 1)]
    moved = np.stack([np.roll(patterns, move, axis=(2, 3)) for move in moves])
    for begin in range(0, count, _CHUNK_IMAGES):
        place = slice(begin, min(begin + _CHUNK_IMAGES, count))
        chosen = labels[place]
        noise = rng.integers(-_NOISE, _NOISE + 1, (len(chosen), *patterns.shape[1:]), np.int16)
        noise += moved[rng.integers(len(moves), size=len(chosen)), chosen]
        noise += 128
        images[place] = noise.clip(0, 255)
    return images, labels
