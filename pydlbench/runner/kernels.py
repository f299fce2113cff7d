"""Prepares kernels in the workers of a session, and computes the memory that they need."""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import hashlib
import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from pydlbench.backends import capabilities
from pydlbench.backends.base import Preparation
from pydlbench.devices.kept import KeptKernel
from pydlbench.errors import PydlbenchError, UsageError
from pydlbench.ops.table import ITEM_BYTES
from pydlbench.runner.rows import measured_row
from pydlbench.study.estimate import estimate
from pydlbench.study.loop import Size
from pydlbench.study.plan import planned, scatter
from pydlbench.timing.chunk import Request
from pydlbench.timing.policy import Policy, gpu_policy
from pydlbench.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.backends.base import KernelFacts
    from pydlbench.backends.frameworks.verbose import Turn
    from pydlbench.devices.cpu.facts import CpuFacts
    from pydlbench.ops.op import Layer
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.specs import KernelSpec
    from pydlbench.runner.machine import Devices, Workers
    from pydlbench.runner.options import RunnerOptions
    from pydlbench.study.table import Interference, Series
    from pydlbench.workers.host import RemoteKernel, Worker

# Size of the rotating copies for cold caches, in last-level caches.
_COLD_FACTOR = 3
# The same on a GPU, in L2 caches. It does not always replace the oldest line: after twice its size
# one line in eight is still there.
_COLD_L2 = 4
# The second kernel of a search is sampled beside the first if it is slower by this factor at most:
# probes on a busy virtual machine differ by several per cent. An estimate has hundreds of summands,
# for which fewer are worth the time.
_RIVAL, _RIVAL_OF_SUMMAND = 1.08, 1.04
#: Factor up to which a second kernel counts as nearly as fast, after interleaved repetitions.
NEAR = 1.04
# A stored kernel that has become slower by this factor is deleted: machines differ by less from one
# hour to another.
_SLOWER = 1.15
_LOGGED_TURNS = 7
_LONG_S, _FEW_TURNS = 0.01, 3
# Empty calls for each row, a tenth of a second at most.
_FEW_CALLS = {"samples": 11, "inner": 30}


class _Plan(NamedTuple):
    """How a spec is prepared, and what is known of its kernel.

    Attributes:
        preparation: arguments for the worker.
        summand: whether it is one of an estimate's native rows.
        problem: the spec without the name of its layer, with hot caches.
        searched: result of a search for the same; None if there was none.
        known: facts of a verified kernel, of such a process if possible; None if there is none.
    """

    preparation: Preparation
    summand: bool
    problem: KernelSpec
    searched: KernelFacts | None
    known: KernelFacts | None


class SessionKernels:
    """The kernels of a session: prepares them in its workers and asks these for other facts.

    Args:
        options: settings of the session.
        facts: facts about the CPU.
        cpus: logical CPUs that kernels are pinned to.
        workers: workers of the session.
        devices: devices of the session.
    """

    def __init__(
        self,
        options: RunnerOptions,
        facts: CpuFacts,
        cpus: tuple[int, ...],
        workers: Workers,
        devices: Devices,
    ) -> None:
        self._options = options
        self._facts = facts
        self._cpus = cpus
        self._workers = workers
        self._devices = devices
        self._policy = Policy(budget_s=options.budget_s)
        # Variant of the fastest kernel by hot spec.
        self._fastest: dict[KernelSpec, str] = {}
        # Results of searches, by nameless spec and whether the search was a short one.
        self._searched: dict[tuple[KernelSpec, bool], KernelFacts] = {}
        # Verified kernels, by nameless hot spec, variant, whether the search was a short one, which
        # times no reorders, and whether pages are kept.
        self._verified: dict[tuple[KernelSpec, str, bool, bool], KernelFacts] = {}
        # Kernels that earlier runs have stored, by nameless spec.
        self._kept: dict[KernelSpec, KeptKernel | None] = {}
        self._begun: dict[Worker, tuple[KernelSpec, Preparation]] = {}

    @property
    def seed(self) -> int:
        """Seed of the inputs and of the order in rounds."""
        return self._options.seed

    def threads(self, spec: KernelSpec) -> int | None:
        """Return the number of threads of a row; None on a GPU."""
        return None if spec.on_gpu else len(self._cpus)

    def interference(self) -> Interference:
        """Measure interference; see :meth:`pydlbench.runner.machine.Workers.interference`."""
        return self._workers.interference()

    def guarded(self, spec: KernelSpec) -> bool:
        """Whether bursts are needed around the samples of a spec.

        The native backend takes its own; kernels of a GPU do not depend on the cores.
        """
        return spec.backend != "native" and not spec.on_gpu

    def allocates(self, spec: KernelSpec) -> bool:
        """Whether a backend allocates its outputs in each call, from the C library."""
        return not spec.on_gpu and capabilities.declaration(spec.backend).fresh_results

    def processes(self, group: Sequence[KernelSpec]) -> list[KernelSpec]:
        """Return the spec of each process that holds operands of a problem.

        Args:
            group: specs that differ only in backend and mode.
        """
        if len(group) == 1:
            return list(group)
        # With cold caches frameworks are not timed, and hold nothing.
        holding = [spec for spec in group if spec.backend == "native" or spec.cache == "hot"]
        warm = [spec for spec in holding if self.allocates(spec)]
        # One log is read at a time.
        log = [spec for spec in warm if capabilities.declaration(spec.backend).log_environment][:1]
        return [*holding, *warm, *log]

    def empty_call_s(self, spec: KernelSpec) -> float | None:
        """Return the seconds of a call that does nothing, in the backend and mode of a spec.

        It is measured each time, as it changes by more than a third during a run. None if the
        backend cannot tell.
        """
        try:
            worker = self._workers.get(spec.backend, spec.device)
            return float(worker.probe("empty_call", mode=spec.mode, **_FEW_CALLS)["seconds"])
        except PydlbenchError:
            return None

    def logged(
        self,
        spec: KernelSpec,
        variant: str | None,
        unlogged: RemoteKernel[KernelFacts] | None = None,
    ) -> dict[str, Any]:
        """Return what the library itself logs of a call, see ``KernelFacts.evidence``.

        Frameworks that cannot switch the log on and off run in a separate process that keeps pages.
        The result is empty if there is no such log.

        Args:
            spec: what is computed.
            variant: the variant that was timed.
            unlogged: the same kernel with kept pages and without a log; its calls alternate with
                the logged ones, which gives the cost of the log.
        """
        from pydlbench.backends.frameworks.verbose import evidence, middle_turn

        if spec.on_gpu or not capabilities.declaration(spec.backend).log_environment:
            return {}
        worker = self._workers.get(spec.backend, spec.device, warm=True, logging=True)
        problem = msgspec.structs.replace(spec, cache="hot").nameless
        known = self._known(problem, variant, warm=True)
        try:
            verified = known is not None
            kernel = worker.prepare(spec, self._preparation(spec, variant, verified=verified))
            try:
                turns = [_turn(worker, kernel, unlogged)]
                wanted = _LOGGED_TURNS if turns[0].logged_s < _LONG_S else _FEW_TURNS
                turns += [_turn(worker, kernel, unlogged) for _ in range(wanted - 1)]
                return evidence(*middle_turn(turns))
            finally:
                kernel.release()
        except PydlbenchError:
            return {}  # without a log there is one cause less to find

    def prepare(
        self,
        spec: KernelSpec,
        *,
        warm: bool = False,
        variant: str | None = None,
        alone: bool = False,
        finals: bool = True,
    ) -> RemoteKernel[KernelFacts]:
        """Prepare a spec in its worker; raises what the backend raises.

        Args:
            spec: what to compute.
            warm: use a process of its own whose allocator keeps freed pages.
            variant: see ``Preparation``.
            alone: whether no other backend computes the same. An estimate then takes a short
                search, and with cold caches the kernel of the hot row if that is known.
            finals: see ``Preparation``.
        """
        worker = self._workers.get(spec.backend, spec.device, warm=warm)
        plan = self._plan(spec, variant, warm=warm, alone=alone, finals=finals)
        if self._begun.get(worker) == (spec, plan.preparation):
            del self._begun[worker]
            kernel = worker.finish_preparing()
        else:
            kernel = worker.prepare(spec, plan.preparation)
        known = plan.known
        if plan.searched is not None:
            kernel.facts = plan.searched
        elif known is not None and plan.preparation.described:
            kernel.facts = known
        elif known is not None and kernel.facts.correct.status == "unchecked":
            kernel.facts = dataclasses.replace(
                kernel.facts, correct=known.correct, reorder_s=known.reorder_s
            )
        if plan.preparation.variant is None or plan.preparation.kept:
            self._searched[spec.nameless, plan.summand] = kernel.facts
        name = variant_of(spec, kernel.facts)
        if name is not None and kernel.facts.correct.status == "ok":
            self._verified.setdefault((plan.problem, name, plan.summand, warm), kernel.facts)
        if plan.summand and spec.cache == "hot":
            self.remember(spec, kernel.facts.algorithm, kernel.facts.layout)
        return kernel

    def _plan(
        self, spec: KernelSpec, variant: str | None, *, warm: bool, alone: bool, finals: bool
    ) -> _Plan:
        """Return how to prepare a spec, see :meth:`prepare`, and what is known of its kernel."""
        # One of an estimate's native rows.
        summand = alone and self._options.estimate and spec.backend == "native"
        hot = msgspec.structs.replace(spec, cache="hot")
        if variant is None and summand and spec != hot:
            variant = self._fastest.get(hot)
        searched = self._searched.get((spec.nameless, summand)) if variant is None else None
        variant = variant if searched is None else variant_of(spec, searched)
        kept = None if variant is not None else self.kept(spec)
        variant = variant if kept is None else kept.variant
        problem = hot.nameless
        own = self._verified.get((problem, variant or "", summand, warm))
        known = self._known(problem, variant, summand=summand, warm=warm)
        preparation = self._preparation(
            spec,
            variant,
            brief=summand,
            verified=known is not None,
            described=own is not None and spec.backend != "native" and not spec.on_gpu,
            finals=finals,
            kept=kept is not None,
        )
        searched = None if variant is None else searched
        return _Plan(preparation, summand, problem, searched, known)

    def _known(
        self, problem: KernelSpec, variant: str | None, *, warm: bool, summand: bool = False
    ) -> KernelFacts | None:
        """Return the facts of a verified kernel, of such a process if possible; None without."""
        names = [(problem, variant or "", summand, each) for each in (warm, not warm)]
        return next((self._verified[name] for name in names if name in self._verified), None)

    def known_size(
        self, spec: KernelSpec, variant: str | None, searched: KernelFacts, process: int
    ) -> Size | None:
        """Return how long a native kernel runs, from its search or from an earlier run.

        Args:
            spec: what it computes.
            variant: its name.
            searched: facts with the candidates of the search; a single one was only executed once.
            process: number of its process. Short kernels that were not searched for here are warmed
                up in it.
        """
        if variant is None or spec.backend != "native":
            return None
        times = _times(searched.candidates) if len(searched.candidates) > 1 else {}
        seconds = times.get(variant)
        warm = seconds is not None
        kept = self.kept(spec)
        if seconds is None and kept is not None and variant in (kept.variant, kept.rival):
            seconds = kept.seconds
        if seconds is None:
            return None
        warm = warm or seconds >= self._policy.warm_limit_s
        return Size(execution_s=seconds, wall_s=seconds, process=process if warm else 0)

    def kept(self, spec: KernelSpec) -> KeptKernel | None:
        """Return the kernel that an earlier run chose for a native spec on a CPU, if any."""
        if spec.backend != "native" or spec.on_gpu or self._options.algorithms:
            return None
        nameless = spec.nameless
        if nameless not in self._kept:
            fresh = not self._options.keep_probes
            kept = None if fresh else self._devices.kept().read_kernel(_kept_key(nameless))
            self._kept[nameless] = kept
        return self._kept[nameless]

    def keep(
        self, spec: KernelSpec, variant: str | None, rival: str | None, samples: Series
    ) -> str | None:
        """Store the fastest kernel for later runs; return a warning, or None.

        A stored kernel that has become slower may not be the fastest any more: it is deleted, so
        that the next run searches again. Of what other work disturbed nothing is stored, and a
        scatter only of what it left alone: more repetitions do not help against neighbours.

        Args:
            spec: what was computed.
            variant: name of the kernel.
            rival: name of a kernel that is nearly as fast; None without one.
            samples: samples of the kernel.
        """
        if variant is None or spec.backend != "native" or spec.on_gpu or self._options.algorithms:
            return None
        estimated = estimate(samples)
        if estimated.contended:
            return None
        nameless, seconds = spec.nameless, samples.median
        known = self._kept.get(nameless)
        there = self._devices.kept()
        if known is not None and known.variant == variant and seconds > _SLOWER * known.seconds:
            there.write_kernel(_kept_key(nameless), None)
            return (
                f"the kernel kept from an earlier run takes {seconds / known.seconds:.2f} times as "
                "long as then: the next run searches again, and so does --fresh"
            )
        scattered = known.scatter if known is not None and known.variant == variant else None
        if not estimated.disturbed:
            scattered = scatter(samples.preparations_s())
        there.write_kernel(
            _kept_key(nameless),
            KeptKernel(variant=variant, rival=rival, seconds=seconds, scatter=scattered),
        )
        return None

    def repetitions(self, specs: Sequence[KernelSpec]) -> int:
        """Return the number of repetitions that specs need, from the scatter in earlier runs.

        Args:
            specs: specs that are repeated together.
        """
        scatters = [kept.scatter for spec in specs if (kept := self.kept(spec)) is not None]
        return planned(scatters, self._options.width)

    def prepare_at_once(self, wanted: Sequence[tuple[KernelSpec, str | None]]) -> None:
        """Begin to prepare the first spec of each worker, so that workers do so at the same time.

        :meth:`prepare` then returns each kernel, or raises its error. Nothing may be timed before.

        Args:
            wanted: specs and their variants, in the order in which they will be prepared.
        """
        for spec, variant in wanted:
            worker = self._workers.get(spec.backend, spec.device)
            if worker in self._begun:
                continue
            plan = self._plan(spec, variant, warm=False, alone=False, finals=False)
            with contextlib.suppress(PydlbenchError):  # it comes again when it is waited for
                worker.start_preparing(spec, plan.preparation)
                self._begun[worker] = (spec, plan.preparation)

    def rival_of(self, spec: KernelSpec, facts: KernelFacts) -> str | None:
        """Return the variant that was nearly as fast in the search; None if there is none.

        Args:
            spec: what was searched for.
            facts: facts of the kernel that was chosen.
        """
        if spec.backend != "native" or spec.on_gpu or self._options.algorithms:
            return None
        kept = self.kept(spec)
        if kept is not None and kept.variant == variant_of(spec, facts):
            return kept.rival
        margin = _RIVAL_OF_SUMMAND if self._options.estimate else _RIVAL
        times = _times(facts.candidates)
        own = times.pop(f"{facts.algorithm} {facts.layout}", None)
        if own is None or not times:
            return None
        second = min(times, key=times.__getitem__)
        return second if times[second] <= margin * own else None

    def sampling_policy(self, spec: KernelSpec, facts: KernelFacts) -> Policy:
        """Return the sampling constants for a prepared kernel."""
        return gpu_policy(self._policy, facts.timing, spec.cache) if spec.on_gpu else self._policy

    def remember(self, spec: KernelSpec, algorithm: str, layout: str) -> None:
        """Set the kernel of a hot row, which an estimate uses for the cold row too."""
        self._fastest[spec] = f"{algorithm} {layout}"

    def _preparation(
        self,
        spec: KernelSpec,
        variant: str | None,
        *,
        brief: bool = False,
        verified: bool = False,
        described: bool = False,
        finals: bool = True,
        kept: bool = False,
    ) -> Preparation:
        return Preparation(
            seed=self._options.seed,
            cold_bytes=self.cold_bytes(spec.device),
            memory_bytes=self._facts.memory_available_bytes or (1 << 62),
            all_candidates=self._options.algorithms,
            brief=brief,
            workspace_bytes=self._options.workspace_bytes,
            energy=self._options.energy,
            variant=variant,
            verified=verified,
            described=described,
            finals=finals,
            kept=kept,
        )

    def cold_bytes(self, device: str) -> int:
        """Return the bytes that rotating copies need for cold caches on a device."""
        factor = _COLD_FACTOR if device == "cpu" else _COLD_L2
        return factor * self._devices.cache_bytes(device)

    def row(
        self,
        spec: KernelSpec,
        facts: KernelFacts,
        samples: Series,
        clock_hz: float | None = None,
    ) -> Measurement:
        """Return the row of a timed spec, compared with the limits of its device.

        Args:
            spec: what was timed.
            facts: facts of the kernel.
            samples: samples of the kernel.
            clock_hz: clock read by another backend on the same cores, if this one reads none.
        """
        row = measured_row(
            spec,
            self.threads(spec),
            facts,
            samples,
            clock_hz=clock_hz,
            keep_samples=self._options.keep_samples,
            keep_candidates=self._options.algorithms,
        )
        return self._devices.limited(row, spec)


def _times(candidates: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the seconds of the candidates that ran, by variant."""
    return {
        f"{candidate['algorithm']} {candidate['layout']}": min(candidate["seconds"])
        for candidate in candidates
        if candidate["status"] == "ok" and candidate["seconds"]
    }


def variant_of(spec: KernelSpec, facts: KernelFacts) -> str | None:
    """Return the name by which the same kernel is prepared again, see ``Preparation.variant``."""
    if spec.backend == "native":
        return f"{facts.algorithm} {facts.layout}"
    return facts.evidence.get("variant")


def _kept_key(spec: KernelSpec) -> str:
    """Return a digest of what a stored kernel depends on: its spec and the native module."""
    module = importlib.util.find_spec("pydlbench._cpu")
    there = Path(module.origin).stat() if module is not None and module.origin else None
    build = None if there is None else [there.st_size, there.st_mtime_ns]
    text = json.dumps([spec.to_dict(), build], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _turn(
    worker: Worker,
    kernel: RemoteKernel[KernelFacts],
    unlogged: RemoteKernel[KernelFacts] | None,
) -> Turn:
    """Run a logged call, and right before it the same call without a log."""
    from pydlbench.backends.frameworks.verbose import Turn, last_call, parse

    # The first call wakes the threads; of two equal calls, the log of the second counts.
    request = Request(samples=1, untimed=1)
    plain = None if unlogged is None else unlogged.sample(request)
    logged = kernel.sample(request)
    return Turn(
        executions=last_call(parse(worker.stderr()), 2),
        logged_s=logged.seconds[0],
        plain_s=None if plain is None else plain.seconds[0],
    )


# -----------------------------------------------------------------------------
# Memory that measurements need; checked before anything is measured.

# Layouts of every operand and pools of finalists that a search holds at the same time.
_LAYOUTS = 3
_POOLS = 2


def check_memory(processes: Sequence[KernelSpec], available: int, cold_bytes: int) -> None:
    """Check that the processes of one problem fit into memory together.

    Rows on a GPU are not refused: on virtual machines whose memory grows on demand the available
    memory says little. Such a row fails by itself if there is too little.

    Args:
        processes: spec of each process. Those of one problem are prepared one after another, and
            all hold their operands until the last one is timed.
        available: bytes of memory.
        cold_bytes: bytes of the rotating copies for cold caches.

    Raises:
        UsageError: there is too little memory.
    """
    processes = [spec for spec in processes if spec.pass_ in spec.layer.passes]
    if all(spec.on_gpu for spec in processes):
        return
    layer = processes[0].layer

    def needed(batch: int) -> int:
        return group_memory(processes, layer.with_batch(batch), cold_bytes)

    if needed(layer.batch) <= available:
        return
    several = f" for {len(processes)} processes at a time" if len(processes) > 1 else ""
    nearest = "fewer of --backend and --mode" if several else "a smaller layer"
    batches = range(1, layer.batch)
    if count := bisect.bisect_left(batches, True, key=lambda batch: needed(batch) > available):
        nearest = f"--batch {batches[count - 1]}"
    raise UsageError(
        f"{layer.name or layer.problem}: needs {format_bytes(needed(layer.batch))} of memory"
        f"{several}, {format_bytes(available)} are available; nearest: {nearest}"
    )


def group_memory(processes: Sequence[KernelSpec], layer: Layer, cold_bytes: int) -> int:
    """Return the largest number of bytes that the processes of one problem hold at a time.

    Each is prepared while all others hold their operands, as a process that dies is prepared again
    at the end.

    Args:
        processes: spec of each process.
        layer: their layer, possibly with another batch.
        cold_bytes: see :func:`check_memory`.
    """
    total, most = 0, 0
    for spec in processes:
        held = memory_held(spec, layer, cold_bytes)
        total += held
        most = max(most, memory_needed(spec, layer, cold_bytes) - held)
    return total + most


def memory_needed(spec: KernelSpec, layer: Layer, cold_bytes: int) -> int:
    """Return the bytes of memory that measuring a spec needs, verification and finals included.

    These are the float32 originals; every operand in up to three layouts in the storage type; a
    float32 copy of the output; and for cold caches two pools of rotating copies, each of
    ``cold_bytes`` and one more whole copy. For a row on a GPU the host holds only the inputs and
    the output in float32.

    Args:
        spec: what to measure.
        layer: its layer, possibly with another batch.
        cold_bytes: least bytes of the rotating copies for cold caches.
    """
    operands = layer.operands(spec.pass_)
    output = layer.result(spec.pass_)
    elements = sum(operands.values())
    if spec.on_gpu:
        return 4 * elements
    stored = elements * ITEM_BYTES[spec.precision]
    needed = 4 * elements + _LAYOUTS * stored + 4 * operands[output]
    return needed if spec.cache == "hot" else needed + _POOLS * (cold_bytes + 2 * stored)


def memory_held(spec: KernelSpec, layer: Layer, cold_bytes: int) -> int:
    """Return the bytes of memory that a prepared spec holds until it is released.

    Every operand once, in the storage type; for cold caches instead one pool of rotating copies and
    one more whole copy. A row on a GPU holds nothing on the host.

    Args:
        spec: what to measure.
        layer: its layer, possibly with another batch.
        cold_bytes: see :func:`memory_needed`.
    """
    if spec.on_gpu:
        return 0
    stored = sum(layer.operands(spec.pass_).values()) * ITEM_BYTES[spec.precision]
    return stored if spec.cache == "hot" else cold_bytes + 2 * stored
