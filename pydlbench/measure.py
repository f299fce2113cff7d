"""A case in, a measurement out: the one place where layer, device, backend and timing meet."""

from __future__ import annotations

import datetime as dt
import math
import sys
import types
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydlbench.backends.case import Case
from pydlbench.errors import PydlbenchError, UnsupportedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType

    from pydlbench.devices import DeviceRecord
    from pydlbench.devices.cpu import CpuFacts
    from pydlbench.layers import Layer
    from pydlbench.results import Measurement, RunRecord
    from pydlbench.timing.procedure import Samples
    from pydlbench.workers.host import RemoteKernel, Worker

__all__ = ["Options", "Session", "measure", "probe_device"]

_ITEM_BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "fp16-tc": 2, "bf16-tc": 2, "bf16": 2, "fp8-tc": 1}
# Rotating copies of a cold cache state span this many last-level caches.
_COLD_FACTOR = 3
# The roof is the fastest way to move bytes; one of these two is.
_ROOF_PATTERNS = ("read", "triad")
# Rounds of a quiet machine agree within 1 to 2 %; from here on the row says that they did not.
_DRIFT = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a session measures.

    Attributes:
        threads: threads, one pinned per CPU; None is one per physical core.
        seed: of the inputs and of the order in interleaved measurements.
        budget_s: sampling time per kernel, in seconds.
        confidence: level of the median's interval.
        keep_samples: keep the raw samples in the record.
        algorithms: time, verify and list every candidate.
    """

    threads: int | None = None
    seed: int = 0
    budget_s: float = 2.0
    confidence: float = 0.95
    keep_samples: bool = False
    algorithms: bool = False


class Session:
    """Workers, device and settings of one run. Use as a context manager."""

    def __init__(self, options: Options | None = None) -> None:
        from pydlbench.devices.cpu import choose_cpus, read_cpu_facts
        from pydlbench.devices.probing import start_record
        from pydlbench.timing.policy import Policy

        self.options = options or Options()
        self.facts: CpuFacts = read_cpu_facts()
        self.cpus: tuple[int, ...] = choose_cpus(self.facts, self.options.threads)
        self.policy = Policy(confidence=self.options.confidence, budget_s=self.options.budget_s)
        self._workers: dict[tuple[str, str], Worker] = {}
        self._device: DeviceRecord = start_record(self.facts, self.cpus)
        self._started = dt.datetime.now(dt.UTC)
        self._id = uuid.uuid4().hex[:12]

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers.values():
            worker.discard()
        self._workers.clear()

    def worker(self, backend: str = "native", device: str = "cpu") -> Worker:
        """Return the worker of a backend; its process starts when it is first asked."""
        from pydlbench.workers.host import Worker

        key = (backend, device)
        if key not in self._workers:
            self._workers[key] = Worker(backend, device, self.cpus)
        return self._workers[key]

    @property
    def run(self) -> RunRecord:
        """The record of this run: when, where, with what."""
        from pydlbench.devices.environment import read_environment
        from pydlbench.results import RunRecord

        return RunRecord(
            id=self._id,
            created_utc=self._started.isoformat(timespec="seconds"),
            command=tuple(sys.argv),
            device=self._device.to_dict(),
            environment=read_environment(),
        )

    def device(
        self, precisions: Iterable[str] = (), patterns: Sequence[str] | None = None
    ) -> DeviceRecord:
        """Return facts, peaks and bandwidths, probing what has not been probed yet.

        Args:
            precisions: which compute peaks are needed.
            patterns: which bandwidths are needed; None is all of them.
        """
        from pydlbench.devices.probing import PATTERNS, extend_record

        worker = self.worker()
        self._device = extend_record(
            self._device,
            tuple(precisions),
            worker.describe(),
            worker.probe,
            PATTERNS if patterns is None else patterns,
        )
        return self._device

    def measure(
        self,
        cases: Sequence[Case],
        progress: Callable[[int, int, str], None] | None = None,
    ) -> Iterator[Measurement]:
        """Measure cases one after another; a case that cannot be measured is a row that says why.

        Args:
            cases: what to measure.
            progress: called with rows done, rows in all and the next row's label.

        Raises:
            UsageError: a case needs more memory than there is; before anything is measured.
        """
        for case in cases:
            self._check_memory(case)
        for done, case in enumerate(cases):
            if progress:
                progress(done, len(cases), case.label)
            yield self._measure(case)
        if progress:
            progress(len(cases), len(cases), "")

    def prepare(self, case: Case) -> RemoteKernel:
        """Have a case made ready in its worker; raises what the backend raises."""
        from pydlbench.backends.base import Preparation

        return self.worker(case.backend, case.device).prepare(
            case,
            Preparation(
                seed=self.options.seed,
                cold_bytes=_COLD_FACTOR * self._llc_bytes(),
                memory_bytes=self.facts.memory_available_bytes or (1 << 62),
                all_candidates=self.options.algorithms,
            ),
        )

    def _llc_bytes(self) -> int:
        from pydlbench.devices.cpu import last_level_bytes

        return last_level_bytes(self.facts, self.cpus)

    def _measure(self, case: Case) -> Measurement:
        from pydlbench.timing.procedure import Sampling

        try:
            kernel = self.prepare(case)
            try:
                sampling = Sampling(self.policy, alone=True)
                while request := sampling.next_request():
                    sampling.feed(kernel.sample(request))
                return self._row(case, kernel.facts, sampling.result())
            finally:
                kernel.release()
        except UnsupportedError as error:
            return self._empty(case, "skipped", error)
        except PydlbenchError as error:
            return self._empty(case, "failed", error)

    def _row(self, case: Case, facts: dict[str, Any], samples: Samples) -> Measurement:
        from pydlbench.results import Correctness, Measurement, Peaks, Roofline
        from pydlbench.results.summary import time_summary

        base = self._base(case)
        time = time_summary(samples.seconds, samples.confidence)
        # Both common precisions, so that the advice to change it can name what that would bring.
        device = self.device(dict.fromkeys((case.precision, "fp32", "bf16")), _ROOF_PATTERNS)
        limits = device.limits(case.precision, samples.clock_hz)
        roof = self._roof(case, base, device, limits.measured)
        return Measurement(
            **base,
            status="ok",
            accumulate=facts["accumulate"],
            library=facts["library"],
            algorithm=facts["algorithm"],
            layout=facts["layout"],
            timing=facts["timing"],
            time=time,
            tflops=base["flops"] / time.median / 1e12,
            gbps=base["bytes"] / time.median / 1e9,
            clock_hz=samples.clock_hz,
            peak=Peaks(
                theoretical=limits.theoretical / 1e12 if limits.theoretical else None,
                measured=limits.measured / 1e12,
            ),
            roofline=Roofline(
                bound=roof.bound,
                time_s=roof.time_s,
                efficiency=roof.time_s / time.median,
                bandwidth=roof.bandwidth,
            ),
            correct=Correctness.from_dict(facts["correct"]),
            contended=samples.contended,
            contention_reason=samples.contention_reason,
            stop_reason=samples.stop_detail,
            workspace_bytes=facts["workspace_bytes"],
            reorder_s=facts["reorder_s"],
            setup_s=facts["setup_s"],
            discarded=samples.discarded,
            candidates=_candidates(facts["candidates"], samples.confidence)
            if self.options.algorithms
            else None,
            samples_s=samples.all_seconds if self.options.keep_samples else None,
            warnings=_warnings(samples),
        )

    def _roof(self, case: Case, base: dict[str, Any], device: DeviceRecord, peak: float) -> Any:
        from pydlbench.devices.roofline import memory_time, roof

        layer = case.layer
        cold = {
            "hot": 0,
            "weights-cold": layer.weight_elements * _ITEM_BYTES[case.precision],
            "all-cold": base["bytes"],
        }[case.cache]
        move = memory_time(
            cold_bytes=cold,
            warm_bytes=base["bytes"] - cold,
            memory_bps=device.best_bandwidth("memory"),
            llc_bps=device.best_bandwidth("llc"),
            llc_bytes=self._llc_bytes(),
        )
        return roof(base["flops_executed"], peak, *move)

    def _base(self, case: Case) -> dict[str, Any]:
        """What a row says whatever happens to it."""
        layer = case.layer
        known = case.pass_ in layer.passes
        flops = layer.flops(case.pass_) if known else 0
        executed = layer.flops_executed(case.pass_) if known else 0
        moved = layer.bytes(case.pass_, _ITEM_BYTES[case.precision]) if known else 0
        return {
            "layer": layer.name or layer.problem,
            "kind": layer.kind,
            "problem": layer.problem,
            "batch": layer.batch,
            "pass_": case.pass_,
            "precision": case.precision,
            "propagation": case.propagation,
            "device": case.device,
            "backend": case.backend,
            "cache": case.cache,
            "layout_request": case.layout,
            "threads": len(self.cpus),
            "flops": flops,
            "flops_executed": executed,
            "bytes": moved,
            "arithmetic_intensity": executed / moved if moved else None,
        }

    def _empty(self, case: Case, status: str, error: PydlbenchError) -> Measurement:
        from pydlbench.results import Measurement

        return Measurement(**self._base(case), status=status, reason=str(error))

    def _check_memory(self, case: Case) -> None:
        available = self.facts.memory_available_bytes
        if available is None or case.pass_ not in case.layer.passes:
            return
        needed = self._memory_for(case, case.layer)
        if needed <= available:
            return
        from pydlbench.units import format_bytes

        nearest = "a smaller layer"
        least = self._memory_for(case, case.layer.with_batch(1))
        if least <= available:
            each = (needed - least) / (case.layer.batch - 1)
            nearest = f"--batch {1 + math.floor((available - least) / each)}"
        raise UsageError(
            f"{case.layer.name or case.layer.problem}: needs {format_bytes(needed)} of memory, "
            f"{format_bytes(available)} are available; nearest: {nearest}"
        )

    def _memory_for(self, case: Case, layer: Layer) -> int:
        elements = sum(layer.operands(case.pass_).values())
        # The float32 originals, one copy in the kernel's layout, one layout more to compare with.
        needed = elements * (4 + 2 * _ITEM_BYTES[case.precision])
        return needed if case.cache == "hot" else needed + _COLD_FACTOR * self._llc_bytes()


def _warnings(samples: Samples) -> tuple[str, ...]:
    """What no counter of this system saw, but the samples show."""
    if samples.contended or samples.drift <= _DRIFT:
        return ()
    text = (
        f"the median moved by {100 * samples.drift:.0f} % between rounds although nothing on this "
        "system was in the way: the clock changed, or a neighbour of the virtual machine was busy"
    )
    return (text,)


def _candidates(listed: list[dict[str, Any]], confidence: float) -> tuple[dict[str, Any], ...]:
    from pydlbench.results.summary import time_summary

    rows = []
    for entry in listed:
        row = dict(entry)
        seconds = row.pop("seconds")
        row["time_s"] = time_summary(seconds, confidence).to_dict() if seconds else None
        rows.append(row)
    return tuple(rows)


def measure(
    layer: Layer,
    *,
    precision: str = "fp32",
    pass_: str = "forward",
    propagation: str = "inference",
    cache: str = "hot",
    layout: str = "best",
    backend: str = "native",
    device: str = "cpu",
    options: Options | None = None,
) -> Measurement:
    """Measure one layer and return the record that the command line prints.

    Args:
        layer: the problem, for example ``pydlbench.Conv2d.of(...)``.
        precision: storage and arithmetic: ``fp32``, ``bf16``, ``fp16``.
        pass_: ``forward``, ``backward-data`` or ``backward-weights``.
        propagation: ``inference`` or ``training``, for the forward pass.
        cache: ``hot``, ``weights-cold`` or ``all-cold``.
        layout: ``best`` or one of ``any``, ``nchw``, ``nhwc``, ``blocked``.
        backend: who computes it.
        device: where.
        options: threads, seed, budget, confidence, what to keep.

    Returns:
        The record; its ``status`` is ``skipped`` or ``failed``, with a ``reason``, where the case
        cannot be measured. Times in seconds, rates in TFLOP/s and GB/s.

    Raises:
        UsageError: an unknown word, or a layer that does not fit into memory.
    """
    case = Case(
        layer=layer,
        pass_=pass_,
        precision=precision,
        propagation=propagation,
        cache=cache,
        layout=layout,
        backend=backend,
        device=device,
    )
    with Session(options) as session:
        return next(session.measure([case]))


def probe_device(
    device: str = "cpu", threads: int | None = None, precisions: Sequence[str] | None = None
) -> DeviceRecord:
    """Return a device's facts with its theoretical and measured peaks and bandwidths.

    Args:
        device: ``cpu``.
        threads: threads of the probes, one pinned per CPU; None is one per physical core.
        precisions: which peaks to measure; None is every one that the CPU has.

    Raises:
        UsageError: no such device, or more threads than CPUs.
    """
    if device != "cpu":
        raise UsageError(f"--device {device}: no such device; nearest: cpu")
    with Session(Options(threads=threads)) as session:
        return session.device(("fp32", "bf16", "fp16") if precisions is None else precisions)


class _Module(types.ModuleType):
    """``pydlbench.measure`` is this module once imported; calling it measures all the same."""

    def __call__(self, layer: Layer, **arguments: Any) -> Measurement:
        return measure(layer, **arguments)


sys.modules[__name__].__class__ = _Module
