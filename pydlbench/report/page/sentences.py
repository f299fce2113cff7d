"""The conclusions of a run: the sentences that its command prints in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydlbench.records.step import framework_text, options_text
from pydlbench.report.page.plain import UNREADABLE, dotted, plain
from pydlbench.report.verdicts import conclude_run, disturbance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pydlbench.ladder.estimate import Estimate
    from pydlbench.records.documents import AgreementRow
    from pydlbench.records.estimate import StepEstimate
    from pydlbench.records.measurement import Measurement
    from pydlbench.report.e2e import StepRow
    from pydlbench.report.page.runs import PageRun

# Of a run with whole steps the rows are parts, and their sum is no conclusion.
_OF_PARTS = ("estimate", "check", "diagnose")


class Conclusion:
    """What is concluded from (a part of) a run.

    Attributes:
        about: what was run.
        lines: sentences; the first one is to be remembered.
    """

    def __init__(self, about: str, lines: Iterable[str]) -> None:
        self.about = plain(dotted(about), 160)
        self.lines = [plain(line) for line in lines]


def conclusions(run: PageRun) -> list[Conclusion]:
    """Return the conclusions of a run; values that are in the way are named instead."""
    found: list[Conclusion] = []
    parts: tuple[Callable[[PageRun], Iterator[Conclusion]], ...] = (
        _diagnoses,
        _checks,
        _forecasts,
        _estimates,
        _steps,
        _protocols,
        _layers,
        _fleet,
    )
    for part in parts:
        try:
            found.extend(part(run))
        except UNREADABLE as error:
            why = f"{type(error).__name__}: {plain(error, 100)}"
            found.append(
                Conclusion(
                    run.info.kind, [f"no conclusion: the run holds unusable values ({why})."]
                )
            )
    return found or [Conclusion(run.info.kind, ["nothing was measured in this run."])]


def _layers(run: PageRun) -> Iterator[Conclusion]:
    if not run.rows or run.info.kind in _OF_PARTS:
        return
    if not run.whole:
        yield _of_many(run)
        return
    from pydlbench.report.columns import heading

    about = "  ".join(heading(run.record, run.timed or run.rows)[:1])
    lines = conclude_run(run.record, run.rows)
    # In a terminal the reasons are printed before the conclusion.
    yield Conclusion(about, [line.replace("stand above.", "stand below.") for line in lines])


def _of_many(run: PageRun) -> Conclusion:
    """A part of the rows allows no conclusion: which is fastest may be among the others."""
    timed = len(run.timed) + run.left_timed
    total = len(run.rows) + run.left_timed + run.left_untimed
    lines = [f"{timed} of {total} rows have a time: no sentence holds for so many.", run.part]
    lines.append("pydlbench export has all of them; pydlbench compare judges them row by row.")
    return Conclusion(f"{run.info.kind}, {total} rows", filter(None, lines))


def _estimates(run: PageRun) -> Iterator[Conclusion]:
    from pydlbench.report.model import model_conclusion
    from pydlbench.units import format_seconds

    for record in run.estimates:
        estimate = _estimate(record)
        lines = model_conclusion(estimate, _native(run)) if estimate.layers else []
        if estimate.layers and estimate.time.middle > 0:
            low, high = estimate.time.low, estimate.time.high
            middle, rate = format_seconds(estimate.time.middle), estimate.images_per_s
            caches = f"{format_seconds(low)} with hot caches to {format_seconds(high)} with cold"
            whole = f"estimate of a step from its layers: {middle}, {caches}, {rate:.4g} images/s."
            disturbed = len(disturbance(_native(run)))
            lines[disturbed:disturbed] = [whole]
        if record.missing:
            lines.append(f"{len(record.missing)} parts could not be measured and are in no sum.")
        yield Conclusion(_step(record), lines or ["nothing was measured in this run."])


def _native(run: PageRun) -> list[Measurement]:
    """Return the rows that a step's estimate and a check's ledger are sums of."""
    return [row for row in run.timed if row.backend == "native"]


def _checks(run: PageRun) -> Iterator[Conclusion]:
    from pydlbench.report.check import check_conclusion, errors_line, summary_parts

    for check in run.checks:
        record = check.record
        if record is None:
            reason = f"{framework_text(check.to_dict())} {check.status}: {check.reason}"
            yield Conclusion(_step(check), [reason])
            continue
        what, figures = summary_parts(record)
        native = _native(run)
        *sentences, following = check_conclusion(record, native)
        disturbed = len(disturbance(native))
        sentences[disturbed:disturbed] = [f"{', '.join(figures.split('   '))}."]
        yield Conclusion(what, [*sentences, f"{errors_line(record)}.", following])


def _forecasts(run: PageRun) -> Iterator[Conclusion]:
    from pydlbench.records.forecast import ForecastRecord
    from pydlbench.report.forecast import dominating, refused_line, sources, summary_parts

    for one in run.forecasts:
        if not isinstance(one, ForecastRecord):
            yield Conclusion("forecast", [refused_line(one)])
            continue
        what, figures = summary_parts(one)
        missing = [f"not whole: {one.reason}"] if one.reason else []
        lines = [f"{', '.join(figures.split('   '))}.", f"{sources(one)}.", f"{dominating(one)}."]
        yield Conclusion(what, [*lines, *missing])


def _steps(run: PageRun) -> Iterator[Conclusion]:
    if not run.steps or run.info.kind == "diagnose":
        return
    from pydlbench.report.e2e import conclude as conclude_steps
    from pydlbench.report.e2e import settings

    by_setting: dict[str, list[StepRow]] = {}
    for setting, one in zip(settings([one.record for one in run.steps]), run.steps, strict=True):
        by_setting.setdefault(setting, []).append(one)
    for setting, rows in by_setting.items():
        lines = [*conclude_steps(rows), *map(_agreement, run.agreements)]
        yield Conclusion(setting, [line.replace("stand above.", "stand below.") for line in lines])


def _protocols(run: PageRun) -> Iterator[Conclusion]:
    for one in run.protocols:
        printed = "what the published script prints; it has no figures here."
        yield Conclusion(_step(one), [f"{one.protocol}: {printed}"])


def _fleet(run: PageRun) -> Iterator[Conclusion]:
    from pydlbench.report.fleet import fleet_conclusion

    if run.fleet is not None:
        yield Conclusion(f"fleet of {len(run.fleet.nodes)} nodes", fleet_conclusion(run.fleet))


def _agreement(found: AgreementRow) -> str:
    what = f"batch {found.batch}, {found.phase}"
    return f"agreement of the frameworks, {what}: {found.status}: {plain(found.detail)}"


def _diagnoses(run: PageRun) -> Iterator[Conclusion]:
    from pydlbench.report.diagnose import headline

    for found in run.findings:
        following = [f"next: {one.next}" for one in found.findings[:1]]
        yield Conclusion(_step(found.step.case), [headline(found), *following])


def _step(one: Any) -> str:
    """Name what a conclusion is about: a step, however much its record says of it."""
    names = ("model", "batch", "phase", "precision", "framework", "mode")
    told = {name: getattr(one, name, None) for name in names}
    told["batch"] = None if told["batch"] is None else f"batch {told['batch']}"
    words = [plain(value) for value in told.values() if value is not None]
    words.append(options_text(one.options))
    if threads := getattr(one, "threads", None):
        words.append(f"{threads} thread{'' if threads == 1 else 's'}")
    return "  ".join(filter(None, words))


def _estimate(record: StepEstimate) -> Estimate:
    """Return the estimate that a record was made of, as far as a conclusion needs it."""
    from pydlbench.ladder.dominance import Dominance
    from pydlbench.ladder.estimate import Estimate, LayerShare, Range

    layers = tuple(
        LayerShare(
            name=plain(one.name, 60),
            kind=plain(one.kind, 30),
            time=Range(hot=one.low or one.time_s, cold=one.high or one.time_s),
            roof_s=one.roof_s,
            bound=one.bound,
            share=one.share,
            by_pass={},
            algorithms={},
            like=one.like,  # compared, never shown
            contended=one.contended,
        )
        for one in record.layers
    )
    told = record.estimate
    time = Range(hot=told.hot_s or told.time_s, cold=told.cold_s or told.time_s)
    share = record.dominant_share
    leads = None
    if share is not None:
        leads = Dominance(
            name=str(record.dominant),
            share=share["median"],
            ci_low=share.get("ci_low"),
            ci_high=share.get("ci_high"),
            confidence=share.get("confidence", 0.95),
            rivals=tuple(plain(name, 60) for name in record.dominant_rivals),
        )
    return Estimate(
        time=time,
        half_width_s=told.half_width_s,
        batch=record.batch,
        layers=layers,
        disturbed=record.disturbed_share,
        leads=leads,
    )
