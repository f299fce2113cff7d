"""Planted faults of known size: each is named with its seconds, and nothing else is."""

import pytest

from pydlbench.runner.attribution import Account, Evidence, causes, unexplained_s

BEST = Account(time_s=10e-3, allocation_s=0.0, empty_s=0.0, reorder_s=0.0, kernel="brg:avx512")
GENERIC = [
    "ref:any",
    "x64:gemm:jit",
    "gemm:jit",
    "simple_nchw:any",
    "brg_conv_fwd:avx512_core + ref:any",
    "MKL SGEMM(T,N)",
    "im2col + cuBLAS",
]
TUNED = ["brg_conv_fwd:avx512_core", "jit:avx512_core", "brgemm:avx512_core", "brg_matmul:avx2"]


def evidence(time_s, best=BEST, kind="conv2d", packing=None, **parts):
    return Evidence(
        own=Account(time_s=time_s, **parts), best=best, kind=kind, plain_over_packed=packing
    )


def named(found):
    return {cause.name: pytest.approx(cause.seconds) for cause in causes(found)}


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        ({"allocation_s": 6e-3}, "allocation"),
        ({"reorder_s": 6e-3}, "reorders"),
        ({"empty_s": 6e-3}, "dispatch"),
        ({"kernel": "ref:any", "kernel_s": 16e-3}, "generic kernel"),
        ({"kernel": "jit:avx2", "kernel_s": 16e-3}, "slower kernel"),
    ],
)
def test_each_fault_is_named_with_its_seconds_and_share(parts, name):
    found = evidence(18e-3, **parts)
    (cause,) = causes(found)
    assert (cause.name, cause.seconds) == (name, pytest.approx(6e-3))
    assert cause.share == pytest.approx(0.75)
    assert cause.how
    assert unexplained_s(found) == pytest.approx(2e-3)
    assert cause.to_dict()["cause"] == name


def test_unpacked_weights_are_what_packing_brings_the_fastest():
    found = evidence(18e-3, kind="gemm", packing=1.6, kernel="MKL SGEMM(N,N)", kernel_s=18e-3)
    assert named(found) == {"weights not packed": 6e-3, "slower kernel": 2e-3}
    assert unexplained_s(found) == pytest.approx(0)


def test_unpacked_weights_cannot_bring_more_than_the_kernel_loses():
    found = evidence(18e-3, kind="gemm", packing=2, kernel="SGEMM", kernel_s=13e-3)
    assert named(found) == {"weights not packed": 3e-3}
    found = evidence(18e-3, kind="gemm", packing=3, allocation_s=5e-3)
    assert named(found) == {"weights not packed": 3e-3, "allocation": 5e-3}


def test_all_at_once_add_up_to_the_gap():
    found = evidence(
        25e-3,
        allocation_s=4e-3,
        empty_s=1e-3,
        reorder_s=3e-3,
        kernel="ref:any",
        kernel_s=15e-3,
    )
    assert [cause.name for cause in causes(found)] == [
        "generic kernel",
        "allocation",
        "reorders",
        "dispatch",
    ]
    assert sum(cause.share for cause in causes(found)) == pytest.approx(13 / 15)
    assert unexplained_s(found) == pytest.approx(2e-3)


def test_without_evidence_nothing_is_invented():
    found = evidence(30e-3)
    assert causes(found) == []
    assert unexplained_s(found) == pytest.approx(20e-3)


def test_a_kernel_that_is_as_fast_is_no_cause_whatever_it_is_called():
    assert causes(evidence(30e-3, kernel="ref:any", kernel_s=10e-3)) == []
    assert causes(evidence(30e-3, kernel="ref:any")) == []


def test_what_the_fastest_spends_as_well_is_no_cause():
    best = Account(
        time_s=10e-3,
        allocation_s=4e-3,
        empty_s=1e-3,
        reorder_s=1e-3,
        kernel="brg:avx512",
        kernel_s=4e-3,
    )
    found = evidence(
        16e-3, best, allocation_s=4e-3, empty_s=1e-3, reorder_s=3e-3, kernel="jit", kernel_s=8e-3
    )
    assert named(found) == {"slower kernel": 4e-3, "reorders": 2e-3}
    assert unexplained_s(found) == pytest.approx(0)


def test_a_logged_call_that_was_slow_is_scaled_into_the_time():
    found = evidence(18e-3, allocation_s=2e-3, reorder_s=8e-3, kernel="jit", kernel_s=24e-3)
    assert named(found) == {"reorders": 4e-3, "allocation": 2e-3, "slower kernel": 2e-3}
    assert unexplained_s(found) == pytest.approx(0)


def test_the_log_leaves_room_for_the_call_itself():
    found = evidence(18e-3, empty_s=4e-3, kernel="jit", kernel_s=18e-3)
    assert named(found) == {"dispatch": 4e-3, "slower kernel": 4e-3}
    assert unexplained_s(found) == pytest.approx(0)


def test_calls_in_a_queue_cost_only_what_the_device_waits_for():
    assert causes(evidence(18e-3, empty_s=9e-3, queued=True)) == []
    assert named(evidence(18e-3, empty_s=17e-3, queued=True)) == {"dispatch": 7e-3}


def test_small_causes_are_left_out_and_stay_unexplained():
    found = evidence(20e-3, empty_s=0.4e-3, reorder_s=0.6e-3)
    assert named(found) == {"reorders": 0.6e-3}
    assert unexplained_s(found) == pytest.approx(9.4e-3)


def test_no_gap_no_causes():
    assert causes(evidence(10e-3, reorder_s=6e-3)) == []


@pytest.mark.parametrize("kernel", GENERIC)
def test_kernels_that_a_convolution_falls_back_to(kernel):
    assert named(evidence(20e-3, kernel=kernel, kernel_s=15e-3)) == {"generic kernel": 5e-3}


@pytest.mark.parametrize("kernel", TUNED)
def test_tuned_kernels_are_slower_ones(kernel):
    assert named(evidence(20e-3, kernel=kernel, kernel_s=15e-3)) == {"slower kernel": 5e-3}


@pytest.mark.parametrize("kernel", ["gemm:jit:f32", "MKL SGEMM(T,N)"])
def test_a_product_is_what_such_kernels_are_for(kernel):
    found = evidence(20e-3, kind="gemm", kernel=kernel, kernel_s=15e-3)
    assert named(found) == {"slower kernel": 5e-3}


def test_a_call_that_takes_longer_empty_than_full_needs_no_log():
    found = evidence(18e-3, empty_s=19e-3)
    assert named(found) == {"dispatch": 19e-3}
