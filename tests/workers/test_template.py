"""Workers that are forks of a process that has imported their framework."""

import importlib
import importlib.machinery
import importlib.metadata
import os
import resource
import signal
import sys
import sysconfig
import types
from pathlib import Path

import pytest

from pydlbench.errors import WorkerError
from pydlbench.workers import host, template
from pydlbench.workers.environment import KEEP_PAGES

#: A module of a package that workers have imported in part.
FURTHER = "pydlbench.report.drawing"


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


@pytest.mark.deep
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


@pytest.fixture
def ask(preload):
    """Have a worker call a function of ``invented_modules``."""
    preload("json")
    functions = importlib.import_module("invented_modules")

    def ask(worker, function, **arguments):
        return worker.call(getattr(functions, function), print, **arguments)

    return ask


def test_what_a_worker_imports_the_next_ones_have(ask, start):
    first = start()
    ask(first, "load", name=FURTHER)
    second, third = start(), start()
    for worker in (second, third):
        assert is_fork(worker)
        assert ask(worker, "loaded", names=[FURTHER]) == [FURTHER]


def test_what_a_users_code_imports_the_next_ones_do_not_have(ask, start):
    """A package may change the framework, as those that replace its kernels do."""
    ask(start(), "load", name="iniconfig")
    assert ask(start(), "loaded", names=["iniconfig"]) == []


def test_required_packages_are_those_of_requirements_in_turn(monkeypatch):
    lines = {
        "one": ["Two-A>=1; extra == 'more'", "two.b (>=3)", "three"],
        "three": ["Four-C", "one"],
    }

    def requires(name):
        if name not in lines:
            raise importlib.metadata.PackageNotFoundError
        return lines[name]

    monkeypatch.setattr(template.metadata, "requires", requires)
    assert template._required_by(["one.part"]) == {"one", "two.b", "three", "four_c"}


def test_the_end_of_a_worker_is_seen_when_its_template_has_imported_more(ask, start):
    ask(start(), "load", name=FURTHER)
    worker = start()
    os.kill(worker.pid, signal.SIGKILL)
    worker.timeout = 2
    with pytest.raises(WorkerError, match="SIGKILL"):
        worker.probe("empty_call")


def test_no_process_of_a_template_is_left(ask, start):
    ask(start(), "load", name=FURTHER)
    assert is_fork(start())
    (only,) = template._templates.values()
    template.close_templates()
    with pytest.raises(ProcessLookupError):
        os.killpg(only._process.pid, 0)


def test_forks_of_one_process_keep_pages_or_not(ask, start):
    size = 1 << 26
    new = start()
    kept = start(environment=KEEP_PAGES)
    assert is_fork(kept)
    assert len(template._templates) == 1
    pages = size // resource.getpagesize()
    assert ask(kept, "faults", size=size) < pages / 100
    assert ask(new, "faults", size=size) > pages / 600  # pages may be of two megabytes


def test_what_a_changed_environment_may_have_changed_is_imported_anew(ask, start):
    first = start()
    ask(first, "load", name=FURTHER, setting="INVENTED_SETTING")
    assert ask(start(), "loaded", names=[FURTHER]) == []


@pytest.mark.parametrize("module", ["invented_thread", "invented_end", "no_such_module"])
def test_a_template_goes_on_without_what_it_cannot_import(ask, start, module):
    start()
    (only,) = template._templates.values()
    only.learn([module])
    for worker in (start(), start()):
        assert is_fork(worker)
        assert ask(worker, "loaded", names=[module]) == []


def test_only_installed_modules_are_reported(monkeypatch, tmp_path):
    imported = template.ImportedModules(("KEPT_",), ["installed_one", "users_one"])
    purelib = sysconfig.get_paths()["purelib"]
    folders = {"installed_one": purelib, "users_one": str(tmp_path), "another_one": purelib}
    for name, folder in folders.items():
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, origin=f"{folder}/{name}.py")
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("KEPT_CACHE", "1")
    assert imported.new() == ["installed_one"]
    assert imported.new() == []
