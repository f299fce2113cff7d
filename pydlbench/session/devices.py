"""The devices of a session, probed as far as its rows have needed it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pydlbench.errors import PydlbenchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pydlbench.backends.case import Case
    from pydlbench.devices import DeviceRecord
    from pydlbench.devices.cpu import CpuFacts
    from pydlbench.devices.gpu import GpuRecord
    from pydlbench.results import Measurement
    from pydlbench.workers.host import Worker

__all__ = ["Devices"]

# The roof is the fastest way to move bytes; one of these is, which one depends on the machine.
_ROOF_PATTERNS = ("read", "copy", "triad")


class Devices:
    """A CPU and any number of GPUs.

    Args:
        facts: of the CPU.
        cpus: logical CPUs that kernels are pinned to.
        worker: returns the native worker of a device.
    """

    def __init__(
        self, facts: CpuFacts, cpus: tuple[int, ...], worker: Callable[[str], Worker]
    ) -> None:
        from pydlbench.devices.probing import start_record

        self._facts = facts
        self._cpus = cpus
        self._worker = worker
        self._cpu: DeviceRecord = start_record(facts, cpus)
        self._gpus: dict[str, GpuRecord] = {}
        self._main = "cpu"
        self._unprobed: dict[str, str] = {}

    def described(self) -> dict[str, Any]:
        """Return the device that was measured, with the host beside a GPU."""
        record = self._gpus.get(self._main)
        if record is None:
            return self._cpu.to_dict()
        return {**record.to_dict(), "host": self._cpu.to_dict()}

    def cpu(
        self,
        precisions: Iterable[str],
        patterns: Sequence[str] | None,
        levels: Sequence[str] | None,
    ) -> DeviceRecord:
        """Return the CPU; see ``Session.device``."""
        from pydlbench.devices.probing import LEVELS, PATTERNS, extend_record

        worker = self._worker("cpu")
        self._cpu = extend_record(
            self._cpu,
            tuple(precisions),
            worker.describe(),
            worker.probe,
            PATTERNS if patterns is None else patterns,
            LEVELS if levels is None else levels,
        )
        return self._cpu

    def gpu(
        self,
        device: str,
        precisions: Iterable[str] = (),
        patterns: Sequence[str] | None = None,
        levels: Sequence[str] | None = None,
    ) -> GpuRecord:
        """Return a GPU; see ``Session.gpu``."""
        from pydlbench.devices.gpu import GpuFacts
        from pydlbench.devices.gpu.probing import LEVELS, PATTERNS, extend_record, start_record

        worker = self._worker(device)
        told = worker.describe()
        self._main = device
        if device not in self._gpus:
            self._gpus[device] = start_record(GpuFacts.of(told["device"]), told["nvml"])
        self._gpus[device] = extend_record(
            self._gpus[device],
            tuple(precisions),
            told["libraries"],
            worker.probe,
            PATTERNS if patterns is None else patterns,
            LEVELS if levels is None else levels,
        )
        return self._gpus[device]

    def unprobed(self, reason: str) -> DeviceRecord:
        """Return the CPU with what is known, and the reason why nothing more was probed."""
        from pydlbench.devices.reliability import unprobed_advice

        warnings = (*self._cpu.warnings, unprobed_advice(reason))
        self._cpu = dataclasses.replace(self._cpu, warnings=warnings)
        return self._cpu

    def limited(self, row: Measurement, case: Case) -> Measurement:
        """Return a row held against the limits of its device, or with the reason why not.

        Args:
            row: a timed one.
            case: what was timed.
        """
        from pydlbench.devices.cpu import private_level_bytes
        from pydlbench.session.limits import cached_bytes, with_limits

        if case.on_gpu:
            precisions = dict.fromkeys((case.precision, *self._advisable(case)))
            levels: tuple[str, ...] = ("memory", "l2")
        else:
            precisions = dict.fromkeys((case.precision, "fp32", "bf16"))
            private = private_level_bytes(self._facts, self._cpus) or 0
            # A large kernel's time hardly depends on what its operands' first megabytes do.
            near = cached_bytes(case) <= 2 * private
            levels = ("memory", "llc", "l2") if near else ("memory", "llc")
        try:
            return with_limits(row, case, self._probed(case, precisions, levels), levels)
        except PydlbenchError as error:  # the time stands without a peak beside it
            return dataclasses.replace(row, warnings=(*row.warnings, str(error)))

    def _advisable(self, case: Case) -> tuple[str, ...]:
        """The precisions of a GPU that the advice to change the precision can name."""
        from pydlbench.devices.gpu import lacks

        half = "fp16-tc" if lacks(self._gpus[case.device].facts, "bf16-tc") else "bf16-tc"
        products = case.layer.kind == "gemm" and case.precision in ("fp16-tc", "bf16-tc")
        return ("fp32", half, "fp8-tc") if products else ("fp32", half)

    def _probed(
        self, case: Case, precisions: Iterable[str], levels: Sequence[str]
    ) -> DeviceRecord | GpuRecord:
        """The device for a row's roof; after a failure not every further row probes again."""
        if case.device in self._unprobed:
            raise PydlbenchError(self._unprobed[case.device])
        try:
            if case.on_gpu:
                return self.gpu(case.device, precisions, levels=levels)
            return self.cpu(precisions, _ROOF_PATTERNS, levels)
        except PydlbenchError as error:
            self._unprobed[case.device] = str(error)
            raise
