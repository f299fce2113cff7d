"""Functions that a worker calls: they import modules, and tell which are imported."""

import importlib
import os
import sys


def load(backend, tell, name, setting=""):
    del backend, tell
    if setting:
        os.environ[setting] = "1"
    importlib.import_module(name)


def loaded(backend, tell, names):
    del backend, tell
    return [name for name in names if name in sys.modules]
