"""The commands on a GPU, from the command line to JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from pydlbench.cli import main
from pydlbench.words import FP8_PRECISIONS, GPU_PRECISIONS, PASSES

pytestmark = pytest.mark.gpu

_CONV3 = ("layers", "--shape", "conv3", "--batch", "8", "--device", "cuda:0", "--quiet")


@pytest.fixture
def run(capsys):
    """Run a command that prints JSON and return what it printed."""

    def call(*words: str) -> Any:
        assert main([*words, "--json", "-"]) == 0
        return json.loads(capsys.readouterr().out)

    return call


def _plausible(row: dict[str, Any]) -> None:
    assert row["time_s"]["median"] > 0
    assert row["time_s"]["n"] >= 3
    assert row["correct"]["status"] == "ok"
    assert 0 <= row["correct"]["rel_error"] <= row["correct"]["tolerance"]
    assert row["device"] == "cuda:0"
    assert row["threads"] is None
    assert row["clock_hz"] > 1e8
    assert row["cycles"] == pytest.approx(row["time_s"]["median"] * row["clock_hz"])
    assert row["peak_tflops"]["measured"] > 0
    assert row["roofline"]["bound"] in ("compute", "memory", "launch")
    assert row["roofline"]["efficiency"] > 0
    assert {"event", "graph", "host"} <= set(row["launch_s"])
    assert all(seconds > 0 for seconds in row["launch_s"].values())
    assert row["algorithm"]
    assert row["library"]


def test_conv3_in_all_modes_and_passes(run):
    document = run(*_CONV3, "--precision", "all", "--pass", "all", "--budget", "0.2")
    rows = document["measurements"]
    assert len(rows) == len(GPU_PRECISIONS) * len(PASSES)
    for row in rows:
        assert row["status"] in ("ok", "skipped"), row["reason"]
        if row["status"] == "skipped":
            assert row["reason"]
            assert row["time_s"] is None
        else:
            _plausible(row)
            assert row["tensor_cores"] is (row["precision"] not in ("fp32", "fp16"))
            assert row["timing"] == "cuda-graph"
    ok = {(row["precision"], row["pass"]) for row in rows if row["status"] == "ok"}
    assert {("fp32", pass_) for pass_ in PASSES} <= ok
    # cuDNN's convolutions have no fp8 here.
    assert not [precision for precision, _ in ok if precision in FP8_PRECISIONS]
    device = document["run"]["device"]
    assert device["kind"] == "cuda"
    assert device["facts"]["l2_bytes"] > 0
    assert device["host"]["name"]


@pytest.mark.parametrize("cache", ["weights-cold", "all-cold"])
def test_cold_rows_are_taken_on_events(run, cache):
    (row,) = run(*_CONV3, "--cache", cache, "--budget", "0.2")["measurements"]
    _plausible(row)
    assert (row["cache"], row["timing"]) == (cache, "events")
    assert row["inner"] == 1


def test_algorithms_are_listed_with_what_became_of_them(run):
    (row,) = run(*_CONV3, "--algorithms", "--budget", "0.2")["measurements"]
    candidates = row["candidates"]
    assert len(candidates) > 1
    (chosen,) = [one for one in candidates if one["chosen"]]
    assert (chosen["algorithm"], chosen["layout"]) == (row["algorithm"], row["layout"])
    for one in candidates:
        assert one["workspace_bytes"] >= 0
        if one["status"] == "ok":
            assert one["time_s"]["median"] > 0
            assert one["setup_s"] >= 0
            assert one["correct"]["status"] == "ok"
        else:
            assert one["reason"]


def test_energy_is_measured_where_the_card_counts_it(run):
    (row,) = run(*_CONV3, "--energy", "--budget", "0.2")["measurements"]
    if row["energy_j"] is None:
        pytest.skip("this card, or NVML here, does not count energy")
    assert row["energy_j"] > 0
    assert 5 < row["power_w"] < 3000
    # Over the seconds of an execution, the power is that of the card.
    assert row["energy_j"] / row["time_s"]["median"] == pytest.approx(row["power_w"], rel=0.5)


def test_bias_and_relu_are_fused(run):
    (row,) = run(*_CONV3, "--fuse", "bias-relu", "--budget", "0.2")["measurements"]
    _plausible(row)
    assert row["fuse"] == "bias-relu"


def test_other_kinds_of_layers(run):
    shapes = ("mb8ic16ih28kh2sh2", "64x128:128x96", "relu:mb8ic64ih14", "batchnorm:mb8ic64ih14")
    words = (
        "layers",
        "--shape",
        ",".join(shapes),
        "--device",
        "cuda:0",
        "--quiet",
        "--budget",
        "0.1",
    )
    rows = run(*words, "--pool", "max")["measurements"]
    assert [row["kind"] for row in rows] == ["pool2d", "gemm", "pointwise", "pointwise"]
    for row in rows:
        assert row["status"] == "ok", row["reason"]
        _plausible(row)


def test_the_table_is_for_people(capsys):
    assert main([*_CONV3, "--budget", "0.2"]) == 0
    text = capsys.readouterr().out
    assert "conv3" in text
    assert "fp32" in text


def test_the_device_has_peaks_and_bandwidths(run):
    document = run("device", "--device", "cuda:0")
    device = document["device"]
    peaks = {peak["precision"]: peak for peak in device["peaks"]}
    assert set(peaks) == set(GPU_PRECISIONS)
    assert peaks["fp32"]["measured_flops_per_s"] > 0
    for peak in peaks.values():
        assert (peak["measured_flops_per_s"] is None) == bool(peak["reason"])
        if peak["theoretical"] and peak["measured_flops_per_s"]:
            share = peak["measured_flops_per_s"] / peak["theoretical"]["flops_per_s"]
            assert 0.1 < share <= 1.03, peak
    found = {(one["level"], one["pattern"]): one["bytes_per_s"] for one in device["bandwidths"]}
    assert {("memory", "read"), ("memory", "write"), ("memory", "copy")} <= set(found)
    assert all(math.isfinite(rate) and rate > 1e9 for rate in found.values())
    assert device["launch_s"] > 0


def test_a_gpu_that_is_not_there_is_one_sentence(capsys):
    assert main(["layers", "--shape", "conv3", "--device", "cuda:99", "--quiet"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.strip().splitlines()) == 1
    assert "cuda:99" in said.err
