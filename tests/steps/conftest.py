"""Tiny models with every operation, and the frameworks' backends in this process."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import warnings
from typing import Any

import pytest


@functools.cache
def created(name: str) -> Any:
    """Return a framework's backend on the CPU; one is imported where a test asks for it."""
    return importlib.import_module(f"pydlbench.backends.{name}.backend").create("cpu")


@pytest.fixture
def backend():
    """Return a framework's backend by name, or skip where it is not installed."""

    def get(name: str) -> Any:
        if not importlib.util.find_spec(name):
            pytest.skip(f"{name} is not installed")
        return created(name)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TensorFlow's imports are full of deprecations
        yield get
