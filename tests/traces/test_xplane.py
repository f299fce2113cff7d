"""JAX's profiles: invented planes of a GPU and a TPU, and a profile of the CPU that JAX writes."""

import importlib.util
import subprocess
import sys
from types import SimpleNamespace

import pytest

from pydlbench.errors import UsageError
from pydlbench.traces import timeline, xplane
from pydlbench.traces.files import read


def event(name, begin_us, length_us, **stats):
    return SimpleNamespace(
        name=name, start_ns=1e3 * begin_us, duration_ns=1e3 * length_us, stats=list(stats.items())
    )


def profile(**planes):
    """A ``ProfileData`` of planes, each with events by line; ``_`` is a slash or a blank."""
    return SimpleNamespace(
        planes=[
            SimpleNamespace(
                name=plane,
                lines=[SimpleNamespace(name=line, events=own) for line, own in lines.items()],
            )
            for plane, lines in planes.items()
        ]
    )


def recorded(**planes):
    return xplane.recorded_from("trace", list(xplane.events_of(profile(**planes))))


HOST = {
    "python": [
        event("train", 0, 100, step_num=0),
        event("train", 100, 100, step_num=1),
        event("cuLaunchKernel", 10, 5, correlation_id=7),
        event("cuLaunchKernel", 110, 5, correlation_id=8),
        event("nothing of interest", 20, 5),
    ]
}


def test_streams_of_a_gpu_are_read_and_launches_decide_the_step():
    streams = {
        "Stream #13(Compute)": [
            event("gemm_fusion_dot.3", 90, 50, correlation_id=7, tf_op="jit(f)/Dense_0/dot"),
            event("loop_fusion", 150, 20, correlation_id=8, tf_op="jit(f)/transpose(jvp(g))/mul"),
        ],
        "Stream #14(Memcpy)": [event("MemcpyH2D", 160, 30), event("ncclAllReduce", 195, 5)],
        "XLA Modules": [event("jit_f", 90, 110)],
    }
    found = recorded(**{"/device:GPU:0": streams, "/host:CPU": HOST})
    first, second = found.timelines
    assert found.on_gpu
    assert [each.name for each in first.activities] == ["gemm_fusion_dot"]
    assert [each.kind for each in second.activities] == [
        timeline.KERNEL,
        timeline.COPY,
        timeline.COLLECTIVE,
    ]
    assert first.activities[0].origin.modules == ("jit(f)", "Dense_0")
    assert second.activities[0].origin.direction == "backward"
    assert second.span_s == pytest.approx(60e-6)
    assert second.busy_s == pytest.approx(45e-6)
    assert second.idle()[timeline.LAUNCHED] == pytest.approx(10e-6)


def test_a_device_without_streams_has_its_operators_and_each_its_own_time():
    lines = {
        "XLA Modules": [event("jit_f", 0, 100)],
        "XLA Ops": [event("while.1", 0, 100), event("fusion.2", 10, 30), event("dot.3", 50, 40)],
    }
    (one,) = recorded(**{"/device:TPU:0": lines}).timelines
    times = {each.name: round(each.seconds * 1e6, 3) for each in one.activities}
    assert times == {"while": 30, "fusion": 30, "dot": 40}


@pytest.mark.parametrize(
    ("file", "content", "part"),
    [
        ("a.xplane.pb", b"{", "JAX cannot read it"),
        ("a.sqlite", b"SQLite format 3\0", "Nsight Systems"),
        ("a.nsys-rep", b"x", "Nsight Systems"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(tmp_path, file, content, part):
    (tmp_path / file).write_bytes(content)
    if part.startswith("JAX"):
        pytest.importorskip("jax")
    with pytest.raises(UsageError) as caught:
        read(str(tmp_path / file))
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_jax_its_files_say_what_is_missing(tmp_path, monkeypatch):
    (tmp_path / "a.xplane.pb").write_bytes(b"")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match="pip install jax"):
        read(str(tmp_path))


_PROGRAM = """
import sys, jax, jax.numpy as jnp
step = jax.jit(lambda a: jnp.sort(a @ a))
a = jnp.ones((64, 64))
step(a).block_until_ready()
with jax.profiler.trace(sys.argv[1]):
    for number in range(2):
        with jax.profiler.StepTraceAnnotation("step", step_num=number):
            step(a).block_until_ready()
"""


@pytest.mark.deep
def test_a_profile_of_the_cpu_that_jax_writes_is_read(tmp_path):
    pytest.importorskip("jax")
    subprocess.run([sys.executable, "-c", _PROGRAM, str(tmp_path)], check=True)
    found = read(str(tmp_path))
    assert not found.on_gpu
    assert len(found.timelines) == 2
    assert all(any("sort" in each.name for each in step.activities) for step in found.timelines)
    assert all(step.kernel_s > 0 for step in found.timelines)
