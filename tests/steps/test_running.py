"""Steps of named models in their workers, timed in turn."""

from __future__ import annotations

import importlib.util
import json

import pytest

from pydlbench.errors import UsageError
from pydlbench.records.step import StepRecord, StepSpec
from pydlbench.runner.session import Options, Session
from pydlbench.steps.agreement import agree
from pydlbench.steps.run import run, run_in_turn

QUICK = Options(budget_s=0.02, seed=3)
pytestmark = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("torch", "tensorflow")),
    reason="needs torch and tensorflow",
)


@pytest.fixture(scope="module")
def session():
    with Session(QUICK) as session:
        yield session


@pytest.mark.parametrize("name", ["mnist", pytest.param("cifar10", marks=pytest.mark.deep)])
def test_tutorials_agree(session, name):
    found = agree(StepSpec(model=name, batch=2, phase="training"), session)
    assert found.output < 1e-4
    assert found.gradients is not None
    assert found.gradients < 1e-4
    assert found.floor is None


def test_records_have_times_and_checks(session):
    cases = [
        StepSpec(model="mnist", batch=2, phase="training", framework=framework)
        for framework in ("torch", "tensorflow")
    ]
    records = run_in_turn(cases, session)
    for case, record in zip(cases, records, strict=True):
        assert record.case == case
        assert record.ok, record.reason
        assert record.images_per_s == pytest.approx(2 / record.time.median)
        assert record.parameters == 1_663_370
        assert record.output == (2, 10)
        assert record.faults is not None
        assert 0 < record.busy <= 1
        assert len(record.checks) == 5
        assert record.samples_s
        assert StepRecord.from_dict(json.loads(json.dumps(record.to_dict()))) == record


def test_a_step_that_cannot_be_run_says_why(session):
    record = run(StepSpec(model="mnist", batch=2, precision="tf32"), session)
    assert record.status == "skipped"
    assert "tf32" in record.reason
    assert StepRecord.from_dict(json.loads(json.dumps(record.to_dict()))) == record


def test_an_unknown_model_is_the_callers_mistake(session):
    with pytest.raises(UsageError, match="nearest: mnist"):
        run(StepSpec(model="mnits"), session)
