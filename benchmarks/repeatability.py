"""Checks the prediction intervals of rows by measuring the same rows several times.

    python benchmarks/repeatability.py --stage 1 --folder repeatability
    python benchmarks/repeatability.py --stage 2 --folder repeatability     # half an hour later
    python benchmarks/repeatability.py --stage 3 --folder repeatability     # and another
    python benchmarks/repeatability.py --stage 4 --folder repeatability --md repeatability.md

A stage is one ``pydlbench layers`` over AlexNet-OWT's layers in all passes, with the native
backend. All stages are kept in one store in the folder: from the third on, if they are half an hour
apart or more, rows have a 90 % prediction interval. The page counts in how many rows of the next
stage the median lies within it, and, beside it, within the 95 % interval that the stage before
printed of its own median. Run each stage alone on the machine, with the same code. With
``--minutes 2`` a stage ends after two minutes, and the same command continues it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from pydlbench.errors import PydlbenchError
from pydlbench.report.text import markdown_table
from pydlbench.store.place import machine_name
from pydlbench.units import format_hz, percent, time_in, time_unit

#: The share of rows whose interval should hold the next stage's median.
AIM = 0.9


class Interval(NamedTuple):
    """An interval of times, in seconds."""

    low: float
    high: float

    def holds(self, seconds: float) -> bool:
        """Whether a time lies within."""
        return self.low <= seconds <= self.high

    def half_width(self, middle: float) -> float:
        """Return half of the width, relative to a time."""
        return (self.high - self.low) / 2 / middle


class Row(NamedTuple):
    """A row's time in one stage, in seconds.

    Attributes:
        median: median of the repetitions.
        within: 95 % interval of the median; None without one.
        expected: prediction interval of later stages' medians; None before the third stage.
        contended: whether the row is marked as disturbed.
        algorithm: the kernel.
    """

    median: float
    within: Interval | None
    expected: Interval | None
    contended: bool
    algorithm: str


#: A stage's rows by layer and pass.
Rows = Mapping[tuple[str, str], Row]
#: A document written by ``layers --json``.
Document = Mapping[str, Any]


def read() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--stage", type=int, metavar="N", help="measure this one, from 1 on")
    parser.add_argument("--folder", type=Path, default=Path("repeatability"))
    parser.add_argument("--model", default="alexnet-owt")
    parser.add_argument("--batch", type=int, help="default: the model's own")
    parser.add_argument("--minutes", metavar="N", help="end after N minutes; again: continue")
    parser.add_argument("--md", type=Path, metavar="FILE", help="write the page")
    args = parser.parse_args()
    if args.stage is None and args.md is None:
        parser.error("nothing to do; give --stage, --md or both")
    return args


# -----------------------------------------------------------------------------
# Measuring.


def rows_file(folder: Path, stage: int) -> Path:
    """Return where a stage's JSON is kept."""
    return folder / f"stage-{stage}.json"


def is_done(path: Path) -> bool:
    """Whether all rows of a stage are there."""
    return path.exists() and not json.loads(path.read_text(encoding="utf-8"))["interrupted"]


def measure(
    folder: Path, stage: int, model: str, batch: int | None, minutes: str | None = None
) -> int:
    """Measure a stage or what is left of it, unless it is done; return the command's exit code."""
    path = rows_file(folder, stage)
    if is_done(path):
        print(f"stage {stage} is done; kept as {path}")
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    words = ["layers", "--model", model, "--pass", "all", "--backend", "native", "--device", "cpu"]
    words += ["--batch", str(batch)] if batch else []
    words += ["--store", str(folder / "store.sqlite"), "--json", str(path)]
    words += ["--minutes", minutes] if minutes else []
    if path.exists():  # it was interrupted
        words += ["--resume", json.loads(path.read_text(encoding="utf-8"))["run"]["id"]]
    return subprocess.run([sys.executable, "-m", "pydlbench", *words], check=False).returncode


# -----------------------------------------------------------------------------
# The page.


def rows_of(document: Document) -> Rows:
    """Return the measured rows of a stage's JSON."""
    return {
        (row["layer"], row["pass"]): Row(
            median=row["time_s"]["median"],
            within=_interval(row["time_s"], "ci_low", "ci_high"),
            expected=_interval(row.get("expected_s") or {}, "low", "high"),
            contended=bool(row["contended"]),
            algorithm=row["algorithm"],
        )
        for row in document["measurements"]
        if row["status"] == "ok"
    }


def _interval(values: Mapping[str, Any], low: str, high: str) -> Interval | None:
    if values.get(low) is None:
        return None
    return Interval(values[low], values[high])


def _share(answers: Sequence[bool]) -> str:
    count = len(answers)
    return f"{percent(sum(answers) / count)} ({sum(answers)} of {count})" if answers else "-"


def held(before: Rows, after: Rows, which: str) -> list[bool]:
    """Return of each row with such an interval whether it holds the next stage's median."""
    intervals = {key: getattr(row, which) for key, row in before.items()}
    return [
        interval.holds(after[key].median)
        for key, interval in intervals.items()
        if interval is not None and key in after
    ]


def widths(stages: Mapping[int, Rows], which: str) -> str:
    """Return the half-widths of such intervals, relative to the medians."""
    intervals = [(row, getattr(row, which)) for rows in stages.values() for row in rows.values()]
    halves = [interval.half_width(row.median) for row, interval in intervals if interval]
    return f"median {percent(median(halves))}, worst {percent(max(halves))}" if halves else "-"


def pairs(stages: Mapping[int, Rows]) -> str:
    """Return the table of stages and those after them."""
    lines = []
    for a, b in pairwise(stages):
        before, after = stages[a], stages[b]
        moved = [abs(after[key].median / before[key].median - 1) for key in before.keys() & after]
        lines.append(
            [
                f"{a}, {b}",
                _share(held(before, after, "expected")),
                _share(held(before, after, "within")),
                str(sum(row.contended for row in after.values())),
                percent(median(moved)) if moved else "-",
                percent(max(moved)) if moved else "-",
            ]
        )
    heading = ["stages", "90 % of later runs", "95 % of the median", "disturbed"]
    heading += ["medians differ, median", "worst"]
    return markdown_table(heading, lines, [at > 0 for at in range(len(heading))])


def table(stages: Mapping[int, Rows]) -> str:
    """Return all rows, the stages side by side."""
    heading = ["layer", "pass", *(f"stage {n}" for n in stages), "90 % of later runs", "kernels"]
    lines = []
    for key in dict.fromkeys(key for rows in stages.values() for key in rows):
        own = {n: rows[key] for n, rows in stages.items() if key in rows}
        unit = time_unit([row.median for row in own.values()])
        known = [row.expected for row in own.values() if row.expected]
        last = " to ".join(time_in(unit, end) for end in known[-1]) if known else "-"
        lines.append(
            [
                *key,
                *(_time(own.get(n), unit) for n in stages),
                last,
                ", ".join(dict.fromkeys(row.algorithm for row in own.values())),
            ]
        )
    right = [1 < at < len(heading) - 1 for at in range(len(heading))]
    return markdown_table(heading, lines, right)


def _time(row: Row | None, unit: tuple[float, str]) -> str:
    return "-" if row is None else time_in(unit, row.median) + (" *" if row.contended else "")


def machines(documents: Mapping[int, Document]) -> Iterator[str]:
    """Yield a line per stage: when it began, on what, with which versions and settings."""
    for stage, document in documents.items():
        run = document["run"]
        device, environment = run["device"], run["environment"]
        packages, build = environment["packages"], environment.get("build", {})
        settings = ", ".join(f"{k} {v}" for k, v in environment.get("settings", {}).items())
        yield (
            f"- stage {stage}: begun {run['created_utc']}, {machine_name(device)} at "
            f"{format_hz(device['clock_hz'])} (measured), {environment['kernel']}, "
            f"pydlbench {packages.get('pydlbench', 'of a checkout')} ({environment['code']}), "
            f"oneDNN {build.get('onednn_version')}; {settings}"
        )


def page(documents: Mapping[int, Document]) -> str:
    """Return the Markdown of the stages that are there."""
    stages = {stage: rows_of(document) for stage, document in documents.items()}
    answers = [each for a, b in pairwise(stages.values()) for each in held(a, b, "expected")]
    reached = bool(answers) and sum(answers) >= AIM * len(answers)
    verdict = f"- the next stage's median within what was expected: {_share(answers)}, aim "
    verdict += f"{percent(AIM)}: "
    unknown = "needs four stages, half an hour apart"
    verdict += "reached" if reached else "not reached" if answers else unknown
    verdict += f"\n- half-width of what is expected: {widths(stages, 'expected')}"
    verdict += f"\n- half-width of the intervals of the medians: {widths(stages, 'within')}"
    lines = ["# Repeatability", "\n".join(machines(documents)), _HOW, verdict]
    lines += [pairs(stages), _LEGEND, table(stages)]
    return "\n\n".join(lines) + "\n"


_HOW = (
    "`python benchmarks/repeatability.py --stage N`: one `pydlbench layers` a stage, all passes, "
    "fp32, native backend, all stages in one store."
)
_LEGEND = (
    "Of the rows of the first stage of a pair, the share whose interval holds the median of the "
    "second; what is expected is known from the third stage on. `*`: the row says itself that it "
    "was disturbed. The last column is what is expected after the last stage. The rows of a stage "
    "share what the machine does then: they are fewer independent answers than rows."
)


def main() -> int:
    """Measure a stage, write the page; exit as ``layers`` does."""
    args = read()
    if args.stage is not None:
        code = measure(args.folder, args.stage, args.model, args.batch, args.minutes)
        if code:
            return code
    if args.md is not None:
        files = args.folder.glob("stage-*.json")
        paths = {int(path.stem.removeprefix("stage-")): path for path in files}
        done = {stage: paths[stage] for stage in sorted(paths) if is_done(paths[stage])}
        if not done:
            raise PydlbenchError(f"{args.folder}: no stage is done; nearest: --stage 1")
        documents = {
            stage: json.loads(path.read_text(encoding="utf-8")) for stage, path in done.items()
        }
        args.md.write_text(page(documents), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
