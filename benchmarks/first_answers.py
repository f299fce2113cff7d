"""Seconds until each command has an answer, and until it has the whole, on an idle machine.

    python benchmarks/first_answers.py --quick      # a few minutes
    python benchmarks/first_answers.py --md first_answers.md

Each row is a command, run in a store and with probes of its own, as on a new machine. Some are
interrupted with SIGINT after some seconds, and the answer so far is read from their JSON; some are
run again with what the first run has stored. ``--only WORD`` takes the commands with the word. The
package is compiled to bytecode before, as an installation compiles it.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pydlbench
from pydlbench.report.text import markdown_table

_MODELS: Final = Path(__file__).with_name("first_models.py")


class Row(NamedTuple):
    """A command to be timed.

    Attributes:
        words: words after ``pydlbench``.
        aim_s: seconds that it should take.
        interrupted_s: seconds after which it is interrupted; None to let it end.
        again_s: seconds that it should take the second time; None for one run.
        quick: whether ``--quick`` includes it.
    """

    words: str
    aim_s: float
    interrupted_s: float | None = None
    again_s: float | None = None
    quick: bool = False


_RESNET: Final = "resnet50 --batch 8 --framework torch"
ROWS: Final = (
    Row("layers --shape conv3 --batch 32", 1.4, again_s=0.8, quick=True),
    Row("step mnist --framework torch", 12, quick=True),
    Row("breakdown mnist --framework torch", 45, quick=True),
    Row(f"estimate {_MODELS}:unet --phase training", 20, interrupted_s=20, quick=True),
    Row(f"step {_RESNET}", 12, quick=True),
    Row(f"breakdown {_RESNET}", 45, interrupted_s=45),
    Row(f"breakdown {_RESNET}", 45, again_s=45),
    Row(f"breakdown {_MODELS}:bert --phase training --optimizer adamw", 60, interrupted_s=60),
    Row(f"breakdown {_MODELS}:bert --phase training --optimizer adamw", 120),
    Row(f"estimate {_MODELS}:unet --phase training", 90, again_s=90),
    Row("layers --model alexnet --batch 32 --pass all --backend all", 200),
    Row(f"forecast {_RESNET}", 60),
    Row(f"diagnose {_RESNET}", 120, interrupted_s=120),
)


def run(words: Sequence[str], after_s: float | None, folder: Path) -> tuple[float, dict[str, Any]]:
    """Run a command; return its seconds, and its JSON object or an empty one.

    Args:
        words: words after ``pydlbench``.
        after_s: seconds after which it is interrupted; None to let it end.
        folder: folder of its files, with its store and its probes.
    """
    path = folder / "answer.json"
    path.unlink(missing_ok=True)
    kept = {
        "PYDLBENCH_STORE": str(folder / "runs.sqlite"),
        "PYDLBENCH_PROBES": str(folder / "probes.json"),
        "PYTHONDONTWRITEBYTECODE": "",
    }
    command = [sys.executable, "-m", "pydlbench", *words, "--json", str(path)]
    begin = time.monotonic()
    with subprocess.Popen(
        command,
        env={**os.environ, **kept},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            process.wait(after_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
        process.wait()
    taken_s = time.monotonic() - begin
    return taken_s, json.loads(path.read_text()) if path.exists() else {}


def with_width(name: str, time_s: Mapping[str, Any]) -> str:
    """Return a time in milliseconds, with the half-width of its interval relative to it."""
    low, middle, high = (time_s.get(key) for key in ("ci_low", "median", "ci_high"))
    if middle is None:
        return f"{name} -"
    width = "" if low is None or high is None else f" +-{(high - low) / 2 / middle:.1%}"
    return f"{name} {1e3 * middle:.4g} ms{width}"


def described(document: Mapping[str, Any]) -> str:
    """Return in words what a document has."""
    if levels := document.get("levels"):
        return ", ".join(with_width(name, level) for name, level in levels.items() if level)
    if found := document.get("estimate"):
        width_s, middle = found["half_width_s"], found["time_s"]
        lacks = len(document.get("missing", ()))
        return f"{1e3 * middle:.4g} ms +-{width_s / middle:.1%}, {lacks} kernels not in the sum"
    if "findings" in document:
        return f"{len(document['findings'])} findings"
    rows = [
        row for name in ("steps", "measurements", "forecasts") for row in document.get(name, ())
    ]
    timed = [row for row in rows if row.get("status") == "ok"]
    if len(timed) == 1 and timed[0].get("time_s"):
        return with_width("", timed[0]["time_s"]).strip()
    return f"{len(timed)} of {len(rows)} rows" if rows else "nothing"


def cells(row: Row) -> list[str]:
    """Run a row's command, and return the cells of the table."""
    words = row.words.split()
    with tempfile.TemporaryDirectory() as folder:
        taken_s, document = run(words, row.interrupted_s, Path(folder))
        seconds, aims = [taken_s], [row.aim_s]
        if row.again_s is not None:
            seconds.append(run(words, None, Path(folder))[0])
            aims.append(row.again_s)
    shown = row.words.replace(str(_MODELS.parent), "benchmarks")
    stopped = "" if row.interrupted_s is None else f"SIGINT after {row.interrupted_s:g} s"
    times = (" / ".join(f"{each:.3g} s" for each in values) for values in (seconds, aims))
    return [f"`{shown}`", stopped, *times, described(document)]


def main() -> None:
    """Print the table, with a line for each command as soon as it has ended."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--only", default="", metavar="WORD", help="commands with this word")
    parser.add_argument("--quick", action="store_true", help="only short commands")
    parser.add_argument("--md", type=Path, metavar="FILE", help="write the table as Markdown")
    options = parser.parse_args()
    # A shell starts its background commands, and so their children, with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    compileall.compile_dir(Path(pydlbench.__file__).parent, quiet=2)
    chosen = [row for row in ROWS if options.only in row.words and (row.quick or not options.quick)]
    table = []
    for row in chosen:
        table.append(cells(row))
        print(" | ".join(table[-1]), flush=True)
    head = ["command", "interrupted", "first / again", "aim", "answer"]
    if options.md is not None:
        options.md.write_text(markdown_table(head, table))


if __name__ == "__main__":
    main()
