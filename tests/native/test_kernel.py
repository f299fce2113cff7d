"""Arenas and kernels: poison, views, cache states, samples."""

import subprocess
import sys
import threading

import numpy as np
import pytest

from pydlbench import _cpu
from pydlbench.backends.native.cpu import candidates
from pydlbench.errors import UnsupportedError
from pydlbench.records.measurement import KernelSpec
from pydlbench.verification.inputs import make_inputs


def by_layout(found, layout):
    """The first optimised candidate whose layout holds the words of ``layout``."""
    fast = [candidate for candidate in found if not candidate.is_reference]
    return next(candidate for candidate in fast if layout in candidate.layout)


@pytest.fixture
def inputs(conv):
    return make_inputs(conv, "forward", "fp32", seed=1)


@pytest.fixture
def found(conv):
    return candidates(KernelSpec(layer=conv))


def test_an_output_that_was_never_written_is_nan(found, inputs):
    for candidate in found:
        assert np.isnan(_cpu.Kernel(candidate, _cpu.Arena(inputs)).output()).all()


def test_poison_is_nan_in_every_precision(conv, precision):
    inputs = make_inputs(conv, "forward", precision, seed=1)
    for candidate in candidates(KernelSpec(layer=conv, precision=precision)):
        kernel = _cpu.Kernel(candidate, _cpu.Arena(inputs))
        assert np.isnan(kernel.output()).all()
        kernel.run_poisoned()
        assert np.isfinite(kernel.output()).all()


def test_a_channels_last_output_is_a_view_of_the_kernels_memory(found, inputs):
    kernel = _cpu.Kernel(by_layout(found, "dst nhwc"), _cpu.Arena(inputs))
    assert kernel.output_is_view
    kernel.run_poisoned()
    first, second = kernel.output(), kernel.output()
    assert np.shares_memory(first, second)
    assert first.shape == (2, 32, 7, 7)
    # Channels are the innermost axis in memory.
    assert first.strides == (4 * 32 * 7 * 7, 4, 4 * 32 * 7, 4 * 32)
    first[0, 0, 0, 0] = 42
    assert second[0, 0, 0, 0] == 42


def test_a_view_outlives_its_kernel(found, inputs):
    kernel = _cpu.Kernel(by_layout(found, "dst nhwc"), _cpu.Arena(inputs))
    kernel.run_poisoned()
    view = kernel.output()
    kept = view.copy()
    del kernel
    np.testing.assert_array_equal(view, kept)


def test_a_blocked_output_is_converted(found, inputs):
    kernel = _cpu.Kernel(by_layout(found, "dst nC"), _cpu.Arena(inputs))
    plain = _cpu.Kernel(by_layout(found, "dst nhwc"), _cpu.Arena(inputs))
    assert not kernel.output_is_view
    for each in (kernel, plain):
        each.run_poisoned()
    assert kernel.output().flags.c_contiguous
    np.testing.assert_allclose(kernel.output(), plain.output(), rtol=1e-4, atol=1e-5)


def test_only_fp32_can_be_looked_at_in_place(conv, precision):
    inputs = make_inputs(conv, "forward", precision, seed=1)
    nhwc = by_layout(candidates(KernelSpec(layer=conv, precision=precision)), "dst nhwc")
    kernel = _cpu.Kernel(nhwc, _cpu.Arena(inputs))
    kernel.run_poisoned()
    assert kernel.output_is_view == (precision == "fp32")
    assert kernel.output().dtype == np.float32


@pytest.mark.parametrize(
    ("samples", "inner", "untimed"), [(1, 1, 0), (7, 1, 0), (3, 5, 0), (4, 2, 9)]
)
def test_samples_come_in_the_numbers_asked_for(found, inputs, samples, inner, untimed):
    chunk = _cpu.Kernel(found[0], _cpu.Arena(inputs)).sample(samples, inner, untimed)
    assert chunk["seconds"].shape == (samples,)
    assert (chunk["seconds"] > 0).all()
    assert len(chunk["clock_hz"]) >= 1
    assert (chunk["clock_hz"] > 1e8).all()
    assert chunk["wall_s"] >= inner * chunk["seconds"].sum()
    assert chunk["run_delay_s"] >= 0
    assert chunk["steal_s"] >= 0


@pytest.mark.parametrize(("samples", "inner", "untimed"), [(0, 1, 0), (1, 0, 0), (1, 1, -1)])
def test_a_sample_of_nothing_is_refused(found, inputs, samples, inner, untimed):
    with pytest.raises(ValueError, match="sample"):
        _cpu.Kernel(found[0], _cpu.Arena(inputs)).sample(samples, inner, untimed)


def test_other_threads_run_while_a_kernel_does(found, inputs):
    """Without the GIL released, the other thread could not end the wait before the sample ends."""
    kernel = _cpu.Kernel(found[0], _cpu.Arena(inputs))
    turns = []
    done = threading.Event()

    def count():
        while not done.is_set():
            turns.append(None)
            done.wait(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    before = len(turns)
    while len(turns) < before + 20:
        kernel.sample(50, inner=200)
    inside = len(turns)
    done.set()
    thread.join()
    assert inside >= before + 20


def test_hot_runs_on_one_set(found, inputs):
    assert _cpu.Kernel(found[0], _cpu.Arena(inputs)).rotating_sets == 1


def test_cold_sets_span_what_was_asked_for(found, inputs):
    weights, everything = 9 * 16 * 32 * 4, 4 * (9 * 16 * 32 + 2 * 16 * 49 + 2 * 32 * 49)
    candidate = by_layout(found, "src nhwc, weights")
    sets = {
        state: _cpu.Kernel(candidate, _cpu.Arena(inputs), state, 1_000_000).rotating_sets
        for state in (_cpu.CacheState.weights_cold, _cpu.CacheState.all_cold)
    }
    # One set more than fits would do; packed weights may be a little larger than plain ones.
    assert 1_000_000 / (1.5 * weights) < sets[_cpu.CacheState.weights_cold]
    assert sets[_cpu.CacheState.weights_cold] <= 1_000_000 / weights + 2
    assert sets[_cpu.CacheState.all_cold] <= 1_000_000 / everything + 2
    assert 2 < sets[_cpu.CacheState.all_cold] < sets[_cpu.CacheState.weights_cold]


def test_pooling_has_no_weights_to_keep_cold(max_pool):
    candidate = candidates(KernelSpec(layer=max_pool))[0]
    arena = _cpu.Arena(make_inputs(max_pool, "forward", "fp32", seed=1))
    with pytest.raises(UnsupportedError, match="no weights"):
        _cpu.Kernel(candidate, arena, _cpu.CacheState.weights_cold, 1000)


def test_candidates_share_what_they_read(found, inputs):
    arena = _cpu.Arena(inputs)
    nhwc = [c for c in found if c.layout == by_layout(found, "dst nhwc").layout]
    _cpu.Kernel(nhwc[0], arena)
    once = arena.bytes
    _cpu.Kernel(nhwc[-1], arena)
    assert arena.bytes == once > 0
    arena.clear()
    assert arena.bytes == 0


def test_a_kernel_keeps_its_tensors_when_the_arena_lets_go(found, inputs):
    arena = _cpu.Arena(inputs)
    kernel = _cpu.Kernel(found[0], arena)
    arena.clear()
    del arena
    kernel.run_poisoned()
    assert np.isfinite(kernel.output()).all()


def test_inputs_are_checked(found, inputs):
    with pytest.raises(ValueError, match="no input named"):
        _cpu.Kernel(found[0], _cpu.Arena({}))
    with pytest.raises(ValueError, match="elements"):
        _cpu.Kernel(found[0], _cpu.Arena({**inputs, "src": np.zeros(3, np.float32)}))
    with pytest.raises(TypeError):
        _cpu.Arena({"src": np.zeros(3, np.float64)})


def test_reorders_are_timed_where_a_layout_differs(found, inputs):
    plain = next((c for c in found if c.layout == "src nchw, weights oihw, dst nchw"), None)
    if plain is not None:
        assert _cpu.Kernel(plain, _cpu.Arena(inputs)).reorder_seconds() == {}
    kernel = _cpu.Kernel(by_layout(found, "dst nhwc"), _cpu.Arena(inputs))
    seconds = kernel.reorder_seconds()
    assert {"src", "dst"} <= set(seconds) <= {"src", "weights", "dst"}
    assert all(value > 0 for value in seconds.values())
    assert kernel.setup_seconds > 0


def test_memory_that_is_not_there_is_an_exception():
    """Asked in a process of its own with little address space."""
    script = """
import resource
import pydlbench._cpu as _cpu
from pydlbench.records.measurement import KernelSpec
from pydlbench.backends.native.cpu import candidates
from pydlbench.verification.inputs import make_inputs
from pydlbench.errors import InsufficientMemoryError
from pydlbench.ops.table import build_layer
layer = build_layer("gemm", m=4, k=512, n=512)
arena = _cpu.Arena(make_inputs(layer, "forward", "fp32", 0))
candidate = candidates(KernelSpec(layer=layer))[0]
_, hard = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, hard))
try:
    _cpu.Kernel(candidate, arena, _cpu.CacheState.all_cold, 16 << 30)
except InsufficientMemoryError as error:
    print("caught", isinstance(error, MemoryError), error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("caught True cannot allocate"), done.stderr


@pytest.mark.parametrize("cache", ["hot", "all_cold"])
def test_touching_the_operands_changes_nothing(found, inputs, cache):
    kernel = _cpu.Kernel(
        by_layout(found, "dst nhwc"), _cpu.Arena(inputs), _cpu.CacheState[cache], 1 << 16
    )
    kernel.run_poisoned()
    before = kernel.output().copy()
    kernel.touch()
    np.testing.assert_array_equal(kernel.output(), before)
    assert len(kernel.sample(2)["seconds"]) == 2
