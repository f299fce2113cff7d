"""Kernels made ready in the workers of a session, and the memory that they take there."""

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
    from pydlbench.runner.options import Options
    from pydlbench.study.table import Interference, Series
    from pydlbench.workers.host import RemoteKernel, Worker

# Rotating copies of a cold cache state span this many last-level caches.
_COLD_FACTOR = 3
# Rotating copies on a GPU span this many L2 caches: its replacement is not strictly the oldest
# line's, so that after twice its size one line in eight is still there.
_COLD_L2 = 4
# The second kernel of a search is visited beside the first where it is this factor slower at most:
# probes on a busy virtual machine differ by several per cent. Of hundreds of summands fewer are
# worth it.
_RIVAL, _RIVAL_OF_SUMMAND = 1.08, 1.04
#: In visits, which know better, a second kernel is near from here on.
NEAR = 1.04
# A kept kernel that takes so many times as long as when it was found is not believed any more:
# what the machine does from one hour to another is less.
_SLOWER = 1.15
_LOGGED_TURNS = 7
_LONG_S, _FEW_TURNS = 0.01, 3
# Of calls that do nothing, beside each row: at most a tenth of a second.
_FEW_CALLS = {"samples": 11, "inner": 30}


class _Plan(NamedTuple):
    """How a spec is made ready, and what is known of its kernel.

    Attributes:
        preparation: for its worker.
        summand: whether it is one of an estimate's native rows on a CPU.
        problem: the spec whatever its layer is called and whatever the cache state.
        searched: what a search for the same has found; None where it was not searched for.
        known: the facts of a kernel that was verified; likewise.
        seen: what was seen of a framework's call; likewise.
    """

    preparation: Preparation
    summand: bool
    problem: KernelSpec
    searched: KernelFacts | None
    known: KernelFacts | None
    seen: KernelFacts | None


class Kernels:
    """The kernels of a session: made ready in its workers, with what is asked of these besides.

    Args:
        options: of the session.
        facts: of the CPU.
        cpus: logical CPUs that kernels are pinned to.
        workers: of the session.
        devices: of the session.
    """

    def __init__(
        self,
        options: Options,
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
        self._policy = Policy(confidence=options.confidence, budget_s=options.budget_s)
        # Of hot specs, the name of the fastest kernel.
        self._fastest: dict[KernelSpec, str] = {}
        # What searches have found, whatever layer of that shape it was for.
        self._searched: dict[tuple[KernelSpec, bool], KernelFacts] = {}
        # By problem, whatever the cache state, and variant; whether found by a brief search.
        self._verified: dict[tuple[KernelSpec, str], tuple[KernelFacts, bool]] = {}
        # Likewise what was seen of a framework's call, in a usual process or one that keeps pages.
        self._described: dict[tuple[KernelSpec, str, bool], KernelFacts] = {}
        # By worker, what it was told to make ready.
        self._kept: dict[KernelSpec, KeptKernel | None] = {}
        # By problem and variant, the seconds of what searches have tried.
        self._tried_s: dict[tuple[KernelSpec, str], float] = {}
        self._begun: dict[Worker, tuple[KernelSpec, Preparation]] = {}
        self._without_empty_call: set[tuple[str, str, str | None]] = set()

    @property
    def seed(self) -> int:
        """Of the inputs and of the order of rounds."""
        return self._options.seed

    def threads(self, spec: KernelSpec) -> int | None:
        """Return the threads of a row; None on a GPU."""
        return None if spec.on_gpu else len(self._cpus)

    def interference(self) -> Interference:
        """Read bursts; see :meth:`pydlbench.runner.machine.Workers.interference`."""
        return self._workers.interference()

    def guarded(self, spec: KernelSpec) -> bool:
        """Whether visits of a spec need bursts around them.

        The native backend's have one inside; to a GPU's kernels the cores do not matter.
        """
        return spec.backend != "native" and not spec.on_gpu

    def allocates(self, spec: KernelSpec) -> bool:
        """Whether a backend allocates its outputs in each call, from the C library."""
        return not spec.on_gpu and capabilities.of(spec.backend).fresh_results

    def processes(self, group: Sequence[KernelSpec]) -> list[KernelSpec]:
        """Return the spec of each process that holds operands of a group's problem.

        Args:
            group: specs that differ in backend and mode only.
        """
        if len(group) == 1:
            return list(group)
        # With cold caches frameworks are not timed: they refuse before they hold anything.
        holding = [spec for spec in group if spec.backend == "native" or spec.cache == "hot"]
        warm = [spec for spec in holding if self.allocates(spec)]
        # One log is read at a time.
        log = [spec for spec in warm if capabilities.of(spec.backend).log_environment][:1]
        return [*holding, *warm, *log]

    def empty_call_s(self, spec: KernelSpec) -> float | None:
        """Return the seconds of a call that does nothing, made as this spec's backend calls.

        Measured now: in the course of a run it changes by more than a third.
        """
        key = (spec.backend, spec.device, spec.mode)
        if key in self._without_empty_call:
            return None
        try:
            worker = self._workers.get(spec.backend, spec.device)
            seconds = worker.probe("empty_call", mode=spec.mode, **_FEW_CALLS)["seconds"]
        except PydlbenchError:
            self._without_empty_call.add(key)
            return None
        return float(seconds)

    def logged(
        self,
        spec: KernelSpec,
        variant: str | None,
        unlogged: RemoteKernel[KernelFacts] | None = None,
    ) -> dict[str, Any]:
        """Return what the library itself logs of a call, see ``KernelFacts.evidence``.

        Asked in a process of its own, whose pages are kept: of frameworks that cannot switch the
        log on and off. Empty where there is no such log.

        Args:
            spec: what is computed.
            variant: the variant that was timed.
            unlogged: the same with kept pages and without a log: its calls take turns with the
                logged ones, to tell what writing a log costs.
        """
        from pydlbench.backends.frameworks.verbose import evidence, middle_turn

        if spec.on_gpu or not capabilities.of(spec.backend).log_environment:
            return {}
        worker = self._workers.get(spec.backend, spec.device, warm=True, logging=True)
        try:
            kernel = worker.prepare(spec, self._preparation(spec, variant))
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
        unchecked: bool = False,
    ) -> RemoteKernel[KernelFacts]:
        """Have a spec made ready in its worker; raises what the backend raises.

        Args:
            spec: what is to be computed.
            warm: in a process of its own whose allocator keeps the pages that were freed.
            variant: see ``Preparation``.
            alone: it competes with nobody: for an estimate's sum a short search will do, and with
                cold caches the kernel of the hot row, where that was measured before.
            finals: see ``Preparation``.
            unchecked: take a variant that was not verified yet as it is: whoever asks has it
                verified before its time is shown.
        """
        worker = self._workers.get(spec.backend, spec.device, warm=warm)
        plan = self._plan(spec, variant, warm=warm, alone=alone, finals=finals)
        if unchecked:
            plan = plan._replace(preparation=dataclasses.replace(plan.preparation, verified=True))
        if self._begun.get(worker) == (spec, plan.preparation):
            del self._begun[worker]
            kernel = worker.prepared()
        else:
            kernel = worker.prepare(spec, plan.preparation)
        known = plan.known
        self._keep_tried(spec, kernel.facts)
        if plan.searched is not None:
            kernel.facts = plan.searched
        elif plan.seen is not None:
            kernel.facts = plan.seen
        elif known is not None and kernel.facts.correct.status == "unchecked":
            kernel.facts = dataclasses.replace(
                kernel.facts, correct=known.correct, reorder_s=known.reorder_s
            )
        if plan.preparation.variant is None or plan.preparation.kept:
            self._searched[_nameless(spec), plan.summand] = kernel.facts
        name = variant_of(spec, kernel.facts)
        if name is not None and known is None and kernel.facts.correct.status == "ok":
            self._verified[plan.problem, name] = (kernel.facts, plan.summand)
        if name is not None and spec.backend != "native" and not spec.on_gpu:
            self._described.setdefault((plan.problem, name, warm), kernel.facts)
        if plan.summand and spec.cache == "hot":
            self.remember(spec, kernel.facts.algorithm, kernel.facts.layout)
        return kernel

    def _plan(
        self, spec: KernelSpec, variant: str | None, *, warm: bool, alone: bool, finals: bool
    ) -> _Plan:
        """Return how a spec is to be made ready, see :meth:`prepare`, and what is known of it."""
        summand = alone and self._is_summand(spec)
        hot = msgspec.structs.replace(spec, cache="hot")
        if variant is None and summand and spec != hot:
            variant = self._fastest.get(hot)
        searched = self._searched.get((_nameless(spec), summand)) if variant is None else None
        variant = variant if searched is None else variant_of(spec, searched)
        kept = None if variant is not None else self.kept(spec)
        variant = variant if kept is None else kept.variant
        problem = _nameless(hot)
        known, brief = self._verified.get((problem, variant or ""), (None, False))
        if brief and not summand:
            known = None  # its reorders have not been timed
        seen = None if known is None else self._described.get((problem, variant or "", warm))
        preparation = self._preparation(
            spec,
            variant,
            brief=summand,
            verified=known is not None,
            described=seen is not None,
            finals=finals,
            kept=kept is not None,
        )
        searched = None if variant is None else searched
        return _Plan(preparation, summand, problem, searched, known, seen)

    def _keep_tried(self, spec: KernelSpec, facts: KernelFacts) -> None:
        """Keep what a search has timed; of one kernel alone it is a first execution."""
        if spec.backend == "native" and len(facts.candidates) > 1:
            times = _times(facts.candidates)
            self._tried_s |= {(_nameless(spec), name): times[name] for name in times}

    def known_size(self, spec: KernelSpec, variant: str | None, process: int) -> Size | None:
        """Return how long a native kernel runs, as its search or an earlier run has found.

        Args:
            spec: what it computes.
            variant: its name.
            process: that holds it, in which what is short and was not searched for is warmed up.
        """
        if variant is None or spec.backend != "native":
            return None
        seconds = self._tried_s.get((_nameless(spec), variant))
        warm = seconds is not None
        kept = self.kept(spec)
        if seconds is None and kept is not None and variant in (kept.variant, kept.rival):
            seconds = kept.seconds
        if seconds is None:
            return None
        warm = warm or seconds >= self._policy.warm_limit_s
        return Size(execution_s=seconds, wall_s=seconds, process=process if warm else 0)

    def kept(self, spec: KernelSpec) -> KeptKernel | None:
        """Return the kernel that an earlier run has found for a native spec on a CPU, if any."""
        if spec.backend != "native" or spec.on_gpu or self._options.algorithms:
            return None
        nameless = _nameless(spec)
        if nameless not in self._kept:
            fresh = not self._options.keep_probes
            kept = None if fresh else self._devices.kept().read_kernel(_kept_key(nameless))
            self._kept[nameless] = kept
        return self._kept[nameless]

    def keep(
        self, spec: KernelSpec, variant: str | None, rival: str | None, samples: Series
    ) -> str | None:
        """Keep which kernel was the fastest for later runs, and return a warning, or None.

        One that was kept and takes longer than it did may not be the fastest any more: it is
        forgotten, so that the next run searches anew. A run that somebody else disturbed keeps
        nothing: neither its choice nor its scatter is the machine's.

        Args:
            spec: what was computed.
            variant: the kernel's name.
            rival: that of one nearly as fast; None without one.
            samples: its visits.
        """
        if variant is None or spec.backend != "native" or spec.on_gpu or self._options.algorithms:
            return None
        if estimate(samples).disturbed:
            return None
        nameless, seconds = _nameless(spec), samples.median
        known = self._kept.get(nameless)
        there = self._devices.kept()
        if known is not None and known.variant == variant and seconds > _SLOWER * known.seconds:
            there.write_kernel(_kept_key(nameless), None)
            return (
                f"the kernel kept from an earlier run takes {seconds / known.seconds:.2f} times as "
                "long as then: the next run searches anew, and so does --fresh"
            )
        times = samples.preparations_s()
        there.write_kernel(
            _kept_key(nameless),
            KeptKernel(variant=variant, rival=rival, seconds=seconds, scatter=scatter(times)),
        )
        return None

    def repetitions(self, specs: Sequence[KernelSpec]) -> int:
        """Return how many repetitions specs need, as far as earlier runs tell.

        Args:
            specs: that are visited in the same laps.
        """
        scatters = [kept.scatter for spec in specs if (kept := self.kept(spec)) is not None]
        return planned(scatters, self._options.width)

    def prepare_at_once(self, wanted: Sequence[tuple[KernelSpec, str | None]]) -> None:
        """Have the first spec of each worker made ready while the others are at theirs.

        :meth:`prepare` returns each, or raises what went wrong with it. Nobody may be timed until
        then.

        Args:
            wanted: specs with the variant of each, in the order in which they will be prepared.
        """
        for spec, variant in wanted:
            worker = self._workers.get(spec.backend, spec.device)
            if worker in self._begun:
                continue
            plan = self._plan(spec, variant, warm=False, alone=False, finals=False)
            with contextlib.suppress(PydlbenchError):  # it comes again when it is waited for
                worker.begin(spec, plan.preparation)
                self._begun[worker] = (spec, plan.preparation)

    def rival_of(self, spec: KernelSpec, facts: KernelFacts) -> str | None:
        """Return the variant that was nearly as fast in the search; None where there is none.

        Args:
            spec: what was searched for.
            facts: of the kernel that was found.
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
        """Return the constants of sampling for a prepared kernel."""
        return gpu_policy(self._policy, facts.timing, spec.cache) if spec.on_gpu else self._policy

    def _is_summand(self, spec: KernelSpec) -> bool:
        """Whether a spec's row is one of an estimate's native ones on a CPU."""
        return self._options.estimate and spec.backend == "native" and not spec.on_gpu

    def remember(self, spec: KernelSpec, algorithm: str, layout: str) -> None:
        """Keep the kernel of a hot row for the cold one of an estimate."""
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
        """Return the bytes that the rotating copies of a cold cache state span on a device."""
        factor = _COLD_FACTOR if device == "cpu" else _COLD_L2
        return factor * self._devices.cache_bytes(device)

    def row(
        self,
        spec: KernelSpec,
        facts: KernelFacts,
        samples: Series,
        clock_hz: float | None = None,
    ) -> Measurement:
        """Return the row of a timed spec, held against the limits of its device.

        Args:
            spec: what was timed.
            facts: what its backend says of the kernel.
            samples: its visits.
            clock_hz: of somebody else on the same cores, where its own is not known.
        """
        row = measured_row(
            spec,
            self.threads(spec),
            facts,
            samples,
            confidence=self._options.confidence,
            clock_hz=clock_hz,
            keep_samples=self._options.keep_samples,
            keep_candidates=self._options.algorithms,
        )
        return self._devices.limited(row, spec)


def _times(candidates: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the seconds of candidates that ran, by the names that they are asked for by."""
    tried = [
        candidate
        for candidate in candidates
        if candidate["status"] == "ok" and candidate["seconds"]
    ]
    return {
        f"{candidate['algorithm']} {candidate['layout']}": min(candidate["seconds"])
        for candidate in tried
    }


def variant_of(spec: KernelSpec, facts: KernelFacts) -> str | None:
    """Return the name by which the same kernel is asked for again, see ``Preparation.variant``."""
    if spec.backend == "native":
        return f"{facts.algorithm} {facts.layout}"
    return facts.evidence.get("variant")


def _kept_key(spec: KernelSpec) -> str:
    """Return what a kept kernel depends on besides the machine: the spec, and our native code."""
    module = importlib.util.find_spec("pydlbench._cpu")
    there = Path(module.origin).stat() if module is not None and module.origin else None
    build = None if there is None else [there.st_size, there.st_mtime_ns]
    text = json.dumps([spec.to_dict(), build], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _nameless(spec: KernelSpec) -> KernelSpec:
    """Return what two rows of the same kernel have in common."""
    return msgspec.structs.replace(spec, layer=dataclasses.replace(spec.layer, name=None))


def _turn(
    worker: Worker,
    kernel: RemoteKernel[KernelFacts],
    unlogged: RemoteKernel[KernelFacts] | None,
) -> Turn:
    """Have a call logged, and the same made without a log right before it."""
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
# Whether what is to be measured fits into memory: asked before anything is measured.

# What a search holds at once: layouts of every operand, and pools of two finalists.
_LAYOUTS = 3
_POOLS = 2


def check_memory(processes: Sequence[KernelSpec], available: int, cold_bytes: int) -> None:
    """Make sure that processes of one problem have room beside each other.

    Rows of a GPU are not refused: what is available where a virtual machine's memory grows on
    demand says little. Where there is too little, the row fails alone.

    Args:
        processes: the spec of each; those of one problem are prepared one after another, and all
            of them hold their operands until the last one is timed.
        available: bytes of memory.
        cold_bytes: what the rotating copies of a cold cache state span.

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
    """Return the most bytes that processes of one problem hold at a time.

    Each is prepared while all others hold theirs: whichever dies is prepared once more at the end.

    Args:
        processes: the spec of each.
        layer: their layer, or the same with another batch.
        cold_bytes: see :func:`check_memory`.
    """
    total, most = 0, 0
    for spec in processes:
        held = memory_held(spec, layer, cold_bytes)
        total += held
        most = max(most, memory_needed(spec, layer, cold_bytes) - held)
    return total + most


def memory_needed(spec: KernelSpec, layer: Layer, cold_bytes: int) -> int:
    """Return the bytes of memory that measuring a spec takes, verification and finals included.

    The float32 originals; every operand in up to three layouts in the storage type; a float32 copy
    of the output; where caches are cold, two pools of rotating copies, each of which spans
    ``cold_bytes`` and ends with whole copies. Of a GPU's row the host holds the inputs and the
    output in float32 only.

    Args:
        spec: what is to be measured.
        layer: its layer, or the same with another batch.
        cold_bytes: what the rotating copies of a cold cache state span at least.
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
    """Return the bytes of memory that a prepared spec keeps until it is released.

    Every operand once, in the storage type; where caches are cold, one pool of rotating copies
    instead, which ends with a whole copy. A GPU's row holds nothing on the host.

    Args:
        spec: what is to be measured.
        layer: its layer, or the same with another batch.
        cold_bytes: see :func:`memory_needed`.
    """
    if spec.on_gpu:
        return 0
    stored = sum(layer.operands(spec.pass_).values()) * ITEM_BYTES[spec.precision]
    return stored if spec.cache == "hot" else cold_bytes + 2 * stored
