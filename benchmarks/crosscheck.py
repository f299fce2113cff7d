"""The cross-check's table: models x phases x frameworks, held against its targets.

    python benchmarks/crosscheck.py --resume crosscheck.jsonl --md crosscheck.md

Each row is what ``pydlbench check`` finds: a prediction that is stored before its step runs, the
measured step, and what no term of the ledger explains. The targets: errors of the prediction of at
most 5 % in the median and 12 % at worst, and at most 3 % of the step unexplained in the median.

With ``--resume`` each finished row is a line of that file at once; a run that ends early, by
Ctrl-C, by ``--seconds`` or otherwise, goes on there. Rows that failed are tried again.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from acceptance.journal import Journal
from crosscheck_table import TITLES, Table, aligned, markdown, verdict

from pydlbench.cli import check as command
from pydlbench.cli.check import CheckRequest, CheckTask, read_check, tasks
from pydlbench.cli.parser import Parser
from pydlbench.cli.terminal import Progress
from pydlbench.devices.cpu.facts import read_cpu_facts
from pydlbench.errors import UsageError
from pydlbench.ladder.estimate import Range
from pydlbench.ladder.native import NativeSum
from pydlbench.models import build_model
from pydlbench.runner.execute import Result, View, execute
from pydlbench.runner.recorder import Recorder

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


def read(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    models = [f"{name}:{batch}" for name, batch in MODELS.items()]
    parser.add_argument("--models", nargs="+", default=models, metavar="NAME[:BATCH]")
    parser.add_argument("--phases", nargs="+", default=list(PHASES))
    parser.add_argument("--frameworks", nargs="+", default=list(FRAMEWORKS))
    parser.add_argument("--rounds", default="15", help="of each row, at the most")
    parser.add_argument("--time-limit", default="60", help="seconds of each row's rounds")
    parser.add_argument("--budget", default="0.25", help="seconds per native kernel")
    parser.add_argument(
        "--no-native",
        action="store_true",
        help="no native rows, which take most of the time of deep networks: neither the prediction "
        "nor what is unexplained needs them",
    )
    parser.add_argument("--seconds", type=float, help="start no step after so long")
    parser.add_argument(
        "--resume", type=Path, metavar="FILE", help="journal; goes on where it ends"
    )
    parser.add_argument("--md", type=Path, metavar="FILE", help="write the table as Markdown")
    return parser.parse_args(arguments)


def task(model: str, batch: int, phase: str, framework: str) -> str:
    """Return a row's name in the journal."""
    return f"{model} {batch} {phase} {framework}"


def requests(args: argparse.Namespace) -> list[CheckRequest]:
    """Return a request for each model and phase, all frameworks together.

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
            words += ["--rounds", args.rounds, "--time-limit", args.time_limit]
            found.append(read_check(parser.parse_args([*words, "--budget", args.budget])))
    return found


class Results(Recorder):
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


class WithoutNative(CheckTask):
    """A check whose native layers are not measured: terms that are held against them are sums."""

    def native(
        self,
        session: Any,  # noqa: ARG002 - as its base has it
        view: View,  # noqa: ARG002 - likewise
        stages: int,  # noqa: ARG002 - likewise
    ) -> Generator[Result, None, NativeSum]:
        """Return nothing."""
        yield from ()
        return NativeSum(time=Range(hot=0.0, cold=0.0), by_node={})


def take(
    request: CheckRequest,
    table: Table,
    processor: str,
    session_factory: Callable[..., Any] | None,
    checker: Callable[..., Any] | None,
    *,
    native: bool = True,
) -> bool:
    """Check one step in all its frameworks; return whether Ctrl-C came."""

    def name(framework: str) -> str:
        return task(request.model.name, request.model.batch, request.phase, framework)

    def finished(document: Mapping[str, Any]) -> None:
        row = {
            **document,
            "when": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            "processor": processor,
        }
        table.add(name(row["framework"]), row)

    wanted = [
        one
        if native
        else WithoutNative(rows=one.rows, options=one.options, request=request, checker=checker)
        for one in tasks(request, checker)
    ]
    with Results(finished) as recorder:
        results = execute(
            wanted,
            None if session_factory is None else lambda task: session_factory(**task.options),
            recorder,
            progress=Progress(sys.stderr),
            tolerant=True,
        )
    return results.interrupted


def main(
    arguments: Sequence[str] | None = None,
    session_factory: Callable[..., Any] | None = None,
    checker: Callable[..., Any] | None = None,
) -> int:
    """Take the rows that are not in the journal yet, then judge all of them.

    Exit 0 if the table is whole and meets its targets, 1 if not, 2 for bad input, 130 after Ctrl-C.
    """
    args = read(arguments)
    try:
        asked = requests(args)
    except UsageError as error:
        print(f"crosscheck: {error}", file=sys.stderr)
        return 2
    names = {
        (number, framework): task(one.model.name, one.model.batch, one.phase, framework)
        for number, one in enumerate(asked)
        for framework, _ in one.subjects
    }
    begin = time.monotonic()
    processor = read_cpu_facts().name
    print(f"{processor}\n\n{aligned(TITLES)}", flush=True)
    table = Table(Journal(args.resume) if args.resume else None, list(names.values()))
    interrupted = late = False
    for number, request in enumerate(asked):
        todo = tuple(one for one in request.subjects if names[number, one[0]] not in table.rows)
        if not todo:
            continue
        late = args.seconds is not None and time.monotonic() - begin > args.seconds
        if late:
            break
        rest = dataclasses.replace(request, subjects=todo)
        native = not args.no_native
        interrupted = take(rest, table, processor, session_factory, checker, native=native)
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
