"""Bandwidths that are kept between runs: believed where a reading agrees, probed anew elsewhere."""

import json
import time

import pytest

from pydlbench.devices.bandwidths import probe_levels
from pydlbench.devices.findings import Bandwidth
from pydlbench.devices.kept import AGREES, VARIABLE, Kept, KeptKernel, kept_path

SIZES = {"memory": 1 << 20, "llc": 1 << 16}
PATTERNS = ("read", "copy")


def bandwidth(level, pattern, rate, size=None):
    return Bandwidth(
        level=level,
        pattern=pattern,
        bytes_per_s=rate,
        median_bytes_per_s=rate,
        working_set_bytes=SIZES[level] if size is None else size,
        kernel="avx512",
    )


KEPT = tuple(
    bandwidth(level, pattern, 1e10 if level == "memory" else 4e10)
    for level in SIZES
    for pattern in PATTERNS
)


def probed(kept, memory=1e10, llc=4e10):
    """Probe a machine of these bandwidths; return what is known then, and what was asked."""
    asked = []

    def ask(level, pattern, _size):
        asked.append((level, pattern))
        rate = memory if level == "memory" else llc
        return {
            "per_second": rate,
            "median_per_second": rate,
            "clock_hz": 3e9,
            "rounds": 5,
            "kernel": "avx512",
        }

    found, _ = probe_levels((), SIZES, PATTERNS, tuple(SIZES), ask, kept)
    return {(item.level, item.pattern): item.bytes_per_s for item in found}, asked


def test_one_reading_of_each_level_is_enough_where_it_agrees():
    found, asked = probed(KEPT, memory=1.1e10, llc=3.5e10)
    kept = {(item.level, item.pattern): item.bytes_per_s for item in KEPT}
    assert found == {**kept, ("memory", "read"): 1.1e10}  # the better one of both
    assert asked == [("memory", "read"), ("llc", "read")]


@pytest.mark.parametrize("factor", [0.99 * AGREES, 1.01 / AGREES])
def test_a_level_that_disagrees_is_probed_anew(factor):
    found, asked = probed(KEPT, memory=factor * 1e10)
    assert found["memory", "copy"] == pytest.approx(factor * 1e10)
    assert found["llc", "copy"] == 4e10
    assert asked.count(("memory", "copy")) >= 1
    assert ("llc", "copy") not in asked


def test_another_working_set_is_another_reading():
    found, _ = probed([bandwidth("memory", "read", 1e10, size=1 << 21)], memory=2e10)
    assert found["memory", "read"] == 2e10


def test_what_is_written_is_read_by_the_same_machine_only(tmp_path):
    path = tmp_path / "deep" / "probes.json"
    Kept(path, "here").write(KEPT[:2])
    Kept(path, "there").write(KEPT[2:])
    Kept(path, "here").write([bandwidth("memory", "read", 2e10)])
    assert Kept(path, "here").read() == (bandwidth("memory", "read", 2e10), KEPT[1])
    assert Kept(path, "elsewhere").read() == ()


@pytest.mark.parametrize(
    "text", ["", "[]", "{", json.dumps({"version": 0}), json.dumps({"version": 1, "machines": []})]
)
def test_a_damaged_file_is_no_file(tmp_path, text):
    path = tmp_path / "probes.json"
    path.write_text(text)
    kept = Kept(path, "here")
    assert kept.read() == ()
    kept.write(KEPT)
    assert kept.read() == KEPT


def test_entries_of_another_shape_are_probed_anew(tmp_path):
    path = tmp_path / "probes.json"
    path.write_text(json.dumps({"version": 1, "machines": {"here": [{"level": "memory"}]}}))
    assert Kept(path, "here").read() == ()


def test_a_kept_level_that_reads_slower_than_a_farther_one_is_probed_again():
    slow = [
        bandwidth("llc", "copy", 5e9) if item.pattern == "copy" and item.level == "llc" else item
        for item in KEPT
    ]
    found, asked = probed(slow)
    assert ("llc", "copy") in asked
    assert found["llc", "copy"] == 4e10


def test_what_is_older_than_a_day_is_probed_anew(tmp_path, monkeypatch):
    now = [1e9]
    monkeypatch.setattr("pydlbench.devices.kept.time.time", lambda: now[0])
    kept = Kept(tmp_path / "probes.json", "here")
    kept.write(KEPT)
    now[0] += 23 * 3600
    assert kept.read() == KEPT
    now[0] += 2 * 3600
    assert kept.read() == ()


def test_readings_of_everything_begin_a_new_day(tmp_path, monkeypatch):
    now = [1e9]
    monkeypatch.setattr("pydlbench.devices.kept.time.time", lambda: now[0])
    kept = Kept(tmp_path / "probes.json", "here")
    kept.write(KEPT)
    now[0] += 23 * 3600
    kept.write(KEPT[:1])
    now[0] += 2 * 3600
    assert kept.read() == ()
    kept.write(KEPT)
    now[0] += 23 * 3600
    kept.write(KEPT)
    now[0] += 2 * 3600
    assert kept.read() == KEPT


@pytest.mark.parametrize("rate", [0, -1.0, float("inf"), float("nan"), "fast", None])
def test_a_rate_that_is_none_is_probed_anew(tmp_path, rate):
    path = tmp_path / "probes.json"
    Kept(path, "here").write(KEPT)
    document = json.loads(path.read_text())
    document["machines"]["here"]["bandwidths"][0]["bytes_per_s"] = rate
    path.write_text(json.dumps(document))
    assert Kept(path, "here").read() == ()


def test_nothing_is_left_behind_where_the_file_cannot_be_replaced(tmp_path):
    (tmp_path / "probes.json").mkdir()
    Kept(tmp_path / "probes.json", "here").write(KEPT)
    assert [one.name for one in tmp_path.iterdir()] == ["probes.json"]


def test_a_folder_that_cannot_be_written_costs_nothing_else(tmp_path):
    (tmp_path / "file").write_text("")
    Kept(tmp_path / "file" / "probes.json", "here").write(KEPT)
    Kept(None, "here").write(KEPT)


def test_the_file_can_be_named_or_left_out(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "own.json"))
    assert kept_path() == tmp_path / "own.json"
    monkeypatch.setenv(VARIABLE, "none")
    assert kept_path() is None


def test_processes_share_the_best_burst_of_a_day(tmp_path, monkeypatch):
    path = tmp_path / "probes.json"
    Kept(path, "bandwidths").write(KEPT)
    one, other = Kept(path, "bursts"), Kept(path, "bursts")
    assert other.read_burst() == 0
    one.write_burst(63.5)
    assert other.read_burst() == 63.5
    assert len(Kept(path, "bandwidths").read()) == len(KEPT)
    assert Kept(path, "another").read_burst() == Kept(None, "bursts").read_burst() == 0
    tomorrow = time.time() + 25 * 3600
    monkeypatch.setattr("time.time", lambda: tomorrow)
    assert other.read_burst() == 0


def test_peaks_and_kernels_are_kept_beside_bandwidths(tmp_path):
    path = tmp_path / "probes.json"
    kept, kernel = Kept(path, "here"), KeptKernel(variant="a", rival="b", seconds=1.0, scatter=None)
    kept.write_peak("fp32", 32.0)
    kept.write(KEPT)
    kept.write_peak("bf16", 64.0)
    kept.write_kernel("conv", kernel)
    assert kept.read() == KEPT
    assert kept.read_peaks() == {"fp32": 32.0, "bf16": 64.0}
    assert kept.read_kernel("conv") == kernel
    other = Kept(path, "there")
    assert (other.read_peaks(), other.read_kernel("conv")) == ({}, None)
    kept.write_kernel("conv", None)
    assert kept.read_kernel("conv") is None


def test_without_a_file_or_with_a_damaged_one_nothing_is_kept(tmp_path):
    nothing = Kept(None, "here")
    nothing.write_peak("fp32", 1.0)
    nothing.write_kernel("conv", KeptKernel(variant="a", rival=None, seconds=1.0, scatter=0.1))
    assert (nothing.read_peaks(), nothing.read_kernel("conv")) == ({}, None)
    path = tmp_path / "probes.json"
    path.write_text(
        json.dumps({"version": 2, "machines": {}, "kernels": {"here": {"conv": {"variant": 1}}}})
    )
    assert Kept(path, "here").read_kernel("conv") is None
