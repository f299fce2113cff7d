"""A GPU watched through NVML while it is sampled: clocks, power, heat, throttling, other processes.

Nothing is ever set. Without NVML (``nvidia-ml-py`` is not installed, the driver refuses) rows stand
without these readings, and the device's record says why.
"""

from __future__ import annotations

import importlib
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydlbench.timing.chunk import GpuReadings
from pydlbench.timing.guards import reasons_of
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    from collections.abc import Callable

# NVML's own sensors are renewed every 20 to 100 ms.
_PERIOD_S = 0.02
# NVML_FI_DEV_POWER_INSTANT. Without it the reading is the mean over a second, twenty chunks long.
_POWER_INSTANT = 186
# The energy counter moves at least ten times a second; after a second it never will.
_ENERGY_WAIT_S = 1.0
# Between two looks at it: the thread that launches may have the same CPU.
_ENERGY_LOOK_S = 0.0005


class Monitor:
    """Reads one GPU, in a thread of its own while samples are taken.

    Args:
        uuid: of the GPU, as the driver writes it: ``GPU-...``.
        library: takes the place of ``pynvml`` in tests.
        clock: seconds that only grow.
        period_s: between two readings.
    """

    def __init__(
        self,
        uuid: str,
        library: Any = None,
        clock: Callable[[], float] = time.monotonic,
        period_s: float = _PERIOD_S,
    ) -> None:
        self.reason: str | None = None
        self._clock = clock
        self._period_s = period_s
        self._readings: list[tuple[float, dict[str, float]]] = []
        self._lock = threading.Lock()
        self._active = threading.Event()
        self._library: Any = None
        self._handle: Any = None
        self._seen = 0  # time stamp of the latest process utilisation, in NVML's microseconds
        try:
            self._library = library or importlib.import_module("pynvml")
            self._library.nvmlInit()
            self._handle = self._library.nvmlDeviceGetHandleByUUID(uuid)
        except ImportError:
            self.reason = "nvidia-ml-py is not installed: pip install nvidia-ml-py"
        except Exception as error:  # noqa: BLE001 - NVML has dozens of errors, none costs a row
            self.reason = f"NVML: {error}"
        if self.reason is None:
            threading.Thread(target=self._watch, name="nvml", daemon=True).start()

    def mark(self) -> float:
        """Start a chunk: the thread reads from now on until :meth:`since` is asked."""
        self._others()  # what others did until now is none of this chunk's business
        self._active.set()
        return self._clock()

    def since(self, mark: float) -> GpuReadings | None:
        """Return what was read since ``mark``, with one reading of this moment; None without NVML.

        Args:
            mark: of :meth:`mark`.
        """
        self._active.clear()
        if self.reason is not None:
            return None
        self._read()
        with self._lock:
            fresh = [values for when, values in self._readings if when >= mark]
            self._readings.clear()

        def known(name: str) -> list[float]:
            return [values[name] for values in fresh if name in values]

        powers, heats = known("power_w"), known("temperature_c")
        bits = 0
        for value in known("reasons"):
            bits |= int(value)
        return GpuReadings(
            sm_clock_hz=median(known("sm_clock_hz")) if known("sm_clock_hz") else None,
            memory_clock_hz=median(known("memory_clock_hz")) if known("memory_clock_hz") else None,
            # The first and the last reading are beside the load.
            power_w=median(powers) if powers else None,
            temperature_c=max(heats, default=None),
            reasons=reasons_of(bits),
            others=self._others(),
            readings=len(fresh),
        )

    def energy_j(self) -> float | None:
        """Return the energy since the driver was loaded, in joules, just when its counter moved.

        None where the GPU does not count it (before Volta), or the counter stands still.
        """
        first = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        if first is None:
            return None
        end = self._clock() + _ENERGY_WAIT_S
        while self._clock() < end:
            now = self._ask("nvmlDeviceGetTotalEnergyConsumption")
            if now is not None and now != first:
                return float(now) / 1e3
            time.sleep(_ENERGY_LOOK_S)
        return None

    def snapshot(self) -> dict[str, Any]:
        """Return what matters for trust, before anything is measured; ``reason`` without NVML."""
        if self.reason is not None:
            return {"reason": self.reason}
        limit = self._ask("nvmlDeviceGetEnforcedPowerLimit")
        mig = self._ask("nvmlDeviceGetMigMode")
        persistence = self._ask("nvmlDeviceGetPersistenceMode")
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        processes = self._ask("nvmlDeviceGetComputeRunningProcesses") or []
        return {
            "reason": None,
            "power_limit_w": None if limit is None else limit / 1e3,
            "mig": None if mig is None else bool(mig[0]),
            "persistence": None if persistence is None else bool(persistence),
            "temperature_c": self._ask("nvmlDeviceGetTemperature", 0),
            "throttle": list(reasons_of(int(bits or 0))),
            "processes": sorted(process.pid for process in processes if process.pid != os.getpid()),
        }

    def _watch(self) -> None:
        while True:
            self._active.wait()
            self._read()
            time.sleep(self._period_s)

    def _read(self) -> None:
        values: dict[str, float] = {}
        for name, call, arguments, scale in (
            ("sm_clock_hz", "nvmlDeviceGetClockInfo", (1,), 1e6),
            ("memory_clock_hz", "nvmlDeviceGetClockInfo", (2,), 1e6),
            ("temperature_c", "nvmlDeviceGetTemperature", (0,), 1.0),
            ("reasons", "nvmlDeviceGetCurrentClocksEventReasons", (), 1.0),
        ):
            value = self._ask(call, *arguments)
            if value is not None:
                values[name] = scale * value
        if (power := self._power_w()) is not None:
            values["power_w"] = power
        with self._lock:
            self._readings.append((self._clock(), values))

    def _power_w(self) -> float | None:
        """The power of this moment; where the driver has none such, the mean over a second."""
        for value in self._ask("nvmlDeviceGetFieldValues", [_POWER_INSTANT]) or ():
            if value.nvmlReturn == 0:
                return 1e-3 * float(value.value.uiVal)
        mean = self._ask("nvmlDeviceGetPowerUsage")
        return None if mean is None else 1e-3 * float(mean)

    def _others(self) -> tuple[int, ...]:
        """Other processes that used this GPU's multiprocessors since the last time.

        In a container the driver may know this process by another number; then it cannot be told
        from others, and nothing is said about them. Nor about this run's own workers: they compute
        in turn with this one, but the driver dates their use up to a second too late.
        """
        running = self._ask("nvmlDeviceGetComputeRunningProcesses") or []
        if os.getpid() not in {process.pid for process in running}:
            return ()
        samples = self._ask("nvmlDeviceGetProcessUtilization", self._seen) or []
        fresh = [sample for sample in samples if sample.timeStamp > self._seen]
        self._seen = max([self._seen, *(sample.timeStamp for sample in fresh)])
        busy = {sample.pid for sample in fresh if sample.smUtil} - {os.getpid()}
        return tuple(sorted(pid for pid in busy if not _is_sibling(pid)))

    def _ask(self, call: str, *arguments: Any) -> Any:
        if self.reason is not None:
            return None
        try:
            return getattr(self._library, call)(self._handle, *arguments)
        except Exception:  # noqa: BLE001 - a sensor that this GPU lacks is a reading that is not there
            return None


def _is_sibling(pid: int) -> bool:
    """Whether the process that started this one has started that one too."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    # "pid (name) state parent ...", where the name may hold anything, brackets too. Orphans of all
    # runs have process 1 as their parent.
    return int(stat.rpartition(")")[2].split()[1]) == os.getppid() != 1
