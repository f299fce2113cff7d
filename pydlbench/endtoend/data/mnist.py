"""MNIST as the tutorial takes it: 55,000 images to train, 5,000 to validate, 10,000 to test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydlbench.endtoend.data.dataset import CLASSES, Dataset, Split
from pydlbench.endtoend.data.idx import read_idx
from pydlbench.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["VALIDATION", "load_mnist", "scale", "split_off"]

#: Images taken from the front of the training file.
VALIDATION: Final = 5000
_SIZE: Final = 28
_DEPTH: Final = 255


def scale(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Scale bytes to [-0.5, 0.5]: ``(x - 127.5) / 255``, in float32 as the script does."""
    import numpy as np

    scaled = images.astype(np.float32)
    scaled -= np.float32(_DEPTH / 2)
    scaled /= np.float32(_DEPTH)
    return scaled


def load_mnist(folder: Path, write: Callable[[str], None], validation: int = VALIDATION) -> Dataset:
    """Read MNIST's four files, each plain or compressed.

    Args:
        folder: with the files under their published names, ``.gz`` or not.
        write: takes the lines ``Extracting ...`` that the script prints.
        validation: training images that are kept for validation.

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
            f"--data {folder}: {len(parts[0][1])} training images, of which {validation} would be "
            f"for validation; nearest: {validation + 1}"
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
    """Make a data set of images and labels, its first ``validation`` training images set apart."""
    import numpy as np

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
    # Some copies were unpacked by programs that turned the dash into a dot.
    for candidate in (name, f"{name}.gz", name.replace("-idx", ".idx")):
        if (folder / candidate).is_file():
            return folder / candidate
    raise UsageError(
        f"--data {folder}: no {name} there, compressed or not; nearest: --download URL-BASE"
    )
