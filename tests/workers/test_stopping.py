"""Whoever is not timed is stopped, and continued whatever happens."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pydlbench.workers import stopping
from pydlbench.workers.host import Worker
from pydlbench.workers.stopping import guardian

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="tells the state of processes by /proc"
)


def state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "gone"


def becomes(pid, *wanted):
    """Whether a process comes to be in one of some states, within a generous time."""
    end = time.monotonic() + 20
    while state(pid) not in wanted and time.monotonic() < end:
        time.sleep(0.005)
    return state(pid) in wanted


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["/bin/sleep", "60"], start_new_session=True)
    yield process.pid
    process.kill()
    process.wait()


def test_a_group_is_stopped_and_continued(sleeper):
    assert guardian.stop(sleeper)
    assert becomes(sleeper, "T")
    guardian.resume(sleeper)
    assert becomes(sleeper, "S")


def test_a_group_that_does_not_stop_in_time_goes_on(sleeper, monkeypatch):
    monkeypatch.setattr(stopping, "_STOP_TIMEOUT_S", -1.0)
    monkeypatch.setattr(os, "waitid", lambda *_: None)  # as of one that waits for a device
    assert not guardian.stop(sleeper)
    assert becomes(sleeper, "S")


def test_a_group_of_another_parent_is_stopped_without_waiting(sleeper, monkeypatch):
    def not_a_child(*_):
        raise ChildProcessError

    monkeypatch.setattr(os, "waitid", not_a_child)
    assert guardian.stop(sleeper)
    assert becomes(sleeper, "T")
    guardian.resume(sleeper)


def test_a_group_that_is_gone_is_not_stopped():
    process = subprocess.Popen(["/bin/true"], start_new_session=True)
    process.wait()
    assert not guardian.stop(process.pid)
    guardian.resume(process.pid)  # and nothing is raised


SPINNING = """
import os, sys, threading
os.sched_setaffinity(0, {int(sys.argv[1])})
def spin():
    while True:
        pass
threads = [threading.Thread(target=spin) for _ in range(4)]
for thread in threads:
    thread.start()
print("spinning", flush=True)
"""


def test_no_thread_runs_any_more_once_a_group_is_stopped():
    command = [sys.executable, "-c", SPINNING, str(min(os.sched_getaffinity(0)))]
    hogs = [
        subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) for _ in range(2)
    ]
    try:
        for hog in hogs:
            assert hog.stdout.readline() == b"spinning\n"
        first = hogs[0].pid
        for _ in range(10):
            assert guardian.stop(first)
            tasks = Path(f"/proc/{first}/task").iterdir()
            assert {state(f"{first}/task/{task.name}") for task in tasks} == {"T"}
            guardian.resume(first)
    finally:
        for hog in hogs:
            hog.kill()
            hog.communicate()


KILLED = """
import subprocess, time
from pydlbench.workers.stopping import guardian
sleepers = [subprocess.Popen(["/bin/sleep", "60"], start_new_session=True) for _ in range(2)]
for sleeper in sleepers:
    assert guardian.stop(sleeper.pid)
guardian.resume(sleepers[0].pid)
guardian.stop(sleepers[0].pid)
print(*(sleeper.pid for sleeper in sleepers), flush=True)
time.sleep(60)
"""


def test_who_is_stopped_goes_on_after_its_parent_was_killed():
    command = [sys.executable, "-c", KILLED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as host:
        pids = [int(pid) for pid in host.stdout.readline().split()]
        assert [becomes(pid, "T") for pid in pids] == [True, True]
        host.kill()
    assert [becomes(pid, "S") for pid in pids] == [True, True]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def pair():
    pytest.importorskip("pydlbench._cpu", reason="the native module _cpu is not built here")
    workers = [Worker("native", "cpu", (min(os.sched_getaffinity(0)),)) for _ in range(2)]
    yield workers
    for worker in workers:
        worker.discard()


def test_whoever_probes_has_the_machine_for_itself(pair):
    first, second = pair
    first.describe()
    second.describe()
    second.probe("launch")
    assert becomes(first.pid, "T")
    first.probe("launch")  # goes on by itself
    assert becomes(second.pid, "T")
    assert state(first.pid) != "T"
    second.resume()
    assert becomes(second.pid, "S")


def test_a_worker_that_is_stopped_ends_politely(pair):
    first, second = pair
    first.describe()
    second.describe()
    second.probe("launch")
    process = first._process
    first.close()
    assert process.returncode == 0


def test_a_worker_that_was_killed_while_it_was_stopped_is_noticed(pair):
    from pydlbench.errors import WorkerError

    first, second = pair
    first.describe()
    second.describe()
    second.probe("launch")
    os.kill(first.pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match="SIGKILL"):
        first.probe("launch")
    assert first.probe("launch")["seconds"] > 0


def test_requests_are_answered_side_by_side(pair):
    from pydlbench.errors import WorkerError
    from pydlbench.workers.channel import Describe

    first, second = pair
    first.send(Describe())
    second.send(Describe())
    assert not first.stop()  # it has not yet answered
    with pytest.raises(WorkerError, match="not ready"):
        first.send(Describe())
    assert second.receive() == first.receive()
