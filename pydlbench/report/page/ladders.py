"""The ladders of steps, put together from estimates, cross-checks and timed steps.

Times in seconds. The limits and the native layers come from the rows that a run holds, by the
graph of the model; a framework's operators from the parts of a cross-check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydlbench.errors import PydlbenchError
from pydlbench.models.work import LOSS
from pydlbench.report.check_ladder import operators_s
from pydlbench.report.page.cleaning import finite, mapping, objects, positive
from pydlbench.report.page.markup import plain
from pydlbench.report.page.rungs import Ladder, Rung, Segment, undivided
from pydlbench.report.page.throughput import framework_text, options_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pydlbench.models.graph import Model
    from pydlbench.models.work import Work
    from pydlbench.report.page.runs import CheckEntry, PageRun
    from pydlbench.results import Measurement

__all__ = ["ladders"]

OPTIMIZER: Final = "optimizer"


def ladders(runs: Sequence[PageRun]) -> list[Ladder]:
    """Return a ladder for each step that runs know something of; machines are never mixed."""
    found: dict[tuple[str, ...], Ladder] = {}
    for run in runs:
        for one in run.estimates:
            _merge(found, run, one, _of_estimate(run, one))
        for check in run.checks:
            if check.record is not None:
                _merge(found, run, check.document, _of_check(run, check))
    for run in runs:
        for step in run.steps:
            case, record = step.record.case, step.record
            words = (case.model, case.batch, case.phase, case.precision, options_text(case.options))
            key = _key(run, words)
            if key in found and record.time is not None:
                who = f"step, {framework_text(case)}, e2e"
                if who in {one.name for one in found[key].rungs}:
                    who = f"{who}, run {run.number}"
                time = record.time
                found[key].rungs.append(
                    undivided(who, time.median, run.number, time.ci_low, time.ci_high)
                )
    return [one for one in found.values() if one.rungs]


def _key(run: PageRun, words: Iterable[Any]) -> tuple[str, ...]:
    """What makes a step the same step: the machine, and what is run on it."""
    return (run.machine, *(plain(word, 40) for word in words))


def _merge(
    found: dict[tuple[str, ...], Ladder],
    run: PageRun,
    document: Mapping[str, Any],
    rungs: Iterable[Rung],
) -> None:
    words = [document.get(name) for name in ("model", "batch", "phase", "precision")]
    # A variant of a model is another model.
    key = _key(run, [*words, options_text(mapping(document.get("options")))])
    _, model, batch, phase, precision, variant = key
    title = f"{model}  {variant}  batch {batch}  {phase}  {precision}"
    ladder = found.setdefault(key, Ladder(title=title[:110]))
    known = {one.name: one.source for one in ladder.rungs}
    for rung in rungs:
        if rung.segments and rung.name not in known:
            ladder.rungs.append(rung)
        elif rung.segments and run.number not in (known[rung.name], *ladder.left):
            ladder.left.append(run.number)


def _of_estimate(run: PageRun, document: Mapping[str, Any]) -> Iterator[Rung]:
    layers = objects(document.get("layers"))
    named = [one for one in layers if positive(one.get("time_s"))]
    sums = _node_sums(run, document)
    yield Rung(name="theoretical", segments=_segments(sums, "theoretical"), source=run.number)

    def segments(key: str) -> tuple[Segment, ...]:
        return tuple(
            Segment(
                plain(one.get("name"), 40),
                plain(one.get("kind"), 20),
                positive(one.get(key)) or positive(one["time_s"]) or 0.0,
            )
            for one in named
        )

    yield Rung(name="measured roof", segments=segments("roof_s"), source=run.number)
    ends = mapping(document.get("estimate"))
    yield Rung(
        name="native layers",
        segments=segments("time_s"),
        low=finite(ends.get("low")),
        high=finite(ends.get("high")),
        source=run.number,
    )


def _of_check(run: PageRun, check: CheckEntry) -> Iterator[Rung]:
    record = check.record
    assert record is not None  # the caller has looked
    sums = _node_sums(run, check.document)
    told = mapping(check.document.get("ladder"))
    for name, key in (("theoretical", "theoretical_s"), ("measured roof", "roof_s")):
        which = "theoretical" if name == "theoretical" else "roof"
        divided = _segments(sums, which)
        total = positive(told.get(key))
        if divided:
            yield Rung(name=name, segments=divided, source=run.number)
        elif total:
            yield undivided(name, total, run.number)
    native = _segments(sums, "native")
    low, high = record.native_low_s, record.native_high_s
    if native:
        yield Rung(name="native layers", segments=native, low=low, high=high, source=run.number)
    elif high > 0:
        yield undivided("native layers", (low + high) / 2, run.number, low, high)
    kinds = _kinds(check.document)
    pieces = tuple(
        Segment(
            plain(one.name if one.count == 1 else f"{one.name} x{one.count}", 40),
            kinds.get(one.nodes[0], one.kind) if one.nodes else one.kind,
            one.count * one.seconds,
        )
        for one in record.pieces
        if positive(one.seconds)
    )
    rest = operators_s(record) - sum(one.seconds for one in pieces)
    if rest > 0.005 * record.measured.median:
        pieces = (*pieces, Segment("rest", "other", rest))
    yield Rung(name=f"operators, {check.who}", segments=pieces, source=run.number)
    time = record.measured
    yield undivided(f"step, {check.who}", time.median, run.number, time.ci_low, time.ci_high)


def _model(document: Mapping[str, Any]) -> Model | None:
    """The graph, if the document's words describe one that exists here."""
    from pydlbench.models import build_model

    options, batch = document.get("options"), positive(document.get("batch"))
    try:
        chosen = {str(k): v for k, v in options.items()} if isinstance(options, dict) else {}
        return build_model(str(document.get("model")), int(batch) if batch else None, **chosen)
    except (PydlbenchError, TypeError, ValueError):
        return None  # a model of another version of pydlbench: its rungs stay undivided


def _kinds(document: Mapping[str, Any]) -> dict[str, str]:
    model = _model(document)
    if model is None:
        return {}
    return {node.name: node.layer.kind for node in model.nodes if node.layer is not None}


def _node_sums(
    run: PageRun, document: Mapping[str, Any]
) -> dict[tuple[str, str], dict[str, float]]:
    """Seconds by node and kind: ``theoretical``, ``roof`` and ``native``; empty if unknown."""
    from pydlbench.models.work import work

    model = _model(document)
    phase = document.get("phase")
    if model is None or not run.rows or not run.whole:
        return {}
    if len({row.threads for row in run.timed if row.backend == "native"}) > 1:
        return {}  # of a sweep: which rows are this step's is not known
    hot, cold = (_by_problem(run.timed, document, one) for one in (True, False))
    kinds = {node.name: node.layer.kind for node in model.nodes if node.layer is not None}
    found: dict[tuple[str, str], dict[str, float]] = {}
    try:
        parts = work(model, str(phase))
    except PydlbenchError:
        return {}
    for one in parts:
        key = (one.layer.problem, one.pass_, one.propagation)
        row = hot.get(key)
        if row is None or row.time is None:
            continue  # it failed; the estimate's own record says so
        other = cold.get(key, row).time
        median = row.time.median
        sums = found.setdefault(_place(one, kinds), {})
        _add(sums, "native", (median + (other.median if other else median)) / 2)
        _add(sums, "roof", row.roofline.time_s if row.roofline else median)
        if row.peak.theoretical and row.flops_executed:
            _add(sums, "theoretical", row.flops_executed / (row.peak.theoretical * 1e12))
    return found


def _by_problem(
    rows: Iterable[Measurement], document: Mapping[str, Any], hot: bool
) -> dict[tuple[str, str, str], Measurement]:
    return {
        (row.problem, row.pass_, row.propagation): row
        for row in rows
        if (row.cache == "hot") is hot
        and row.backend == "native"
        and row.precision == document.get("precision")
        and row.device == document.get("device", row.device)
    }


def _place(part: Work, kinds: Mapping[str, str]) -> tuple[str, str]:
    last = (part.layer.name or "").rpartition("/")[2]
    if part.node == LOSS or last == "l2":
        return "loss", "pointwise"
    if last == "update":
        return OPTIMIZER, "pointwise"
    return part.node, kinds.get(part.node, "pointwise")


def _add(sums: dict[str, float], key: str, seconds: float) -> None:
    sums[key] = sums.get(key, 0.0) + seconds


def _segments(sums: Mapping[tuple[str, str], Mapping[str, float]], key: str) -> tuple[Segment, ...]:
    return tuple(
        Segment(plain(name, 40), kind, found[key])
        for (name, kind), found in sums.items()
        if found.get(key)
    )
