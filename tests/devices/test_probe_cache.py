"""Bandwidths that are kept between runs: believed where a reading agrees, probed anew elsewhere."""

import dataclasses
import json

import msgspec
import pytest

from pydlbench.devices.bandwidths import probe_levels
from pydlbench.devices.findings import Bandwidth
from pydlbench.devices.probe_cache import (
    AGREES,
    VARIABLE,
    CachedKernel,
    ProbeCache,
    probe_cache_path,
)

SIZES = {"memory": 1 << 20, "llc": 1 << 16}
PATTERNS = ("read", "copy")
KERNEL = CachedKernel(variant="a", rival="b", seconds=1.0, scatter=None)


def bandwidth(level, pattern, rate, size=None):
    return Bandwidth(
        level=level,
        pattern=pattern,
        bytes_per_s=rate,
        median_bytes_per_s=rate,
        working_set_bytes=SIZES[level] if size is None else size,
        windows=(rate,) * 3,
        kernel="avx512",
    )


KEPT = tuple(
    bandwidth(level, pattern, 1e10 if level == "memory" else 4e10)
    for level in SIZES
    for pattern in PATTERNS
)


def probed(kept, memory=1e10, llc=4e10):
    """Probe a machine of these bandwidths; return what is known then, and what was probed."""
    calls = []

    def probe(level, pattern, _size):
        calls.append((level, pattern))
        rate = memory if level == "memory" else llc
        return {
            "per_second": rate,
            "median_per_second": rate,
            "clock_hz": 3e9,
            "rounds": 5,
            "kernel": "avx512",
        }

    known, _ = probe_levels((), SIZES, PATTERNS, tuple(SIZES), probe, kept)
    return {(item.level, item.pattern): item.bytes_per_s for item in known}, calls


def test_one_reading_of_each_level_is_enough_where_it_agrees():
    rates, calls = probed(KEPT, memory=1.1e10, llc=3.5e10)
    kept = {(item.level, item.pattern): item.bytes_per_s for item in KEPT}
    assert rates == {**kept, ("memory", "read"): 1.1e10}  # the better one of both
    assert calls == [("memory", "read"), ("llc", "read")]


@pytest.mark.parametrize("factor", [0.99 * AGREES, 1.01 / AGREES])
def test_a_level_that_disagrees_is_probed_anew(factor):
    rates, calls = probed(KEPT, memory=factor * 1e10)
    assert rates["memory", "copy"] == pytest.approx(factor * 1e10)
    assert rates["llc", "copy"] == 4e10
    assert ("memory", "copy") in calls
    assert ("llc", "copy") not in calls


def test_a_reading_of_one_window_is_probed_anew():
    rough = [dataclasses.replace(one, windows=one.windows[:1]) for one in KEPT]
    _, asked = probed(rough)
    assert asked.count(("memory", "copy")) == 3


def test_another_working_set_is_another_reading():
    rates, _ = probed([bandwidth("memory", "read", 1e10, size=1 << 21)], memory=2e10)
    assert rates["memory", "read"] == 2e10


def test_a_kept_level_that_reads_slower_than_a_farther_one_is_probed_again():
    rates, calls = probed([*KEPT[:3], bandwidth("llc", "copy", 5e9)])
    assert ("llc", "copy") in calls
    assert rates["llc", "copy"] == 4e10


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "probes.json"


@pytest.fixture
def clock(monkeypatch):
    """The time of day as a list of one number, in seconds."""
    now = [1e9]
    monkeypatch.setattr("pydlbench.devices.probe_cache.time.time", lambda: now[0])
    return now


def test_what_is_written_is_read_by_the_same_machine_only(path):
    here, there = ProbeCache(path, "here"), ProbeCache(path, "there")
    here.write_peak("fp32", 32.0)
    here.write(KEPT[:2])
    there.write(KEPT[2:])
    here.write([bandwidth("memory", "read", 2e10)])
    here.write_peak("bf16", 64.0)
    here.write_kernel("conv", KERNEL)
    assert here.read() == (bandwidth("memory", "read", 2e10), KEPT[1])
    assert here.read_peaks() == {"fp32": 32.0, "bf16": 64.0}
    assert here.read_kernel("conv") == KERNEL
    assert (there.read(), there.read_peaks(), there.read_kernel("conv")) == (KEPT[2:], {}, None)
    here.write_kernel("conv", None)
    assert here.read_kernel("conv") is None


def test_the_file_is_parsed_once_until_somebody_else_has_written_it(path, monkeypatch):
    ProbeCache(path, "here").write_kernel("conv", KERNEL)
    parsed = []
    decode = msgspec.json.decode

    def counted(text):
        parsed.append(text)
        return decode(text)

    kept = ProbeCache(path, "here")
    monkeypatch.setattr("pydlbench.devices.probe_cache.msgspec.json.decode", counted)
    assert [kept.read_kernel("conv") for _ in range(2)] == [KERNEL] * 2
    assert len(parsed) == 1
    other = dataclasses.replace(KERNEL, variant="c")
    ProbeCache(path, "here").write_kernel("conv", other)
    parsed.clear()
    assert [kept.read_kernel("conv") for _ in range(2)] == [other] * 2
    assert len(parsed) == 1


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{", json.dumps({"version": 0}), json.dumps({"version": 2, "machines": []})),
        json.dumps({"version": 2, "machines": {"here": [{"level": "memory"}]}}),
        json.dumps({"version": 2, "machines": {}, "kernels": {"here": {"conv": {"variant": 1}}}}),
    ],
)
def test_a_damaged_file_is_no_file(path, text):
    path.parent.mkdir()
    path.write_text(text)
    kept = ProbeCache(path, "here")
    assert (kept.read(), kept.read_peaks(), kept.read_kernel("conv")) == ((), {}, None)
    kept.write(KEPT)
    assert kept.read() == KEPT


@pytest.mark.parametrize("rate", [0, -1.0, float("inf"), float("nan"), "fast", None])
def test_a_rate_that_is_none_is_probed_anew(path, rate):
    ProbeCache(path, "here").write(KEPT)
    document = json.loads(path.read_text())
    document["machines"]["here"]["bandwidths"][0]["bytes_per_s"] = rate
    path.write_text(json.dumps(document))
    assert ProbeCache(path, "here").read() == ()


def test_a_part_that_is_older_than_a_day_costs_all_of_it(path, clock):
    kept = ProbeCache(path, "here")
    kept.write(KEPT)
    clock[0] += 23 * 3600
    assert kept.read() == KEPT
    kept.write(KEPT[:1])
    clock[0] += 2 * 3600
    assert kept.read() == ()


def test_readings_of_everything_begin_a_new_day(path, clock):
    kept = ProbeCache(path, "here")
    for _ in range(2):
        kept.write(KEPT)
        clock[0] += 23 * 3600
    assert kept.read() == KEPT


@pytest.mark.parametrize("name", ["taken", "file/probes.json", None])
def test_where_nothing_can_be_written_nothing_is_kept(tmp_path, name):
    (tmp_path / "taken").mkdir()
    (tmp_path / "file").touch()
    kept = ProbeCache(None if name is None else tmp_path / name, "here")
    kept.write(KEPT)
    kept.write_peak("fp32", 1.0)
    kept.write_burst(63.5)
    kept.write_kernel("conv", KERNEL)
    assert (kept.read(), kept.read_peaks(), kept.read_burst()) == ((), {}, 0)
    assert kept.read_kernel("conv") is None
    assert {item.name for item in tmp_path.iterdir()} == {"taken", "file"}


def test_the_file_can_be_named_or_left_out(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "own.json"))
    assert probe_cache_path() == tmp_path / "own.json"
    monkeypatch.setenv(VARIABLE, "none")
    assert probe_cache_path() is None


def test_processes_share_the_best_burst_of_a_day(path, clock):
    ProbeCache(path, "bandwidths").write(KEPT)
    first, second = ProbeCache(path, "bursts"), ProbeCache(path, "bursts")
    assert second.read_burst() == 0
    first.write_burst(63.5)
    assert second.read_burst() == 63.5
    assert ProbeCache(path, "bandwidths").read() == KEPT
    assert ProbeCache(path, "another").read_burst() == 0
    clock[0] += 25 * 3600
    assert second.read_burst() == 0
