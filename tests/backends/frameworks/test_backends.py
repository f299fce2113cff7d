"""What backends of frameworks have in common: clocks, empty calls, and results that are wrong."""

from __future__ import annotations

import dataclasses
import importlib
import platform
import subprocess
import sys
import warnings

import numpy as np
import problems
import pytest

from pydlbench.backends.base import Preparation
from pydlbench.errors import PrimitiveError, UnsupportedError
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec
from pydlbench.timing.chunk import ChunkRequest

CONV = build_layer("conv", batch=1, in_channels=2, in_size=5, out_channels=3, kernel=3, padding=1)
GEMM = problems.LAYERS["product"]
#: A mode of each, and one that it has not.
MODES = {"torch": ("eager", "xla"), "tensorflow": ("graph", "eager"), "jax": ("xla", "eager")}


def backend_of(name):
    """Return a framework's backend on the CPU; one without a mode is always compiled."""
    pytest.importorskip(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TensorFlow's imports are full of deprecations
        return importlib.import_module(f"pydlbench.backends.{name}.backend").create("cpu")


_LOOP = """
import ctypes, sys
from pydlbench.backends.frameworks.backend import adapt_allocator
from pydlbench.backends.host_clock import page_faults
library = ctypes.CDLL(None)
library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
if sys.argv[1] == "adapted":
    adapt_allocator()
for call in range(17):
    if call == 12:
        before = page_faults()
    blocks = [library.malloc(ctypes.c_size_t(12 << 20)) for _ in range(3)]
    for block in blocks:
        ctypes.memset(block, 1, 12 << 20)
    for block in blocks:
        library.free(block)
print(page_faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="thresholds of glibc")
def test_an_adapted_allocator_keeps_the_pages_of_results_that_a_loop_drops():
    faults = {
        state: int(subprocess.check_output([sys.executable, "-c", _LOOP, state]))
        for state in ("fresh", "adapted")
    }
    assert faults["adapted"] < 100
    assert faults["fresh"] > 10_000  # three blocks of 3,072 pages in each of five calls


@pytest.mark.parametrize("name", [*MODES, "numba"])
def test_samples_are_counted_and_results_are_of_each_call(name):
    backend = backend_of(name)
    kernel = backend.prepare(KernelSpec(layer=GEMM), Preparation())
    chunk = kernel.sample(ChunkRequest(samples=3, inner=2, untimed=1))
    assert len(chunk.seconds) == 3
    assert chunk.voluntary is not None
    assert chunk.involuntary is not None
    assert min(chunk.seconds) > 0
    assert chunk.threads == len(backend.cpus)
    assert kernel.facts.timing == "steady"
    assert backend.describe()["threads"] == len(backend.cpus)


@pytest.mark.parametrize("name", [*MODES, "numba"])
def test_an_empty_call_is_timed(name):
    backend = backend_of(name)
    mode, missing = MODES.get(name, (None, None))
    assert np.isfinite(backend.empty(mode).outputs()["dst"]).all()
    found = backend.probe("empty_call", {"mode": mode, "samples": 3, "inner": 2})
    assert 0 < found["least_s"] <= found["seconds"]
    if missing:
        with pytest.raises(UnsupportedError, match=f"no mode {missing}"):
            backend.empty(missing)


#: Layers and one of their results.
WRONG = [
    *((layer, "forward", "none", "dst") for layer in (CONV, GEMM, problems.LAYERS["max"])),
    *((layer, "backward-weights", "none", "weights") for layer in (CONV, GEMM)),
    *((layer, "forward", "bias", "dst") for layer in (CONV, GEMM)),
    *((CONV, "backward-weights", "bias", role) for role in ("weights", "bias")),
    *(
        (problems.POINTWISE[op], "forward", "none", role)
        for op, role in (
            ("relu", "dst"),
            ("batchnorm", "running_variance"),
            ("momentum", "velocity"),
            ("softmax-xent", "loss"),
            ("dropout", "dst"),
        )
    ),
]


@pytest.mark.parametrize(
    ("name", "layer", "pass_", "fuse", "role"),
    [(name, *wrong) for name in MODES for wrong in (WRONG[:3] if name == "jax" else WRONG)],
)
def test_a_wrong_result_is_found_whichever_it_is(monkeypatch, name, layer, pass_, fuse, role):
    backend = backend_of(name)
    case = KernelSpec(layer=layer, pass_=pass_, fuse=fuse, propagation="training")
    variant = backend.variants(case)[0]

    def build(inputs):
        operator = variant.build(inputs)
        right = operator.outputs

        def wrong():
            found = {key: array.copy() for key, array in right().items()}
            found[role].reshape(-1)[-1] += 0.7531
            return found

        operator.outputs = wrong
        return operator

    changed = dataclasses.replace(variant, build=build)
    monkeypatch.setattr(backend, "variants", lambda _: [changed])
    with pytest.raises(PrimitiveError, match="wrong result: "):
        backend.prepare(case, Preparation())
