"""One TensorFlow backend for all of these tests: it takes seconds to start."""

import importlib
import os
import warnings

import pytest

CPUS = sorted(os.sched_getaffinity(0))


@pytest.fixture(scope="session")
def tensorflow_backend():
    """The backend on the CPU, with as many threads as the tests may use."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TensorFlow's imports are full of deprecations
        pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
        backend = importlib.import_module("pydlbench.backends.tensorflow.backend")
    return backend.create("cpu")


@pytest.fixture
def backend(tensorflow_backend):
    """The same, in tests where its warnings are of no interest."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield tensorflow_backend
