"""What a sweep shows: before it runs the list with its time, afterwards what came of each row."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydlbench.cli.terminal import tell
from pydlbench.errors import PydlbenchError, UsageError
from pydlbench.report.columns import percent
from pydlbench.report.markdown import dominant
from pydlbench.report.text import STDOUT, check_writable, write_text
from pydlbench.runner.sweep_forecast import Forecast, Limits, step_key
from pydlbench.units import format_seconds

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pydlbench.cli.sweep_running import Outcome
    from pydlbench.records.run import RunRecord
    from pydlbench.records.specs import KernelSpec
    from pydlbench.runner.sweep import Job, SweepFile
    from pydlbench.runner.sweep_forecast import Key, Span
    from pydlbench.store.entry import Entry
    from pydlbench.store.store import Store

__all__ = ["SweepOutputs", "format_span", "make_forecast", "show_plan"]

# Of steps, where nobody asks for another.
_LAYOUT: Final = ("layout", "nhwc")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOutputs:
    """The destinations of one sweep.

    Attributes:
        files: format (``json``, ``md``) to path or ``-``.
    """

    files: Mapping[str, str]

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> SweepOutputs:
        """Read the options and make sure that every file can be written.

        Raises:
            UsageError: it cannot, or both go to the same place.
        """
        given = {kind: getattr(args, kind) for kind in ("json", "md")}
        files = {kind: target for kind, target in given.items() if target is not None}
        places = {to if to == STDOUT else os.path.realpath(to) for to in files.values()}
        if len(places) < len(files):
            target = files["md"]
            raise UsageError(f"--md {target}: --json goes there already; nearest: --md sweep.md")
        for kind, target in files.items():
            check_writable(f"--{kind}", target)
        return cls(files=files)

    def show(
        self,
        file: SweepFile,
        run: RunRecord,
        outcomes: Sequence[Outcome],
        entries: Sequence[Entry],
        *,
        where: str | None,
        interrupted: bool,
    ) -> None:
        """Write the files, then print.

        Args:
            file: what was asked for.
            run: the run.
            outcomes: of the rows that are finished.
            entries: all that was measured, the kernels behind estimates among it.
            where: what other commands need to find the run; None where it is not kept.
            interrupted: more was asked for.

        Raises:
            PydlbenchError: a file could not be written after all; the rest is printed before.
        """
        troubles = []
        for kind, target in self.files.items():
            # One that ends before its first row does not take the place of an earlier one.
            if target != STDOUT and (entries or not interrupted):
                try:
                    write_text(target, _text(kind, run, outcomes, entries, interrupted))
                except OSError as error:
                    troubles.append(f"--{kind} {target}: not written: {error.strerror or error}")
        on_stdout = next((kind for kind, to in self.files.items() if to == STDOUT), None)
        if on_stdout is not None:
            write_text(STDOUT, _text(on_stdout, run, outcomes, entries, interrupted))
        else:
            print("\n".join(summary(file, run, outcomes, where=where)), flush=True)
        if troubles:
            raise PydlbenchError("; ".join(troubles))


def show_plan(
    file: SweepFile,
    jobs: Sequence[Job],
    notes: Sequence[str],
    args: argparse.Namespace,
    outputs: SweepOutputs,
) -> None:
    """Show what a sweep would measure, and how long that would take."""
    from pydlbench.report.json import dump
    from pydlbench.runner.sweep_forecast import Span

    with _earlier(args) as store:
        forecast = make_forecast(store)
        spans = [forecast.job(job) for job in jobs]
    total = sum(spans, Span())
    rows = sum(len(job.rows) for job in jobs)
    document: dict[str, Any] = {
        "file": file.path,
        "title": file.title,
        "rows": rows,
        "time_s": {"low": total.low, "high": total.high, "source": forecast.source()},
        "jobs": [
            {
                "kind": job.kind,
                "table": job.table,
                "command": ["pydlbench", *job.words],
                "time_s": {"low": span.low, "high": span.high},
                "rows": [dict(row.fields) for row in job.rows],
            }
            for job, span in zip(jobs, spans, strict=True)
        ],
    }
    lines = [f"{file.path}: {file.title}" if file.title else file.path, ""]
    number = 0
    for job, span in zip(jobs, spans, strict=True):
        lines.append(f"{job.place.partition(': ')[2]}  {_shown(job)}  ({format_span(span)})")
        for row in job.rows:
            number += 1
            lines.append(f"{number:>5}  {_row_text(job.kind, row.fields)}")
    count = f"{rows} row{'' if rows == 1 else 's'}"
    lines += ["", f"{count} in {format_span(total)}, {forecast.source()}; nothing was measured"]
    for kind, target in outputs.files.items():
        text = dump(document) if kind == "json" else "```text\n" + "\n".join(lines) + "\n```\n"
        write_text(target, text)
    if STDOUT not in outputs.files.values():
        print("\n".join(lines))
    for note in () if args.quiet else notes:
        tell(f"note: {note}")


@contextlib.contextmanager
def _earlier(args: argparse.Namespace) -> Any:
    """Earlier runs, where there are some that can be read; a plan needs none."""
    from pydlbench.cli.options import reading_store

    store: Store | None
    try:
        store = reading_store(args)
    except UsageError:
        store = None  # the file is made when the sweep runs
    except PydlbenchError as error:
        tell(f"warning: earlier runs cannot be read: {error}")
        store = None
    try:
        yield store
    finally:
        if store is not None:
            store.close()


def _shown(job: Job) -> str:
    """Return a job's command line without the words of other jobs of its table."""
    threads = job.options.get("threads")
    words = [word for word in job.words if not word.startswith("--threads")]
    words += [] if threads is None else [f"--threads={threads}"]
    return f"pydlbench {' '.join(words)}"


def _row_text(kind: str, fields: Mapping[str, str]) -> str:
    """Return a row's values, those that are only defaults left out."""
    plain = {"inference", "hot", "best", "default", "auto", "none", "mixed", "resident", ""}
    # The first is in the layer's name, the second in its descriptor.
    skip = {"model", "kind"} if kind == "layers" else set()
    words = []
    for name, value in fields.items():
        if name in skip or value in plain or (kind != "layers" and (name, value) == _LAYOUT):
            continue
        words.append(f"{name} {value}" if name in ("batch", "threads", "layout") else value)
    return "  ".join(words)


def _text(
    kind: str,
    run: RunRecord,
    outcomes: Sequence[Outcome],
    entries: Sequence[Entry],
    interrupted: bool,
) -> str:
    from pydlbench.cli.export import run_markdown
    from pydlbench.report.json import dump, run_document

    if kind == "md":
        return run_markdown(run, entries)
    document = run_document("sweep", run, entries, interrupted=interrupted)
    refused = [{**one.document, "place": one.job.place} for one in outcomes if not one.table]
    return dump({**document, "not_estimated": refused})


# -----------------------------------------------------------------------------
# What came of a sweep, table by table: one line for a step, a conclusion for many layers.

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
    from pydlbench.records.measurement import Measurement
    from pydlbench.report.verdicts import conclude, measured_peaks

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


# -----------------------------------------------------------------------------
# What a forecast of a sweep is made from: this machine's facts and its store.

# Earlier runs that are looked at, the newest first.
_RUNS: Final = 100
# Where the clock is not to be read; and what a core can move at least, in bytes per second.
_HZ: Final = 3e9
_CORE_BYTES: Final = 8e9
# A modest card: its worker is not started for a forecast.
_GPU: Final = Limits(flops_per_s={"fp32": 1e13, "fp16": 1e13}, bytes_per_s=4e11)


def make_forecast(store: Store | None) -> Forecast:
    """Return a forecast from what this machine has measured before, and from its facts.

    Args:
        store: earlier runs; None where there is none, or none can be read.
    """
    from pydlbench.devices.cpu.affinity import choose_cpus
    from pydlbench.devices.cpu.facts import read_cpu_facts
    from pydlbench.devices.cpu.peaks import theoretical_peak

    facts = read_cpu_facts()
    every = len(choose_cpus(facts, None))
    layers: dict[Key, float] = {}
    steps: dict[Key, float] = {}
    if store is not None:
        with contextlib.suppress(PydlbenchError):  # a forecast is worth no complaint
            _read(store, facts.name, layers, steps)

    def limits(device: str, threads: int) -> Limits:
        if device != "cpu":
            return _GPU
        hz = facts.nominal_hz or _HZ
        peaks = {
            name: theoretical_peak(facts, name, threads, hz) for name in ("fp32", "bf16", "fp16")
        }
        known = {name: peak.flops_per_s for name, peak in peaks.items() if peak is not None}
        return Limits(flops_per_s=known, bytes_per_s=_CORE_BYTES * threads)

    return Forecast(limits, every, layers, steps, _kernels, _step_work)


def format_span(span: Span) -> str:
    """Return an interval in one unit: ``2 to 9 min``."""
    for unit, name in ((3600.0, "h"), (60.0, "min")):
        if span.high >= 2 * unit:
            low, high = span.low / unit, span.high / unit
            return f"{_short(low)} to {_short(high)} {name}"
    if span.high < 1:
        return f"{format_seconds(span.low)} to {format_seconds(span.high)}"
    return f"{_short(span.low)} to {_short(span.high)} s"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 9.5 else f"{value:.1f}"


def _read(store: Store, cpu: str, layers: dict[Key, float], steps: dict[Key, float]) -> None:
    """Collect the medians of this machine's earlier runs, the newest of each kind."""
    from pydlbench.store.entry import LAYER_COLUMNS
    from pydlbench.store.place import machine_name

    place = {name: index for index, name in enumerate(LAYER_COLUMNS)}
    # As forecast.layer_key has them.
    names = ("problem", "pass", "precision", "device", "backend", "mode", "threads")
    for info in store.runs(limit=_RUNS):
        if info.machine != machine_name({"name": cpu}):
            continue
        for row in store.columns(info.id):
            if row[place["status"]] == "ok" and row[place["median"]]:
                key = tuple(str(row[place[name]] or "") for name in names)
                layers.setdefault(key, row[place["median"]])
        for table, time in (("step", "time_s"), ("check", "measured_s")):
            for entry in store.entries(info.id, table):
                document = entry.document
                if document.get(time):
                    fields = {name: str(value) for name, value in document.items()}
                    options = document.get("options", {})
                    fields["option"] = " ".join(sorted(f"{k}={v}" for k, v in options.items()))
                    key = step_key(fields, document.get("threads"))
                    steps.setdefault(key, document[time]["median"])


def _kernels(job: Job) -> Iterable[KernelSpec]:
    """Return the native kernels behind an estimate or a cross-check."""
    from pydlbench.ladder.estimate import plan

    asked = job.request
    return plan(asked.model, asked.phase, asked.precision, getattr(asked, "device", "cpu")).cases


def _step_work(job: Job) -> tuple[float, float]:
    """Return FLOPs and bytes of a step."""
    from pydlbench.models.work import work

    fields: Mapping[str, Any] = job.rows[0].fields
    model = job.request[0] if job.kind == "e2e" else job.request.model
    items = work(model, fields["phase"])
    return (
        float(sum(one.layer.flops_executed(one.pass_) for one in items)),
        float(sum(one.layer.bytes(one.pass_, 4) for one in items)),
    )
