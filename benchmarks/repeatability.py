"""Whether a row's interval holds tomorrow: the same rows measured again and again, hours apart.

    python benchmarks/repeatability.py --stage 1 --folder repeatability
    python benchmarks/repeatability.py --stage 2 --folder repeatability     # an hour later
    python benchmarks/repeatability.py --stage 3 --folder repeatability --md repeatability.md

A stage is one ``pydlbench layers`` over AlexNet-OWT's layers in all passes, with the native
backend and the visits that ``layers`` makes by default. It has a store of its own in the folder: a
stage that was interrupted goes on with the rows that are missing, and one that is done is kept.
The page asks of every two stages in how many rows the median of one lies within the interval of
the other. Run each stage alone on the machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from pydlbench.errors import PydlbenchError
from pydlbench.report.text import markdown_table
from pydlbench.store.place import machine_name
from pydlbench.store.store import Store
from pydlbench.units import format_hz, percent, time_in, time_unit

STAGES = (1, 2, 3)
#: The share of rows that should hold another stage's median.
AIM = 0.8


class Row(NamedTuple):
    """A row's time in one stage, in seconds.

    Attributes:
        median: of its visits.
        low: end of the interval that was printed; None where there is none.
        high: its other end.
        contended: whether the row itself says that it was disturbed.
        algorithm: the kernel.
    """

    median: float
    low: float | None
    high: float | None
    contended: bool
    algorithm: str

    @property
    def half_width(self) -> float | None:
        """Half of the interval over the median."""
        if self.low is None or self.high is None:
            return None
        return (self.high - self.low) / 2 / self.median

    def holds(self, other: Row) -> bool | None:
        """Whether another stage's median lies within this interval; None without an interval."""
        if self.low is None or self.high is None:
            return None
        return self.low <= other.median <= self.high


#: A stage's rows by layer and pass.
Rows = Mapping[tuple[str, str], Row]
#: What ``layers --json`` wrote.
Document = Mapping[str, Any]


def read() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--stage", type=int, choices=STAGES, help="measure this one")
    parser.add_argument("--folder", type=Path, default=Path("repeatability"))
    parser.add_argument("--model", default="alexnet-owt")
    parser.add_argument("--batch", type=int, help="default: the model's own")
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


def done(folder: Path, stage: int) -> bool:
    """Whether all rows of a stage are there."""
    path = rows_file(folder, stage)
    return path.exists() and not json.loads(path.read_text(encoding="utf-8"))["interrupted"]


def words(folder: Path, stage: int, model: str, batch: int | None) -> list[str]:
    """Return the command line of ``pydlbench`` that measures a stage, or goes on with it."""
    store = folder / f"stage-{stage}.sqlite"
    begun = False
    if store.exists():
        with Store.open(store, readonly=True) as opened:
            begun = bool(opened.runs(limit=1))
    if begun:
        what = ["--resume", "last"]
    else:
        what = ["--model", model, "--pass", "all", "--backend", "native", "--device", "cpu"]
        what += ["--batch", str(batch)] if batch else []
    return ["layers", *what, "--store", str(store), "--json", str(rows_file(folder, stage))]


def measure(folder: Path, stage: int, model: str, batch: int | None) -> int:
    """Measure what a stage lacks; return the command's exit code."""
    if done(folder, stage):
        print(f"stage {stage} is done; kept as {rows_file(folder, stage)}")
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pydlbench", *words(folder, stage, model, batch)]
    return subprocess.run(command, check=False).returncode


# -----------------------------------------------------------------------------
# The page.


def rows_of(document: Document) -> Rows:
    """Return the measured rows of a stage's JSON."""
    return {
        (row["layer"], row["pass"]): Row(
            median=row["time_s"]["median"],
            low=row["time_s"]["ci_low"],
            high=row["time_s"]["ci_high"],
            contended=bool(row["contended"]),
            algorithm=row["algorithm"],
        )
        for row in document["measurements"]
        if row["status"] == "ok"
    }


def held(one: Rows, other: Rows) -> tuple[int, int]:
    """Count rows whose interval holds the other stage's median, and rows with an interval."""
    answers = [one[key].holds(other[key]) for key in one.keys() & other.keys()]
    told = [answer for answer in answers if answer is not None]
    return sum(told), len(told)


def quiet(one: Rows, other: Rows) -> tuple[Rows, Rows]:
    """Return the rows that neither stage calls disturbed."""
    keys = [k for k in one if k in other and not (one[k].contended or other[k].contended)]
    return {key: one[key] for key in keys}, {key: other[key] for key in keys}


def _share(counts: Sequence[tuple[int, int]]) -> str:
    found, of = sum(one for one, _ in counts), sum(all_ for _, all_ in counts)
    return f"{percent(found / of)} ({found} of {of})" if of else "-"


def pairs(stages: Mapping[int, Rows]) -> str:
    """Return the table of pairs: how often a median lies within the other stage's interval."""
    lines, every = [], []
    for a, b in itertools.combinations(stages, 2):
        first, second = stages[a], stages[b]
        both = [held(first, second), held(second, first)]
        undisturbed = quiet(first, second)
        every += both
        moved = [abs(second[key].median / first[key].median - 1) for key in first if key in second]
        lines.append(
            [
                f"{a} and {b}",
                _share(both[:1]),
                _share(both[1:]),
                _share(both),
                _share([held(*undisturbed), held(*undisturbed[::-1])]),
                percent(median(moved)) if moved else "-",
                percent(max(moved)) if moved else "-",
            ]
        )
    lines.append(["all", "", "", _share(every), "", "", ""])
    heading = ["stages", "first holds second", "second holds first", "both directions"]
    heading += ["of undisturbed rows", "medians differ, median", "worst"]
    return markdown_table(heading, lines, [at > 0 for at in range(len(heading))])


def table(stages: Mapping[int, Rows]) -> str:
    """Return all rows, the stages side by side."""
    heading = ["layer", "pass", *(f"stage {n}" for n in stages), *(f"+- {n}" for n in stages)]
    heading += ["medians held", "kernels"]
    lines = []
    for key in dict.fromkeys(key for rows in stages.values() for key in rows):
        found = {n: rows[key] for n, rows in stages.items() if key in rows}
        unit = time_unit([row.median for row in found.values()])
        answers = [a.holds(b) for a, b in itertools.permutations(found.values(), 2)]
        told = [answer for answer in answers if answer is not None]
        lines.append(
            [
                *key,
                *(_time(found.get(n), unit) for n in stages),
                *(_half(found.get(n)) for n in stages),
                f"{sum(told)} of {len(told)}",
                ", ".join(dict.fromkeys(row.algorithm for row in found.values())),
            ]
        )
    right = [1 < at < len(heading) - 1 for at in range(len(heading))]
    return markdown_table(heading, lines, right)


def _time(row: Row | None, unit: tuple[float, str]) -> str:
    return "-" if row is None else time_in(unit, row.median) + (" *" if row.contended else "")


def _half(row: Row | None) -> str:
    return "-" if row is None or row.half_width is None else percent(row.half_width)


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
            f"pydlbench {packages['pydlbench']} ({environment['code']}), "
            f"oneDNN {build.get('onednn_version')}; {settings}"
        )


def page(documents: Mapping[int, Document]) -> str:
    """Return the Markdown of the stages that are there."""
    stages = {stage: rows_of(document) for stage, document in documents.items()}
    every = [held(stages[a], stages[b]) for a, b in itertools.permutations(stages, 2)]
    of = sum(all_ for _, all_ in every)
    reached = bool(of) and sum(found for found, _ in every) >= AIM * of
    verdict = f"- median within the other stage's interval: {_share(every)}, aim {percent(AIM)}: "
    verdict += "reached" if reached else "not reached" if of else "needs two stages"
    halves = [row.half_width for rows in stages.values() for row in rows.values()]
    known = [half for half in halves if half is not None]
    if known:
        widths = f"median {percent(median(known))}, worst {percent(max(known))}"
        verdict += f"\n- half-width of the intervals: {widths}"
    lines = ["# Repeatability", "\n".join(machines(documents)), _HOW, verdict]
    lines += [pairs(stages), _LEGEND, table(stages)]
    return "\n\n".join(lines) + "\n"


_HOW = (
    "`python benchmarks/repeatability.py --stage N`: one `pydlbench layers` a stage, all passes, "
    "fp32, native backend."
)
_LEGEND = (
    "Medians and half-widths of the printed 95 % intervals, of each row in each stage. `*`: the "
    "row says itself that it was disturbed. `medians held`: of the ordered pairs of stages, those "
    "in which the first's interval holds the second's median."
)


def main() -> int:
    """Measure a stage, write the page; exit as ``layers`` does."""
    args = read()
    if args.stage is not None:
        code = measure(args.folder, args.stage, args.model, args.batch)
        if code:
            return code
    if args.md is not None:
        there = [stage for stage in STAGES if done(args.folder, stage)]
        if not there:
            raise PydlbenchError(f"{args.folder}: no stage is done; nearest: --stage 1")
        documents = {
            stage: json.loads(rows_file(args.folder, stage).read_text(encoding="utf-8"))
            for stage in there
        }
        args.md.write_text(page(documents), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
