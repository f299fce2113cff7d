"""Operands in memory that two processes share: the host draws inputs and reads results there.

The process of a user's kernel holds no reference, and does not know which results are compared.
"""

import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pydlbench.errors import UnsupportedError
from pydlbench.ops.op import INTEGERS, MASK, Layer
from pydlbench.words import FP8_PRECISIONS

_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a file there is never written to a disk


def roles_of_kernel(layer: Layer, pass_: str) -> tuple[str, ...]:
    """Return the roles of a user kernel's arguments: the tensors that it reads, and its result."""
    return tuple(dict.fromkeys((*layer.reads(pass_), layer.result(pass_))))


class SharedOperands:
    """Slots in a file that is mapped by two processes, each with all operands of a case.

    Args:
        layer: layer of the case.
        pass_: pass of the case.
        precision: storage precision.
        slots: number of slots.
        path: the file; None creates it.

    Attributes:
        path: the file.
        slots: number of slots.
        roles: roles of the operands.
    """

    def __init__(
        self, layer: Layer, pass_: str, precision: str, slots: int, path: str | None = None
    ) -> None:
        if precision in FP8_PRECISIONS:
            raise UnsupportedError(f"{precision}: kernels of your own are not verified in it yet")
        if layer.entry.whole:
            raise UnsupportedError(f"{layer.op}: kernels of your own have floating-point operands")
        half = "fp16" if precision.startswith("fp16") else "bf16"
        shapes = layer.shapes()
        self._fields: dict[str, tuple[int, int, str]] = {}
        size = 0
        for role in roles_of_kernel(layer, pass_):
            stored = "fp32" if layer.in_float32(role) or precision in ("fp32", "tf32") else half
            stored = "integer" if role in INTEGERS else MASK if role == MASK else stored
            length = math.prod(shapes[role]) * {"integer": 8, "fp32": 4, MASK: 1}.get(stored, 2)
            self._fields[role] = size, length, stored
            size += -(-length // 64) * 64
        if path is None:
            folder = _MEMORY if os.access(_MEMORY, os.W_OK) else None
            descriptor, path = tempfile.mkstemp(prefix="pydlbench-", dir=folder)
            os.truncate(descriptor, slots * size)
            os.close(descriptor)
        self.path, self.slots = path, slots
        self.roles = tuple(self._fields)
        self._shapes = shapes
        self._bytes = np.memmap(path, np.uint8, "r+", shape=(slots, size))

    def memory(self, slot: int, role: str) -> NDArray[np.uint8]:
        """Return the bytes of an operand."""
        first, length, _ = self._fields[role]
        return self._bytes[slot, first : first + length]

    def stored(self, role: str, values: NDArray[Any]) -> NDArray[np.uint8]:
        """Return float32 values in the format of a role, as bytes."""
        flat: NDArray[Any] = np.ascontiguousarray(values, np.float32).reshape(-1)
        match self._fields[role][2]:
            case "integer":
                flat = flat.astype(np.int64)
            case "mask":
                flat = flat.astype(np.uint8)
            case "fp16":
                flat = flat.astype(np.float16)
            case "bf16":
                flat = (flat.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        return flat.view(np.uint8)

    def values(self, role: str, data: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return a copy of an operand's bytes as float32, in its plain shape."""
        kind = self._fields[role][2]
        if kind == "bf16":
            values = (data.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
        else:
            types: Mapping[str, Any] = {"integer": np.int64, "fp16": np.float16, MASK: np.uint8}
            values = data.view(types.get(kind, np.float32)).astype(np.float32)
        return values.reshape(self._shapes[role])

    def unlink(self) -> None:
        """Remove the file's name; the memory is freed with the last mapping."""
        Path(self.path).unlink(missing_ok=True)
