import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydlbench.records.measurement import Measurement, Peaks, TimeSummary, time_summary
from pydlbench.records.step import StepRecord, StepSpec

# The names that the JSON output promises.
PROMISED = [
    "layer",
    "kind",
    "problem",
    "batch",
    "pass",
    "precision",
    "accumulate",
    "device",
    "backend",
    "mode",
    "library",
    "algorithm",
    "layout",
    "cache",
    "timing",
    "status",
    "reason",
    "time_s",
    "flops",
    "flops_executed",
    "bytes",
    "tflops",
    "gbps",
    "arithmetic_intensity",
    "clock_hz",
    "peak_tflops",
    "roofline",
    "correct",
    "contended",
    "stop_reason",
]


def test_nested_names(measurement):
    data = measurement().to_dict()
    assert set(data["time_s"]) >= {"median", "ci_low", "ci_high", "q1", "q3", "min", "n"}
    assert set(data["peak_tflops"]) == {"theoretical", "measured"}
    assert set(data["roofline"]) >= {"bound", "time_s", "efficiency"}
    assert set(data["correct"]) >= {"status", "rel_error", "tolerance"}


def test_round_trip_through_json_text(measurement):
    row = measurement(
        reorder_s={"weights": 1e-3},
        candidates=({"algorithm": "jit", "status": "ok", "time_s": {"median": 1.0}},),
        samples_s=(0.05, 0.051),
        warnings=("no governor",),
        peak=Peaks(),
    )
    assert Measurement.from_dict(json.loads(json.dumps(row.to_dict()))) == row


def test_round_trip_of_a_row_without_a_time(without_time):
    row = without_time("skipped", "no AVX512-FP16")
    assert Measurement.from_dict(row.to_dict()) == row
    assert not row.ok


def test_optional_lists_are_absent_unless_asked_for(measurement):
    data = measurement().to_dict()
    assert "candidates" not in data
    assert "samples_s" not in data


def test_unknown_names_are_ignored_and_missing_ones_named(measurement):
    data = measurement().to_dict()
    assert Measurement.from_dict({**data, "added_later": 1}) == measurement()
    del data["pass"]
    with pytest.raises(ValueError, match="pass"):
        Measurement.from_dict(data)


def test_a_null_where_a_field_has_a_default_is_no_such_field(measurement):
    data = measurement().to_dict()
    without = ("warnings", "notes", "reorder_s", "contended", "cache", "causes")
    data |= dict.fromkeys(without) | {"peak_tflops": None}
    data["correct"]["status"] = None
    row = Measurement.from_dict(data)
    assert (row.warnings, row.reorder_s, row.contended, row.cache) == ((), {}, False, "hot")
    assert (row.peak, row.correct.status) == (Peaks(), "unchecked")
    step = StepRecord(spec=StepSpec(model="mnist"), status="ok").to_dict()
    assert StepRecord.from_dict(dict.fromkeys(step) | {"model": "mnist", "status": "ok"}) == (
        StepRecord(spec=StepSpec(model="mnist"), status="ok")
    )
    with pytest.raises(ValueError, match="status"):
        Measurement.from_dict({**data, "status": None})


def test_percent_of_peak_uses_executed_flops(measurement):
    row = measurement(median=0.05)
    assert row.tflops_executed == pytest.approx(0.51521912832)
    assert row.fraction_of_peak("measured") == pytest.approx(0.51521912832 / 0.58)
    assert measurement(peak=Peaks()).fraction_of_peak("measured") is None


@given(median=st.floats(1e-9, 1e4), half=st.floats(0, 0.5))
def test_half_width_is_relative(median, half):
    time = TimeSummary(
        median=median,
        ci_low=median * (1 - half),
        ci_high=median * (1 + half),
        q1=median,
        q3=median,
        min=median,
        n=10,
    )
    assert time.half_width == pytest.approx(half, abs=1e-12)


def test_no_interval_no_half_width():
    time = TimeSummary(median=1.0, ci_low=None, ci_high=None, q1=0.9, q3=1.2, min=0.9, n=4)
    assert time.half_width is None
    assert time.iqr == pytest.approx(0.3)
    assert msgspec.structs.replace(time, n=1).iqr is None


def test_how_it_was_sampled_reaches_json_and_back(measurement):
    given = {"stop_rule": "rounds", "inner": 3, "cycles": 2.1e8}
    row = measurement(**given)
    assert {name: row.to_dict()[name] for name in given} == given
    assert Measurement.from_dict(row.to_dict()) == row
    assert [measurement().to_dict()[name] for name in given] == [None] * 3


@pytest.mark.parametrize(
    ("count", "p90", "p99"), [(9, None, None), (10, 9, None), (99, 90, None), (100, 90, 99)]
)
def test_percentiles_need_enough_samples_for_one_above_them(count, p90, p99):
    found = time_summary([float(one) for one in range(count, 0, -1)])
    assert (found.p90, found.p99) == (p90, p99)
