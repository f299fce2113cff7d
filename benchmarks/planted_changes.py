"""Counts how often ``pydlbench compare A B`` finds a planted change of a model's step.

    python benchmarks/planted_changes.py --runs 20 --md planted_changes.md
    python benchmarks/planted_changes.py --runs 4 --model layers --json found.json    # in slices
    python benchmarks/planted_changes.py --runs 4 --model copies --json found.json
    python benchmarks/planted_changes.py --runs 0 --json found.json --md planted_changes.md

Each model consists of 100 equal units: products, convolutions or copies. In B some units run once
more, and their results are dropped: 3 units are 3 % of the step, and both sides compute the same. A
change is found if the verdict is SLOWER; with none planted, SLOWER and FASTER are false. With
--json each answer is added to a file at once, so that runs may be taken in slices, and the table is
that of all answers in the file. Run it alone on the machine.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pydlbench
from pydlbench.cli.compare_models import REPETITIONS
from pydlbench.report.text import markdown_table
from pydlbench.units import percent

_SOURCE = """
import torch
from torch import nn

class Planted(nn.Module):
    def __init__(self, extra):
        super().__init__()
        self.units = nn.ModuleList({unit} for _ in range(100))
        self.extra = extra

    def forward(self, x):
        for number, unit in enumerate(self.units):
            if number < self.extra:
                unit(x)
            x = unit(x)
        return x

class Copy(nn.Module):
    # Into memory that is there already: a result of its own would be new memory, and how much of
    # that an allocator keeps changes with each unit more.
    targets = [torch.empty({shape}), torch.empty({shape})]

    def forward(self, x):
        first, second = self.targets
        return (first if x is second else second).copy_(x)

def build(extra=0):
    return Planted(extra), torch.randn({shape})
"""
#: Unit and shape of the input, by model; a step takes about 100 ms on two cores.
MODELS = {
    "layers": ("nn.Linear(384, 384)", "256, 384"),
    "convolutions": ("nn.Conv2d(32, 32, 3, padding=1)", "4, 32, 28, 28"),
    "copies": ("Copy()", "2, 1000, 1000"),
}


class Found(NamedTuple):
    """The answer of one comparison.

    Attributes:
        model: name of the model.
        units: planted change in percent.
        verdict: SAME, FASTER, SLOWER or UNCLEAR.
        ratio: B's time over A's.
        seconds: duration of the comparison.
    """

    model: str
    units: int
    verdict: str
    ratio: float
    seconds: float


def compare(folder: Path, name: str, units: int, repetitions: int) -> Found:
    """Compare a model with itself, with some units more in B."""
    unit, shape = MODELS[name]
    file = folder / f"{name}.py"
    file.write_text(_SOURCE.format(unit=unit, shape=shape), encoding="utf-8")
    started = time.perf_counter()
    model = f"{file}:build"
    document = pydlbench.compare_models(
        model, model, set_a={"extra": 0}, set_b={"extra": units}, repetitions=repetitions
    )
    (row,) = document.rows
    return Found(name, units, row.verdict, row.ratio, time.perf_counter() - started)


def read_found(path: str | None) -> list[Found]:
    """Return the answers of earlier slices; none without a file."""
    if path is None or not Path(path).exists():
        return []
    return [Found(**each) for each in json.loads(Path(path).read_text(encoding="utf-8"))]


def line(model: str, units: int, found: Sequence[Found]) -> list[str]:
    """Return the table's line of some comparisons."""
    verdicts = Counter(each.verdict for each in found)
    wrong = verdicts["FASTER"] + (0 if units else verdicts["SLOWER"])
    right = verdicts["SLOWER"] if units else verdicts["SAME"]
    ratios = sorted(each.ratio - 1 for each in found)
    return [
        model,
        f"{units} %",
        str(len(found)),
        str(right),
        str(len(found) - right - wrong),
        str(wrong),
        f"{percent(ratios[0])} .. {percent(ratios[-1])}",
        f"{median(each.seconds for each in found):.0f} s",
    ]


def table_of(found: Sequence[Found]) -> str:
    """Return the table of all comparisons, a line for each model and planted change."""
    groups: dict[tuple[str, int], list[Found]] = {}
    for each in found:
        groups.setdefault((each.model, each.units), []).append(each)
    titles = ["model", "planted", "runs", "found", "missed", "false", "measured", "seconds"]
    return markdown_table(titles, [line(*pair, groups[pair]) for pair in sorted(groups)])


def main() -> None:
    """Run the comparisons and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=",".join(MODELS), help="names, separated by commas")
    parser.add_argument("--changes", default="0,1,3", help="planted changes in percent")
    parser.add_argument("--runs", type=int, default=20, help="comparisons of each pair")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS, help="processes of each")
    parser.add_argument("--json", help="file to which the answers are added")
    parser.add_argument("--md", help="file to write the table into")
    given = parser.parse_args()
    pairs = list(product(given.model.split(","), map(int, given.changes.split(","))))
    if unknown := {name for name, _ in pairs} - {*MODELS}:
        parser.error(f"--model {', '.join(sorted(unknown))}: choices: {', '.join(MODELS)}")
    found = read_found(given.json)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(given.runs):  # in turn, so that drift affects all pairs
            for model, units in pairs:
                found.append(compare(Path(folder), model, units, given.repetitions))
                print(*found[-1], flush=True)
                if given.json:
                    rows = json.dumps([each._asdict() for each in found], indent=1)
                    Path(given.json).write_text(f"{rows}\n", encoding="utf-8")
    table = table_of(found)
    print(table)
    if given.md:
        Path(given.md).write_text(f"{table}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
