"""Calls really compute, on the operands they were given, and are over when they return."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("backend")


def operator(function, operands, mode: str, tf32: bool | None = None):
    from pydlbench.backends.tensorflow.layers.layer_pass import FunctionOperator, as_array, upload
    from pydlbench.backends.tensorflow.settings import TensorFlowArithmetic, Tracer

    return FunctionOperator(
        function,
        [upload(array, "float32", "/CPU:0") for array in operands],
        lambda returned: {"dst": as_array(returned)},
        Tracer("/CPU:0", mode),
        TensorFlowArithmetic(dtype="float32", tf32=tf32, accumulate="float32"),
    )


@pytest.mark.parametrize("mode", ["graph", "xla"])
def test_operands_are_no_constants(mode):
    from pydlbench.backends.tensorflow.layers.layer_pass import upload

    one = operator(lambda a, b: a @ b, [np.eye(3, dtype="f"), np.ones((3, 3), "f")], mode)
    before = one.outputs()["dst"]
    twice = one.function(upload(2 * np.eye(3, dtype="f"), "float32", "/CPU:0"), one.operands[1])
    assert np.array_equal(twice.numpy(), 2 * before)
    # The same function still: it was not traced again for the new values.
    assert one.function.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("mode", ["graph", "xla"])
def test_each_call_computes_anew(mode):
    source = np.ones((64, 64), "f")
    one = operator(lambda a: a @ a, [source], mode)
    first, second = one.call(), one.call()
    assert first is not second
    assert np.array_equal(first.numpy(), second.numpy())


def test_a_call_is_over_when_wait_returns():
    from pydlbench.backends.tensorflow.settings import tf

    done = threading.Event()

    def slowly(array: np.ndarray) -> np.ndarray:
        time.sleep(0.3)
        done.set()
        return array

    def function(tensor):
        return tf.numpy_function(slowly, [tensor], tf.float32)

    one = operator(function, [np.ones(3, "f")], "graph")
    one.call()
    one.wait()
    assert done.is_set()


@pytest.mark.parametrize("mode", ["graph", "xla"])
def test_nothing_is_computed_after_wait(mode):
    size = 1200
    one = operator(lambda a: a @ a @ a @ a, [np.ones((size, size), "f")], mode)
    one.call()
    one.wait()
    begin = time.process_time()
    result = one.call()
    one.wait()
    end = time.process_time()
    time.sleep(0.3)  # whatever still ran would add to the process's CPU time
    result.numpy()
    after = time.process_time() - end
    assert end - begin > 0.01
    assert after < 0.3 * (end - begin)


def test_execution_stays_synchronous():
    from pydlbench.backends.tensorflow.settings import tf

    assert tf.config.experimental.get_synchronous_execution()


@pytest.mark.parametrize("mode", ["graph", "xla"])
def test_switches_are_set_before_each_run(backend, mode, monkeypatch):
    from pydlbench.backends.host_clock import HostClock
    from pydlbench.backends.tensorflow.settings import tf
    from pydlbench.timing.chunk import ChunkRequest

    seen = []
    monkeypatch.setattr(
        tf.config.experimental, "enable_tensor_float_32_execution", seen.append, raising=True
    )
    for tf32 in (True, False, None):
        one = operator(lambda a: a + a, [np.ones(2, "f")], mode, tf32)
        one.outputs()
        HostClock(one, backend.cpus, one.guard).sample(ChunkRequest(samples=2))
    assert seen == [True, True, False, False]
