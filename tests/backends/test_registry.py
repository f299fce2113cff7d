from __future__ import annotations

import pytest

from pydlbench.backends import capabilities as registry
from pydlbench.backends import native
from pydlbench.errors import BackendMissingError, UsageError


@pytest.mark.parametrize(("name", "device"), [("native", "tpu"), ("jax", "cpu")])
def test_an_unknown_backend_is_refused_with_what_there_is(name, device):
    message = f"backend {name} on {device}: .*there is: .*native on cpu"
    with pytest.raises(UsageError, match=message):
        registry.load(name, device)


def test_the_native_backend_loads():
    pytest.importorskip("pydlbench._cpu", reason="the native module _cpu is not built here")
    backend = registry.load("native", "cpu")
    assert backend.name == "native"
    assert backend.describe()["name"] == "oneDNN"


def test_a_module_that_is_not_there_says_why():
    with pytest.raises(BackendMissingError, match=r"pydlbench\._tpu cannot be loaded: .*_tpu"):
        native.native_module("_tpu")


def test_the_reason_recorded_at_build_time_is_given(monkeypatch):
    build = pytest.importorskip("pydlbench._build")
    monkeypatch.setattr(build, "TPU_MISSING", "no oneDNN for this machine", raising=False)
    with pytest.raises(BackendMissingError, match=r"^no oneDNN for this machine$"):
        native.native_module("_tpu")


def test_without_a_build_the_command_is_given(monkeypatch):
    def refuse(name):
        raise ImportError(name)

    monkeypatch.setattr("importlib.import_module", refuse)
    with pytest.raises(BackendMissingError, match="pip install"):
        native.native_module("_cpu")
