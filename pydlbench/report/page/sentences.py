"""The conclusions of a run: the sentences that its command prints in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydlbench.report.page.blocks import UNREADABLE, dotted, plain
from pydlbench.report.page.ladders import options_text
from pydlbench.report.page.runs import finite, mapping, objects, positive
from pydlbench.report.verdicts import conclude, disturbance, measured_peaks, sum_is_disturbed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pydlbench.ladder.estimate import Estimate
    from pydlbench.report.page.runs import CheckEntry, PageRun

__all__ = ["Conclusion", "conclusions"]

# Of a run with whole steps the rows are parts, and their sum is no conclusion.
_OF_PARTS = ("model", "check", "diagnose")


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
        _estimates,
        _steps,
        _protocols,
        _layers,
    )
    for part in parts:
        try:
            found.extend(part(run))
        except UNREADABLE as error:
            why = f"{type(error).__name__}: {plain(error, 100)}"
            found.append(
                Conclusion(run.kind, [f"no conclusion: the run holds unusable values ({why})."])
            )
    return found or [Conclusion(run.kind, ["nothing was measured in this run."])]


def _layers(run: PageRun) -> Iterator[Conclusion]:
    if not run.rows or run.kind in _OF_PARTS:
        return
    if not run.whole:
        yield _of_many(run)
        return
    from pydlbench.report.columns import heading

    about = "  ".join(heading(run.record, run.timed or run.rows)[:1])
    lines = conclude(run.rows, measured_peaks(run.record.device))
    # In a terminal the reasons are printed before the conclusion.
    yield Conclusion(about, [line.replace("stand above.", "stand below.") for line in lines])


def _of_many(run: PageRun) -> Conclusion:
    """A part of the rows allows no conclusion: which is fastest may be among the others."""
    timed = len(run.timed) + run.left_timed
    total = len(run.rows) + run.left_timed + run.left_untimed
    lines = [f"{timed} of {total} rows have a time: no sentence holds for so many.", run.part]
    lines.append("pydlbench export has all of them; pydlbench compare judges them row by row.")
    return Conclusion(f"{run.kind}, {total} rows", filter(None, lines))


def _estimates(run: PageRun) -> Iterator[Conclusion]:
    from pydlbench.report.model import model_conclusion
    from pydlbench.units import format_seconds

    for document in run.estimates:
        estimate = _estimate(document)
        caveat = _caveat(run)
        lines = [] if caveat else model_conclusion(estimate)
        if estimate.layers and estimate.time.middle > 0:
            low, high = estimate.time.low, estimate.time.high
            middle, rate = format_seconds(estimate.time.middle), estimate.images_per_s
            caches = f"{format_seconds(low)} with hot caches to {format_seconds(high)} with cold"
            whole = f"estimate of a step from its layers: {middle}, {caches}, {rate:.4g} images/s."
            lines = [*caveat, whole, *lines]
        missing = len(objects(document.get("missing")))
        if missing:
            lines.append(f"{missing} parts could not be measured and are in no sum.")
        yield Conclusion(_step(document), lines or ["nothing was measured in this run."])


def _caveat(run: PageRun) -> list[str]:
    """Return what to say of a step first where disturbed rows have too large a part in its sum."""
    native = [row for row in run.timed if row.backend == "native"]
    return disturbance(native) if sum_is_disturbed(native) else []


def _checks(run: PageRun) -> Iterator[Conclusion]:
    from pydlbench.report.check import check_conclusion, errors_line, summary_parts

    for check in run.checks:
        record = check.record
        if record is None:
            yield Conclusion(_step(check.document), [_refused(check)])
            continue
        what, figures = summary_parts(record)
        *sentences, following = check_conclusion(record)
        caveat = _caveat(run)  # the native rows are terms of the ledger
        lines = [*caveat, f"{', '.join(figures.split('   '))}.", *([] if caveat else sentences)]
        yield Conclusion(what, [*lines, f"{errors_line(record)}.", following])


def _refused(check: CheckEntry) -> str:
    document = check.document
    return f"{check.who} {document.get('status')}: {plain(document.get('reason'))}"


def _steps(run: PageRun) -> Iterator[Conclusion]:
    if not run.steps or run.kind == "diagnose":
        return
    from pydlbench.report.e2e import StepRow, settings
    from pydlbench.report.e2e import conclude as conclude_steps

    by_setting: dict[str, list[StepRow]] = {}
    for setting, one in zip(settings([one.record for one in run.steps]), run.steps, strict=True):
        row = StepRow(record=one.record, title=one.record.case.model, flops=one.flops)
        by_setting.setdefault(setting, []).append(row)
    for setting, rows in by_setting.items():
        lines = [*conclude_steps(rows), *map(_agreement, run.agreements)]
        yield Conclusion(setting, [line.replace("stand above.", "stand below.") for line in lines])


def _protocols(run: PageRun) -> Iterator[Conclusion]:
    for document in run.protocols:
        what = plain(document.get("protocol"))
        yield Conclusion(
            _step(document), [f"{what}: what the published script prints; it has no figures here."]
        )


def _agreement(found: Mapping[str, Any]) -> str:
    words = [plain(found.get(name)) for name in ("batch", "phase", "status", "detail")]
    return "agreement of the frameworks, batch {}, {}: {}: {}".format(*words)


def _diagnoses(run: PageRun) -> Iterator[Conclusion]:
    from pydlbench.report.diagnose import headline

    for found in run.findings:
        lines = [headline(found)]
        if found.step.contended:
            lines = ["other work disturbed the step: its time is an upper bound."]
        lines += [f"next: {one.next}" for one in found.findings[:1]]
        yield Conclusion(_step(found.to_dict()), lines)


def _step(document: Mapping[str, Any]) -> str:
    names = ("model", "batch", "phase", "precision", "framework", "mode")
    words = [plain(document.get(name)) for name in names if document.get(name) is not None]
    if "batch" in document and len(words) > 1:
        words[1] = f"batch {words[1]}"
    words += [options_text(mapping(document.get("options")))]
    if threads := positive(document.get("threads")):
        words.append(f"{threads:.0f} thread{'' if threads == 1 else 's'}")
    return "  ".join(filter(None, words))


def _estimate(document: Mapping[str, Any]) -> Estimate:
    """Rebuild the estimate out of ``model --json``; layers without a time are left out."""
    from pydlbench.ladder.estimate import Estimate, LayerShare, Range

    layers = []
    for one in objects(document.get("layers")):
        seconds = positive(one.get("time_s"))
        if seconds is None:
            continue
        low, high = finite(one.get("low")), finite(one.get("high"))
        layers.append(
            LayerShare(
                name=plain(one.get("name"), 60),
                kind=plain(one.get("kind"), 30),
                time=Range(
                    hot=seconds if low is None else low, cold=seconds if high is None else high
                ),
                roof_s=positive(one.get("roof_s")),
                bound=None,
                share=finite(one.get("share")) or 0.0,
                by_pass={},
                algorithms={},
                like=str(one.get("like") or ""),  # compared, never shown
            )
        )
    told = mapping(document.get("estimate"))
    middle = positive(told.get("time_s")) or sum(layer.time.middle for layer in layers)
    hot, cold = (positive(told.get(name)) or middle for name in ("hot_s", "cold_s"))
    return Estimate(
        time=Range(hot=hot, cold=cold),
        half_width_s=finite(told.get("half_width_s")) or 0.0,
        batch=int(finite(document.get("batch")) or 0),
        layers=tuple(layers),
    )
