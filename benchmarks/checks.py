"""Checks of many steps in one table: models x phases x frameworks, held against their targets.

    python benchmarks/checks.py --resume checks.jsonl --md checks.md

Each row is what ``pydlbench check`` finds: the rungs of a step, how well its isolated operators add
up to it (additivity, which predicts nothing), and what no experiment explains. The targets:
additivity errors of at most 5 % in the median and 12 % at worst.

With ``--resume`` each finished row is a line of that file at once; a run that ends early, by
Ctrl-C, by ``--seconds`` or otherwise, goes on there. Rows that failed are tried again.
"""

from __future__ import annotations

import argparse
import datetime as dt
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from journal import Journal

from pydlbench.cli import check as command
from pydlbench.cli.check import CheckTask, read_tasks
from pydlbench.cli.parser import Parser
from pydlbench.cli.terminal import Progress
from pydlbench.devices.cpu.facts import read_cpu_facts
from pydlbench.errors import UsageError
from pydlbench.models import build_model
from pydlbench.records.check import RUNGS
from pydlbench.report.text import markdown_table
from pydlbench.runner.execute import execute
from pydlbench.runner.recorder import Recorder
from pydlbench.units import Scale, percent

# Batch sizes that fit into 24 GB and take seconds, not minutes, on two cores.
MODELS = {
    "mnist": 64,
    "cifar10": 128,
    "alexnet": 16,
    "alexnet-owt": 16,
    "alexnet-tfcnn": 16,
    "vgg11": 4,
    "overfeat-fast": 8,
    "googlenet": 4,
    "resnet18": 8,
    "resnet50": 4,
    "densenet121": 4,
    "inception-v3": 2,
}
PHASES = ("forward", "training")
FRAMEWORKS = ("torch", "tensorflow")


def read() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    models = [f"{name}:{batch}" for name, batch in MODELS.items()]
    parser.add_argument("--models", nargs="+", default=models, metavar="NAME[:BATCH]")
    parser.add_argument("--phases", nargs="+", default=list(PHASES))
    parser.add_argument("--frameworks", nargs="+", default=list(FRAMEWORKS))
    parser.add_argument("--laps", default="15", help="of each row, at the most")
    parser.add_argument("--stop-after", default="60", help="seconds of each row's laps")
    parser.add_argument("--budget", default="0.25", help="seconds per native kernel")
    parser.add_argument("--seconds", type=float, help="start no step after so long")
    parser.add_argument(
        "--resume", type=Path, metavar="FILE", help="journal; goes on where it ends"
    )
    parser.add_argument("--md", type=Path, metavar="FILE", help="write the table as Markdown")
    return parser.parse_args()


# -----------------------------------------------------------------------------
# The table: rows as they are finished, and what all of them say together.

# Largest median error, and largest error.
TARGETS = (0.05, 0.12)
TITLES = (
    *("model", "phase", "framework", "batch"),
    *(name.replace("_", " ") for name in RUNGS),
    *("additivity", "unexplained", "contradictions"),
)
_WIDTHS = (22, 16, 11, 5, 10, 10, 12, 10, 14, 10, 10, 11, 14)

Row = dict[str, Any]


class Table:
    """Rows as they are finished, in a journal if there is one.

    Args:
        journal: None keeps them in memory only.
        wanted: names of all rows, in their order.
    """

    def __init__(self, journal: Journal | None, wanted: Sequence[str]) -> None:
        self._journal = journal
        self.wanted = list(wanted)
        self.rows: dict[str, Row] = {}
        for name in self.wanted:
            known = journal.get(name) if journal else None
            if known is not None and known["status"] == "ok":
                self.add(name, known, fresh=False)

    def add(self, name: str, row: Row, *, fresh: bool = True) -> None:
        """Take a row, write it down and print it."""
        self.rows[name] = row
        if fresh and self._journal is not None:
            self._journal.add(name, row)
        print(line(row), flush=True)

    def good(self) -> list[Row]:
        """Return the rows that have a result, in their order."""
        found = (self.rows.get(name) for name in self.wanted)
        return [row for row in found if row is not None and row["status"] == "ok"]


def cells(row: Row) -> list[str]:
    """Return a row under :data:`TITLES`; one without a result says why."""
    head = [row["model"], row["phase"], row["framework"], str(row["batch"])]
    if row["status"] != "ok":
        left = len(TITLES) - len(head) - 1
        return [*head, f"{row['status']}: {row['reason']}", *[""] * left]
    scale = Scale.of(row["measured_s"]["median"])

    def rung(name: str) -> str:
        found = row["rungs"][name]
        if found is None:
            return "refused" if is_refused(row, name) else "-"
        return scale.text(found["median"])

    return [
        *head,
        *map(rung, RUNGS),
        percent(row["additivity_error"], signed=True),
        percent(row["unexplained"], signed=True),
        str(len(row["contradictions"])),
    ]


def is_refused(row: Row, rung: str) -> bool:
    """Whether a rung was measured and is not comparable; else a framework or model has none."""
    return str(row["reasons"].get(rung, "")).startswith("refused")


def line(row: Row) -> str:
    """Return a row as it is printed."""
    return aligned(cells(row))


def aligned(words: Sequence[str]) -> str:
    """Return words in columns; the first three to the left."""
    columns = enumerate(zip(words, _WIDTHS, strict=True))
    parts = [word.ljust(width) if i < 3 else word.rjust(width) for i, (word, width) in columns]
    return "  ".join(parts).rstrip()


def verdict(rows: Sequence[Row], wanted: int) -> tuple[list[str], bool]:
    """Return what all rows say together, and whether every target is met by a whole table."""
    if not rows:
        return [f"0 of {wanted} rows have a result"], False
    errors = [abs(row["additivity_error"]) for row in rows]
    worst = max(rows, key=lambda row: abs(row["additivity_error"]))
    name = f"{worst['model']} {worst['phase']} {worst['framework']}"
    left = [abs(row["unexplained"]) for row in rows if row["unexplained"] is not None]
    found = (median(errors), max(errors))
    words = ("median additivity error", f"worst additivity error ({name})")
    lines = [f"{len(rows)} of {wanted} rows have a result"]
    for word, value, target in zip(words, found, TARGETS, strict=True):
        state = "met" if value <= target else "MISSED"
        lines.append(f"{word}: {100 * value:.1f} %, target {100 * target:.0f} %: {state}")
    if left:
        lines.append(f"median |unexplained|: {100 * median(left):.1f} % ({len(left)} rows)")
    refused = sum(any(is_refused(row, name) for name in RUNGS) for row in rows)
    lines.append(f"{refused} rows have a rung that was refused")
    wrong = sum(bool(row["contradictions"]) for row in rows)
    lines.append(f"{wrong} rows have measurements that contradict each other")
    met = all(value <= target for value, target in zip(found, TARGETS, strict=True))
    return lines, met and len(rows) == wanted


def markdown(rows: Sequence[Row], lines: Sequence[str], processor: str) -> str:
    """Return the table and the verdict as Markdown."""
    right = [number > 2 for number in range(len(TITLES))]
    table = markdown_table(TITLES, [cells(row) for row in rows], right)
    days = sorted({row["when"][:10] for row in rows})
    where = f"{processor}, {' to '.join(dict.fromkeys([days[0], days[-1]]))}" if days else processor
    return "\n\n".join([where, table, "\n".join(f"- {one}" for one in lines)]) + "\n"


# -----------------------------------------------------------------------------
# The rows: what is asked for, and its checks.


def name_of(task: CheckTask) -> str:
    """Return a row's name in the journal."""
    step = task.step
    return f"{step.model} {step.batch} {step.phase} {step.framework}"


def wanted(args: argparse.Namespace) -> list[list[CheckTask]]:
    """Return the checks of each model and phase, a task for each framework.

    Raises:
        UsageError: a bad word; before anything is measured.
    """
    parser = Parser(prog="pydlbench")
    command.add_parser(parser.add_subparsers())
    found = []
    for word in args.models:
        name, _, batch = word.partition(":")
        size = batch or str(MODELS.get(name, ""))
        for phase in args.phases:
            words = ["check", name, "--phase", phase, "--framework", *args.frameworks]
            words += ["--batch", size] if size else []
            if phase == "training" and build_model(name).optimizer.kind == "none":
                words += ["--option", "optimizer=sgd"]  # its script ends with the gradients
            words += ["--laps", args.laps, "--stop-after", args.stop_after]
            tasks, _ = read_tasks(parser.parse_args([*words, "--budget", args.budget]))
            checks = [one for one in tasks if isinstance(one, CheckTask)]
            found.append(checks)
    return found


class Passing(Recorder):
    """Takes what a check would keep in the store: only its results are wanted here.

    Args:
        take: called with each result's document.
    """

    def __init__(self, take: Callable[[Mapping[str, Any]], None]) -> None:
        super().__init__(None, "check")
        self._take = take

    def add(
        self,
        table: str,
        document: Mapping[str, Any],
        key: str | None = None,
    ) -> None:
        """Pass a result on."""
        super().add(table, document, key)
        if table == "check":
            self._take(document)


def take(
    tasks: Sequence[CheckTask],
    table: Table,
    processor: str,
) -> bool:
    """Check one step in all its frameworks; return whether Ctrl-C came."""
    names = {one.step.framework: name_of(one) for one in tasks}

    def finished(document: Mapping[str, Any]) -> None:
        row = {
            **document,
            "when": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            "processor": processor,
        }
        table.add(names[row["framework"]], row)

    with Passing(finished) as recorder:
        results = execute(tasks, None, recorder, progress=Progress(sys.stderr), tolerant=True)
    return results.interrupted


def main() -> int:
    """Take the rows that are not in the journal yet, then judge all of them.

    Exit 0 if the table is whole and meets its targets, 1 if not, 2 for bad input, 130 after Ctrl-C.
    """
    args = read()
    try:
        asked = wanted(args)
    except UsageError as error:
        print(f"checks: {error}", file=sys.stderr)
        return 2
    names = [name_of(one) for tasks in asked for one in tasks]
    begin = time.monotonic()
    processor = read_cpu_facts().name
    print(f"{processor}\n\n{aligned(TITLES)}", flush=True)
    table = Table(Journal(args.resume) if args.resume else None, names)
    interrupted = late = False
    for tasks in asked:
        todo = [one for one in tasks if name_of(one) not in table.rows]
        if not todo:
            continue
        late = args.seconds is not None and time.monotonic() - begin > args.seconds
        if late:
            break
        interrupted = take(todo, table, processor)
        if interrupted:
            break
    lines, met = verdict(table.good(), len(table.wanted))
    print("\n" + "\n".join(lines))
    left = len(table.wanted) - len(table.rows)
    if late or interrupted:
        how = (
            f"--resume {args.resume}" if args.resume else "--resume FILE, next time from the start"
        )
        print(f"{left} rows are left; go on with {how}")
    if args.md is not None:
        rows = [table.rows[name] for name in table.wanted if name in table.rows]
        args.md.write_text(markdown(rows, lines, processor))
    return 130 if interrupted else 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
