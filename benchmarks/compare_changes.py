"""How much of what has really changed ``compare`` finds, and what it calls changed that has not.

    python benchmarks/compare_changes.py --minutes 15 --folder changes --md page.md

Thirty small layers are measured in run after run. In each run three of them, others every time,
have 3, 5 or 10 % more images or rows than usual: a real kernel with so much more to do, which
stands in the comparison where the usual one does. Each run is compared with the next one, once by
itself and once with the other runs as replicates; what was changed in one of the two should be
found, and nothing else. Between the runs a third of the layers is measured in turn with itself,
half of them changed, and compared interleaved.

No figure of ``pydlbench.compare`` was chosen with these runs. What is finished is kept in the
folder, so that the script may be interrupted, or stop after ``--minutes``, and be called again:
a run goes on with the row where it was, an interleaved comparison with the next pass.
"""

from __future__ import annotations

import argparse
import itertools
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

from journal import Journal

from pydlbench.compare.comparison import FASTER, SAME, SLOWER, UNCLEAR, ComparedRow
from pydlbench.compare.interleaved import LEAST_PASSES, Passes, compare_interleaved
from pydlbench.compare.match import Matching, Pair, match
from pydlbench.compare.rerun import RerunPair, RerunSide, spec_of, take_pass
from pydlbench.compare.rows import Row, Side, read_side
from pydlbench.compare.stored import compare, replicates
from pydlbench.devices.cpu.facts import read_cpu_facts
from pydlbench.ops.descriptor import parse_problem
from pydlbench.ops.op import Layer
from pydlbench.report.text import markdown_table
from pydlbench.runner.options import Options
from pydlbench.runner.session import Session
from pydlbench.store.store import Store
from pydlbench.units import percent

#: With so many images, or ten times as many rows, the work is that many times that of one, and any
#: of the changes leaves two threads as much to do as each other.
IMAGES = 200
LAYERS = (
    *("mb{}ic16ih16oc16kh3ph1", "mb{}ic32ih14oc32kh3ph1", "mb{}ic64ih7oc64kh3ph1"),
    *("mb{}ic3ih32oc16kh5ph2", "mb{}ic16ih28oc16kh3ph1sh2", "mb{}ic32ih14oc64kh1"),
    *("mb{}ic64ih14oc64kh1", "mb{}ic128ih7oc32kh1", "mb{}ic16ih14oc32kh5ph2"),
    *("mb{}ic32ih7oc128kh3ph1", "mb{}ic8ih28oc32kh3ph1", "mb{}ic64ih14oc16kh3ph1"),
    *("mb{}ic24ih16oc48kh3ph1", "mb{}ic48ih14oc48kh1", "mb{}ic96ih7oc96kh3ph1"),
    *("mb{}ic1ih28oc32kh5ph2", "mb{}ic32ih28oc16kh1", "mb{}ic128ih7oc128kh1"),
    *("{}0x64:64x64", "{}0x128:128x64", "{}0x256:256x128", "{}0x96:96x192"),
    *("{}0x512:512x32", "{}0x320:320x80", "{}0x784:784x64"),
    *("relu:mb{}ic16ih16", "relu:mb{}ic32ih28", "relu:mb{}ic64ih7"),
    *("relu:mb{}ic96ih14", "relu:mb{}ic8ih56"),
)
#: Percent of more work.
CHANGES = (3, 5, 10)
# Of so many layers one is changed in each run.
_ONE_OF = 10
# Runs for each interleaved comparison of as small a part of the layers, and its passes after each.
_RUNS = 3
_PASSES = 2
# Seconds of sampling of each kernel in a pass.
_PASS_S = 0.06


def layer_of(number: int, change: int = 0) -> Layer:
    """Return a layer with so many percent more work."""
    return parse_problem(LAYERS[number].format(IMAGES * (100 + change) // 100))


#: What a row of a problem stands for: the usual layer, and how much more work it has.
STANDS_FOR = {
    layer_of(number, change).problem: (layer_of(number), change)
    for number in range(len(LAYERS))
    for change in (0, *CHANGES)
}


class Told(NamedTuple):
    """What was said of a row.

    Attributes:
        change: of B's work over A's, in percent; negative where A had more.
        ratio: as measured.
        verdict: of the comparison.
        resolution: the smallest ratio that it would have found; None where the row has none.
    """

    change: int
    ratio: float
    verdict: str
    resolution: float | None


def read() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--runs", type=int, default=8, help="runs that are stored (8)")
    parser.add_argument(
        "--budget", type=float, default=0.3, help="seconds per kernel and run (0.3)"
    )
    parser.add_argument("--minutes", type=float, help="begin nothing after so long")
    parser.add_argument("--folder", type=Path, default=Path("compare-changes"))
    parser.add_argument("--md", type=Path, metavar="FILE", help="write the tables as Markdown")
    return parser.parse_args()


# -----------------------------------------------------------------------------
# Stored runs.


def changes_of(run: int) -> dict[int, int]:
    """Return which layers a run changes, by how many percent."""
    changed = [layer for layer in range(len(LAYERS)) if (layer + run) % _ONE_OF == 0]
    return {layer: CHANGES[(run + at) % len(CHANGES)] for at, layer in enumerate(changed)}


def measure(number: int, budget_s: float, store: Path) -> None:
    """Measure a run, or what it lacks, and give it its tag."""
    changes = changes_of(number)
    shapes = [layer_of(layer, changes.get(layer, 0)).problem for layer in range(len(LAYERS))]
    words = ["--shape", *shapes, "--budget", str(budget_s), "--visits", "6", "--device", "cpu"]
    # The library's own choice: what is looked for is a change, not the fastest kernel.
    words += ["--layout", "any"]
    if begun(store):
        words = ["--resume", "last"]
    command = [sys.executable, "-m", "pydlbench", "layers", *words, "--store", str(store)]
    subprocess.run([*command, "--quiet"], check=True, stdout=subprocess.DEVNULL)
    with Store.open(store) as opened:
        opened.tag(opened.runs(limit=1)[0].id, tag(number))


def tag(number: int) -> str:
    """Return the tag of a run."""
    return f"changes-{number}"


def begun(store: Path) -> bool:
    """Whether the last run has no tag, because it was cut off."""
    if not store.exists():
        return False
    with Store.open(store, readonly=True) as opened:
        return any(not run.tags for run in opened.runs(limit=1))


def measured(store: Path) -> list[str]:
    """Return the tags of what is measured, in their order."""
    if not store.exists():
        return []
    with Store.open(store, readonly=True) as opened:
        found = {one for run in opened.runs() for one in run.tags}
    return sorted(found, key=lambda one: int(one.rpartition("-")[2]))


def usual(side: Side) -> tuple[Side, dict[str, int]]:
    """Return a run with each changed row in the place of the usual one, and the changes."""
    rows, changes = [], {}
    for row in side.rows:
        layer, change = STANDS_FOR[row.problem]
        rows.append(as_layer(row, layer))
        changes[layer.problem] = change
    return replace(side, rows=rows), changes


def as_layer(row: Row, layer: Layer) -> Row:
    """Return a row that is said to be of another layer."""
    return row._replace(layer=layer.problem, problem=layer.problem, batch=layer.batch)


def stored(store: Path, *, alone: bool) -> list[Told]:
    """Compare each run with the next one.

    Args:
        store: of the runs.
        alone: without the others as replicates.
    """
    found: list[Told] = []
    with Store.open(store, readonly=True) as opened:
        runs = [usual(read_side(one, opened)) for one in measured(store)]
        for (a, before), (b, after) in itertools.pairwise(runs):
            # Rows as they are: a changed one in another run replicates no usual one.
            groups = [] if alone else replicates(opened, a, b)
            rows = compare(a, b, match(a, b), groups=groups).rows
            found += told(rows, [after[one.b.problem] - before[one.b.problem] for one in rows])
    return found


def told(rows: Sequence[ComparedRow], changes: Sequence[int]) -> list[Told]:
    """Return what was said of rows whose changes are known."""
    return [
        Told(change, row.counts.ratio, row.verdict, row.counts.resolution)
        for row, change in zip(rows, changes, strict=True)
    ]


# -----------------------------------------------------------------------------
# Interleaved: usual layers in turn with themselves, half of them changed.


def planted(number: int) -> dict[int, int]:
    """Return the layers of an interleaved comparison, and how much more its B has to do."""
    return {
        layer: CHANGES[(layer // 6 + number) % len(CHANGES)] if (layer + number) % 2 else 0
        for layer in range(number % _RUNS, len(LAYERS), _RUNS)
    }


def pairs_of(number: int, run: Side) -> list[Pair]:
    """Return the rows of both sides of an interleaved comparison.

    Args:
        number: of the comparison.
        run: whose rows tell the setting.
    """
    rows = {row.problem: row for row in usual(run)[0].rows}
    found = []
    for layer, change in planted(number).items():
        row = rows[layer_of(layer).problem]
        found.append(Pair(row, as_layer(row, layer_of(layer, change))))
    return found


def one_pass(number: int, turn: int, run: Side) -> list[list[float]]:
    """Take a pass of a comparison; return each pair's logarithm of B over A, none if it failed."""
    pairs = [
        RerunPair(sides=(RerunSide(spec=spec_of(pair.a)), RerunSide(spec=spec_of(pair.b))))
        for pair in pairs_of(number, run)
    ]
    rng = random.Random(f"{number} {turn}")
    take_pass(pairs, lambda _side, _threads: Session(Options(seed=number)), _PASS_S, rng)
    return [pair.found.logs for pair in pairs]


def interleaved(number: int, run: Side, taken: Sequence[list[list[float]]]) -> list[Told]:
    """Compare what the passes of a comparison found; nothing before there are enough of them."""
    if len(taken) < LEAST_PASSES:
        return []
    pairs = pairs_of(number, run)
    found = [Passes(logs=list(itertools.chain(*logs))) for logs in zip(*taken, strict=True)]
    matching = Matching(pairs=pairs, only_a=[], only_b=[], untimed=[])
    rows = compare_interleaved(run, run, matching, found).rows
    return told(rows, list(planted(number).values()))


# -----------------------------------------------------------------------------
# Tables.


def right(one: Told) -> bool:
    """Whether a change was found, and in the right direction."""
    return one.verdict == (SLOWER if one.change > 0 else FASTER)


def table(rows: Sequence[Told]) -> str:
    """Return what became of planted changes, by their size, and of rows without any.

    Of a change SAME is as wrong as the wrong direction is; of rows without one any change is.
    """
    lines = []
    for change in (*CHANGES, 0):
        of_it = [one for one in rows if abs(one.change) == change]
        if not of_it:
            continue
        said = Counter(one.verdict for one in of_it)
        found = sum(map(right, of_it)) if change else said[SAME]
        sizes = sorted(one.ratio if one.change >= 0 else 1 / one.ratio for one in of_it)
        resolved = [one.resolution for one in of_it if one.resolution is not None]
        lines.append(
            [
                f"{change} %" if change else "none",
                str(len(of_it)),
                str(found),
                str(said[UNCLEAR]),
                str(said[SAME] if change else 0),
                str(said[SLOWER] + said[FASTER] - (found if change else 0)),
                " .. ".join(percent(one - 1) for one in (sizes[0], median(sizes), sizes[-1])),
                percent(median(resolved) - 1) if resolved else "-",
            ]
        )
    heading = ["more work", "rows", "found", "undecided", "missed", "false", "measured", "resolves"]
    return markdown_table(heading, lines)


def page(parts: Sequence[tuple[str, Sequence[Told]]], machine: str) -> str:
    """Return the Markdown of all tables."""
    lines = [
        "# Planted changes, found and missed",
        "",
        f"{machine}. `python benchmarks/compare_changes.py`",
        "",
        "Kernels with 3, 5 or 10 % more images or rows stand in the place of the usual ones, on",
        "either side. `found`: SLOWER or FASTER as planted, SAME where nothing was; `undecided`:",
        "UNCLEAR; `missed`: SAME although changed; `false`: any other SLOWER or FASTER.",
        "`measured`: the least, the median, the greatest ratio; a kernel's time need not grow by",
        "as much as its work. `resolves`: the median of what rows say that they would have shown.",
    ]
    for title, rows in parts:
        if rows:
            lines += ["", f"## {title}", "", table(rows)]
    return "\n".join([*lines, ""])


def main() -> int:
    """Measure what is missing, print the tables; exit 1 if anything is called changed wrongly."""
    args = read()
    args.folder.mkdir(parents=True, exist_ok=True)
    store = args.folder.resolve() / "store.sqlite"
    journal = Journal(args.folder / "interleaved.jsonl")
    end = float("inf") if args.minutes is None else time.monotonic() + 60 * args.minutes
    for number in range(args.runs):
        if tag(number) not in measured(store) and time.monotonic() < end:
            print(f"run {number + 1} of {args.runs}", flush=True)
            measure(number, args.budget, store)
        if tag(number) not in measured(store):
            break
        run = side_of(store, number)
        for turn in range(_PASSES):
            comparison, taken = number // _RUNS, number % _RUNS * _PASSES + turn
            name = f"{comparison} {taken}"
            if name not in journal and time.monotonic() < end:
                print(f"interleaved {comparison + 1}, pass {taken + 1}", flush=True)
                journal.add(name, {"logs": one_pass(comparison, taken, run)})
    if not measured(store):
        raise SystemExit("nothing is measured yet; nearest: more --minutes")
    parts = [
        ("Stored runs, each with the next one", stored(store, alone=True)),
        ("The same, with the others as replicates", stored(store, alone=False)),
        (f"Interleaved, up to {_RUNS * _PASSES} passes", in_turn(journal, side_of(store, 0))),
    ]
    text = page(parts, read_cpu_facts().name)
    print(text)
    if args.md is not None:
        args.md.write_text(text, encoding="utf-8")
    rows = [one for _, some in parts for one in some]
    wrong = sum(one.verdict in (SLOWER, FASTER) and not right(one) for one in rows)
    return 1 if wrong else 0


def side_of(store: Path, number: int) -> Side:
    """Return a measured run."""
    with Store.open(store, readonly=True) as opened:
        return read_side(tag(number), opened)


def in_turn(journal: Journal, run: Side) -> list[Told]:
    """Return what the interleaved comparisons say, of the passes that the journal has."""
    taken: dict[int, list[list[list[float]]]] = {}
    for name, entry in journal.entries().items():
        taken.setdefault(int(name.split()[0]), []).append(entry["logs"])
    return [one for number, logs in taken.items() for one in interleaved(number, run, logs)]


if __name__ == "__main__":
    sys.exit(main())
