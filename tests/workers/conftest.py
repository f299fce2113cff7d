import dataclasses
import os
from pathlib import Path

import pytest

from pydlbench.backends.base import Preparation
from pydlbench.backends.capabilities import declaration
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec
from pydlbench.workers import host, template

_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "import invented_backend; "
    "from pydlbench.backends import capabilities; capabilities.load = invented_backend.create; "
    "from pydlbench.workers.worker import main; main()"
)
_LAYER = build_layer("gemm", m=2, k=2, n=2)


@pytest.fixture
def cpus():
    """The CPUs that a worker may be pinned to here."""
    return tuple(sorted(os.sched_getaffinity(0)))


@pytest.fixture
def preload(monkeypatch):
    """Replace the modules that a template imports for the workers of a backend."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "invented"))
    native = declaration("native")
    template.close_templates()  # those of other tests

    def replace(*modules):
        declared = dataclasses.replace(native, preload=modules)
        monkeypatch.setattr(host, "declaration", lambda _: declared)

    yield replace
    template.close_templates()


@pytest.fixture(params=["new process", "fork"])
def make_worker(request, monkeypatch, cpus, preload):
    """Make workers that serve the invented backend."""
    monkeypatch.setattr(host, "_BOOTSTRAP", _BOOTSTRAP)
    preload(*(("invented_preload",) if request.param == "fork" else ()))
    made = []

    def make(**limits):
        made.append(host.Worker("native", "cpu", cpus, **{"timeout": 60, **limits}))
        return made[-1]

    yield make
    for worker in made:
        worker.discard()


@pytest.fixture
def worker(make_worker):
    """A worker that serves the invented backend."""
    return make_worker()


@pytest.fixture
def prepare_in():
    """Prepare the case whose deed is given in a worker: ``now crashes``, ``later hangs``."""

    def ask(worker, deed="later works"):
        case = KernelSpec(layer=dataclasses.replace(_LAYER, name=deed))
        return worker.prepare(case, Preparation())

    return ask


@pytest.fixture
def prepare(worker, prepare_in):
    """The same in the one worker."""

    def ask(deed="later works"):
        return prepare_in(worker, deed)

    return ask
