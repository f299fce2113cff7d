"""The workers and devices of a session: what a death costs, and what it does not."""

from types import SimpleNamespace

import pytest

from pydlbench.errors import UnsupportedError, WorkerError
from pydlbench.runner.machine import Devices, Workers


@pytest.mark.parametrize(
    ("error", "shares"),
    [(WorkerError("killed"), [None, 1.0, 1.0]), (UnsupportedError("none here"), [None] * 3)],
    ids=["died", "unsupported"],
)
def test_a_canary_that_died_is_asked_again_and_one_that_is_not_there_is_not(
    monkeypatch, error, shares
):
    answers = iter([error, {"share": 1.0}, {"share": 1.0}])

    def probe(_name):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    workers = Workers((0,), None)
    monkeypatch.setattr(workers, "get", lambda *_: SimpleNamespace(probe=probe))
    assert [workers.canary() for _ in range(3)] == shares


def test_processes_start_side_by_side_and_all_are_waited_for(monkeypatch):
    seen = []

    def invented(backend, _, *, warm):
        def describe():
            seen.append(("ready", backend, warm))
            if backend == "bad":
                raise WorkerError("it does not start")

        return SimpleNamespace(
            launch=lambda: seen.append(("launched", backend, warm)), describe=describe
        )

    workers = Workers((0,), None)
    monkeypatch.setattr(workers, "get", invented)
    workers.start([("bad", "cpu"), ("torch", "cpu")], warm=(False, True))
    every = [("bad", False), ("bad", True), ("torch", False), ("torch", True)]
    assert seen == [(what, *one) for what in ("launched", "ready") for one in every]
    seen.clear()
    workers.start([("torch", "cpu")] * 2)
    assert seen == [("launched", "torch", False), ("ready", "torch", False)]


def test_a_roof_survives_the_death_of_who_looks_at_it_again(monkeypatch):
    def dies(*_, **__):
        raise WorkerError("killed")

    worker = SimpleNamespace(probe=dies, describe=dies)
    devices = Devices.__new__(Devices)
    devices._workers = SimpleNamespace(get=lambda *_: worker)
    devices._probed_at = {"cuda:0": -1e6}
    record = SimpleNamespace(bandwidths=())
    monkeypatch.setattr("pydlbench.devices.gpu.record.revisit", dies)
    assert devices._revisited("cuda:0", record) is record
    assert devices._probed_at["cuda:0"] > -1e6
