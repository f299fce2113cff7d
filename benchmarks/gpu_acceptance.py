"""Everything that is claimed of a GPU, measured and held against its targets, task by task.

    python benchmarks/gpu_acceptance.py --seconds 450 --out benchmarks/results/h200

Runs the gpu tests, probes the device, times an 8192 x 8192 x 8192 product in all modes, AlexNet and
VGG-16 (three passes, all modes, hot and cold), and every layer beside PyTorch with
``cudnn.benchmark``; then all layers a second time. Each finished task is in ``acceptance.jsonl``
at once; ``acceptance.md`` and ``acceptance.json`` are written at the end. When the time is over it
stops with exit code 3; the same command goes on where it stopped, on another machine of the same
kind too (``--resume FILE`` reads a journal from elsewhere). Exit code 0: everything is measured and
every target met; 1: a target was missed; 2: no GPU, or another one than the journal's.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from acceptance.journal import Journal
from acceptance.report import document, markdown
from acceptance.tasks import Settings, Task, open_session, tasks
from acceptance.verdicts import verdicts

from pydlbench.errors import BackendMissingError, UnsupportedError
from pydlbench.runner.session import Session

WRONG_MACHINE = 2
TIME_IS_OVER = 3
# Where a journal keeps the machines that it was written on.
MACHINE = "machine "


def perform(
    found: Iterable[Task],
    journal: Journal,
    session: Session,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
    again: bool = False,
) -> bool:
    """Perform what is not finished yet; return whether everything is.

    A task that fails is recorded with its reason and costs nothing but itself.

    Args:
        found: what there is to do.
        journal: what was done, and is to be added to.
        session: for the tasks.
        seconds: how long to go on; what would hardly end in time is not begun, unless it is the
            first.
        clock: seconds that only grow.
        again: repeat what has failed.
    """
    begin = clock()
    first = True
    for task in found:
        entry = journal.get(task.name)
        if entry is not None and not (again and "error" in entry):
            continue
        start = clock()
        left = seconds - (start - begin)
        if left <= 0 or (left < task.least_s and not first):
            return False
        first = False
        try:
            entry = task.run(session)
        except Exception as error:  # noqa: BLE001 - a surprise costs its task, not the run
            entry = {"error": f"{type(error).__name__}: {error}"}
        took = clock() - start
        journal.add(task.name, {**entry, "seconds": round(took, 3)})
        print(f"{took:7.1f} s  {task.name}", flush=True)
    return True


def about(session: Session, device: str) -> dict[str, Any]:
    """Return what names this machine: hardware, driver, libraries, date."""
    facts = session.devices.gpu(device, levels=()).facts
    libraries = session.worker("native", device).describe()["libraries"]
    return {
        "name": facts.name,
        "uuid": facts.uuid,
        "compute capability": facts.capability,
        "CUDA of the driver": facts.driver_version,
        "CUDA of the build": facts.runtime_version,
        **{name: library["version"] for name, library in libraries.items()},
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
    }


def enter_machine(journal: Journal, machine: dict[str, Any]) -> str | None:
    """Add this machine to the journal; return what forbids to mix its results with those there."""
    for known in journal.entries(MACHINE).values():
        if known["name"] != machine["name"]:
            return f"the journal is of {known['name']}, this is {machine['name']}; other --out"
    name = f"{MACHINE}{machine['uuid']} {machine['date']}"
    if name not in journal:
        journal.add(name, machine)
    return None


def write(out: Path, journal: Journal, machine: dict[str, Any], names: list[str]) -> None:
    """Write the report as Markdown and as JSON."""
    (out / "acceptance.md").write_text(markdown(journal, machine, names))
    text = json.dumps(document(journal, machine, names), indent=1, allow_nan=False)
    (out / "acceptance.json").write_text(text + "\n")


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--seconds", type=float, default=450, help="of this invocation (450)")
    parser.add_argument("--out", type=Path, required=True, help="folder for journal and report")
    parser.add_argument("--resume", type=Path, nargs="*", default=[], help="journals to go on from")
    parser.add_argument("--retry", action="store_true", help="do again what has failed")
    parser.add_argument("--shape", nargs="+", help="layers (alexnet-owt/* vgg16/*)")
    parser.add_argument("--batch", type=int, help="default: the catalog's")
    parser.add_argument("--precision", nargs="+", help="modes; default: all")
    parser.add_argument("--only", nargs="+", help="tests device gemm layers torch repeat")
    return parser.parse_args(words)


def read_settings(args: argparse.Namespace) -> Settings:
    """Return what the command line asks for."""
    given = {
        "patterns": args.shape and tuple(args.shape),
        "batch": args.batch,
        "precisions": args.precision and tuple(args.precision),
        "kinds": args.only and tuple(args.only),
    }
    changes = {name: value for name, value in given.items() if value}
    return dataclasses.replace(Settings(device=args.device), **changes)


def main(words: list[str] | None = None) -> int:
    """Go on until everything is measured or the time is over, then write the report."""
    args = parse(words)
    settings = read_settings(args)
    journal = Journal(args.out / "acceptance.jsonl", tuple(args.resume))
    names = [task.name for task in tasks(settings)]
    with open_session() as session:
        try:
            machine = about(session, args.device)
        except (BackendMissingError, UnsupportedError) as error:
            print(f"gpu_acceptance: {error}")
            return WRONG_MACHINE
        if reason := enter_machine(journal, machine):
            print(f"gpu_acceptance: {reason}")
            return WRONG_MACHINE
        done = perform(tasks(settings), journal, session, args.seconds, again=args.retry)
    write(args.out, journal, machine, names)
    for one in verdicts(journal):
        word = {True: "met ", False: "MISS", None: "open"}[one.met]
        print(f"{word}  {one.target}: {one.found}")
    print(f"{sum(name in journal for name in names)} of {len(names)} tasks finished")
    if not done:
        return TIME_IS_OVER
    return 0 if all(one.met for one in verdicts(journal)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
