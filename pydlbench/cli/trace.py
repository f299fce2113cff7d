"""``pydlbench trace FILE``: the ledger of a step that somebody recorded."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pydlbench.cli.options import (
    OUTPUT,
    THREADS,
    WHAT,
    Measuring,
    TableOutput,
    argument,
    as_given,
    flag,
    option,
)
from pydlbench.cli.terminal import ProgressLine
from pydlbench.errors import UsageError, nearest
from pydlbench.report.blocks import Block
from pydlbench.runner.tasks import Result, Task, TaskRow
from pydlbench.traces.timeline import RecordedTrace
from pydlbench.units import quantity

if TYPE_CHECKING:
    from pydlbench.devices.gpu.cards import KnownCard
    from pydlbench.records.ledger import StepLedger
    from pydlbench.records.run import RunRecord
    from pydlbench.runner.execute import Results
    from pydlbench.store.documents import Loaded

#: The machine itself, as a value of ``--on``.
THIS_MACHINE: Final = "cpu"
#: The number of a rank in the name of a file or its folder.
_RANK: Final = re.compile(r"rank[-_. ]?(\d{1,6})", re.IGNORECASE)


class TraceOptions(Measuring, TableOutput):
    """The command's options."""

    description = (
        "Read a recorded step: a profile of PyTorch or onnxruntime, an execution trace, or a log "
        "of ONEDNN_VERBOSE. Shows where the time of the device goes, and how far each part is from "
        "its limit. Nothing of the step is run."
    )
    files: tuple[str, ...] = argument(
        "FILE",
        "the trace or log; .gz or not; of two, what differs is shown; of more, or of two ranks of "
        "one job, how long the ranks wait for each other",
        "+",
        read=as_given,
    )
    on: str | None = option(
        "CARD",
        "compute limits by the published peaks of this card (see: pydlbench device --known); cpu "
        "is this machine (default: the card that the file names; a CPU has no default)",
        group=WHAT,
    )
    capture: str | None = option(
        "FILE",
        "a profile of the process while it captured its CUDA graphs: names the operators of "
        "replayed kernels",
        group=WHAT,
    )
    threads: int | None = THREADS()
    all: bool = flag("list all modules and calls", group=OUTPUT)


def run(args: TraceOptions, session_factory: Callable[..., Any] | None = None) -> int:
    """Read the file, keep its ledger and show it.

    Args:
        args: the command's options.
        session_factory: opens a session; its keywords are the session's options.

    Returns:
        0; 130 after Ctrl-C.

    Raises:
        UsageError: the file cannot be read, or there is no such card.
    """
    from pydlbench.cli.measuring import answer
    from pydlbench.records.ledger import StepLedger
    from pydlbench.report.csv import flat_lines
    from pydlbench.report.text import csv_text
    from pydlbench.report.trace import (
        CSV_COLUMNS,
        csv_rows,
        recorded_document,
        recorded_report,
    )

    def ledgers(results: Results) -> list[StepLedger]:
        return [outcome.record(StepLedger) for outcome in results.outcomes]

    def report(_: RunRecord, results: Results) -> list[Block]:
        given = (("--on", args.on), ("--capture", args.capture))
        kept = [word for name, value in given if value is not None for word in (name, value)]
        return recorded_report(ledgers(results), options=kept, everything=args.all)

    def document(results: Results) -> dict[str, Any]:
        head: dict[str, Any] = {"kind": "trace", "run": results.run.to_dict()}
        return {**head, **recorded_document(ledgers(results))}

    def csv(results: Results) -> str:
        calls = csv_rows(outcome.document for outcome in results.outcomes)
        return csv_text(CSV_COLUMNS, flat_lines(results.run, "trace", CSV_COLUMNS, calls))

    return answer(
        args,
        "trace",
        read_tasks(args),
        (),
        report,
        document=document,
        csv=csv,
        sessions=session_factory,
        what="traces",
    )[0]


def read_tasks(args: TraceOptions) -> list[Task]:
    """Return the task of a file that was read.

    Raises:
        UsageError: the file cannot be read, or there is no such card.
    """
    card = find_card(args.on)
    progress = ProgressLine.from_options(args)
    try:
        return _read_tasks(args, card, progress)
    finally:
        progress.close()


def _read_tasks(args: TraceOptions, card: KnownCard | None, progress: ProgressLine) -> list[Task]:
    from pydlbench.traces.files import read, read_captures
    from pydlbench.traces.pytorch import with_captures

    captures = () if args.capture is None else read_captures(args.capture)
    tasks: list[Task] = []
    files: dict[int | None, str] = {}
    for number, name in enumerate(args.files, start=1):
        progress(number - 1, len(args.files), f"reading {name}")
        recorded = read(name)
        if captures:
            recorded, named, unnamed = with_captures(recorded, captures)
            if not named:
                raise UsageError(
                    f"--capture {args.capture}: none of {quantity(unnamed, 'replayed kernel')} in "
                    f"{name} is in one of its captures alone; nearest: that of the same graph"
                )
            note = (
                f"--capture: {named:,} of {named + unnamed:,} replayed kernels have its operators"
            )
            if unnamed:
                note += f"; {unnamed:,} are in no capture, or in several that differ there"
            recorded = dataclasses.replace(recorded, notes=(*recorded.notes, note))
        recorded = _with_rank(recorded, name)
        if recorded.rank is not None and recorded.rank in files and len(args.files) > 2:  # A and B
            raise UsageError(
                f"{name}: is rank {recorded.rank}, and so is {files[recorded.rank]}; nearest: one "
                "file of each rank"
            )
        files[recorded.rank] = name
        row = TaskRow(fields={"file": name, "number": str(number)}, label=name, spec=name)
        tasks.append(
            TraceTask(
                rows=(row,),
                options={"threads": args.threads},
                recorded=recorded,
                card=card,
                on=args.on,
                store=args.store,
            )
        )
    return tasks


def _with_rank(recorded: RecordedTrace, name: str) -> RecordedTrace:
    """Return a recording with the rank that the name of its file tells, if the file does not."""
    path = Path(name)
    match = _RANK.search(path.name) or _RANK.search(path.parent.name)
    if recorded.rank is not None or match is None:
        return recorded
    return dataclasses.replace(recorded, rank=int(match[1]))


def find_card(on: str | None) -> KnownCard | None:
    """Return the card that ``--on`` names; None if it names none, or this machine.

    The beginning of a name is enough if no other card's begins so, and the driver's name is one.

    Raises:
        UsageError: there is no such card.
    """
    if on is None or on == THIS_MACHINE:
        return None
    from pydlbench.devices.gpu.cards import card_named, known_cards

    cards = {_plain(card.name): card for card in known_cards()}
    begin = [name for name in cards if name.startswith(_plain(on))]
    card = cards.get(_plain(on)) or card_named(on)
    if card or len(begin) == 1:
        return card or cards[begin[0]]
    near = begin[:3] or nearest(_plain(on), cards, 3) or list(cards)[-3:]
    names = ", ".join(cards[name].name for name in near)
    raise UsageError(f"--on {on}: no such card; nearest: {names}; all: pydlbench device --known")


def _plain(name: str) -> str:
    return name.lower().replace(" ", "-").replace("_", "-")


@dataclass(frozen=True, kw_only=True)
class TraceTask(Task):
    """The ledger of a recorded step.

    Attributes:
        recorded: the file, read.
        card: whose peaks are the limits; None for the card that the file names.
        on: value of ``--on``.
        store: value of ``--store``, whose rows of the card are the best known kernels.
    """

    kind: ClassVar[str] = "trace"
    opens: ClassVar[str] = "trace"
    recorded: RecordedTrace
    card: KnownCard | None
    on: str | None
    store: str | None = None

    def measure(self, session: Any, view: Any) -> Iterator[Result]:  # noqa: ARG002 - as all tasks
        """Yield the ledger."""
        from pydlbench.analysis.ledger import ledger_of
        from pydlbench.analysis.rows import fastest_kernels
        from pydlbench.devices.gpu.cards import card_named
        from pydlbench.steps.traced import limits_of
        from pydlbench.store.place import select_path
        from pydlbench.store.store import Store

        (row,) = self.rows
        recorded, card = self.recorded, self.card
        missing = "the file names no card; nearest: --on CARD"
        if card is None and recorded.device is not None and self.on is None:
            card = card_named(recorded.device)
            missing = f"no known card is named {recorded.device}; nearest: --on CARD"
        elif not recorded.on_gpu:
            missing = "the file does not name its CPU; nearest: --on cpu, if it was this machine"
        how: dict[str, Any] = {"card": card, "missing": missing}
        if self.on == THIS_MACHINE and not recorded.on_gpu:
            how["limit_s"] = limits_of(recorded.calls, session, [])
            how["limits_of"] = f"{session.facts.name}, {quantity(len(session.cpus), 'thread')}"
        path, _ = select_path(self.store)
        if card is not None and path is not None and path.exists():
            with Store.open(path, readonly=True) as store:
                how["best_s"] = fastest_kernels(store, card)
        ledger = ledger_of(recorded, row.spec, **how)
        yield Result("trace", ledger.to_dict(), row, detail=ledger)


def stored_report(loaded: Loaded) -> list[Block]:
    """Return the report of a run of a store or a file."""
    from pydlbench.report.trace import recorded_report

    return recorded_report(stored_ledgers(loaded))


def stored_ledgers(loaded: Loaded) -> list[StepLedger]:
    """Return the recorded steps of a run of a store or a file."""
    from pydlbench.records.ledger import StepLedger

    return [StepLedger.from_dict(entry.document) for entry in loaded.table("trace")]


SUBCOMMANDS: Final = {"": (TraceOptions, run)}
