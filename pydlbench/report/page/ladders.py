"""The ladders of steps, put together from estimates, checks and timed steps. Times in seconds.

The limits and the native layers are summed from the rows that a run holds, by the graph of the
model; a framework's operators come from its check. What no layer can be charged with stays in one
piece: a measured step is never spread over layers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from pydlbench.errors import PydlbenchError
from pydlbench.ladder.native import roof_s, rungs_by_owner, theoretical_s
from pydlbench.ladder.parts import parts_of
from pydlbench.records.step import framework_text, options_text
from pydlbench.report.columns import AXES, axis_values, label
from pydlbench.report.page.plain import plain
from pydlbench.report.page.runs import node_name, positive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pydlbench.ladder.native import NativeRungs, Owner
    from pydlbench.models.graph import Model
    from pydlbench.records.check import CheckRecord, CheckResult
    from pydlbench.records.estimate import EstimatedLayer, StepEstimate
    from pydlbench.records.measurement import Measurement, TimeSummary
    from pydlbench.records.step import StepSpec
    from pydlbench.report.page.runs import PageRun


_WHOLE: Final = "whole"


@dataclass(frozen=True, slots=True)
class Segment:
    """A layer's part: its name, its kind and its seconds."""

    name: str
    kind: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnRung:
    """One rung.

    Attributes:
        name: what it is.
        segments: by layer, in the model's order; a single one of kind ``whole`` where the time
            belongs to no layer.
        low: lower end of its interval; None if there is none.
        high: upper end.
        source: the run that it comes from.
        contended: other work disturbed some of what it is made of.
    """

    name: str
    segments: tuple[Segment, ...]
    low: float | None = None
    high: float | None = None
    source: int = 1
    contended: bool = False

    @property
    def seconds(self) -> float:
        """All of it."""
        return sum(one.seconds for one in self.segments)

    @property
    def divided(self) -> bool:
        """Whether layers can be told apart in it."""
        return not (len(self.segments) == 1 and self.segments[0].kind == _WHOLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnLadder:
    """The rungs of one step, or of what several layers add up to.

    Attributes:
        title: which step.
        rungs: from what physics needs to what was measured.
        step: whether it is a model's step, every occurrence of a layer counted.
        left: numbers of runs that have rungs which an earlier run has too: these are not in it.
    """

    title: str
    rungs: list[DrawnRung] = field(default_factory=list)
    step: bool = True
    left: list[int] = field(default_factory=list)


def undivided(
    name: str, seconds: float, source: int, low: float | None = None, high: float | None = None
) -> DrawnRung:
    """Return a rung of one piece."""
    segment = Segment("whole step, in one piece", _WHOLE, seconds)
    return DrawnRung(name=plain(name, 40), segments=(segment,), low=low, high=high, source=source)


# -----------------------------------------------------------------------------
# What the layers of a run add up to, by backend. Times in seconds.

# What makes it another sum besides batch, precision and caches; named where rows differ in it.
_OWN: Final = ("device", "threads", "fuse", "layout")


def layer_sums(runs: Sequence[PageRun]) -> Iterator[DrawnLadder]:
    """Yield what the layers of a run add up to where they belong to one model, by backend.

    Only layers that every backend has timed are in the sums.
    """
    for run in runs:
        if run.info.kind not in ("layers", "sweep") or len(run.models) != 1 or not run.whole:
            continue
        differ = [axis for axis in _OWN if len(axis_values(run.timed, axis)) > 1]
        groups: dict[tuple[Any, ...], list[Measurement]] = {}
        for row in run.timed:
            key = (row.batch, row.precision, row.cache, *(AXES[axis](row) for axis in _OWN))
            groups.setdefault(key, []).append(row)
        for (batch, precision, cache, *_), rows in groups.items():
            rungs = _sums(run, rows)
            names = {row.layer for row in rows}
            if rungs and len(names) > 1:
                passes = ", ".join(dict.fromkeys(row.pass_ for row in rows))
                title = f"{run.models[0]}  batch {batch}  {passes}  {precision}  {cache} cache"
                told = label(rows[0], differ).removeprefix(rows[0].layer).strip()
                title += f"  {told}" if told else ""
                yield DrawnLadder(title=title[:110], rungs=rungs, step=False)


def _sums(run: PageRun, rows: Sequence[Measurement]) -> list[DrawnRung]:
    """Limits by the first backend's rows, then every backend."""
    backends = list(dict.fromkeys(row.who for row in rows))
    by_problem: dict[tuple[str, str, str, str], dict[str, Measurement]] = {}
    for row in rows:
        key = (row.layer, row.problem, row.pass_, row.propagation)
        by_problem.setdefault(key, {})[row.who] = row
    # Only what all of them can do may be added up and compared.
    common = [group for group in by_problem.values() if all(who in group for who in backends)]
    if not common:
        return []
    lead = "native" if "native" in backends else backends[0]
    first = [group[lead] for group in common]

    def rung(name: str, times: Sequence[tuple[Measurement, float | None]]) -> DrawnRung:
        sums: dict[tuple[str, str], float] = {}
        for row, seconds in times:
            key = (plain(node_name(row.layer), 40), row.kind)
            sums[key] = sums.get(key, 0.0) + (seconds or 0.0)
        parts = tuple(Segment(*key, seconds) for key, seconds in sums.items() if seconds > 0)
        # The limits are computed, whatever ran beside them.
        disturbed = any(row.contended for row, _ in times) and name in backends
        return DrawnRung(
            name=plain(name, 40), segments=parts, source=run.number, contended=disturbed
        )

    found = [
        rung("theoretical", [(row, theoretical_s(row)) for row in first]),
        rung("measured roof", [(row, roof_s(row)) for row in first]),
    ]
    for who in backends:
        times = [(group[who], group[who].time) for group in common]
        found.append(rung(who, [(row, time.median if time else None) for row, time in times]))
    return [one for one in found if one.segments]


# -----------------------------------------------------------------------------
# Images per second of whole steps, wherever a run has measured one.


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """One framework's step.

    Attributes:
        model: its name, with the options of a variant.
        batch: images per step.
        phase: ``forward``, ``forward-backward`` or ``training``.
        precision: of the products.
        who: framework and mode, with what is not as by default.
        device: ``cpu`` or ``cuda:N``.
        machine: product name of the processor.
        seconds: of a step, the median.
        low: images per second at the slow end of the interval; None without one.
        high: at the fast end.
        n: samples, or rounds.
        contended: other work disturbed it.
        run: number of the run.
    """

    model: str
    batch: int
    phase: str
    precision: str
    who: str
    device: str
    machine: str
    seconds: float
    low: float | None
    high: float | None
    n: int
    contended: bool
    run: int

    @property
    def images_per_s(self) -> float:
        """Images over the median."""
        return self.batch / self.seconds


def rates(runs: Sequence[PageRun]) -> list[Rate]:
    """Return the steps of ``step``, ``check`` and ``diagnose``, in the order of the runs."""
    found = []
    for run in runs:
        for step in run.steps:
            case, record = step.record.case, step.record
            if record.time is None or not record.ok or not case.batch:
                continue
            model = f"{case.model} {options_text(case.options)}".strip()
            words = (model, case.phase, case.precision, framework_text(case.to_dict()), case.device)
            found.append(_rate(run, words, case.batch, record.time, record.contended))
        for check in run.checks:
            one = check.record
            if one is not None and one.batch:
                model = f"{one.model} {options_text(one.options)}".strip()
                words = (model, one.phase, one.precision, framework_text(check.to_dict()), "cpu")
                found.append(_rate(run, words, one.batch, one.measured, contended=one.disturbed))
    return found


def _rate(
    run: PageRun,
    words: tuple[str | None, ...],
    batch: int,
    time: TimeSummary,
    contended: bool,
) -> Rate:
    model, phase, precision, who, device = (plain(word, 60) for word in words)
    low, high = positive(time.ci_low), positive(time.ci_high)
    return Rate(
        model=model,
        batch=batch,
        phase=phase,
        precision=precision,
        who=who,
        device=device,
        machine=run.machine,
        seconds=time.median,
        low=batch / high if low and high else None,
        high=batch / low if low and high else None,
        n=time.n,
        contended=contended,
        run=run.number,
    )


# -----------------------------------------------------------------------------
# The ladders of steps.


def ladders(runs: Sequence[PageRun]) -> list[DrawnLadder]:
    """Return a ladder for each step that runs know something of; machines are never mixed."""
    found: dict[tuple[str, ...], DrawnLadder] = {}
    for run in runs:
        for one in run.estimates:
            _merge(found, run, one, _of_estimate(run, one))
        for check in run.checks:
            if check.record is not None:
                _merge(found, run, check.record, _of_check(run, check, check.record))
    for run in runs:
        for step in run.steps:
            case, record = step.record.case, step.record
            key = _key(run, case)
            if key in found and record.time is not None:
                who = f"step, {framework_text(case.to_dict())}, step"
                if who in {one.name for one in found[key].rungs}:
                    who = f"{who}, run {run.number}"
                time = record.time
                rung = undivided(who, time.median, run.number, time.ci_low, time.ci_high)
                found[key].rungs.append(replace(rung, contended=record.contended))
    return [one for one in found.values() if one.rungs]


def _key(run: PageRun, step: StepSpec | StepEstimate | CheckRecord) -> tuple[str, ...]:
    """What makes a step the same step: the machine, and what is run on it."""
    # A variant of a model is another model.
    words = (step.model, step.batch, step.phase, step.precision, options_text(step.options))
    return (run.machine, *(plain(word, 40) for word in words))


def _merge(
    found: dict[tuple[str, ...], DrawnLadder],
    run: PageRun,
    step: StepEstimate | CheckRecord,
    rungs: Iterable[DrawnRung],
) -> None:
    key = _key(run, step)
    _, model, batch, phase, precision, variant = key
    title = f"{model}  {variant}  batch {batch}  {phase}  {precision}"
    ladder = found.setdefault(key, DrawnLadder(title=title[:110]))
    known = {one.name: one.source for one in ladder.rungs}
    for rung in rungs:
        if rung.segments and rung.name not in known:
            ladder.rungs.append(rung)
        elif rung.segments and run.number not in (known[rung.name], *ladder.left):
            ladder.left.append(run.number)


def _of_estimate(run: PageRun, record: StepEstimate) -> Iterator[DrawnRung]:
    theory = _segments(_native_rungs(run, record), lambda one: one.theoretical_s, _kinds(record))
    yield DrawnRung(name="theoretical", segments=theory, source=run.number)

    def segments(seconds: Callable[[EstimatedLayer], float | None]) -> tuple[Segment, ...]:
        return tuple(
            Segment(plain(one.name, 40), plain(one.kind, 20), seconds(one) or one.time_s)
            for one in record.layers
        )

    roofs = segments(lambda one: one.roof_s)
    yield DrawnRung(name="measured roof", segments=roofs, source=run.number)
    yield DrawnRung(
        name="native layers",
        segments=segments(lambda one: one.time_s),
        low=record.estimate.low,
        high=record.estimate.high,
        source=run.number,
        contended=_disturbed(run, record),
    )


def _of_check(run: PageRun, check: CheckResult, record: CheckRecord) -> Iterator[DrawnRung]:
    """Yield the rungs that a check knows, and none that was refused."""
    who = plain(framework_text(check.to_dict()), 60)
    sums, kinds = _native_rungs(run, record), _kinds(record)
    theory = _segments(sums, lambda one: one.theoretical_s, kinds)
    if theory:
        yield DrawnRung(name="theoretical", segments=theory, source=run.number)
    operators = tuple(
        Segment(
            plain(one.name if one.count == 1 else f"{one.name} x{one.count}", 40),
            kinds.get(one.name.partition("..")[0], one.kind),
            one.total_s,
        )
        for one in parts_of(record.operators, record.native_parts)
        if positive(one.seconds) and one.kind != "feed"
    )
    parts = {
        "limit": ("measured roof", _segments(sums, lambda one: one.roof_s, kinds)),
        "native": ("native layers", _segments(sums, lambda one: one.time.middle, kinds)),
        "native_chain": ("native chain", ()),
        "operators": (f"operators, {who}", operators),
        "operator_chain": (f"operator chain, {who}", ()),
        "step": (f"step, {who}", ()),
    }
    # Without a graph, calls that no layer stands for are in neither of the lowest rungs.
    of = "" if record.own is None else ", calls with a native layer"
    for name, rung in record.rungs.known().items():
        title, segments = parts[name]
        title += of if name in ("limit", "native") else ""
        low, high = rung.ci_low, rung.ci_high
        if name == "native" and record.native_hot and record.native_cold:
            low, high = sorted((record.native_hot.median, record.native_cold.median))
        if segments:
            # Divided as the rows are; as long as what was visited in the laps.
            pace = rung.median / sum(one.seconds for one in segments)
            segments = tuple(replace(one, seconds=pace * one.seconds) for one in segments)
            found = DrawnRung(name=title, segments=segments, low=low, high=high, source=run.number)
        else:
            found = undivided(title, rung.median, run.number, low, high)
        disturbed = record.disturbed or (name == "native" and _disturbed(run, record))
        yield replace(found, contended=disturbed)


def _disturbed(run: PageRun, step: StepEstimate | CheckRecord) -> bool:
    """Whether other work disturbed a native row of the step."""
    rows = [_by_problem(run.timed, step, hot).values() for hot in (True, False)]
    return any(row.contended for some in rows for row in some)


def _model(step: StepEstimate | CheckRecord) -> Model | None:
    """The graph, if the step's words describe one that exists here."""
    from pydlbench.models import build_model

    try:
        return build_model(step.model, step.batch or None, **step.options)
    except (PydlbenchError, TypeError, ValueError):
        return None  # a model of another version of pydlbench: its rungs stay undivided


def _kinds(step: StepEstimate | CheckRecord) -> dict[str, str]:
    model = _model(step)
    if model is None:
        return {}
    return {node.name: node.layer.kind for node in model.nodes if node.layer is not None}


def _native_rungs(run: PageRun, step: StepEstimate | CheckRecord) -> dict[Owner, NativeRungs]:
    """Sum the run's native rows of a step by their place in it; empty where that is not known."""
    from pydlbench.models.passes import step_passes

    model = _model(step)
    if model is None or not run.rows or not run.whole:
        return {}
    if len({row.threads for row in run.timed if row.backend == "native"}) > 1:
        return {}  # of a sweep: which rows are this step's is not known
    hot, cold = (_by_problem(run.timed, step, one) for one in (True, False))
    try:
        parts = step_passes(model, step.phase)
    except PydlbenchError:
        return {}
    keys = [(one, (one.layer.problem, one.pass_, one.propagation)) for one in parts]
    # A row that failed is none of the timed ones; the estimate's own record says so.
    return rungs_by_owner(
        (one, hot[key], cold.get(key, hot[key])) for one, key in keys if key in hot
    )


def _by_problem(
    rows: Iterable[Measurement], step: StepEstimate | CheckRecord, hot: bool
) -> dict[tuple[str, str, str], Measurement]:
    device = getattr(step, "device", "")  # a check has none: it runs on the CPU
    return {
        (row.problem, row.pass_, row.propagation): row
        for row in rows
        if (row.cache == "hot") is hot
        and row.backend == "native"
        and row.precision == step.precision
        and row.device == (device or row.device)
    }


def _segments(
    sums: Mapping[Owner, NativeRungs],
    seconds: Callable[[NativeRungs], float | None],
    kinds: Mapping[str, str],
) -> tuple[Segment, ...]:
    """Return a segment for each node, its sums of gradients in it, the loss and the optimizer."""
    found: dict[tuple[str, str], float] = {}
    for place, one in sums.items():
        whole = place.part in ("loss", "optimizer")
        name = place.part if whole else place.node
        kind = "pointwise" if whole else kinds.get(name, "pointwise")
        found[name, kind] = found.get((name, kind), 0.0) + (seconds(one) or 0.0)
    return tuple(Segment(plain(name, 40), kind, s) for (name, kind), s in found.items() if s)
