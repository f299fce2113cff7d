"""Steps of named models in their workers, timed in turn."""

import dataclasses
import importlib.util
import json

import pytest

from pydlbench.errors import UsageError, WorkerError
from pydlbench.records.step import StepPreparation, StepRecord, StepSpec
from pydlbench.records.user_model import UserModelSpec
from pydlbench.runner.options import RunnerOptions
from pydlbench.runner.session import Session
from pydlbench.steps.agreement import agree, agree_steps
from pydlbench.steps.run import prepare_step, run, run_in_turn

QUICK = RunnerOptions(budget_s=0.02, seed=3)
pytestmark = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("torch", "tensorflow")),
    reason="needs torch and tensorflow",
)


@pytest.fixture(scope="module")
def session():
    with Session(QUICK) as session:
        yield session


@pytest.mark.deep
@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_tutorials_agree(session, name):
    found = agree(StepSpec(model=name, batch=2, phase="training"), session)
    assert found.output < 1e-4
    assert found.gradients is not None
    assert found.gradients < 1e-4
    assert found.floors == {}


def test_records_have_times_and_checks(session):
    cases = [
        StepSpec(model="mnist", batch=2, phase="training", framework=framework)
        for framework in ("torch", "tensorflow")
    ]
    records = run_in_turn(cases, session)
    for case, record in zip(cases, records, strict=True):
        assert record.spec == case
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


def test_a_step_that_fails_later_keeps_the_visits_before(session, monkeypatch):
    """Prepared anew for each visit, it is refused in the second."""
    true, asked = prepare_step, []

    def refusing(case, *words, **named):
        asked.append(case)
        if len(asked) > 1:
            raise WorkerError("killed by SIGKILL")
        return true(case, *words, **named)

    monkeypatch.setattr("pydlbench.steps.run.prepare_step", refusing)
    monkeypatch.setattr(session, "options", dataclasses.replace(QUICK, repetitions=6))
    unchecked = StepPreparation(checks=False)
    (record,) = run_in_turn([StepSpec(model="mnist", batch=2)], session, preparation=unchecked)
    assert (record.status, record.time.repetitions, len(asked)) == ("ok", 1, 2)
    assert record.warnings[-1] == "a repetition failed, the row has 1: killed by SIGKILL"


def test_an_unknown_model_is_the_callers_mistake(session):
    with pytest.raises(UsageError, match="nearest: mnist"):
        run(StepSpec(model="mnits"), session)


OWN = """
import os
import sys

from torch import nn, randn

print("imported")

class Loud(nn.Linear):
    def forward(self, x):
        print("forward")
        return super().forward(x)

def loud():
    os.write(1, b'{"ok": null}\\n')
    sys.stdout.flush()
    return Loud(4, 3), randn(2, 4)

def forking():
    os.fork()  # the child, too, goes on where its parent was called from
    return loud()

def leaving():
    sys.exit("enough")

def greedy():
    return nn.Linear(1 << 24, 1 << 24), randn(1)

def empty():
    return nn.Linear(4, 3)
"""


def test_models_of_ones_own_print_what_they_like_and_cost_their_row_at_most(session, tmp_path):
    (tmp_path / "of my own").mkdir()
    file = tmp_path / "of my own" / "net.py"
    file.write_text(OWN)
    names = ("loud", "forking", "leaving", "greedy")
    cases = [StepSpec(model=f"{file}:{name}", phase="training") for name in names]
    records = run_in_turn(cases, session)
    assert [one.status for one in records] == ["ok", "ok", "failed", "failed"]
    first = records[0]
    assert (first.spec.batch, first.output, first.parameters) == (2, (2, 3), 15)
    assert first.environment["module"] == "Loud"
    assert StepRecord.from_dict(json.loads(json.dumps(first.to_dict()))) == first
    assert records[2].reason == f"{file}:24: SystemExit: enough"
    assert records[3].reason.startswith(f"{file}:27: out of memory: ")
    with pytest.raises(UsageError, match=r"net\.py:empty: .*nearest: --input"):
        run(StepSpec(model=f"{file}:empty"), session)


PATCHED_CLOCK = """
import time
import msgspec
import torch
from pydlbench.backends.host_clock import HostClock

class Slow(torch.nn.Module):
    def forward(self, x):
        time.sleep(0.02)
        return x + 1

def build(divisor=1):
    take = HostClock.time_samples

    def patched(self, request):
        chunk = take(self, request)
        claimed = tuple(second / float(divisor) for second in chunk.seconds)
        return msgspec.structs.replace(chunk, seconds=claimed)

    HostClock.time_samples = patched
    return Slow(), torch.ones(4)
"""


@pytest.mark.deep
def test_a_step_whose_process_changes_its_clock_has_no_time(tmp_path):
    path = tmp_path / "patched.py"
    path.write_text(PATCHED_CLOCK)
    steps = [
        StepSpec(model=f"{path}:build", options={"divisor": text}, own=UserModelSpec())
        for text in ("1", "20")
    ]
    with Session(QUICK) as session:
        how = StepPreparation(checks=False)
        honest, patched = run_in_turn(steps, session, visits=3, preparation=how, copied=0)
    assert honest.time.median > 0.02
    assert (patched.status, patched.time) == ("failed", None)
    assert "host's clock" in patched.reason


OWN_MNIST = """
import torch
from torch import nn
import torch.nn.functional as F

class Net(nn.Module):
    def __init__(self, names, act, width):
        super().__init__()
        self.names, self.act = names.split("-"), getattr(F, act)
        layers = [nn.Conv2d(1, 32, 5, padding=2), nn.Conv2d(32, 64, 5, padding=2)]
        layers += [nn.Linear(3136, int(width)), nn.Linear(int(width), 10)]
        for name, layer in zip(self.names, layers):
            self.add_module(name, layer)

    def forward(self, x):
        conv1, conv2, fc1, fc2 = (getattr(self, name) for name in self.names)
        x = F.max_pool2d(self.act(conv1(x)), 2)
        x = F.max_pool2d(self.act(conv2(x)), 2)
        return fc2(self.act(fc1(x.flatten(1))))

def build(names="conv1-conv2-fc1-fc2", act="relu", width=512):
    return Net(names, act, width).eval(), torch.zeros(4, 1, 28, 28)
"""


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, False),
        ({"names": "a-b-c-d"}, False),
        pytest.param({"act": "gelu"}, True, marks=pytest.mark.deep),
        pytest.param({"width": "100"}, "fc1.bias has no counterpart", marks=pytest.mark.deep),
        ({"names": "a-b-c-d", "width": "100"}, "number 5 has the shapes (512, 3136) and"),
        pytest.param({"names": "conv1-b-c-d"}, "has no counterpart", marks=pytest.mark.deep),
        ({"phase": "training"}, "forward only"),
    ],
)
def test_a_model_of_the_catalogue_and_a_users_share_weights(session, tmp_path, options, found):
    path = tmp_path / "own.py"
    path.write_text(OWN_MNIST)
    own = UserModelSpec()
    words = {"phase": options.get("phase", "forward")}
    choice = {name: text for name, text in options.items() if name != "phase"}
    steps = [
        StepSpec(model="mnist", batch=4, **words),
        StepSpec(model=f"{path}:build", options=choice, own=own, **words),
    ]
    if options and isinstance(found, bool):  # either of them is A once
        steps.reverse()
    compared = agree_steps(steps, session, tmp_path)
    if not isinstance(found, bool):
        assert compared.agreement is None
        assert found in compared.unchecked
    else:
        assert (compared.unchecked, compared.shared, compared.weights) == (None, 8, (8, 8))
        assert compared.differs is found
        assert found or compared.agreement.output < 1e-5
