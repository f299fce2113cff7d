"""Processes that die, are interrupted, or write at the same time."""

import os
import signal

import pytest
import raw_store

from pydlbench.errors import UsageError
from pydlbench.store.entry import is_gone, this_process
from pydlbench.store.store import Store


def printed(process, count):
    """Wait until a writer has said that so many rows are in."""
    for _ in range(count):
        assert process.stdout.readline()


def rest_of(process):
    """Wait for a writer's end; return the lines that :func:`printed` has not taken.

    Not ``communicate``: it reads past the lines that are in the stream's buffer already, and loses
    them.
    """
    lines = process.stdout.read().splitlines()
    process.wait()
    return lines


@pytest.mark.parametrize(
    ("count", "how"), [(1, signal.SIGKILL), (40, signal.SIGKILL), (5, signal.SIGINT)]
)
def test_ending_a_writer_loses_nothing_that_was_finished(store_path, writer, count, how):
    process = writer(store_path, "20300102-killed")
    printed(process, count)
    process.send_signal(how)
    finished = count + len(rest_of(process))
    with Store.open(store_path, readonly=True) as store:
        info = store.find("last")
        assert info.status == "killed"
        # One more may have been committed and not been printed any more.
        assert finished <= info.measurements <= finished + 1
        for number, entry in enumerate(store.entries(info.id, samples=True)):
            assert entry.document["layer"] == f"20300102-killed {number}"
            assert entry.samples == (number + 0.25, number + 0.75)
        assert len(store.columns(info.id)) == info.measurements
    assert raw_store.execute(store_path, "PRAGMA integrity_check") == [("ok",)]


def test_a_killed_run_can_be_gone_on_with_and_a_running_one_not(store_path, writer, entry):
    process = writer(store_path, "20300102-killed")
    printed(process, 3)
    with Store.open(store_path) as store:
        assert store.info("20300102-killed").status == "running"
        with pytest.raises(UsageError, match="20300102-killed"):
            store.resume("20300102-killed")
        process.kill()
        process.communicate()
        assert store.info("20300102-killed").status == "killed"
        before = store.info("20300102-killed").measurements
        store.resume("20300102-killed")
        store.add("20300102-killed", entry())
        info = store.info("20300102-killed")
        assert (info.status, info.measurements) == ("running", before + 1)


def test_two_writers_and_a_reader_at_once(store_path, writer):
    names = [f"20300102-{letter}" for letter in "abc"]
    both = [writer(store_path, name, 150) for name in names]
    printed(both[0], 1)
    with Store.open(store_path, readonly=True) as store:
        seen = [sum(info.measurements for info in store.runs()) for _ in range(20)]
    assert seen == sorted(seen)
    for process in both:
        assert rest_of(process)[-1] == "149"
        assert (process.returncode, process.stderr.read()) == (0, "")
    with Store.open(store_path) as store:
        assert {info.id: info.status for info in store.runs()} == dict.fromkeys(names, "done")
        for name in names:
            written = [entry.document["layer"] for entry in store.entries(name)]
            assert written == [f"{name} {number}" for number in range(150)]


def test_a_writer_is_gone_only_if_that_is_certain():
    here = this_process()
    assert not is_gone(here)
    assert is_gone({**here, "start": "1"})
    assert is_gone({**here, "pid": 2**22 + 1})
    assert is_gone({**here, "boot": "another one"})
    assert is_gone(None)
    assert not is_gone({**here, "host": "elsewhere", "pid": 2**22 + 1})
    assert not is_gone({**here, "pids": "of a container", "pid": 2**22 + 1})


# The child does nothing, whichever library of this process has threads.
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
def test_a_process_that_has_ended_is_gone_before_anybody_has_asked_for_its_code():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert is_gone({**this_process(), "pid": child, "start": "0"})
    os.waitpid(child, 0)
