"""The acceptance run's targets and report, on invented journals."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from pydlbench.records.measurement import Correctness

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TARGETS = {
    "tests": "the gpu tests pass",
    "bandwidth": "device memory delivers at least 4.2 TB/s",
    "fma": "the fp32 FMA probe reaches 95% of theoretical at the measured clock",
    "gemm": "8192^3 bf16-tc runs at 770 TFLOP/s at least",
    "worst": "no native/torch interval lies wholly above 1.02",
    "mean": "the geometric mean of native/torch is at most 1",
    "repeat": "two runs agree within 1% in cycles for 95% of the rows",
    "rows": "no row failed",
}


@pytest.fixture
def judge(script: Callable[[str], Any], tmp_path: Path) -> Callable[..., Any]:
    """Return the verdicts on an invented journal, by short name."""

    def verdicts(entries: dict[str, dict[str, Any]]) -> dict[str, Any]:
        journal = script("acceptance.journal").Journal(tmp_path / "a.jsonl")
        for name, entry in entries.items():
            journal.add(name, entry)
        found = {one.target: one for one in script("acceptance.verdicts").verdicts(journal)}
        assert set(found) == set(TARGETS.values())
        return {name: found[target] for name, target in TARGETS.items()}

    return verdicts


def device(bandwidth: float = 4.3e12, measured: float | None = 60e12) -> dict[str, Any]:
    return {
        "device": {
            "bandwidths": [
                {"level": "l2", "pattern": "read", "bytes_per_s": 9e12},
                {"level": "memory", "pattern": "copy", "bytes_per_s": bandwidth},
                {"level": "memory", "pattern": "write", "bytes_per_s": 1e12},
            ],
            "peaks": [
                {"precision": "bf16-tc", "measured_flops_per_s": 8e14, "theoretical": None},
                {
                    "precision": "fp32",
                    "measured_flops_per_s": measured,
                    "theoretical": {"flops_per_s": 62e12},
                },
            ],
        }
    }


def ratio(value: float, low: float | None, high: float | None) -> dict[str, Any]:
    return {
        "status": "ok",
        "ratio": value,
        "low": low,
        "high": high,
        "native_s": 1e-3,
        "torch_s": 1e-3 / value,
        "torch_format": "nhwc",
        "algorithm": "engine 7",
    }


def row(cycles: float | None = 1e6, status: str = "ok", tflops: float | None = 800.0):
    return {"measurement": {"status": status, "cycles": cycles, "tflops": tflops}}


def test_nothing_measured_is_open_and_never_met(judge):
    assert {one.met for one in judge({}).values()} == {None}
    assert {one.found for one in judge({}).values()} == {"not measured"}


def test_everything_as_it_should_be(judge):
    found = judge(
        {
            "tests tests/a.py": {"exit_code": 0, "counts": {"passed": 9, "skipped": 1}},
            "tests tests/b.py fp8-tc": {"exit_code": 5, "counts": {}},
            "device": device(),
            "gemm bf16-tc": row(),
            "torch a": ratio(0.9, 0.89, 0.91),
            "torch b": ratio(1.05, 1.01, 1.09),
            "torch c": {"status": "skipped", "reason": "no plan"},
            "layers a": row(),
            "repeat a": row(1.009e6),
            "layers b": row(None, "skipped", None),
        }
    )
    assert {name: one.met for name, one in found.items()} == dict.fromkeys(TARGETS, True)
    assert found["tests"].found == "9 passed, 1 skipped"
    assert found["bandwidth"].found == "copy 4.30 TB/s"
    assert found["mean"].found == "0.972 over 2 rows"
    assert found["worst"].found == "0 of 2 rows with an interval"
    assert found["repeat"].found == "100.0% of 1 rows, worst 0.9%"
    assert found["rows"].found == "0 of 4 failed, 1 skipped"


@pytest.mark.parametrize(
    ("name", "entries", "said"),
    [
        ("tests", {"tests a": {"exit_code": 1, "counts": {"passed": 3, "failed": 1}}}, "1 failed"),
        ("tests", {"tests a": {"exit_code": 0, "counts": {"skipped": 3}}}, "3 skipped"),
        ("tests", {"tests a": {"exit_code": 5, "counts": {}}}, "nothing ran"),
        ("tests", {"tests a": {"error": "gave no answer for 420 s"}}, "not passed: a"),
        ("bandwidth", {"device": device(bandwidth=4.1e12)}, "copy 4.10 TB/s"),
        ("fma", {"device": device(measured=55e12)}, "88.7%"),
        ("gemm", {"gemm bf16-tc": row(tflops=769.0)}, "769 TFLOP/s"),
        ("worst", {"torch slow": ratio(1.1, 1.03, 1.2)}, "1 of 1 rows with an interval: slow"),
        ("mean", {"torch a": ratio(1.1, 0.9, 1.2)}, "1.100 over 1 rows"),
        ("repeat", {"layers a": row(1e6), "repeat a": row(1.02e6)}, "0.0% of 1 rows, worst 2.0%"),
        ("rows", {"layers a": row(None, "failed", None)}, "1 of 1 failed, 0 skipped: layers a"),
        ("rows", {"torch a": {"error": "WorkerError: it died"}}, "1 of 1 failed"),
    ],
)
def test_a_target_that_is_missed(judge, name, entries, said):
    verdict = judge(entries)[name]
    assert verdict.met is False
    assert said in verdict.found


@pytest.mark.parametrize(
    ("name", "entries"),
    [
        ("bandwidth", {"device": {"error": "WorkerError: it died"}}),
        ("bandwidth", {"device": {"device": {"bandwidths": [], "peaks": []}}}),
        ("fma", {"device": device(measured=None)}),
        ("gemm", {"gemm bf16-tc": {"error": "out of memory"}}),
        ("gemm", {"gemm fp32": row()}),
        ("worst", {"torch a": {"status": "skipped", "reason": "no plan"}}),
        ("worst", {"torch a": ratio(1.1, None, None)}),
        ("repeat", {"layers a": row()}),
        ("repeat", {"layers a": row(), "repeat b": row()}),
        ("repeat", {"layers a": row(None), "repeat a": row(None)}),
        ("rows", {"device": device()}),
    ],
)
def test_what_cannot_be_told_is_open(judge, name, entries):
    assert judge(entries)[name].met is None


def test_absolute_targets_are_those_of_one_card(judge):
    found = judge(
        {"machine 1": {"name": "NVIDIA L40S"}, "device": device(9e11)}
        | {"gemm bf16-tc": row(tflops=200.0)}
    )
    assert found["bandwidth"].met is found["gemm"].met is None
    assert found["gemm"].found == "200 TFLOP/s (the target is an H200's, this is NVIDIA L40S)"
    assert found["fma"].met is True
    known = judge({"machine 2": {"name": "NVIDIA H200"}})
    assert known["gemm"].met is False


def test_repeated_rows_may_differ_in_one_of_twenty(judge):
    entries = {f"layers {i}": row(1e6) for i in range(20)}
    entries |= {f"repeat {i}": row(1.1e6 if i == 7 else 1.001e6) for i in range(20)}
    assert judge(entries)["repeat"].met is True
    assert judge({"repeat 8": row(1.1e6)} | {})["repeat"].met is False


def test_the_report_shows_every_table(script, tmp_path, measurement, without_time):
    journal = script("acceptance.journal").Journal(tmp_path / "a.jsonl")
    good = dataclasses.replace(
        measurement(), clock_hz=1.7e9, correct=Correctness(status="ok", rel_error=1e-7)
    )
    journal.add("gemm fp32", {"measurement": good.to_dict()})
    journal.add("layers conv3 forward fp32 hot", {"measurement": good.to_dict()})
    lost = without_time("skipped", "fp8-tc is for GEMM")
    journal.add("layers conv3 forward fp8-tc hot", {"measurement": lost.to_dict()})
    journal.add("repeat conv3 forward fp32 hot", {"measurement": good.to_dict()})
    journal.add("torch conv3 forward fp32 hot", ratio(0.9, 0.8, 1.0))
    journal.add("torch pool forward fp32 hot", {"status": "skipped", "reason": "uneven"})
    journal.add("layers conv4 forward fp32 hot", {"error": "WorkerError: a | b"})
    names = [*journal.entries(), "layers conv5 forward fp32 hot"]
    report = script("acceptance.report")
    text = report.markdown(journal, {"name": "Invented 200", "driver": "13.0"}, names)
    assert text.startswith("# Invented 200\n\n- driver: 13.0\n\n7 of 8 tasks are finished.\n")
    for title in ("Targets", "Matrix products", "Layers", "Layers, second run"):
        assert f"\n## {title}\n" in text
    lines = text.splitlines()
    (line,) = [one for one in lines if one.startswith("| conv3 forward fp32 hot | 1.00 ms")]
    assert "| nhwc | 0.900 | 0.800 to 1.000 | engine 7 |" in line
    (line,) = [one for one in lines if one.startswith("| conv3 forward fp8-tc hot")]
    assert line.endswith("fp8-tc is for GEMM |")
    assert r"| layers conv4 forward fp32 hot | WorkerError: a \| b |" in text
    tables = [line for line in lines if line.startswith("|")]
    assert all(line.endswith("|") for line in tables)
    document = report.document(journal, {"name": "Invented 200"}, names)
    assert document["open"] == ["layers conv5 forward fp32 hot"]
    assert len(document["tasks"]) == 7
    assert len(document["verdicts"]) == len(TARGETS)
