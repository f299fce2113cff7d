"""An invented GPU with a queue, a clock and a launch cost, and a session of workers on it.

Its time is simulated call by call, so that the true step is known; the clocks, kernels, checks and
forecasts under test are the real ones. What is planted is in :class:`Gpu`'s attributes.
"""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import msgspec
import numpy as np
from invented_rows import row_of, time_of

from pydlbench.backends import host_clock
from pydlbench.backends.steps import requests
from pydlbench.backends.steps.device import (
    GAPS,
    DeviceOperators,
    DeviceProfile,
    Span,
    step_kernel,
    trace_of,
)
from pydlbench.backends.steps.trace import CallEvent, StepTrace, StepTracer, TracedSteps
from pydlbench.errors import PydlbenchError, UnsupportedError
from pydlbench.records.measurement import Roofline
from pydlbench.records.step import StepFacts, StepPreparation, StepSpec
from pydlbench.records.trace import (
    OperatorsFacts,
    ProgramCall,
    RecordedCall,
    TraceFacts,
    operator_of,
)
from pydlbench.runner.options import RunnerOptions
from pydlbench.study.table import Interference
from pydlbench.timing.chunk import Chunk, GpuReadings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydlbench.records.run import RunRecord

__all__ = ["MODEL", "Gpu", "GpuSession", "Kernel", "Work", "Worker", "convolution"]

MODEL = "mine.py:build"
CLOCK_HZ = 1.98e9


@dataclass(frozen=True)
class Work:
    """A call of a step: its text, and what host and device need for it. Seconds."""

    signature: str
    host_s: float
    device_s: float

    @property
    def call(self) -> RecordedCall:
        operator = operator_of(self.signature)
        return RecordedCall(signature=self.signature, operator=operator, bytes=1 << 20)


def convolution(channels: int, host_s: float, device_s: float) -> Work:
    """A convolution, which a native layer stands for."""
    images = f"float32[2, {channels}, 8, 8]({64 * channels}, 64, 8, 1)"
    weights = f"float32[8, {channels}, 3, 3]({9 * channels}, 9, 3, 1)"
    how = "None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1"
    return Work(f"aten.convolution.default({images}, {weights}, {how})", host_s, device_s)


@dataclass
class Gpu:
    """A GPU and its host, by virtual clocks; a runtime as steps are timed with.

    Attributes:
        steps: the calls of a step in their order, by model.
        besides_s: of the host for each call of a step besides its own: modules, autograd.
        once_s: of the host for each step.
        launch_s: of the host for each launch, in the step only.
        alone: by signature, how much longer a call takes alone.
        slower: by what is run (``operators``, ``chain``, ``step``, ``graph``), how much lower the
            clock is, and how much longer all takes.
        fed_s: of the device, to bring a step's images from the host.
        uncapturable: whether capturing a graph raises.
        record_s: of the host for each event.
        event_s: of the device for each event.
        gap_s: of the device between two launches, where calls are timed in a row.
        profile_s: of the host for each profile.
        profiles: the profiles of calls alone so far.
    """

    steps: dict[str, list[Work]]
    besides_s: float = 3e-6
    once_s: float = 40e-6
    launch_s: float = 0.0
    alone: dict[str, float] = field(default_factory=dict)
    slower: dict[str, float] = field(default_factory=dict)
    fed_s: float = 0.0
    uncapturable: bool = False
    record_s: float = 0.0
    event_s: float = 0.0
    gap_s: float = 0.0
    profile_s: float = 0.0
    profiles: int = 0
    host: float = 0.0
    stream: float = 0.0
    running: str = "operators"
    noted: list[float] | None = None
    gated: list[float] | None = None
    profiled: list[tuple[CallEvent, Span, Span]] | None = None

    # --- the runtime --------------------------------------------------------------------------

    def record(self) -> float:
        self.host += self.record_s
        self.stream = self._begin() + self.event_s
        return self.stream

    def between(self, start: float, end: float) -> float:
        return end - start

    def wait(self) -> None:
        self.host = max(self.host, self.stream)

    def now(self) -> float:
        return self.host

    def call_work(self, call: Any, cache: str = "hot") -> Any:
        """Calls behind a gate that opens when the host has launched all of them."""
        assert cache == "hot"

        def sample(samples: int, inner: int, untimed: int) -> dict[str, Any]:
            del untimed
            seconds, enqueue_s = [], []
            for _ in range(samples):
                self.wait()
                begin, self.gated = self.host, []
                for _ in range(inner):
                    call()
                taken, self.gated = sum(self.gated) + inner * self.gap_s, None
                seconds.append(taken / inner)
                enqueue_s.append((self.host - begin) / inner)
                self.stream = self.host + taken
                self.wait()
            return raw_chunk(seconds, enqueue_s)

        return SimpleNamespace(sample=sample)

    def graph_work(self, call: Any, times: int) -> Any:
        if self.uncapturable:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.noted = []
        for _ in range(times):
            call()
        total, self.noted = sum(self.noted), None

        def sample(samples: int, inner: int, untimed: int) -> dict[str, Any]:
            del inner, untimed
            taken = total * self.slower.get(self.running, 1.0) / times
            return raw_chunk([taken] * samples, [5e-6 / times] * samples)

        return SimpleNamespace(sample=sample, kernels=lambda: [{"name": "invented"}])

    def kernel_seconds(self, calls: Any) -> list[float]:
        """What each call puts into the queue."""
        self.host += self.profile_s
        self.profiles += 1
        seconds = []
        for first, call in calls:
            first()
            self.noted = []
            call()
            seconds.append(sum(self.noted) * self.slower.get(self.running, 1.0))
            self.noted = None
        return seconds

    def _begin(self) -> float:
        """Return when the device begins with what the host puts into its queue now."""
        return max(self.stream, self.host)

    # --- what runs on it ----------------------------------------------------------------------

    def launch(self, host_s: float, device_s: float) -> None:
        if self.noted is not None:
            self.noted.append(device_s)
            return
        self.host += host_s
        if self.gated is not None:
            self.gated.append(device_s * self.slower.get(self.running, 1.0))
            return
        if device_s:
            self.stream = self._begin() + device_s * self.slower.get(self.running, 1.0)

    def step(self, model: str, feed: str = "resident") -> None:
        self.host += self.once_s
        if feed == "host":
            self.launch(1e-6, self.fed_s)
        for one in self.steps[model]:
            begin = self.host + self.besides_s
            self.launch(one.host_s + self.besides_s + self.launch_s, one.device_s)
            if self.profiled is not None:
                host = Span(nanoseconds(begin), nanoseconds(self.host))
                device = Span(nanoseconds(self.stream - one.device_s), nanoseconds(self.stream))
                event = CallEvent(one.signature, host.begin_ns, host.end_ns - host.begin_ns)
                self.profiled.append((event, host, device))

    def traced(self, model: str) -> StepTrace:
        """A step under a profiler that costs nothing, behind another one."""
        self.profiled = []
        self.step(model)
        begin_ns = nanoseconds(self.host)
        self.step(model)
        end_ns = nanoseconds(self.host)
        found, self.profiled = self.profiled, None
        self.wait()
        profile = DeviceProfile(
            step=Span(begin_ns, end_ns),
            operators=[event for event, _, _ in found],
            launches=dict(enumerate(launch for _, launch, _ in found)),
            kernels=list(enumerate(kernel for _, _, kernel in found)),
        )
        return trace_of(profile, [one.signature for one in self.steps[model]], lambda _: False)

    def behind_another(self, model: str) -> float:
        """Seconds of a step without a trace, behind another one."""
        self.step(model)
        start = self.record()
        self.step(model)
        end = self.record()
        self.wait()
        return self.between(start, end)

    def true_step_s(self, model: str = MODEL, feed: str = "resident", steps: int = 10) -> float:
        """Seconds of a step of several behind which the host waits, on a device without a past."""
        fresh = dataclasses.replace(self)
        fresh.host = fresh.stream = 0.0
        fresh.running = "step"
        for _ in range(steps):
            fresh.step(model, feed)
        fresh.wait()
        return fresh.host / steps

    # --- the watcher --------------------------------------------------------------------------

    def mark(self) -> float:
        return 0.0

    def since(self, mark: float) -> GpuReadings:
        assert mark == 0.0
        slower = self.slower.get(self.running, 1.0)
        how = {"power_w": 700.0, "reasons": ("power cap",)} if slower > 1 else {}
        return GpuReadings(sm_clock_hz=CLOCK_HZ / slower, readings=1, **how)


def raw_chunk(seconds: list[float], enqueue_s: list[float]) -> dict[str, Any]:
    """What the native sampler returns; its stamps saw no clock."""
    return {
        "seconds": np.array(seconds),
        "enqueue_s": np.array(enqueue_s),
        "clock_hz": np.array([]),
        "wall_s": sum(seconds),
        "gate_timeouts": 0,
    }


def nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


class Kernel:
    """What a worker has made ready; notes what runs on the GPU."""

    generation = 1
    alive = True

    def __init__(self, gpu: Gpu, made: Any, running: str) -> None:
        self.gpu, self.made, self.running = gpu, made, running
        self.facts = made.facts
        self.released = False

    def sample(self, request: Any) -> Chunk:
        self.gpu.running = "graph" if request.timing == "cuda-graph" else self.running
        if self.running == "chain":
            self.gpu.running = "chain"
        with mock.patch.object(host_clock, "_NOW", self.gpu.now):
            return self.made.sample(request)

    def trace(self) -> TraceFacts:
        return self.made.trace()

    def release(self) -> None:
        self.released = True


class Worker:
    """The framework's process, or the native one's, in this one."""

    def __init__(self, session: GpuSession, backend: str) -> None:
        self.session, self.gpu, self.backend = session, session.gpu, backend

    def launch(self) -> None:
        """There is no process."""

    def describe(self) -> dict[str, Any]:
        return {"version": "1"}

    def close(self, **_: Any) -> None:
        """Nothing is held."""

    def probe(self, name: str, **_: Any) -> dict[str, Any]:
        self.session.probed.append(name)
        if name != "empty_call":
            raise PydlbenchError(f"no {name} here")
        return {"seconds": min(one.host_s for step in self.gpu.steps.values() for one in step)}

    def build(self, operation: Any, _facts: Any, **words: Any) -> Kernel:
        self.session.built.append(operation)
        case = StepSpec.from_dict(words["spec"])
        if operation is requests.request_call_list:
            return Kernel(self.gpu, SimpleNamespace(facts=self._recorded(case.model)), "")
        if case.mode != "eager" and operation is not requests.request_step:
            raise UnsupportedError(f"{case.mode}: as the real one says")
        if operation is requests.request_calls:
            return self._calls(words["signatures"])
        assert operation is requests.request_step, operation
        return self._step(case, words["preparation"])

    def _recorded(self, model: str) -> OperatorsFacts:
        every = self.gpu.steps[model]
        distinct = list(dict.fromkeys(one.signature for one in every))
        calls = tuple(
            msgspec.structs.replace(
                next(one for one in every if one.signature == text).call,
                count=sum(one.signature == text for one in every),
                names=("layer",),
            )
            for text in distinct
        )
        order = tuple(distinct.index(one.signature) for one in every)
        return OperatorsFacts(calls=calls, order=order, batch=2)

    def _calls(self, signatures: list[str]) -> Kernel:
        known = {one.signature: one for step in self.gpu.steps.values() for one in step}
        feed = Work("{}", 1e-6, self.gpu.fed_s)

        def operator(work: Work) -> Any:
            seconds = work.device_s * self.gpu.alone.get(work.signature, 1.0)
            return SimpleNamespace(
                call=lambda: self.gpu.launch(work.host_s, seconds), settle=lambda: None
            )

        made = DeviceOperators(
            [operator(known.get(one, feed)) for one in signatures],
            OperatorsFacts(names=tuple(signatures)),
            self.gpu,
            contextlib.nullcontext,
            self.gpu,
        )
        return Kernel(self.gpu, made, "operators")

    def _step(self, case: StepSpec, preparation: Any) -> Kernel:
        if not isinstance(preparation, StepPreparation):
            preparation = StepPreparation(**preparation)
        facts = StepFacts(
            library="invented 1",
            timing="host-sync",
            batch=2,
            output=(2, 1),
            parameters=1,
            setup_s=0.0,
        )
        backend: Any = SimpleNamespace(runtime=self.gpu, cpus=(0,), watcher=self.gpu)
        operator: Any = SimpleNamespace(
            call=lambda: self.gpu.step(case.model, case.feed), wait=self.gpu.wait
        )

        def traced() -> TracedSteps:
            # Of a compiled step all calls but the first are the compiler's kernels.
            compiled = case.mode == "compiled"
            recorded = self._recorded(case.model)
            library = msgspec.structs.replace(recorded, calls=recorded.calls[:1], order=())
            tracer = StepTracer(
                calls=[
                    ProgramCall(
                        operator=one.call.operator,
                        module="layer",
                        direction="forward",
                        signature=one.signature,
                    )
                    for one in self.gpu.steps[case.model]
                ],
                ways={"profile": ("an invented profiler", lambda: self.gpu.traced(case.model))},
                gaps=GAPS,
                plain=lambda: self.gpu.behind_another(case.model),
                operators=library if compiled else None,
                compiled=compiled,
            )
            return TracedSteps(tracer, operator.call, (0,), contextlib.nullcontext)

        made = step_kernel(backend, operator, contextlib.nullcontext, facts, traced)
        return Kernel(self.gpu, made, "step")


class GpuSession:
    """A session whose workers have the invented GPU; native kernels take what they are told.

    Args:
        gpu: the device.
        native_s: of every native kernel.
        run: its record.
    """

    def __init__(self, gpu: Gpu, native_s: float = 1e-6, run: RunRecord | None = None) -> None:
        self.gpu, self.native_s, self.run = gpu, native_s, run
        self.share = 0.9  # of a native kernel's time that its limit is
        self.options = RunnerOptions(seed=1, budget_s=0.001, estimate=True)
        self.cpus = (0,)
        self.recorded: dict[bytes, Any] = {}
        self.built: list[Any] = []
        self.prepared: list[Any] = []
        self.native: list[Kernel] = []
        self.probed: list[str] = []
        self.room = 1 << 34
        self.nominal_hz = CLOCK_HZ

    def sibling(self) -> GpuSession:
        return self

    def close(self) -> None:
        """There are no processes."""

    def interference(self, *, reads: bool = True) -> Interference:  # noqa: ARG002 - as a session's
        return Interference()

    def cache_bytes(self, device: str) -> int:
        assert device == "cuda:0"
        return 50 << 20

    def room_bytes(self, device: str) -> int:
        assert device == "cuda:0"
        return self.room

    def nominal_clock(self, device: str, precision: str) -> float:
        assert (device, precision) == ("cuda:0", "fp32")
        return self.nominal_hz

    def processor(self, device: str) -> str:
        return f"invented GPU {device}, invented CPU"

    def worker(self, backend: str = "native", device: str = "cpu", **_: Any) -> Worker:
        assert device == "cuda:0" or backend == "native"
        return Worker(self, backend)

    @contextlib.contextmanager
    def open(self, **_: Any) -> Iterator[GpuSession]:
        yield self

    def renew(self) -> None:
        """There are no processes."""

    def measure(self, cases: Any, progress: Any = None, *, prepared: Any = None, **_: Any) -> Any:
        del progress
        for case in cases:
            assert case.device == "cuda:0"
            share = self.share
            roof = Roofline(bound="compute", time_s=share * self.native_s, efficiency=share)
            yield case, row_of(case, time=time_of(self.native_s), roofline=roof, clock_hz=CLOCK_HZ)
            if prepared is not None:
                prepared[case] = self._kernel()

    def prepare(self, case: Any, *, variant: str | None = None, alone: bool = False) -> Any:
        del alone
        assert variant
        assert case.device == "cuda:0"
        self.prepared.append(case)
        return self._kernel()

    def _kernel(self) -> Kernel:
        facts = SimpleNamespace(timing="cuda-graph", reorder_s={})

        def sample(request: Any) -> Chunk:
            times = (self.native_s,) * request.samples
            wall_s = self.native_s * request.samples * request.inner
            return Chunk(seconds=times, clock_hz=(CLOCK_HZ,), wall_s=wall_s)

        made = Kernel(self.gpu, SimpleNamespace(facts=facts, sample=sample), "native")
        self.native.append(made)
        return made
