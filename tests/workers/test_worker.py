"""The worker process: whatever happens to it costs one row."""

import importlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pydlbench.backends.base import Preparation
from pydlbench.errors import (
    DeviceLostError,
    InsufficientMemoryError,
    PrimitiveError,
    UnsupportedError,
    WorkerError,
)
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec
from pydlbench.timing.chunk import ChunkRequest
from pydlbench.workers import ahead, host

ONE = ChunkRequest(samples=1)
GEMM = build_layer("gemm", m=64, k=64, n=64)
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def gone(pid):
    """Whether a child has ended and was waited for."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def kill_soon(pid, number):
    timer = threading.Timer(0.1, os.kill, (pid, number))
    timer.start()
    return timer


@pytest.fixture
def native(cpus):
    pytest.importorskip("pydlbench._cpu", reason="the native module _cpu is not built here")
    worker = host.Worker("native", "cpu", cpus, timeout=60)
    yield worker
    worker.discard()


def test_it_starts_when_first_asked(worker):
    assert worker.pid is None
    assert worker.describe()["name"] == "invented"
    assert worker.pid == worker.describe()["pid"]
    assert worker.generation == 1


def test_a_kernel_is_prepared_sampled_and_released(worker, prepare):
    kernel = prepare()
    assert kernel.facts.library == "invented 1"
    assert kernel.sample(ChunkRequest(samples=3)).seconds == (0.001,) * 3
    kernel.release()
    with pytest.raises(WorkerError, match="KeyError"):
        kernel.sample(ONE)
    assert worker.generation == 1


def test_a_function_tells_before_it_returns(worker):
    count = importlib.import_module("invented_backend").count
    told = []
    assert worker.call(count, told.append, to=3) == {"last": 2, "backend": "invented"}
    assert told == [{"number": 0}, {"number": 1}, {"number": 2}]
    with pytest.raises(UnsupportedError):
        worker.call(count, told.append, to=1, deed="lacks")
    assert told[3:] == [{"number": 0}]
    assert worker.generation == 1


def test_who_cannot_hear_ends_the_worker(worker):
    count = importlib.import_module("invented_backend").count
    told = []

    def full(message):
        told.append(message)
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        worker.call(count, full, to=3)
    assert told == [{"number": 0}]
    assert worker.pid is None
    assert worker.call(count, told.append, to=1)["last"] == 0
    assert worker.generation == 2


def test_a_library_that_reads_standard_input_finds_nothing(worker):
    assert worker.probe("any", number=1) == {"name": "any", "stdin": "", "number": 1}


def test_an_exception_costs_the_row_not_the_process(worker, prepare):
    deeds = {
        "lacks": (UnsupportedError, "^this machine has no such thing$"),
        "refuses": (PrimitiveError, "^oneDNN convolution: run-time error$"),
        "outgrows": (InsufficientMemoryError, "^out of memory: 8 TB; try a smaller --batch$"),
        "stumbles": (WorkerError, "^ZeroDivisionError: division by zero$"),
    }
    for deed, (kind, message) in deeds.items():
        with pytest.raises(kind, match=message):
            prepare(f"now {deed}")
        kernel = prepare(f"later {deed}")
        with pytest.raises(kind, match=message):
            kernel.sample(ONE)
    assert prepare().sample(ONE)
    assert worker.generation == 1


@pytest.mark.parametrize("kill", [False, True])
def test_what_it_has_forked_ends_with_it(make_worker, prepare_in, tmp_path, kill):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    worker = make_worker(environment={"INVENTED_PIPE": str(pipe)})
    prepare_in(worker, "now forks")
    with pipe.open("rb", buffering=0) as held:  # once the child has opened it, too
        worker.close(kill=kill)
        ready, _, _ = select.select([held], [], [], 60)
        assert ready
        assert held.read() == b""  # nobody has it open any more


@pytest.mark.parametrize(
    ("deed", "message"),
    [
        ("now exits", r"^the native worker ended with exit code 7: something native went wrong$"),
        ("later exits", r"^the native worker ended with exit code 7: something native went wrong$"),
        ("now leaves", r"^the native worker ended with exit code 7: something native went wrong$"),
        ("now crashes", r"^the native worker was killed by SIGSEGV: something native went wrong$"),
        ("later aborts", r"^the native worker was killed by SIGABRT$"),
    ],
)
def test_a_native_crash_costs_the_row(worker, prepare, deed, message):
    with pytest.raises(WorkerError, match=message):
        prepare(deed).sample(ONE)
    assert worker.pid is None
    assert prepare().sample(ONE)
    assert worker.generation == 2


def test_a_second_death_does_not_repeat_the_first_ones_words(prepare):
    with pytest.raises(WorkerError, match="something native went wrong"):
        prepare("now exits")
    with pytest.raises(WorkerError, match=r"SIGABRT$"):
        prepare("now aborts")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_from_outside_is_named(worker, prepare, number):
    kernel = prepare("later hangs")
    timer = kill_soon(worker.pid, number)
    with pytest.raises(WorkerError, match=f"^the native worker was killed by {number.name}"):
        kernel.sample(ONE)
    timer.join()
    assert prepare().sample(ONE)


def test_a_worker_that_died_between_two_cases(worker, prepare):
    prepare()
    os.kill(worker.pid, signal.SIGKILL)
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(WorkerError, match="SIGKILL"):
        prepare()
    assert prepare().sample(ONE)


def test_a_kernel_does_not_survive_its_worker(worker, prepare):
    kernel, other = prepare(), prepare("later exits")
    with pytest.raises(WorkerError, match="exit code 7"):
        other.sample(ONE)
    with pytest.raises(WorkerError, match=r"worker .*died"):
        kernel.sample(ONE)
    assert worker.pid is None  # nobody was started in vain
    prepare()
    with pytest.raises(WorkerError, match=r"worker .*died"):
        kernel.sample(ONE)
    kernel.release()  # nothing to release, and no complaint


def test_a_preparation_may_take_longer_than_a_sample(worker, prepare, monkeypatch):
    assert (host.DEFAULT_TIMEOUT, host.PREPARE_TIMEOUT) == (900, 3600)
    worker.describe()
    monkeypatch.setattr(worker, "prepare_timeout", 0.2)
    with pytest.raises(WorkerError, match=r"0\.2 s"):
        prepare("now hangs")
    monkeypatch.setattr(worker, "prepare_timeout", 60)
    kernel = prepare("later hangs")
    monkeypatch.setattr(worker, "timeout", 0.3)
    with pytest.raises(WorkerError, match=r"0\.3 s"):
        kernel.sample(ONE)


def test_a_module_in_the_working_directory_is_not_taken_for_the_library(
    prepare, monkeypatch, tmp_path
):
    (tmp_path / "json.py").write_text("raise ImportError('not the library')")
    monkeypatch.chdir(tmp_path)
    assert prepare().sample(ONE)


def test_an_unreadable_answer_ends_the_worker(worker, prepare):
    kernel = prepare("later garbles")
    with pytest.raises(WorkerError, match="unreadable message b'not JSON'"):
        kernel.sample(ONE)
    assert worker.pid is None
    assert prepare().sample(ChunkRequest(samples=2)).seconds == (0.001, 0.001)


def test_an_interrupt_leaves_no_half_request_before_the_next(worker, prepare, monkeypatch):
    kernel = prepare()
    stdin = worker._process.stdin

    class Torn:
        close = stdin.close

        def write(self, message):
            stdin.write(message[:9])
            stdin.flush()
            raise KeyboardInterrupt

    monkeypatch.setattr(worker._process, "stdin", Torn())
    with pytest.raises(KeyboardInterrupt):
        kernel.sample(ONE)
    assert worker.pid is None
    assert prepare().sample(ChunkRequest(samples=2)).seconds == (0.001, 0.001)


def test_an_interrupt_leaves_no_answer_for_the_next_request(worker, prepare):
    """Ctrl-C while a sample runs; the session goes on, as a notebook's does."""
    kernel = prepare("later hangs")
    pid = worker.pid
    timer = kill_soon(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        kernel.sample(ONE)
    timer.join()
    assert gone(pid)
    assert prepare().facts.algorithm == "works"


def test_at_the_end_functions_are_called_and_files_written_but_objects_not_freed(
    make_worker, prepare_in, tmp_path
):
    worker = make_worker(environment={"INVENTED_FOLDER": str(tmp_path)})
    prepare_in(worker, "now registers")
    worker.close()
    written = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert written == {"registered": "the end", "log": "a line"}


def test_closing_ends_the_process(worker, prepare):
    prepare()
    pid = worker.pid
    worker.close()
    assert worker.pid is None
    assert gone(pid)


@linux
def test_a_bare_process_becomes_the_first_native_worker(native, cpus, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    ahead.start()
    ((started, *_),) = ahead._started
    settings = Path(f"/proc/{started}/environ").read_bytes()
    bare = host.Worker("native", "cpu", cpus[:1], timeout=60)
    try:
        ours, others = bare.describe(), native.describe()
        pids, pinned = (bare.pid, native.pid), os.sched_getaffinity(bare.pid)
        kernel = bare.prepare(KernelSpec(layer=GEMM), Preparation())
    finally:
        bare.discard()
    assert b"OMP_NUM_THREADS=7" not in settings
    assert pids[0] == started != pids[1]
    assert pinned == {cpus[0]}
    assert ours == {**others, "threads": 1}
    assert kernel.facts.correct.status == "ok"
    assert gone(started)


@linux
def test_a_bare_process_without_a_setup_ends():
    ahead.start()
    started, *descriptors = ahead.take()
    for descriptor in descriptors:
        os.close(descriptor)
    assert os.waitpid(started, 0)[1] == 0
    assert ahead.take() is None


def unsupported(*_, **__):
    raise NotImplementedError


def descriptors():
    """Return what this process has open."""
    return {os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()}


@linux
@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (sys, "stdin", None),
        (sys, "stdout", None),
        (os, "memfd_create", None),
        (os, "posix_spawn", unsupported),
        (sys, "executable", "/nowhere/python"),
    ],
)
def test_a_bare_process_is_not_started_where_that_is_impossible(owner, name, value, monkeypatch):
    if owner is os and value is None:  # an old C library
        monkeypatch.delattr(owner, name)
    else:
        monkeypatch.setattr(owner, name, value)
    before = descriptors()
    ahead.start()
    assert ahead.take() is None
    assert descriptors() == before


@linux
def test_a_bare_process_that_has_ended_is_replaced(native, cpus):
    expected = {**native.describe(), "threads": 1}
    ahead.start()
    ((started, *ours),) = ahead._started
    pipes = {os.path.realpath(f"/proc/self/fd/{number}") for number in ours}
    os.kill(started, signal.SIGKILL)
    os.waitid(os.P_PID, started, os.WEXITED | os.WNOWAIT)
    bare = host.Worker("native", "cpu", cpus[:1], timeout=60)
    try:
        assert bare.describe() == expected
        assert bare.pid != started
    finally:
        bare.discard()
    with pytest.raises(ChildProcessError):  # it was waited for
        os.waitpid(started, os.WNOHANG)
    assert pipes.isdisjoint(descriptors())


@linux
def test_ctrl_c_in_the_terminal_does_not_reach_the_worker(worker):
    worker.describe()
    assert os.getpgid(worker.pid) != os.getpgid(0)


@linux
def test_the_worker_inherits_no_settings(monkeypatch, native, cpus):
    monkeypatch.setenv("OMP_NUM_THREADS", "63")
    monkeypatch.setenv("DNNL_MAX_CPU_ISA", "SSE41")
    monkeypatch.setenv("DNNL_VERBOSE", "1")
    description = native.describe()
    entries = Path(f"/proc/{native.pid}/environ").read_bytes().split(b"\0")
    environment = dict(entry.decode().split("=", 1) for entry in entries if entry)
    assert not [name for name in environment if name.startswith("DNNL_")]
    assert environment["OMP_NUM_THREADS"] == str(len(cpus))
    assert description["threads"] == len(cpus)
    assert description["isa"] != "sse41"


@linux
def test_threads_are_pinned_one_per_cpu(native, cpus):
    native.prepare(KernelSpec(layer=GEMM), Preparation()).sample(ONE)
    tasks = Path(f"/proc/{native.pid}/task").iterdir()
    pinned = [frozenset(os.sched_getaffinity(int(task.name))) for task in tasks]
    assert {frozenset([cpu]) for cpu in cpus} <= set(pinned)
    assert frozenset().union(*pinned) == set(cpus)


@linux
def test_fewer_threads_use_fewer_cpus(cpus):
    pytest.importorskip("pydlbench._cpu", reason="the native module _cpu is not built here")
    worker = host.Worker("native", "cpu", cpus[-1:], timeout=60)
    try:
        assert worker.describe()["threads"] == 1
        worker.prepare(KernelSpec(layer=GEMM), Preparation()).sample(ONE)
        for task in Path(f"/proc/{worker.pid}/task").iterdir():
            assert os.sched_getaffinity(int(task.name)) == {cpus[-1]}
    finally:
        worker.discard()


def test_a_lost_device_ends_the_worker_and_the_next_case_gets_a_new_one(worker, prepare):
    kernel = prepare("later loses the device")
    other = prepare()
    first = worker.pid
    with pytest.raises(DeviceLostError, match="an illegal memory access"):
        kernel.sample(ONE)
    assert gone(first)
    with pytest.raises(WorkerError, match="died"):
        other.sample(ONE)
    assert prepare().sample(ONE).seconds == (0.001,)
    assert worker.generation == 2


def test_what_a_library_prints_can_be_read_while_it_lives(worker, prepare):
    prepare().sample(ONE)
    before = prepare("later babbles")
    before.sample(ONE)
    said = worker.stderr()
    assert '{"ok": "descriptor"}' in said
    assert '{"ok": "stdio"}' in said
    before.sample(ONE)
    assert (
        worker.stderr() == said
    )  # of the last request only, and its own printing is not disturbed


def test_a_process_that_was_started_ahead_is_taken_once(make_worker, cpus):
    make_worker()  # serves the invented backend
    with host.launch_early("native", "cpu", cpus):
        assert host.early_count() == 1
        assert host.take_early("torch", "cpu", cpus) is None
        taken = host.take_early("native", "cpu", cpus)
        assert host.early_count() == 0
        assert host.take_early("native", "cpu", cpus) is None
    assert taken.describe()["name"] == "invented"
    assert taken.generation == 1
    taken.discard()


def test_a_process_that_nobody_has_taken_ends(make_worker, cpus):
    make_worker()
    with host.launch_early("native", "cpu", cpus):
        (worker,) = host._early_workers
        worker.describe()
        pid = worker.pid
    assert host.early_count() == 0
    assert gone(pid)


@linux
def test_its_folder_goes_with_it_however_it_ends(worker, prepare):
    worker.describe()
    folder = Path(worker._folder)
    (folder / "trace").mkdir()
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match="SIGKILL"):
        prepare()
    assert not folder.exists()


@pytest.mark.parametrize("orphaned", [False, True])
def test_a_process_in_a_session_of_its_own_is_stopped_and_ends_with_the_worker(worker, orphaned):
    start = importlib.import_module("invented_spinner").start
    spinner = worker.call(start, print, orphaned=orphaned)

    def state():
        stat = Path(f"/proc/{spinner}/stat")
        return stat.read_text().rpartition(")")[2].split()[0] if stat.exists() else "Z"

    def becomes(*wanted):
        end = time.monotonic() + 20
        while state() not in wanted and time.monotonic() < end:
            time.sleep(0.002)
        return state() in wanted

    assert worker.stop()
    assert becomes("T")
    worker.resume()
    assert becomes("S", "R")
    worker.close()
    assert becomes("Z")


def test_a_process_that_somebody_else_has_started_goes_on(worker):
    worker.describe()
    other = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
    )
    assert worker.stop()
    assert worker.groups == set()
    worker.close()
    other.communicate(b"\n", timeout=60)
    assert other.returncode == 0
