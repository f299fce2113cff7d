"""A chunk: what a backend hands back for one request, times and disturbance counters together."""

from __future__ import annotations

import math

import msgspec


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a kernel is asked to run next.

    Attributes:
        samples: timed samples to return.
        inner: executions per sample; the sample is their mean.
        untimed: executions before the first sample, to refill caches and wake the threads.
        touch: reading the operands once does as well: a kernel that can leaves out the untimed
            executions, which take it longer.
        timing: how a step on a GPU is timed, see ``backends.steps.device.WAYS``; empty is the
            first of these, and the only way of all else.
    """

    samples: int
    inner: int = 1
    untimed: int = 0
    touch: bool = False
    timing: str = ""


class GpuReadings(msgspec.Struct, frozen=True, kw_only=True):
    """What NVML told about a GPU during a chunk of samples; None is what it did not tell.

    Attributes:
        sm_clock_hz: median SM clock.
        memory_clock_hz: median memory clock.
        power_w: median power: the first and the last reading are beside the load.
        temperature_c: highest temperature of the GPU.
        reasons: what held the clock down, by the names of ``REASONS``.
        others: process ids of others that computed on this GPU.
        readings: how many readings these are of.
    """

    sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    reasons: tuple[str, ...] = ()
    others: tuple[int, ...] = ()
    readings: int = 0


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive samples of one kernel and the counters read around them.

    Attributes:
        seconds: seconds per execution, one per sample.
        involuntary: involuntary context switches of all threads during each sample; empty where
            the platform does not count them.
        clock_hz: core-clock readings taken in the chunk; may be empty.
        run_delay_s: time spent runnable but waiting for a CPU, of the thread that waited most. An
            involuntary switch always waits, so 0 beside switches means "not counted here".
        steal_s: time the hypervisor took from the used CPUs, summed over them.
        wall_s: wall time between the two readings of the counters.
        threads: threads that the kernel ran on, a CPU for each.
        disturbance: what the backend itself saw that speaks against these samples (a GPU that was
            too hot, another process on it), in words.
        gpu: what was read from a GPU meanwhile.
        gate_timeouts: samples that were taken once more because the host had to wait for the GPU
            while the launch gate was closed.
        enqueue_s: what the host needs to put an execution into a GPU's queue, one per sample; empty
            where nobody asked.
        allocations: blocks per execution that a framework asked a GPU's driver for; None where
            nobody counted.
        faults: page faults per execution; None where nobody counted.
        voluntary: voluntary context switches of all threads; None where nobody counted.
        cpu_s: CPU time that the process spent within ``wall_s``, summed over its threads, those
            that wait by spinning included; None where nobody counted.
        others_s: CPU time that others spent on the used CPUs within ``wall_s``; counted in ticks,
            so that it may come out a tick too long or too short, or negative; None where nobody
            counted.
        canary: FMA throughput of bursts on all threads right before and right after, each as a
            share of what the cores do when nobody else uses them; empty where there was none.
        parts: of each sample the seconds of what it consists of, such as a step's calls; empty
            where nobody timed them.

    Raises:
        ValueError: if there is no sample, a time or counter is negative or not finite,
            or ``involuntary`` or ``parts`` has another length than ``seconds``.
    """

    seconds: tuple[float, ...]
    involuntary: tuple[int, ...] = ()
    clock_hz: tuple[float, ...] = ()
    run_delay_s: float = 0.0
    steal_s: float = 0.0
    wall_s: float = 0.0
    threads: int = 1
    disturbance: str | None = None
    gpu: GpuReadings | None = None
    gate_timeouts: int = 0
    enqueue_s: tuple[float, ...] = ()
    allocations: float | None = None
    faults: float | None = None
    voluntary: int | None = None
    cpu_s: float | None = None
    others_s: float | None = None
    canary: tuple[float, ...] = ()
    parts: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        if not self.seconds:
            raise ValueError("chunk without samples")
        if not all(math.isfinite(x) and x >= 0 for x in (*self.seconds, *self.enqueue_s)):
            raise ValueError("chunk with a sample that is negative or not finite")
        self._check_lengths()
        if any(count < 0 for count in self.involuntary):
            raise ValueError("chunk with a negative switch count")
        if not all(math.isfinite(x) and x > 0 for x in self.clock_hz):
            raise ValueError("chunk with a clock reading that is not positive")
        for name in ("run_delay_s", "steal_s", "wall_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"chunk with {name} = {value}")
        if not all(math.isfinite(x) and x > 0 for x in self.canary):
            raise ValueError("chunk with a canary that is not positive")
        if self.threads < 1:
            raise ValueError(f"chunk with {self.threads} threads")

    def _check_lengths(self) -> None:
        for name in ("involuntary", "parts"):
            values = getattr(self, name)
            if values and len(values) != len(self.seconds):
                raise ValueError(
                    f"chunk with {len(self.seconds)} samples but {len(values)} of {name}"
                )
