"""The functions measure as the commands do."""

import importlib.util
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

import pydlbench
from pydlbench import api
from pydlbench.cli import estimate, step
from pydlbench.cli.options import HOW, Option
from pydlbench.cli.parser import command_parser, read
from pydlbench.cli.sweep import table_keys
from pydlbench.cli.values import whole_number
from pydlbench.errors import PydlbenchError, UnsupportedError, UsageError
from pydlbench.runner import session
from pydlbench.runner.options import RunnerOptions
from pydlbench.runner.tasks import Result
from pydlbench.timing.policy import LEAST_ROUNDS

FUNCTIONS = {
    "step": pydlbench.step,
    "estimate": pydlbench.estimate,
    "breakdown": pydlbench.breakdown,
    "forecast": pydlbench.forecast,
    "diagnose": pydlbench.diagnose_step,
}


@pytest.fixture
def executed(monkeypatch):
    """Give a function's row this result instead of measuring it; keep its tasks."""
    found = SimpleNamespace(tasks=[], detail="record", status="ok", reason=None)

    def execute(tasks, *_, **__):
        found.tasks[:] = tasks
        document = {"status": found.status, "reason": found.reason}
        result = Result("step", document, detail=found.detail)
        return SimpleNamespace(trouble=None, interrupted=False, outcomes=[result])

    monkeypatch.setattr(api, "execute", execute)
    return found


@pytest.mark.parametrize("name", ["step", "breakdown", "forecast", "diagnose"])
def test_a_function_measures_what_its_command_does(executed, name):
    how = {"batch": 4, "set": {"classes": 12}, "seed": 3, "device": "cpu"}
    assert FUNCTIONS[name]("mnist", **how) == "record"
    words = ["mnist", "--batch", "4", "--set", "classes=12", "--seed", "3", "--device", "cpu"]
    module = importlib.import_module(f"pydlbench.cli.{name}")
    tasks, _ = module.read_tasks(read([name, *words, "--framework", "torch"])[0])
    assert [one.options for one in executed.tasks] == [one.options for one in tasks]
    rows = [[row.spec for row in task.rows] for task in executed.tasks]
    assert rows == [[row.spec for row in task.rows] for task in tasks]


def test_an_estimate_is_the_record_of_the_sum(executed):
    executed.detail = ("record", [])
    assert pydlbench.estimate("mnist", batch=4, device="cpu") == "record"


def test_what_cannot_be_measured_is_an_error(executed):
    executed.detail, executed.reason = None, "cannot be traced"
    for status, error in (("skipped", UnsupportedError), ("failed", PydlbenchError)):
        executed.status = status
        with pytest.raises(error, match="cannot be traced"):
            pydlbench.breakdown("mnist")


@pytest.mark.parametrize(
    ("options", "near"),
    [
        ({"bathc": 4}, "batch"),
        ({"batch": [1, 2]}, "one value of each option"),
        ({"seed": [1, 2]}, "1"),
        ({"precision": "bf17"}, "bf16"),
        ({"framework": "all", "device": "cpu"}, "one value of each option"),
    ],
)
def test_bad_keywords_are_one_line_with_the_nearest(options, near):
    with pytest.raises(UsageError, match=f"nearest: {near}"):
        pydlbench.step("mnist", **options)


def test_a_layer_is_measured_as_the_command_does(monkeypatch):
    class OpenedError(Exception):
        pass

    def open_session(options=None):
        raise OpenedError(options)

    monkeypatch.setattr(session, "Session", open_session)
    with pytest.raises(OpenedError) as caught:
        pydlbench.measure("conv3", device="cpu")
    (options,) = caught.value.args
    from pydlbench.cli import layers

    (task,), _ = layers.read_tasks(read(["layers", "--shape", "conv3", "--device", "cpu"])[0])
    own = RunnerOptions(**task.options)
    shown = (options.budget_s, options.repetitions or LEAST_ROUNDS)
    assert shown == (own.budget_s, own.repetitions or LEAST_ROUNDS)


def test_an_option_is_declared_once(monkeypatch):
    """One declaration reaches both commands, their help, sweeps, Python and the documentation."""
    niceness = Option(
        metavar="N",
        help="priority of workers",
        group=HOW,
        read=partial(whole_number, least=0),
        default=0,
    )
    for module in (step, estimate):
        body = {"__annotations__": {"niceness": int}, "niceness": niceness()}
        options, run = module.SUBCOMMANDS[""]
        kind = type("Invented", (options,), body | {"description": "Invented."})
        monkeypatch.setattr(module, "SUBCOMMANDS", {"": (kind, run)})
    for name in ("step", "estimate"):
        assert read([name, "mnist"])[0].niceness == 0
        assert read([name, "mnist", "--niceness", "3"])[0].niceness == 3
        with pytest.raises(UsageError, match=r"--niceness x: .*nearest: 0"):
            read([name, "mnist", "--niceness", "x"])
        assert "--niceness N" in command_parser(name).format_help()
        assert "niceness" in {key.name for key in table_keys()[name]}
        options, _ = api._read(name, "mnist", {"niceness": 3, "device": "cpu"})
        assert options.niceness == 3
    page = Path(__file__).parents[1] / "docs" / "write_commands.py"
    spec = importlib.util.spec_from_file_location("write_commands", page)
    write_commands = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(write_commands)
    shown = "".join(write_commands.pages().values())
    assert shown.count("| `--niceness N` | priority of workers |") == 2
