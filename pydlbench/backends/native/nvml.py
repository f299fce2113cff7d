"""NVML readings of a GPU during samples: clocks, power, temperature, throttling, energy.

No setting is changed. Without NVML (``nvidia-ml-py`` is not installed, or the driver refuses), rows
have no such readings, and the device's record has the reason.
"""

import importlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from pydlbench.backends.host_clock import Watcher
from pydlbench.devices.cpu.facts import read_text
from pydlbench.errors import PrimitiveError, UnsupportedError
from pydlbench.timing.chunk import GpuReadings
from pydlbench.timing.guards import reasons_of
from pydlbench.timing.statistics import median

# NVML updates its sensors every 20 to 100 ms.
_PERIOD_S = 0.02
# NVML_FI_DEV_POWER_INSTANT; the other reading is the mean over a second, as long as twenty chunks.
_POWER_INSTANT = 186
# The energy counter is updated at least ten times a second, or not at all.
_ENERGY_TIMEOUT_S = 1.0
# NVML_COMPUTEMODE_EXCLUSIVE_THREAD, which old drivers have, and NVML_COMPUTEMODE_EXCLUSIVE_PROCESS.
_EXCLUSIVE_MODES = (1, 3)
# Time between two reads of the counter; the thread that launches kernels may have the same CPU.
_ENERGY_POLL_S = 0.0005


class Monitor:
    """Reads one GPU in a thread during samples.

    Args:
        uuid: the driver's identifier of the GPU: ``GPU-...``.
        library: replaces ``pynvml`` in tests.
        clock: monotonic clock in seconds.
        period_s: time between two readings.
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
            self._handle = self._device(uuid)
        except ImportError:
            self.reason = "nvidia-ml-py is not installed: pip install nvidia-ml-py"
        except Exception as error:  # noqa: BLE001 - NVML has dozens of errors, none costs a row
            self.reason = f"NVML: {error}"
        if self.reason is None:
            threading.Thread(target=self._watch, name="nvml", daemon=True).start()

    def _device(self, uuid: str) -> Any:
        """Return NVML's handle of a GPU, or of the whole GPU that a MIG slice is part of.

        A slice's identifier begins with MIG. Clocks, power and temperature are those of the GPU;
        NVML refuses them for the handle of a slice.
        """
        handle_of = self._library.nvmlDeviceGetHandleByUUID
        try:
            return handle_of(uuid)
        except Exception:  # noqa: BLE001 - NVML's errors have no common base in every version
            part = handle_of(uuid.replace("GPU-", "MIG-", 1))
            return self._library.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part)

    def mark(self) -> float:
        """Start a chunk: the thread reads until :meth:`since` is called."""
        self._others()  # drop the use by others before the chunk
        self._active.set()
        return self._clock()

    def since(self, mark: float) -> GpuReadings | None:
        """Return the readings since ``mark``, including a present one; None if there is no NVML.

        Args:
            mark: result of :meth:`mark`.
        """
        self._active.clear()
        if self.reason is not None:
            return None
        self._read()
        with self._lock:
            fresh = [values for when, values in self._readings if when >= mark]
            self._readings.clear()

        def readings(name: str) -> list[float]:
            return [values[name] for values in fresh if name in values]

        def middle(name: str) -> float | None:
            return median(readings(name)) if readings(name) else None

        bits = 0
        for value in readings("reasons"):
            bits |= int(value)
        return GpuReadings(
            sm_clock_hz=middle("sm_clock_hz"),
            memory_clock_hz=middle("memory_clock_hz"),
            # The median, because the first and the last reading are outside the load.
            power_w=middle("power_w"),
            temperature_c=max(readings("temperature_c"), default=None),
            reasons=reasons_of(bits),
            others=self._others(),
            readings=len(fresh),
        )

    def energy_j(self) -> float | None:
        """Return the energy since the driver was loaded, in joules, right after a counter update.

        None if the GPU has no such counter (before Volta), or it is not updated.
        """
        first = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        if first is None:
            return None
        end = self._clock() + _ENERGY_TIMEOUT_S
        while self._clock() < end:
            now = self._ask("nvmlDeviceGetTotalEnergyConsumption")
            if now is not None and now != first:
                return float(now) / 1e3
            time.sleep(_ENERGY_POLL_S)
        return None

    def snapshot(self) -> dict[str, Any]:
        """Return the GPU's state before measurements; only ``reason`` if there is no NVML."""
        if self.reason is not None:
            return {"reason": self.reason}
        limit = self._ask("nvmlDeviceGetEnforcedPowerLimit")
        mig = self._ask("nvmlDeviceGetMigMode")
        persistence = self._ask("nvmlDeviceGetPersistenceMode")
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        processes = self._ask("nvmlDeviceGetComputeRunningProcesses") or []
        mode = self._ask("nvmlDeviceGetComputeMode")
        return {
            "reason": None,
            "exclusive": None if mode is None else mode in _EXCLUSIVE_MODES,
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
        """Return the present power, or the mean over a second if the driver has only that."""
        for value in self._ask("nvmlDeviceGetFieldValues", [_POWER_INSTANT]) or ():
            if value.nvmlReturn == 0:
                return 1e-3 * float(value.value.uiVal)
        mean = self._ask("nvmlDeviceGetPowerUsage")
        return None if mean is None else 1e-3 * float(mean)

    def _others(self) -> tuple[int, ...]:
        """Return other processes that used this GPU's multiprocessors since the last call.

        In a container, the driver may know this process by another number; in that case it
        cannot be distinguished from others, and the result is empty. This run's other workers are
        left out: they compute in turn with this one, but the driver reports their use up to a
        second late.
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
        except Exception:  # noqa: BLE001 - this GPU lacks the sensor
            return None


def _is_sibling(pid: int) -> bool:
    """Whether a process has the same parent as this one."""
    stat = read_text(Path(f"/proc/{pid}/stat"))
    if stat is None:
        return False
    # "pid (name) state parent ..."; the name may contain brackets. Process 1 is the parent of
    # orphans, which are of different runs.
    return int(stat.rpartition(")")[2].split()[1]) == os.getppid() != 1


# -----------------------------------------------------------------------------
# Time, clock, power and energy of an execution when it runs for a second without pauses.

# The card updates its energy counter about every 100 ms, so ten times after the start, in which
# graphs are made and the clock settles.
_LOAD_S: Final = 1.2
_START_S: Final = 0.2


class EnergyMeter(Watcher, Protocol):
    """Reads a GPU including its energy counter: ``native.nvml.Monitor``."""

    def energy_j(self) -> float | None:
        """Return the counter in joules, right after an update; None if there is no counter."""


class Sustained(NamedTuple):
    """Properties of an execution, averaged over a second of executions; None if unknown.

    Attributes:
        sustained_s: time of one execution.
        sustained_hz: median clock of the multiprocessors.
        energy_j: energy of one execution.
        power_w: mean power of the GPU.
    """

    sustained_s: float | None = None
    sustained_hz: float | None = None
    energy_j: float | None = None
    power_w: float | None = None


def measure_sustained(
    run_for: Callable[[float], Mapping[str, Any]], meter: EnergyMeter
) -> Sustained:
    """Measure a second of executions without pauses.

    The energy counter is read during the executions, from one update to another. Readings before
    the first or after the last execution would include up to 100 ms of an idle GPU.

    Args:
        run_for: function that launches executions for a number of seconds, and returns
            ``executions`` and ``seconds``.
        meter: reads the GPU.
    """
    steps: list[tuple[float, float]] = []
    mark = meter.mark()
    with ThreadPoolExecutor(max_workers=1) as pool:
        load = pool.submit(run_for, _LOAD_S)
        time.sleep(_START_S)
        while not load.done():
            joules = meter.energy_j()
            now = time.monotonic()
            if joules is None:
                break
            if not load.done():
                steps.append((joules, now))
        try:
            steady = load.result()
        except (PrimitiveError, UnsupportedError):
            return Sustained()  # the plan cannot be captured into the load's graph
        finally:
            readings = meter.since(mark)
    if not steady["executions"]:
        return Sustained()
    seconds = steady["seconds"] / steady["executions"]
    clock_hz = None if readings is None else readings.sm_clock_hz
    if len(steps) < 2:
        return Sustained(seconds, clock_hz)
    watts = (steps[-1][0] - steps[0][0]) / (steps[-1][1] - steps[0][1])
    return Sustained(seconds, clock_hz, watts * seconds, watts)
