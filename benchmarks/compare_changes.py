"""How much of what has really changed ``compare`` finds, and what it calls changed that has not.

    python benchmarks/compare_changes.py --minutes 15 --folder changes --md page.md

Twenty small layers are measured in run after run. In each run two of them, others every time,
have 3, 5 or 10 % more images or rows than usual: a real kernel with so much more to do, which
stands in the comparison where the usual one does. Each run is compared with the next one, once by
itself and once with the other runs as replicates; what was changed in one of the two should be
found, and nothing else. Then ten of the layers are changed and all are compared interleaved.

No figure of ``pydlbench.compare`` was chosen with these runs. What is finished is kept in the
folder, so that the script may be interrupted, or stop after ``--minutes``, and be called again.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import random
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from acceptance.journal import Journal

from pydlbench.cli import main as pydlbench
from pydlbench.compare.comparison import FASTER, SAME, SLOWER, ComparedRow
from pydlbench.compare.history import replicates
from pydlbench.compare.interleaved import LEAST_PASSES, compare_interleaved
from pydlbench.compare.match import Matching, Pair, match
from pydlbench.compare.rerun import RerunPair, RerunSide, spec_of, take_pass
from pydlbench.compare.rows import Row, Side, read_side
from pydlbench.compare.stored import compare
from pydlbench.devices.cpu.facts import read_cpu_facts
from pydlbench.errors import PydlbenchError
from pydlbench.layers.descriptor import parse_problem
from pydlbench.report.text import markdown_table
from pydlbench.runner.session import Options, Session
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
    *("{}0x64:64x64", "{}0x128:128x64", "{}0x256:256x128", "{}0x96:96x192"),
    *("{}0x512:512x32", "relu:mb{}ic16ih16", "relu:mb{}ic32ih28", "relu:mb{}ic64ih7"),
)
#: Percent of more work.
CHANGES = (3, 5, 10)
# Of so many layers one is changed in each run.
_ONE_OF = 10
# Comparisons with half of the layers changed; passes and seconds of each kernel in a pass.
_INTERLEAVED = 3
_PASSES = 6
_PASS_S = 0.06


def problem(layer: int, change: int = 0) -> str:
    """Return a layer's problem with so many percent more work."""
    return parse_problem(LAYERS[layer].format(IMAGES * (100 + change) // 100)).problem


#: What a row of a problem stands for: the usual problem and how much more work it has.
STANDS_FOR = {
    problem(layer, change): (problem(layer), change)
    for layer in range(len(LAYERS))
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
    """Measure a run and give it its tag."""
    changes = changes_of(number)
    shapes = [problem(layer, changes.get(layer, 0)) for layer in range(len(LAYERS))]
    words = ["layers", "--shape", *shapes, "--budget", str(budget_s), "--visits", "6"]
    # The library's own choice: what is looked for is a change, not the fastest kernel.
    words += ["--layout", "any"]
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with contextlib.redirect_stdout(out):
        code = pydlbench([*words, "--device", "cpu", "--store", str(store), "--quiet"])
    if code:
        raise SystemExit(f"layers ended with exit code {code}")
    with Store.open(store) as opened:
        opened.tag(opened.runs(limit=1)[0].id, tag(number))


def tag(number: int) -> str:
    """Return the tag of a run."""
    return f"changes-{number}"


def measured(store: Path) -> set[str]:
    """Return the tags of what is measured."""
    if not store.exists():
        return set()
    with Store.open(store, readonly=True) as opened:
        return {tag for run in opened.runs() for tag in run.tags}


def usual(side: Side) -> Side:
    """Return a run with each changed row in the place of the usual one."""
    rows = [row._replace(layer=name, problem=name, batch=IMAGES) for row, name in _named(side.rows)]
    return Side(
        name=side.name,
        rows=rows,
        run_id=side.run_id,
        created_utc=side.created_utc,
        device=side.device,
        environment=side.environment,
    )


def _named(rows: Iterable[Row]) -> Iterator[tuple[Row, str]]:
    for row in rows:
        yield row, STANDS_FOR[row.problem][0]


def stored(store: Path, *, alone: bool) -> list[Told]:
    """Compare each run with the next one.

    Args:
        store: of the runs.
        alone: without the others as replicates.
    """
    found: list[Told] = []
    with Store.open(store, readonly=True) as opened:
        tags = sorted(measured(store), key=lambda one: int(one.rpartition("-")[2]))
        runs = [read_side(one, opened) for one in tags]
        for first, second in itertools.pairwise(runs):
            a, b = usual(first), usual(second)
            # Rows as they are: a changed one in another run replicates no usual one.
            groups = [] if alone else replicates(opened, a, b)
            compared = compare(a, b, match(a, b), groups=groups)
            work = [
                {STANDS_FOR[row.problem][0]: STANDS_FOR[row.problem][1] for row in side.rows}
                for side in (first, second)
            ]
            found += told(
                compared.rows, [work[1][r.b.layer] - work[0][r.b.layer] for r in compared.rows]
            )
    return found


def told(rows: Sequence[ComparedRow], changes: Sequence[int]) -> list[Told]:
    """Return what was said of rows whose changes are known."""
    return [
        Told(change, row.counts.ratio, row.verdict, row.counts.resolution)
        for row, change in zip(rows, changes, strict=True)
    ]


# -----------------------------------------------------------------------------
# Interleaved.


def interleaved(number: int, run: Side) -> list[Told]:
    """Compare the usual layers with themselves, half of them changed, in turn.

    Args:
        number: says which half.
        run: whose rows tell the setting.
    """
    rows = {name: row._replace(problem=name, layer=name) for row, name in _named(run.rows)}
    pairs, changes = [], []
    for layer in range(len(LAYERS)):
        row = rows[problem(layer)]
        change = CHANGES[(layer // 2 + number) % len(CHANGES)] if (layer + number) % 2 else 0
        changed = problem(layer, change)
        pairs.append(Pair(row, row._replace(problem=changed, layer=changed)))
        changes.append(change)
    sides = [tuple(RerunSide(spec=spec_of(row)) for row in pair) for pair in pairs]
    measured = [RerunPair(sides=(first, second)) for first, second in sides]
    rng = random.Random(number)
    for _ in range(_PASSES):
        take_pass(
            measured,
            lambda _side, threads: Session(Options(threads=threads, seed=number)),
            _PASS_S,
            rng,
        )
    kept = [at for at, one in enumerate(measured) if len(one.found.logs) >= LEAST_PASSES]
    matching = Matching(pairs=[pairs[at] for at in kept], only_a=[], only_b=[], untimed=[])
    found = compare_interleaved(run, run, matching, [measured[at].found for at in kept])
    return told(found.rows, [changes[at] for at in kept])


# -----------------------------------------------------------------------------
# Tables.


def right(one: Told) -> bool:
    """Whether a change was found, and in the right direction."""
    return one.verdict == (SLOWER if one.change > 0 else FASTER)


def table(rows: Sequence[Told]) -> str:
    """Return what became of planted changes, by their size, and of rows without any."""
    lines = []
    for change in (*CHANGES, 0):
        of_it = [one for one in rows if abs(one.change) == change]
        if not of_it:
            continue
        found = sum(map(right, of_it)) if change else 0
        same = sum(one.verdict == SAME for one in of_it)
        called = sum(one.verdict in (SLOWER, FASTER) for one in of_it)
        sizes = [one.ratio if one.change >= 0 else 1 / one.ratio for one in of_it]
        resolved = [one.resolution for one in of_it if one.resolution is not None]
        lines.append(
            [
                f"{change} %" if change else "none",
                str(len(of_it)),
                str(found) if change else "",
                str(len(of_it) - called - same),
                str(same),
                str(called - found),
                percent(median(sizes) - 1),
                percent(median(resolved) - 1) if resolved else "-",
            ]
        )
    heading = ["more work", "rows", "found", "unclear", "SAME", "false", "measured", "resolves"]
    return markdown_table(heading, lines)


def page(parts: Sequence[tuple[str, Sequence[Told]]], machine: str) -> str:
    """Return the Markdown of all tables."""
    lines = [
        "# Planted changes, found and missed",
        "",
        f"{machine}. `python benchmarks/compare_changes.py`",
        "",
        "Kernels with 3, 5 or 10 % more images or rows stand in the place of the usual ones;",
        "`found` are SLOWER or FASTER as planted, `false` is any other verdict of a change.",
        "`measured` is the median of the ratios, `resolves` that of the resolutions.",
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
    if not measured(store):
        raise PydlbenchError("nothing is measured yet; nearest: more --minutes")
    with Store.open(store, readonly=True) as opened:
        run = read_side("last", opened)
    for number in range(_INTERLEAVED):
        if str(number) not in journal and time.monotonic() < end:
            print(f"interleaved {number + 1} of {_INTERLEAVED}", flush=True)
            journal.add(str(number), {"rows": [list(one) for one in interleaved(number, run)]})
    in_turn = [Told(*row) for one in journal.entries().values() for row in one["rows"]]
    parts = [
        ("Stored runs, each with the next one", stored(store, alone=True)),
        ("The same, with the others as replicates", stored(store, alone=False)),
        (f"Interleaved, {_PASSES} passes", in_turn),
    ]
    text = page(parts, read_cpu_facts().name)
    print(text)
    if args.md is not None:
        args.md.write_text(text, encoding="utf-8")
    rows = [one for _, some in parts for one in some]
    wrong = sum(one.verdict in (SLOWER, FASTER) and not right(one) for one in rows)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
