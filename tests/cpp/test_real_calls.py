"""The sampler's calls on a GPU: the gate, the clock, the flush, the clean-up."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

_HERE = Path(__file__).parent
_CSRC = _HERE.parent.parent / "csrc"
_PARTS = [
    *("runtime/check.cpp", "runtime/device.cpp", "runtime/handles.cpp"),
    *("runtime/graph_driver.cpp", "runtime/graph_kernels.cpp"),
    *("sampling/clock.cpp", "sampling/kernels.cu", "sampling/real_calls.cpp"),
    "sampling/sampler.cpp",
]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The sampler on the real runtime, compiled for the GPU that is there."""
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None:
        pytest.skip("nvcc is not on the path")
    target = tmp_path_factory.mktemp("real_calls") / "real_calls.so"
    sources = [_HERE / "real_calls.cu", *(_CSRC / "cuda" / part for part in _PARTS)]
    flags = ["-std=c++17", "-O2", "-shared", "-arch=native", "-Xcompiler=-fPIC"]
    flags += ["--expt-relaxed-constexpr", "-I", str(_CSRC), "-o", str(target)]
    built = subprocess.run(
        [nvcc, *flags, *map(str, sources)], capture_output=True, text=True, check=False
    )
    if built.returncode != 0:
        pytest.fail(built.stderr, pytrace=False)
    loaded = ctypes.CDLL(str(target))
    for name in ("gate_timeout", "time_spin", "time_read", "misbehave", "exhaust"):
        getattr(loaded, name).restype = ctypes.c_char_p
    return loaded


def test_only_a_gate_that_nobody_opens_times_out(library):
    timed_out = (ctypes.c_int * 2)(-1, -1)
    assert library.gate_timeout(timed_out) == b""
    assert list(timed_out) == [1, 0]


@pytest.mark.parametrize("inner", [1, 4, 300])
@pytest.mark.parametrize("graph", [0, 1])
def test_cycles_over_seconds_are_the_clock(library, graph, inner):
    # About 0.5 ms: launches and the first polls of the counter are below one percent of it.
    cycles = 1_000_000
    out = (ctypes.c_double * 2)()
    assert library.time_spin(graph, ctypes.c_longlong(cycles), inner, out) == b""
    assert cycles / out[0] == pytest.approx(out[1], rel=0.02)


def test_a_flush_makes_reads_slower_and_a_prefetch_undoes_it(library):
    out = (ctypes.c_double * 4)()
    assert library.time_read(out) == b""
    hot, flushed, prefetched, persisting = out
    # An execution between two events has some microseconds that are no reading.
    assert flushed > 1.1 * hot
    assert prefetched < 0.5 * (hot + flushed)
    assert persisting > 1.1 * hot


@pytest.mark.parametrize("wait", [0, 1])
@pytest.mark.parametrize("graph", [0, 1])
def test_a_work_that_misbehaves_leaves_the_sampler_usable(library, graph, wait):
    first = ctypes.create_string_buffer(400)
    out = ctypes.c_double()
    assert library.misbehave(graph, wait, first, 400, ctypes.byref(out)) == b""
    expected = {
        (0, 0): b"thrown by the work",
        (1, 0): b"thrown by the work",
        (0, 1): b"launch gate: timed out 4 times",
        (1, 1): b"CUDA: cudaErrorStreamCaptureUnsupported",
    }
    assert first.value.startswith(expected[graph, wait])
    assert 0 < out.value < 1e-3


def test_too_much_memory_is_refused_and_leaves_no_error_behind(library):
    first = ctypes.create_string_buffer(400)
    done = ctypes.c_int()
    assert library.exhaust(first, 400, ctypes.byref(done)) == b""
    assert b"a test needs 1125899906 MB of GPU memory" in first.value
    assert done.value == 1
