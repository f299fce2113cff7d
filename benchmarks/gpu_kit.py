"""The kit for a GPU machine without a network: built here, and called there repeatedly.

    python benchmarks/gpu_kit.py build                        # wheels into .gpu_kit, 40 MiB at most
    python benchmarks/gpu_kit.py run --minutes 8 --out out    # on the machine, in this checkout

``run`` installs from the folder, goes on where the last call stopped (``journal.jsonl`` in the
folder of the results; ``--resume FILE`` takes one from elsewhere, where each call has a new
machine), in breadth first, each step under a time-out of its own: what there is, what the card does
without our code, everything once and tiny. What fails there, later steps do without: the launch
gate, CUDA graphs, PyTorch's profiler, a backend. It ends with a summary of at most 100 lines, which
is ``summary.txt`` as well, and leaves no more than eight files.
Exit codes: 0: all steps are done and every target is met; 1: a step failed, or a target was missed;
2: there is no GPU that can be used, or another one than the journal's; 3: the time is over, call it
again.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

# The summary formats numbers as this checkout does; the package may not be installed yet.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from journal import Journal
from kit.building import PYTHONS, REPOSITORY, build, install
from kit.running import execute, perform
from kit.steps import JOURNAL, Step, Switches, first_steps, steps
from kit.summary import card_of, summary, verdicts

WRONG_MACHINE = 2
TIME_IS_OVER = 3
_WHEELS = REPOSITORY / ".gpu_kit" / "wheels"
_WORK = REPOSITORY / ".gpu_kit" / "work"


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("build", help="make the wheels")
    making.add_argument("--python", nargs="+", default=PYTHONS, metavar="X.Y")
    running = commands.add_parser("run", help="measure, on the machine")
    running.add_argument("--minutes", type=float, default=8.0, help="of this call (8)")
    running.add_argument("--out", type=Path, required=True, help="folder for journal and summary")
    running.add_argument("--resume", type=Path, nargs="*", default=[], metavar="JOURNAL")
    running.add_argument("--retry", action="store_true", help="do again what has failed")
    running.add_argument("--only", nargs="+", metavar="STEP", help="steps that begin so")
    running.add_argument("--device", default="cuda:0")
    running.add_argument("--site", type=Path, help="a folder where the package is installed")
    for one in (making, running):
        one.add_argument("--wheels", type=Path, default=_WHEELS, help="folder (.gpu_kit/wheels)")
    return parser.parse_args(words)


def make(args: argparse.Namespace) -> int:
    """Build the wheels, and list them."""
    seconds = build(args.wheels, _WORK, args.python)
    files = sorted(args.wheels.iterdir())
    for one in files:
        print(f"{one.stat().st_size / 2**20:6.2f} MiB  {one.name}")
    total = sum(one.stat().st_size for one in files) / 2**20
    took = ", ".join(f"Python {version} in {one:.0f} s" for version, one in seconds.items())
    print(f"{total:6.2f} MiB in {args.wheels}; {took}")
    return 0


def refused(step: Step, journal: Journal, out: Path, environment: dict[str, str]) -> str | None:
    """Examine the machine in each call; return the reason if the kit cannot continue.

    That is only: there is no card, or another one than the journal's.
    """
    entry = execute(step, out, step.timeout_s, environment)
    name = card_of(entry)
    if name is None:
        item = entry.get("items", {}).get("card", entry)
        return f"{item.get('error')} {entry.get('said', '')}"
    before = card_of(journal.get(step.name) or entry)
    if name != before:
        return f"the journal is of {before}, this is {name}; another --out"
    journal.add(step.name, entry)
    return None


def run(args: argparse.Namespace) -> int:
    """Perform steps until all are done or the time is over, then print the summary."""
    end = time.monotonic() + 60 * args.minutes
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    journal = Journal(out / JOURNAL, tuple(args.resume))
    look, *first = first_steps()

    def every() -> Iterator[Step]:
        """Return all steps but the first; later ones avoid what failed in the smoke run."""
        yield from first
        yield from steps(args.device, out, Switches.of(journal))

    def wanted() -> Iterator[Step]:
        prefixes = tuple(args.only or ("",))
        return (one for one in every() if one.name.startswith(prefixes))

    names = [look.name, *(one.name for one in wanted())]

    def write() -> str:
        text = summary(journal, names)
        (out / "summary.txt").write_text(text)
        return text

    with tempfile.TemporaryDirectory() as folder:
        site = args.site or Path(folder)
        if args.site is None:
            install(args.wheels, site)
        environment = {
            **os.environ,
            "PYTHONPATH": str(site.resolve()),
            "HYPOTHESIS_STORAGE_DIRECTORY": folder,  # which would be one more in the results
        }
        if reason := refused(look, journal, out, environment):
            print(f"gpu_kit: {reason}")
            return WRONG_MACHINE
        left = end - time.monotonic()
        done = perform(wanted(), journal, out, left, environment, args.retry, write)
    print(write(), end="")
    if not done:
        return TIME_IS_OVER
    failed = any("error" in (journal.get(name) or {}) for name in names)
    return 1 if failed or not all(one.met for one in verdicts(journal)) else 0


def main(words: list[str] | None = None) -> int:
    """Build, or run."""
    args = parse(words)
    return make(args) if args.command == "build" else run(args)


if __name__ == "__main__":
    raise SystemExit(main())
