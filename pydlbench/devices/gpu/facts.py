"""Facts about a GPU. Facts that the driver does not report are None."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """Facts about one GPU, as reported by the CUDA runtime.

    Attributes:
        index: number N of the GPU in ``cuda:N``.
        name: name of the product, in the driver's spelling.
        uuid: identifier of the GPU, also if indices change.
        pci: address of the GPU on the PCI bus.
        capability: compute capability, ``9.0``.
        multiprocessors: number of multiprocessors that this process may use; a MIG slice has fewer.
        memory_bytes: size of the device memory.
        l2_bytes: size of the second-level cache.
        shared_bytes_per_block: maximum shared memory of a block.
        threads_per_multiprocessor: maximum number of resident threads of a multiprocessor.
        clock_hz: rated maximum clock of the multiprocessors.
        memory_clock_hz: rated maximum clock of the memory.
        memory_bus_bits: width of the memory bus.
        ecc: whether the memory has error correction.
        integrated: whether the GPU shares the memory of the host.
        driver_version: newest CUDA version that the driver supports, such as ``13.0``.
        runtime_version: CUDA version that this package was built with, such as ``13.0``.
    """

    index: int = 0
    name: str = "unknown GPU"
    uuid: str | None = None
    pci: str | None = None
    capability: str = ""
    multiprocessors: int = 0
    memory_bytes: int = 0
    l2_bytes: int = 0
    shared_bytes_per_block: int | None = None
    threads_per_multiprocessor: int | None = None
    clock_hz: float | None = None
    memory_clock_hz: float | None = None
    memory_bus_bits: int | None = None
    ecc: bool | None = None
    integrated: bool = False
    driver_version: str | None = None
    runtime_version: str | None = None

    @classmethod
    def from_driver(cls, reply: Mapping[str, Any]) -> Self:
        """Return the facts in a reply of ``_cuda.device_facts``; further fields are ignored.

        Clocks and sizes of zero are unknown; versions such as 13000 are written 13.0.
        """
        known: dict[str, Any] = {
            field.name: reply[field.name]
            for field in dataclasses.fields(cls)
            if reply.get(field.name) is not None
        }
        if "capability" not in known and "major" in reply:
            known["capability"] = f"{reply['major']}.{reply['minor']}"
        for name in ("driver_version", "runtime_version"):
            if name in known:
                known[name] = _version(known[name])
        optional = ("clock_hz", "memory_clock_hz", "memory_bus_bits", "uuid", "pci")
        return cls(**{key: value for key, value in known.items() if value or key not in optional})

    @property
    def device(self) -> str:
        """Name on the command line: ``cuda:0``."""
        return f"cuda:{self.index}"

    @property
    def label(self) -> str:
        """Device, product and capability, for messages."""
        capability = f", compute capability {self.capability}" if self.capability else ""
        return f"{self.device} ({self.name}{capability})"

    @property
    def memory_bytes_per_s(self) -> float | None:
        """Theoretical bandwidth of the memory in B/s: two transfers per reported clock.

        None for a MIG slice: the driver reports the width of the whole bus.
        """
        if self.memory_clock_hz is None or self.memory_bus_bits is None or " MIG " in self.name:
            return None
        return 2 * self.memory_clock_hz * self.memory_bus_bits / 8

    def to_dict(self) -> dict[str, Any]:
        """Return the facts for JSON: sizes in bytes, clocks in Hz."""
        return dataclasses.asdict(self) | {"memory_bytes_per_s": self.memory_bytes_per_s}


def _version(version: int | str) -> str | None:
    """Turn the runtime's 13000 or 12080 into 13.0 or 12.8."""
    if isinstance(version, str):
        return version or None
    return f"{version // 1000}.{version % 1000 // 10}" if version else None
