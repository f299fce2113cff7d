"""Ctrl-C in the middle of the experiments: what they have shown until then is not lost."""

import pytest
from planted import World, run

from pydlbench.diagnose import run as running
from pydlbench.records.diagnosis import Diagnosis


@pytest.fixture
def tried(monkeypatch):
    """Lets one experiment end; Ctrl-C comes in the second."""
    complete, ended = running.try_out, []

    def try_out(experiment, *arguments):
        if ended and experiment is not ended[0]:
            raise KeyboardInterrupt
        ended.append(experiment)
        return complete(experiment, *arguments)

    monkeypatch.setattr(running, "try_out", try_out)
    return ended


def test_what_was_found_before_ctrl_c_is_returned(tried):
    found = run(World(gaps_s=0.05, fresh_s=0.03))
    assert len(set(tried)) == 1
    assert [one.problem for one in found.findings] == ["operators run one by one"]
    assert found.tried == found.untried == ()
    assert found.interrupted
    assert Diagnosis.from_dict(found.to_dict()).interrupted


def test_ctrl_c_before_any_experiment_has_nothing_to_show(monkeypatch):
    def observe(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "observe", observe)
    with pytest.raises(KeyboardInterrupt):
        run(World())
