"""``pydlbench layers``: time layers, measured against theoretical."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pydlbench.cli.layer_options import LayersOptions
from pydlbench.cli.layer_request import read_request
from pydlbench.cli.machine import reading_store
from pydlbench.errors import PydlbenchError, UsageError
from pydlbench.grouping import group_by
from pydlbench.report.blocks import Block
from pydlbench.runner.tasks import Task

if TYPE_CHECKING:
    from pydlbench.cli.recorded import Log
    from pydlbench.records.ledger import StepLedger
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.run import RunRecord
    from pydlbench.runner.execute import Results


# Newest runs among which one of the same machine is sought, whose warnings need not be repeated.
_MAX_RECENT_RUNS: Final = 50


def run(args: LayersOptions, session_factory: Callable[..., Any] | None = None) -> int:
    """Time layers and show them.

    Everything that can be wrong with the request is found before the first measurement.

    Args:
        args: The command's options.
        session_factory: Opens a session; its keywords are the session's options.

    Returns:
        0; 1 if no row is ok; 3 under ``--fail-on``; 130 after Ctrl-C, with what was finished.

    Raises:
        UsageError: Bad input; nothing was measured and nothing written.
    """
    if args.samples and args.json is None and args.format != "json":
        raise UsageError("--samples: raw samples are in JSON only; nearest: --samples --json -")
    args = resumed_options(args)
    bugs: list[Exception] = []
    with contextlib.ExitStack() as processes:

        def begin(threads: int | None) -> None:
            if session_factory is None:
                processes.enter_context(_native_ahead(threads))

        request = read_request(args, begin=begin)
        from pydlbench.cli.measuring import answer
        from pydlbench.cli.output import expecting, row_warnings
        from pydlbench.records.measurement import Measurement
        from pydlbench.report.csv import to_csv
        from pydlbench.report.json import layers_document

        def measured(results: Results) -> list[Measurement]:
            return [outcome.record(Measurement) for outcome in results.outcomes]

        known: list[Sequence[Measurement]] = []

        def rows_of(results: Results) -> Sequence[Measurement]:
            if not known:
                rows = measured(results)
                # The run has warned of a store that cannot be read.
                with (
                    contextlib.suppress(PydlbenchError),
                    reading_store(args.store) as store,
                ):
                    rows = list(expecting(results.run, rows, store))
                known.append(rows)
            return known[0]

        code, _ = answer(
            *(args, "layers", request.tasks(), request.notes),
            lambda record, results: _report(args, record, rows_of(results), request.log, bugs),
            document=lambda results: layers_document(
                results.run,
                rows_of(results),
                recorded=_ledger(request.log, measured(results)),
            ),
            csv=lambda results: to_csv(results.run, rows_of(results)),
            warnings=lambda results: [
                *_device_warnings(args, results.run),
                *row_warnings(measured(results)),
            ],
            sessions=session_factory,
            request=request.document(),
            samples=args.samples,
        )
    if bugs:
        raise bugs[0]
    return code


def _ledger(log: Log | None, rows: Sequence[Measurement]) -> StepLedger | None:
    """Return the ledger of the log beside the rows; None without a log or rows."""
    return log.ledger(rows) if log and rows else None


def _report(
    args: LayersOptions,
    record: RunRecord,
    rows: Sequence[Measurement],
    log: Log | None,
    bugs: list[Exception],
) -> list[Block]:
    """Return the blocks of rows; an error in the conclusion is added to ``bugs``."""
    from pydlbench.report.layers import layers_report
    from pydlbench.report.verdicts import conclude_run

    shown = {name: getattr(args, name) for name in ("algorithms", "explain", "ncu")}
    recorded = _ledger(log, rows)
    conclusion: list[str] = []
    try:
        conclusion = conclude_run(record, rows)
    except Exception as error:  # noqa: BLE001 - a sentence must not cost the table
        bugs.append(error)
    blocks = layers_report(record, rows, conclusion, **shown)
    if recorded:
        from pydlbench.report.trace import trace_report

        blocks += trace_report(recorded)
    return blocks


def _native_ahead(threads: int | None) -> contextlib.AbstractContextManager[None]:
    """Start the native process while modules are imported."""
    from pydlbench.devices.cpu.affinity import choose_cpus
    from pydlbench.devices.cpu.facts import read_cpu_facts
    from pydlbench.workers.host import launch_early

    return launch_early("native", "cpu", choose_cpus(read_cpu_facts(), threads))


def _is_known(args: LayersOptions, record: RunRecord) -> bool:
    """Whether a run of layers on this machine, at most a day old, has printed its warnings."""
    from pydlbench.store.place import machine_name

    begun = dt.datetime.fromisoformat(record.created_utc)
    with contextlib.suppress(PydlbenchError), reading_store(args.store) as store:
        for info in store.runs(limit=_MAX_RECENT_RUNS) if store is not None else ():
            same = info.kind == "layers" and info.machine == machine_name(record.device)
            age = begun - dt.datetime.fromisoformat(info.created_utc)
            if same and info.id != record.id and abs(age) < dt.timedelta(days=1):
                return True
    return False


def _device_warnings(args: LayersOptions, record: RunRecord) -> list[str]:
    if not args.verbose and _is_known(args, record):
        return []
    devices = record.devices()
    warnings = (
        ("; ".join(filter(None, (item["symptom"], item.get("remedy")))), threads)
        for threads, device in (devices or {"": record.device}).items()
        for item in device.get("warnings") or ()
    )
    return [
        text
        if len(same) >= len(devices)
        else f"{text} (with --threads {','.join(threads for _, threads in same)})"
        for text, same in group_by(warnings, lambda pair: pair[0]).items()
    ]


def read_tasks(args: LayersOptions) -> tuple[list[Task], tuple[str, ...]]:
    """Return the tasks of a sweep's table, and notes on what is left out."""
    request = read_request(args, several=True)
    return request.tasks(), request.notes


# -----------------------------------------------------------------------------
# ``--resume``.

#: Options of the output, which may differ from those of the resumed run.
_OUTPUTS: Final = frozenset(
    (
        *("json", "csv", "md", "format", "quiet", "verbose", "samples", "explain"),
        *("ncu", "fail_on", "store", "resume", "minutes"),
    )
)


def resumed_options(args: LayersOptions) -> LayersOptions:
    """Return the options of the resumed run if only options of the output are given.

    Raises:
        UsageError: there is no such run, or its command line cannot be read any more.
    """
    if args.resume is None or args.given.keys() - _OUTPUTS:
        return args
    from pydlbench.cli.measuring import run_to_resume

    with run_to_resume(args, args.resume, "layers") as (store, info):
        record = store.record(info.id)
    if record.command[1:2] != ("layers",):
        raise UsageError(
            f"--resume {args.resume}: run {record.id} was not begun by pydlbench layers; nearest: "
            "repeat its options beside --resume"
        )
    try:
        before = LayersOptions.parse(record.command[2:])
    except (PydlbenchError, SystemExit) as error:
        raise UsageError(
            f"--resume {args.resume}: the command line of run {record.id} cannot be read: {error}"
        ) from error
    return replace(before, **{name: getattr(args, name) for name in _OUTPUTS})


SUBCOMMANDS: Final = {"": (LayersOptions, run)}
