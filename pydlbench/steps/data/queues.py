"""The CIFAR-10 tutorial's input queues: distorted images, shuffled and read ahead."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray

    from pydlbench.steps.data.datasets import Split

_Item = TypeVar("_Item")


class Prefetch(Generic[_Item]):
    """Runs an iterator in a thread, a few items ahead; a context manager that ends the thread.

    What the iterator raises is raised by ``next``.
    """

    def __init__(self, items: Iterable[_Item], ahead: int = 3) -> None:
        """Set up.

        Args:
            items: what to run; endless iterators are fine.
            ahead: items that wait at most.
        """
        self._items = items
        self._ready: queue.Queue[_Item] = queue.Queue(maxsize=ahead)
        self._leaving = threading.Event()
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="prefetch", daemon=True)

    def __enter__(self) -> Prefetch[_Item]:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving.set()
        self._thread.join()

    def __iter__(self) -> Prefetch[_Item]:
        return self

    def __next__(self) -> _Item:
        while True:
            # Read before looking: what was put before the end is still handed out.
            ended = self._ended.is_set()
            try:
                return self._ready.get(block=not ended, timeout=0.1)
            except queue.Empty:
                if ended:
                    break
        if self._error is not None:
            raise self._error
        raise StopIteration

    def _work(self) -> None:
        try:
            for item in self._items:
                while not self._leaving.is_set():
                    try:
                        self._ready.put(item, timeout=0.1)
                    except queue.Full:
                        continue
                    break
                if self._leaving.is_set():
                    return
        except BaseException as error:  # noqa: BLE001 - raised again where the items are taken
            self._error = error
        finally:
            self._ended.set()


# -----------------------------------------------------------------------------
# What the CIFAR-10 tutorial does to images before the network sees them.
#
# Order and limits are the script's (cifar10_input.py): random crop, random flip, brightness by up
# to 63, contrast by 0.2 to 1.8 about each channel's mean, then standardisation of the whole image.

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


# -----------------------------------------------------------------------------
# The CIFAR-10 tutorial's queue: filled with distorted images, drawn from at random.
#
# The script keeps at least 20,000 images in the queue and takes 128 at random, so that a batch
# mixes images that stand far apart in the files.


class ShuffleQueue:
    """An endless iterator over batches of distorted images and their labels.

    The queue is filled when the first batch is asked for.
    """

    def __init__(self, split: Split, *, batch: int, minimum: int, seed: int) -> None:
        """Set up an empty queue.

        Args:
            split: images as stored.
            batch: images that are taken at once.
            minimum: images that stay behind after a batch has been taken.
            seed: of order and distortions.
        """
        import numpy as np

        self._split = split
        self._batch = batch
        self._minimum = minimum
        self._rng = np.random.default_rng(seed)
        capacity = minimum + 3 * batch
        shape = (capacity, split.images.shape[1], CROP, CROP)
        self._images = np.empty(shape, np.float32)
        self._labels = np.empty(capacity, np.int64)
        self._filled = 0
        self._next = 0

    def __iter__(self) -> ShuffleQueue:
        return self

    def __next__(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        while self._filled < self._minimum + self._batch:
            self._refill()
        chosen = self._rng.choice(self._filled, self._batch, replace=False)
        images, labels = self._images[chosen], self._labels[chosen]
        self._close_up(chosen)
        return images, labels

    def _refill(self) -> None:
        """Append a batch of distorted images, in the order of the files, over and over."""
        import numpy as np

        taken = (self._next + np.arange(self._batch)) % len(self._split.labels)
        self._next = int(taken[-1]) + 1
        place = slice(self._filled, self._filled + self._batch)
        self._images[place] = distort(self._split.images[taken], self._rng)
        self._labels[place] = self._split.labels[taken]
        self._filled += self._batch

    def _close_up(self, chosen: NDArray[np.int64]) -> None:
        """Move the images at the end into the places of those that were taken."""
        import numpy as np

        left = self._filled - len(chosen)
        end = np.setdiff1d(np.arange(left, self._filled), chosen)
        holes = chosen[chosen < left]
        self._images[holes] = self._images[end]
        self._labels[holes] = self._labels[end]
        self._filled = left
