"""What messages between two ranks cost, and data-parallel steps: forecast, then run.

    python benchmarks/ranks.py --threads 2 [--times 6] [--minutes M] [--md FILE]

First the collectives. Then of each model a forecast of its training step on two ranks, which runs
no such step; then that step by ``DistributedDataParallel`` and the step of one rank with as many
threads, in turn and in processes of their own. Last the collectives again, which the line through
the first ones' times is held against. All are ``pydlbench`` as users run it, on a machine of one's
own. What is finished is a line of the journal at once; the same command goes on there.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from journal import Journal

from pydlbench.devices.cpu.facts import read_cpu_facts
from pydlbench.report.text import markdown_table
from pydlbench.timing.statistics import median, paired_ratio
from pydlbench.units import Scale, format_bytes, format_seconds, percent

RANKS: Final = 2


def main() -> int:
    """Do what is left, then print what is known; 0 if all of it is there, 1 if not."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--threads", type=int, default=2, help="of each rank (2)")
    parser.add_argument("--models", nargs="+", default=["alexnet-owt", "resnet18"])
    parser.add_argument("--batch", type=int, default=4, help="of each rank (4)")
    parser.add_argument("--sizes", default="1K..256M", help="of messages (1K..256M)")
    parser.add_argument("--times", type=int, default=6, help="pairs of steps in turn (6)")
    parser.add_argument("--budget", type=float, help="seconds of each row; default: the command's")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin nothing later")
    parser.add_argument("--journal", type=Path, default=Path("ranks.jsonl"))
    parser.add_argument("--store", type=Path, default=Path("ranks.sqlite"))
    parser.add_argument("--md", type=Path, metavar="FILE", help="write the page as Markdown")
    args = parser.parse_args()
    journal = Journal(args.journal)
    every, end = tasks(args), time.monotonic() + 60 * args.minutes
    for task, words in every.items():
        # A forecast needs the collectives, and is made before its step runs.
        kind, name = task.split()[:2]
        needed = {"collectives": task, "forecast": "collectives first"}.get(
            kind, f"forecast {name}"
        )
        blocked = needed != task and needed not in journal
        if task in journal or blocked or time.monotonic() > end:
            continue
        begin = time.monotonic()
        why, entry = asked(words, args)
        if why is None:
            when = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
            journal.add(task, {"when": when, "command": words, **entry})
        print(f"{time.monotonic() - begin:5.0f} s  {task}  {why or 'done'}", flush=True)
    text = page(journal, args.models)
    print(text)
    if args.md is not None:
        args.md.write_text(text, encoding="utf-8")
    return int(not all(task in journal for task in every))


def tasks(args: argparse.Namespace) -> dict[str, list[str]]:
    """Return the command of each task, in the order in which they are run."""
    ranks, budget = ["--ranks", str(RANKS)], ["--budget", str(args.budget)] if args.budget else []
    collectives = ["collectives", *ranks, "--sizes", args.sizes, *budget]
    found = {"collectives first": collectives}
    for model in args.models:
        step = [model, "--batch", str(args.batch), "--phase", "training", "--framework", "torch"]
        found[f"forecast {model}"] = ["forecast", *step, *ranks]
        plain = ["e2e", *step, "--visits", "2", "--no-checks", *budget]
        for number in range(args.times):
            both = {f"one {model} {number}": plain, f"two {model} {number}": [*plain, *ranks]}
            # Whichever is first would have the cooler machine each time.
            found |= dict(reversed(both.items())) if number % 2 else both
    return found | {"collectives again": collectives}


def asked(words: Sequence[str], args: argparse.Namespace) -> tuple[str | None, dict[str, Any]]:
    """Run a command; return why nothing came of it, and what the journal keeps of it."""
    with tempfile.TemporaryDirectory(prefix="pydlbench-ranks-") as folder:
        file = Path(folder) / "found.json"
        more = ["--threads", str(args.threads), "--store", str(args.store), "--json", str(file)]
        command = [sys.executable, "-m", "pydlbench", *words, *more, "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return (done.stderr or done.stdout).strip().rpartition("\n")[-1] or "failed", {}
        found = json.loads(file.read_text(encoding="utf-8"))
    if words[0] == "collectives":
        names = ("operation", "bytes", "threads", "library", "contended", "time_s")
        rows = [{name: one.get(name) for name in names} for one in found["rows"]]
        return None, {"rows": rows, "fits": found["fits"], "overlap": found["overlap"]}
    if words[0] == "forecast":
        names = ("batch", "threads", "forecast_s", "ci_low", "ci_high", "scaling")
        return None, {name: found["forecasts"][0][name] for name in names}
    return None, {name: found["steps"][0][name] for name in ("time_s", "contended", "threads")}


# -----------------------------------------------------------------------------
# The page.


def page(journal: Journal, models: Sequence[str]) -> str:
    """Return what is known, as Markdown."""
    first, again = journal.get("collectives first"), journal.get("collectives again")
    parts = ["# Ranks: messages, and data-parallel steps"]
    if first is not None:
        threads, library = first["rows"][0]["threads"], first["rows"][0]["library"]
        parts.append(
            f"{read_cpu_facts().name}, {first['when'][:10]}, {RANKS} ranks with {threads} thread"
            f"{'s' * (threads > 1)} each, {library}. `python benchmarks/ranks.py --threads "
            f"{threads}`. {_LEGEND}"
        )
        parts += ["## The line through a collective's times", *lines_of(first, again)]
    rows = [cells for model in models if (cells := step_cells(journal, model))]
    if rows:
        right = [number > 0 for number in range(len(_STEPS))]
        parts += ["## Steps", markdown_table(_STEPS, rows, right)]
    return "\n\n".join(parts) + "\n"


_LEGEND: Final = (
    "Errors: (predicted - measured) / measured. `*`: other work disturbed most samples.\n\n"
    "`line`: t = alpha + S / B of the first run, by least squares of relative errors; `error`: at "
    "the times that it goes through; `later`: at those of a run behind all steps; `run to run`: "
    "the first run's time as if it were the later one's forecast.\n\n"
    "Steps are medians of processes in turn. `efficiency`: one rank's step over that of "
    "all, the measured one with its 95 % interval; `of ranks alone`: the error of the measured "
    "step of one rank over the forecast efficiency, which is what ranks add to the error."
)
_STEPS: Final = (
    *("model", "pairs", "one: forecast", "measured", "error"),
    *(f"{RANKS} ranks: forecast", "interval", "measured", "error"),
    *("efficiency: forecast", "measured", "of ranks alone"),
)


def lines_of(first: dict[str, Any], again: dict[str, Any] | None) -> list[str]:
    """Return the lines with their errors, and a table of the times by operation and size."""

    def times(run: dict[str, Any] | None) -> dict[tuple[str, int], float]:
        rows = run["rows"] if run is not None else []
        return {(one["operation"], one["bytes"]): one["time_s"]["median"] for one in rows}

    later, said, cells = times(again), [], []
    disturbed = {(one["operation"], one["bytes"]) for one in first["rows"] if one["contended"]}
    lines = {one["operation"]: one for one in first["fits"]}
    for (operation, size), seconds in times(first).items():
        line = lines[operation]
        told = line["alpha_s"] + size / (line["bytes_per_s"] or math.inf)
        other = later.get((operation, size))
        off = [one / other - 1 if other else None for one in (told, seconds)]
        middle = format_seconds(seconds) + (" *" if (operation, size) in disturbed else "")
        errors = [percent(one, signed=True) for one in (told / seconds - 1, *off)]
        cells.append([operation, format_bytes(size), middle, format_seconds(told), *errors])
    for operation, line in lines.items():
        off = [abs(one) for one in line["errors"].values()]
        rate = line["bytes_per_s"] and f" + S / {line['bytes_per_s'] / 1e9:.3g} GB/s"
        said.append(
            f"- {operation}: t = {format_seconds(line['alpha_s'])}{rate or ''}; error "
            f"{percent(median(off))} in the median, at most {percent(max(off))}"
        )
    titles = ("operation", "bytes", "measured", "line", "error", "later", "run to run")
    return ["\n".join(said), markdown_table(titles, cells)]


def step_cells(journal: Journal, model: str) -> list[str]:
    """Return a model under the titles of the steps; nothing where steps have not run."""
    told = journal.get(f"forecast {model}")
    rows = {how: journal.entries(f"{how} {model} ") for how in ("one", "two")}
    one, two = (
        {int(task.rpartition(" ")[2]): row["time_s"]["median"] for task, row in rows[how].items()}
        for how in ("one", "two")
    )
    if told is None or not one.keys() & two.keys():
        return []
    (ranked,) = told["scaling"]
    middles = {how: median(found.values()) for how, found in (("one", one), ("two", two))}
    forecasts = {"one": told["forecast_s"], "two": ranked["seconds"]}
    scale, ratio = Scale.of(middles["two"]), paired_ratio(one, two)
    parts = {
        how: [
            scale.text(forecasts[how]),
            scale.text(middles[how]) + " *" * any(row["contended"] for row in rows[how].values()),
            percent(forecasts[how] / middles[how] - 1, signed=True),
        ]
        for how in ("one", "two")
    }
    parts["two"].insert(1, f"{scale.bare(ranked['ci_low'])} .. {scale.bare(ranked['ci_high'])}")
    ends = ratio.interval
    within = f" ({percent(ends.low)} .. {percent(ends.high)})" if ends is not None else ""
    alone = percent(ratio.median / ranked["efficiency"] - 1, signed=True)
    efficiency = [percent(ranked["efficiency"]), percent(ratio.median) + within, alone]
    return [model, str(ratio.n), *parts["one"], *parts["two"], *efficiency]


if __name__ == "__main__":
    raise SystemExit(main())
