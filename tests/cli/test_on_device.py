"""``check``, ``forecast`` and ``diagnose`` on an invented GPU; and where there is none."""

import json

import pytest
from invented_gpu import Gpu, GpuSession, convolution

from pydlbench.cli import check, diagnose, forecast, main
from pydlbench.cli.parser import command_parser
from pydlbench.errors import UsageError
from pydlbench.records.check import CheckResult

BRIEF = ("mnist", "--framework", "torch", "--device", "cuda:0")


@pytest.fixture
def session(run_record):
    """A step that is bound by its launches."""
    calls = [convolution(8 + place, 20e-6, 4e-6) for place in range(12)]
    return GpuSession(Gpu({"mnist": calls}), run=run_record)


def run(command, session, name, *words):
    return command.run(command_parser(name).parse_args(words), session.open)


def test_a_check_on_a_gpu_names_what_the_host_costs(session, capsys):
    short = ("--laps", "6", "--stop-after", "0.001")
    assert run(check, session, "check", *BRIEF, *short, "--json", "-") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["device"] == "cuda:0"
    gaps = next(one for one in document["ledger"] if one["term"] == "launch gaps")
    assert gaps["kind"] == "experiment"
    assert gaps["share"] > 0.5
    assert document["rungs"]["operators"]["median"] == pytest.approx(12 * 4e-6)
    assert CheckResult.from_dict(document).record.operators[0].enqueue_s == pytest.approx(20e-6)
    assert run(check, session, "check", *BRIEF, *short, "--explain") == 0
    printed = capsys.readouterr().out
    assert "page faults per step" not in printed
    assert "launch gaps" in printed


def test_a_check_finds_its_forecast_in_the_store(session, capsys):
    session.gpu.besides_s = session.gpu.once_s = 0.0
    assert run(forecast, session, "forecast", *BRIEF, "--json", "-") == 0
    (found,) = json.loads(capsys.readouterr().out)["forecasts"]
    assert found["status"] == "ok"
    assert found["graph_s"] == pytest.approx(12 * 4e-6)
    assert found["forecast_s"] == pytest.approx(session.gpu.true_step_s("mnist"), rel=0.02)
    words = ("--laps", "6", "--stop-after", "0.001", "--json", "-")
    assert run(check, session, "check", *BRIEF, *words) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["forecast_s"] == pytest.approx(found["forecast_s"])
    assert abs(document["forecast_error"]) < 0.02
    assert run(forecast, session, "forecast", *BRIEF, "--known-only") == 0
    assert "CUDA graph" in capsys.readouterr().out


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
@pytest.mark.parametrize(("command", "name"), [(check, "check"), (forecast, "forecast")])
def test_what_a_gpu_does_not_have_is_one_line(session, command, name, words, near):
    with pytest.raises(UsageError, match=f"nearest: {near}"):
        run(command, session, name, "mnist", *words)


@pytest.mark.parametrize(
    ("framework", "device"), [((), "cuda:0"), (("torch",), "cuda:0"), (("tensorflow",), "cpu")]
)
def test_by_default_steps_run_where_they_can_be_explained(framework, device, monkeypatch):
    monkeypatch.setattr("pydlbench.backends.capabilities.default_device", lambda: ("cuda:0", ()))
    words = ["mnist", *(("--framework", *framework) if framework else ())]
    tasks, notes = check.read_tasks(command_parser("check").parse_args(words))
    assert [row.case.device for task in tasks for row in task.rows] == [device]
    assert any("on the CPU" in one for one in notes) is (device == "cpu")


@pytest.mark.parametrize("name", ["check", "forecast", "diagnose"])
def test_without_a_gpu_there_is_one_line(name, capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main([name, *BRIEF, "--quiet", "--store", "none"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("pydlbench: ")
