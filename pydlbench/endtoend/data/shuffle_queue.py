"""The CIFAR-10 tutorial's queue: filled with distorted images, drawn from at random.

The script keeps at least 20,000 images in the queue and takes 128 at random, so that a batch mixes
images that stand far apart in the files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.endtoend.data.distort import CROP, distort

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pydlbench.endtoend.data.dataset import Split

__all__ = ["ShuffleQueue"]


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
