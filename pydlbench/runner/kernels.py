"""Prepares kernels in the workers of a session, for each backend's way through a problem."""

import contextlib
import dataclasses
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, NoReturn

import msgspec

from pydlbench.backends import capabilities
from pydlbench.backends.base import KernelFacts, Preparation
from pydlbench.backends.frameworks.verbose import Turn, evidence, last_call, middle_turn, parse
from pydlbench.devices.cpu.facts import CpuFacts
from pydlbench.errors import PydlbenchError
from pydlbench.models.user_model import is_user_model
from pydlbench.records.measurement import KernelSpec, Measurement
from pydlbench.runner.machine import Devices, Workers
from pydlbench.runner.options import RunnerOptions
from pydlbench.runner.rows import measured_row
from pydlbench.runner.stored_kernels import StoredKernels
from pydlbench.study.loop import Size, Subject
from pydlbench.study.table import Interference, Series
from pydlbench.timing.chunk import Chunk, ChunkRequest
from pydlbench.timing.policy import Policy, gpu_policy
from pydlbench.workers.host import RemoteKernel, Worker

# Size of the rotating copies for cold caches, in last-level caches.
_COLD_FACTOR: Final = 3
# The same on a GPU, in L2 caches. These do not always replace the oldest line: after twice their
# size one line in eight is still there.
_COLD_L2: Final = 4
# Factor up to which the second kernel of a search is sampled beside the first: probes on a busy
# virtual machine differ by several per cent. An estimate has hundreds of summands, for which fewer
# rivals are worth the time.
_RIVAL_FACTOR: Final = 1.08
_RIVAL_FACTOR_OF_SUMMAND: Final = 1.04
#: Factor up to which a second kernel counts as nearly as fast, after interleaved repetitions.
EQUAL_FACTOR: Final = 1.04
# Number of logged calls; fewer of calls that take this many seconds.
_LOGGED_TURNS: Final = 7
_LONG_S: Final = 0.01
_LONG_LOGGED_TURNS: Final = 3
# Empty calls for each row, a tenth of a second at most.
_EMPTY_CALLS: Final = {"samples": 11, "inner": 30}


class _KernelPlan(NamedTuple):
    """How a spec is prepared, and what is known of its kernel.

    Attributes:
        preparation: arguments for the worker.
        summand: whether the spec is one of an estimate's native rows.
        problem: the spec without the name of its layer, with hot caches.
        searched: facts of the kernel that an earlier search found for the same spec, apart from
            the layer's name; None if there was no such search.
        known: facts about the kernel if it was verified earlier, preferably in the same kind of
            process (one that keeps its pages, or one that does not); None if it was not.
    """

    preparation: Preparation
    summand: bool
    problem: KernelSpec
    searched: KernelFacts | None
    known: KernelFacts | None


class SessionKernels:
    """The kernels of a session: prepares them in its workers, and measures costs of their calls.

    Args:
        options: settings of the session.
        facts: facts about the CPU.
        cpus: logical CPUs that kernels are pinned to.
        workers: workers of the session.
        devices: devices of the session.

    Attributes:
        stored: the fastest kernels of earlier runs.
    """

    def __init__(
        self,
        options: RunnerOptions,
        facts: CpuFacts,
        cpus: tuple[int, ...],
        workers: Workers,
        devices: Devices,
    ) -> None:
        self._options, self._facts, self._cpus = options, facts, cpus
        self._workers, self._devices = workers, devices
        self.stored = StoredKernels(options, devices)
        self._policy = Policy(budget_s=options.budget_s)
        # Variants of the fastest kernels, by hot spec.
        self._fastest: dict[KernelSpec, str] = {}
        # Results of searches, by nameless spec and whether the search was a short one.
        self._searched: dict[tuple[KernelSpec, bool], KernelFacts] = {}
        # Verified kernels, by nameless hot spec, variant, whether the search was a short one, which
        # times no reorders, and whether pages are kept.
        self._verified: dict[tuple[KernelSpec, str, bool, bool], KernelFacts] = {}
        # Specs that workers have begun to prepare.
        self._begun: dict[Worker, tuple[KernelSpec, Preparation]] = {}

    @property
    def seed(self) -> int:
        """Seed of the inputs and of the order in rounds."""
        return self._options.seed

    def threads(self, spec: KernelSpec) -> int | None:
        """Return the number of threads of a row; None on a GPU."""
        return None if spec.on_gpu else len(self._cpus)

    def _worker(self, spec: KernelSpec, *, warm: bool = False, logging: bool = False) -> Worker:
        """Return the process of a spec; a user's kernel has one of its own."""
        code = user_kernel_of(spec)
        return self._workers.get(spec.backend, spec.device, warm=warm, logging=logging, code=code)

    def interference(self) -> Interference:
        """Measure interference; see :meth:`pydlbench.runner.machine.Workers.interference`."""
        return self._workers.interference()

    def guarded(self, spec: KernelSpec) -> bool:
        """Whether bursts are needed around the samples of a spec.

        The native backend takes its own bursts; kernels of a GPU do not depend on the cores.
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
        # Frameworks are not timed with cold caches, and hold nothing then.
        holding = [spec for spec in group if spec.backend == "native" or spec.cache == "hot"]
        warm = [spec for spec in holding if self.allocates(spec)]
        # One log is read at a time.
        log = [spec for spec in warm if capabilities.declaration(spec.backend).log_environment][:1]
        return [*holding, *warm, *log]

    def empty_call_s(self, spec: KernelSpec) -> float | None:
        """Return the seconds of a call that does nothing, in the backend and mode of a spec.

        It is measured for each row, as it changes by more than a third during a run. None if the
        backend cannot measure it.
        """
        try:
            worker = self._worker(spec)
            return float(worker.probe("empty_call", mode=spec.mode, **_EMPTY_CALLS)["seconds"])
        except PydlbenchError:
            return None

    def logged(
        self,
        spec: KernelSpec,
        variant: str | None,
        unlogged: RemoteKernel[KernelFacts] | None = None,
    ) -> dict[str, Any]:
        """Return the library's own log of a call as evidence, see ``KernelFacts.evidence``.

        Frameworks that cannot switch the log on and off run in a separate process that keeps pages.
        The result is empty if there is no such log.

        Args:
            spec: what is computed.
            variant: the variant that was timed.
            unlogged: the same kernel with kept pages and without a log; its calls alternate with
                the logged ones, which gives the cost of the log.
        """
        if spec.on_gpu or not capabilities.declaration(spec.backend).log_environment:
            return {}
        worker = self._worker(spec, warm=True, logging=True)
        problem = msgspec.structs.replace(spec, cache="hot").nameless
        known = self._known(problem, variant, warm=True)
        try:
            verified = known is not None
            kernel = worker.prepare(spec, self._preparation(spec, variant, verified=verified))
            try:
                turns = [_turn(worker, kernel, unlogged)]
                wanted = _LOGGED_TURNS if turns[0].logged_s < _LONG_S else _LONG_LOGGED_TURNS
                turns += [_turn(worker, kernel, unlogged) for _ in range(wanted - 1)]
                return evidence(*middle_turn(turns))
            finally:
                kernel.release()
        except PydlbenchError:
            return {}  # one cause less to find

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
            alone: whether no other backend computes the same. In that case the search for an
                estimate is short, and with cold caches the kernel of the hot row is used if it is
                known.
            finals: see ``Preparation``.
        """
        plan = self._plan(spec, variant, warm=warm, alone=alone, finals=finals)
        # The copies for cold caches are three times the last-level cache: new pages for them take
        # longer than all the rest, and hundreds of kernels of an estimate need them.
        copies = plan.summand and spec.cache != "hot" and not spec.on_gpu
        worker = self._worker(spec, warm=warm or copies)
        if self._begun.get(worker) == (spec, plan.preparation):
            del self._begun[worker]
            kernel = worker.finish_preparing()
        elif is_foreign(spec):
            from pydlbench.runner.audited import prepare_audited  # loads NumPy

            cpus = () if spec.on_gpu else self._cpus
            kernel = prepare_audited(worker, spec, plan.preparation, cpus)
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
    ) -> _KernelPlan:
        """Return how to prepare a spec, see :meth:`prepare`, and what is known of its kernel."""
        summand = alone and self._options.estimate and spec.backend == "native"
        hot = msgspec.structs.replace(spec, cache="hot")
        if variant is None and summand and spec != hot:
            variant = self._fastest.get(hot)
        searched = self._searched.get((spec.nameless, summand)) if variant is None else None
        variant = variant if searched is None else variant_of(spec, searched)
        stored = None if variant is not None else self.stored.read(spec)
        variant = variant if stored is None else stored.variant
        problem = hot.nameless
        known = self._known(problem, variant, summand=summand, warm=warm)
        preparation = self._preparation(
            spec,
            variant,
            brief=summand,
            verified=known is not None,
            described=(problem, variant or "", summand, warm) in self._verified
            and spec.backend != "native"
            and not spec.on_gpu,
            finals=finals,
            kept=stored is not None,
        )
        searched = None if variant is None else searched
        return _KernelPlan(preparation, summand, problem, searched, known)

    def _known(
        self, problem: KernelSpec, variant: str | None, *, warm: bool, summand: bool = False
    ) -> KernelFacts | None:
        """Return the facts of a verified kernel, if possible of such a process; None if unknown."""
        names = [(problem, variant or "", summand, each) for each in (warm, not warm)]
        return next((self._verified[name] for name in names if name in self._verified), None)

    def known_size(
        self, spec: KernelSpec, variant: str | None, searched: KernelFacts, process: int
    ) -> Size | None:
        """Return how long a native kernel runs, from its search or from an earlier run.

        Args:
            spec: what it computes.
            variant: name of the kernel.
            searched: facts with the candidates of the search; a single one was only executed once.
            process: number of its process, in which short kernels that were not searched for here
                are warmed up.
        """
        if variant is None or spec.backend != "native":
            return None
        times = _times(searched.candidates) if len(searched.candidates) > 1 else {}
        seconds = times.get(variant)
        warm = seconds is not None
        stored = self.stored.read(spec)
        if seconds is None and stored is not None and variant in (stored.variant, stored.rival):
            seconds = stored.seconds
        if seconds is None:
            return None
        warm = warm or seconds >= self._policy.warm_limit_s
        return Size(execution_s=seconds, wall_s=seconds, process=process if warm else 0)

    def prepare_at_once(self, wanted: Sequence[tuple[KernelSpec, str | None]]) -> None:
        """Begin to prepare the first spec of each worker, so that workers do so at the same time.

        :meth:`prepare` then returns each kernel, or raises its error. Nothing may be timed before.

        Args:
            wanted: specs and their variants, in the order in which they will be prepared.
        """
        for spec, variant in wanted:
            worker = self._worker(spec)
            if worker in self._begun or is_foreign(spec):
                continue
            plan = self._plan(spec, variant, warm=False, alone=False, finals=False)
            with contextlib.suppress(PydlbenchError):  # "prepare" raises it again
                worker.start_preparing(spec, plan.preparation)
                self._begun[worker] = (spec, plan.preparation)

    def rival_of(self, spec: KernelSpec, facts: KernelFacts) -> str | None:
        """Return the variant that was nearly as fast in the search; None if there is none.

        Args:
            spec: what was searched for.
            facts: facts of the kernel that was chosen.
        """
        if not self.stored.covers(spec):
            return None
        stored = self.stored.read(spec)
        if stored is not None and stored.variant == variant_of(spec, facts):
            return stored.rival
        margin = _RIVAL_FACTOR_OF_SUMMAND if self._options.estimate else _RIVAL_FACTOR
        times = _times(facts.candidates)
        own = times.pop(f"{facts.algorithm} {facts.layout}", None)
        if own is None or not times:
            return None
        second = min(times, key=times.__getitem__)
        return second if times[second] <= margin * own else None

    def sampling_policy(self, spec: KernelSpec, facts: KernelFacts) -> Policy:
        """Return the sampling constants for a prepared kernel."""
        if spec.on_gpu:
            return gpu_policy(self._policy, facts.timing, spec.cache)
        if is_foreign(spec):  # each call has inputs of its own
            return dataclasses.replace(self._policy, min_sample_s=0.0)
        return self._policy

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
        return self._devices.limited(row, spec, advised=not self._options.estimate)


def user_kernel_of(spec: KernelSpec) -> str | None:
    """Return the name of the user's kernel that a spec runs; None for a kernel of a library."""
    return spec.mode if spec.mode is not None and is_user_model(spec.mode) else None


def is_foreign(spec: KernelSpec) -> bool:
    """Whether a spec runs code of a user or of another package."""
    return user_kernel_of(spec) is not None or not capabilities.is_builtin(spec.backend)


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


def _turn(
    worker: Worker,
    kernel: RemoteKernel[KernelFacts],
    unlogged: RemoteKernel[KernelFacts] | None,
) -> Turn:
    """Run a logged call, and right before it the same call without a log."""
    # The first of the two calls wakes the threads; the log of the second counts.
    request = ChunkRequest(samples=1, untimed=1)
    plain = None if unlogged is None else unlogged.sample(request)
    logged = kernel.sample(request)
    return Turn(
        executions=last_call(parse(worker.stderr()), 2),
        logged_s=logged.seconds[0],
        plain_s=None if plain is None else plain.seconds[0],
    )


def _unprepared(_request: ChunkRequest) -> NoReturn:
    raise AssertionError("the kernel is prepared before it is sampled")


@dataclass(slots=True, eq=False, kw_only=True)
class KernelSubject(Subject):
    """A kernel of a backend as a subject of the study, prepared anew in each repetition.

    It is its own key in the table.

    Attributes:
        variant: the name by which it is prepared again; None before a search has chosen one.
        kernel: the prepared kernel; None while it is not prepared.
        facts: facts about the kernel, from the first preparation.
        samples: visits of the kernel; set when its row is to be made.
    """

    key: Hashable = None
    sample: Callable[[ChunkRequest], Chunk] = _unprepared
    policy: Policy = field(default_factory=Policy)
    variant: str | None = None
    kernel: RemoteKernel[KernelFacts] | None = None
    facts: KernelFacts | None = None
    samples: Series | None = None

    def __post_init__(self) -> None:
        self.key = self

    @property
    def ready(self) -> bool:
        """Whether it is prepared, in a process that is still running."""
        return self.kernel is not None and self.kernel.alive


@dataclass(slots=True, eq=False)
class BackendRun:
    """One backend's way through a problem that several backends solve.

    Attributes:
        spec: what it computes.
        patience: the number of deaths of its worker after which it still has another repetition.
        usual: the kernel as users run it.
        warm: the same kernel in a process whose allocator keeps freed pages.
        rival: the kernel that was nearly as fast in the search; it is sampled beside the usual one
            until it is known which of the two is faster.
        row: result of the run, once no more repetitions are wanted.
        second: the variant that was nearly as fast after too few repetitions to choose between the
            two; None if there is none.
        log: the library's log of a call, from a process that does nothing else.
        lost: reason for each repetition without samples.
        ended: why no repetition follows although the row lacks some; empty where one follows.
    """

    spec: KernelSpec
    patience: int = 0
    usual: KernelSubject = field(default_factory=KernelSubject)
    warm: KernelSubject = field(default_factory=KernelSubject)
    rival: KernelSubject | None = None
    row: Measurement | None = None
    second: str | None = None
    log: dict[str, Any] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    ended: str = ""

    @property
    def name(self) -> str:
        """The backend with its mode: ``torch compiled``."""
        return " ".join(filter(None, (self.spec.backend, self.spec.mode)))

    @property
    def subjects(self) -> list[KernelSubject]:
        """All its kernels."""
        known = (self.usual, self.warm, self.rival)
        return [subject for subject in known if subject is not None]
