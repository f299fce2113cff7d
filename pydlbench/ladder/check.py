"""A check from its step to its record: what is visited in laps, and what is made of them."""

from __future__ import annotations

import datetime as dt
import functools
import time
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from pydlbench.backends import capabilities
from pydlbench.backends.steps import operations
from pydlbench.backends.steps.device import WAYS
from pydlbench.errors import PydlbenchError, UnsupportedError
from pydlbench.ladder.calls import CallLog, CallVisits, group_calls
from pydlbench.ladder.chain import prepare_native_chain
from pydlbench.ladder.device_terms import (
    DEVICE_HOWS,
    allocation_note,
    compute_share,
    device_experiments,
    power_notes,
)
from pydlbench.ladder.estimate import plan
from pydlbench.ladder.experiments import (
    OTHERS,
    Group,
    LogVisits,
    StepLog,
    cost_nothing,
    experiments,
    keeps_pages,
    log_of,
)
from pydlbench.ladder.laps import Core, RungLaps, Sampled
from pydlbench.ladder.ledger import LAYERLESS, LEAST, Ladder, conclude, refused, settled
from pydlbench.ladder.mapped import (
    compute_bound,
    computes_together,
    kernels_of,
    known,
    layerless,
    map_calls,
    map_step,
    module_parts,
)
from pydlbench.ladder.native import NativeVisits, native_parts
from pydlbench.ladder.operators import listed
from pydlbench.ladder.parts import MODEL, parts_of
from pydlbench.models import build_model
from pydlbench.records.check import CheckRecord
from pydlbench.records.measurement import time_summary
from pydlbench.records.operator import OperatorsFacts
from pydlbench.records.step import StepPreparation
from pydlbench.steps.prepare import prepare_step
from pydlbench.study.loop import random_order
from pydlbench.timing.statistics import median
from pydlbench.units import percent
from pydlbench.words import check_gpu_framework
from pydlbench.workers.host import releasing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydlbench.ladder.estimate import Kernels
    from pydlbench.ladder.ledger import Experiment
    from pydlbench.ladder.mapped import MappedCall
    from pydlbench.models.graph import Model
    from pydlbench.records.chain import ChainFacts
    from pydlbench.records.check import Known, Lap, OperatorRow
    from pydlbench.records.forecast import ForecastRecord
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.operator import RecordedCall
    from pydlbench.records.specs import KernelSpec
    from pydlbench.records.step import StepFacts, StepSpec
    from pydlbench.runner.session import Session
    from pydlbench.workers.host import RemoteKernel

__all__ = ["added_up", "check_step", "start_both"]

Facts = TypeVar("Facts")
# A step's page faults over those of its played blocks, at the most: with fewer of these the time of
# one would be noise.
_MOST_TIMES = 10.0
# Laps after the time is over, at the most, in the place of some that somebody has disturbed.
_BEYOND = 3
# What a rung is measured on.
_HOWS = {
    "limit": "rooflines of the native rows, summed, at the clock of each lap",
    "native": "the fastest native kernel of each layer alone, prepared anew in each lap (the "
    "smallest, a quarter together, in every third), halfway between hot and cold caches",
    "native_chain": "the native layers in the order of the step, on each other's results, reorders "
    "and packing in between",
    "operators": "the framework's calls, each distinct one alone with pages kept, on operands made "
    "up from its signature, times its number",
    "operator_chain": "the step's recorded calls in their order, on each other's results",
    "step": "the step with the default allocator",
}


def check_step(
    case: StepSpec,
    session: Session,
    *,
    laps: int = 15,
    time_limit_s: float = 80.0,
    native: Mapping[KernelSpec, Measurement] | None = None,
    began: float | None = None,
    checks: bool = False,
    forecast: Callable[[StepSpec], ForecastRecord | str] = lambda _: "",
    tell: Callable[[str], None] = lambda _: None,
) -> CheckRecord:
    """Measure a framework's step rung by rung, and explain what lies between the rungs.

    Args:
        case: the step; on a GPU in PyTorch.
        session: whose workers are used.
        laps: at the most; six at least, whatever the time, and no more once all rungs and what
            lies between them are known well enough (:func:`~pydlbench.ladder.ledger.settled`).
        time_limit_s: no lap after the sixth begins after so many seconds, but three where a rung
            was disturbed too often; finding the native kernels is not counted.
        native: the native rows of the same step, where they have been found already.
        began: when whoever calls began with that, by ``time.monotonic()``: the check takes from
            then on. None is now.
        checks: check the step (shapes, parameters, gradients, descent) before it is timed.
        forecast: says what the step will take from what is stored, or why it cannot; called before
            anything of the step is timed.
        tell: called with what is done next.

    Raises:
        UsageError: no such model or option.
        UnsupportedError: the framework has not what is asked for.
        WorkerError: a worker died.
    """
    begin = time.monotonic() if began is None else began
    check_gpu_framework(case.framework, case.device)
    model = None if case.own is not None else build_model(case.model, case.batch, **case.options)
    said = forecast(case)
    made = _Check(case, model, session, checks, None if isinstance(said, str) else said, tell)
    if isinstance(said, str) and said:
        made.note(f"no forecast: {said}")
    try:
        made.list_calls()
        made.find_native(native, laps)
        started = time.monotonic()
        made.prepare()
        made.take(laps, started, time_limit_s)
        return made.record(time.monotonic() - begin)
    finally:
        made.close()


def start_both(case: StepSpec, session: Session) -> None:
    """Start the two processes of a step's framework side by side, and wait until they are ready.

    They take seconds, on cores that nothing may be timed on meanwhile. A GPU's step has one.
    """
    if not case.on_gpu:
        session.start([(case.framework, case.device)], warm=(False, True))


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


class _Check:
    """One check while it goes on."""

    def __init__(
        self,
        case: StepSpec,
        model: Model | None,
        session: Session,
        checks: bool,
        forecast: ForecastRecord | None,
        tell: Callable[[str], None],
    ) -> None:
        self._case = case
        self._model = model
        self._session = session
        self._checks = checks
        self._forecast = forecast
        self._tell = tell
        self._kernels: list[RemoteKernel[Any] | None] = []
        # Native rows have processes besides the session's, a new one in each lap; so have blocks.
        self._apart = session.beside()
        self._memory = session.beside()
        self._chain: ChainFacts | None = None
        self._recorded: OperatorsFacts | None = None
        self._notes: list[str] = []
        self._absent: dict[str, str] = {}
        self._visits: dict[str, Callable[[], Mapping[str, float]]] = {}
        self._native: NativeVisits
        self._operators: CallVisits | None = None
        # What stands for recorded calls.
        self._mapped: dict[tuple[str, str], MappedCall] = {}
        self._calls: tuple[RecordedCall, ...] = ()
        self._order: tuple[int, ...] = ()
        self._blocks: tuple[int, ...] = ()
        self._lines: Mapping[str, str] = {}
        self._time_limit_s: float
        self._facts: StepFacts
        self._laps: RungLaps
        self._coreless = False
        self._step_utc = ""
        self._ended = "laps"
        self._log: StepLog | CallLog | None = None
        self._log_visits: LogVisits | None = None

    def note(self, text: str) -> None:
        """Have the record say something."""
        self._notes.append(text)

    # --- what is visited ----------------------------------------------------------------------

    def list_calls(self) -> None:
        """List the step's calls, or say why there is no list."""
        case, session = self._case, self._session
        self._tell("calls")
        start_both(case, session)
        try:
            found = listed(case, session)
            self._calls, self._order, self._blocks = found.calls, found.order, found.blocks
            self._lines = found.lines
            self._notes += found.notes
        except UnsupportedError as error:
            self._absent["operators"] = " ".join(str(error).split())
        cache = session.cache_bytes(case.device)
        self._mapped = map_calls(self._calls, case.phase, case.precision, case.device, cache)
        if self._model is None and not self._mapped:
            self._mapped = map_step(case, session)

    def find_native(self, rows: Mapping[KernelSpec, Measurement] | None, laps: int) -> None:
        """Find the fastest native kernel of each layer, unless that was done before."""
        case, session = self._case, self._session
        cache = session.cache_bytes(case.device)
        if self._model is not None:
            wanted: Kernels = plan(self._model, case.phase, case.precision, case.device, cache)
        else:
            wanted = kernels_of(self._mapped)
        if rows is None:
            self._tell("native layers")
            rows = {}
        # A model of the user's own may have made other calls when they were listed before.
        missing = [one for one in wanted.cases if one not in rows]
        if missing:
            # The laps visit each again.
            rows = {**rows, **dict(session.measure(missing, first_of=max(2, laps)))}
        self._rows = rows
        self._native = NativeVisits(wanted, rows, self._apart, laps)
        self._notes += [f"no native row: {one}" for one in self._native.sums().missing]
        if not self._native.kernels:
            self._absent |= dict.fromkeys(("limit", "native"), "no native row has a time")
        else:
            self._visits["native"] = self._native

    def prepare(self) -> None:
        """Make everything ready; the operators before the step."""
        case, session = self._case, self._session
        # Operands are those of whole steps, and chains are held against them.
        self._step_utc = _now()
        self._tell("operators")
        self._time_calls()
        self._chain_natively()
        self._chain_calls()
        self._tell("step")
        graph = case.on_gpu and case.feed == "resident"
        how = StepPreparation(checks=self._checks, graph=graph)
        step = self._kept(prepare_step(case, session, preparation=how))
        self._facts = step.facts
        self._notes += [one for one in step.facts.notes if one not in self._notes]
        if case.on_gpu:
            self._visit_in_all_ways(step)
        else:
            self._visits["step"] = Sampled("step", step)
            self._visits["step_kept"] = Sampled("step_kept", self._warm(case))
        # A CPU's memory is the host's: only what is fed from there has a transfer to be measured.
        if case.feed == "host" and not case.on_gpu:
            resident = self._warm(msgspec.structs.replace(case, feed="resident"))
            self._visits["step_resident"] = Sampled("step_resident", resident)
        self._log_steps()
        wrong = [one for one in step.facts.checks if one.status != "ok"]
        self._notes += [f"check {one.name} failed: {one.detail}" for one in wrong]

    def _visit_in_all_ways(self, step: RemoteKernel[StepFacts]) -> None:
        """Visit a GPU's step by the host's clock, between events, and as a graph."""
        by_host, by_events, by_graph = WAYS
        self._visits["step"] = Sampled("step", step, by_host)
        self._visits["step_events"] = Sampled("step_events", step, by_events)
        if self._case.feed == "host":
            case = msgspec.structs.replace(self._case, feed="resident")
            how = StepPreparation(checks=False, graph=True)
            step = self._kept(prepare_step(case, self._session, preparation=how))
            self._visits["step_resident"] = Sampled("step_resident", step, by_host)
        if step.facts.ungraphed:
            self._notes.append(f"no launch gaps: the step is no graph: {step.facts.ungraphed}")
        else:
            self._visits["step_graph"] = Sampled("step_graph", step, by_graph)

    def _time_calls(self) -> None:
        """Make the step's calls ready, each alone, and the blocks that it asks for."""
        case, session = self._case, self._session
        if not self._calls:
            return
        keeps = case.on_gpu or keeps_pages(case, session)
        try:
            operators = CallVisits(
                case,
                session,
                self._calls,
                order=self._order,
                warm=not keeps,
            )
        except UnsupportedError as error:
            self._absent["operators"] = " ".join(str(error).split())
            return
        self._operators = operators
        self._kernels.append(operators.kernel)
        self._visits["operators"] = operators
        if case.on_gpu:
            self.note("additivity is without the host's time in modules and autograd")
            return
        if keeps:
            self._notes.append(f"{case.framework} keeps freed pages by itself")
        elif not self._blocks:
            self._notes.append("blocks of this step are not known: additivity has no page faults")
        else:
            for name, warm in (("blocks", False), ("blocks_kept", True)):
                worker = self._memory.worker("native", "cpu", warm=warm)
                played = worker.build(
                    operations.prepare_lifetimes, OperatorsFacts, blocks=list(self._blocks)
                )
                self._visits[name] = Sampled(name, self._kept(played))

    def _chain_natively(self) -> None:
        """Make the native chain ready, or say why there is none."""
        self._tell("native chain")
        try:
            kernel = self._kept(prepare_native_chain(self._case, self._session, self._rows))
        except PydlbenchError as error:
            self._absent["native_chain"] = " ".join(str(error).split())
            return
        self._chain = kernel.facts
        self._notes += [f"native chain: {one}" for one in kernel.facts.notes]
        self._visits["native_chain"] = Sampled("native_chain", kernel)

    def _chain_calls(self) -> None:
        """Make the chain of the step's recorded calls ready, or say why there is none."""
        self._tell("operator chain")
        case = msgspec.structs.replace(self._case, feed="resident")
        try:
            for name, warm in (("operator_chain", False), ("operator_chain_kept", True)):
                worker = self._session.worker(case.framework, case.device, warm=warm)
                kernel = worker.build(operations.prepare_chain, OperatorsFacts, case=case.to_dict())
                self._kept(kernel)
                if kernel.facts.ungraphed:
                    raise UnsupportedError(f"the chain is no CUDA graph: {kernel.facts.ungraphed}")
                self._visits[name] = Sampled(name, kernel, WAYS[-1] if case.on_gpu else "")
                self._recorded = kernel.facts
                if not kernel.facts.allocates:
                    break  # no allocator would change anything
        except PydlbenchError as error:
            why = " ".join(str(error).split())
            if "operator_chain" in self._visits:
                self._notes.append(f"no operator chain with kept pages: {why}")
            else:
                self._absent["operator_chain"] = why

    def _log_steps(self) -> None:
        """Make ready what libraries log of the step, or say why they log nothing."""
        case = self._case
        if case.on_gpu or case.mode not in ("eager", "graph"):
            return
        self._tell("log")
        try:
            logs_calls = capabilities.of(case.framework).steps.logs_calls
            if logs_calls and self._operators is None:
                raise UnsupportedError(self._absent["operators"])
            log = log_of(case, self._session, self._calls)
        except PydlbenchError as error:
            self._notes.append(f"no log of layout reorders: {error}")
            return
        self._kernels.append(log.kernel)
        if isinstance(log, CallLog) and self._operators is not None:
            self._group(log, self._operators)
        if log.executions:
            self._log = log
            self._log_visits = self._visits["log"] = LogVisits(log)

    def _group(self, log: CallLog, operators: CallVisits) -> None:
        """Have some calls sums of their own, by what libraries log of them."""
        if log.refused:
            why = next(iter(log.refused.values()))
            self._notes.append(f"log: {len(log.refused)} calls could not be made ready: {why}")
        mapped = {key: one for key, one in self._mapped.items() if key[0] not in operators.refused}
        groups = group_calls(self._calls, mapped, log, self._native.covers)
        if self._model is None:
            log.leave_out(groups[LAYERLESS])
        else:  # its native rows are those of its graph, which has another loss and other updates
            del groups[LAYERLESS]
        operators.groups = groups
        self._native.groups = {
            name: [mapped[one.signature, one.direction] for one in some]
            for name, some in groups.items()
            if name != LAYERLESS
        }

    def _warm(self, case: StepSpec) -> RemoteKernel[StepFacts]:
        how = StepPreparation(checks=False)
        return self._kept(prepare_step(case, self._session, warm=True, preparation=how))

    def _kept(self, kernel: RemoteKernel[Facts]) -> RemoteKernel[Facts]:
        self._kernels.append(kernel)
        return kernel

    # --- laps ---------------------------------------------------------------------------------

    def take(self, most: int, started: float, time_limit_s: float) -> None:
        """Take laps until there are enough, or the time is over.

        Args:
            most: laps.
            started: the moment from which on the time counts, by ``time.monotonic()``.
            time_limit_s: see :func:`check_step`.
        """
        self._time_limit_s, deadline = time_limit_s, started + time_limit_s
        order = random_order(self._session.options.seed)
        self._laps = RungLaps(
            self._visits, order, self._core, watched=self._gpu_clock, inside=self._canary
        )
        taken = self._laps.taken
        beyond = 0
        while len(taken) < max(LEAST, most):
            if len(taken) >= LEAST:
                if settled(taken, self._session.options.confidence):
                    self._ended = "settled"
                    break
                if time.monotonic() > deadline:
                    if beyond == _BEYOND or not refused(taken):
                        self._notes.append(f"{len(taken)} of {most} laps: the time limit")
                        self._ended = "time limit"
                        break
                    beyond += 1
            self._laps.take(functools.partial(self._tell_of, len(taken) + 1))

    def _tell_of(self, lap: int, what: str) -> None:
        self._tell(f"lap {lap}: {what}")

    def _core(self) -> Core:
        if self._coreless:
            return Core()
        try:
            found = self._session.worker("native", "cpu").probe("canary")
        except PydlbenchError:
            self._coreless = True  # each try would start one more process that ends at once
            return Core()
        return Core(found.get("share"), found.get("clock_hz"))

    def _canary(self, name: str) -> float | None:
        """Return what a visit of a name has read of the cores between its own samples."""
        found: float | None = getattr(self._visits[name], "share", None)
        return found

    def _gpu_clock(self, name: str) -> float | None:
        """Return the clock that a GPU had in the last visit of a name."""
        found: float | None = getattr(self._visits[name], "clock_hz", None)
        return found if self._case.on_gpu else None

    # --- what is made of them -----------------------------------------------------------------

    def record(self, seconds: float) -> CheckRecord:
        """Return the record of what was measured.

        Args:
            seconds: that the check took.
        """
        case, laps = self._case, self._laps.taken
        confidence = self._session.options.confidence
        operators = self._operators
        native = self._native.sums()
        said = self._forecast
        terms = () if said is None else said.terms
        stored = {one.signature: one.seconds for one in terms if one.seconds is not None}
        rows: tuple[OperatorRow, ...] = ()
        if operators is not None:
            rows = operators.rows(confidence, stored, self._mapped, self._native.measured())
        tried, notes, faults = self._tried(rows)
        natives = module_parts(rows)
        if self._model is not None:
            natives = native_parts(self._model, native, single=self._single) | natives
        share = known(rows, self._mapped) if self._mapped and rows else None
        found = conclude(
            laps,
            tried,
            self._absent,
            hows={**_HOWS, **DEVICE_HOWS} if case.on_gpu else _HOWS,
            details=self._details(rows, natives, share, median(_of(laps, "step"))),
            outside_s=0.0 if self._chain is None else self._chain.reorder_s,
            calling_s=self._calling_s(),
            fused=computes_together(case, self._calls, self._mapped),
            confidence=confidence,
        )
        return CheckRecord(
            model=case.model,
            options=dict(case.options),
            own=case.own,
            batch=self._facts.batch,
            phase=case.phase,
            precision=case.precision,
            framework=case.framework,
            mode=str(case.mode),
            device=case.device,
            layout=case.layout,
            feed=case.feed,
            library=self._facts.library,
            threads=len(self._session.cpus),
            measured=time_summary(_of(laps, "step"), confidence),
            rungs=found.rungs,
            reasons=found.reasons,
            native_hot=found.native_hot,
            native_cold=found.native_cold,
            additivity_s=self._additivity(faults),
            forecast_s=None if said is None else said.seconds,
            forecast_utc=None if said is None else said.created_utc,
            forecast_parts={} if said is None else _forecast_parts(said),
            step_utc=self._step_utc,
            ledger=found.ledger,
            unexplained_low=found.unexplained[0] if found.unexplained else None,
            unexplained_high=found.unexplained[1] if found.unexplained else None,
            contradictions=found.contradictions,
            laps=tuple(laps),
            ended=self._ended,
            time_limit_s=self._time_limit_s,
            operators=rows,
            lines=self._lines,
            unreplayed=None if operators is None else operators.unreplayed(),
            known=share,
            native_parts=natives,
            faults=faults,
            calibration={
                "once_s": None if operators is None else operators.facts.once_s,
                "dispatch_s": None if operators is None else operators.facts.dispatch_s,
                "packing_s": self._native.reorders("weights"),
                "how": "" if operators is None else operators.facts.how,
            },
            disturbed=found.disturbed,
            types=self._facts.types or None,
            notes=(*self._notes, *notes, *self._native.notes(), *found.fused, *self._outside()),
            seconds=seconds,
        )

    def _tried(
        self, rows: Sequence[OperatorRow]
    ) -> tuple[list[Experiment], list[str], dict[str, float | None]]:
        """Return the experiments, notes on what could not be tried, and what was counted."""
        case, laps, operators = self._case, self._laps.taken, self._operators
        ladder = Ladder.of(laps)
        if case.on_gpu:
            bound = compute_bound(self._mapped, self._native.measured())
            timed = [(one.count * one.seconds, (one.signature, one.direction)) for one in rows]
            share = compute_share([(seconds, key in bound) for seconds, key in timed])
            tried, notes = device_experiments(case, ladder, laps, share)
            blocks = self._counted("step", "allocations")
            notes.append(allocation_note(blocks, median(_of(laps, "step"))))
            seen = {n: one.gpu for n, one in self._visits.items() if isinstance(one, Sampled)}
            notes += power_notes(seen)
            return tried, notes, {"allocations": blocks}
        sides = {"counted": "step", "kept": "step_kept", "played": "blocks"}
        faults = {name: self._counted(visit, "faults") for name, visit in sides.items()}
        tried, notes = experiments(
            case,
            ladder,
            calls=self._calls,
            facts=None if operators is None else operators.facts,
            logged={} if self._log is None else self._log.executions,
            logs="" if self._log is None else self._log.what,
            computed=self._log.computed if isinstance(self._log, CallLog) else 0,
            groups=self._grouped(rows),
            faults=faults,
            reorders_s=() if self._chain is None else self._chain.reorder_runs,
            convolutions=self._convolutions(),
            allocating=self._recorded is None or self._recorded.allocates,
        )
        return tried, notes + (self._log_visits.notes() if self._log_visits else []), faults

    def _grouped(self, rows: Sequence[OperatorRow]) -> dict[str, Group]:
        """Return the calls that have sums of their own, with the operators that stand out."""
        if self._operators is None:
            return {}
        step_s = median(_of(self._laps.taken, "step"))
        timed = {(one.signature, one.direction): one for one in rows}
        found = {}
        for name, some in self._operators.groups.items():
            above: dict[str, float] = {}
            for one in some:
                row = timed.get((one.signature, one.direction))
                if row is not None:
                    longer = row.seconds - (row.native_s or 0.0)
                    above[row.operator] = above.get(row.operator, 0.0) + row.count * longer
            found[name] = Group(sum(one.count for one in some), _named(above, step_s))
        return found

    def _convolutions(self) -> int:
        """Return how many native convolutions stand for those of a step, each for one."""
        return self._native.convolutions if self._single else 0  # else more is in a node

    @property
    def _single(self) -> bool:
        """Whether each call of the step computes one layer."""
        return self._case.mode in capabilities.of(self._case.framework).steps.apart

    def _counted(self, visit: str, what: str) -> float | None:
        """Return ``faults`` or ``allocations`` per execution of a visit: the laps' median."""
        sampled = self._visits.get(visit)
        known = getattr(sampled, what) if isinstance(sampled, Sampled) else []
        return median(known) if known else None

    def _additivity(self, faults: Mapping[str, float | None]) -> float | None:
        """Return the operators and the page faults of the step's blocks, in seconds.

        On a GPU the makespan of what host and device need for them.

        Args:
            faults: page faults per step: ``counted``, with pages ``kept``, and of the blocks
                ``played`` by themselves.
        """
        if self._operators is None:
            return None
        if self._case.on_gpu:
            known = _of(self._laps.taken, "pipeline")  # none where every call was refused
            return median(known) if known else None
        return added_up(self._laps.taken, faults)

    def _details(
        self,
        rows: Sequence[OperatorRow],
        natives: Mapping[str, float],
        share: Known | None,
        step_s: float,
    ) -> dict[str, str]:
        """Return what stands out in a difference, or is not in a rung, by the rung above it."""
        groups = {} if self._operators is None else self._operators.groups
        apart = {(one.signature, one.direction) for name in OTHERS for one in groups.get(name, ())}
        if apart:  # what has a term of its own does not stand out in what is left
            rows = [one for one in rows if (one.signature, one.direction) not in apart]
            natives = {**natives, **module_parts(rows)}
        beside = {
            one.name: one.count * (one.seconds - one.native_s)
            for one in parts_of(rows, natives)
            if one.native_s is not None
        }
        found = {
            "native": _named(self._native.sums().above_roofs(), step_s),
            "operators": _named(beside, step_s),
        }
        if self._model is None and (lacks := self._lacks(share)):
            found["limit"] = lacks
            found["native"] = ", ".join(filter(None, [found["native"], lacks]))
        if self._chain is not None:
            count = len(self._chain.reorders)
            found["native_chain"] = f"{count} reorders, {self._chain.reorder_s * 1e3:.1f} ms in all"
        if (calling_s := self._calling_s()) > _WORTH * step_s:
            ms = f"{calling_s * 1e3:.1f} ms"
            found["operator_chain"] = f"{ms} of it start the calls from Python"
        return found

    def _lacks(self, share: Known | None) -> str:
        """Return which calls are in neither the limit nor the native sum; empty where all are."""
        lost, whole = layerless(self._mapped, self._native.measured())
        if not lost:
            return ""
        words = f"without {lost} of {whole} calls, for which no native layer stands"
        if share is None:
            return words
        return f"{words}: {percent(1 - share.native_time)} of the operators' time"

    def _calling_s(self) -> float:
        """Return what the chain of recorded calls spends on starting them, in seconds."""
        facts = self._recorded
        return 0.0 if facts is None else facts.dispatch_s * sum(one.count for one in facts.calls)

    def _outside(self) -> list[str]:
        packing = self._native.reorders("weights")
        if self._case.phase != "training" or not packing:
            return []
        ms = f"{packing * 1e3:.2f} ms"
        return [f"packing the weights anew, {ms} in a step, is outside of the native sum"]

    def close(self) -> None:
        """Free what workers hold."""
        with releasing(self._kernels):
            pass
        self._apart.close()
        self._memory.close()


def added_up(laps: Sequence[Lap], faults: Mapping[str, float | None]) -> float:
    """Return the seconds of a step's operators and of the page faults of its blocks, on a CPU.

    Blocks that are played by themselves say what a fault costs. How many a step has is counted:
    libraries ask for memory within calls, which is in no list of blocks, and an allocator that has
    learnt to keep pages has fewer. A step without page faults has none of their cost.

    Args:
        laps: at least one, with ``operators`` and ``step``.
        faults: page faults per step: ``counted``, with pages ``kept``, and of the blocks ``played``
            by themselves; where some are unknown, or played blocks had too few to tell what one
            costs, the step has as many as these.
    """
    counted, kept, played = (faults.get(name) for name in ("counted", "kept", "played"))
    times = 1.0
    if counted is not None and kept is not None and played:
        fresh = max(0.0, counted - kept) / played
        times = fresh if fresh <= _MOST_TIMES else 1.0
    if cost_nothing(faults, median(_of(laps, "step"))):
        times = 0.0
    return median(
        lap.seconds["operators"]
        + lap.seconds.get("feed", 0.0)
        + times * max(0.0, lap.seconds.get("blocks", 0.0) - lap.seconds.get("blocks_kept", 0.0))
        for lap in laps
    )


def _of(laps: Sequence[Any], name: str) -> list[float]:
    return [lap.seconds[name] for lap in laps if name in lap.seconds]


def _forecast_parts(said: ForecastRecord) -> dict[str, float]:
    return {"operators": said.operators_s, "faults": said.faults_s or 0.0}


# How many layers a difference's detail names, and the share of the step below which none is worth
# it.
_NAMED = 2
_WORTH = 0.005


def _named(gaps: Mapping[str, float], step_s: float) -> str:
    ranked = sorted(gaps, key=lambda name: abs(gaps[name]), reverse=True)[:_NAMED]
    worth = [name for name in ranked if abs(gaps[name]) > _WORTH * step_s]
    return ", ".join(f"{name or MODEL} {gaps[name] * 1e3:+.1f} ms" for name in worth)
