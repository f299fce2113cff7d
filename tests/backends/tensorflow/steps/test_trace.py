"""What TensorFlow's trace, its programs and its oneDNN's log tell: invented ones, and its own."""

import os

import pytest

from pydlbench.backends.base import Preparation
from pydlbench.backends.frameworks.verbose import evidence, last_call, parse
from pydlbench.backends.tensorflow import CAPABILITIES
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec
from pydlbench.timing.chunk import ChunkRequest
from pydlbench.workers.host import Worker

TINY = build_layer("conv", batch=1, in_channels=3, in_size=6, out_channels=4, kernel=3, padding=1)
MIDDLE = build_layer(
    "conv", batch=2, in_channels=32, in_size=14, out_channels=48, kernel=3, padding=1
)
CALLS = 3


@pytest.fixture(scope="module")
def traces(tensorflow_backend):  # noqa: ARG001 - TensorFlow is imported with it
    from pydlbench.backends.tensorflow.steps import trace

    return trace


def events(traces, *calls):
    return [
        traces.TensorFlowEvent(name, start, taken) for call in calls for name, start, taken in call
    ]


def test_nodes_of_a_graph_add_up_without_plumbing(traces):
    def call(scale):
        return [
            ("EagerKernelExecute", 0.0, 9.0),
            ("x:_Arg", 0.0, 1.0),
            ("Conv2D:_MklNativeConv2D", 0.0, scale),
            ("model/transpose:Transpose", 5.0, 0.5 * scale),
            ("retval:_Retval", 7.0, 1.0),
        ]

    found = traces.kernels_in(events(traces, call(2.0), call(9.0), call(4.0)), 3)
    assert found == pytest.approx((4.0, 2.0))
    # Not so many equal calls.
    assert traces.kernels_in(events(traces, call(1.0), call(1.0)[:3]), 2) is None
    assert traces.kernels_in([], 1) is None


def test_a_program_of_xla_counts_as_a_whole_and_its_conversions_until_they_are_done(traces):
    call = [
        ("__inference_f_1:__inference_f_1", 0.0, 20.0),
        ("CpuExecutable::ExecuteAsyncOnStream", 1.0, 10.0),
        # Its own event ends when other threads have been told; they work on.
        ("transpose_copy_fusion.1", 1.5, 0.5),
        ("end: transpose_copy_fusion.1", 4.5, 0.0),
        ("convolution", 5.0, 1.0),
        ("end: convolution", 10.0, 0.0),
    ]
    assert traces.kernels_in(events(traces, call), 1) == pytest.approx((7.0, 3.0))
    assert traces.kernels_in(events(traces, call), 2) is None
    without_end = [one for one in call if one[0] != "end: transpose_copy_fusion.1"]
    assert traces.kernels_in(events(traces, without_end), 1) == pytest.approx((10.0, 0.0))


@pytest.mark.parametrize(("seen", "complete"), [(20, True), (18, True), (17, False), (21, False)])
def test_of_many_calls_a_few_events_may_be_lost(traces, seen, complete):
    found = traces.kernels_in(events(traces, [("product:MatMul", 0.0, 4.0)] * seen), 20)
    assert (found == pytest.approx((4.0, 0.0))) if complete else (found is None)


def test_long_calls_are_traced_once(traces):
    assert traces.calls_for(2.0) == 1 < traces.calls_for(1e-3)


def test_a_trace_that_fails_tells_nothing(traces):
    def call():
        raise ValueError("no")

    assert traces.trace(call, 1) is None
    assert traces.trace(lambda: None, 1) is None  # TensorFlow does nothing there


@pytest.mark.parametrize("mode", ["graph", "xla"])
@pytest.mark.parametrize(
    ("layer", "pass_"),
    [
        (MIDDLE, "forward"),
        (MIDDLE, "backward-weights"),
        (build_layer("gemm", m=513, k=1025, n=257), "forward"),
        (build_layer("pool", batch=2, channels=8, in_size=9, kernel=3, stride=2), "forward"),
    ],
    ids=["conv", "conv-weights", "gemm", "pool"],
)
def test_kernels_are_traced_in_real_calls(backend, layer, pass_, mode):
    for _ in range(8):  # now and then TensorFlow's profiler tells nothing of short calls
        facts = backend.prepare(
            KernelSpec(layer=layer, pass_=pass_, mode=mode), Preparation()
        ).facts
        seen = facts.evidence
        if "alone_s" in seen:
            break
    assert seen["kernel"].startswith("XLA ") == (mode == "xla")
    assert min(seen["alone_s"], seen["call_s"]) > 0  # of other calls: which is longer is not sure
    assert seen["alone_reorder_s"] >= 0
    assert ("detail" in seen) == (mode == "xla" and layer is MIDDLE)


@pytest.mark.deep
def test_xlas_conversions_of_layouts_are_traced(backend):
    case = KernelSpec(layer=MIDDLE, pass_="backward-weights", mode="xla", layout="nchw")
    seen = backend.prepare(case, Preparation()).facts.evidence
    assert seen["alone_reorder_s"] > 0


@pytest.mark.usefixtures("tensorflow_backend")
@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ("dim_labels=b01f_01io->b01f", "b01f_01io->b01f: it goes to Eigen"),
        ("dim_labels=b01f_01io->b01f, batch_group_count=2", "XLA writes plain loops"),
        ("dim_labels=b01f_01io->b01f, window={size=3 rhs_reversal=1}", "XLA writes plain loops"),
        ("dim_labels=bf01_oi01->bf01", "bf01_oi01->bf01: XLA writes plain loops"),
    ],
)
def test_who_computes_a_convolution_of_xlas(labels, words):
    from pydlbench.backends.frameworks.hlo import detail

    line = (
        f"  ROOT %c.1 = f32[1,9,9,8]{{3,2,1,0}} convolution(%a, %w), window={{size=3x3}}, {labels}"
    )
    assert words in detail(f"ENTRY %f {{\n{line}\n}}")
    assert detail("%d = f32[2,2]{1,0} dot(%a, %b)") == ""


@pytest.mark.deep
@pytest.mark.parametrize("layer", [TINY, MIDDLE], ids=["tiny", "middle"])
@pytest.mark.parametrize("pass_", ["forward", "backward-data", "backward-weights"])
def test_tensorflows_onednn_logs_its_kernels_in_a_process_of_its_own(logging_worker, layer, pass_):
    kernel = logging_worker.prepare(
        KernelSpec(layer=layer, pass_=pass_, mode="graph"), Preparation()
    )
    kernel.sample(ChunkRequest(samples=CALLS))
    executions = parse(logging_worker.stderr())
    kernel.release()
    seen = evidence(last_call(executions, CALLS), 1.0)
    assert {one.library for one in executions} == {"oneDNN"}
    assert "convolution" in {one.primitive for one in executions}
    assert seen["kernel"]
    assert not seen["kernel"].startswith("_Mkl")
    assert seen["kernel_s"] > 0
    assert seen["reorder_s"] >= 0


@pytest.fixture(scope="module")
def logging_worker(tensorflow_backend):
    if not tensorflow_backend.describe()["onednn"]:
        pytest.skip("this TensorFlow has no oneDNN")
    cpus = sorted(os.sched_getaffinity(0))
    worker = Worker("tensorflow", "cpu", cpus, environment=CAPABILITIES.log_environment)
    yield worker
    worker.discard()
