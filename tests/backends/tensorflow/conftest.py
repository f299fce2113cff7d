"""One TensorFlow backend for all of these tests: it takes seconds to start."""

from __future__ import annotations

import importlib
import os
import warnings
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydlbench.backends.tensorflow.backend import TensorflowBackend

CPUS = sorted(os.sched_getaffinity(0))


@pytest.fixture(scope="session")
def tensorflow_backend() -> TensorflowBackend:
    """The backend on the CPU, with as many threads as the tests may use."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TensorFlow's imports are full of deprecations
        pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
        backend = importlib.import_module("pydlbench.backends.tensorflow.backend")
    return backend.create("cpu")


@pytest.fixture
def backend(tensorflow_backend: TensorflowBackend) -> Iterator[TensorflowBackend]:
    """The same, in tests where its warnings are of no interest."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield tensorflow_backend
