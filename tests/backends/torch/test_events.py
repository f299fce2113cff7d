"""Rows of a GPU by PyTorch's own events: on a clock that is invented."""

from types import SimpleNamespace

import pytest
import torch

from pydlbench.backends.torch.events import EventWork


@pytest.fixture
def stream(monkeypatch):
    """A queue of the device: seconds of what was enqueued, and how often it was waited for."""
    made = SimpleNamespace(seconds=0.0, waits=0, launches=0)

    class Event:
        def __init__(self, *, enable_timing):
            assert enable_timing

        def record(self):
            self.at = made.seconds

        def elapsed_time(self, last):
            return (last.at - self.at) * 1e3

    def synchronize():
        made.waits += 1

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    return made


def test_a_sample_is_the_mean_of_its_executions(stream):
    def run():
        stream.launches += 1
        stream.seconds += 2e-3 * stream.launches  # each takes 2 ms longer than the one before

    raw = EventWork(run).sample(samples=2, inner=2, untimed=1)
    assert raw["seconds"].tolist() == pytest.approx([5e-3, 9e-3])
    assert stream.launches == 1 + 2 * 2
    assert stream.waits == 2  # for the untimed ones, and for all samples
    assert len(raw["enqueue_s"]) == 2


def test_a_graph_is_replayed_once_for_each_sample(stream):
    def replay():
        stream.launches += 1
        stream.seconds += 40e-3

    work = EventWork(replay, executions=10)
    raw = work.sample(samples=3, inner=10, untimed=11)
    assert raw["seconds"].tolist() == pytest.approx([4e-3] * 3)
    assert stream.launches == 2 + 3
    times = work.launch_times(10)
    assert times["event_s"] == pytest.approx(4e-3)
    assert work.kernels() == ()
