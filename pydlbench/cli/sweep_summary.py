"""What came of a sweep, table by table: one line for a step, a conclusion for many layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydlbench.results.columns import percent
from pydlbench.results.export_tables import dominant
from pydlbench.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydlbench.cli.sweep_outcome import Outcome
    from pydlbench.results import RunRecord
    from pydlbench.sweep import SweepFile

__all__ = ["summary"]

# More refused rows than these have their reasons in the files only.
_REFUSED: Final = 12
# Of steps, what is named only where it is not so.
_USUAL: Final = {"cast": "mixed", "layout": "nhwc", "feed": "resident"}


def summary(
    file: SweepFile, run: RunRecord, outcomes: Sequence[Outcome], *, where: str | None
) -> list[str]:
    """Return the lines that a sweep ends with.

    Args:
        file: what was asked for.
        run: the run.
        outcomes: of its rows.
        where: what other commands need to find the run; None where it is not kept.
    """
    lines = [file.title or file.path]
    for table in file.tables:
        found = [one for one in outcomes if one.job.table == table.number]
        if found:
            place = table.place.partition(": ")[2]
            lines += ["", f"{place}  {_count(found)}", *_of_table(table.kind, run, found)]
    refused = [one for one in outcomes if one.status != "ok"]
    if refused:
        lines.append("")
        for one in refused[:_REFUSED]:
            what = one.row.label if one.job.kind == "layers" else _label(one)
            lines.append(f"{one.status}: {what}: {one.reason}")
        if len(refused) > _REFUSED:
            lines.append(f"... and {len(refused) - _REFUSED} more")
    lines += ["", f"{_count(outcomes)}, run {run.id}"]
    if where is not None:
        lines.append(f"next: pydlbench report {run.id}{where} -o sweep.html")
    return lines


def _count(outcomes: Sequence[Outcome]) -> str:
    ok = sum(one.status == "ok" for one in outcomes)
    total = f"{len(outcomes)} row{'' if len(outcomes) == 1 else 's'}"
    return total if ok == len(outcomes) else f"{ok} of {total} ok"


def _of_table(kind: str, run: RunRecord, outcomes: Sequence[Outcome]) -> list[str]:
    if kind == "layers":
        return _layers(run, outcomes)
    ok = [one for one in outcomes if one.status == "ok"]
    line = _LINES[kind]
    labels = [_label(one) for one in ok]
    wide = max(map(len, labels), default=0)
    return [f"{label:<{wide}}  {line(one.document)}" for label, one in zip(labels, ok, strict=True)]


def _layers(run: RunRecord, outcomes: Sequence[Outcome]) -> list[str]:
    from pydlbench.report.conclusion import conclude
    from pydlbench.report.peaks import measured_peaks
    from pydlbench.results import Measurement

    rows = [Measurement.from_dict(one.document) for one in outcomes]
    timed = [row for row in rows if row.ok]
    return conclude(rows, measured_peaks(run.device_for(timed[0].threads if timed else None)))


def _label(one: Outcome) -> str:
    fields = one.row.fields
    names = ("model", "option", "batch", "phase", "precision", "framework", "mode")
    words = [f"batch {fields[name]}" if name == "batch" else fields.get(name) for name in names]
    words += [fields[name] for name, usual in _USUAL.items() if fields.get(name, usual) != usual]
    words += [] if fields.get("device", "cpu") == "cpu" else [fields["device"]]
    if (threads := fields["threads"]) != "default":
        words.append(f"{threads} thread{'' if threads == '1' else 's'}")
    return " ".join(filter(None, words))


def _estimate(document: Mapping[str, Any]) -> str:
    found = document["estimate"]
    words = [f"{format_seconds(found['low'])} .. {format_seconds(found['high'])}"]
    if document.get("dominant"):
        name, count = dominant(document)
        words.append(
            f"{name} and {count - 1} like it dominate" if count > 1 else f"{name} dominates"
        )
    if document.get("missing"):
        words.append(f"without {len(document['missing'])} that could not be measured")
    return ", ".join(words)


def _step(document: Mapping[str, Any]) -> str:
    words = _time(document["time_s"])
    rate = document.get("images_per_s")
    words += f", {rate:.4g} images/s" if rate else ""
    return words + (", contended" if document.get("contended") else "")


def _check(document: Mapping[str, Any]) -> str:
    return (
        f"predicted {format_seconds(document['estimate_s'])}, measured "
        f"{_time(document['measured_s'])}, error {100 * document['error']:+.1f} %"
    )


def _time(time: Mapping[str, Any]) -> str:
    low, high = time.get("ci_low"), time.get("ci_high")
    spread = (
        "no interval"
        if low is None or high is None
        else (f"+-{percent((high - low) / 2 / time['median'])}")
    )
    return f"{format_seconds(time['median'])} {spread} (n {time['n']})"


_LINES: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "model": _estimate,
    "e2e": _step,
    "check": _check,
}
