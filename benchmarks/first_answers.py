"""Seconds until each command has its first answer, and until it has the whole: an idle machine.

``python benchmarks/first_answers.py`` runs the commands below, interrupts each of them with SIGINT
after the given seconds, and reads its JSON; then again without an interruption. ``--only WORD``
runs the commands with the word.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

#: Words of a command, and the seconds after which it is interrupted.
COMMANDS = (
    ("step resnet50 --batch 8 --framework torch", 12),
    ("breakdown resnet50 --batch 8 --framework torch", 45),
    ("breakdown bert-base --batch 2 --phase training --framework torch", 60),
    ("estimate unet --phase training", 20),
    ("layers --shape conv3 --batch 32", 2),
    ("layers --shape alexnet/* --batch 32 --backend all", 60),
    ("forecast resnet50 --batch 8 --framework torch", 30),
    ("diagnose resnet50 --batch 8 --framework torch", 60),
)


def run(words: list[str], after_s: float | None, folder: Path) -> tuple[float, dict[str, Any]]:
    """Run a command; return its seconds, and its JSON object or an empty one.

    Args:
        words: words after ``pydlbench``.
        after_s: seconds after which it is interrupted; None to let it end.
        folder: folder of its files and of its store.
    """
    path = folder / "answer.json"
    path.unlink(missing_ok=True)
    environment = {**os.environ, "PYDLBENCH_STORE": str(folder / "runs.sqlite")}
    command = [sys.executable, "-m", "pydlbench", *words, "--json", str(path)]
    begin = time.monotonic()
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            process.wait(after_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
        process.wait()
    taken_s = time.monotonic() - begin
    return taken_s, json.loads(path.read_text()) if path.exists() else {}


def interval(level: dict[str, Any]) -> str:
    """Return a level in milliseconds with its interval, if it has one."""
    low, middle, high = (level.get(name) for name in ("ci_low", "median", "ci_high"))
    between = "" if low is None or high is None else f" ({1e3 * low:.0f} .. {1e3 * high:.0f})"
    return f"{1e3 * (middle or 0.0):.0f}{between}"


def described(document: dict[str, Any]) -> str:
    """Return in words what a document has."""
    if levels := document.get("levels"):
        known = [
            f"{name} {1e3 * level['median']:.0f} ms"
            + (
                f" ({1e3 * level['ci_low']:.0f} .. {1e3 * level['ci_high']:.0f})"
                * bool(level["ci_low"])
            )
            for name, level in levels.items()
            if level is not None
        ]
        return ", ".join(known)
    if estimate := document.get("estimate"):
        lacks = len(document.get("missing", ()))
        return f"{1e3 * estimate['time_s']:.0f} ms, {lacks} kernels not in the sum"
    if "findings" in document:
        return f"{len(document['findings'])} findings"
    rows = document.get("steps") or document.get("measurements") or document.get("forecasts") or ()
    timed = [row for row in rows if row.get("status") == "ok"]
    return f"{len(timed)} of {len(rows)} rows" if rows else "nothing"


def main() -> None:
    """Print a line for each command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", metavar="WORD", help="commands with this word")
    only = parser.parse_args().only
    print("| command | interrupted after | answer | whole, again |")
    print("| :--- | ---: | :--- | ---: |")
    for text, after_s in COMMANDS:
        if only not in text:
            continue
        with tempfile.TemporaryDirectory() as folder:
            taken_s, document = run(text.split(), after_s, Path(folder))
            whole_s, _ = run(text.split(), None, Path(folder))
        answer = described(document)
        print(f"| `{text}` | {taken_s:.0f} s | {answer} | {whole_s:.0f} s |", flush=True)


if __name__ == "__main__":
    main()
