"""Planted faults of known size: each is named with its seconds, and nothing else is."""

import pytest

from pydlbench.runner.attribution import GapAccount, causes

BEST = GapAccount(time_s=10e-3, allocation_s=0.0, empty_s=0.0, reorder_s=0.0, kernel="brg:avx512")
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


def caused(time_s, best=BEST, kind="conv2d", packing=None, **parts):
    return causes(GapAccount(time_s=time_s, **parts), best, kind, packing)


def named(found):
    return {cause["cause"]: pytest.approx(cause["seconds"]) for cause in found}


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
    (cause,) = caused(18e-3, **parts)
    assert (cause["cause"], cause["seconds"]) == (name, pytest.approx(6e-3))
    assert cause["share"] == pytest.approx(0.75)
    assert cause["how"]


FAST_KERNEL = {"kernel": "brg:avx512", "kernel_s": 4e-3}
SPENT = GapAccount(time_s=10e-3, allocation_s=4e-3, empty_s=1e-3, reorder_s=1e-3, **FAST_KERNEL)
FAULTS = {
    "packing brings the fastest as much": (
        18e-3,
        {"kind": "gemm", "packing": 1.6, "kernel": "MKL SGEMM(N,N)", "kernel_s": 18e-3},
        {"weights not packed": 6e-3, "slower kernel": 2e-3},
    ),
    "packing brings no more than the kernel loses": (
        18e-3,
        {"kind": "gemm", "packing": 2, "kernel": "SGEMM", "kernel_s": 13e-3},
        {"weights not packed": 3e-3},
    ),
    "packing brings no more than is left": (
        18e-3,
        {"kind": "gemm", "packing": 3, "allocation_s": 5e-3},
        {"weights not packed": 3e-3, "allocation": 5e-3},
    ),
    "all at once": (
        25e-3,
        {"allocation_s": 4e-3, "empty_s": 1e-3, "reorder_s": 3e-3, "kernel": GENERIC[0]}
        | {"kernel_s": 15e-3},
        {"generic kernel": 5e-3, "allocation": 4e-3, "reorders": 3e-3, "dispatch": 1e-3},
    ),
    "no evidence": (30e-3, {}, {}),
    "a kernel that is as fast, whatever it is called": (
        30e-3,
        {"kernel": "ref:any", "kernel_s": 10e-3},
        {},
    ),
    "a kernel that nobody timed": (30e-3, {"kernel": "ref:any"}, {}),
    "what the fastest spends as well": (
        16e-3,
        {"best": SPENT, "allocation_s": 4e-3, "empty_s": 1e-3, "reorder_s": 3e-3}
        | {"kernel": "jit", "kernel_s": 8e-3},
        {"slower kernel": 4e-3, "reorders": 2e-3},
    ),
    "a logged call that was slow is scaled into the time": (
        18e-3,
        {"allocation_s": 2e-3, "reorder_s": 8e-3, "kernel": "jit", "kernel_s": 24e-3},
        {"reorders": 4e-3, "allocation": 2e-3, "slower kernel": 2e-3},
    ),
    "the log leaves room for the call itself": (
        18e-3,
        {"empty_s": 4e-3, "kernel": "jit", "kernel_s": 18e-3},
        {"dispatch": 4e-3, "slower kernel": 4e-3},
    ),
    "the device waits for no call in its queue": (18e-3, {"empty_s": 9e-3, "queued": True}, {}),
    "the device waits for a call that takes longer": (
        18e-3,
        {"empty_s": 17e-3, "queued": True},
        {"dispatch": 7e-3},
    ),
    "a small cause": (20e-3, {"empty_s": 0.4e-3, "reorder_s": 0.6e-3}, {"reorders": 0.6e-3}),
    "no gap": (10e-3, {"reorder_s": 6e-3}, {}),
    **{
        f"a convolution falls back to {kernel}": (
            20e-3,
            {"kernel": kernel, "kernel_s": 15e-3},
            {"generic kernel": 5e-3},
        )
        for kernel in GENERIC
    },
    **{
        f"{kernel} is tuned": (
            20e-3,
            {"kernel": kernel, "kernel_s": 15e-3},
            {"slower kernel": 5e-3},
        )
        for kernel in TUNED
    },
    **{
        f"{kernel} is for products": (
            20e-3,
            {"kind": "gemm", "kernel": kernel, "kernel_s": 15e-3},
            {"slower kernel": 5e-3},
        )
        for kernel in ("gemm:jit:f32", "MKL SGEMM(T,N)")
    },
}


@pytest.mark.parametrize(("time_s", "parts", "expected"), FAULTS.values(), ids=FAULTS)
def test_causes_have_their_seconds_and_the_rest_is_unexplained(time_s, parts, expected):
    found = caused(time_s, **parts)
    assert named(found) == expected
    if time_s > BEST.time_s:
        assert sum(cause["share"] for cause in found) == pytest.approx(
            sum(expected.values()) / (time_s - BEST.time_s)
        )


def test_causes_come_with_the_largest_first():
    _, parts, expected = FAULTS["all at once"]
    assert [cause["cause"] for cause in caused(25e-3, **parts)] == list(expected)


def test_a_call_that_takes_longer_empty_than_full_needs_no_log():
    assert named(caused(18e-3, empty_s=19e-3)) == {"dispatch": 19e-3}
