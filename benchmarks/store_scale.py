"""Times the use of a store of 100,000 measurements.

    python benchmarks/store_scale.py [--runs 200] [--rows 500] [--store FILE]

Fills a temporary store with invented runs of layers of the catalog, and times `runs`, `compare` and
`report`, each in a new process. The start-up time of `pydlbench --version` is subtracted, for
`report` also the time of the first figure. The exit code is 1 if a command takes a second or more
on top of that. A single run with the same number of rows shows the time of `columns`, and that of
its page, which has no limit.

Then `fleet verdict` and `report` of an invented fleet (1,000 nodes, 20 metrics, three rounds, some
nodes 5 % slower) may take two seconds each, including start-up.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydlbench.models.catalog import find_layers
from pydlbench.ops.op import Layer
from pydlbench.records.measurement import Correctness, Measurement, Peaks, Roofline, TimeSummary
from pydlbench.records.run import RunRecord
from pydlbench.store.entry import Entry
from pydlbench.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


LIMIT_S = 1.0
SAMPLES = 24
TIMES = 5
NODES, METRICS, FLEET_LIMIT_S = 1000, 20, 2.0
PEAK_TFLOPS = 0.6
GBPS = 20.0
CASES = tuple(
    (pass_, precision, cache)
    for cache in ("hot", "all-cold", "weights-cold")
    for precision in ("fp32", "bf16")
    for pass_ in ("forward", "backward-data", "backward-weights")
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--store", type=Path, help="keep it here; a new file")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pydlbench-scale-") as folder:
        path = args.store or Path(folder) / "store.sqlite"
        started = time.perf_counter()
        fill(path, args.runs, args.rows)
        seconds = time.perf_counter() - started
        total = args.runs * args.rows
        size = path.stat().st_size / 1e6
        print(
            f"{total:,} measurements in {args.runs} runs: {size:.0f} MB, filled in {seconds:.1f} s"
        )
        slow = commands(path, Path(folder))
        big = Path(folder) / "one.sqlite"
        fill(big, 1, total)
        slow |= columns(big)
        words = ["report", "last", "-o", str(Path(folder) / "page.html"), "--store", str(big)]
        seconds = wait(words) - wait_for_drawing()
        print(f"report of it: {seconds:.2f} s on top of start-up")
        slow |= fleets(Path(folder))
    return int(slow)


def fill(path: Path, runs: int, rows: int) -> None:
    """Write invented runs, each in one transaction."""
    dice = random.Random(0)
    cases = list(wanted(rows))
    with Store.open(path) as store:
        for number in range(runs):
            day, second = divmod(number, 86400)
            created = f"2030-01-{1 + day:02d}T{second // 3600:02d}:{second // 60 % 60:02d}"
            run = RunRecord(
                id=f"20300101-{number:08x}",
                created_utc=f"{created}:{second % 60:02d}+00:00",
                command=("pydlbench", "layers", "--shape", "*"),
                device={"kind": "cpu", "name": "Invented 9000", "threads": 2, "warnings": []},
                environment={"python": "3.11.2", "packages": {"pydlbench": "0"}},
            )
            store.begin(run, "layers")
            store.add_all(
                run.id,
                (
                    Entry.from_document("layer", measurement(dice, *case).to_dict())
                    for case in cases
                ),
            )
            store.finish(run, "done")


def wanted(rows: int) -> Iterator[tuple[Layer, str, str, str]]:
    """Yield so many different rows: the catalog's layers in ever more settings and batches."""
    count = 0
    for batch in (None, *range(1, 1000)):
        layers = find_layers(["*/*"], batch)
        for case in CASES:
            for layer in layers:
                if case[0] in layer.passes:
                    yield (layer, *case)
                    count += 1
                    if count == rows:
                        return


def measurement(
    dice: random.Random, layer: Layer, pass_: str, precision: str, cache: str
) -> Measurement:
    """Return an invented row: its roof, an efficiency, and a scatter of two per cent."""
    flops, moved = layer.flops(pass_), layer.bytes(pass_, 4)
    executed = layer.flops_executed(pass_)
    compute, memory = executed / PEAK_TFLOPS / 1e12, moved / GBPS / 1e9
    roof = max(compute, memory, 1e-7)
    middle = roof / 0.8 * dice.uniform(0.98, 1.02)
    samples = sorted(middle * dice.gauss(1, 0.01) for _ in range(SAMPLES))
    median = statistics.median(samples)
    time_ = TimeSummary(
        median=median,
        ci_low=samples[7],
        ci_high=samples[16],
        q1=samples[6],
        q3=samples[18],
        min=samples[0],
        n=SAMPLES,
    )
    return Measurement(
        layer=layer.name or layer.problem,
        kind=layer.kind,
        problem=layer.problem,
        batch=layer.batch,
        pass_=pass_,
        precision=precision,
        accumulate="float32",
        library="oneDNN 3.2.0",
        algorithm="brgconv:avx512_core",
        layout="src nhwc, weights Ohwi48o, dst nhwc",
        cache=cache,
        status="ok",
        time=time_,
        flops=flops,
        flops_executed=executed,
        bytes=moved,
        tflops=flops / median / 1e12,
        gbps=moved / median / 1e9,
        arithmetic_intensity=executed / moved,
        clock_hz=4e9 * dice.uniform(0.99, 1.01),
        peak=Peaks(theoretical=PEAK_TFLOPS / 0.95, measured=PEAK_TFLOPS),
        roofline=Roofline(
            bound="compute" if compute > memory else "memory",
            time_s=roof,
            efficiency=roof / median,
        ),
        correct=Correctness(status="ok", rel_error=2e-7, tolerance=1e-5),
        threads=2,
        stop_reason="median known to 0.5 %",
        samples_s=tuple(samples),
    )


def commands(path: Path, folder: Path) -> bool:
    """Time the commands; return whether one is too slow."""
    page = str(folder / "page.html")
    start = wait(["--version"])
    drawing = wait_for_drawing()
    print(f"start-up: {start:.2f} s, with a figure {drawing:.2f} s")
    slow = False
    for words in (
        ["runs"],
        ["runs", "--json", "-"],
        ["runs", "show", "last"],
        ["compare", "last~1", "last"],
        ["report", "last", "-o", page],
        ["export", "last", "-o", str(folder / "rows.csv")],
    ):
        seconds = wait([*words, "--store", str(path)])
        seconds -= drawing if words[0] == "report" else start
        # What has to be quick is what the store is for; printing 500 rows is not its matter.
        counts = words[0] in ("runs", "compare", "report") and words[:2] != ["runs", "show"]
        slow |= counts and seconds >= LIMIT_S
        mark = "" if seconds < LIMIT_S else "  too slow" if counts else "  (no limit)"
        print(f"{' '.join(words[:3]):24} {seconds:6.2f} s on top of it{mark}")
    return slow


def columns(path: Path) -> bool:
    """Time the fast path of comparisons on one run that holds everything."""
    taken = []
    rows: list[Any] = []
    for _ in range(TIMES):
        started = time.perf_counter()
        with Store.open(path, readonly=True) as store:
            rows = store.columns(store.find("last").id)
        taken.append(time.perf_counter() - started)
    seconds = statistics.median(taken)
    print(f"columns of one run with {len(rows):,} rows: {seconds:.2f} s")
    return seconds >= LIMIT_S


def fleets(folder: Path) -> bool:
    """Time what is said of a large fleet; return whether that is too slow."""
    path = folder / "fleet.sqlite"
    dice = random.Random(0)
    run = RunRecord(id="20300101-f1ee0000", created_utc="2030-01-01T00:00:00+00:00")
    base = [dice.uniform(1e-4, 1e-1) for _ in range(METRICS)]
    with Store.open(path) as store:
        store.begin(run, "fleet", request={"text": ""})
        visits = (visit(dice, base, number, node) for number in range(3) for node in range(NODES))
        store.add_all(
            run.id,
            (
                Entry("fleet-visit", one, key=f"visit/{one['round']}/{one['node']}")
                for one in visits
            ),
        )
        store.finish(run, "done")
    slow = False
    for words in (["fleet", "verdict", "last"], ["report", "last", "-o", str(folder / "f.html")]):
        seconds = wait([*words, "--store", str(path)])
        slow |= seconds >= FLEET_LIMIT_S
        mark = "" if seconds < FLEET_LIMIT_S else "  too slow"
        what = f"{' '.join(words[:2])}, {NODES:,} nodes x {METRICS} metrics"
        print(f"{what}: {seconds:.2f} s, start-up included{mark}")
    return slow


def visit(dice: random.Random, base: Sequence[float], number: int, node: int) -> dict[str, Any]:
    """Return an invented visit: its nodes scatter by half a per cent, each 100th is 5 % slower."""
    factor = 1.05 if node % 100 == 17 else 1.0
    values = {
        f"layer{metric} forward fp32 batch 8": {
            "time_s": seconds * factor * dice.gauss(1, 0.005),
            "clock_hz": 4e9 / factor * dice.gauss(1, 0.002),
            "command": f"pydlbench layers --shape layer{metric}",
        }
        for metric, seconds in enumerate(base[1:])
    }
    values["alexnet-owt step training fp32 torch eager batch 8"] = {
        "time_s": base[0] * factor * dice.gauss(1, 0.005),
        "step": True,
        "command": "pydlbench step alexnet-owt",
    }
    return {
        "node": f"node-{node:04d}",
        "round": number,
        "status": "ok",
        "reason": None,
        "machine": "Invented 9000",
        "kind": "one",
        "versions": {"numpy": "2"},
        "prefix": "taskset -c 0 ",
        "clock_offset_s": 0.0,
        "values": values,
    }


def wait_for_drawing() -> float:
    """Return the median seconds that starting takes where figures are drawn."""
    spec = {"data": {"values": [{"x": 1}]}, "mark": "point", "encoding": {"x": {"field": "x"}}}
    code = f"import vl_convert; vl_convert.vegalite_to_svg({spec}); "
    return wait_for(["-c", f"{code}from pydlbench.cli import main; main(['--version'])"])


def wait(words: Sequence[str]) -> float:
    """Return the median seconds that a command takes."""
    return wait_for(["-m", "pydlbench", *words])


def wait_for(words: Sequence[str]) -> float:
    """Return the median seconds that a Python process takes."""
    taken = []
    for _ in range(TIMES):
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, *words],
            capture_output=True,
            text=True,
            check=False,
        )
        taken.append(time.perf_counter() - started)
        if done.returncode:
            raise SystemExit(f"{' '.join(words)}: {done.stderr.strip()}")
    return statistics.median(taken)


if __name__ == "__main__":
    sys.exit(main())
