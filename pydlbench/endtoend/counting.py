"""What both frameworks' builders count: elements inside windows, and readers of a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pydlbench.layers import Pool2d
    from pydlbench.models.graph import Model

__all__ = ["inside", "readers"]


def inside(layer: Pool2d) -> NDArray[np.int64]:
    """Return how many elements of the image each window of a pooling holds: (height, width)."""
    rows = _axis(
        layer.in_height, layer.out_height, layer.kernel_height, layer.stride_height, layer.pad_top
    )
    columns = _axis(
        layer.in_width, layer.out_width, layer.kernel_width, layer.stride_width, layer.pad_left
    )
    return rows[:, None] * columns[None, :]


def readers(model: Model) -> dict[str, int]:
    """Return how often each node's output (and the images') is read; the loss reads the last."""
    count: dict[str, int] = {model.output.name: 1}
    for node in model:
        for name in node.inputs:
            count[name] = count.get(name, 0) + 1
    return count


def _axis(size: int, out: int, kernel: int, stride: int, pad: int) -> NDArray[np.int64]:
    first = np.arange(out, dtype=np.int64) * stride - pad
    found: NDArray[np.int64] = np.minimum(first + kernel, size) - np.maximum(first, 0)
    return found
