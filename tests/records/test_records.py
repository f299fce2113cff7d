import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydlbench.records.measurement import Measurement, Peaks, TimeSummary, time_summary
from pydlbench.records.step import StepRecord, StepSpec


def test_round_trip_through_json_text(measurement, without_time):
    row = measurement(
        reorder_s={"weights": 1e-3},
        candidates=({"algorithm": "jit", "status": "ok", "time_s": {"median": 1.0}},),
        samples_s=(0.05, 0.051),
        warnings=("no governor",),
        peak=Peaks(),
        stop_rule="rounds",
        inner=3,
        cycles=2.1e8,
    )
    skipped = without_time("skipped", "no AVX512-FP16")
    for written in (row, skipped):
        assert Measurement.from_dict(json.loads(json.dumps(written.to_dict()))) == written
    assert not skipped.ok
    assert not {"candidates", "samples_s"} & set(measurement().to_dict())


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
    single = msgspec.structs.replace(time, ci_low=None, ci_high=None, n=1)
    assert (single.half_width, single.iqr) == (None, None)


@pytest.mark.parametrize(
    ("count", "p90", "p99"), [(9, None, None), (10, 9, None), (99, 90, None), (100, 90, 99)]
)
def test_percentiles_need_enough_samples_for_one_above_them(count, p90, p99):
    found = time_summary([float(one) for one in range(count, 0, -1)])
    assert (found.p90, found.p99) == (p90, p99)
