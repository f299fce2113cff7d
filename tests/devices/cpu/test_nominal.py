"""The nominal clock, and where it is read."""

import pytest

from pydlbench.devices.cpu.facts import read_nominal_clock

CPU = "sys/devices/system/cpu/cpu0"
INFO = {
    "model name": "Intel(R) Xeon(R) CPU @ 2.20GHz",
    "flags": "fpu constant_tsc",
    "bogomips": "4800.00",
    "cpu mhz": "3100.5",
}


def test_the_sources_are_asked_in_order(tree):
    root = tree({f"{CPU}/acpi_cppc/nominal_freq": "2500"})
    assert read_nominal_clock(root, INFO) == (2.5e9, "ACPI CPPC nominal_freq")
    root = tree({f"{CPU}/cpufreq/base_frequency": "2600000"})
    assert read_nominal_clock(root, INFO) == (2.6e9, "cpufreq base_frequency")


@pytest.mark.parametrize(
    ("changes", "hz", "source"),
    [
        ({}, 2.2e9, "brand string"),
        ({"model name": "AMD EPYC"}, 2.4e9, "time-stamp counter (bogomips / 2)"),
        (
            {"model name": "AMD EPYC", "flags": "fpu"},
            3.1005e9,
            "/proc/cpuinfo cpu MHz (present clock)",
        ),
    ],
)
def test_cpuinfo_is_the_fallback(tmp_path, changes, hz, source):
    found, name = read_nominal_clock(tmp_path, INFO | changes)
    assert found == pytest.approx(hz)
    assert name == source


@pytest.mark.parametrize("info", [{}, {"cpu mhz": "unknown"}, {"cpu mhz": "0.000"}])
def test_no_source_is_no_clock(tmp_path, info):
    assert read_nominal_clock(tmp_path, info) == (None, None)
