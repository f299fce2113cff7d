"""The CUDA C sources of this package, for an element type. Imports no CuPy: tests compile them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydlbench.layers.conv import Conv2d
    from pydlbench.layers.pool import Pool2d

__all__ = ["SLEEP", "convolution", "pooling", "source"]

_HERE = Path(__file__).parent
_TYPES = {
    "float32": "typedef float T;\n",
    "float16": "#include <cuda_fp16.h>\ntypedef __half T;\n",
}

#: Keeps a stream busy for so many nanoseconds of the device's own clock.
SLEEP = r"""
extern "C" __global__ void sleep(unsigned long long nanoseconds) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - start < nanoseconds);
}
"""


def convolution(layer: Conv2d) -> list[int]:
    """Return a layer's sizes in the order of ``Convolution`` in columns.cu."""
    return [
        layer.in_channels,
        layer.in_height,
        layer.in_width,
        layer.out_height,
        layer.out_width,
        layer.kernel_height,
        layer.kernel_width,
        layer.stride_height,
        layer.stride_width,
        layer.pad_top,
        layer.pad_left,
        layer.dilation_height,
        layer.dilation_width,
        layer.groups,
    ]


def pooling(layer: Pool2d) -> list[int]:
    """Return a layer's sizes in the order of ``Pooling`` in pooling.cu."""
    return [
        layer.in_height,
        layer.in_width,
        layer.out_height,
        layer.out_width,
        layer.kernel_height,
        layer.kernel_width,
        layer.stride_height,
        layer.stride_width,
        layer.pad_top,
        layer.pad_left,
        int(layer.count_include_pad),
    ]


def source(name: str, type_: str) -> str:
    """Return a source file for an element type.

    Args:
        name: ``columns`` or ``pooling``.
        type_: ``float32`` or ``float16``.
    """
    return _TYPES[type_] + (_HERE / f"{name}.cu").read_text(encoding="utf-8")
