"""A user's kernel on operands that the host draws and reads; see ``runner/audited.py``.

Nothing in this process decides whether a result is right. It fills the operands from a slot of the
shared memory before each sample, and copies the result there as soon as the sample has ended.
"""

import ctypes
import sys
import zlib
from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from pydlbench.backends.base import Preparation
from pydlbench.backends.frameworks.backend import FrameworkKernel
from pydlbench.backends.frameworks.device_clock import DeviceClock
from pydlbench.backends.host_clock import check_sealed, seal, sealed
from pydlbench.errors import UnsupportedError
from pydlbench.models.user_model import is_user_model
from pydlbench.ops.fused import NOTHING_FUSED
from pydlbench.records.measurement import KernelSpec
from pydlbench.timing.chunk import Chunk, ChunkRequest, merged
from pydlbench.verification.shared import SharedOperands, roles_of_kernel

#: Copies bytes between an address and an operand: ``(address, length, into the operand)``.
Transfer = Callable[[int, int, bool], None]
#: Copies memory; bound before the user's code is imported. It holds the interpreter's lock: no
#: thread of the user's code runs meanwhile.
MOVE: Final = ctypes.PyDLL(None).memmove
MOVE.argtypes, MOVE.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t), None
# The same for inputs with strides.
_COPY, _MEMORY = np.copyto, np.frombuffer
# A copied result: what writes into the copy afterwards, such as a thread in C, is noticed.
_CHECKSUM = zlib.crc32
# Copies of this size go through the caches; larger ones may bypass them.
_THROUGH_CACHES: Final = 1 << 18


def memory_transfer(address: int) -> Transfer:
    """Return a transfer to and from host memory, which runs no function of a framework."""

    def move(other: int, length: int, inward: bool) -> None:
        MOVE(*((address, other) if inward else (other, address)), length)

    return move


def _array_transfers(operator: object, shared: SharedOperands, spec: KernelSpec) -> list[Transfer]:
    """Return the transfers of an operator of another package, which gives its NumPy arrays.

    Raises:
        UnsupportedError: it gives none, or others than those of the case, or something is fused.
    """
    if spec.fuse != NOTHING_FUSED:
        raise UnsupportedError(
            f"{spec.backend}: --fuse {spec.fuse} is for pydlbench's own backends; nearest: none"
        )
    roles = roles_of_kernel(spec.layer, spec.pass_)
    wanted = [(spec.layer.shapes()[role], shared.memory(0, role).size) for role in roles]
    arrays = list(getattr(operator, "operands", ()))
    plain = all(type(array) is np.ndarray for array in arrays)
    if (
        not plain
        or [(array.shape, array.nbytes) for array in arrays] != wanted
        or not arrays[roles.index(spec.layer.result(spec.pass_))].flags.c_contiguous
    ):
        raise UnsupportedError(
            f"{spec.backend}: the results of timed calls cannot be compared; nearest: an operator "
            f"whose attribute operands has NumPy arrays in plain shapes for {', '.join(roles)}, "
            "the result contiguous"
        )
    return [_array_transfer(array.view()) for array in arrays]


def _array_transfer(array: NDArray[Any]) -> Transfer:
    """Return a transfer to and from a view that nobody else has."""
    if array.flags.c_contiguous:
        return memory_transfer(array.ctypes.data)

    def move(other: int, length: int, inward: bool) -> None:
        memory: Any = (ctypes.c_char * length).from_address(other)
        plain = _MEMORY(memory, array.dtype).reshape(array.shape)
        _COPY(*((array, plain) if inward else (plain, array)))

    return move


seal(
    sys.modules[__name__],
    *(
        "MOVE",
        "_COPY",
        "_MEMORY",
        "_CHECKSUM",
        "memory_transfer",
        "_array_transfer",
        "_array_transfers",
    ),
)


@sealed
class SharedKernel:
    """A user's kernel whose samples have operands of their own.

    Args:
        kernel: the kernel as the framework runs it.
        transfers: a transfer for each role, in the order of its arguments.
        shared: the memory that is shared with the host.
        spec: the case.
        cold_bytes: bytes that are copied before each sample, so that its operands are in no cache.
    """

    def __init__(
        self,
        kernel: FrameworkKernel,
        transfers: list[Transfer],
        shared: SharedOperands,
        spec: KernelSpec,
        cold_bytes: int = 0,
    ) -> None:
        self.facts, self._clock, self._time = kernel.facts, kernel.clock, kernel.sample
        roles = roles_of_kernel(spec.layer, spec.pass_)
        by_role = dict(zip(roles, transfers, strict=True))
        result = spec.layer.result(spec.pass_)
        read = spec.layer.reads(spec.pass_)
        moves = [
            [
                (by_role[role], memory.ctypes.data, memory.size)
                for role in dict.fromkeys(wanted)
                if (memory := shared.memory(slot, role)) is not None
            ]
            for slot in range(shared.slots)
            for wanted in (read, (result, *read))
        ]
        self._shared, self._inputs, self._all = shared, moves[::2], moves[1::2]
        self._results = [shared.memory(slot, result).data for slot in range(shared.slots)]
        self._checksums: list[int] = []
        self._others = (ctypes.c_char * cold_bytes)()

    def sample(self, request: ChunkRequest) -> Chunk:
        """Time one sample in each of the first slots; or, with untimed executions, only warm up.

        The inputs of a sample are there only after the executions that warm it up.
        """
        check_sealed(self, self._clock)
        if request.untimed:
            return self._time(request)
        self._checksums = []
        if not isinstance(self._clock, DeviceClock):
            self._clock.around = self._load, self._save
            try:
                chunk = self._time(request)
            finally:
                self._clock.around = None
            return msgspec.structs.replace(chunk, checksums=tuple(self._checksums))
        chunks = []
        for slot in range(request.samples):
            self._load(slot)
            chunks.append(self._time(ChunkRequest(samples=1, inner=request.inner)))
            self._save(slot)
        return msgspec.structs.replace(merged(chunks), checksums=tuple(self._checksums))

    def _load(self, slot: int) -> None:
        for transfer, address, length in self._inputs[slot]:
            transfer(address, length, True)
        begin, half = ctypes.addressof(self._others), len(self._others) // 2
        for at in range(begin, begin + half, _THROUGH_CACHES):
            MOVE(at + half, at, min(_THROUGH_CACHES, begin + half - at))

    def _save(self, slot: int) -> None:
        for number, (transfer, address, length) in enumerate(self._all[slot]):
            transfer(address, length, False)
            if number == 0:  # the result
                self._checksums.append(_CHECKSUM(self._results[slot]))


def prepare(
    backend: Any,
    spec: dict[str, Any],
    preparation: dict[str, Any],
    path: str,
    slots: int,
) -> SharedKernel:
    """Prepare a user's kernel on shared memory; called by the host.

    Args:
        backend: backend of this process: PyTorch with a user's kernel, or one of another package.
        spec: a :class:`KernelSpec` as JSON.
        preparation: a :class:`Preparation` as JSON.
        path: file of the shared memory.
        slots: number of its slots.

    Raises:
        PydlbenchError: see ``FrameworkBackend.prepare``.
    """
    asked = KernelSpec.from_dict(spec)
    shared = SharedOperands(asked.layer, asked.pass_, asked.precision, slots, path)
    how = Preparation(**preparation)
    cold = asked.cache == "all-cold" and not asked.on_gpu
    hot = msgspec.structs.replace(asked, cache="hot") if cold else asked
    kernel = backend.prepare(hot, how)
    if not (hasattr(kernel, "operator") and hasattr(kernel, "clock")):
        raise UnsupportedError(
            f"{asked.backend}: its rows cannot be judged while they are timed; nearest: prepare() "
            "of FrameworkBackend, which returns a FrameworkKernel"
        )
    if is_user_model(asked.mode or ""):
        transfers = backend.transfers(kernel.operator)
    else:
        transfers = _array_transfers(kernel.operator, shared, asked)
    return SharedKernel(kernel, transfers, shared, asked, how.cold_bytes if cold else 0)
