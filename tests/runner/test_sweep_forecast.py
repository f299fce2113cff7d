"""The time of a sweep before it runs: wider than the truth, narrower where something is known."""

from __future__ import annotations

import pytest

from pydlbench.models.catalog import find_layers
from pydlbench.records.specs import KernelSpec
from pydlbench.runner.sweep import Job, Row
from pydlbench.runner.sweep_forecast import Forecast, Limits, layer_key, step_key

LIMITS = Limits(flops_per_s={"fp32": 1e11}, bytes_per_s=1e10)
(CONV3,) = find_layers(["conv3"])
CASE = KernelSpec(layer=CONV3)


def job(kind="layers", cases=(CASE,), **options):
    rows = tuple(Row(fields={"model": "m", "batch": "1"}, label="x", case=one) for one in cases)
    return Job(kind=kind, table=1, place="", words=(), rows=rows, options=options)


def forecast(layers=None, steps=None, kernels=(CASE, CASE)):
    return Forecast(
        lambda *_: LIMITS, 2, layers or {}, steps or {}, lambda _: kernels, lambda _: (1e9, 1e6)
    )


def test_limits_take_the_slower_of_arithmetic_and_memory():
    assert LIMITS.seconds(1e11, 1.0, "fp32") == pytest.approx(1.0)
    assert LIMITS.seconds(1.0, 1e10, "fp32") == pytest.approx(1.0)
    assert LIMITS.seconds(1e11, 1.0, "bf16") == pytest.approx(1.0)


def test_without_earlier_runs_it_says_so():
    found = forecast()
    span = found.job(job(budget_s=1.0))
    assert 0 < span.low < span.high
    assert "nothing of it was measured here before" in found.source()


def test_an_earlier_time_narrows_the_interval_and_is_named():
    known = {layer_key(CASE, 2): 0.3}
    wide, narrow = forecast().job(job(budget_s=1.0)), forecast(known).job(job(budget_s=1.0))
    assert narrow.high - narrow.low < wide.high - wide.low
    found = forecast(known)
    found.job(job(budget_s=1.0))
    assert found.source() == "from earlier measurements on this machine"
    found.job(job(budget_s=1.0, threads=1))  # of another number of threads nothing is known
    assert found.source().startswith("1 of 2 kernels")


def test_more_rows_and_larger_budgets_take_longer():
    once = forecast().job(job(budget_s=1.0))
    assert forecast().job(job(cases=(CASE, CASE), budget_s=1.0)).high > once.high
    assert forecast().job(job(budget_s=9.0)).high == pytest.approx(once.high + 8.0)


def test_the_kernels_of_a_model_take_less_than_as_many_rows_of_layers():
    layers = forecast().job(job(cases=(CASE, CASE), budget_s=0.25))
    model = forecast().job(job("model", budget_s=0.25))
    assert model.low < layers.low
    assert model.high < layers.high
    empty = forecast().job(job(cases=(), budget_s=0.25))
    assert model.low > empty.low
    assert model.high > empty.high


def test_steps_are_known_by_what_they_are():
    fields = {"model": "m", "batch": "1"}
    found = forecast(steps={step_key(fields, 2): 2.0})
    span = found.job(job("e2e", budget_s=10.0))
    assert found.known == found.asked == 1
    assert span.low >= 2.0 * 10


@pytest.mark.parametrize(
    ("fields", "threads"),
    [
        ({}, 1),
        ({"option": "classes=12"}, 2),
        ({"layout": "nchw"}, 2),
        ({"device": "cuda:0"}, None),
    ],
)
def test_of_another_variant_or_number_of_threads_no_step_is_known(fields, threads):
    plain = {"model": "m", "batch": "1"}
    found = forecast(steps={step_key({**plain, **fields}, threads): 2.0})
    found.job(job("e2e", budget_s=10.0))
    assert (found.known, found.asked) == (0, 1)
