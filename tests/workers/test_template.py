"""Workers that are forks of a process that has imported their framework."""

import os
import signal
from pathlib import Path

import pytest

from pydlbench.workers import host, template


@pytest.fixture
def start(cpus):
    """Start workers of the native backend."""
    started = []

    def start(**limits):
        started.append(host.Worker("native", "cpu", cpus, **{"timeout": 60, **limits}))
        assert started[-1].describe()
        return started[-1]

    yield start
    for worker in started:
        worker.discard()


def is_fork(worker):
    """Whether a template forked the worker: they have one command line."""
    return b"workers.template" in Path(f"/proc/{worker.pid}/cmdline").read_bytes()


def test_workers_of_one_environment_are_forks_of_one_process(preload, start):
    preload("json")
    workers = [start(), start(), start(environment={"MALLOC_ARENA_MAX": "1"})]
    assert all(map(is_fork, workers))
    assert len({worker.pid for worker in workers}) == 3
    assert len(template._templates) == 2


@pytest.mark.parametrize("modules", [(), ("invented_thread",)])
def test_without_a_process_that_may_fork_workers_start_anew(preload, start, modules):
    preload(*modules)
    assert not is_fork(start())


def test_a_module_that_cannot_be_imported_is_left_to_the_worker(preload, start):
    preload("no_such_module")
    assert is_fork(start())


def test_a_template_that_has_died_is_not_needed(preload, start):
    preload("json")
    first = start()
    (only,) = template._templates.values()
    os.kill(only._process.pid, signal.SIGKILL)
    only._process.wait()
    assert first.describe()
    assert not is_fork(start())


def test_a_template_that_hangs_costs_the_time_of_a_start(preload, start):
    preload("invented_hang")
    assert not is_fork(start(start_timeout=2))


def test_forks_end_with_their_worker_and_templates_with_the_process(preload, start):
    preload("json")
    worker = start()
    process = worker._process
    worker.close()
    assert process.returncode == 0
    (only,) = template._templates.values()
    template.close_templates()
    assert not only.alive
