"""Counts how often ``pydlbench compare A B`` finds a planted change of a model's step.

    python benchmarks/planted_changes.py --runs 20 --md planted_changes.md
    python benchmarks/planted_changes.py --runs 4 --model layers --json found.json    # in slices
    python benchmarks/planted_changes.py --runs 4 --model copies --json found.json
    python benchmarks/planted_changes.py --runs 0 --json found.json --md planted_changes.md
    python benchmarks/planted_changes.py --pairs --md pairs.md      # in KernelBench's convention
    python benchmarks/planted_changes.py --simulate 2000            # verdicts on invented ratios

Each model consists of 100 equal units: products, convolutions or copies. B has some units more, and
their results are dropped: 3 units are 3 % of the step, and both sides compute the same. A
change is found if the verdict is SLOWER; with none planted, SLOWER and FASTER are false. With
--json each answer is added to a file at once, so that runs may be taken in slices, and the table is
that of all answers in the file. Run it alone on the machine.

``--pairs`` compares ten pairs of ``Model`` and ``ModelNew`` by the command, once each: honest ones
that are faster, slower or the same, two that compute something else, and one that keeps results.

``--simulate`` judges invented ratios: logarithms of rounds that scatter by 6 % (Student's t with
three degrees of freedom, times 6 %), around those of repetitions, whose scatter is given.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import pydlbench
from pydlbench.cli.compare_models import LEAST_REPETITIONS, MAX_REPETITIONS
from pydlbench.compare.models import CONFIDENCE, LEVEL, MARGIN, WORTH_A_LOOK, is_decided
from pydlbench.compare.statistics import judge, scatter_of_means, weighted_spread
from pydlbench.report.text import markdown_table
from pydlbench.units import percent

_SOURCE = """
import torch
from torch import nn

class Planted(nn.Module):
    def __init__(self, extra):
        super().__init__()
        self.units = nn.ModuleList({unit} for _ in range(100))
        # With weights of their own: those of a unit that has just run would be in caches.
        self.extra = nn.ModuleList({unit} for _ in range(extra))

    def forward(self, x):
        for number, unit in enumerate(self.units):
            x = unit(x)
            if number < len(self.extra):
                self.extra[number](x)
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


# Rounds of a repetition, and their scatter, in simulations: those of a step of 40 ms.
_ROUNDS = 17
_ROUND_SCATTER = 0.06

_PAIR = """
import torch
import torch.nn.functional as F
from torch import nn

kept = {{}}

class {name}(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return {body}

def get_inputs():
    return [torch.rand(256, 512)]

def get_init_inputs():
    return [512]
"""
_NORMAL = "(x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()"
_ROWS = "torch.stack([torch.softmax(row, -1) for row in x])"
_TWICE = "self.down(F.relu(self.up(x)))"
#: Bodies of ``Model`` and ``ModelNew``, and the expected verdict, by name. One that is refused has
#: no verdict.
PAIRS = {
    "fused swish": ("x * (1 / (1 + torch.exp(-x)))", "F.silu(x)", "FASTER"),
    "fused normalisation": (_NORMAL, "F.layer_norm(x, [512])", "FASTER"),
    "one softmax": (_ROWS, "torch.softmax(x, -1)", "FASTER"),
    "softmax by rows": ("torch.softmax(x, -1)", _ROWS, "SLOWER"),
    "product in float64": ("x @ x.T", "(x.double() @ x.double().T).float()", "SLOWER"),
    "other words": (_TWICE, "self.down(self.up(x).relu())", "SAME"),
    "the same": (_TWICE, _TWICE, "SAME"),
    "a row less": (
        "torch.cumsum(x, 0)",
        "torch.cat([torch.cumsum(x[:-1], 0), x[-1:]])",
        "something else",
    ),
    "half precision": (
        "self.down(self.up(x))",
        "(self.up(x).half() @ self.down.weight.half().T).float() + self.down.bias",
        "something else",
    ),
    "kept by pointer": (
        _TWICE,
        f"kept[x.data_ptr()] if x.data_ptr() in kept else kept.setdefault(x.data_ptr(), {_TWICE})",
        "not ranked",
    ),
}


def compare_pair(folder: Path, name: str, *words: str) -> tuple[str, float]:
    """Return the verdict on a pair, as the command's JSON has it, and the seconds of the command.

    Args:
        folder: where the two files are written.
        name: name of the pair.
        words: options of the command.
    """
    bodies = zip(("Model", "ModelNew"), PAIRS[name], strict=False)
    files = []
    for model, body in bodies:
        file = folder / f"{model.lower()}_{name.replace(' ', '_')}.py"
        file.write_text(_PAIR.format(name=model, body=body), encoding="utf-8")
        files.append(f"{file}:{model}")
    answer = folder / "answer.json"
    line = ["compare", *files, "--quiet", "--store", "none", "--json", str(answer), *words]
    started = time.perf_counter()
    command = [sys.executable, "-m", "pydlbench", *line]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    first = done.stdout.partition("\n")[0]
    for found in ("something else", "not ranked"):
        if found in first:
            return found, seconds
    rows = json.loads(answer.read_text(encoding="utf-8"))["rows"]
    return (rows[0]["verdict"] if rows else first), seconds


def pairs_table(folder: Path) -> str:
    """Compare all pairs, and return the table."""
    rows = []
    for name, (*_, expected) in PAIRS.items():
        verdict, seconds = compare_pair(folder, name)
        rows.append([name, expected, verdict, f"{seconds:.0f} s"])
        print(*rows[-1], sep="  ", flush=True)
    return markdown_table(["pair", "expected", "verdict", "seconds"], rows)


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


def compare(folder: Path, name: str, units: int) -> Found:
    """Compare a model with itself, with some units more in B."""
    unit, shape = MODELS[name]
    file = folder / f"{name}.py"
    file.write_text(_SOURCE.format(unit=unit, shape=shape), encoding="utf-8")
    started = time.perf_counter()
    model = f"{file}:build"
    document = pydlbench.compare_models(model, model, set_a={"extra": 0}, set_b={"extra": units})
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


def simulated(change: float, scatter: float, seed: int) -> tuple[str, int]:
    """Return the verdict on invented ratios, and the number of their repetitions."""
    stream = np.random.default_rng([seed, round(1e4 * change), round(1e4 * scatter)])
    rounds: list[NDArray[np.float64]] = []
    while len(rounds) < MAX_REPETITIONS:
        noise = _ROUND_SCATTER * stream.standard_t(3, _ROUNDS)
        rounds.append(noise + math.log1p(change) + stream.normal(0, scatter))
        if len(rounds) >= LEAST_REPETITIONS and is_decided(rounds):
            break
    spread = weighted_spread(rounds)
    scatters = scatter_of_means(spread, np.array(["step"]))
    (estimate,) = judge(
        spread.means, scatters, [None], MARGIN, None, CONFIDENCE, WORTH_A_LOOK, LEVEL
    )
    return estimate.verdict, len(rounds)


def simulated_table(count: int) -> str:
    """Return the table of simulated comparisons.

    Args:
        count: number of comparisons of each line.
    """
    rows = []
    for scatter, change in product((0.005, 0.01, 0.02, 0.03), (0.0, 0.03)):
        verdicts, repetitions = zip(
            *(simulated(change, scatter, n) for n in range(count)), strict=True
        )
        counts = Counter(verdicts)
        shares = [percent(counts[verdict] / count) for verdict in ("SLOWER", "FASTER", "SAME")]
        rows.append([percent(scatter), percent(change), *shares, f"{np.mean(repetitions):.0f}"])
    titles = ["scatter of repetitions", "change", "SLOWER", "FASTER", "SAME", "repetitions"]
    return markdown_table(titles, rows)


def main() -> None:
    """Run the comparisons and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=",".join(MODELS), help="names, separated by commas")
    parser.add_argument("--changes", default="0,1,3", help="planted changes in percent")
    parser.add_argument("--runs", type=int, default=20, help="comparisons of each pair")
    parser.add_argument("--json", help="file to which the answers are added")
    parser.add_argument("--pairs", action="store_true", help="pairs of KernelBench's convention")
    parser.add_argument("--simulate", type=int, metavar="N", help="judge N invented comparisons")
    parser.add_argument("--md", help="file to write the table into")
    given = parser.parse_args()
    for name in ("model", "changes", "runs", "json") if given.pairs else ():
        if getattr(given, name) != parser.get_default(name):
            parser.error(f"--{name}: not with --pairs, which takes --md only")
    pairs = list(product(given.model.split(","), map(int, given.changes.split(","))))
    if unknown := {name for name, _ in pairs} - {*MODELS}:
        parser.error(f"--model {', '.join(sorted(unknown))}: choices: {', '.join(MODELS)}")
    found = read_found(given.json)
    runs = 0 if given.pairs or given.simulate else given.runs
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(runs):  # in turn, so that drift affects all pairs
            for model, units in pairs:
                found.append(compare(Path(folder), model, units))
                print(*found[-1], flush=True)
                if given.json:
                    rows = json.dumps([each._asdict() for each in found], indent=1)
                    Path(given.json).write_text(f"{rows}\n", encoding="utf-8")
        if given.simulate:
            table = simulated_table(given.simulate)
        else:
            table = pairs_table(Path(folder)) if given.pairs else table_of(found)
    print(table)
    if given.md:
        Path(given.md).write_text(f"{table}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
