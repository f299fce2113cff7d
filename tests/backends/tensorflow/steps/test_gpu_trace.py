"""Steps of TensorFlow on a GPU: an invented device's profile, and a CPU's, without kernels."""

import pytest

from pydlbench.backends.steps.device import GAPS, IDLE_BETWEEN, IDLE_IN_CALLS, IDLE_QUEUED, NO_CALL
from pydlbench.errors import PrimitiveError

NODES = {"conv/Conv2D": "_FusedConv2D", "flat": "Reshape", "fc/MatMul": "_FusedMatMul"}
CONV, FC = "conv/Conv2D:_FusedConv2D", "fc/MatMul:_FusedMatMul"


@pytest.fixture
def trace(tensorflow_backend):  # noqa: ARG001 - TensorFlow is imported with it
    from pydlbench.backends.tensorflow.steps import trace

    return trace


def plane(name, **lines):
    """A plane of TensorFlow's format; each event has a name, begin, length in us, and facts."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    made, numbers = xplane_pb2.XPlane(name=name), {}

    events, stats = made.event_metadata, made.stat_metadata

    def of(table, text):
        key = (table is events, text)
        if key not in numbers:
            numbers[key] = len(numbers) + 1
            table[numbers[key]].name = text
        return numbers[key]

    for label, given in lines.items():
        line = made.lines.add(name=label.replace("_", " #"), timestamp_ns=1_000_000)
        for text, begin_us, length_us, facts in given:
            event = line.events.add(
                metadata_id=of(events, text),
                offset_ps=int(begin_us * 1e6),
                duration_ps=int(length_us * 1e6),
            )
            for key, value in facts.items():
                stat = event.stats.add(metadata_id=of(stats, key))
                if isinstance(value, int):
                    stat.uint64_value = value
                else:  # texts that are repeated are references
                    stat.ref_value = of(stats, value)
    return made


def kernel(begin_us, length_us, number, node=""):
    facts = {"correlation_id": number} | ({"tf_op": node} if node else {})
    return ("kernel", begin_us, length_us, facts)


def launch(begin_us, number):
    return ("cuLaunchKernel", begin_us, 1, {"correlation_id": number})


def host(*more, step="pydlbench_step"):
    threads = [
        *((step, 0, 20, {}), (step, 100, 60, {"step_num": 1})),
        *((CONV, 0, 5, {}), launch(2, 1), (CONV, 110, 10, {}), launch(115, 2)),
        # In another thread, while the convolution's node has not returned.
        *((FC, 112, 30, {}), launch(118, 3), launch(150, 4)),
    ]
    return plane("/host:CPU", pool=[*threads, *more])


def device(*more, line="Stream_7"):
    kernels = [kernel(10, 90, 1, CONV), kernel(120, 20, 2, CONV)]
    kernels += [kernel(145, 30, 3, FC), kernel(175, 5, 4, "x:_Recv"), *more]
    copies = {"Steps": [("0", 0, 200, {})]}
    return plane("/device:GPU:0", **{line: kernels}, **copies)


def test_kernels_are_of_the_node_that_they_name_and_all_adds_up(trace):
    found = trace.gpu_trace([host(), device()], NODES)
    us = [round(1e6 * seconds, 6) for seconds in found.calls_s]
    assert us == [20, 0, 30]
    gaps = {name: 1e6 * seconds for name, seconds in zip(GAPS, found.gaps_s, strict=True)}
    # From the end of the step before at 100 no node until 110, then one until the launch at 116.
    expected = {IDLE_BETWEEN: 10, IDLE_IN_CALLS: 6, IDLE_QUEUED: 9, NO_CALL: 5}
    assert gaps == pytest.approx(expected)
    assert found.step_s == pytest.approx(80e-6)
    assert sum(found.calls_s) + sum(found.gaps_s) == pytest.approx(found.step_s)
    assert [round(1e6 * seconds, 6) for seconds in found.host_s] == [10, 0, 30]


@pytest.mark.parametrize(
    ("planes", "message"),
    [
        (lambda: [host()], "no kernels of the device"),
        (lambda: [host(), device(line="XLA_Ops")], "no kernels of the device"),
        (lambda: [host(step="another"), device()], "0 of 2 executions"),
        (lambda: [host(), device(kernel(180, 1, 4, "fc/Relu:Relu"))], "fc/Relu"),
    ],
    ids=["none", "no stream", "no step", "another node"],
)
def test_a_profile_without_the_steps_kernels_is_refused(trace, planes, message):
    with pytest.raises(PrimitiveError, match=message):
        trace.gpu_trace(planes(), NODES)


def test_a_real_profile_has_both_executions_and_on_a_cpu_no_kernels(trace):
    tf = trace.tf
    square = tf.function(lambda x: tf.linalg.matmul(x, x))
    given, waited = tf.ones((64, 64)), []
    square(given)
    with pytest.raises(PrimitiveError, match="no kernels of the device"):
        trace.gpu_profile(lambda: square(given), lambda: waited.append(1), NODES)
    assert waited == [1]
    assert trace.gpu_seconds(lambda: square(given), lambda: None) > 0
