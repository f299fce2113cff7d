"""The FMA probe's kernels: each multiply-add is done and counted."""

import ctypes

import numpy as np
import pytest

PRECISIONS = ("fp32", "fp16")


@pytest.fixture(scope="module")
def library(cpp_library):
    cpp_library.flops_of_fma.restype = ctypes.c_double
    return cpp_library


def make_seeds(library, precision):
    """Return a row per register: one float32, or two float16."""
    half = library.fma_seeds() // 2
    random = np.random.default_rng(7)
    angles = random.uniform(0.1, 0.2, (half, 2))
    starts = random.uniform(-0.75, 0.75, (half, 2))
    values = np.concatenate([angles, starts])
    return values.astype(np.float16) if precision == "fp16" else values[:, :1].astype(np.float32)


def run(library, precision, seeds, blocks, threads, iterations):
    results = np.full((blocks * threads + 1, seeds.shape[1]), np.nan, seeds.dtype)
    library.run_fma(
        int(precision == "fp16"),
        blocks,
        threads,
        seeds.ctypes.data_as(ctypes.c_void_p),
        results.ctypes.data_as(ctypes.c_void_p),
        iterations,
    )
    assert np.isnan(results[-1]).all()
    return results[:-1]


def predict(library, seeds, threads, iterations):
    """Do the same steps, each rounded once, and count the multiply-adds of one thread."""
    half, pairs = library.fma_seeds() // 2, library.fma_pairs()
    thread, pair = np.meshgrid(np.arange(threads), np.arange(pairs), indexing="ij")
    a = seeds[np.arange(threads) % half][:, None].astype(np.float64)
    x = seeds[half + (thread + pair) % half].astype(np.float64)
    y = seeds[half + (thread + pair + pairs) % half].astype(np.float64)

    def rounded(values):
        return values.astype(seeds.dtype).astype(np.float64)

    multiply_adds = 0
    for _ in range(iterations * library.fma_steps()):
        x = rounded(x + a * y)
        y = rounded(y - a * x)
        multiply_adds += 2 * pairs * seeds.shape[1]
    total = rounded(x[:, 0] + y[:, 0])
    for i in range(1, pairs):
        total = rounded(rounded(total + x[:, i]) + y[:, i])
    return total.astype(seeds.dtype), multiply_adds


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("iterations", [1, 3])
def test_every_multiply_add_is_done_and_counted(library, precision, iterations):
    blocks, threads = 2, 70
    seeds = make_seeds(library, precision)
    expected, multiply_adds = predict(library, seeds, threads, iterations)
    found = run(library, precision, seeds, blocks, threads, iterations)
    np.testing.assert_array_equal(found, np.tile(expected, (blocks, 1)))
    counted = library.flops_of_fma(int(precision == "fp16"), blocks, threads, iterations)
    assert counted == 2 * multiply_adds * blocks * threads


@pytest.mark.parametrize("precision", PRECISIONS)
def test_values_stay_bounded_and_keep_changing(library, precision):
    seeds = make_seeds(library, precision)
    seen = [run(library, precision, seeds, 1, 32, n).astype(np.float64) for n in (9, 10, 11)]
    limit = 16 * 2.0
    assert all(np.isfinite(values).all() and np.abs(values).max() < limit for values in seen)
    assert (seen[0] != seen[1]).mean() > 0.9
    assert (seen[1] != seen[2]).mean() > 0.9
