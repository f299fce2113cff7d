"""``forecast`` and ``diagnose`` on an invented GPU; and where there is none."""

import json

import pytest
from invented_gpu import Gpu, GpuSession, convolution

from pydlbench.cli import breakdown, diagnose, forecast, main
from pydlbench.cli.parser import read
from pydlbench.errors import UsageError
from pydlbench.records.step import StepSpec
from pydlbench.steps.run import run_in_turn

BRIEF = ("mnist", "--framework", "torch", "--device", "cuda:0")


@pytest.fixture
def session(run_record):
    """A step that is bound by its launches."""
    calls = [convolution(8 + place, 20e-6, 4e-6) for place in range(12)]
    return GpuSession(Gpu({"mnist": calls}), run=run_record)


def run(command, session, name, *words):
    return command.run(read([name, *words])[0], session.open)


def test_a_forecast_on_a_gpu_is_the_makespan_of_host_and_device(session, capsys):
    session.gpu.besides_s = session.gpu.once_s = 0.0
    assert run(forecast, session, "forecast", *BRIEF, "--json", "-") == 0
    (found,) = json.loads(capsys.readouterr().out)["forecasts"]
    assert found["status"] == "ok"
    assert found["graph_s"] == pytest.approx(12 * 4e-6)
    assert found["forecast_s"] == pytest.approx(session.gpu.true_step_s("mnist"), rel=0.02)
    assert run(forecast, session, "forecast", *BRIEF, "--known-only") == 0
    assert "CUDA graph" in capsys.readouterr().out


def test_a_breakdown_on_a_gpu_has_the_launch_gaps_as_terms(session, capsys):
    assert run(breakdown, session, "breakdown", *BRIEF, "--json", "-", "--quiet") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["levels"]["in_context"]["median"] == pytest.approx(12 * 4e-6, rel=0.02)
    assert sum(one["seconds"] for one in found["terms"]) == pytest.approx(
        found["measured_s"]["median"]
    )
    assert all(one["host_s"] > one["in_context_s"] for one in found["calls"])


def test_a_step_is_filed_under_the_gpu_that_runs_it(session, monkeypatch):
    devices = []
    monkeypatch.setattr(session, "processor", lambda device: devices.append(device) or "a GPU")
    steps = run_in_turn([StepSpec(model="mnist", framework="torch", device="cuda:0")], session)
    assert devices == ["cuda:0"]
    assert steps[0].status == "ok", steps[0].reason


def test_a_diagnosis_on_a_gpu_finds_the_launch_gaps(session, capsys):
    assert run(diagnose, session, "diagnose", *BRIEF, "--json", "-") == 0
    found = json.loads(capsys.readouterr().out)
    # A batch of twice the images takes this device as long.
    assert [one["saving"]["share"] for one in found["findings"]] == [pytest.approx(0.5, abs=0.02)]
    assert found["findings"][0]["causes"][0]["name"] == "launch gaps"


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (("--framework", "tensorflow", "--device", "cuda:0"), "--framework torch"),
        (("--framework", "torch", "--device", "cuda:0", "--precision", "bf16"), "bf16-tc"),
        (("--framework", "torch", "--device", "cpu", "--precision", "tf32"), "fp32"),
        (("--framework", "torch", "--device", "cuda:0", "--threads", "2"), "leave it out"),
    ],
)
def test_what_a_gpu_does_not_have_is_one_line(session, words, near):
    with pytest.raises(UsageError, match=f"nearest: {near}"):
        run(forecast, session, "forecast", "mnist", *words)


@pytest.mark.parametrize(
    ("framework", "device"), [((), "cuda:0"), (("torch",), "cuda:0"), (("tensorflow",), "cpu")]
)
def test_by_default_steps_run_where_they_can_be_explained(framework, device, monkeypatch):
    monkeypatch.setattr("pydlbench.backends.capabilities.default_device", lambda: ("cuda:0", ()))
    words = ["mnist", *(("--framework", *framework) if framework else ())]
    tasks, notes = forecast.read_tasks(read(["forecast", *words])[0])
    assert [row.spec.device for task in tasks for row in task.rows] == [device]
    assert any("on the CPU" in one for one in notes) is (device == "cpu")


@pytest.mark.parametrize("name", ["forecast", "diagnose"])
def test_without_a_gpu_there_is_one_line(name, capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main([name, *BRIEF, "--quiet", "--store", "none"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("pydlbench: ")
