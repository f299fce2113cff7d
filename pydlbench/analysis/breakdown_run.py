"""A step broken down in stages, each of which leaves an answer.

The calls of the step are recorded. Some coarse rounds time the step and the traced step: their
answers have the limit, the calls in the step and the step; all else is one term, *not measured*.
Then the native layers are searched for, the calls are prepared to run alone, and all rounds that
follow visit all subjects. After each round there is an answer. If the interval of the step is still
wide, and could become narrow, further rounds have the step only.

Each round visits the subjects in random order, with all other processes stopped. Steps that cannot
differ by 1 % from the step, by the bounds of the coarse rounds, are not measured:

- the step in a new process; on a GPU in one of two that stay, where it is replayed from a CUDA
  graph in the end; with folded batch norm, or without fused operators, in another new process;
- the traced step, in a process that stays; once more in one that keeps freed pages (CPU);
- the calls alone: on a GPU in the process of the traced step, else in the one that keeps its pages;
- in every other round, calls whose libraries log what they execute;
- the native kernels of the layers that correspond to the calls (``native_layers``);
- probes of fresh memory and of waking a thread.
"""

import contextlib
import math
import re
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from pydlbench.analysis.breakdown import break_down
from pydlbench.analysis.call_times import (
    ALONE,
    STEP,
    STEP_KEPT,
    TRACED,
    Experiment,
    NativeKernel,
    StepParts,
)
from pydlbench.analysis.experiments import (
    FRESH_MEMORY,
    LOG,
    LOG_TERMS,
    MAX_FAULT_S,
    NEGLIGIBLE_SHARE,
    PAGES,
    PAGES_KEPT,
    RETURNED_MEMORY,
    STEP_FOLDED,
    STEP_GRAPH,
    STEP_UNFUSED,
    WAKEUP,
    WAKEUPS,
    alternatives,
    fresh_memory,
    kernel_experiment,
    log_experiments,
    returned_memory,
    wakeups,
)
from pydlbench.analysis.mapped import MappedCall, kind_of, listed, map_calls
from pydlbench.analysis.native_layers import NativeLayers
from pydlbench.analysis.subjects import ReadyCalls, TracedStep
from pydlbench.backends import capabilities
from pydlbench.backends.base import KernelFacts
from pydlbench.backends.steps import requests
from pydlbench.backends.steps.device import DeviceOperators
from pydlbench.errors import PydlbenchError, UnsupportedError, UsageError, WorkerError
from pydlbench.records.breakdown import BreakdownRecord
from pydlbench.records.estimate import ForecastRecord
from pydlbench.records.measurement import KernelSpec, Measurement
from pydlbench.records.step import StepFacts, StepPreparation, StepSpec
from pydlbench.records.trace import OperatorsFacts, TraceFacts, Tracing, program_hash
from pydlbench.runner.session import Session
from pydlbench.steps.run import prepare_step, step_policy
from pydlbench.steps.traced import limits_of, traced_rounds, tracing_of
from pydlbench.study.estimate import disturbances_by_round
from pydlbench.study.loop import Size, Study, Subject, random_order
from pydlbench.study.table import SampleTable, Series
from pydlbench.timing.chunk import Chunk, ChunkRequest
from pydlbench.timing.policy import LEAST_ROUNDS, STEP_BUDGET_S, Policy
from pydlbench.timing.statistics import median_interval
from pydlbench.units import quantity, some_names
from pydlbench.workers.host import RemoteKernel, releasing, start_together

Prepared = RemoteKernel[OperatorsFacts] | RemoteKernel[StepFacts] | RemoteKernel[KernelFacts]

# Bytes of the block that is written to measure the cost of page faults.
_BLOCK_BYTES: Final = 1 << 26
# Seconds of sampling for a native kernel or a probe, over all rounds.
_KERNEL_BUDGET_S: Final = 0.25
# Seconds of sampling in a round, for subjects that take as long as a step or longer. Long ones have
# one sample in a round; short ones enough to resolve differences of 1 % of the step. Calls alone
# have three samples if they take a second together.
_PARTS_ROUND_S: Final = 0.4
_ALONE_ROUND_S: Final = 3.5
_PARTS_SAMPLES: Final = 3
# PyTorch's name for batch normalisation.
_NORM: Final = "batch_norm"
#: TensorFlow's names of operators that it has fused.
FUSED: Final = re.compile("_.*Fused(Conv|Depthwise|MatMul|BatchMatMul|BatchNormEx)")
_UNFUSED: Final = (
    "no experiment on fused activations: {framework} {mode} has no step with them; native layers "
    "are not fused either, so that no difference depends on it; diagnose measures modes that fuse"
)
#: Steps with one thing changed, and the change in words. The first runs in a process that stays,
#: the others in processes that are new in each round.
_CHANGES: Final = {
    STEP_KEPT: "in a process whose C library keeps freed pages",
    STEP_FOLDED: "its batch normalisations are folded into the convolutions before them",
    STEP_UNFUSED: "its graph is not optimized by grappler's remapper, which fuses operators",
    STEP_GRAPH: "replayed from a graph, which the host launches as a whole; with more than 256 "
    "kernels no gate hides that launch, so that it is in the time",
}
# The allocator of a process that keeps freed pages, see ``workers.environment.ALLOCATORS``.
_KEEPS_PAGES: Final = "kept pages"
# Every fourth round has no step with other fusion: three processes tell nearly as much as
# four.
_FUSION_PERIOD: Final = LEAST_ROUNDS
# Rounds between two logs. Only shares of each call are taken from a log; they are assumed to be the
# same in the other rounds.
_LOG_PERIOD: Final = 2
# ``Size.process`` of a subject that is not warmed up yet.
_NOT_WARM: Final = -1
# Executions of each call alone in a row: the first behind other calls, the last with its operands
# in caches.
_REPEATS: Final = 2
# Rounds of the step and the traced step alone, before the others. On a CPU, if the interval of the
# step is wider than this share of it after all rounds, further processes of the step follow: the
# interval of nine leaves out the fastest and the slowest.
_COARSE_ROUNDS: Final = {"cpu": 2, "cuda": 3}
_MAX_WIDTH: Final = 0.04
_MAX_FURTHER_ROUNDS: Final = 3
# Stages besides the rounds: processes, recorded step, traced step, native layers, calls alone.
_PREPARING_STAGES: Final = 5
# Why parts have no time in the answers of the coarse rounds; and what is missing in later ones.
_LATER: Final = "the breakdown ended before they were timed"
_REST: Final = "the remaining rounds: the breakdown ended"
# Checks are the business of ``pydlbench step``.
_PREPARATION: Final = StepPreparation(checks=False)


def broken_down(
    step: StepSpec,
    session: Session,
    *,
    rounds: int = LEAST_ROUNDS,
    known: Callable[[KernelSpec], Measurement | None] = lambda _: None,
    keep: Callable[[KernelSpec, Measurement], None] = lambda *_: None,
    forecast: Callable[[StepSpec], ForecastRecord | str] = lambda _: "",
    advance: Callable[[float, int, str], None] = lambda *_: None,
) -> Iterator[BreakdownRecord]:
    """Measure a step and its parts; yield where its time goes, as far as known, after each round.

    There is an answer with the native layers, too, before the calls are prepared to run alone; and
    one of all visits so far after an interruption. An error after the first answer ends the rounds:
    the last answer says why.

    Args:
        step: the step.
        session: provides the workers.
        rounds: number of rounds after the coarse ones, at least four; the step has a new process in
            each, on a GPU one of two processes.
        known: returns the row of a native kernel that was found before; None if there is none.
        keep: called with each native kernel that was found, and its row.
        forecast: forecasts the step from stored rows, or returns why it cannot; called once the
            step's calls are listed, before anything of it is timed.
        advance: called with the number of stages done, that of all stages, and what comes next.

    Raises:
        UsageError: no such model or option.
        UnsupportedError: the step cannot be traced; says why.
        WorkerError: a worker died before there was an answer.
    """
    begin = time.monotonic()
    rounds = max(LEAST_ROUNDS, rounds)
    coarse = _COARSE_ROUNDS["cuda" if step.on_gpu else "cpu"]
    stages = _Stages(advance, coarse + rounds)
    with _bench(step, session, rounds, NativeLayers(session, step.device, known, keep), stages) as (
        bench
    ):
        recording = _record(bench)
        predicted = forecast(step)
        measuring = _Rounds(bench, recording, coarse)

        def answer(rest: str = "") -> BreakdownRecord:
            record = _derive(bench, recording, measuring, rest)
            seconds = time.monotonic() - begin
            if not isinstance(predicted, str):
                return msgspec.structs.replace(
                    record, forecast_s=predicted.seconds, seconds=seconds
                )
            notes = (*record.notes, *([f"no forecast: {predicted}"] if predicted else []))
            return msgspec.structs.replace(record, notes=notes, seconds=seconds)

        try:
            for _ in range(coarse):
                measuring.take()
                yield answer(_LATER)
            measuring.find_kernels()
            yield answer(_LATER)
            measuring.prepare()
            for _ in range(rounds):
                measuring.take()
                yield answer()
            for left in range(_MAX_FURTHER_ROUNDS, 0, -1):
                if step.on_gpu or not is_worth_more(measuring.table.series(STEP), left):
                    break
                measuring.take()
                yield answer()
        except (PydlbenchError, KeyboardInterrupt) as error:
            if isinstance(error, UsageError) or not measuring.answered:
                raise
            stopped = isinstance(error, KeyboardInterrupt)
            missing = _REST if measuring.whole else _LATER
            yield answer(missing if stopped else f"ended early: {' '.join(str(error).split())}")
            if stopped:
                raise


def is_worth_more(steps: Series, further: int) -> bool:
    """Whether a step needs further processes: its interval is wide, and they may make it narrow.

    They may if it would be narrow, or half as wide, if all of them took the median. They do not
    while others disturb the step.

    Args:
        steps: visits of the step.
        further: most processes that may follow.
    """
    seconds = list(steps.by_round().values())

    def width_s(more: int) -> float:
        interval = median_interval([*seconds, *[steps.median] * more])
        return math.inf if interval is None else interval.high - interval.low

    narrow_s = _MAX_WIDTH * steps.median
    return (
        steps.visits[-1].round not in disturbances_by_round([steps])
        and width_s(0) > narrow_s
        and width_s(further) <= max(narrow_s, width_s(0) / 2)
    )


def why_negligible(bound_s: float, steps: Series) -> str:
    """Return why a changed step is not worth measuring; empty if it is.

    Args:
        bound_s: most seconds that the change can save.
        steps: visits of the step without the change.
    """
    share = bound_s / steps.median
    return f"it saves {share:.2%} of the step at most" if share < NEGLIGIBLE_SHARE else ""


class _Stages:
    """Counts the stages of a breakdown for its progress.

    Args:
        advance: see :func:`broken_down`.
        rounds: number of all rounds, one stage each.
    """

    def __init__(self, advance: Callable[[float, int, str], None], rounds: int) -> None:
        self._advance, self._total = advance, _PREPARING_STAGES + rounds
        self._begun = 0

    def begin(self, label: str) -> None:
        """Begin the next stage."""
        self._begun += 1
        self._total = max(self._total, self._begun)
        self.within(0.0, label)

    def within(self, share: float, label: str) -> None:
        """Say that a share of the present stage is done."""
        self._advance(self._begun - 1 + share, self._total, label)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bench:
    """What all stages of a breakdown use.

    Attributes:
        step: the step.
        session: session of the processes that stay over the rounds.
        fresh: sessions of the processes that are new in each round; the processes of two rounds
            start at the same time.
        changed: session of the step with folded batch norm, or without fused operators.
        native: the native layers of the step.
        rounds: number of rounds.
        kernels: all prepared kernels, which are released at the end.
        stages: shows the progress.
    """

    step: StepSpec
    session: Session
    fresh: tuple[Session, Session]
    changed: Session
    native: NativeLayers
    rounds: int
    kernels: list[Prepared | None]
    stages: _Stages

    @property
    def takes_operands(self) -> bool:
        """Whether calls alone run on the operands of the step."""
        step = self.step
        makes = capabilities.declaration(step.framework).steps.makes_calls
        return makes and step.mode == "eager" and not step.on_gpu

    @property
    def logs(self) -> bool:
        """Whether libraries log what each call executes."""
        step = self.step
        modes = capabilities.declaration(step.framework).steps.logged_modes
        return step.mode in modes and not step.on_gpu

    @property
    def repeats(self) -> int:
        """Parts of each call alone, see ``StepParts``."""
        return DeviceOperators.PARTS if self.step.on_gpu else _REPEATS

    @property
    def kernel_policy(self) -> Policy:
        """Policy of native kernels and probes."""
        return Policy(budget_s=_KERNEL_BUDGET_S, visits=self.rounds)

    def parts_policy(self, round_s: float = _PARTS_ROUND_S) -> Policy:
        """Return the policy of subjects that stay, and take as long as a step or longer.

        On a GPU, PyTorch's profiler takes longer than the kernels of a short step, in each sample.
        """
        return Policy(
            budget_s=round_s * self.rounds,
            visits=self.rounds,
            least_samples=_PARTS_SAMPLES,
            chunk_by_wall=self.step.on_gpu,
        )

    def prepare(self, allocator: str | None = None) -> RemoteKernel[StepFacts]:
        """Prepare the step in a process that stays."""
        kernel = prepare_step(
            self.step, self.session, allocator=allocator, preparation=_PREPARATION
        )
        self.kernels.append(kernel)
        return kernel


@contextlib.contextmanager
def _bench(
    step: StepSpec, session: Session, rounds: int, native: NativeLayers, stages: _Stages
) -> Iterator[_Bench]:
    """Start the first processes; release all kernels and close additional sessions at the end."""
    bench = _Bench(
        step=step,
        session=session,
        fresh=(session.sibling(), session.sibling()),
        changed=session.sibling(),
        native=native,
        rounds=rounds,
        kernels=[],
        stages=stages,
    )
    try:
        stages.begin("processes")
        # Each imports for seconds on one core. A step on a CPU runs in forks of the first, which
        # have what the traced step has imported.
        workers = [session.worker(step.framework, step.device)]
        if step.on_gpu:
            workers.append(bench.fresh[0].worker(step.framework, step.device))
        else:  # this one runs the bursts between visits
            workers.append(session.worker("native", "cpu"))
        start_together(workers)
        yield bench
    finally:
        with releasing(bench.kernels):
            pass
        bench.native.close()
        for other in (*bench.fresh, bench.changed):
            other.close()


# --- the calls of the step ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recording:
    """The step that is traced, and its calls.

    Attributes:
        kernel: runs the step, traced and untraced.
        trace: the calls in their order, and the ways to trace them.
        listed: the distinct calls; empty if the framework cannot list them.
        mapped: the layers of each call, by signature and direction.
        notes: why calls are not run alone.
    """

    kernel: RemoteKernel[StepFacts]
    trace: TraceFacts
    listed: OperatorsFacts
    mapped: Mapping[tuple[str, str], MappedCall]
    notes: Sequence[str] = ()


def _record(bench: _Bench) -> _Recording:
    """Prepare the step that is traced, and list its calls."""
    step, session = bench.step, bench.session
    bench.stages.begin("recorded step")
    kernel = bench.prepare()
    trace = kernel.trace()
    notes = []
    try:
        if trace.compiled:
            facts = trace.operators or OperatorsFacts()
            notes.append("no calls alone: the compiler's kernels cannot be called so")
        else:
            facts = listed(step, session, trace.operators)
    except UnsupportedError as error:
        why = f"no calls alone: {error}"
        return _Recording(
            kernel=kernel, trace=trace, listed=OperatorsFacts(), mapped={}, notes=[why]
        )
    cache = session.cache_bytes(step.device)
    mapped = map_calls(facts.calls, step.phase, step.precision, step.device, cache)
    return _Recording(kernel=kernel, trace=trace, listed=facts, mapped=mapped, notes=notes)


# --- subjects -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _PreparedCalls:
    """The calls of a step, prepared to run alone.

    Attributes:
        subjects: the calls alone, and the calls whose libraries log.
        alone: the calls; None if no call can be prepared.
        logged: the same calls in a process whose libraries log; None if there is no log.
        no_log: why there is no log; empty if there is a log, or no call.
    """

    subjects: Sequence[Subject] = ()
    alone: ReadyCalls | None = None
    logged: ReadyCalls | None = None
    no_log: str = ""


def _trace_kept(bench: _Bench, trace: TraceFacts, way: str) -> TracedStep:
    """Return the traced step in a process that keeps its pages.

    Raises:
        PydlbenchError: it cannot be prepared or traced, or its trace has other calls.
    """
    kernel = bench.prepare(_KEEPS_PAGES)
    names, kept = (
        [(call.operator, call.module, call.direction) for call in calls]
        for calls in (trace.calls, kernel.trace().calls)
    )
    if names != kept:
        raise UnsupportedError("its trace has other calls than that of the step")
    return TracedStep(kernel, way, len(trace.calls), plain=True)


def _lack(changed: str, why: str) -> str:
    """Return why a step with one thing changed is not measured, in one line."""
    return f"{changed}: {' '.join(why.split())}"


def _prepare_calls(bench: _Bench, recording: _Recording, calls_s: float) -> _PreparedCalls:
    """Prepare the distinct calls, each alone, and once more where their libraries log."""
    step, session = bench.step, bench.session
    calls = [call for call in recording.listed.calls if kind_of(call) != "feed"]
    if not calls or recording.trace.compiled:
        return _PreparedCalls()
    alone = ReadyCalls(step, session, calls, of_step=bench.takes_operands, repeats=bench.repeats)
    bench.kernels.append(alone.kernel)
    # They take about as long as in the step. They have run once, and are not warm; calls that are
    # prepared anew in each visit are no warmer after one more.
    size = Size(execution_s=bench.repeats * calls_s, wall_s=bench.repeats * calls_s)
    subject = Subject(
        key=ALONE,
        sample=alone.sample,
        policy=bench.parts_policy(_ALONE_ROUND_S),
        size=size if alone.kernel is None else replace(size, process=_NOT_WARM),
    )
    if step.on_gpu:
        subject.size = None  # a round takes longer than its kernels by what is not known
        return _PreparedCalls(subjects=[subject], alone=alone)
    if not bench.logs:
        reason = f"nothing logs what {step.framework} {step.mode} executes in each call"
        return _PreparedCalls(subjects=[subject], alone=alone, no_log=reason)
    try:
        logged = ReadyCalls(step, session, calls, logging=True)
    except PydlbenchError as error:
        reason = " ".join(str(error).split())
        return _PreparedCalls(subjects=[subject], alone=alone, no_log=reason)
    bench.kernels.append(logged.kernel)
    log = Subject(key=LOG, sample=logged.sample, policy=bench.parts_policy(), size=size)
    return _PreparedCalls(subjects=[subject, log], alone=alone, logged=logged)


def _prepare_probes(bench: _Bench) -> list[Subject]:
    """Prepare probes of new pages and of waking a thread."""
    worker = bench.session.worker("native", "cpu")
    block = {"size": _BLOCK_BYTES, "count": 1}
    subjects = []
    for name, request, options in (
        (WAKEUP, requests.request_wakeups, {}),
        (PAGES, requests.request_blocks, {**block, "keeps": False}),
        (PAGES_KEPT, requests.request_blocks, {**block, "keeps": True}),
    ):
        kernel = worker.build(request, OperatorsFacts, **options)
        bench.kernels.append(kernel)
        subjects.append(Subject(key=name, sample=kernel.sample, policy=bench.kernel_policy))
    return subjects


# --- rounds ---------------------------------------------------------------------------------------


class _Rounds:
    """Takes the rounds, with a new process for the step in each; on a GPU two processes in turn.

    A subject that fails has no part in later rounds.

    Attributes:
        calls: the calls alone, once they are prepared.
        whole: whether all subjects were visited.
        not_made: steps with one thing changed that were not measured, with the reason.
        no_log: why nothing is known that only a log tells; empty if there is a log.
        notes: notes for the reader: layers without a native row; which subjects failed, and why.
    """

    def __init__(self, bench: _Bench, recording: _Recording, coarse: int) -> None:
        self._bench, self._recording, self._coarse = bench, recording, coarse
        session, step, trace = bench.session, bench.step, recording.trace
        # Bursts on the cores tell nothing about a GPU.
        self._order = random_order(session.options.seed)
        self._study = Study(self._order, None if step.on_gpu else session.interference)
        bench.stages.begin("traced step")
        rounds, tracing = traced_rounds(recording.kernel, trace, briefly=True)
        self._way, self._tracing_notes = tracing.way, tracing.notes
        self._traced = TracedStep(recording.kernel, tracing.way, len(trace.calls), len(trace.gaps))
        # The last is the time between calls.
        seconds = list(zip(trace.calls, rounds.middle(len(trace.calls))[:-1], strict=True))
        self._calls_s = sum({call.signature: call_s for call, call_s in seconds}.values())
        self._norm_s = sum(call_s for call, call_s in seconds if _NORM in call.operator)
        # The size is known: no step has to run to find it.
        wall_s = tracing.traced_s + tracing.untraced_s
        self._size = Size(execution_s=tracing.traced_s, wall_s=wall_s)
        self._subjects = [
            Subject(
                key=TRACED,
                sample=self._traced.sample,
                policy=bench.parts_policy(),
                size=None if step.on_gpu else self._size,
            )
        ]
        size = Size(execution_s=tracing.untraced_s, wall_s=tracing.untraced_s)
        # Sizes of the steps in new processes.
        self._sizes: dict[str, Size | None] = dict.fromkeys((STEP, *_CHANGES), size)
        # The step with other fusion, if it can be prepared; and whether the step can be captured
        # into a graph, as far as is known.
        self._fusion, self._replays = "", step.on_gpu
        # Whether the traced step and calls alone are in one process.
        self._shares_process = step.on_gpu
        self._number = 0
        # On a GPU, whose processes take long to prepare: the steps of even and odd rounds.
        self._staying: dict[int, tuple[RemoteKernel[StepFacts], Subject]] = {}
        # Rounds whose process died, of which only the second ends the breakdown.
        self._lost = 0
        self.calls: _PreparedCalls | None = None
        self.whole = False
        self._limits: dict[tuple[str, str], float] = {}
        self._no_limits: list[str] = []
        self.not_made: dict[str, None] = {}
        self.no_log = ""
        self.notes: list[str] = []

    @property
    def table(self) -> SampleTable:
        """All visits."""
        return self._study.table

    @property
    def answered(self) -> bool:
        """Whether there is an answer: a round has both the step and the traced step."""
        return STEP in self.table and TRACED in self.table

    @property
    def tracing(self) -> Tracing:
        """How calls were timed, and what that cost in the rounds with an untraced step."""
        first, *others = self._traced.rounds
        return tracing_of(self._recording.trace, self._way, sum(others, first), self._tracing_notes)

    def early_parts(self, reason: str) -> StepParts:
        """Return the parts of the step without native layers: its calls, with their rooflines.

        Args:
            reason: why native layers and calls alone were not timed.
        """
        trace = self._recording.trace
        if not (self._no_limits or self._limits or self._bench.step.on_gpu):
            self._no_limits = [reason]  # if the probe of the device is interrupted
            refused: list[str] = []
            limit_s = limits_of(trace.calls, self._bench.session, refused)
            known = {(call.signature, call.direction): limit_s(call) for call in trace.calls}
            self._limits = {key: seconds for key, seconds in known.items() if seconds is not None}
            self._no_limits = refused
        return StepParts(
            calls=trace.calls,
            gaps=trace.gaps,
            limits=self._limits,
            no_limits="; ".join(self._no_limits),
            later=reason,
        )

    def find_kernels(self) -> None:
        """Find the native layers; they have visits then, and are visited in the rounds to come."""
        bench = self._bench
        step, session = bench.step, bench.session
        bench.stages.begin("native layers")
        workers = [session.worker("native", step.device)]
        if not step.on_gpu:
            workers.append(session.worker(step.framework, step.device, warm=True))
        if bench.takes_operands and not self._recording.trace.compiled:
            workers.append(session.worker(step.framework, step.device, warm=True, logging=True))
        start_together(workers)
        self._subjects += bench.native.find(
            self._recording.mapped,
            bench.rounds,
            bench.kernel_policy,
            bench.stages.within,
            self.table,
        )
        self.notes += bench.native.notes

    def prepare(self) -> None:
        """Prepare the step with kept pages, the calls alone and the probes, for later rounds."""
        bench, recording = self._bench, self._recording
        step, trace = bench.step, recording.trace
        subjects: list[Subject] = []
        bench.stages.begin("calls alone")
        # The C library does not allocate a GPU's memory.
        faults = self.table.series(STEP).faults
        faults_s = math.inf if faults is None else MAX_FAULT_S * faults
        if not (step.on_gpu or self._is_negligible(STEP_KEPT, faults_s)):
            size = replace(self._size, process=_NOT_WARM)
            try:
                sample = _trace_kept(bench, trace, self._way).sample
                policy = bench.parts_policy()
                subjects.append(Subject(key=STEP_KEPT, sample=sample, policy=policy, size=size))
            except PydlbenchError as error:
                self.not_made[_lack(STEP_KEPT, str(error))] = None
        operators = [] if trace.compiled else [call.operator for call in trace.calls]
        if any(_NORM in operator for operator in operators):
            self.notes.append(_UNFUSED.format(framework=step.framework, mode=step.mode))
            # Statistics of a minibatch cannot be folded into weights.
            if not (step.backward or self._is_negligible(STEP_FOLDED, self._norm_s)):
                self._fusion = STEP_FOLDED
        elif any(FUSED.match(operator) for operator in operators):
            self._fusion = STEP_UNFUSED
        calls = _prepare_calls(bench, recording, self._calls_s)
        subjects += calls.subjects
        if calls.alone is not None and not step.on_gpu:
            self.notes += calls.alone.notes
        if not (step.on_gpu or trace.compiled):
            subjects += _prepare_probes(bench)
        self._subjects += subjects
        self.no_log = calls.no_log
        self.calls = calls

    def _is_negligible(self, changed: str, bound_s: float) -> bool:
        """Whether a changed step is not worth measuring; note the reason."""
        why = why_negligible(bound_s, self.table.series(STEP))
        self.not_made |= {_lack(changed, why): None} if why else {}
        return bool(why)

    def take(self) -> None:
        """Take the next round.

        Raises:
            PydlbenchError: the step, or the traced step, failed.
        """
        number, self._number = self._number, self._number + 1
        bench, step = self._bench, self._bench.step
        total = self._coarse + bench.rounds
        further = number >= total
        bench.stages.begin(
            f"further step, {number - total + 1} of {_MAX_FURTHER_ROUNDS} at most"
            if further
            else f"round {number + 1} of {total}"
        )
        fresh = bench.fresh[number % 2]
        if number % 2 == 0:  # the process of the next round waits, stopped while others are timed
            ahead = () if self._staying else bench.fresh[: max(1, total - number)]
            ahead += (bench.changed,) * bool(self._fusion and not further)
            start_together([session.worker(step.framework, step.device) for session in ahead])
        fused = bool(self._fusion) and number % _FUSION_PERIOD > 0 and not further
        due = [
            subject
            for subject in self._subjects
            if self._is_due(subject.key, number - self._coarse) and not further
        ]
        # A step is sampled as soon as it is prepared, as users run it: on virtual machines the host
        # takes back memory that a process frees and does not use for two seconds.
        turns = [self._step_of_round, lambda _: due, *[self._changed_of_round] * fused]
        self._order.shuffle(turns)
        steps: list[Subject] = []
        errors: dict[Hashable, PydlbenchError] = {}
        for turn in turns:
            try:
                subjects = turn(number)
            except WorkerError as error:
                errors[STEP] = error
                continue
            steps += [subject for subject in subjects if subject not in due]
            errors |= self._study.take(subjects, first=number)
        if self._replays and number + len(bench.fresh) >= total and not errors:
            # Last in its process, so that side effects of a capture are in no other time: for each
            # round of this process that visited all subjects.
            steps.append(self._replayed(self._staying[number % 2][0], number))
            timed = self.table.series(STEP).by_round()
            for visited in range(number, self._coarse - 1, -len(bench.fresh)):
                if visited in timed and not errors:
                    errors = self._study.take(steps[-1:], first=visited)
        self._sizes |= {str(subject.key): subject.size for subject in steps}
        if not step.on_gpu or STEP in errors:
            self._staying.pop(number % 2, None)
            fresh.worker(step.framework, step.device).close()
        if fused:
            bench.changed.worker(step.framework, step.device).close()
        self._note(errors)
        self.whole = self.calls is not None

    def _note(self, errors: dict[Hashable, PydlbenchError]) -> None:
        """Note why subjects of a round failed, and take them out of later ones.

        Raises:
            PydlbenchError: the step, or the traced step, failed.
        """
        if isinstance(errors.get(TRACED), WorkerError) and self._shared_with_calls(errors):
            del errors[TRACED]
            self._trace_anew()
        for key in (STEP, TRACED):
            error = errors.pop(key, None)
            if isinstance(error, WorkerError) and self.answered and not self._lost:
                self._lost += 1
                self.notes.append(f"a round lacks the {key}: {' '.join(str(error).split())}")
                if key == TRACED:
                    self._trace_anew()
            elif error is not None:
                raise error
        failed: dict[str, list[str]] = {}
        for subject, error in errors.items():
            words = " ".join(str(error).split())
            if subject in _CHANGES:
                self._fusion = "" if subject == self._fusion else self._fusion
                self._replays = self._replays and subject != STEP_GRAPH
                self.not_made[_lack(str(subject), words)] = None
                continue
            failed.setdefault(words, []).append(str(getattr(subject, "label", subject)))
            if subject == LOG and LOG not in self.table:
                self.no_log = words
        self.notes += (f"{some_names(names)}: {words}" for words, names in failed.items())
        self._subjects = [subject for subject in self._subjects if subject.key not in errors]

    def _step_of_round(self, number: int) -> list[Subject]:
        """Return the step in a new process; on a GPU in the process of the round before the last.

        Raises:
            WorkerError: a new process died.
        """
        if (staying := self._staying.get(number % 2)) is not None:
            return [staying[1]]
        bench = self._bench
        kernel = prepare_step(bench.step, bench.fresh[number % 2], preparation=_PREPARATION)
        made = kernel, self._fresh_step(STEP, kernel, number)
        if bench.step.on_gpu:
            self._staying[number % 2] = made
        return [made[1]]

    def _fresh_step(self, key: str, kernel: RemoteKernel[StepFacts], number: int) -> Subject:
        """Return a step in a process that is new in this round."""
        policy = Policy(budget_s=STEP_BUDGET_S, visits=self._coarse + self._bench.rounds)
        return Subject(
            key=key,
            sample=kernel.sample,
            policy=step_policy(self._bench.step, self._recording.kernel.facts, policy),
            process=number + 1,
            preparation=number,
            size=self._sizes[key],
        )

    def _changed_of_round(self, number: int) -> list[Subject]:
        """Return the step with other fusion; no step where it cannot be prepared."""
        preparation = msgspec.structs.replace(_PREPARATION, other_fusion=True)
        try:
            kernel = prepare_step(self._bench.step, self._bench.changed, preparation=preparation)
        except PydlbenchError as error:
            self.not_made[_lack(self._fusion, str(error))] = None
            self._fusion = ""
            return []
        return [self._fresh_step(self._fusion, kernel, number)]

    def _replayed(self, kernel: RemoteKernel[StepFacts], number: int) -> Subject:
        """Return a step on a GPU replayed from a graph."""

        def sample(request: ChunkRequest) -> Chunk:
            return kernel.sample(msgspec.structs.replace(request, timing="cuda-graph"))

        return replace(self._fresh_step(STEP_GRAPH, kernel, number), sample=sample)

    def _shared_with_calls(self, errors: Mapping[Hashable, PydlbenchError]) -> bool:
        """Whether the traced step was in one process with calls alone, which have failed."""
        remaining = {subject.key for subject in self._subjects} - errors.keys()
        return self.calls is not None and self._shares_process and ALONE not in remaining

    def _trace_anew(self) -> None:
        """Prepare the traced step once more, without calls alone."""
        kernel = self._bench.prepare()
        kernel.trace()
        self._shares_process = False
        self._traced = replace(self._traced, kernel=kernel)
        for subject in self._subjects:
            if subject.key == TRACED:
                subject.sample = self._traced.sample

    def _is_due(self, key: Hashable, number: int) -> bool:
        """Whether a subject is visited in a round; in others its median is used.

        Args:
            key: key of the subject.
            number: number of the round, counted from the first that visits all subjects.
        """
        return (key != LOG or number % _LOG_PERIOD == 0) and self._bench.native.is_due(key, number)


# --- the record -----------------------------------------------------------------------------------


def _derive(
    bench: _Bench,
    recording: _Recording,
    measured: _Rounds,
    rest: str,
) -> BreakdownRecord:
    """Return the record of the rounds so far.

    Args:
        bench: what all stages use.
        recording: the calls of the step.
        measured: the rounds.
        rest: why parts are not measured; empty if all are.
    """
    step, table, facts = bench.step, measured.table, recording.kernel.facts
    calls = measured.calls
    missing: dict[str, dict[str, str]] = {"alone": {}, "in_context": {}}
    experiments: list[Experiment] = []
    kernel_notes: Sequence[str] = ()
    if measured.whole and calls is not None:
        parts = _step_parts(bench, recording, calls, table)
        experiments, kernel_notes = _experiments(bench, recording, measured, parts, missing)
    elif bench.native.rows:
        parts = _step_parts(bench, recording, calls or _PreparedCalls(), table)
        missing = {"alone": {"logs of libraries": rest}, "in_context": {"counters": rest}}
    else:
        parts = measured.early_parts(rest or _LATER)
    breakdown = break_down(table, parts, experiments, missing)
    reasons = breakdown.reasons
    if rest and breakdown.levels.alone is None:
        reasons = {**reasons, "alone": rest}
    breakdown = msgspec.structs.replace(
        breakdown,
        reasons=reasons,
        alternatives=tuple(alternatives(table, _CHANGES)),
        not_measured=(
            *breakdown.not_measured,
            *measured.not_made,
            *([rest] if rest and measured.whole else []),
        ),
    )
    repeated = quantity(table.again, "timing")
    all_notes = (
        *facts.notes,
        *recording.listed.notes,
        *recording.notes,
        *measured.notes,
        *kernel_notes,
        *bench.native.below_limits(),
        *([f"disturbed by others and taken once more: {repeated}"] if table.again else []),
    )
    return BreakdownRecord(
        **msgspec.structs.asdict(breakdown),
        measured=breakdown.levels.step,
        spec=msgspec.structs.replace(step, batch=facts.batch),
        library=facts.library,
        threads=len(bench.session.cpus),
        processes=table.series(STEP).processes,
        program=program_hash((call.signature, call.direction) for call in recording.trace.calls),
        trace=measured.tracing,
        lines=recording.listed.lines,
        types=facts.types or None,
        notes=tuple(dict.fromkeys(all_notes)),
    )


def _experiments(
    bench: _Bench,
    recording: _Recording,
    measured: _Rounds,
    parts: StepParts,
    missing: dict[str, dict[str, str]],
) -> tuple[list[Experiment], Sequence[str]]:
    """Return the experiments and notes on a GPU's kernels; add those that were not made."""
    table, calls = measured.table, measured.calls
    assert calls is not None
    if measured.no_log:
        missing["alone"][", ".join(LOG_TERMS)] = measured.no_log
    experiments = _log_experiments(bench, calls, table, parts)
    if isinstance(experiments, str):
        missing["alone"][", ".join(LOG_TERMS)] = experiments
        experiments = []
    if not bench.step.on_gpu:
        counters, missing["in_context"] = _counter_experiments(
            table, compiled=recording.trace.compiled
        )
        return experiments + counters, ()
    if calls.alone is None:
        return experiments, ()
    experiments += _kernel_experiments(bench, calls.alone, table, parts)
    return experiments, calls.alone.facts.notes


def _step_parts(
    bench: _Bench, recording: _Recording, calls: _PreparedCalls, table: SampleTable
) -> StepParts:
    """Return the parts of the step, each with the native kernels that were measured."""
    native: dict[tuple[str, str], Sequence[NativeKernel]] = {}
    lacks: dict[str, str] = {}
    in_place: set[tuple[str, str]] = set()
    listed_calls = recording.listed.calls
    operators = {(call.signature, call.direction): call.operator for call in listed_calls}
    for key, mapped in recording.mapped.items():
        kernels = bench.native.of_call(mapped, table)
        if kernels is None:
            lacks[operators[key]] = bench.native.lacking(mapped)
        else:
            native[key] = kernels
            if mapped.writes_elsewhere(operators[key]):
                in_place.add(key)
    refused = {} if calls.alone is None else calls.alone.refused
    lacks |= {
        call.operator: refused[call.signature]
        for call in listed_calls
        if refused.get(call.signature)
    }
    return StepParts(
        calls=recording.trace.calls,
        alone=tuple(calls.alone.names) if calls.alone and ALONE in table else (),
        repeats=bench.repeats,
        gaps=recording.trace.gaps,
        native=native,
        in_place=in_place,
        lacks=lacks,
    )


def _log_experiments(
    bench: _Bench, calls: _PreparedCalls, table: SampleTable, parts: StepParts
) -> list[Experiment] | str:
    """Return the experiments on logs of libraries; or why an existing log explains nothing."""
    alone, logged = calls.alone, calls.logged
    if logged is None or alone is None or LOG not in table:
        return []
    if ALONE not in table:
        return "calls alone were not measured"
    executions = {name: sum(each.values()) for name, each in logged.executions.items()}
    experiments = log_experiments(
        table,
        parts,
        logged.names,
        {name: executions[name] for name in logged.names if executions.get(name)},
        alone.facts.dispatch_s,
        threads=len(bench.session.cpus),
    )
    return experiments or "no library logs a call that a native layer stands for"


def _kernel_experiments(
    bench: _Bench, alone: ReadyCalls, table: SampleTable, parts: StepParts
) -> list[Experiment]:
    """Return the experiment on the names of a GPU's kernels; none where names are not known."""
    launched: dict[Hashable, list[str]] = {
        spec: [str(kernel["name"]) for kernel in row.kernels]
        for spec, row in bench.native.rows.items()
    }
    fastest = {
        key: [name for kernel in kernels for name in launched[kernel.subject]]
        for key, kernels in parts.native.items()
    }
    experiment = kernel_experiment(table, parts, alone.facts.kernels, fastest)
    return [] if experiment is None else [experiment]


def _counter_experiments(
    table: SampleTable, *, compiled: bool
) -> tuple[list[Experiment], dict[str, str]]:
    """Return the experiments on page faults and on sleeping threads, and why one is missing."""
    uncounted = "page faults, or the cost of one, were not measured"
    tried: dict[str, Experiment | str | None] = {RETURNED_MEMORY: returned_memory(table)}
    if not compiled:  # they explain the difference between calls in the step and alone
        tried |= {FRESH_MEMORY: fresh_memory(table) or uncounted, WAKEUPS: wakeups(table)}
    missing = {name: result for name, result in tried.items() if isinstance(result, str)}
    experiments = [
        result for result in tried.values() if result is not None and not isinstance(result, str)
    ]
    return experiments, missing
