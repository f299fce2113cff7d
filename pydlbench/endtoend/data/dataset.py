"""A data set with the parts that the scripts make of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["CLASSES", "Dataset", "Split"]

#: Of both data sets.
CLASSES: Final = 10
_TITLES: Final = {"mnist": "MNIST", "cifar10": "CIFAR-10"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Images and their labels.

    Attributes:
        images: ``(count, channels, height, width)``: MNIST's as the network takes them, float32 in
            [-0.5, 0.5]; CIFAR-10's as stored, uint8, since each pass distorts them anew.
        labels: ``(count,)``, int64.
    """

    images: NDArray[Any]
    labels: NDArray[np.int64]

    def __post_init__(self) -> None:
        """Reject parts that do not belong together."""
        if len(self.images) != len(self.labels):
            raise ValueError(f"{len(self.images)} images with {len(self.labels)} labels")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Images to train on, to look at while training, and to test on.

    Attributes:
        name: ``mnist`` or ``cifar10``.
        train: to train on.
        validation: not trained on; CIFAR-10's script has none, and it is empty there.
        test: for the last line.
        source: where the images are from: a folder, or ``generated``.
        generated: whether they are invented.
    """

    name: Literal["mnist", "cifar10"]
    train: Split
    validation: Split
    test: Split
    source: str
    generated: bool = False

    @property
    def remark(self) -> str:
        """What error rates on these images mean, if that is not obvious; else empty."""
        if not self.generated:
            return ""
        title = _TITLES[self.name]
        return (
            f"generated images (class patterns and noise), not {title}: an error rate says whether "
            f"the network learns, and nothing about {title}"
        )
