"""A real check of the smallest model."""

import importlib.util
import json
import math

import pytest

from pydlbench.api import check
from pydlbench.ladder.estimate import plan
from pydlbench.ladder.parts import parts_of
from pydlbench.models import build_model
from pydlbench.records.check import RUNGS, CheckRecord
from pydlbench.records.forecast import ForecastRecord, Place
from pydlbench.runner.options import Options
from pydlbench.runner.session import Session

# Made up: nothing of it is summed from rows.
FORECAST = ForecastRecord(
    model="mnist",
    batch=4,
    phase="forward",
    place=Place(framework="torch", mode="eager"),
    created_utc="2030-01-02T03:04:05+00:00",
    seconds=0.5,
    ci_low=0.4,
    ci_high=0.6,
    operators_s=0.25,
    faults_s=0.25,
    calls=1,
    stored=0,
    measured=0,
    missing=0,
    terms=(),
)


@pytest.fixture(scope="module")
def session():
    # As the command opens it, but for the one thread: others run tests on the other CPUs.
    # Native rows are visited once: the check takes laps of its own.
    with Session(Options(budget_s=0.01, threads=1, visits=1, estimate=True)) as made:
        yield made


@pytest.fixture(scope="module")
def native(session):
    """The native rows of each phase, measured once."""
    found = {}

    def get(phase):
        if phase not in found:
            wanted = plan(build_model("mnist", 4), phase, cache_bytes=session.cache_bytes())
            found[phase] = dict(session.measure(wanted.cases))
        return found[phase]

    return get


def test_a_tiny_check_closes_its_ledger(session, native):
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    told = []
    found = check(
        "mnist",
        batch=4,
        framework="torch",
        session=session,
        laps=6,
        stop_after_s=1.0,
        native=native("forward"),
        forecast=lambda _: FORECAST,
        tell=told.append,
    )
    assert len(found.laps) == found.measured.n == 6
    visited = {"limit", "native", "native_hot", "native_cold", "operators", "step", "step_kept"}
    assert all(visited <= one.seconds.keys() for one in found.laps)
    # What is around logged kernels is a difference of two runs.
    times = [one for lap in found.laps for name, one in lap.seconds.items() if "around" not in name]
    assert min(times) >= 0
    sides = {"logged_reorders", "logged_convolutions"}
    if any("no layout reorders" in one for one in found.notes):  # no log, or disturbed visits
        sides = set()
    assert all(sides <= one.seconds.keys() for one in found.laps)
    assert all(one.seconds["native_convolutions"] > 0 for one in found.laps)
    # Which rungs are refused depends on what else the machine does; then that is said.
    for name in ("native_chain", "operator_chain"):
        assert all(name in one.seconds for one in found.laps) or found.reasons[name]
    known = found.rungs.known()
    assert known.keys() | found.reasons.keys() == set(RUNGS)
    assert known.keys() & found.reasons.keys() == set()
    if found.rungs.step is not None:
        total = sum(one.seconds for one in found.ledger)
        assert math.isclose(total, found.rungs.step.median)
        assert {one.kind for one in found.ledger} <= {
            *("limit", "difference", "experiment", "unexplained"),
        }
    assert (found.forecast_s, found.forecast_utc) == (0.5, FORECAST.created_utc)
    assert found.forecast_parts == {"operators": 0.25, "faults": 0.25}
    assert found.forecast_error == pytest.approx(0.5 / found.measured.median - 1)
    assert all(one.seconds >= 0 and one.count >= 1 for one in found.operators)
    assert found.unreplayed is None
    parts = {one.name: one for one in parts_of(found.operators, found.native_parts)}
    summed = sum(one.total_s for one in parts.values())
    assert summed == pytest.approx(sum(one.count * one.seconds for one in found.operators))
    assert all(parts[name].native_s > 0 for name in ("conv1", "conv2", "fc1", "fc2"))
    assert found.calibration["packing_s"] > 0
    assert told.index("operators") < told.index("step") < told.index("log")
    stored = json.loads(json.dumps(found.to_dict()))
    assert CheckRecord.from_dict(stored) == found
    assert {"rungs", "additivity_error", "measured_s", "forecast_error", "ledger"} <= stored.keys()


@pytest.mark.deep
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_what_comes_from_the_host_has_an_operator_and_an_experiment(session, native, framework):
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    layout = "nchw" if framework == "torch" else "nhwc"
    found = check(
        "mnist",
        batch=4,
        framework=framework,
        session=session,
        laps=6,
        stop_after_s=1.0,
        native=native("forward"),
        layout=layout,
        feed="host",
    )
    assert (found.layout, found.feed) == (layout, "host")
    assert [one.kind for one in found.operators].count("feed") == 1
    assert all("step_resident" in one.seconds for one in found.laps)
    assert all(one.seconds["feed"] > 0 for one in found.laps)
    assert CheckRecord.from_dict(json.loads(json.dumps(found.to_dict()))) == found
