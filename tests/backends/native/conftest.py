import importlib
import importlib.util
import sys

import fake_cuda
import pytest

# These import the native module at their top.
collect_ignore = [] if importlib.util.find_spec("pydlbench._cpu") else ["test_cpu.py"]

_MODULES = ("cuda", "cuda_plans")


@pytest.fixture
def native(monkeypatch):
    """The invented module, with the backend's own modules imported on top of it."""
    module = fake_cuda.Module()
    fake_cuda.Kernel.made.clear()
    monkeypatch.setitem(sys.modules, "pydlbench._cuda", module)
    import pydlbench

    monkeypatch.setattr(pydlbench, "_cuda", module, raising=False)
    package = importlib.import_module("pydlbench.backends.native")
    for name in _MODULES:
        monkeypatch.delitem(sys.modules, f"pydlbench.backends.native.{name}", raising=False)
        monkeypatch.delattr(package, name, raising=False)
    yield module
    for name in _MODULES:  # built on the invented one: nobody else may see them
        sys.modules.pop(f"pydlbench.backends.native.{name}", None)
        vars(package).pop(name, None)


@pytest.fixture
def backend(native, monkeypatch):
    assert native.offer == []
    cuda = importlib.import_module("pydlbench.backends.native.cuda")
    monkeypatch.setattr(cuda, "load_libraries", dict)
    return cuda.create("cuda:3")
