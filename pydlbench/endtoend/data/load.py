"""The door to the data sets' files: by name and folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydlbench.endtoend.data.cifar10 import load_cifar10
from pydlbench.endtoend.data.mnist import load_mnist
from pydlbench.errors import UsageError
from pydlbench.results.paths import user_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydlbench.endtoend.data.dataset import Dataset

__all__ = ["load"]


def load(name: Literal["mnist", "cifar10"], folder: str, write: Callable[[str], None]) -> Dataset:
    """Read a data set.

    Args:
        name: ``mnist`` or ``cifar10``.
        folder: as given with ``--data``.
        write: takes the lines that the script prints while it reads.

    Raises:
        UsageError: the folder or a file is missing, or a file is damaged.
    """
    path = user_path(folder)
    if not path.is_dir():
        near = next((parent for parent in path.parents if parent.is_dir()), Path())
        raise UsageError(f"--data {folder}: no such directory; nearest: {near}")
    return load_mnist(path, write) if name == "mnist" else load_cifar10(path)
