"""Workers that hang, with and without signs of life. Limits are small, their order is judged."""

import os
import threading

import pytest

from pydlbench.errors import WorkerError
from pydlbench.timing.chunk import ChunkRequest

ONE = ChunkRequest(samples=1)
LONG = 3600.0


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_beats_during_a_long_request_are_no_replies(make_worker, prepare_in):
    worker = make_worker(heartbeat_s=0.02)
    kernel, other = prepare_in(worker, "later takes its time"), prepare_in(worker)
    assert kernel.sample(ChunkRequest(samples=3)).seconds == (0.001,) * 3
    assert other.sample(ChunkRequest(samples=2)).seconds == (0.001,) * 2
    assert worker.probe("any", number=1)["number"] == 1
    assert worker.generation == 1


def test_whoever_beats_may_be_quiet_for_longer_than_the_silence(make_worker, prepare_in):
    """A request of half a second where silence of a fifth of one is death."""
    worker = make_worker(heartbeat_s=0.02)
    kernel = prepare_in(worker, "later takes its time")
    worker.silence = 0.2
    assert kernel.sample(ONE).seconds == (0.001,)


def test_a_slow_start_beats_too(make_worker):
    worker = make_worker(heartbeat_s=0.02, silence=20, environment={"INVENTED_START_S": "0.5"})
    assert worker.describe()["name"] == "invented"


def test_a_start_that_never_ends(make_worker):
    worker = make_worker(heartbeat_s=0.02, timeout=1, environment={"INVENTED_START_S": "3600"})
    with pytest.raises(WorkerError, match=r"for 1 s .*killed.*timeout_s"):
        worker.describe()
    assert worker.pid is None


def test_hung_but_beating_ends_at_the_overall_limit(make_worker, prepare_in):
    worker = make_worker(heartbeat_s=0.02)
    kernel = prepare_in(worker, "later hangs")
    pid = worker.pid
    worker.timeout, worker.allows = 0.5, "--time-limit"
    worker.silence = LONG
    place = r"no answer for 0\.5 s and was killed at invented_backend\.py:\d+ in .+; "
    with pytest.raises(WorkerError, match=place + "a larger --time-limit"):
        kernel.sample(ONE)
    assert gone(pid)
    worker.timeout = LONG
    assert prepare_in(worker).facts.algorithm == "works"


@pytest.mark.product
@pytest.mark.parametrize("deed", ["keeps the lock", "is stopped"])
@pytest.mark.parametrize("when", ["now", "later"])
def test_silence_ends_it_long_before_the_overall_limit(make_worker, prepare_in, deed, when):
    """In a native call that keeps Python's lock, or stopped by a signal."""
    worker = make_worker(heartbeat_s=0.02, timeout=LONG, prepare_timeout=LONG)
    worker.describe()
    pid = worker.pid
    worker.silence = 0.5
    with pytest.raises(WorkerError, match=r"gave no sign of life for 0\.5 s and was killed: stopp"):
        prepare_in(worker, f"{when} {deed}").sample(ONE)
    assert gone(pid)
    worker.silence = LONG
    assert prepare_in(worker).sample(ONE).seconds == (0.001,)
    assert worker.generation == 2


def test_an_idle_worker_need_not_beat(make_worker, prepare_in):
    worker = make_worker(heartbeat_s=0.02)
    kernel = prepare_in(worker)
    worker.silence = 5
    threading.Event().wait(0.2)
    assert kernel.sample(ONE).seconds == (0.001,)
