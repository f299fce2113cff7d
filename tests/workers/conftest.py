from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from pydlbench.backends.base import Preparation
from pydlbench.backends.case import Case
from pydlbench.layers import Gemm
from pydlbench.workers import host

_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "import invented_backend; "
    "from pydlbench.backends import registry; registry.load = invented_backend.create; "
    "from pydlbench.workers.worker import main; main()"
)
_LAYER = Gemm(m=2, k=2, n=2)


@pytest.fixture
def cpus():
    """The CPUs that a worker may be pinned to here."""
    return tuple(sorted(os.sched_getaffinity(0)))


@pytest.fixture
def worker(monkeypatch, cpus):
    """A worker that serves the invented backend."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "invented"))
    monkeypatch.setattr(host, "_BOOTSTRAP", _BOOTSTRAP)
    worker = host.Worker("native", "cpu", cpus, timeout=60)
    yield worker
    worker.discard()


@pytest.fixture
def prepare(worker):
    """Prepare the case whose deed is given: ``now crashes``, ``later hangs``."""

    def ask(deed="later works"):
        case = Case(layer=dataclasses.replace(_LAYER, name=deed))
        return worker.prepare(case, Preparation())

    return ask
