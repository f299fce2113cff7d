"""Images and labels: MNIST and CIFAR-10 from their own files, or generated ones."""

from __future__ import annotations

from pydlbench.endtoend.data.dataset import Dataset, Split
from pydlbench.endtoend.data.download import DownloadError, fetch
from pydlbench.endtoend.data.generated import generate
from pydlbench.endtoend.data.load import load
from pydlbench.endtoend.data.prefetch import Prefetch
from pydlbench.endtoend.data.shuffle_queue import ShuffleQueue

__all__ = [
    "Dataset",
    "DownloadError",
    "Prefetch",
    "ShuffleQueue",
    "Split",
    "fetch",
    "generate",
    "load",
]
