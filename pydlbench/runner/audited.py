"""Kernels of users, verified in the samples that are timed.

A program that writes kernels finds ways to be fast only while nobody looks: it notices that it is
verified, keeps results, works after the clock has stopped, or replaces the clock. So this process,
which the user's code cannot reach, draws the inputs of each sample, decides only afterwards which
results it compares, and holds the references and a clock of its own.
"""

import contextlib
import dataclasses
import os
import time
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from pydlbench.backends.base import KernelFacts, Preparation
from pydlbench.backends.frameworks import shared_kernel
from pydlbench.backends.frameworks.verdicts import judge
from pydlbench.errors import RefusedKernelError
from pydlbench.records.measurement import KernelSpec, Measurement
from pydlbench.runner.claimed_times import (
    FEWER_FLOPS,
    MIN_SAMPLES,
    ClaimedTimes,
    beyond_roof,
    undisturbed_s,
)
from pydlbench.timing.chunk import Chunk, ChunkRequest, merged
from pydlbench.timing.statistics import median
from pydlbench.verification.inputs import make_inputs
from pydlbench.verification.shared import SharedOperands
from pydlbench.verification.verify import TENSOR_ACCUMULATOR
from pydlbench.workers.host import RemoteKernel, Worker
from pydlbench.workers.stopping import descendants_of

_Bytes = Mapping[str, NDArray[np.uint8]]

# Samples of a request, and the memory of their operands.
_MAX_SLOTS: Final = 16
_SLOTS_BYTES: Final = 1 << 26
# Samples of a visit: each needs inputs of its own.
_MAX_SAMPLES: Final = 96
# The same with cold caches: between samples some 100 MB are copied.
_MAX_COLD_SAMPLES: Final = 4
# Elements up to which each sample has newly drawn inputs; larger ones are cut from two draws.
_DRAWN_ELEMENTS: Final = 1 << 16
_CUTS: Final = 16
# Seconds for comparisons after each request; at least one result is compared.
_CHECK_S: Final = 0.02


def impossible(row: Measurement) -> str | None:
    """Return by how much a row exceeds its roof, if no kernel can; None if one can."""
    roof, time_ = row.roofline, row.time
    if roof is None or time_ is None:
        return None
    kind = row.kind.rstrip("123d")
    factor = FEWER_FLOPS.get(kind, 1.0) if roof.bound == "compute" else 1.0
    return beyond_roof(time_, roof.time_s, factor, f"{roof.bound} alone takes")


class AuditedKernel(RemoteKernel[KernelFacts]):
    """A user's kernel in a process of its own, whose results are compared in this one.

    Args:
        kernel: the kernel in its process.
        shared: the memory that both processes map.
        spec: what it computes.
        cpus: CPUs that its threads may run on; empty for any.
        cold_bytes: bytes that are copied before each sample with cold caches.

    Raises:
        RefusedKernelError: its first result is wrong.
    """

    def __init__(
        self,
        kernel: RemoteKernel[KernelFacts],
        shared: SharedOperands,
        spec: KernelSpec,
        cpus: Collection[int],
        cold_bytes: int = 0,
    ) -> None:
        super().__init__(kernel.worker, kernel.number, kernel.facts)
        self._shared, self._spec, self._cpus = shared, spec, frozenset(cpus)
        layer = spec.layer
        self._result = layer.result(spec.pass_)
        self._written = layer.writes(spec.pass_, spec.propagation)
        sizes = layer.operands(spec.pass_)
        self._cold = spec.cache != "hot" and not spec.on_gpu
        self._bytes = sum(shared.memory(0, role).size for role in shared.roles)
        self._bytes += cold_bytes if self._cold else 0
        # Values of other inputs depend on each other: those of a row add up to one.
        independent = spec.pass_ == "forward" or layer.entry.kind in FEWER_FLOPS
        self._cut = independent and sum(sizes.values()) > _DRAWN_ELEMENTS
        self._random = np.random.default_rng()
        self._draws = [self._draw(), self._draw()] if self._cut else []
        self._before: NDArray[Any] = np.zeros(layer.shapes()[self._result], np.float32)
        self._claimed = ClaimedTimes()
        self._take(ChunkRequest(samples=1, untimed=1))

    def sample(self, request: ChunkRequest) -> Chunk:
        """Time samples with other inputs in each, and compare results that are drawn afterwards.

        Raises:
            RefusedKernelError: a result is wrong, or the time cannot be right.
            WorkerError: see :class:`RemoteKernel`.
        """
        if self._cut:
            self._draws[int(self._random.integers(2))] = self._draw()
        if not self._spec.on_gpu:  # each call has inputs of its own
            samples = min(request.samples, _MAX_COLD_SAMPLES) if self._cold else request.samples
            request = msgspec.structs.replace(request, samples=samples, inner=1)
        left, chunks = min(request.samples, _MAX_SAMPLES), []
        seconds: list[float] = []
        # The first sample after a pause wakes threads up; it is compared, and not kept.
        first = int(request.untimed > 0 and self._shared.slots > 1)
        while left:
            count = min(left, self._shared.slots - first)
            taken = min(max(first + count, MIN_SAMPLES), self._shared.slots)
            chunk = self._take(msgspec.structs.replace(request, samples=taken))
            seconds += chunk.seconds
            kept = slice(first, first + count)
            chunks.append(
                msgspec.structs.replace(
                    chunk, seconds=chunk.seconds[kept], enqueue_s=chunk.enqueue_s[kept]
                )
            )
            left -= count
        whole = merged(chunks)
        while samples := self._claimed.undecided(taken):
            chunk = self._take(msgspec.structs.replace(request, samples=samples))
        if self._claimed.mostly_uneven:
            mean = sum(seconds) / len(seconds)
            whole = msgspec.structs.replace(whole, seconds=(mean,) * len(whole.seconds))
        if not self._spec.on_gpu:  # its clock leaves out the start of a kernel, a loop does not
            last = msgspec.structs.replace(request, samples=len(chunk.seconds))
            self._claimed.check_loop(
                *(self.worker, super().sample, last, whole, self._elapsed_s, 2 * self._bytes)
            )
        return whole

    def _draw(self) -> _Bytes:
        spec = self._spec
        seed = int(self._random.integers(1 << 62))
        drawn = make_inputs(spec.layer, spec.pass_, spec.precision, seed, spec.propagation)
        roles = [role for role in drawn if role in self._shared.roles]
        return {role: self._shared.stored(role, drawn[role]) for role in roles}

    def _inputs(self) -> _Bytes:
        """Return inputs that no earlier sample had."""
        if not self._cut:
            return self._draw()
        one, other = self._random.permutation(np.array(self._draws, object))
        edges = np.sort(self._random.random(_CUTS))
        inputs = {}
        for role, values in one.items():
            mixed = values.copy()
            places = (edges * (values.size // 8)).astype(int) * 8
            for first, last in zip(places[::2], places[1::2], strict=True):
                mixed[first:last] = other[role][first:last]
            inputs[role] = mixed
        return inputs

    def _take(self, request: ChunkRequest) -> Chunk:
        """Time one sample in each of the first slots, and compare some of the results."""
        given = [self._inputs() for _ in range(request.samples)]
        begin = undisturbed_s(self.worker)
        if request.untimed:
            super().sample(msgspec.structs.replace(request, samples=1))
        elapsed = undisturbed_s(self.worker) - begin
        self.worker.stop()  # a thread of the kernel must not read inputs before they are timed
        for slot, inputs in enumerate(given):
            for role, values in inputs.items():
                self._shared.memory(slot, role)[:] = values
        begin = undisturbed_s(self.worker)
        chunk = super().sample(msgspec.structs.replace(request, untimed=0))
        self._elapsed_s = undisturbed_s(self.worker) - begin
        elapsed += self._elapsed_s
        self._check_time(request, chunk, elapsed)
        end = time.perf_counter() + max(_CHECK_S, elapsed)
        for slot in self._random.permutation(request.samples):
            self._check_result(int(slot), given[slot], chunk.checksums[slot])
            if time.perf_counter() > end:
                break
        return chunk

    def _check_time(self, request: ChunkRequest, chunk: Chunk, elapsed: float) -> None:
        """Compare the claimed time with the host's, which an overloaded machine may prolong."""
        if not len(chunk.seconds) == len(chunk.checksums) == request.samples:
            raise RefusedKernelError("its process returned another number of samples")
        self._claimed.check_even(chunk.seconds)
        claimed = request.inner * request.samples * median(chunk.seconds)
        if request.untimed:
            claimed += (request.untimed + request.inner) * median(chunk.seconds)
        self._claimed.check(elapsed, claimed, request.samples * 2 * self._bytes)
        if self._cpus and (elsewhere := self._other_cpus()):
            raise RefusedKernelError(
                f"its threads run on CPU {', '.join(map(str, sorted(elsewhere)))}, "
                "which other rows do not use"
            )

    def _other_cpus(self) -> set[int]:
        """Return CPUs that the process, or one that it has started, has allowed itself."""
        used: set[int] = set()
        for process in (self.worker.pid or 0, *descendants_of(self.worker.pid or 0)):
            for task in Path(f"/proc/{process}/task").glob("*"):
                with contextlib.suppress(OSError):  # the thread has ended
                    used |= os.sched_getaffinity(int(task.name))
        return used - self._cpus

    def _check_result(self, slot: int, given: _Bytes, checksum: int) -> None:
        shared, spec = self._shared, self._spec
        if zlib.crc32(shared.memory(slot, self._result).data) != checksum:
            raise RefusedKernelError("a result changed after the end of its timed sample")
        for role, values in given.items():
            if role not in self._written and not np.array_equal(shared.memory(slot, role), values):
                raise RefusedKernelError(f"it changes {role}, which is an input")
        result = shared.values(self._result, shared.memory(slot, self._result))
        tensor_cores = spec.precision == "tf32" or spec.precision.endswith("-tc")
        verdict = judge(
            spec,
            {role: shared.values(role, values) for role, values in given.items()},
            {self._result: result},
            seed=int(self._random.integers(1 << 31)),
            accumulate=TENSOR_ACCUMULATOR if tensor_cores else "float32",
            algorithm="",
            second={self._result: self._before},
        )
        self._before = result
        if verdict.status != "ok":
            off = "" if verdict.rel_error is None else f", relative error {verdict.rel_error:.2g}"
            raise RefusedKernelError(
                f"wrong result in a timed sample{off}: {verdict.detail}; every call must compute "
                "the result from the inputs of that call, before it returns"
            )
        self.facts = dataclasses.replace(self.facts, correct=verdict)


def prepare_audited(
    worker: Worker, spec: KernelSpec, preparation: Preparation, cpus: Collection[int]
) -> AuditedKernel:
    """Prepare a user's kernel in its process, and compare its first result.

    Args:
        worker: process that runs only code of this user's file.
        spec: what is computed.
        preparation: see :class:`Preparation`.
        cpus: CPUs that its threads may run on; empty for any.

    Raises:
        PydlbenchError: it cannot be prepared, or is refused.
    """
    size = sum(spec.layer.operands(spec.pass_).values()) * 8
    slots = min(_MAX_SLOTS, _SLOTS_BYTES // max(1, size))
    if slots < MIN_SAMPLES:  # too few samples to show that one computes for the others
        slots = 1
    shared = SharedOperands(spec.layer, spec.pass_, spec.precision, slots)
    try:
        kernel = worker.build(
            shared_kernel.prepare,
            KernelFacts,
            spec=spec.to_dict(),
            preparation=preparation,
            path=shared.path,
            slots=slots,
        )
    finally:
        shared.unlink()
    return AuditedKernel(kernel, shared, spec, cpus, preparation.cold_bytes)
