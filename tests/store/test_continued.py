"""The record of a resumed run merges those of both attempts."""

import pytest

from pydlbench.store.resume import merge_records

FP32 = {"precision": "fp32", "measured_flops_per_s": 1e12, "reason": None}
BF16 = {"precision": "bf16", "measured_flops_per_s": 2e12, "reason": None}
READ = {"level": "memory", "pattern": "read", "bytes_per_s": 1e10}
COPY = {"level": "memory", "pattern": "copy", "bytes_per_s": 2e10}


def cpu(threads=2, **probed):
    bare = {"kind": "cpu", "threads": threads, "peaks": [], "bandwidths": [], "launch_s": None}
    return {**bare, "libraries": {}, **probed}


LOST = {"precision": "fp32", "measured_flops_per_s": None, "reason": "no worker"}


@pytest.mark.parametrize(
    ("before", "now", "joined"),
    [
        # A probe that could not run does not undo the one that did.
        (cpu(peaks=[FP32]), cpu(peaks=[LOST]), cpu(peaks=[FP32])),
        (cpu(), {}, cpu()),
        ({}, cpu(), cpu()),
    ],
    ids=["lost", "none now", "none before"],
)
def test_what_is_known_of_a_device_stays(run_of, before, now, joined):
    assert merge_records(run_of(device=before), run_of(device=now)).device == joined


def test_identity_is_the_first_ones_and_environments_are_joined(run_of):
    before = run_of(
        command=("pydlbench", "layers"), environment={"packages": {"a": "1"}, "os": "x"}
    )
    environment = {"packages": {"b": "2"}, "os": "x"}
    again = run_of(1, command=("pydlbench", "layers", "--resume"), environment=environment)
    joined = merge_records(before, again)
    assert (joined.id, joined.command) == (before.id, before.command)
    assert joined.environment == {"packages": {"a": "1", "b": "2"}, "os": "x"}


def test_probes_of_both_are_there_and_the_later_counts(run_of):
    before = cpu(peaks=[FP32], bandwidths=[READ], launch_s=1e-6, libraries={"oneDNN": "3"})
    faster = {**FP32, "measured_flops_per_s": 3e12}
    now = cpu(peaks=[faster, BF16], bandwidths=[COPY])
    device = merge_records(run_of(device=before), run_of(device=now)).device
    assert device["peaks"] == [faster, BF16]
    assert device["bandwidths"] == [READ, COPY]
    assert device["launch_s"] == 1e-6
    assert device["libraries"] == {"oneDNN": "3"}
    assert "by_threads" not in device


def test_what_was_probed_goes_before_what_was_only_looked_at(run_of):
    pair = run_of(device=cpu(2)), run_of(device=cpu(1, peaks=[FP32]))
    assert merge_records(*pair).device["threads"] == 1


def test_other_numbers_of_threads_stand_beside_each_other(run_of):
    pair = run_of(device=cpu(1, peaks=[FP32])), run_of(device=cpu(2, peaks=[BF16]))
    device = merge_records(*pair).device
    assert device["threads"] == 2
    assert {name: item["peaks"] for name, item in device["by_threads"].items()} == {
        "1": [FP32],
        "2": [BF16],
    }
    third = merge_records(run_of(device=device), run_of(device=cpu(1, peaks=[BF16]))).device
    assert third["by_threads"]["1"]["peaks"] == [FP32, BF16]
    assert third["by_threads"]["2"]["peaks"] == third["peaks"] == [BF16]


def test_a_gpu_has_the_host_beside_it(run_of):
    card = {"kind": "cuda", "name": "card", "peaks": [BF16], "host": cpu(peaks=[])}
    host = cpu(peaks=[FP32])
    for pair in ((host, card), (card, host)):
        device = merge_records(*(run_of(device=device) for device in pair)).device
        assert (device["kind"], device["peaks"]) == ("cuda", [BF16])
        assert device["host"]["peaks"] == [FP32]
    both = merge_records(run_of(device=card), run_of(device={**card, "host": host})).device
    assert both["host"]["peaks"] == [FP32]
