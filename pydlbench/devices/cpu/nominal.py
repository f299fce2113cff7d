"""The nominal clock: what the data sheet promises, not what the core runs at."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pydlbench.devices.cpu.kernel_files import read_number

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["read_nominal_clock"]


def read_nominal_clock(
    root: Path, cpuinfo: Mapping[str, str]
) -> tuple[float, str] | tuple[None, None]:
    """Return the nominal clock in Hz and where it was found, or (None, None).

    Asked in this order: the frequency driver, the firmware's CPPC table, the brand string, the
    time-stamp counter (it ticks at the nominal clock on x86; the kernel publishes it as half of
    the bogomips), and the present clock, which is none of these but all that some systems tell.

    Args:
        root: folder that holds ``sys``.
        cpuinfo: the first block of /proc/cpuinfo.
    """
    folder = root / "sys/devices/system/cpu/cpu0"
    khz = read_number(folder / "cpufreq/base_frequency")
    if khz:
        return khz * 1e3, "cpufreq base_frequency"
    mhz = read_number(folder / "acpi_cppc/nominal_freq")
    if mhz:
        return mhz * 1e6, "ACPI CPPC nominal_freq"
    brand = re.search(r"@\s*([0-9.]+)\s*([GM])Hz", cpuinfo.get("model name", ""))
    if brand and (value := _positive(brand[1])):
        return value * {"G": 1e9, "M": 1e6}[brand[2]], "brand string"
    if "constant_tsc" in cpuinfo.get("flags", "").split():
        bogomips = _positive(cpuinfo.get("bogomips", ""))
        if bogomips:
            return bogomips / 2 * 1e6, "time-stamp counter (bogomips / 2)"
    present = _positive(cpuinfo.get("cpu mhz", ""))
    if present:
        return present * 1e6, "/proc/cpuinfo cpu MHz (present clock)"
    return None, None


def _positive(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < 1e6 else None
