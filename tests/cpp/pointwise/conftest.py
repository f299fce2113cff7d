"""Pointwise plans, run by the emulation on guarded memory."""

from __future__ import annotations

import ctypes
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from pydlbench.ops.table import OPS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[np.float64]]

#: Bits of each DataType by its number.
STORED: dict[int, Any] = {0: np.float32, 1: np.uint16, 2: np.uint16, 4: np.int32}


def encoded(type_: int, values: NDArray[np.float64]) -> NDArray[Any]:
    """Return the nearest stored bits."""
    if type_ == 1:
        return values.astype(np.float16).view(np.uint16)
    if type_ == 2:
        bits = values.astype(np.float32).view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return values.astype(STORED[type_])


def decoded(type_: int, bits: NDArray[Any]) -> NDArray[np.float64]:
    if type_ == 1:
        return bits.view(np.float16).astype(np.float64)
    if type_ == 2:
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return bits.astype(np.float64)


class Guarded:
    """A tensor in memory that ends at a page that may not be touched.

    On the sixteen-byte grid there are up to 15 bytes between the tensor and that page, as on a GPU.
    They, and all else that nobody wrote, have every bit set: not a number.
    """

    def __init__(self, library: ctypes.CDLL, spec: dict[str, Any], *, aligned: bool) -> None:
        dtype = STORED[spec["type"]]
        self.spec, self.library = spec, library
        item = np.dtype(dtype).itemsize
        span = 1 + sum((d - 1) * s for d, s in zip(spec["dims"], spec["strides"], strict=True))
        self.bytes = span * item
        past_grid = 0 if aligned else item  # of the first element
        self.whole = self.bytes + (-self.bytes - past_grid) % 16
        self.pointer = library.guarded(self.whole)
        assert self.pointer % 16 == past_grid
        everything = (ctypes.c_ubyte * self.whole).from_address(self.pointer)
        self.raw = np.frombuffer(everything, np.uint8)
        self.raw[:] = 0xFF
        elements = np.frombuffer(self.raw.data, dtype, span)
        strides = [stride * item for stride in spec["strides"]]
        self.view = np.lib.stride_tricks.as_strided(elements, spec["dims"], strides)

    def write(self, values: NDArray[np.float64]) -> None:
        self.view[...] = encoded(self.spec["type"], values)

    def read(self) -> NDArray[np.float64]:
        return decoded(self.spec["type"], np.ascontiguousarray(self.view))

    def close(self) -> None:
        assert (self.raw[self.bytes :] == 0xFF).all(), "wrote behind " + self.spec["role"]
        self.library.unguarded(self.pointer, self.whole)


@dataclass
class Plan:
    library: ctypes.CDLL
    index: int
    facts: dict[str, Any]

    def run(self, inputs: Arrays, *, aligned: bool = True) -> Arrays:
        """Run on inputs that the storage formats hold exactly; return what was written by role."""
        tensors = [Guarded(self.library, t, aligned=aligned) for t in self.facts["tensors"]]
        for tensor in tensors:
            if tensor.spec["use"] != "output":
                tensor.write(inputs[tensor.spec["role"]].reshape(tensor.spec["dims"]))
        count = max(self.facts["workspace_bytes"] // 4, 1)
        floats = {"role": "workspace", "type": 0, "dims": [count], "strides": [1]}
        workspace = Guarded(self.library, floats, aligned=True)
        pointers = (ctypes.c_void_p * len(tensors))(*(t.pointer for t in tensors))
        error = self.library.run_pointwise_plan(
            self.index, pointers, len(tensors), workspace.pointer
        )
        assert not error, error.decode()
        results = {t.spec["role"]: t.read() for t in tensors if t.spec["use"] != "input"}
        for tensor in [*tensors, workspace]:
            tensor.close()
        return results

    def stored(self, inputs: Arrays) -> Arrays:
        """Return the inputs rounded to the formats that this plan keeps them in."""
        types = {t["role"]: t["type"] for t in self.facts["tensors"] if t["use"] != "output"}
        return {role: decoded(type_, encoded(type_, inputs[role])) for role, type_ in types.items()}


class Pointwise:
    """The C++ function pointwise_plans, for a GPU of one multiprocessor with two blocks on it."""

    def __init__(self, library: ctypes.CDLL) -> None:
        library.pointwise_plans_of.restype = library.run_pointwise_plan.restype = ctypes.c_char_p
        library.guarded.restype = ctypes.c_void_p
        library.guarded.argtypes = [ctypes.c_size_t]
        library.unguarded.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        library.run_pointwise_plan.argtypes = [
            ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p,
        ]  # fmt: skip
        self.library = library

    def plans(
        self,
        op: str,
        pass_: str,
        sizes: tuple[int, ...],
        mode: str = "fp32",
        layout: str = "best",
        *,
        sources: tuple[int, ...] = (),
        capability: int = 90,
        **parameters: float,
    ) -> list[Plan]:
        """Return all plans; they hold until the next call.

        Raises:
            ValueError: What the C++ function threw.
        """
        count = len(parameters)
        passes = [name.encode() for name in OPS[op].passes] if op in OPS else []
        answer = self.library.pointwise_plans_of(
            op.encode(),
            pass_.encode(),
            mode.encode(),
            layout.encode(),
            (ctypes.c_char_p * len(passes))(*passes),
            len(passes),
            (ctypes.c_int64 * 4)(*sizes),
            (ctypes.c_char_p * count)(*(name.encode() for name in parameters)),
            (ctypes.c_double * count)(*parameters.values()),
            count,
            (ctypes.c_int64 * len(sources))(*sources),
            len(sources),
            capability,
        ).decode()
        if answer.startswith("!"):
            raise ValueError(answer[1:])
        return [Plan(self.library, i, facts) for i, facts in enumerate(json.loads(answer))]


@pytest.fixture(scope="session")
def pointwise(cpp_library):
    return Pointwise(cpp_library)


@pytest.fixture
def random():
    return np.random.default_rng(7)
