"""Ctrl-C in the middle of the experiments: what they have shown until then is not lost."""

from __future__ import annotations

import pytest
from planted import World, run

from pydlbench.diagnose import run as running
from pydlbench.records.diagnosis import Diagnosis


@pytest.fixture
def attempts(monkeypatch):
    """Lets one experiment end; Ctrl-C comes in the second."""
    complete, ended = running._attempt, []

    def attempt(*arguments):
        if ended:
            raise KeyboardInterrupt
        ended.append(arguments[0])
        return complete(*arguments)

    monkeypatch.setattr(running, "_attempt", attempt)
    return ended


def test_what_was_found_before_ctrl_c_is_returned(attempts):
    found = run(World(gaps_s=0.05, fresh_s=0.03))
    assert len(attempts) == 1
    assert [one.problem for one in found.findings] == ["operators run one by one"]
    assert found.tried == found.untried == ()
    assert found.notes[-1] == "interrupted: not everything was tried"
    assert found.interrupted
    assert Diagnosis.from_dict(found.to_dict()).interrupted


def test_otherwise_it_is_complete():
    assert not run(World(gaps_s=0.05)).interrupted


def test_ctrl_c_before_any_experiment_has_nothing_to_show(monkeypatch):
    def observe(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "observe", observe)
    with pytest.raises(KeyboardInterrupt):
        run(World())
