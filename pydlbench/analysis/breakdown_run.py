"""A step broken down: its subjects are made ready, visited round by round, and compared.

In each round, in random order and with everybody else stopped: the step in a process of its own
that is new in that round, on a GPU also replayed from a CUDA graph there, and with folded batch
norm in another process; the step traced, in a process that stays; its calls alone, on a GPU in the
same process, else in one that keeps its pages, with the step traced there once more; what the
framework's libraries log of calls, in every other round; the native kernels of the layers that
stand for them (``native_layers``); and pages touched for the first time.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec

from pydlbench.analysis.breakdown import break_down
from pydlbench.analysis.call_times import (
    ALONE,
    STEP,
    STEP_KEPT,
    TRACED,
    StepParts,
)
from pydlbench.analysis.calls import ReadyCalls
from pydlbench.analysis.experiments import (
    FRESH_MEMORY,
    LOG,
    LOG_TERMS,
    PAGES,
    PAGES_KEPT,
    RETURNED_MEMORY,
    STEP_FOLDED,
    STEP_GRAPH,
    WAKEUP,
    WAKEUPS,
    alternatives,
    fresh_memory,
    kernel_experiment,
    log_experiments,
    returned_memory,
    wakeups,
)
from pydlbench.analysis.mapped import map_calls
from pydlbench.analysis.native_layers import NativeLayers
from pydlbench.analysis.operators import kind_of, listed
from pydlbench.analysis.subjects import TracedStep
from pydlbench.backends import capabilities
from pydlbench.backends.steps import requests
from pydlbench.backends.steps.device import DeviceOperators
from pydlbench.errors import PydlbenchError, UnsupportedError, WorkerError
from pydlbench.records.breakdown import BreakdownRecord
from pydlbench.records.operator import OperatorsFacts
from pydlbench.records.step import StepPreparation
from pydlbench.records.trace import program_hash
from pydlbench.steps.prepare import prepare_step
from pydlbench.steps.run import step_policy
from pydlbench.steps.traced import traced_rounds, tracing_of
from pydlbench.study.loop import Size, Study, Subject, random_order
from pydlbench.timing.policy import LEAST_ROUNDS, STEP_BUDGET_S, Policy
from pydlbench.units import counted, some_names
from pydlbench.workers.host import releasing, start_together

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from pydlbench.analysis.call_times import Experiment, NativeKernel
    from pydlbench.analysis.mapped import MappedCall
    from pydlbench.backends.base import KernelFacts
    from pydlbench.records.forecast import ForecastRecord
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.specs import KernelSpec
    from pydlbench.records.step import StepFacts, StepSpec
    from pydlbench.records.trace import Tracing
    from pydlbench.runner.session import Session
    from pydlbench.study.table import Table
    from pydlbench.timing.chunk import Chunk, Request
    from pydlbench.workers.host import RemoteKernel

# Bytes of a block that is written to tell what page faults cost.
_BLOCK: Final = 1 << 26
# Of a native kernel, or a probe, in seconds, all of its visits together.
_KERNEL_BUDGET_S: Final = 0.25
# Seconds of samples in a round, of what stays over the rounds and takes as long as a step or
# longer. Long subjects have one sample in a round, short ones so many that differences of 1 % of
# the step are resolved; calls alone three if they take a second together.
_PARTS_ROUND_S: Final = 0.75
_ALONE_ROUND_S: Final = 3.5
_PARTS_SAMPLES: Final = 4
# A batch normalisation by itself, in PyTorch's words.
_NORM: Final = "batch_norm"
_UNFUSED: Final = (
    "no experiment on fused activations: {framework} {mode} has no step with them; native layers "
    "are not fused either, so that no difference depends on it; diagnose measures modes that fuse"
)
#: Steps with one thing changed: in a process that stays, and in ones that are new in each round.
_HOWS: Final = {
    STEP_KEPT: "in a process whose C library keeps freed pages",
    STEP_FOLDED: "its batch normalisations are folded into the convolutions before them",
    STEP_GRAPH: "replayed from a graph, launch behind launch; the host launches the graph only",
}
# Of a process whose C library keeps freed pages, see ``workers.environment.ALLOCATORS``.
_KEEPS_PAGES: Final = "kept pages"
# Every fourth round has no step with folded batch norm: three processes tell nearly as much as
# four.
_NOT_FOLDED: Final = LEAST_ROUNDS
# A log is read in every other round: what is taken from it are shares of each call, which are taken
# to be the same in the others.
_EVERY_LOG: Final = 2
# As ``Size.process``: not warmed up yet.
_NOT_WARM: Final = -1
# Calls alone run so often in a row: behind others, and with their operands in caches.
_REPEATS: Final = 2


def break_down_step(
    step: StepSpec,
    session: Session,
    *,
    rounds: int = LEAST_ROUNDS,
    native: Mapping[KernelSpec, Measurement] | None = None,
    forecast: Callable[[StepSpec], ForecastRecord | str] = lambda _: "",
    tell: Callable[[str], None] = lambda _: None,
) -> BreakdownRecord:
    """Measure a step and its parts, and say where its time goes.

    Args:
        step: the step.
        session: whose workers are used.
        rounds: in each of which the step has a new process; four at least.
        native: rows of native kernels that were found before.
        forecast: says what the step will take from what is stored, or why it cannot; called once
            the step's calls are listed, before anything of it is timed.
        tell: called with what is done next.

    Raises:
        UsageError: no such model or option.
        UnsupportedError: the step cannot be traced; says why.
        WorkerError: a worker died.
    """
    measured = _Measured(step, session, max(LEAST_ROUNDS, rounds), native or {}, tell)
    try:
        measured.start()
        measured.record_calls()
        predicted = forecast(step)
        if not isinstance(predicted, str):
            measured.forecast_s = predicted.seconds
        elif predicted:
            measured.notes.append(f"no forecast: {predicted}")
        measured.prepare()
        measured.take()
        return measured.record()
    finally:
        measured.close()


def _size(seconds: float) -> Size:
    return Size(execution_s=seconds, wall_s=seconds)


class _Measured:
    """One breakdown while it is measured."""

    def __init__(
        self,
        step: StepSpec,
        session: Session,
        rounds: int,
        native: Mapping[KernelSpec, Measurement],
        tell: Callable[[str], None],
    ) -> None:
        self._step, self._session, self._rounds, self._tell = step, session, rounds, tell
        self._begin = time.monotonic()
        self._native = NativeLayers(session, step.device, native)
        # New processes in each round are beside the session's, which stay; those of two rounds
        # start at a time.
        self._fresh = (session.sibling(), session.sibling())
        self._sibling = session.sibling()
        order = random_order(session.options.seed)
        # Bursts on the cores say nothing of a GPU.
        self._study = Study(order, None if step.on_gpu else session.interference)
        self._kernels: list[
            RemoteKernel[OperatorsFacts]
            | RemoteKernel[StepFacts]
            | RemoteKernel[KernelFacts]
            | None
        ] = []
        self._subjects: list[Subject] = []
        self._sizes: dict[str, Size | None] = {}  # of steps, by what is changed in them
        # Whether the step with folded batch norm can be made ready, and the step be captured into a
        # graph, as far as is known.
        self._folds, self._replays = False, step.on_gpu
        # Whether the traced step and calls alone are in one process.
        self._shares_process = step.on_gpu
        self._missing: dict[str, dict[str, str]] = {"alone": {}, "in_context": {}}
        self.notes: list[str] = []
        self._not_made: list[str] = []
        self.forecast_s: float | None = None
        self._listed = OperatorsFacts()
        self._mapped: dict[tuple[str, str], MappedCall] = {}
        self._alone: ReadyCalls | None = None
        self._logged: ReadyCalls | None = None
        self._repeats = DeviceOperators.PARTS if step.on_gpu else _REPEATS
        self._gaps: Sequence[str] = ()
        self._kernel: RemoteKernel[StepFacts]
        self._facts: StepFacts
        self._tracing: Tracing
        self._traced: TracedStep

    # --- subjects -----------------------------------------------------------------------------

    def start(self) -> None:
        """Start the processes that stay side by side: each imports for seconds on one core."""
        step, session = self._step, self._session
        self._tell("processes")
        workers = [session.worker(step.framework, step.device)]
        if step.on_gpu:
            workers.append(session.worker("native", step.device))
        else:
            workers += [session.worker(step.framework, step.device, warm=True), session.worker()]
        if self._makes_calls():
            workers.append(session.worker(step.framework, step.device, warm=True, logging=True))
        start_together(workers)

    def _makes_calls(self) -> bool:
        step = self._step
        makes = capabilities.declaration(step.framework).steps.makes_calls
        return makes and step.mode == "eager" and not step.on_gpu

    def record_calls(self) -> None:
        """Make the step ready that is traced, and list its calls."""
        step, session = self._step, self._session
        self._tell("recorded step")
        how = StepPreparation(checks=False)
        self._kernel = kernel = prepare_step(step, session, preparation=how)
        self._kernels.append(kernel)
        self._facts, self._trace = kernel.facts, kernel.trace()
        self._calls, self._gaps = self._trace.calls, self._trace.gaps
        self._list_calls()

    def prepare(self) -> None:
        """Make all else ready that stays over the rounds."""
        step, kernel = self._step, self._kernel
        self._tell("traced step")
        # Behind the other one: each runs a step, and two at a time get in each other's way. A GPU's
        # memory is not the C library's.
        kept = None if step.on_gpu else self._prepare_kept()
        rounds, self._tracing = traced_rounds(kernel, self._trace, briefly=True)
        self._traced = TracedStep(kernel, self._tracing.way, len(self._calls), len(self._gaps))
        # Nothing of the step has to be run once more to know how long it takes.
        tracing = self._tracing
        pair_s = tracing.traced_s + tracing.untraced_s
        size = Size(execution_s=tracing.traced_s, wall_s=pair_s)
        self._add(TRACED, self._traced.sample, self._parts_policy(), size)
        if kept is not None:
            self._add_kept(kept, replace(size, process=_NOT_WARM))
        self._sizes |= dict.fromkeys((STEP, STEP_FOLDED, STEP_GRAPH), _size(tracing.untraced_s))
        # The last is what is between calls.
        seconds = zip(self._calls, rounds.middle(len(self._calls))[:-1], strict=True)
        self._calls_s = sum({call.signature: each for call, each in seconds}.values())
        self._tell("native layers")
        self._subjects += self._native.find(self._mapped, self._rounds, self._kernel_policy())
        self.notes += self._native.notes
        if not self._trace.compiled and any(_NORM in call.operator for call in self._calls):
            # Statistics of a minibatch cannot be folded into weights.
            self._folds = not step.backward
            self.notes.append(_UNFUSED.format(framework=step.framework, mode=step.mode))
        self._tell("calls alone")
        self._make_calls()
        if not (step.on_gpu or self._trace.compiled):
            self._make_probes()

    def _prepare_kept(self) -> RemoteKernel[StepFacts] | None:
        """Return the step in a process that keeps its pages; None where it cannot be made ready."""
        how = StepPreparation(checks=False)
        try:
            kernel = prepare_step(
                self._step, self._session, allocator=_KEEPS_PAGES, preparation=how
            )
        except PydlbenchError as error:
            self._lacks(STEP_KEPT, str(error))
            return None
        self._kernels.append(kernel)
        return kernel

    def _add_kept(self, kernel: RemoteKernel[StepFacts], size: Size) -> None:
        """Add the step with kept pages, traced as well."""
        try:
            names, kept = (
                [(call.operator, call.module, call.direction) for call in calls]
                for calls in (self._calls, kernel.trace().calls)
            )
            if names != kept:
                raise UnsupportedError("its trace has other calls than that of the step")
        except PydlbenchError as error:
            self._lacks(STEP_KEPT, str(error))
            return
        traced = TracedStep(kernel, self._traced.way, len(self._calls), plain=True)
        self._add(STEP_KEPT, traced.sample, self._parts_policy(), size)

    def _lacks(self, changed: str, why: str) -> None:
        """Say once why a step with one thing changed is not measured."""
        words = f"{changed}: {' '.join(why.split())}"
        if words not in self._not_made:
            self._not_made.append(words)

    def _parts_policy(self, round_s: float = _PARTS_ROUND_S) -> Policy:
        """Of subjects that stay over the rounds, and take as long as a step or longer."""
        return Policy(
            budget_s=round_s * self._rounds, visits=self._rounds, least_samples=_PARTS_SAMPLES
        )

    def _kernel_policy(self) -> Policy:
        return Policy(budget_s=_KERNEL_BUDGET_S, visits=self._rounds)

    def _add(
        self,
        key: Hashable,
        sample: Callable[[Request], Chunk],
        policy: Policy,
        size: Size | None = None,
    ) -> None:
        self._subjects.append(Subject(key=key, sample=sample, policy=policy, size=size))

    def _list_calls(self) -> None:
        step, session, trace = self._step, self._session, self._trace
        try:
            if trace.compiled:
                self._listed = trace.operators or OperatorsFacts()
                self.notes.append("no calls alone: the compiler's kernels cannot be called so")
            else:
                self._listed = listed(step, session, trace.operators)
        except UnsupportedError as error:
            self.notes.append(f"no calls alone: {error}")
            return
        cache = session.cache_bytes(step.device)
        self._mapped = map_calls(self._listed.calls, step.phase, step.precision, step.device, cache)

    def _make_calls(self) -> None:
        """Make distinct calls ready, each alone, and once more where their libraries log."""
        step, session = self._step, self._session
        own = [call for call in self._listed.calls if kind_of(call) != "feed"]
        if not own or self._trace.compiled:
            return
        self._alone = ready = ReadyCalls(
            *(step, session, own), of_step=self._makes_calls(), repeats=self._repeats
        )
        self._kernels.append(ready.kernel)
        if not step.on_gpu:
            self.notes += ready.notes
        # They take about as long as in the step. They have run once, and are not warm; what is made
        # ready anew in each visit is no warmer after one more.
        size = _size(self._repeats * self._calls_s)
        first = size if ready.kernel is None else replace(size, process=_NOT_WARM)
        self._add(ALONE, ready.sample, self._parts_policy(_ALONE_ROUND_S), first)
        if step.on_gpu:
            return
        if not self._makes_calls():
            reason = f"nothing logs what {step.framework} {step.mode} executes in each call"
            self._no_log(reason)
            return
        try:
            self._logged = log = ReadyCalls(step, session, own, logging=True)
        except PydlbenchError as error:
            self._no_log(" ".join(str(error).split()))
            return
        self._kernels.append(log.kernel)
        self._add(LOG, log.sample, self._parts_policy(), size)

    def _no_log(self, reason: str) -> None:
        """Say why nothing is known of what only a log tells."""
        self._missing["alone"][", ".join(LOG_TERMS)] = reason

    def _make_probes(self) -> None:
        """Make ready what new pages cost, and waking a thread."""
        worker = self._session.worker("native", "cpu")
        size = {"size": _BLOCK, "count": 1}
        for name, make, how in (
            (WAKEUP, requests.request_wakeups, {}),
            (PAGES, requests.request_blocks, {**size, "keeps": False}),
            (PAGES_KEPT, requests.request_blocks, {**size, "keeps": True}),
        ):
            kernel = worker.build(make, OperatorsFacts, **how)
            self._kernels.append(kernel)
            self._add(name, kernel.sample, self._kernel_policy())

    # --- rounds -------------------------------------------------------------------------------

    def take(self) -> None:
        """Take the rounds, with a new process for the step in each."""
        step = self._step
        how = StepPreparation(checks=False)
        for number in range(self._rounds):
            self._tell(f"round {number + 1} of {self._rounds}")
            fresh = self._fresh[number % 2]
            if number % 2 == 0:  # the other one waits, stopped while anybody is timed
                ahead = self._fresh[: self._rounds - number]
                ahead += (self._sibling,) * self._folds
                start_together([each.worker(step.framework, step.device) for each in ahead])
            kernel = prepare_step(step, fresh, preparation=how)
            folds = self._folds and number % _NOT_FOLDED > 0
            folded = self._prepare_folded(number) if folds else []
            steps = [self._fresh_step(STEP, kernel, number), *folded]
            due = [subject for subject in self._subjects if self._is_due(subject.key, number)]
            errors = self._study.take([*steps, *due], first=number)
            if self._replays and not errors:
                # Behind all others: whatever a capture leaves behind is in no other time.
                steps.append(self._replayed(kernel, number))
                errors = self._study.take(steps[-1:], first=number)
            self._sizes |= {str(subject.key): subject.size for subject in steps}
            fresh.worker(step.framework, step.device).close()
            if folds:
                self._sibling.worker(step.framework, step.device).close()
            self._note(errors)

    def _note(self, errors: dict[Hashable, PydlbenchError]) -> None:
        """Say why subjects of a round failed, which have no part in later ones.

        Raises:
            PydlbenchError: that of the step, or of the traced step.
        """
        if isinstance(errors.get(TRACED), WorkerError) and self._shared_with_calls(errors):
            del errors[TRACED]
            self._trace_anew()
        for key in (STEP, TRACED):
            if key in errors:
                raise errors[key]
        failed: dict[str, list[str]] = {}
        for subject, error in errors.items():
            words = " ".join(str(error).split())
            if subject in _HOWS:
                self._folds = self._folds and subject != STEP_FOLDED
                self._replays = self._replays and subject != STEP_GRAPH
                self._lacks(str(subject), words)
                continue
            failed.setdefault(words, []).append(str(getattr(subject, "label", subject)))
            if subject == LOG and LOG not in self._study.table:
                self._no_log(words)
        self.notes += (f"{some_names(names)}: {words}" for words, names in failed.items())
        self._subjects = [subject for subject in self._subjects if subject.key not in errors]

    def _fresh_step(self, key: str, kernel: RemoteKernel[StepFacts], number: int) -> Subject:
        """Return a step in a process that is new in this round."""
        policy = Policy(budget_s=STEP_BUDGET_S, visits=self._rounds)
        return Subject(
            key=key,
            sample=kernel.sample,
            policy=step_policy(self._step, self._facts, policy),
            process=number + 1,
            preparation=number,
            size=self._sizes.get(key),
        )

    def _prepare_folded(self, number: int) -> list[Subject]:
        """Return the step with folded batch norm; nothing where it cannot be made ready."""
        how = StepPreparation(checks=False, folded=True)
        try:
            kernel = prepare_step(self._step, self._sibling, preparation=how)
        except PydlbenchError as error:
            self._folds = False
            self._lacks(STEP_FOLDED, str(error))
            return []
        return [self._fresh_step(STEP_FOLDED, kernel, number)]

    def _replayed(self, kernel: RemoteKernel[StepFacts], number: int) -> Subject:
        """Return a step on a GPU replayed from a graph."""

        def sample(request: Request) -> Chunk:
            return kernel.sample(msgspec.structs.replace(request, timing="cuda-graph"))

        return replace(self._fresh_step(STEP_GRAPH, kernel, number), sample=sample)

    def _shared_with_calls(self, errors: Mapping[Hashable, PydlbenchError]) -> bool:
        """Whether the traced step was in one process with calls alone, which have failed."""
        if not self._shares_process:
            return False
        return ALONE in errors or all(subject.key != ALONE for subject in self._subjects)

    def _trace_anew(self) -> None:
        """Make the traced step ready once more, without calls alone."""
        how = StepPreparation(checks=False)
        kernel = prepare_step(self._step, self._session, preparation=how)
        self._kernels.append(kernel)
        kernel.trace()
        self._shares_process = False
        self._traced = replace(self._traced, kernel=kernel)
        for subject in self._subjects:
            if subject.key == TRACED:
                subject.sample = self._traced.sample

    def _is_due(self, key: Hashable, number: int) -> bool:
        """Whether a subject is visited in a round; in others its median stands for it."""
        if key == LOG:
            return number % _EVERY_LOG == 0
        return self._native.is_due(key, number)

    def close(self) -> None:
        """Free what workers hold."""
        with releasing(self._kernels):
            pass
        self._native.close()
        for session in (*self._fresh, self._sibling):
            session.close()

    # --- the record ---------------------------------------------------------------------------

    def record(self) -> BreakdownRecord:
        """Return what the table says."""
        step, table = self._step, self._study.table
        native: dict[tuple[str, str], Sequence[NativeKernel]] = {}
        lacks: dict[str, str] = {}
        in_place: set[tuple[str, str]] = set()
        operators = {(call.signature, call.direction): call.operator for call in self._listed.calls}
        for key, each in self._mapped.items():
            kernels = self._native.of_call(each, table)
            if kernels is None:
                lacks[operators[key]] = self._native.lacking(each)
            else:
                native[key] = kernels
                if each.writes_elsewhere(operators[key]):
                    in_place.add(key)
        if self._alone is not None:
            for call in self._listed.calls:
                if why := self._alone.refused.get(call.signature):
                    lacks[call.operator] = why
        parts = StepParts(
            calls=self._calls,
            alone=tuple(self._alone.names) if self._alone and ALONE in table else (),
            repeats=self._repeats,
            gaps=self._gaps,
            native=native,
            in_place=in_place,
            lacks=lacks,
        )
        experiments = self._log_experiments(table, parts)
        experiments += self._named(table, parts) if step.on_gpu else self._counted(table)
        broken_down = break_down(table, parts, experiments, self._missing)
        broken_down = msgspec.structs.replace(
            broken_down,
            alternatives=tuple(alternatives(table, _HOWS)),
            not_measured=(*broken_down.not_measured, *self._not_made),
        )
        return BreakdownRecord(
            **msgspec.structs.asdict(broken_down),
            measured=broken_down.levels.step,
            model=step.model,
            options=dict(step.options),
            own=step.own,
            batch=self._facts.batch,
            phase=step.phase,
            precision=step.precision,
            framework=step.framework,
            mode=str(step.mode),
            device=step.device,
            layout=step.layout,
            feed=step.feed,
            library=self._facts.library,
            threads=len(self._session.cpus),
            processes=table.series(STEP).processes,
            program=program_hash((call.signature, call.direction) for call in self._calls),
            trace=self._tracing_of_rounds(),
            forecast_s=self.forecast_s,
            lines=self._listed.lines,
            types=self._facts.types or None,
            notes=tuple(
                dict.fromkeys(
                    (
                        *self._facts.notes,
                        *self._listed.notes,
                        *self.notes,
                        *self._native.below_limits(),
                        *self._taken_again(),
                    )
                )
            ),
            seconds=time.monotonic() - self._begin,
        )

    def _taken_again(self) -> list[str]:
        """Say how many visits others disturbed, so that there was a second one."""
        again = self._study.table.again
        return (
            [f"disturbed by others and taken once more: {counted(again, 'timing')}"]
            if again
            else []
        )

    def _tracing_of_rounds(self) -> Tracing:
        """Return how calls were timed, and what that costs by all rounds."""
        first, *others = self._traced.rounds
        rounds = sum(others, first)
        return tracing_of(self._trace, self._traced.way, rounds, self._tracing.notes)

    def _log_experiments(self, table: Table, parts: StepParts) -> list[Experiment]:
        """Return what logs tell of the calls in which libraries log."""
        logged = self._logged
        if logged is None or self._alone is None or LOG not in table:
            return []
        if ALONE not in table:
            self._no_log("calls alone were not measured")
            return []
        counted = {name: sum(each.values()) for name, each in logged.executions.items()}
        executing = {name: counted[name] for name in logged.names if counted.get(name)}
        experiments = log_experiments(
            table,
            parts,
            logged.names,
            executing,
            self._alone.facts.dispatch_s,
            threads=len(self._session.cpus),
        )
        if not experiments:
            self._no_log("no library logs a call that a native layer stands for")
        return experiments

    def _named(self, table: Table, parts: StepParts) -> list[Experiment]:
        """Return what the names of a GPU's kernels tell of calls."""
        if self._alone is None:
            return []
        launched: dict[Hashable, list[str]] = {
            spec: [str(kernel["name"]) for kernel in row.kernels]
            for spec, row in self._native.rows.items()
        }
        fastest = {
            key: [name for each in kernels for name in launched[each.subject]]
            for key, kernels in parts.native.items()
        }
        facts = self._alone.facts
        self.notes += facts.notes
        named = kernel_experiment(table, parts, facts.kernels, fastest)
        return [] if named is None else [named]

    def _counted(self, table: Table) -> list[Experiment]:
        """Return what counters tell of the step: page faults, and threads that fell asleep."""
        uncounted = "page faults, or the cost of one, were not measured"
        tried: dict[str, Experiment | str | None] = {RETURNED_MEMORY: returned_memory(table)}
        if not self._trace.compiled:  # they explain what calls take longer than alone
            tried |= {FRESH_MEMORY: fresh_memory(table) or uncounted, WAKEUPS: wakeups(table)}
        experiments = []
        for name, experiment in tried.items():
            if isinstance(experiment, str):
                self._missing["in_context"][name] = experiment
            elif experiment is not None:
                experiments.append(experiment)
        return experiments
