"""Checks and forecasts on an invented GPU, whose true step is known, and errors planted in it."""

import contextlib
import dataclasses
import json
import math
import time

import pytest
from invented_gpu import MODEL, Gpu, GpuSession, Kernel, Work, Worker, convolution

from pydlbench.backends.steps import operations
from pydlbench.backends.steps.device import DeviceOperators
from pydlbench.errors import UnsupportedError
from pydlbench.ladder.check import check_step
from pydlbench.ladder.device_terms import power_notes
from pydlbench.ladder.forecast import forecast_step
from pydlbench.records.check import CheckRecord
from pydlbench.records.forecast import ForecastRecord
from pydlbench.records.operator import OperatorsFacts
from pydlbench.records.step import StepSpec
from pydlbench.runner.options import Options
from pydlbench.runner.session import Session
from pydlbench.timing.chunk import GpuReadings

CASE = StepSpec(model=MODEL, device="cuda:0")


def view(number):
    return Work(f"aten.view.default(float32[{number}]({number},), [1])", 2e-6, 0.0)


def steps(host_s, device_s):
    """Steps of thirty calls, among them views."""
    own = [convolution(8 + place % 5, host_s, device_s) for place in range(20)]
    own += [view(9)] * 10
    return {MODEL: own, "mnist": own}


BOUND = {"launch": (20e-6, 4e-6), "device": (5e-6, 60e-6), "mixed": (20e-6, 25e-6)}


@pytest.fixture(params=BOUND)
def gpu(request):
    return Gpu(steps(*BOUND[request.param]))


def launch_bound(**planted):
    return Gpu(steps(*BOUND["launch"]), **planted)


def checked(gpu, **changes):
    case = StepSpec(**{"model": MODEL, "device": "cuda:0", **changes})
    return check_step(case, GpuSession(gpu), laps=6, time_limit_s=1e-9)


def named(found):
    return {one.term: one for one in found.ledger}


def total_device_s(gpu, model=MODEL):
    return sum(one.device_s for one in gpu.steps[model])


# -----------------------------------------------------------------------------
# The ladder.


@pytest.mark.parametrize("model", [MODEL, "mnist"])
def test_the_ladder_on_a_gpu_is_the_device_s_time_and_above_it_the_host_s(gpu, model):
    found = checked(gpu, model=model)
    device_s, step_s = total_device_s(gpu), gpu.true_step_s(model)
    rungs = found.rungs
    assert rungs.operators.median == pytest.approx(device_s, rel=1e-6)
    assert rungs.operator_chain.median == pytest.approx(device_s, rel=1e-6)
    assert rungs.step.median == found.measured.median == pytest.approx(step_s, rel=0.02)
    assert named(found)["launch gaps"].kind == "experiment"
    assert named(found)["launch gaps"].seconds == pytest.approx(step_s - device_s, rel=0.02)
    assert named(found)["launch gaps"].ci_low is not None
    assert sum(one.seconds for one in found.ledger) == pytest.approx(rungs.step.median)
    assert abs(found.unexplained) < 0.01
    assert found.contradictions == ()
    assert (found.device, found.batch) == ("cuda:0", 2)
    assert found.faults == {"allocations": 0.0}


def test_without_the_cpus_module_its_process_is_not_started_for_each_reading():
    session = GpuSession(launch_bound())
    check_step(CASE, session, laps=6, time_limit_s=1e-9)
    assert session.probed == ["canary"]


def test_a_check_takes_from_when_its_native_rows_were_begun_with():
    gpu = launch_bound()
    case = StepSpec(model=MODEL, device="cuda:0")
    began = time.monotonic() - 1000
    found = check_step(case, GpuSession(gpu), laps=6, time_limit_s=1e-9, began=began)
    assert found.seconds >= 1000
    assert checked(gpu).seconds < 1000


def test_parts_add_up_to_the_makespan_and_not_to_a_sum(gpu):
    found = checked(gpu)
    bare = dataclasses.replace(gpu, besides_s=0.0, once_s=0.0)
    assert found.additivity_s == pytest.approx(bare.true_step_s(), rel=0.02)
    host_s = sum(one.count * one.enqueue_s for one in found.operators)
    own = sum(one.host_s for one in gpu.steps[MODEL])
    assert host_s == pytest.approx(own, rel=1e-6)
    assert all(lap.seconds["enqueue"] == pytest.approx(own) for lap in found.laps)


def test_a_step_is_timed_in_three_ways():
    gpu = launch_bound()
    (lap, *_) = checked(gpu).laps
    host_s = gpu.true_step_s(steps=1)
    assert lap.seconds["step"] == pytest.approx(gpu.true_step_s(), rel=0.02)
    assert lap.seconds["step_events"] == pytest.approx(host_s, rel=0.02)
    assert lap.seconds["step_enqueue"] == pytest.approx(host_s, rel=0.02)
    assert lap.seconds["step_graph"] == pytest.approx(total_device_s(gpu))
    assert lap.sm_clock_hz.keys() >= {"native", "operators", "operator_chain", "step"}


def test_a_compiled_step_has_launch_gaps_and_no_operators():
    gpu = launch_bound()
    found = checked(gpu, model="mnist", mode="compiled")
    assert "as the real one says" in found.reasons["operators"]
    assert "as the real one says" in found.reasons["operator_chain"]
    gaps = gpu.true_step_s("mnist") - total_device_s(gpu)
    assert named(found)["launch gaps"].seconds == pytest.approx(gaps, rel=0.02)
    assert found.additivity_s is None


def test_records_on_a_gpu_are_read_back():
    found = checked(launch_bound())
    assert CheckRecord.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_what_comes_from_the_host_is_a_term():
    gpu = Gpu(steps(*BOUND["device"]), fed_s=3e-4)
    found = checked(gpu, model="mnist", feed="host")
    assert named(found)["host transfer"].seconds == pytest.approx(3e-4, rel=0.02)
    device_s = total_device_s(gpu)
    gaps = gpu.true_step_s("mnist") - device_s
    assert named(found)["launch gaps"].seconds == pytest.approx(gaps, rel=0.02, abs=1e-5)


# -----------------------------------------------------------------------------
# Errors that are planted.


def test_a_call_that_is_fifty_times_off_alone_lies_between_the_operators_and_their_chain(gpu):
    first = gpu.steps[MODEL][0]
    gpu.alone = {first.signature: 50.0}
    count = sum(one.signature == first.signature for one in gpu.steps[MODEL])
    off = 49 * count * first.device_s
    found = named(checked(gpu))
    assert found["context"].seconds == pytest.approx(-off, rel=0.01)
    assert found["context"].ci_high < 0


def test_a_log_of_five_seconds_is_not_even_asked_for(monkeypatch):
    monkeypatch.setattr("pydlbench.ladder.check.StepLog", lambda *_: pytest.fail("it was"))
    found = checked(launch_bound())
    assert not any("reorders" in one.term for one in found.ledger)
    assert all(one.seconds < 1e-2 for one in found.ledger)


@pytest.mark.parametrize(
    ("slower", "term"),
    [
        ({"chain": 1.25, "graph": 1.25, "step": 1.25}, "clock of the operator chain"),
        ({"graph": 1.25, "step": 1.25}, "clock of the step"),
    ],
)
def test_a_rung_at_another_clock_is_told_by_its_cycles(slower, term):
    gpu = Gpu(steps(*BOUND["device"]), slower=slower)
    found = checked(gpu)
    clock = named(found)[term]
    assert clock.seconds == pytest.approx(0.25 * total_device_s(gpu), rel=0.01)
    assert "1.98 GHz" in clock.how
    assert "1.58 GHz" in clock.how
    said = "(power cap) in 6 of 6 visits, at 700 W"
    held = {one.partition(":")[0] for one in found.notes if said in one}
    chain = {"operator chain"} if "chain" in slower else set()
    assert held == {"step", "step events", "step graph"} | chain
    assert abs(found.unexplained) < 0.01


def test_what_held_the_clock_down_is_told_of_every_visit_and_not_of_the_last_alone():
    held = GpuReadings(reasons=("power cap",), power_w=690.0)
    free = GpuReadings(reasons=("idle",), power_w=100.0)
    hot = GpuReadings(reasons=("idle", "thermal"))
    assert power_notes({"step_graph": [held, hot, free], "step": [free], "native": []}) == [
        "step graph: the clock was held down (power cap, thermal) in 2 of 3 visits, at 690 W"
    ]


def test_launches_that_cost_twice_are_launch_gaps():
    before, after = (
        named(checked(launch_bound(launch_s=seconds)))["launch gaps"].seconds
        for seconds in (0.0, 20e-6)
    )
    calls = len(launch_bound().steps[MODEL])
    assert after - before == pytest.approx(calls * 20e-6, rel=0.02)


def test_blocks_of_the_driver_are_counted():
    found = checked(launch_bound(blocks=3))
    assert found.faults == {"allocations": 3.0}
    assert any("3.0 blocks" in one for one in found.notes)


def test_a_step_of_which_no_call_can_be_made_ready_is_checked_without_additivity(monkeypatch):
    def refusing(worker, signatures):
        facts = OperatorsFacts(refused=dict.fromkeys(signatures, "no such operands"))
        made = DeviceOperators([], facts, worker.gpu, contextlib.nullcontext)
        return Kernel(worker.gpu, made, "operators")

    monkeypatch.setattr(Worker, "_calls", refusing)
    found = checked(launch_bound())
    assert found.additivity_s is None
    assert found.unreplayed.calls == 1.0
    assert named(found)["launch gaps"].seconds > 0


def test_without_a_graph_the_reason_stands_for_the_rung_and_for_the_term():
    found = checked(launch_bound(uncapturable=True))
    assert "stream is capturing" in found.reasons["operator_chain"]
    assert "launch gaps" not in named(found)
    assert any("no launch gaps" in one and "capturing" in one for one in found.notes)


# -----------------------------------------------------------------------------
# Forecasts: no step of the model is run.


def test_a_step_is_forecast_from_what_host_and_device_need_for_its_calls(gpu):
    gpu.besides_s = gpu.once_s = 0.0  # nothing tells modules and autograd from calls
    session = GpuSession(gpu)
    kept = []
    found = forecast_step(CASE, session, None, keep=lambda table, *_: kept.append(table))
    assert found.status == "ok"
    assert found.seconds == pytest.approx(gpu.true_step_s(), rel=0.02)
    assert found.ci_low <= found.seconds <= found.ci_high
    assert found.graph_s == pytest.approx(total_device_s(gpu))
    assert found.host_s == pytest.approx(sum(one.host_s for one in gpu.steps[MODEL]))
    assert set(kept) == {"operator"}
    assert found.place.processor == "invented GPU cuda:0, invented CPU"
    assert found.place.device == "cuda:0"
    assert found.faults_s is None
    assert ForecastRecord.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    enqueued = {one.enqueue_s for one in found.terms}
    assert None not in enqueued


def test_a_forecast_is_wrong_by_the_call_that_was_measured_wrong():
    gpu = Gpu(steps(*BOUND["device"]))
    first = gpu.steps[MODEL][0]
    gpu.alone = {first.signature: 50.0}
    count = sum(one.signature == first.signature for one in gpu.steps[MODEL])
    found = forecast_step(CASE, GpuSession(gpu), None)
    off = 49 * count * first.device_s
    assert found.seconds - gpu.true_step_s() == pytest.approx(off, rel=0.02)


def test_a_step_that_is_no_list_of_calls_is_not_forecast_on_a_gpu():
    case = StepSpec(model="mnist", device="cuda:0", mode="compiled")
    with pytest.raises(UnsupportedError, match="--mode eager"):
        forecast_step(case, GpuSession(launch_bound()), None)


def test_a_check_is_held_against_its_forecast(gpu):
    gpu.besides_s = gpu.once_s = 0.0
    session = GpuSession(gpu)
    found = check_step(
        CASE,
        session,
        laps=6,
        time_limit_s=1e-9,
        forecast=lambda case: forecast_step(case, session, None),
    )
    assert abs(found.forecast_error) < 0.02
    assert math.isclose(found.forecast_parts["operators"], found.rungs.operators.median)
    assert operations.prepare_allocation not in session.built
    assert operations.prepare_lifetimes not in session.built


@pytest.mark.gpu
@pytest.mark.parametrize("phase", ["forward", "training"])
def test_on_a_gpu(phase):
    case = StepSpec(model="mnist", batch=64, phase=phase, device="cuda:0")
    with Session(Options(budget_s=0.02, visits=1, estimate=True)) as session:
        forecast = forecast_step(case, session, None, visits=1)
        found = check_step(case, session, laps=6, time_limit_s=1.0, forecast=lambda _: forecast)
    assert forecast.status == "ok"
    assert 0 < forecast.graph_s < forecast.seconds
    assert found.reasons.keys() <= {"native_chain"}
    assert found.faults == {"allocations": 0.0}
    assert named(found)["launch gaps"].seconds > 0
    assert all(one.enqueue_s > 0 for one in found.operators)
    assert found.contradictions == ()
