"""``pydlbench trace FILE``: the ledger of a step that somebody recorded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pydlbench.cli.options import (
    OUTPUT,
    THREADS,
    WHAT,
    MarkdownOutput,
    Measuring,
    argument,
    as_given,
    flag,
    option,
)
from pydlbench.devices.gpu.cards import KnownCard, card_named, known_cards
from pydlbench.errors import UsageError, nearest
from pydlbench.report.blocks import Block
from pydlbench.runner.tasks import Result, Task, TaskRow
from pydlbench.traces.recorded import RecordedTrace
from pydlbench.units import quantity

if TYPE_CHECKING:
    from pydlbench.records.ledger import StepLedger
    from pydlbench.records.run import RunRecord
    from pydlbench.runner.execute import Results
    from pydlbench.store.documents import Loaded

#: The machine itself, as a value of ``--on``.
THIS_MACHINE: Final = "cpu"
#: Traces that one command compares.
MAX_FILES: Final = 2


class TraceOptions(Measuring, MarkdownOutput):
    """The command's options."""

    description = (
        "Read a recorded step: a profile of PyTorch or onnxruntime, an execution trace, or a log "
        "of ONEDNN_VERBOSE. Shows where the time of the device goes, and how far each part is from "
        "its limit. Nothing of the step is run."
    )
    files: tuple[str, ...] = argument(
        "FILE", "the trace or log; .gz or not; of two, what differs is shown", "+", read=as_given
    )
    on: str | None = option(
        "CARD",
        "compute limits by the published peaks of this card (see: pydlbench device --known); cpu "
        "is this machine (default: the card that the file names)",
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
    from pydlbench.analysis.ledger_difference import compare_ledgers
    from pydlbench.cli.measuring import answer

    def report(_: RunRecord, results: Results) -> list[Block]:
        return report_of(_ledgers(results), everything=args.all)

    def document(results: Results) -> dict[str, Any]:
        ledgers = _ledgers(results)
        head: dict[str, Any] = {"kind": "trace", "run": results.run.to_dict()}
        if len(ledgers) > 1:
            recorded = [ledger.to_dict() for ledger in ledgers]
            return {**head, "recorded": recorded, **compare_ledgers(*ledgers).to_dict()}
        return {**head, "recorded": ledgers[0].to_dict() if ledgers else None}

    return answer(
        args,
        "trace",
        read_tasks(args),
        (),
        report,
        document=document,
        sessions=session_factory,
        what="traces",
    )[0]


def read_tasks(args: TraceOptions) -> list[Task]:
    """Return the task of a file that was read.

    Raises:
        UsageError: the file cannot be read, or there is no such card.
    """
    from pydlbench.traces.files import read, read_captures
    from pydlbench.traces.pytorch import with_captures

    if len(args.files) > MAX_FILES:
        raise UsageError(
            f"{args.files[MAX_FILES]}: at most {MAX_FILES} traces are compared; nearest: leave it "
            "out"
        )
    card = find_card(args.on)
    captures = () if args.capture is None else read_captures(args.capture)
    tasks: list[Task] = []
    for number, name in enumerate(args.files, start=1):
        recorded = read(name)
        if captures:
            recorded, replays = with_captures(recorded, captures)
            named = (f"--capture: {quantity(replays, 'replay')} of a graph named by its operators",)
            recorded = dataclasses.replace(recorded, notes=(*recorded.notes, *named))
            if not replays:
                raise UsageError(
                    f"--capture {args.capture}: no replay in {name} launched as many kernels as "
                    "one of its captures; nearest: the capture of the same graph"
                )
        row = TaskRow(fields={"file": name, "number": str(number)}, label=name, spec=name)
        tasks.append(
            TraceTask(
                rows=(row,),
                options={"threads": args.threads},
                recorded=recorded,
                card=card,
                on=args.on,
            )
        )
    return tasks


def find_card(on: str | None) -> KnownCard | None:
    """Return the card that ``--on`` names; None if it names none, or this machine.

    Raises:
        UsageError: there is no such card.
    """
    if on is None or on == THIS_MACHINE:
        return None
    cards = {_plain(card.name): card for card in known_cards()}
    if _plain(on) in cards:
        return cards[_plain(on)]
    near = nearest(_plain(on), cards, 3) or list(cards)[-3:]
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
    """

    kind: ClassVar[str] = "trace"
    opens: ClassVar[str] = "trace"
    recorded: RecordedTrace
    card: KnownCard | None
    on: str | None

    def measure(self, session: Any, view: Any) -> Iterator[Result]:
        """Yield the ledger."""
        del view
        from pydlbench.analysis.ledger import ledger_of
        from pydlbench.steps.traced import limits_of

        (row,) = self.rows
        recorded, card = self.recorded, self.card
        missing = "the file names no card; nearest: --on CARD"
        if card is None and recorded.device is not None and self.on is None:
            card = card_named(recorded.device)
            missing = f"no known card is named {recorded.device}; nearest: --on CARD"
        how: dict[str, Any] = {"card": card, "missing": missing}
        host = not recorded.on_gpu and card is None and recorded.device is None
        if host or self.on == THIS_MACHINE:
            calls = recorded.rounds[0].calls
            how["limit_s"] = limits_of(calls, session)
            how["limits_of"] = f"{session.facts.name}, {quantity(len(session.cpus), 'thread')}"
        ledger = ledger_of(recorded, row.spec, **how)
        yield Result("trace", ledger.to_dict(), row, detail=ledger)


def _ledgers(results: Results) -> list[StepLedger]:
    from pydlbench.records.ledger import StepLedger

    return [outcome.record(StepLedger) for outcome in results.outcomes]


def report_of(ledgers: Sequence[StepLedger], *, everything: bool = False) -> list[Block]:
    """Return the report of a recorded step; of two, what differs between them.

    Args:
        ledgers: one or two.
        everything: show all modules, calls and differences.
    """
    from pydlbench.analysis.ledger_difference import compare_ledgers
    from pydlbench.report.trace import comparison_report, trace_report

    if len(ledgers) == MAX_FILES:
        return comparison_report(compare_ledgers(*ledgers), everything=everything)
    return [block for ledger in ledgers for block in trace_report(ledger, everything=everything)]


def stored_report(loaded: Loaded) -> list[Block]:
    """Return the report of a run of a store or a file."""
    from pydlbench.records.ledger import StepLedger

    return report_of([StepLedger.from_dict(entry.document) for entry in loaded.table("trace")])


SUBCOMMANDS: Final = {"": (TraceOptions, run)}
