"""``pydlbench collectives``: how long messages between ranks take, by operation and size."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pydlbench.cli.options import (
    Several,
    add,
    byte_count,
    choices,
    one_of,
    positive_seconds,
    taking,
    whole_number,
)
from pydlbench.errors import UsageError
from pydlbench.runner.tasks import Result, Row, Task
from pydlbench.words import COLLECTIVES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from pydlbench.cli.output import Outputs
    from pydlbench.records.collectives import CollectiveSpec
    from pydlbench.records.run import RunRecord
    from pydlbench.report.text import Block
    from pydlbench.runner.execute import View
    from pydlbench.steps.ranks import Torchrun
    from pydlbench.store.documents import Loaded


# Sizes that are timed unless others are named, each four times the last.
_LEAST: Final = 1 << 10
_MOST: Final = 1 << 30
_STEP: Final = 4
_RANKS: Final = 2
_BUDGET_S: Final = 1.0
# Of the available memory, for the ranks of this machine: libraries have buffers of their own.
_ROOM: Final = 1 / 2


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Describe the command."""
    parser = subparsers.add_parser(
        "collectives",
        description="Time collective operations of torch.distributed between ranks, by gloo on "
        "CPUs and NCCL on GPUs; fit t = alpha + S / B to each, and name pairs of ranks whose link "
        "is slow. Every result is compared element by element.",
        epilog="Under torchrun (RANK and WORLD_SIZE in the environment) each process is the rank "
        "that it was started as, and rank 0 prints.",
    )
    what = parser.add_argument_group("what is timed")
    what.add_argument(
        "--ranks",
        metavar="N",
        type=taking("--ranks", whole_number, 2),
        help=f"processes of this machine, on cores or a GPU of their own each ({_RANKS})",
    )
    what.add_argument(
        "--operation",
        metavar="NAME",
        nargs="+",
        action=Several,
        type=taking("--operation", choices, COLLECTIVES, "all"),
        help=f"{', '.join(COLLECTIVES)}; default: all",
    )
    what.add_argument(
        "--sizes",
        metavar="SIZE",
        nargs="+",
        action=Several,
        type=taking("--sizes", _sizes),
        help="in bytes: 4K,25M, or 1K..64M in steps of four; default: 1K..1G as far as memory goes",
    )
    what.add_argument(
        "--device",
        metavar="DEVICE",
        default="cpu",
        type=taking("--device", one_of, ("cpu", "cuda")),
        help="cpu (default), or cuda: rank 0 has the first GPU, and so on",
    )
    how = parser.add_argument_group("how it is timed")
    add(
        how,
        *("threads", "budget", "visits", "seed"),
        threads={"help": "of each rank; default: the physical cores over the ranks"},
        budget={"help": f"seconds of sampling per operation and size ({_BUDGET_S:g})"},
        visits={
            "help": "time all so often, each time in new processes (6, from which on there "
            "is an interval)"
        },
    )
    how.add_argument(
        "--limit",
        metavar="S",
        type=taking("--limit", positive_seconds),
        help="seconds to wait for a rank that does not answer (60)",
    )
    add(
        parser.add_argument_group("what is shown"),
        *("json", "csv", "md", "quiet", "verbose", "store"),
    )


def run(args: argparse.Namespace) -> int:
    """Time collectives and show them; as another rank than 0 of ``torchrun`` only take part.

    Args:
        args: the command's options.

    Returns:
        0; 1 if no result is right; 130 after Ctrl-C, with the visits that were made.

    Raises:
        UsageError: bad input; nothing was measured and nothing written.
        WorkerError: a rank is gone or hangs; it is named, and what was finished is shown before.
    """
    from pydlbench.cli.measuring import measure
    from pydlbench.cli.output import Outputs
    from pydlbench.steps.ranks import LIMIT_S, Torchrun, follow

    started = Torchrun.of(os.environ)
    task, notes = _task(args, started)
    if started is not None and started.rank > 0:
        with task.open() as session:
            follow(session, args.device, args.limit or LIMIT_S)
        return 0
    outputs = Outputs.from_args(args)
    outputs.note(*notes)

    def shown(results: Any) -> None:
        for one in results.outcomes:
            _show(results.run, one.document, outputs, early=results.early)

    code, _ = measure(args, "collectives", [task], shown, what="visits")
    return code


def rank_threads(ranks: int, threads: int | None) -> int:
    """Return the threads of each of several ranks on this machine's CPU.

    Args:
        ranks: how many.
        threads: that were asked for; None is the physical cores over the ranks.

    Raises:
        UsageError: there are not so many CPUs.
    """
    from pydlbench.devices.cpu.affinity import choose_cpus
    from pydlbench.devices.cpu.facts import read_cpu_facts

    facts = read_cpu_facts()
    here = len(choose_cpus(facts))
    each = threads or here // ranks
    if each == 0 or each * ranks > max(here, len(facts.affinity)):
        fewer = max(1, here // (threads or 1))
        near = f"--ranks {fewer}" if fewer > 1 else "one rank, which needs no messages"
        what = f"--threads {threads} of each" if threads else "a core each"
        raise UsageError(
            f"--ranks {ranks}: {what} is more than the {here} cores that this process may use; "
            f"nearest: {near}"
        )
    return each


def check_gpus(ranks: int) -> None:
    """Make sure that each of several ranks has a GPU of this machine, where there are GPUs.

    Raises:
        UsageError: there are fewer.
    """
    from pydlbench.backends.capabilities import gpu_count

    there = gpu_count()
    if there and there < ranks:
        near = f"--ranks {there}" if there > 1 else "--device cpu"
        raise UsageError(
            f"--ranks {ranks}: a GPU each, and this process may use {there}; nearest: {near}"
        )


def _sizes(option: str, text: str) -> list[int]:
    """Read ``4K``, ``4K,25M`` or ``1K..64M``."""
    found: list[int] = []
    for part in text.split(","):
        low, dots, high = part.partition("..")
        first = byte_count(option, low)
        last = byte_count(option, high) if dots else first
        if first < _FLOAT or last < first:
            near = f"{_LEAST}..{max(first, _LEAST)}" if dots else "1K"
            raise UsageError(f"{option} {text}: no such sizes; nearest: {near}")
        while first < last:
            found.append(first)
            first *= _STEP
        found.append(last)
    return found


_FLOAT: Final = 4


def _task(
    args: argparse.Namespace, started: Torchrun | None
) -> tuple[_CollectivesTask, tuple[str, ...]]:
    """Return what is asked for, and notes on it.

    Raises:
        UsageError: it cannot be had.
    """
    from pydlbench.backends import capabilities
    from pydlbench.devices.cpu.facts import read_cpu_facts
    from pydlbench.records.collectives import CollectiveSpec
    from pydlbench.steps.collectives import BUFFERS
    from pydlbench.steps.ranks import LIMIT_S
    from pydlbench.timing.visits import VISITS

    if not capabilities.is_there(capabilities.of("torch")):
        raise UsageError(
            "collectives: PyTorch is not installed; nearest: pip install 'pydlbench[torch]'"
        )
    if started is not None and args.ranks not in (None, started.ranks):
        raise UsageError(
            f"--ranks {args.ranks}: torchrun has started {started.ranks}; nearest: leave it out"
        )
    here = started.here if started is not None else args.ranks or _RANKS
    if started is not None and started.ranks < 2:
        raise UsageError("WORLD_SIZE=1: one rank sends nothing; nearest: torchrun --nproc 2")
    if args.threads is not None and args.device != "cpu":
        raise UsageError(f"--threads {args.threads}: for CPUs only; nearest: leave it out")
    threads = None
    if args.device == "cpu":
        threads = rank_threads(here, args.threads)
    else:
        check_gpus(here)
    sizes = args.sizes or _sizes("--sizes", f"{_LEAST}..{_MOST}")
    notes: tuple[str, ...] = ()
    available = read_cpu_facts().memory_available_bytes
    if available is not None and args.device == "cpu":
        most = int(available * _ROOM) // (BUFFERS * here)
        fitting = [one for one in sizes if one <= most]
        if len(fitting) < len(sizes) and (args.sizes or not fitting):
            near = 1 << max(2, most.bit_length() - 1)
            raise UsageError(
                f"--sizes {max(sizes)}: {BUFFERS} buffers of each of {here} ranks are more than "
                f"half of the memory that is available; nearest: {near}"
            )
        if len(fitting) < len(sizes):
            notes = (f"sizes above {fitting[-1]} bytes are left out for lack of memory",)
        sizes = fitting
    options = {
        "threads": (threads or 0) * (here if started is not None else 1) or None,
        "budget_s": args.budget or _BUDGET_S,
        "visits": args.visits or VISITS,
        "seed": args.seed,
    }
    specs = [
        CollectiveSpec(operation=operation, bytes=size)
        for operation in args.operation or COLLECTIVES
        for size in sorted(set(sizes))
    ]
    count = None if started is not None else here
    ranks = here if started is None else started.ranks
    row = Row(fields={"ranks": str(ranks), "device": args.device}, label=f"{ranks} ranks")
    task = _CollectivesTask(
        rows=(row,),
        options=options,
        specs=tuple(specs),
        count=count,
        device=args.device,
        limit_s=args.limit or LIMIT_S,
    )
    return task, notes


@dataclass(frozen=True, kw_only=True)
class _CollectivesTask(Task):
    """Collectives of one number of ranks; its one row is all of them.

    Attributes:
        specs: operations and sizes.
        count: of ranks; None where ``torchrun`` has started this process.
        device: ``cpu`` or ``cuda``.
        limit_s: seconds to wait for a rank.
    """

    kind: ClassVar[str] = "collectives"
    opens: ClassVar[str] = "collectives"
    specs: tuple[CollectiveSpec, ...]
    count: int | None
    device: str
    limit_s: float

    def measure(self, session: Any, view: View) -> Iterator[Result]:
        """Yield what is known after each visit."""
        from pydlbench.steps.collectives import measure_collectives

        (row,) = self.rows
        for found in measure_collectives(
            self.specs,
            session,
            self.count,
            self.device,
            limit_s=self.limit_s,
            progress=view.advance,
        ):
            yield Result("collectives", found.to_dict(), row, detail=found)


def _show(run: RunRecord, document: dict[str, Any], outputs: Outputs, *, early: bool) -> None:
    from pydlbench.ladder.collectives import fits
    from pydlbench.records.collectives import CollectivesResult
    from pydlbench.report.collectives import collectives_report, to_csv, to_json
    from pydlbench.report.text import as_markdown, run_lines

    found = CollectivesResult.from_dict(document)
    lines = fits(found.rows)

    def report() -> list[Block]:
        return [*collectives_report(found, lines), run_lines(run)]

    outputs.write(
        {
            "json": lambda: to_json(run, found, lines, interrupted=early),
            "csv": lambda: to_csv(run, found.rows),
            "md": lambda: as_markdown(report()),
        },
        report,
    )


def show_stored(run: Loaded, *, quiet: bool = False) -> None:
    """Print a run's collectives, as the command has printed them.

    Args:
        run: of a store or a file.
        quiet: no warnings.
    """
    from pydlbench.cli.output import Outputs

    for entry in run.table("collectives"):
        outputs = Outputs(files={}, quiet=quiet)
        _show(run.record, entry.document, outputs, early=run.info.early)
