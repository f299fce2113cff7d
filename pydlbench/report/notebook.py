"""Records in notebooks: shown as the reports that commands print."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from pydlbench.records.breakdown import BreakdownRecord
from pydlbench.records.comparison import CompareDocument
from pydlbench.records.diagnosis import Diagnosis
from pydlbench.records.estimate import ForecastRecord, StepEstimate
from pydlbench.records.measurement import DevicePeaks, Measurement
from pydlbench.records.record import Record, columns_of
from pydlbench.records.run import RunRecord
from pydlbench.records.step import StepRecord
from pydlbench.report.blocks import Block, Facts, TableBlock
from pydlbench.report.breakdown import breakdown_report
from pydlbench.report.diagnose import diagnosis_report
from pydlbench.report.estimate import estimate_report, forecast_report
from pydlbench.report.html import fragment
from pydlbench.report.layers import layers_report
from pydlbench.report.step import steps_report
from pydlbench.report.text import as_markdown
from pydlbench.units import format_hz, number, percent

#: Placeholder for the unknown run of a single record.
_RUN: Final = RunRecord(id="", created_utc="", device={"name": "machine not recorded"})


def blocks_of(record: Record) -> list[Block] | None:
    """Return the report on a record; None if no command reports its kind."""
    report = next((_REPORTS[kind] for kind in type(record).__mro__ if kind in _REPORTS), None)
    return None if report is None else report(record)


def markdown(record: Record) -> str | None:
    """Return the report on a record as Markdown; see :func:`blocks_of`."""
    blocks = blocks_of(record)
    return None if blocks is None else as_markdown(blocks)


def html(record: Record) -> str | None:
    """Return the report on a record as HTML without styles; see :func:`blocks_of`."""
    blocks = blocks_of(record)
    return None if blocks is None else fragment(blocks)


def _answer(record: Any) -> list[dict[str, Any]]:
    return [{"status": "ok", **record.to_dict()}]


def _comparison(record: Any) -> list[Block]:
    names = "layer pass_ precision backend ratio=B_/_A ci_low..ci_high verdict"
    return [TableBlock.from_rows(columns_of(record.rows, names), record.rows)]


def _peaks(record: Any) -> list[Block]:
    threads = "" if record.threads is None else f", {record.threads} threads"
    share = percent(record.measured / record.theoretical) if record.theoretical else "-"
    facts = [
        ("device", f"{record.name} ({record.device}{threads}), {record.precision}"),
        ("measured", f"{number(record.tflops)} TFLOP/s at {format_hz(record.clock_hz)}, {share}"),
        ("theoretical", record.derivation or "not known"),
    ]
    return [Facts(facts)]


_REPORTS: Final[Mapping[type[Any], Callable[[Any], list[Block]]]] = {
    StepEstimate: lambda record: estimate_report(_RUN, record),
    Measurement: lambda record: layers_report(_RUN, [record], []),
    StepRecord: lambda record: steps_report(_RUN, [record]),
    BreakdownRecord: lambda record: breakdown_report(_RUN, _answer(record)),
    ForecastRecord: lambda record: forecast_report(_RUN, _answer(record)),
    Diagnosis: lambda record: diagnosis_report(_RUN, record),
    CompareDocument: _comparison,
    DevicePeaks: _peaks,
}
