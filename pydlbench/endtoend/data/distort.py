"""What the CIFAR-10 tutorial does to images before the network sees them.

Order and limits are the script's (cifar10_input.py): random crop, random flip, brightness by up to
63, contrast by 0.2 to 1.8 about each channel's mean, then standardisation of the whole image. For
evaluation: the central crop, standardised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["CROP", "central", "distort", "standardize"]

#: Height and width of what the network sees.
CROP: Final = 24
_BRIGHTNESS: Final = 63
_CONTRAST: Final = (0.2, 1.8)


def distort(images: NDArray[Any], rng: np.random.Generator) -> NDArray[np.float32]:
    """Return distorted crops for training.

    Args:
        images: ``(count, 3, height, width)``, bytes.
        rng: draws crop, flip, brightness and contrast for each image.

    Returns:
        ``(count, 3, 24, 24)``, standardised.
    """
    import numpy as np

    count: int = images.shape[0]
    channels, height, width = images.shape[1:]
    top = rng.integers(height - CROP + 1, size=count)
    left = rng.integers(width - CROP + 1, size=count)
    flipped = rng.integers(2, size=count).astype(bool)
    rows = top[:, None] + np.arange(CROP)
    columns = left[:, None] + np.arange(CROP)
    columns[flipped] = columns[flipped, ::-1]
    crops = images[
        np.arange(count)[:, None, None, None],
        np.arange(channels)[:, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ].astype(np.float32)
    crops += rng.uniform(-_BRIGHTNESS, _BRIGHTNESS, count).astype(np.float32)[:, None, None, None]
    factors = rng.uniform(*_CONTRAST, count).astype(np.float32)[:, None, None, None]
    means = crops.mean(axis=(2, 3), keepdims=True)
    return standardize((crops - means) * factors + means)


def central(images: NDArray[Any]) -> NDArray[np.float32]:
    """Return the central 24 x 24 of images, standardised."""
    import numpy as np

    top, left = (images.shape[2] - CROP) // 2, (images.shape[3] - CROP) // 2
    return standardize(images[:, :, top : top + CROP, left : left + CROP].astype(np.float32))


def standardize(images: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return images with mean 0 and deviation 1 each, over all pixels and channels.

    The deviation is at least ``1 / sqrt(values)``, so that an image of one colour becomes zero
    (TensorFlow's ``per_image_standardization``).
    """
    import numpy as np

    axes = (1, 2, 3)
    values = images[0].size
    deviations = images.std(axis=axes, keepdims=True)
    floor = np.float32(1 / values**0.5)
    centred: NDArray[np.float32] = images - images.mean(axis=axes, keepdims=True)
    centred /= np.maximum(deviations, floor)
    return centred
