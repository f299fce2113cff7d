"""Inputs: seeded, uniform, on the storage grid, and free of ties where ties have no answer."""

import dataclasses
import os

import numpy as np
import pytest

from pydlbench.devices.cpu.affinity import pinned, process_cpus
from pydlbench.errors import UsageError
from pydlbench.ops.op import Pass
from pydlbench.ops.products import GEMM
from pydlbench.ops.table import build_layer
from pydlbench.verification import inputs, threads
from pydlbench.verification.inputs import make_inputs, round_to
from pydlbench.verification.verify import verify

CONV = build_layer("conv", batch=4, in_channels=8, in_size=12, out_channels=6, kernel=3)


@pytest.mark.parametrize(
    ("pass_", "roles"),
    [
        ("forward", {"src", "weights"}),
        ("backward-data", {"dst", "weights"}),
        ("backward-weights", {"src", "dst"}),
    ],
)
def test_a_pass_gets_what_it_reads(pass_, roles):
    assert set(make_inputs(CONV, pass_, "fp32", 0)) == roles
    assert set(make_inputs(build_layer("gemm", m=2, k=3, n=4), pass_, "fp32", 0)) == roles


def test_only_the_gradient_of_a_maximum_needs_the_source():
    for mode, roles in (("max", {"src", "dst"}), ("avg", {"dst"})):
        layer = build_layer("pool", batch=1, channels=1, in_size=4, kernel=2, mode=mode)
        assert set(make_inputs(layer, "backward-data", "fp32", 0)) == roles


def test_a_new_op_may_read_what_no_other_does():
    forward = Pass(reads=("src", "weights", "mask"), writes=("dst",))
    masked = dataclasses.replace(
        GEMM,
        passes={"forward": forward},
        shapes=lambda s: {**GEMM.shapes(s), "mask": (1, s.m, s.n)},
    )
    inputs = make_inputs(masked.build(m=20, k=30, n=40), "forward", "fp32", 1)
    assert {role: array.shape for role, array in inputs.items()} == {
        "src": (1, 20, 30),
        "weights": (1, 30, 40),
        "mask": (1, 20, 40),
    }
    assert abs(np.corrcoef(inputs["mask"].ravel()[:600], inputs["src"].ravel())[0, 1]) < 0.2


def test_a_seed_stands_for_its_values_and_roles_are_independent():
    first, again, other = (make_inputs(CONV, "forward", "fp32", seed) for seed in (7, 7, 8))
    for role, array in first.items():
        np.testing.assert_array_equal(array, again[role])
        assert np.mean(array == other[role]) < 0.01
    weights = make_inputs(CONV, "backward-data", "fp32", 7)["weights"]
    np.testing.assert_array_equal(weights, first["weights"])
    src, weights = first["src"].ravel(), first["weights"].ravel()
    assert abs(np.corrcoef(src[: weights.size], weights)[0, 1]) < 0.2


def test_values_depend_on_the_index_not_on_the_blocks_that_threads_make(monkeypatch):
    layer = build_layer("gemm", m=64, k=64, n=2)
    whole = make_inputs(layer, "forward", "bf16", 0)["src"]
    monkeypatch.setattr(inputs, "_BLOCK", 1024)
    np.testing.assert_array_equal(make_inputs(layer, "forward", "bf16", 0)["src"], whole)
    np.testing.assert_array_equal(whole, round_to("bf16", whole))
    blocks = whole.reshape(4, 1024)
    assert len(np.unique(blocks[:, 0])) > 1
    assert np.abs(blocks.mean(axis=1)).max() < 0.1


def test_blocks_are_made_on_all_cpus_of_the_process_where_its_thread_is_bound(monkeypatch):
    cpus = process_cpus()
    if len(cpus) < 2:
        pytest.skip("a single CPU")
    found = []

    def note(*_: object) -> None:
        found.append(sorted(os.sched_getaffinity(0)))

    monkeypatch.setattr(threads, "process_cpus", lambda: cpus)
    monkeypatch.setattr(inputs, "_BLOCK", 4)
    monkeypatch.setattr(inputs, "_fill_block", note)
    with pinned(cpus[0]):
        inputs.fill_uniform(np.empty(8, dtype=np.float32), (1, 2), "fp32")
    assert found == [cpus, cpus]


def test_values_are_uniform_between_minus_one_and_one():
    values = make_inputs(build_layer("gemm", m=300, k=333, n=1), "forward", "fp32", 0)["src"]
    assert values.min() >= -1
    assert values.max() < 1
    counts, _ = np.histogram(values, bins=10, range=(-1, 1))
    assert np.all(np.abs(counts / values.size - 0.1) < 0.005)


@pytest.mark.parametrize("precision", ["tf32", "fp16", "bf16", "fp8-tc"])
def test_values_are_representable(precision):
    for array in make_inputs(CONV, "forward", precision, 0).values():
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, round_to(precision, array))
        assert len(np.unique(array)) > 50


def test_four_bits_round_to_their_few_values():
    values = np.array([0.2, 0.25, 0.3, 0.76, 1.24, 2.4, 2.5, 3.6, 4.9, 5.1, 9, -0.3], np.float32)
    rounded = [0, 0, 0.5, 1, 1, 2, 2, 4, 4, 6, 6, -0.5]
    np.testing.assert_array_equal(round_to("nvfp4-tc", values), np.float32(rounded))


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("kernel", [2, (3, 2), 7])
def test_no_ties_within_a_pooling_window(precision, kernel):
    layer = build_layer("pool", batch=3, channels=4, in_size=(14, 13), kernel=kernel, stride=1)
    source = make_inputs(layer, "backward-data", precision, 0)["src"]
    np.testing.assert_array_equal(source, round_to(precision, source))
    assert source.min() >= -1
    assert source.max() <= 1
    shape = (layer.kernel[0], layer.kernel[1])
    windows = np.lib.stride_tricks.sliding_window_view(source, shape, axis=(2, 3))
    ordered = np.sort(windows.reshape(*windows.shape[:4], -1), axis=-1)
    assert np.all(np.diff(ordered, axis=-1) > 0)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_products_of_thousands_of_elements_stay_normal(precision):
    layer = build_layer("cumprod", batch=50, channels=1, height=1, width=4096)
    source = make_inputs(layer, "forward", precision, 0)["src"]
    np.testing.assert_array_equal(source, round_to(precision, source))
    products = np.cumprod(source.astype(np.float64), axis=-1)
    assert np.abs(products).min() > 2.0**-14  # the smallest normal number of fp16
    assert np.abs(products).max() < 65504
    assert 0.4 < np.mean(source < 0) < 0.6
    assert np.unique(source).size > 20


def test_maxima_are_spread_over_the_window():
    layer = build_layer("pool", batch=20, channels=20, in_size=12, kernel=3, stride=3)
    source = make_inputs(layer, "backward-data", "bf16", 0)["src"]
    windows = source.reshape(20, 20, 4, 3, 4, 3).swapaxes(3, 4).reshape(-1, 9)
    shares = np.bincount(windows.argmax(axis=1), minlength=9) / len(windows)
    assert shares.min() > 0.05


def test_bad_requests_are_answered_in_one_line():
    pool = build_layer("pool", batch=1, channels=1, in_size=4, kernel=2)
    for layer, pass_, precision, expected in (
        (pool, "backward-weights", "fp32", "pass backward-weights: pool2d has no such pass"),
        (CONV, "foreward", "fp32", "nearest: forward"),
        (CONV, "forward", "fp31", "precision fp31: no such precision; nearest: fp32"),
    ):
        with pytest.raises(UsageError) as caught:
            make_inputs(layer, pass_, precision, 0)
        assert expected in str(caught.value)
        assert "\n" not in str(caught.value)


def test_verify_names_what_does_not_fit():
    inputs = make_inputs(CONV, "forward", "fp32", 0)
    output = np.zeros((4, 6, 10, 10), np.float32)
    with pytest.raises(UsageError, match=r"dst: has shape \(4, 6, 10\)"):
        verify(CONV, "forward", "fp32", inputs, output[..., 0], 0)
    with pytest.raises(UsageError, match="'weights' is missing"):
        verify(CONV, "forward", "fp32", {"src": inputs["src"]}, output, 0)
    with pytest.raises(UsageError, match="nearest: backward-weights"):
        verify(CONV, "backward-weight", "fp32", inputs, output, 0)
