"""An invented NVML: a card that is idle, cool and below its power cap."""

import os
import time
from types import SimpleNamespace

from invented_world import CLOCK_HZ

_POWER_W = 420.0


def nvmlInit():  # noqa: N802 - NVML's name
    """Do nothing."""


def nvmlDeviceGetHandleByUUID(uuid):  # noqa: N802 - NVML's name
    return uuid


def nvmlDeviceGetClockInfo(handle, which):  # noqa: N802, ARG001 - NVML's name
    return {1: CLOCK_HZ / 1e6, 2: 3201}[which]


def nvmlDeviceGetTemperature(handle, sensor):  # noqa: N802, ARG001 - NVML's name
    return 45


def nvmlDeviceGetCurrentClocksEventReasons(handle):  # noqa: N802, ARG001 - NVML's name
    return 0


def nvmlDeviceGetPowerUsage(handle):  # noqa: N802, ARG001 - NVML's name
    return int(_POWER_W * 1e3)


def nvmlDeviceGetTotalEnergyConsumption(handle):  # noqa: N802, ARG001 - NVML's name
    """Return millijoules; the counter is updated every 10 ms."""
    return int(time.monotonic() * 100) * int(_POWER_W * 10)


def nvmlDeviceGetEnforcedPowerLimit(handle):  # noqa: N802, ARG001 - NVML's name
    return 700_000


def nvmlDeviceGetMigMode(handle):  # noqa: N802, ARG001 - NVML's name
    return (0, 0)


def nvmlDeviceGetPersistenceMode(handle):  # noqa: N802, ARG001 - NVML's name
    return 1


def nvmlDeviceGetComputeRunningProcesses(handle):  # noqa: N802, ARG001 - NVML's name
    return [SimpleNamespace(pid=os.getpid())]


def nvmlDeviceGetProcessUtilization(handle, since):  # noqa: N802, ARG001 - NVML's name
    return []
