"""Functions that a worker calls: they import modules, and tell which are imported."""

import importlib
import os
import resource
import sys


def load(backend, tell, name, setting=""):
    del backend, tell
    if setting:
        os.environ[setting] = "1"
    importlib.import_module(name)


def loaded(backend, tell, names):
    del backend, tell
    return [name for name in names if name in sys.modules]


def faults(backend, tell, size):
    """Return the page faults of a block that is allocated after another one was freed."""
    del backend, tell
    bytearray(size)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = bytearray(size)
    block[:: resource.getpagesize()] = bytes(len(range(0, size, resource.getpagesize())))
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
