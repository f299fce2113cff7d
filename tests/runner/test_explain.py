"""Planted faults in an invented backend that logs nothing: each is named, with its seconds."""

import msgspec
import pytest
from said import says

from pydlbench.backends.base import KernelFacts
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import Correctness, KernelSpec, Roofline
from pydlbench.runner.attribution import GapAccount, causes, with_causes
from pydlbench.runner.kernels import BackendRun, KernelSubject
from pydlbench.runner.rows import measured_row
from pydlbench.study.table import Interference, Series, visit_of
from pydlbench.timing.chunk import Chunk

CONV = build_layer("conv", batch=2, in_channels=16, in_size=7, out_channels=32, kernel=3, padding=1)
GEMM = build_layer("gemm", m=8, k=32, n=16)
THREADS = 2
# What the kernel takes on all threads, and what the device's limit is.
KERNEL_S, LIMIT_S = 1e-3, 0.8e-3


class Remote:
    def __init__(self, **words):
        self.facts = KernelFacts(
            **{
                "algorithm": "loops",
                "layout": "src nchw, weights oihw, dst nchw",
                "library": "invented 1",
                "accumulate": "float32",
                "workspace_bytes": 0,
                "reorder_s": {},
                "setup_s": 0.0,
                "correct": Correctness(status="ok", rel_error=0.0, tolerance=1e-6),
                "candidates": [],
                **words,
            }
        )


def samples(seconds, busy, faults=0.0, waited=0.0):
    """Rounds of one time; ``busy`` threads at a time."""
    wall = seconds * 10
    chunk = Chunk(
        seconds=(seconds,) * 10,
        wall_s=wall,
        threads=THREADS,
        faults=faults,
        run_delay_s=waited * wall,
        cpu_s=None if busy is None else busy * wall,
    )
    words = {"inner": 1, "process": 1, "interference": Interference()}
    return Series([visit_of("it", chunk, number=lap, preparation=lap, **words) for lap in range(6)])


def entry(
    backend,
    seconds,
    *,
    layer=CONV,
    busy: float | None = THREADS,
    kept_s=None,
    empty_s=0.0,
    roof=True,
    waited=0.0,
    device="cpu",
    **words,
):
    """A backend of a problem: timed, and with the row that a session makes of it."""
    case = KernelSpec(layer=layer, backend=backend, device=device)
    kernel = Remote(**words)
    taken = samples(seconds, busy, faults=0.0 if kept_s is None else 700.0, waited=waited)
    row = measured_row(case, THREADS, kernel.facts, taken)
    limit = Roofline(
        bound="compute", time_s=LIMIT_S, efficiency=LIMIT_S / seconds, bandwidth="memory"
    )
    ratio = {"to": "native", "median": seconds / KERNEL_S, "ci_low": 1, "ci_high": 9, "rounds": 9}
    row = msgspec.structs.replace(
        row,
        ratio=ratio,
        empty_call_s=empty_s,
        roofline=limit if roof else None,
        faults={} if kept_s is None else {"default": 700.0, "warm": 0.0},
    )
    warm = None if kept_s is None else samples(kept_s, busy)
    return BackendRun(
        case,
        usual=KernelSubject(kernel=kernel, facts=kernel.facts, samples=taken),
        warm=KernelSubject(kernel=kernel, facts=kernel.facts, samples=warm),
        row=row,
    )


def found(slow, fast=None):
    fast = fast or entry("native", KERNEL_S, algorithm="brg:avx512", layer=slow.spec.layer)
    row = with_causes(slow.row, slow, fast)
    return {cause["cause"]: cause for cause in row.causes}


def seconds(causes):
    return {name: pytest.approx(cause["seconds"], abs=1e-9) for name, cause in causes.items()}


ALONE = {"kernel": "loops", "alone_s": 6e-3, "call_s": 8e-3, "alone_by": "with kept results"}
TRACE = {"alone_s": 2e-3, "alone_reorder_s": 1e-3, "call_s": 4e-3, "alone_by": "by its trace"}
LOG = {"kernel": "jit:avx2", "kernel_s": 6e-3, "reorder_s": 2e-3, "call_s": 5e-3}
LOGGED = {"slower kernel": 2e-3, "reorders": 0.5e-3, "unexplained": 0.5e-3}
#: What is planted in a slow backend, the fastest one's busy threads, causes, what their texts name.
PLANTED = {
    "a single thread": (
        entry("numba", 2 * KERNEL_S, busy=1),
        THREADS,
        {"one thread": KERNEL_S, "unexplained": 0},
        {"one thread": ("2 threads", "50 %")},
    ),
    # Three quarters of the threads' time, and a kernel that is slower besides.
    "threads that wait for each other": (
        entry("numba", 4e-3, busy=1.5),
        THREADS,
        {"rest of the call": 2e-3, "idle threads": 1e-3, "unexplained": 0},
        {},
    ),
    "threads that only waited for their cpus": (
        entry("numba", 2 * KERNEL_S, busy=1, waited=0.5),
        THREADS,
        {"rest of the call": KERNEL_S, "unexplained": 0},
        {},
    ),
    "threads as idle as the fastest's": (
        entry("numba", 2 * KERNEL_S, busy=1.5),
        1,
        {"rest of the call": 1e-3, "unexplained": 0},
        {},
    ),
    "threads more idle than the fastest's": (
        entry("numba", 2 * KERNEL_S, busy=1.3),
        1,
        {"rest of the call": 0.8e-3, "idle threads": 0.2e-3, "unexplained": 0},
        {},
    ),
    # One thread dispatches, then both compute.
    "threads idle while the call is made": (
        entry("numba", 3e-3, busy=(2e-3 + 2 * 1e-3) / 3e-3, empty_s=2e-3),
        THREADS,
        {"dispatch": 2e-3, "unexplained": 0},
        {},
    ),
    "a slow kernel without a log": (
        entry("numba", 2e-3, algorithm="plain loops"),
        THREADS,
        {"rest of the call": 1e-3, "unexplained": 0},
        {"rest of the call": ("plain loops", "2.00 ms", "40 %", "80 %", "2 threads", "100 %")},
    ),
    # Nobody knows what this kernel reaches.
    "a difference of times alone": (
        entry("numba", 2e-3, roof=False),
        THREADS,
        {"unexplained": 1e-3},
        {},
    ),
    "allocation and dispatch beside a slow kernel": (
        entry("torch", 4e-3, kept_s=3e-3, empty_s=0.5e-3),
        THREADS,
        {"rest of the call": 1.5e-3, "allocation": 1e-3, "dispatch": 0.5e-3, "unexplained": 0},
        {"rest of the call": ("kept pages", "does nothing")},
    ),
    # Timed on a machine that was at half its pace: what counts is its share of a call there.
    "a kernel that was timed alone": (
        entry("numba", 4e-3, evidence={**ALONE, "detail": "all vectors are short"}),
        THREADS,
        {"slower kernel": 2e-3, "unexplained": 1e-3},
        {"slower kernel": ("loops", "3.00 ms", "with kept results", "75 %", "vectors are short")},
    ),
    "reorders that only a trace shows": (
        entry("tensorflow", 4e-3, evidence=TRACE),
        THREADS,
        {"reorders": 1e-3, "slower kernel": 1e-3, "unexplained": 1e-3},
        {"reorders": ("by its trace", "25 %")},
    ),
    "a logged call slower than the one beside it": (
        entry("torch", 4e-3, evidence=LOG),
        THREADS,
        {"slower kernel": 2e-3, "reorders": 1e-3, "unexplained": 0},
        {},
    ),
    # When the log was made, the machine may have been at half its pace, or at thrice.
    **{
        f"a log of a moment at a pace of {pace}": (
            entry(
                "torch",
                4e-3,
                evidence={
                    "kernel": "jit:avx2",
                    "kernel_s": 3e-3 / pace,
                    "reorder_s": 0.5e-3 / pace,
                    "call_s": 4e-3 / pace,
                },
            ),
            THREADS,
            LOGGED,
            {"slower kernel": ("log", "75 %"), "reorders": ("log", "12 %")},
        )
        for pace in (0.5, 1, 3)
    },
    # Of 8 ms with kept pages 16 ms of two threads, of which they had 12.8 and one made the call.
    "all at once": (
        entry("torch", 10e-3, busy=1.6, kept_s=8e-3, empty_s=1e-3),
        THREADS,
        {"rest of the call": 4.9e-3, "allocation": 2e-3, "idle threads": 1.1e-3, "dispatch": 1e-3}
        | {"unexplained": 0},
        {},
    ),
}


@pytest.mark.parametrize(("slow", "busy", "expected", "texts"), PLANTED.values(), ids=PLANTED)
def test_what_is_planted_is_named_with_its_seconds(slow, busy, expected, texts):
    causes = found(slow, entry("native", KERNEL_S, algorithm="brg:avx512", busy=busy))
    assert seconds(causes) == expected
    assert sum(cause["share"] for cause in causes.values()) == pytest.approx(1)
    assert all(says(causes[name]["how"], *values) for name, values in texts.items())


def test_the_librarys_log_counts_before_a_trace():
    slow = entry("tensorflow", 4e-3, evidence={"alone_s": 2e-3, "call_s": 4e-3, "alone_by": "so"})
    slow.log = {"kernel": "jit:avx2", "kernel_s": 3e-3, "reorder_s": 0.5e-3, "call_s": 4e-3}
    causes = found(slow)
    assert seconds(causes) == LOGGED
    assert says(causes["slower kernel"]["how"], "jit:avx2", "3.00 ms", "log")


def packing(*times):
    """Return candidates with packed weights, and with the weights as they are."""
    return [
        {"variant": name, "status": "ok", "seconds": [taken] * 3, "algorithm": name}
        for name, taken in zip(("any", "plain"), times, strict=False)
    ]


PACKS = {"alone_reorder_s": 1e-3, "call_s": 2e-3, "alone_s": 1e-3}


@pytest.mark.parametrize(
    ("times", "layout", "evidence", "named"),
    [
        ((2e-3, 3e-3), "src mk, weights kn, dst mn", {}, True),
        ((2e-3, 3e-3), "src mk, weights kn, dst mn", PACKS, False),  # it packs them in each call
        ((2e-3, 3e-3), "src mk, weights packed, dst mn", {}, False),
        ((3e-3, 3e-3), "src mk, weights kn, dst mn", {}, False),
        ((2e-3,), "src mk, weights kn, dst mn", {}, False),
        ((), "src mk, weights kn, dst mn", {}, False),
    ],
)
def test_planted_unpacked_weights_without_a_log(times, layout, evidence, named):
    fast = entry("native", KERNEL_S, layer=GEMM, candidates=packing(*times))
    words = {"layout": layout, "evidence": {**evidence, "alone_by": "so"}}
    causes = found(entry("numba", 2e-3, layer=GEMM, **words), fast)
    assert ("weights not packed" in causes) is named
    if named:
        expected = {"weights not packed": 0.5e-3, "rest of the call": 0.5e-3, "unexplained": 0}
        assert seconds(causes) == expected


@pytest.mark.parametrize(
    ("pass_", "named"), [("forward", True), ("backward-data", True), ("backward-weights", False)]
)
def test_weights_that_are_the_result_are_not_unpacked(pass_, named):
    fast = entry("native", KERNEL_S, layer=GEMM, candidates=packing(2e-3, 3e-3))
    slow = entry("numba", 2e-3, layer=GEMM, layout="src mk, weights kn, dst mn")
    for one in (slow, fast):
        one.spec = msgspec.structs.replace(one.spec, pass_=pass_)
    assert ("weights not packed" in found(slow, fast)) == named


@pytest.mark.parametrize(
    ("slow", "expected"),
    [
        ("void gemm<winograd>(int)", {"slower kernel": 1e-3, "unexplained": 0.0}),
        ("void gemm<implicit>(int)", {"unexplained": 1e-3}),
        (None, {"unexplained": 1e-3}),
    ],
    ids=["another", "the same", "unknown"],
)
def test_on_a_gpu_another_kernel_is_the_cause_and_the_same_one_is_none(slow, expected):
    def on_gpu(backend, seconds, name):
        kernels = ({"name": name, "grid": [1, 1, 1]},) if name else ()
        words = {"device": "cuda:0", "timing": "cuda-graph", "kernels": kernels}
        return entry(backend, seconds, busy=None, **words)

    fast = on_gpu("native", KERNEL_S, "void gemm<implicit>(int)")
    row = with_causes(*((own := on_gpu("torch", 2 * KERNEL_S, slow)).row, own), fast)
    assert {one["cause"]: one["seconds"] for one in row.causes} == pytest.approx(expected)
    assert ("gemm takes 2.00 ms" in row.causes[0]["how"]) is ("slower kernel" in expected)


# -----------------------------------------------------------------------------
# Planted faults of known size: each is named with its seconds, and nothing else is.


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
