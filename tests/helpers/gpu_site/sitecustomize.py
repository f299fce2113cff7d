"""Gives a Python process, and the workers that it starts, an invented GPU.

Python imports this module when it starts, if its folder is in ``PYTHONPATH``. ``pydlbench._cuda``
is then :mod:`invented_native`, and PyTorch gets :mod:`invented_torch` when it is imported.
"""

import importlib.abc
import importlib.util
import os
import sys
from pathlib import Path

_FOLDER = Path(__file__).parent


class InventedFinder(importlib.abc.MetaPathFinder):
    """Finds the invented native module, and completes PyTorch after its import."""

    def find_spec(self, name, _path=None, _target=None):
        if name == "pydlbench._cuda" and "module" not in os.environ.get("INVENTED_GPU", ""):
            return importlib.util.spec_from_file_location(name, _FOLDER / "invented_native.py")
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        found = importlib.util.find_spec(name)
        sys.meta_path.insert(0, self)
        if found is not None:
            found.loader = CompletingLoader(found.loader)
        return found


class CompletingLoader(importlib.abc.Loader):
    """Loads PyTorch as usual, then makes its ``cuda`` an invented one."""

    def __init__(self, loader):
        self._loader = loader

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._loader.exec_module(module)
        import invented_torch

        invented_torch.install(module)

    def __getattr__(self, name):
        return getattr(self._loader, name)


sys.meta_path.insert(0, InventedFinder())
