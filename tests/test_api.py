"""The functions measure as the commands do."""

from types import SimpleNamespace

import pytest

import pydlbench
from pydlbench import api
from pydlbench.cli import layers, step
from pydlbench.cli.parser import read
from pydlbench.runner import measure
from pydlbench.runner.options import Options
from pydlbench.study.loop import LEAST_ROUNDS


class OpenedError(Exception):
    """Says which options a session was to be opened with."""


@pytest.fixture
def opened(monkeypatch):
    """Return the options of the session that a call opens; nothing is measured."""

    def open_session(options=None):
        raise OpenedError(options or Options())

    monkeypatch.setattr(api, "Session", open_session)
    monkeypatch.setattr(measure, "Session", open_session)

    def options_of(call, *words):
        with pytest.raises(OpenedError) as caught:
            call(*words)
        (options,) = caught.value.args
        return options.budget_s, options.visits or LEAST_ROUNDS

    return options_of


@pytest.mark.parametrize(
    ("call", "read_tasks", "words"),
    [
        (pydlbench.measure, layers.read_tasks, ["layers", "--shape", "conv3"]),
        (pydlbench.step, step.read_tasks, ["step", "mnist"]),
    ],
    ids=["layers", "step"],
)
def test_a_function_visits_and_samples_as_its_command_does(opened, call, read_tasks, words):
    command, *arguments = words
    tasks, _ = read_tasks(read([command, *arguments, "--device", "cpu"])[0])
    own = Options(**tasks[0].options)
    assert opened(call, words[-1]) == (own.budget_s, own.visits or LEAST_ROUNDS)


def test_steps_are_of_the_device_that_the_commands_take(monkeypatch):
    monkeypatch.setattr(api, "default_device", lambda: ("cuda:0", ()))
    assert api.step_spec("mnist", {}).device == "cuda:0"
    assert api.step_spec("mnist", {"device": "cpu"}).device == "cpu"


@pytest.mark.parametrize(
    ("model", "step", "device"),
    [
        ("mnist", {}, "cuda:0"),
        ("mnist", {"framework": "torch", "device": "cpu"}, "cpu"),
        ("mnist", {"framework": "tensorflow"}, "cpu"),
        ("mnist", {"framework": "jax"}, "cpu"),
        ("some.onnx", {}, "cpu"),
    ],
)
@pytest.mark.parametrize("name", ["forecast", "diagnose_step"])
def test_what_is_not_explained_on_a_gpu_is_on_the_cpu(monkeypatch, name, model, step, device):
    """As the commands have it, where no device is named."""

    class TakenError(Exception):
        pass

    def take(spec, *_, **__):
        raise TakenError(spec)

    monkeypatch.setattr(api, "default_device", lambda: ("cuda:0", ()))
    monkeypatch.setattr(api, "_session", take)
    with pytest.raises(TakenError) as caught:
        getattr(api, name)(model, **step)
    assert caught.value.args[0].device == device


def test_a_breakdown_is_of_a_step_on_the_cpu(monkeypatch):
    session = SimpleNamespace(options=SimpleNamespace(seed=3))
    taken = []
    monkeypatch.setattr(
        "pydlbench.analysis.step.break_down_step", lambda *own, **how: taken.append((own, how))
    )
    monkeypatch.setattr(api, "default_device", lambda: ("cuda:0", ()))
    api.breakdown("mnist", session=session, rounds=7, framework="torch", batch=4)
    (((spec, used), how),) = taken
    assert (spec.device, spec.seed, spec.batch, used) == ("cpu", 3, 4, session)
    assert how["rounds"] == 7
