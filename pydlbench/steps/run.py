"""Steps in, records out: prepared in their frameworks' processes, timed as layers are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from pydlbench.backends.steps import operations
from pydlbench.errors import BackendMissingError, PydlbenchError, UnsupportedError, UsageError
from pydlbench.models.counts import memory
from pydlbench.records.step import StepFacts, StepPreparation, StepRecord
from pydlbench.runner.interleaved import (
    random_order,
    releasing,
    sample_interleaved,
)
from pydlbench.runner.rows import summary_of
from pydlbench.timing.policy import Policy, gpu_policy
from pydlbench.timing.visits import VISITS, joined, taken_again, visit_policy
from pydlbench.units import format_bytes
from pydlbench.words import FRAMEWORK_MODES, FRAMEWORKS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydlbench.models.graph import Model
    from pydlbench.records.step import StepSpec
    from pydlbench.runner.session import Session
    from pydlbench.timing.procedure import Samples
    from pydlbench.workers.host import RemoteKernel


def prepare_step(
    case: StepSpec,
    session: Session,
    *,
    warm: bool = False,
    allocator: str | None = None,
    preparation: StepPreparation | None = None,
) -> RemoteKernel[StepFacts]:
    """Have a step made ready in its framework's process; raises what is raised there.

    Args:
        case: the step.
        session: whose workers are used.
        warm: in a process of its own whose allocator keeps the pages that were freed.
        allocator: of that process, see :meth:`pydlbench.runner.session.Session.worker`.
        preparation: with which checks; None is all of them.

    Returns:
        A kernel to sample.
    """
    worker = session.worker(case.framework, case.device, warm=warm, allocator=allocator)
    how = preparation or StepPreparation()
    return worker.build(operations.prepare_step, StepFacts, case=case.to_dict(), preparation=how)


def settled(cases: Sequence[StepSpec], session: Session) -> list[StepSpec]:
    """Return steps of a model of the user's own in the framework that the model is of.

    Modes become their counterparts. The user's code runs once more for it, in a worker.

    Args:
        cases: of one model, in the framework whose worker is asked.
        session: whose worker.

    Raises:
        PydlbenchError: the user's code failed.
    """
    first = cases[0]
    worker = session.worker(first.framework, first.device)
    found = worker.call(operations.find_framework, lambda _: None, case=first.to_dict())
    if found == first.framework or found not in FRAMEWORKS:
        return list(cases)
    worker.close()  # it has both frameworks by now
    places = FRAMEWORK_MODES[first.framework]
    return [
        msgspec.structs.replace(
            one, framework=found, mode=FRAMEWORK_MODES[found][places.index(str(one.mode))]
        )
        for one in cases
    ]


def step_policy(case: StepSpec, session: Session, facts: StepFacts) -> Policy:
    """Return the constants of sampling for a step."""
    policy = Policy(confidence=session.options.confidence, budget_s=session.options.budget_s)
    return gpu_policy(policy, facts.timing) if case.on_gpu else policy


def run(
    case: StepSpec, session: Session, *, preparation: StepPreparation | None = None
) -> StepRecord:
    """Check and time one step; one that cannot be run is a record that says why.

    Args:
        case: the step.
        session: whose workers and settings are used.
        preparation: with which checks; None is all of them.

    Raises:
        UsageError: no such model, or an option that it does not have.
    """
    return run_in_turn([case], session, preparation=preparation)[0]


def run_in_turn(
    cases: Sequence[StepSpec],
    session: Session,
    *,
    preparation: StepPreparation | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> list[StepRecord]:
    """Check steps, then time them round by round, so that all saw the same drift.

    With several visits (``Options.visits``) the steps share their budget: in each all steps are
    made ready anew in new processes of their frameworks, and take turns. Checks are made in the
    first. A disturbed visit is taken again, by all of them.

    Args:
        cases: the steps.
        session: whose workers and settings are used.
        preparation: with which checks; None is all of them. With ``trace`` steps are traced, too,
            in the processes that timed them last.
        progress: called with steps made ready, steps in all and the next one's label.

    Returns:
        A record for each, in the order given.
    """
    how = preparation or StepPreparation()
    turns = _Turns(cases, session, msgspec.structs.replace(how, trace=False))
    while not turns.finished:
        turns.visit(progress)
    records = turns.records()
    return _traced(cases, records, session, progress) if how.trace else records


def _traced(
    cases: Sequence[StepSpec],
    records: Sequence[StepRecord],
    session: Session,
    progress: Callable[[int, int, str], None] | None,
) -> list[StepRecord]:
    """Return records of steps with what their calls take, of those that have a time."""
    from pydlbench.steps.traced import trace_step

    found = []
    for place, (case, record) in enumerate(zip(cases, records, strict=True)):
        if record.time is None:
            found.append(record)
            continue
        if progress:
            progress(place, len(cases), f"{case.label}: traced step")
        found.append(msgspec.structs.replace(record, **trace_step(case, session)))
    return found


class _Turns:
    """Steps that take turns, in one visit or more.

    Args:
        cases: the steps.
        session: whose workers and settings are used.
        preparation: with which checks.
    """

    def __init__(
        self, cases: Sequence[StepSpec], session: Session, preparation: StepPreparation
    ) -> None:
        self._cases = cases
        self._session = session
        self._preparation = preparation
        self._visits = session.options.visits or VISITS
        self._lap = 0
        self._order = random_order(session.options.seed)
        # By number of the step: why it has no time, why its visits came to an end, what is known
        # of it, and its samples by lap.
        self._refused: dict[int, StepRecord] = {}
        self._ended: dict[int, str] = {}
        self._facts: dict[int, StepFacts] = {}
        self._taken: dict[int, dict[int, Samples]] = {}
        self._processes: dict[int, set[int]] = {}

    @property
    def finished(self) -> bool:
        """Whether no step wants another visit."""
        left = [one for index, one in self._taken.items() if index not in self._ended]
        if len(self._refused) + len(self._ended) == len(self._cases):
            return True
        return self._lap >= self._visits and not any(
            taken_again(one.values(), self._visits) for one in left
        )

    def visit(self, progress: Callable[[int, int, str], None] | None = None) -> None:
        """Have the steps made ready, and sample them in turn.

        Args:
            progress: called with steps that are done, parts of them too, all, and what comes next.
        """
        count, session = len(self._cases), self._session
        if self._lap:
            session.renew()
        session.start((one.framework, one.device) for one in self._cases)
        done = count * min(self._lap, self._visits) // (self._visits + 1)
        preparation = self._preparation
        if self._lap:
            preparation = msgspec.structs.replace(preparation, checks=False)
        kernels: dict[int, RemoteKernel[StepFacts]] = {}
        with releasing(kernels.values()):
            for index, case in enumerate(self._cases):
                if index in self._refused or index in self._ended:
                    continue
                if progress:
                    what = "checks" if self._lap == 0 else f"visit {self._lap + 1}"
                    progress(index if self._visits == 1 else done, count, f"{case.label}: {what}")
                try:
                    kernels[index] = prepare_step(case, session, preparation=preparation)
                except PydlbenchError as error:
                    if isinstance(error, ValueError):  # a word that is none: not a row's matter
                        raise
                    self._lose(index, error)
            if progress:
                progress(max(done, len(self._refused)), count, f"{len(kernels)} steps in turn")
            self._sample(kernels)
        self._lap += 1

    def _sample(self, kernels: Mapping[int, RemoteKernel[StepFacts]]) -> None:
        session = self._session
        policies = [
            visit_policy(
                step_policy(self._cases[index], session, kernel.facts),
                self._visits,
                alone=len(kernels) == 1,
            )
            for index, kernel in kernels.items()
        ]
        samplers = [kernel.sample for kernel in kernels.values()]
        canary = None if all(case.device != "cpu" for case in self._cases) else session.canary
        taken = sample_interleaved(samplers, policies, self._order, canary=canary)
        for (index, kernel), samples in zip(kernels.items(), taken, strict=True):
            if isinstance(samples, PydlbenchError):
                self._lose(index, samples)
            else:
                self._facts.setdefault(index, kernel.facts)
                self._taken.setdefault(index, {})[self._lap] = samples
                self._processes.setdefault(index, set()).add(kernel.generation)

    def _lose(self, index: int, error: PydlbenchError) -> None:
        """Visit a step no more; what earlier visits have measured stays."""
        if index in self._taken:
            self._ended[index] = " ".join(str(error).split())
        else:
            self._refused[index] = _refused(self._cases[index], self._session, error)

    def records(self) -> list[StepRecord]:
        """Return a record for each step, in the order given."""
        found = []
        for index, case in enumerate(self._cases):
            if index in self._refused:
                found.append(self._refused[index])
                continue
            taken, processes = self._taken[index], len(self._processes[index])
            samples = joined(taken, min(self._visits, len(taken)), processes)
            record = record_of(case, self._session, self._facts[index], samples)
            if why := self._ended.get(index):
                said = f"a visit failed, {len(taken)} made the row: {why}"
                record = msgspec.structs.replace(record, warnings=(*record.warnings, said))
            found.append(record)
        return found


def record_of(case: StepSpec, session: Session, facts: StepFacts, samples: Samples) -> StepRecord:
    """Return the record of a timed step.

    A check that failed makes the row ``failed``; its time stands beside it all the same.

    Args:
        case: the step.
        session: whose workers ran it.
        facts: of its kernel.
        samples: its times.
    """
    time = summary_of(samples)
    wrong = [one for one in facts.checks if one.status != "ok"]
    warnings = []
    if not samples.warmup.steady:
        warnings.append(f"the warm-up ended before times were steady: {samples.warmup.detail}")
    if samples.disturbed:
        warnings.append(f"{samples.disturbed} of {len(samples.visits)} visits were disturbed")
    return StepRecord(
        case=msgspec.structs.replace(case, batch=facts.batch),
        status="failed" if wrong else "ok",
        reason="; ".join(f"{one.name}: {one.detail}" for one in wrong) or None,
        time=time,
        images_per_s=facts.batch / time.median,
        samples_s=tuple(samples.all_seconds),
        rounds_s=samples.by_round(),
        inner=samples.inner,
        faults=samples.faults,
        busy=samples.busy,
        threads=_threads(case, session),
        checks=facts.checks,
        output=facts.output,
        parameters=facts.parameters,
        inputs=facts.inputs,
        setup_s=facts.setup_s,
        checks_s=facts.checks_s,
        library=facts.library,
        environment=facts.environment,
        profile=facts.profile,
        types=facts.types or None,
        notes=facts.notes,
        warnings=tuple(warnings),
        contended=samples.contended,
        contention_reason=samples.contention_reason,
        discarded=samples.discarded,
        stop_reason=samples.stop_detail,
    )


def _threads(case: StepSpec, session: Session) -> int | None:
    return None if case.on_gpu else len(session.cpus)


def _refused(case: StepSpec, session: Session, error: PydlbenchError) -> StepRecord:
    absent = isinstance(error, (UnsupportedError, BackendMissingError))
    status = "skipped" if absent else "failed"
    return StepRecord(case=case, status=status, reason=str(error), threads=_threads(case, session))


# -----------------------------------------------------------------------------
# Whether steps fit into the host's memory: asked before anything is built.

#: What a framework's process holds before it has a model.
_PROCESS: Final = 600_000_000
#: Copies of the weights: NumPy's that are loaded and gone back to, the framework's, and the one in
#: which a library may have arranged them for itself.
_WEIGHTS: Final = 3
#: Of the gradients: the framework's, and those that a check or a fetch brings to the host.
_GRADIENTS: Final = 2
#: Of the activations: their gradients or reordered copies live beside them.
_ACTIVATIONS: Final = 2
#: What a check holds at a time: the step, and the same where pages are kept; on a CPU one more
#: whose library logs what it executes, in the modes that have a log. The operands of its
#: operators, each distinct one once, have room in the factor of the activations.
_CHECKED: Final = 2
_LOGGED: Final = ("eager", "graph")


def fixed_bytes(model: Model, phase: str, precision: str) -> int:
    """Return what a step needs whatever its batch, without the process."""
    needs = memory(model, phase, precision)
    # Mixed precision keeps weights in float32 and makes narrow copies; the factor covers both.
    return _WEIGHTS * needs["weights"] + _GRADIENTS * needs["gradients"] + needs["optimizer"]


def image_bytes(model: Model, phase: str, precision: str) -> float:
    """Return what each image of the batch adds."""
    return _ACTIVATIONS * memory(model, phase, precision)["activations"] / model.batch


def check_memory_of_parts(model: Model, case: StepSpec, available: int | None) -> None:
    """Make sure that a step has room as often as ``check`` and ``diagnose`` hold it.

    Args:
        model: with its batch.
        case: the step.
        available: bytes of the host's memory, or of the case's GPU; None where nobody knows.

    Raises:
        UsageError: it has not; with the largest batch that has.
    """
    # The parts have a process of their own; a GPU has the step and its graph in one.
    held = _CHECKED + (not case.on_gpu and case.mode in _LOGGED)
    processes = 1 if case.on_gpu else held + 1
    there = msgspec.structs.replace(case, device="cpu")
    check_memory(model, [there] * held, available, processes)


def check_memory(
    model: Model,
    cases: Sequence[StepSpec],
    available: int | None,
    processes: int | None = None,
) -> None:
    """Make sure that steps have room beside each other, as they have while they take turns.

    Args:
        model: theirs, with their batch.
        cases: steps of one batch and phase; a GPU's activations are not the host's.
        available: bytes of the host's memory; None where nobody knows.
        processes: that they run in; None is one for each framework and device.

    Raises:
        UsageError: they have not; with the largest batch that has.
    """
    if available is None or not cases:
        return
    if processes is None:
        processes = len({(one.framework, one.device) for one in cases})
    fixed = processes * _PROCESS
    each = 0.0
    for case in cases:
        fixed += fixed_bytes(model, case.phase, case.precision)
        if not case.on_gpu:
            each += image_bytes(model, case.phase, case.precision)
    needed = fixed + model.batch * each
    if needed <= available:
        return
    batch = int((available - fixed) // each) if each else 0
    alike = len(set(_ways(cases))) == 1
    count = len(cases)
    turns = f"{count} steps in turn" if not alike else f"{count} times the step and its operators"
    several = f" for {turns}" if count > 1 else ""
    near = f"--batch {batch}" if batch >= 1 else "a smaller model"
    if batch < 1 and not alike:
        near = "fewer of --framework, --mode and --precision"
    raise UsageError(
        f"{model.name} at batch {model.batch}: needs about {format_bytes(needed)} of memory"
        f"{several}, {format_bytes(available)} are available; nearest: {near}"
    )


def _ways(cases: Sequence[StepSpec]) -> list[tuple[str, str | None, str]]:
    return [(case.framework, case.mode, case.precision) for case in cases]
