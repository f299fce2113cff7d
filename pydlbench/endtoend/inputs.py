"""Synthetic images and labels: random, seeded, and the same in every framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pydlbench.backends.reference.uniform import fill_uniform

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pydlbench.models.graph import Model

__all__ = ["Batch", "make_batch"]


@dataclass(frozen=True, slots=True)
class Batch:
    """One minibatch.

    Attributes:
        images: float32 NCHW, uniform in [-1, 1).
        labels: int64, one per image, below the model's classes; None where its loss takes none.
    """

    images: NDArray[np.float32]
    labels: NDArray[np.int64] | None


def make_batch(model: Model, seed: int = 0) -> Batch:
    """Return a minibatch for a model.

    Args:
        model: gives batch, image size and classes.
        seed: at least 0.
    """
    stream = np.random.SFC64([seed, 1])
    images = np.empty((model.batch, *model.image), np.float32)
    fill_uniform(images.reshape(-1), stream, "fp32")
    labels = None
    if model.loss.kind == "cross-entropy":
        classes = model.output.shape[0]
        # Some scripts have more outputs than classes of labels.
        drawn = np.random.Generator(stream).integers(model.classes or classes, size=model.batch)
        labels = drawn.astype(np.int64)
    return Batch(images, labels)
