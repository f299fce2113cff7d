import dataclasses
import json
import math

import pytest
from invented_readings import bandwidth, reading

from pydlbench.devices.cpu.record import DeviceRecord, precision_peak
from pydlbench.devices.findings import DeviceAdvice, ImpossiblePeakError
from pydlbench.errors import UnsupportedError


@pytest.fixture
def record(machine):
    facts = machine(cores=2)
    return DeviceRecord(
        facts=facts,
        cpus=(0, 1),
        clock_hz=3.7e9,
        peaks=(
            precision_peak(facts, "fp32", (0, 1), reading(230e9)),
            precision_peak(facts, "fp16", (0, 1), "fp16: this CPU has none"),
        ),
        bandwidths=(bandwidth("memory", "read", 30e9), bandwidth("memory", "copy", 50e9)),
        libraries={"oneDNN": "3.2.0"},
        warnings=(DeviceAdvice(symptom="noise", remedy="silence"),),
    )


def test_measured_stands_beside_theory_at_both_clocks(record):
    peak = record.peak("fp32")
    assert peak.measured == 230e9
    assert peak.theoretical.flops_per_s == 32 * 2 * 3.7e9
    assert peak.nominal.flops_per_s == 32 * 2 * 2.6e9


def test_limits_follow_the_clock(record):
    limits = record.limits("fp32", clock_hz=1.85e9)
    assert limits.measured == pytest.approx(115e9)
    assert limits.theoretical == pytest.approx(32 * 2 * 1.85e9)
    assert record.limits("fp32").measured == 230e9


def test_limits_that_were_not_measured_say_why(record):
    with pytest.raises(UnsupportedError, match="this CPU has none"):
        record.limits("fp16")
    with pytest.raises(UnsupportedError, match=r"bf16: .*not probed"):
        record.limits("bf16")


def test_the_dict_is_json(record):
    found = json.loads(json.dumps(record.to_dict()))
    assert (found["kind"], found["name"], found["threads"]) == ("cpu", "AMD EPYC 9004", 2)
    assert found["peaks"][0]["measured_flops_per_s"] == 230e9
    assert found["peaks"][0]["theoretical"]["flop_per_clock"] == 32
    assert found["peaks"][1]["reason"] == "fp16: this CPU has none"
    assert found["warnings"] == [{"symptom": "noise", "remedy": "silence"}]


def test_only_the_levels_asked_for_count(record):
    levels = [("l2", 900e9), ("llc", 200e9)]
    near = tuple(bandwidth(level, "read", rate) for level, rate in levels)
    record = dataclasses.replace(record, bandwidths=(*record.bandwidths, *near))
    rates = {level.name: level.bytes_per_s for level in record.levels()}
    assert rates == {"l2": 900e9, "llc": 200e9, "memory": 50e9}
    fewer = {level.name: level.bytes_per_s for level in record.levels(("memory", "llc"))}
    assert fewer == {**rates, "l2": math.inf}


def test_a_probe_that_beats_an_assumption_drops_it(machine):
    facts = machine(cores=2, family=99)
    within = precision_peak(facts, "fp32", (0, 1), reading(1e9))
    assert within.theoretical.assumed
    above = precision_peak(facts, "fp32", (0, 1), reading(2 * within.theoretical.flops_per_s))
    assert above.theoretical is above.nominal is None
    assert above.measured == 2 * within.theoretical.flops_per_s


def test_bandwidths(record):
    assert record.bandwidth("memory", "read").bytes_per_s == 30e9
    assert record.best_bandwidth("memory") == 50e9
    assert record.best_bandwidth("llc") == 50e9  # nothing faster is known
    assert record.bandwidth("llc") is None
    without = dataclasses.replace(record, bandwidths=(), bandwidth_reason="not on this CPU")
    with pytest.raises(UnsupportedError, match=r"^not on this CPU$"):
        without.levels()


@pytest.mark.parametrize(("share", "threads"), [(1.02, 1), (1.02, 2), (1.04, 1)])
def test_a_probe_that_beats_the_hardware_is_an_error(machine, share, threads):
    cpus = tuple(range(2))
    # Two threads of one core are one core.
    facts = machine(cores=2 // threads, threads=threads)
    per_second = share * 32 * (2 // threads) * 3.7e9
    if share > 1.03:
        with pytest.raises(ImpossiblePeakError):
            precision_peak(facts, "fp32", cpus, reading(per_second))
    else:
        peak = precision_peak(facts, "fp32", cpus, reading(per_second))
        assert (peak.measured, peak.theoretical.units) == (per_second, 2 // threads)
