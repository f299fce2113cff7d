"""Tiny models with every operation, and both frameworks' backends in this process."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="session")
def backends() -> dict[str, Any]:
    """The backends of the frameworks that are installed, on the CPU."""
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TensorFlow's imports are full of deprecations
        for name in ("torch", "tensorflow"):
            if importlib.util.find_spec(name):
                module = importlib.import_module(f"pydlbench.backends.{name}.backend")
                found[name] = module.create("cpu")
    return found


@pytest.fixture
def backend(backends: dict[str, Any]) -> Iterator[Callable[[str], Any]]:
    """Return a framework's backend by name, or skip where it is not installed."""

    def get(name: str) -> Any:
        if name not in backends:
            pytest.skip(f"{name} is not installed")
        return backends[name]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield get
