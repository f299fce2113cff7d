"""Images that a small network can learn, for machines without MNIST or CIFAR-10.

Each class has a smooth pattern. An image is the pattern of its class, shifted by a few pixels, plus
noise of the same amplitude. Error rates on them only show whether a network learns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from pydlbench.protocols.data.datasets import (
    CLASSES,
    VALIDATION,
    Dataset,
    cifar10_dataset,
    scale,
    split_off,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SHAPES: Final = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32)}
#: Published numbers of training images (for MNIST including validation) and test images.
_COUNTS: Final = {"mnist": (60_000, 10_000), "cifar10": (50_000, 10_000)}
_CELL: Final = 4
_PATTERN: Final = 60
_NOISE: Final = 60
_SHIFT: Final = 2
_CHUNK: Final = 5000


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
    import numpy as np

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
    import numpy as np

    channels, height, width = shape
    coarse = rng.integers(
        -_PATTERN, _PATTERN + 1, (CLASSES, channels, -(-height // _CELL), -(-width // _CELL))
    )
    fine = coarse.repeat(_CELL, axis=2).repeat(_CELL, axis=3)
    return fine[:, :, :height, :width].astype(np.int16)


def _draw(
    patterns: NDArray[np.int16], count: int, rng: np.random.Generator
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    import numpy as np

    labels = rng.integers(CLASSES, size=count).astype(np.uint8)
    images = np.empty((count, *patterns.shape[1:]), np.uint8)
    # All shifts of all patterns.
    moves = [(y, x) for y in range(-_SHIFT, _SHIFT + 1) for x in range(-_SHIFT, _SHIFT + 1)]
    moved = np.stack([np.roll(patterns, move, axis=(2, 3)) for move in moves])
    for begin in range(0, count, _CHUNK):
        place = slice(begin, min(begin + _CHUNK, count))
        chosen = labels[place]
        noise = rng.integers(-_NOISE, _NOISE + 1, (len(chosen), *patterns.shape[1:]), np.int16)
        noise += moved[rng.integers(len(moves), size=len(chosen)), chosen]
        noise += 128
        images[place] = noise.clip(0, 255)
    return images, labels
