"""Prepares steps in their frameworks' processes, and times them like layers."""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from pydlbench.backends.steps import requests
from pydlbench.devices.cpu.facts import read_cpu_facts
from pydlbench.errors import (
    BackendMissingError,
    PydlbenchError,
    RefusedKernelError,
    UnsupportedError,
    UsageError,
)
from pydlbench.models.graph import Model
from pydlbench.models.passes import memory
from pydlbench.records.step import StepFacts, StepPreparation, StepRecord, StepSpec
from pydlbench.runner.claimed_times import ClaimedTimes, undisturbed_s
from pydlbench.runner.rows import summary_of
from pydlbench.runner.session import Session
from pydlbench.steps.traced import MAX_ROUNDS, trace_step
from pydlbench.store.store import Reader
from pydlbench.study.estimate import estimate
from pydlbench.study.loop import ROUNDS, Size, Study, Subject, random_order
from pydlbench.study.plan import planned_repetitions, relative_deviation
from pydlbench.study.table import Series
from pydlbench.timing import policy as policies
from pydlbench.timing.chunk import Chunk, ChunkRequest
from pydlbench.timing.policy import LEAST_ROUNDS, Policy, gpu_policy
from pydlbench.timing.statistics import median, median_interval
from pydlbench.units import format_bytes
from pydlbench.words import FRAMEWORK_MODES, FRAMEWORKS
from pydlbench.workers.host import RemoteKernel, releasing, start_together

# Most rounds of a repetition in which steps are sampled alternately, and the least, for slow steps:
# the middle of three excludes a disturbed round.
_ALTERNATIONS: Final = 32
_LEAST_ALTERNATIONS: Final = 3
# Most rounds of the trace of such a step.
_TRACED_ROUNDS: Final = 4
# Seconds of a visit in these rounds; a longer step is sampled once. Neighbours and clocks change
# within tenths of a second: on two cores of a virtual machine the ratios of adjacent samples of
# 45 ms scattered by 10 %, those of the medians of five adjacent samples by 16 %, so that short
# visits have a ninth of the variance in the same time.
_ALTERNATION_S: Final = 0.01
# Maximum number of stored steps that are searched for an earlier run.
_MAX_STORED_STEPS: Final = 200


def step_policy(step: StepSpec, facts: StepFacts, policy: Policy) -> Policy:
    """Return the constants of sampling for a step.

    Args:
        step: the step.
        facts: facts about the step's kernel.
        policy: the constants for a kernel on a CPU.
    """
    policy = policies.step_policy(policy, settled=not step.backward)
    return gpu_policy(policy, facts.timing) if step.on_gpu else policy


def run(step: StepSpec, session: Session) -> StepRecord:
    """Check and time one step; if it cannot be run, the record says why.

    Args:
        step: the step.
        session: provides workers and settings.

    Raises:
        UsageError: no such model or option.
    """
    return run_in_turn([step], session)[0]


def run_in_turn(steps: Sequence[StepSpec], session: Session, **how: Any) -> list[StepRecord]:
    """Check steps and time them in turns; return a record for each; see :func:`runs_in_turn`."""
    records = dict(runs_in_turn(steps, session, **how))
    return [records[index] for index in range(len(steps))]


def runs_in_turn(
    steps: Sequence[StepSpec],
    session: Session,
    *,
    visits: int | None = None,
    preparation: StepPreparation | None = None,
    trace: bool = False,
    copied: int | None = None,
    alternately: bool = False,
    progress: Callable[[int, int, str], None] = lambda *_: None,
) -> Iterator[tuple[int, StepRecord]]:
    """Check steps, then time them in turns, so that drift affects all alike.

    Each visit of a step has a new process, in which nothing else ran: memory that a process has
    given back affects the page faults of the next step. Checks are made in the first visits. With a
    single visit a step has all its rounds in it, without turns.

    Args:
        steps: the steps.
        session: provides workers and settings.
        visits: visits of each step; None for the number in the session's options.
        preparation: the checks; None for all of them.
        trace: trace the steps, too, in the processes of their second visits, which made no checks.
        copied: hold times against the host's clock; number of bytes that are copied around each
            sample, outside of its time. None to believe the times.
        alternately: hold the processes of all steps at once in each repetition, and sample them
            alternately; ``rounds_s`` of their records has the median of each repetition, ``ratios``
            those of adjacent samples. Steps on a GPU, and steps that do not fit into memory
            together, take turns nevertheless.
        progress: called with the number of visits done, that of all visits, and what comes next.

    Yields:
        After each visit the index of the visited step and its record so far; after an interrupted
        visit those of all steps that have a time.
    """
    visits = visits or session.options.repetitions or LEAST_ROUNDS
    how = preparation or StepPreparation()
    turns = _Turns(steps, session, how, visits, trace=trace, copied=copied, alternately=alternately)
    try:
        while visited := turns.visit(progress):
            yield from ((index, turns.record(index)) for index in visited)
    except KeyboardInterrupt:  # the visit that it ended may have samples
        yield from ((index, turns.record(index)) for index in turns.timed)
        raise
    finally:
        turns.close()


def planned_rounds(store: Reader | None, steps: Sequence[StepSpec], width: float) -> int:
    """Return the number of new processes that gives medians with intervals of a given width.

    Args:
        store: store whose undisturbed runs of the same steps give their scatter; None if there is
            no store.
        steps: the steps.
        width: wanted half-width of the interval, relative to the median.
    """
    stored = (
        []
        if store is None
        else [document for _, document in store.documents("step", _MAX_STORED_STEPS)]
    )
    return planned_repetitions((_known_scatter(stored, step) for step in steps), width)


def _known_scatter(stored: Sequence[Mapping[str, Any]], step: StepSpec) -> float | None:
    """Return the scatter of the newest undisturbed run of a step; None if there is none."""
    same = step.to_dict()
    if step.batch is None:  # the record has the model's default
        del same["batch"]
    for document in stored:
        processes = (document.get("time_s") or {}).get("visit_s") or ()
        times = list(processes or (document.get("rounds_s") or {}).values())
        alike = all(document.get(name) == value for name, value in same.items())
        alike = alike and document.get("swaps") == same.get("swaps")
        if alike and len(times) >= LEAST_ROUNDS and document.get("disturbed") == 0:
            return relative_deviation(times)
    return None


class _Turns:
    """Steps that take turns, each visit in a new process.

    Args:
        steps: the steps.
        session: provides workers and settings.
        preparation: the checks.
        visits: visits of each step.
        trace: whether to trace them in their second visit.
        copied: see :func:`runs_in_turn`.
        alternately: see :func:`runs_in_turn`.
    """

    def __init__(
        self,
        steps: Sequence[StepSpec],
        session: Session,
        preparation: StepPreparation,
        visits: int,
        *,
        trace: bool,
        copied: int | None,
        alternately: bool,
    ) -> None:
        self._steps, self._session, self._preparation = steps, session, preparation
        self._visits, self._trace, self._copied = visits, trace, copied
        self._claimed = [ClaimedTimes(median) for _ in steps]
        order = random_order(session.options.seed)
        # Visits to come: the number of the visit, and that of the step.
        self._pending: deque[tuple[int, int]] = deque()
        turns = list(range(len(steps)))
        for number in range(visits):
            if number % 2:  # of two steps each is prepared first equally often
                turns.reverse()
            else:
                order.shuffle(turns)
            self._pending += ((number, index) for index in turns)
        # A framework starts on one core: the process of the next visit starts along with this one,
        # and is stopped during samples.
        self._alternately = alternately and not any(step.on_gpu for step in steps)
        self._rounds = _ALTERNATIONS if alternately else 1
        ahead = min(len(steps) if self._alternately else 2, len(self._pending)) - 1
        self._sessions = [session, *(session.sibling() for _ in range(ahead))]
        self._started = 0
        self._bursts = not all(step.on_gpu for step in steps)
        self._study = Study(
            order, session.interference if self._bursts else None, paired=self._alternately
        )
        # By number of the step: its record if it has no time, why its visits ended, its facts, its
        # size, and the fields of its trace.
        self._refused: dict[int, StepRecord] = {}
        self._ended: dict[int, str] = {}
        self._facts: dict[int, StepFacts] = {}
        self._sizes: dict[int, Size] = {}
        self._traces: dict[int, dict[str, Any]] = {}
        for device in dict.fromkeys(step.device for step in steps if step.on_gpu):
            # The run's record names this GPU. If there is none, each step has the reason.
            with contextlib.suppress(BackendMissingError, UnsupportedError):
                session.processor(device)

    def visit(self, progress: Callable[[int, int, str], None]) -> list[int]:
        """Prepare the next step and sample it, or all steps of a repetition.

        Args:
            progress: see :func:`runs_in_turn`.

        Returns:
            The indices of the steps; empty if no visit is left.
        """
        if not self._pending:
            return []
        number = self._pending[0][0]
        # Others may have to wait for the next call: see _prepare.
        turn = [index for each, index in self._pending if each == number]
        visited: list[int] = []
        kernels: dict[int, RemoteKernel[StepFacts]] = {}
        with releasing(kernels.values()):
            while len(visited) < (len(turn) if self._alternately else 1):
                visited.append(turn[len(visited)])
                self._prepare(kernels, progress)
            sampled = self._sample(number, kernels)
            if self._trace and number == min(1, self._visits - 1):
                for index in sampled:
                    self._announce(progress, index, "traced step")
                    step, kernel = self._steps[index], kernels[index]
                    most = _TRACED_ROUNDS if self._alternately else MAX_ROUNDS
                    self._traces[index] = trace_step(step, kernel, self._session, most)
        if self._alternately:
            self._started = 0
        return visited

    def _announce(self, progress: Callable[[int, int, str], None], index: int, what: str) -> None:
        count = len(self._steps) * self._visits
        progress(count - len(self._pending) - 1, count, f"{self._steps[index].label}: {what}")

    def _prepare(
        self,
        kernels: dict[int, RemoteKernel[StepFacts]],
        progress: Callable[[int, int, str], None],
    ) -> None:
        """Prepare the next step, and add its kernel; a step that fails has no further visits."""
        session = self._start()
        number, index = self._pending.popleft()
        self._announce(progress, index, f"repetition {number + 1}" if number else "checks")
        preparation = self._preparation
        if number:
            preparation = msgspec.structs.replace(preparation, checks=False)
        if preparation.timed is not None:
            place = f"{preparation.timed}/{index}-{number}"
            preparation = msgspec.structs.replace(preparation, timed=place)
        decides = number == 0 and len(kernels) + 1 < len(self._steps)  # others follow
        free = read_cpu_facts().memory_available_bytes if decides else None
        try:
            kernels[index] = prepare_step(self._steps[index], session, preparation=preparation)
        except PydlbenchError as error:
            if isinstance(error, ValueError):  # a wrong option, not a failed row
                raise
            self._lose(index, error)
        else:
            left = read_cpu_facts().memory_available_bytes if decides else None
            if free is not None and left is not None and left < free - left:
                self._alternately = False  # another one would need as much

    def _start(self) -> Session:
        """Return the next visit's session; its process starts with those of the visits after it."""
        place = self._started % len(self._sessions)
        # A finished step would keep a GPU's memory; before the first visit the session may have
        # one.
        if not self._alternately:
            self._sessions[place - 1 if self._started else 0].renew()
        elif place == 0:
            for session in self._sessions:
                session.renew()
        if place == 0:
            workers = []
            for ahead, (_, index) in zip(self._sessions, self._pending, strict=False):
                step = self._steps[index]
                workers.append(ahead.worker(step.framework, step.device))
            if self._bursts and not self._started:
                workers.append(self._session.worker("native", "cpu"))
            start_together(workers)
        self._started += 1
        return self._sessions[place]

    def close(self) -> None:
        """End the processes of additional sessions."""
        for session in self._sessions[1:]:
            session.close()

    def _sample(self, number: int, kernels: Mapping[int, RemoteKernel[StepFacts]]) -> list[int]:
        """Sample prepared steps, and return the indices of those that did not fail."""
        budget_s = self._session.options.budget_s
        if self._alternately:
            rounds = _alternations([*map(self._sizes.get, kernels)], budget_s / self._visits)
        else:
            rounds = ROUNDS if self._visits == 1 else 1
        # Rounds of the same number pair up; in a single visit steps do not take turns.
        first = self._rounds * number if self._visits > 1 else min(kernels, default=0) * rounds
        policy = Policy(budget_s=budget_s, visits=max(rounds, self._visits))
        subjects = []
        for index, kernel in kernels.items():
            step = self._steps[index]
            copied = None if step.on_gpu else self._copied
            own = step_policy(step, kernel.facts, policy)
            if self._alternately:
                # Time goes by while a step's inputs are fed.
                own = replace(
                    own,
                    chunk_s=_ALTERNATION_S,
                    least_samples=1,
                    settle_limit_s=_ALTERNATION_S,
                    chunk_by_wall=True,
                )
            sample = kernel.sample
            if copied is not None:
                sample = partial(self._checked, index, kernel, copied)
                own = replace(own, min_sample_s=0.0)  # each step has inputs of its own
            subject = Subject(
                key=index,
                sample=sample,
                policy=own,
                process=number + 1,
                preparation=number,
                size=self._sizes.get(index),
            )
            subjects.append(subject)
            self._facts.setdefault(index, kernel.facts)
        errors = self._study.take(subjects, first=first, rounds=rounds)
        for index, subject in zip(kernels, subjects, strict=True):
            if subject.size is not None:
                self._sizes[index] = subject.size
            if index in errors:
                # Rounds of a process that died do not count, nor times that were claimed.
                if rounds > 1 or isinstance(errors[index], RefusedKernelError):
                    self._study.table.forget(index)
                self._lose(index, errors[index])
            elif self._preparation.timed is not None:  # its results are expected there
                place = Path(self._preparation.timed, f"{index}-{number}")
                place.mkdir(exist_ok=True, parents=True)
        return [index for index in kernels if index not in errors]

    def _checked(
        self, index: int, kernel: RemoteKernel[StepFacts], copied: int, request: ChunkRequest
    ) -> Chunk:
        """Time the samples of a request, and hold their times against the host's clock."""
        if request.untimed:  # the first steps of a process may compile
            first = {"samples": 1, "inner": 1, "untimed": request.untimed - 1}
            kernel.sample(msgspec.structs.replace(request, **first))
        begin = undisturbed_s(kernel.worker)
        chunk = kernel.sample(msgspec.structs.replace(request, untimed=0))
        elapsed = undisturbed_s(kernel.worker) - begin
        claimed = request.inner * sum(chunk.seconds)
        checked = self._claimed[index]
        checked.check(elapsed, claimed, request.samples * copied, request.samples)
        checked.check_loop(kernel.worker, kernel.sample, request, chunk, elapsed, copied)
        return chunk

    def _lose(self, index: int, error: PydlbenchError) -> None:
        """End the visits of a step; samples of earlier visits are kept."""
        self._pending = deque(visit for visit in self._pending if visit[1] != index)
        if len(self._sessions) > 1 and self._started % 2 and not self._alternately:
            self._sessions[1].renew()  # the process started ahead may be its own
        if index in self._study.table:
            self._ended[index] = " ".join(str(error).split())
        else:
            self._refused[index] = _refused(self._steps[index], self._session, error)

    @property
    def timed(self) -> list[int]:
        """The indices of the steps that have a time so far."""
        return [index for index in range(len(self._steps)) if index in self._study.table]

    def record(self, index: int) -> StepRecord:
        """Return the record of a visited step."""
        if index in self._refused:
            return self._refused[index]
        series, step = self._study.table.series(index), self._steps[index]
        record = record_of(step, self._session, self._facts[index], series)
        if self._rounds > 1:
            record = msgspec.structs.replace(record, rounds_s=series.by_preparation())
        if index and self._rounds > 1 and 0 in self._study.table:
            ratios = series.ratios_to(self._study.table.series(0))
            record = msgspec.structs.replace(record, ratios=ratios)
        if all(visit.parts for visit in series.visits):
            swapped = tuple(map(series.by_preparation, range(2)))  # seconds and page faults
            record = msgspec.structs.replace(record, swapped=swapped)
        if why := self._ended.get(index):
            words = f"a repetition failed, the row has {series.preparations}: {why}"
            record = msgspec.structs.replace(record, warnings=(*record.warnings, words))
            if self._trace:
                record = msgspec.structs.replace(record, untraced=why)
        return msgspec.structs.replace(record, **self._traces.get(index, {}))


def _alternations(sizes: Sequence[Size | None], budget_s: float) -> int:
    """Return the number of rounds in which steps are sampled alternately.

    Args:
        sizes: sizes of the steps; the first repetition, which knows none, has the least rounds.
        budget_s: seconds of sampling of each step.
    """
    known = [size.wall_s for size in sizes if size is not None]
    if len(known) < len(sizes) or not known:
        return _LEAST_ALTERNATIONS
    visit_s = max(_ALTERNATION_S, *known)
    return max(_LEAST_ALTERNATIONS, min(_ALTERNATIONS, int(budget_s / visit_s)))


def record_of(step: StepSpec, session: Session, facts: StepFacts, samples: Series) -> StepRecord:
    """Return the record of a timed step.

    A failed check makes the row ``failed``; it has its time nevertheless.

    Args:
        step: the step.
        session: its workers ran the step.
        facts: facts about the step's kernel.
        samples: samples of the step.
    """
    estimated = estimate(samples)
    time = summary_of(samples)
    # Rounds of one process are alike: their interval alone would be too narrow.
    own = median_interval(samples.preparations_s())
    if own is not None and time.ci_low is not None and time.ci_high is not None:
        low, high = min(time.ci_low, own.low), max(time.ci_high, own.high)
        time = msgspec.structs.replace(time, ci_low=low, ci_high=high)
    wrong = facts.wrong
    return StepRecord(
        spec=msgspec.structs.replace(step, batch=facts.batch),
        status="failed" if wrong else "ok",
        reason=wrong or None,
        time=time,
        images_per_s=facts.batch / time.median,
        samples_s=tuple(samples.seconds),
        rounds_s=samples.by_round(),
        inner=samples.inner,
        faults=samples.faults,
        busy=samples.busy,
        threads=None if step.on_gpu else len(session.cpus),
        checks=facts.checks,
        output=facts.output,
        parameters=facts.parameters,
        inputs=facts.inputs,
        setup_s=facts.setup_s,
        checks_s=facts.checks_s,
        library=facts.library,
        environment=facts.environment,
        types=facts.types or None,
        notes=facts.notes,
        warnings=(*estimated.second_tries, *estimated.disturbances),
        disturbed=estimated.disturbed,
        contended=estimated.contended,
        contention_reason=estimated.reason if estimated.contended else None,
        stop_reason=f"{samples.preparations} processes, {samples.spent_s:.3g} s"
        if samples.preparations > 1
        else f"{len(samples)} rounds, {samples.spent_s:.3g} s",
    )


def _refused(step: StepSpec, session: Session, error: PydlbenchError) -> StepRecord:
    absent = isinstance(error, (UnsupportedError, BackendMissingError))
    status = "skipped" if absent else "failed"
    threads = None if step.on_gpu else len(session.cpus)
    return StepRecord(spec=step, status=status, reason=str(error), threads=threads)


# -----------------------------------------------------------------------------
# Whether steps fit into the host's memory: checked before anything is built.

# Bytes of a framework's process without a model.
_PROCESS_BYTES: Final = 600_000_000
# Copies of the weights: NumPy's, which are loaded and restored; the framework's; and one in the
# layout of a library.
_WEIGHT_COPIES: Final = 3
# Copies of the gradients: the framework's, and those that a check or a fetch copies to the host.
_GRADIENT_COPIES: Final = 2
# Copies of the activations: with their gradients or reordered copies.
_ACTIVATION_COPIES: Final = 2
# Steps that a breakdown holds at the same time: the step, the traced step, and the step with kept
# pages; on a GPU the traced step and the steps of even and odd rounds. There is one more with
# folded batch norm (forward steps in PyTorch); on a CPU one whose libraries log, in the modes that
# have a log, and in eager mode one whose operands calls alone use, in a process that keeps its
# pages. The factor of the activations covers these operands.
_BREAKDOWN_STEPS: Final = 3
_LOGGED_MODES: Final = ("eager", "graph")


def check_memory_of_parts(model: Model, step: StepSpec, available: int | None) -> None:
    """Check that a step fits into memory as often as ``breakdown`` and ``diagnose`` hold it.

    Args:
        model: the model with its batch.
        step: the step.
        available: bytes of the host's memory; None if unknown.

    Raises:
        UsageError: it does not fit; names the largest batch that does.
    """
    normalised = any(node.op == "batchnorm" for node in model)
    folds = normalised and step.framework == "torch" and not step.backward
    held = _BREAKDOWN_STEPS + folds + (not step.on_gpu and step.mode in _LOGGED_MODES)
    # Each has a process, and so have native kernels on a CPU.
    processes = held + (not step.on_gpu)
    held += not step.on_gpu and step.mode == "eager"
    check_memory(model, step, available, held, processes)


def check_memory(
    model: Model, step: StepSpec, available: int | None, held: int = 1, processes: int = 1
) -> None:
    """Check that a step fits into memory.

    Args:
        model: model of the step, with the batch.
        step: the step; a GPU's activations are not the host's.
        available: bytes of the host's memory; None if unknown.
        held: number of copies of the step at the same time.
        processes: number of processes of the framework at the same time.

    Raises:
        UsageError: it does not fit; names the largest batch that does.
    """
    if available is None:
        return
    needs = memory(model, step.phase, step.precision)
    # Mixed precision keeps weights in float32 and makes narrow copies; the factor covers both.
    weights = (
        _WEIGHT_COPIES * needs["weights"]
        + _GRADIENT_COPIES * needs["gradients"]
        + needs["optimizer"]
    )
    fixed = processes * _PROCESS_BYTES + held * weights
    per_image = (
        0.0 if step.on_gpu else held * _ACTIVATION_COPIES * needs["activations"] / model.batch
    )
    needed = fixed + model.batch * per_image
    if needed <= available:
        return
    batch = int((available - fixed) // per_image) if per_image else 0
    several = f" for {held} times the step and its operators" if held > 1 else ""
    near = f"--batch {batch}" if batch >= 1 else "a smaller model"
    raise UsageError(
        f"{model.name} at batch {model.batch}: needs about {format_bytes(needed)} of memory"
        f"{several}, {format_bytes(available)} are available; nearest: {near}"
    )


def prepare_step(
    step: StepSpec,
    session: Session,
    *,
    allocator: str | None = None,
    preparation: StepPreparation | None = None,
) -> RemoteKernel[StepFacts]:
    """Prepare a step in its framework's process; raises the error of that process.

    Args:
        step: the step.
        session: provides the workers.
        allocator: allocator of that process, see :meth:`pydlbench.runner.session.Session.worker`.
        preparation: the checks; None means all checks.

    Returns:
        A kernel to sample.
    """
    return session.worker(step.framework, step.device, allocator=allocator).build(
        requests.request_step,
        StepFacts,
        spec=step.to_dict(),
        preparation=preparation or StepPreparation(),
    )


def in_own_framework(steps: Sequence[StepSpec], session: Session) -> list[StepSpec]:
    """Return the steps of a user's model in the framework of the model.

    Modes become their counterparts. The user's code runs once for that, in a worker.

    Args:
        steps: steps of one model, in the framework of the worker.
        session: provides the worker.

    Raises:
        PydlbenchError: the user's code failed.
    """
    first = steps[0]
    worker = session.worker(first.framework, first.device)
    framework = worker.call(requests.request_framework, lambda _: None, spec=first.to_dict())
    if framework == first.framework or framework not in FRAMEWORKS:
        return list(steps)
    worker.close()  # it has both frameworks by now
    places = FRAMEWORK_MODES[first.framework]
    return [
        msgspec.structs.replace(
            step, framework=framework, mode=FRAMEWORK_MODES[framework][places.index(str(step.mode))]
        )
        for step in steps
    ]
