"""A real check of the smallest model, in both frameworks."""

from __future__ import annotations

import importlib.util
import json
import math

import pytest

from pydlbench.api import check
from pydlbench.ladder.native import measure_native
from pydlbench.models import build_model
from pydlbench.records.check import CheckRecord
from pydlbench.runner.session import Options, Session


@pytest.fixture(scope="module")
def session():
    # As the command opens it, but for the one thread: others run tests on the other CPUs.
    with Session(Options(budget_s=0.01, threads=1, estimate=True)) as made:
        yield made


@pytest.fixture(scope="module")
def native(session):
    """The native rows of each phase, measured once."""
    found = {}

    def get(phase):
        if phase not in found:
            found[phase] = measure_native(build_model("mnist", 4), phase, "fp32", session)
        return found[phase]

    return get


# Seconds each: the shortest stands for the others in the default set.
@pytest.mark.parametrize(
    ("framework", "phase"),
    [
        ("torch", "forward"),
        pytest.param("torch", "training", marks=pytest.mark.deep),
        pytest.param("tensorflow", "forward", marks=pytest.mark.deep),
        pytest.param("tensorflow", "training", marks=pytest.mark.deep),
    ],
)
def test_a_tiny_check_closes_its_ledger(session, native, framework, phase):
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    told = []
    found = check(
        "mnist",
        {},
        4,
        phase,
        framework=framework,
        session=session,
        rounds=5,
        time_limit_s=1.0,
        native=native(phase),
        tell=told.append,
    )
    assert found.estimate_s > 0
    assert found.estimate_native_s > 0
    assert found.measured.median > 0
    assert len(found.rounds) == found.measured.n == 5
    assert math.isclose(sum(one.seconds for one in found.ledger), found.measured.median)
    names = [one.term for one in found.ledger]
    assert names[:2] == ["layers at their roof", "above the roof, native"]
    assert names[-1] == "unexplained"
    assert ("optimizer" in names) == (phase == "training")
    for one in found.rounds:
        assert one.estimate_s == one.operators_s + one.faults_s
        assert one.measured_s > 0
    assert sum(one.seconds for one in found.operators) > 0
    assert all(one.seconds >= 0 and one.count >= 1 for one in found.operators)
    assert told.index("operators") < told.index("step") < told.index("round 1")
    stored = json.loads(json.dumps(found.to_dict()))
    assert CheckRecord.from_dict(stored) == found
    assert {"estimate_s", "estimate_native_s", "measured_s", "error", "ledger"} <= stored.keys()


@pytest.mark.deep
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_what_comes_from_the_host_has_an_operator_and_an_experiment(session, native, framework):
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    layout = "nchw" if framework == "torch" else "nhwc"
    found = check(
        "mnist",
        {},
        4,
        framework=framework,
        session=session,
        rounds=5,
        time_limit_s=1.0,
        native=native("forward"),
        layout=layout,
        feed="host",
    )
    assert (found.layout, found.feed) == (layout, "host")
    assert [one.kind for one in found.operators].count("feed") == 1
    assert all(one.resident_s is not None for one in found.rounds)
    (term,) = [one for one in found.ledger if one.term == "host transfer"]
    assert "fed from the host" in term.how
    assert math.isclose(sum(one.seconds for one in found.ledger), found.measured.median)
    assert CheckRecord.from_dict(json.loads(json.dumps(found.to_dict()))) == found
