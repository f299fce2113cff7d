"""A chunk: the samples that a backend returns for one request, with interference counters."""

import math
from collections.abc import Sequence
from typing import Any

import msgspec


class ChunkRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to sample a kernel.

    Attributes:
        samples: timed samples to return.
        inner: executions per sample; the sample is their mean.
        untimed: executions before the first sample, to refill caches and wake the threads.
        touch: reading the operands once is enough in place of the untimed executions, which a slow
            kernel then skips if it supports that.
        timing: how a step on a GPU is timed, one of ``backends.steps.device.WAYS``; empty means the
            first of them. Everything else is timed only in the first way.
        plain: whether each traced step has one without a trace beside it.
    """

    samples: int
    inner: int = 1
    untimed: int = 0
    touch: bool = False
    timing: str = ""
    plain: bool = True


class GpuReadings(msgspec.Struct, frozen=True, kw_only=True):
    """NVML readings of a GPU during a chunk of samples; None if NVML does not provide a reading.

    Attributes:
        sm_clock_hz: median SM clock.
        memory_clock_hz: median memory clock.
        power_w: median power, since the first and the last reading may lie outside the load.
        temperature_c: highest temperature of the GPU.
        reasons: why the clock was reduced, by the names of ``REASONS``.
        others: ids of other processes that computed on this GPU.
        readings: number of readings.
    """

    sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    reasons: tuple[str, ...] = ()
    others: tuple[int, ...] = ()
    readings: int = 0


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """Counters read around samples of one kernel.

    Attributes:
        run_delay_s: time spent runnable but waiting for a CPU, of the thread that waited most.
        steal_s: time the hypervisor took from the used CPUs, summed over them.
        wall_s: wall time between the two readings of the counters.
        disturbance: why the backend considers these samples unreliable (the GPU was too hot,
            another process ran on it); None if it does not.
        gpu: readings of the GPU during the samples.
        gate_timeouts: samples that were repeated because the host had to wait for the GPU while the
            launch gate was closed.
        faults: page faults per execution; None if not counted.
        voluntary: voluntary context switches of all threads; None if not counted.
        involuntary: involuntary context switches of all threads; None if not counted.
        others_s: CPU time of other processes on the used CPUs within ``wall_s``. It is counted in
            ticks, so it may be a tick too long or too short, and negative. None if not counted.
    """

    run_delay_s: float = 0.0
    steal_s: float = 0.0
    wall_s: float = 0.0
    disturbance: str | None = None
    gpu: GpuReadings | None = None
    gate_timeouts: int = 0
    faults: float | None = None
    voluntary: int | None = None
    involuntary: int | None = None
    others_s: float | None = None


class Chunk(Counters, frozen=True, kw_only=True):
    """Consecutive samples of one kernel and the counters read around them.

    Attributes:
        seconds: seconds per execution, one per sample.
        clock_hz: core-clock readings taken in the chunk; may be empty.
        threads: threads that the kernel ran on, one CPU each.
        enqueue_s: host time to enqueue an execution on a GPU, one per sample; empty if not
            measured.
        cpu_s: CPU time of the process within ``wall_s``, summed over its threads, spinning ones
            included; None if not counted.
        bursts: FMA throughput of bursts on all threads right before and right after the samples,
            each relative to idle cores; empty if there were no bursts.
        parts: for each sample the seconds of its parts, such as a step's calls; empty if not timed.
        checksums: CRC-32 of each sample's result right after its time; empty if nobody asks for it.

    Raises:
        ValueError: if there is no sample, a time or counter is negative or not finite,
            or ``parts`` has another length than ``seconds``.
    """

    seconds: tuple[float, ...]
    clock_hz: tuple[float, ...] = ()
    threads: int = 1
    enqueue_s: tuple[float, ...] = ()
    cpu_s: float | None = None
    bursts: tuple[float, ...] = ()
    parts: tuple[tuple[float, ...], ...] = ()
    checksums: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.seconds:
            raise ValueError("chunk without samples")
        if not all(math.isfinite(x) and x >= 0 for x in (*self.seconds, *self.enqueue_s)):
            raise ValueError("chunk with a sample that is negative or not finite")
        if self.parts and len(self.parts) != len(self.seconds):
            raise ValueError(
                f"chunk with {len(self.seconds)} samples but {len(self.parts)} of parts"
            )
        if not all(math.isfinite(x) and x > 0 for x in self.clock_hz):
            raise ValueError("chunk with a clock reading that is not positive")
        for name in ("run_delay_s", "steal_s", "wall_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"chunk with {name} = {value}")
        if not all(math.isfinite(x) and x > 0 for x in self.bursts):
            raise ValueError("chunk with a burst that is not positive")
        if self.threads < 1:
            raise ValueError(f"chunk with {self.threads} threads")


def merged(chunks: Sequence[Chunk]) -> Chunk:
    """Return consecutive chunks of one kernel as one chunk.

    Args:
        chunks: at least one chunk; a counter that one of them lacks is None.
    """
    first, *others = chunks
    if not others:
        return first

    def added(name: str) -> Any:
        values = [getattr(chunk, name) for chunk in chunks]
        return None if None in values else sum(values)

    counters = ("run_delay_s", "steal_s", "wall_s", "gate_timeouts", "voluntary", "involuntary")
    readings = ("seconds", "clock_hz", "enqueue_s", "bursts", "parts", "checksums")
    faults = added("faults")
    return msgspec.structs.replace(
        first,
        **{name: added(name) for name in (*counters, "cpu_s", "others_s")},
        **{name: sum((getattr(chunk, name) for chunk in chunks), ()) for name in readings},
        faults=None if faults is None else faults / len(chunks),
        disturbance=next(filter(None, (chunk.disturbance for chunk in chunks)), None),
    )
