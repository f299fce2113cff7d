"""What is known about a GPU. Everything that the driver does not tell is None."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """Facts about one GPU, as the CUDA runtime tells them.

    Attributes:
        index: N of ``cuda:N``.
        name: of the product, as the driver spells it.
        uuid: what stays the same when indices change.
        pci: its place on the bus.
        capability: compute capability, ``9.0``.
        multiprocessors: how many of them this process may use; a MIG slice has fewer.
        memory_bytes: device memory.
        l2_bytes: second-level cache.
        shared_bytes_per_block: shared memory that one block may ask for.
        threads_per_multiprocessor: resident threads at most.
        clock_hz: the rated maximum of the multiprocessors' clock.
        memory_clock_hz: the rated maximum of the memory's clock.
        memory_bus_bits: width of the memory bus.
        ecc: whether the memory is protected.
        integrated: it shares the memory of the host.
        driver_version: the newest CUDA that the driver can run, ``13.0``.
        runtime_version: the CUDA that this package was built with, ``13.0``.
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
        """Read what ``_cuda.device_facts`` tells; what else is in it is left out.

        Clocks and sizes of zero mean that the driver did not tell; versions such as 13000 are
        written 13.0.
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
        """How the command line calls it: ``cuda:0``."""
        return f"cuda:{self.index}"

    @property
    def label(self) -> str:
        """Device, product and capability, for messages."""
        capability = f", compute capability {self.capability}" if self.capability else ""
        return f"{self.device} ({self.name}{capability})"

    @property
    def memory_bytes_per_s(self) -> float | None:
        """Theoretical bandwidth of the memory in B/s: two transfers per clock of the driver's.

        None of a MIG slice: the driver tells the width of the whole bus, and the slice has a part.
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
