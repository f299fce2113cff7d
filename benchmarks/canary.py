"""What the canary sees that the kernel's counters do not, and what it costs.

    python benchmarks/canary.py --runs 200 --minutes 20 > canary.md

Each run is what ``pydlbench layers --shape alexnet/conv5 --batch 1`` does for its row: a worker of
its own, a search, six visits, each with new memory. Every chunk of their rounds is then judged by
each evidence alone: the canary's bursts, the wait for a CPU, the time that the hypervisor took, the
involuntary switches. A run that takes 1.5 times the best run's median was disturbed, whatever
anybody saw; the question is who saw it. Then a neighbour is planted: a process that spins on one of
the CPUs, and one that spins for a tenth of the time.

Run it alone on the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

import pydlbench._cpu as _cpu
from pydlbench.errors import PydlbenchError
from pydlbench.models.catalog import find_layers
from pydlbench.records.specs import KernelSpec
from pydlbench.runner.interleaved import sample_interleaved
from pydlbench.runner.kernels import variant_of
from pydlbench.runner.options import Options
from pydlbench.runner.session import Session
from pydlbench.timing.chunk import Chunk, Request
from pydlbench.timing.guards import disturbed_by, judge
from pydlbench.timing.policy import Policy
from pydlbench.timing.procedure import Samples
from pydlbench.timing.visits import VISITS, joined, visit_policy

POLICY = visit_policy(Policy(), VISITS)
SLOW = 1.5
# Half of the chunks: what makes a visit contended, and half of the visits a row.
SEEN = 0.5
EVIDENCE = ("canary", "wait", "steal", "switches")
_SPIN = """
import sys, time
busy, period = float(sys.argv[1]), float(sys.argv[2])
while True:
    end = time.perf_counter() + busy
    while time.perf_counter() < end: pass
    if period > busy: time.sleep(period - busy)
"""


@dataclass(frozen=True)
class Run:
    """What came of one run.

    Attributes:
        median_s: of the row, that of its visits' medians.
        contended: what the row says, all evidence together.
        shares: by evidence, the share of chunks that it alone calls disturbed.
        chunks: how many there were.
        elapsed_s: of the whole run, search and warm-up included.
    """

    median_s: float
    contended: bool
    shares: dict[str, float]
    chunks: int
    elapsed_s: float


def only(chunk: Chunk, evidence: str) -> Chunk:
    """Return a chunk with one evidence, as if nothing else had been counted."""
    kept = {
        "canary": {"canary": chunk.canary},
        "wait": {"run_delay_s": chunk.run_delay_s},
        "steal": {"steal_s": chunk.steal_s},
        "switches": {"involuntary": chunk.involuntary},
    }[evidence]
    nothing = {"canary": (), "run_delay_s": 0.0, "steal_s": 0.0, "involuntary": ()}
    return msgspec.structs.replace(chunk, **{**nothing, **kept})


def seen(chunks: Sequence[Chunk], evidence: str, policy: Policy) -> float:
    """Return the share of chunks that one evidence calls disturbed.

    Switches are evidence of samples that jumped together with them, never of a chunk: they count
    as all chunks where they make the row contended.
    """
    alone = [only(chunk, evidence) for chunk in chunks]
    if evidence == "switches":
        return float(judge(alone, 1, policy).contended)
    return sum(disturbed_by(chunk, 1, policy) is not None for chunk in alone) / len(alone)


def measure(case: KernelSpec, seed: int) -> Run:
    """Make one run: all visits of a row, in a worker of its own."""
    taken: dict[int, Samples] = {}
    rounds: list[Chunk] = []
    variant = None
    start = time.perf_counter()
    with Session(Options(seed=seed)) as session:
        for visit in range(VISITS):
            kernel = session.prepare(case, variant=variant)
            variant = variant_of(case, kernel.facts)
            chunks: list[Chunk] = []

            def sample(
                request: Request, kernel: Any = kernel, chunks: list[Chunk] = chunks
            ) -> Chunk:
                chunks.append(kernel.sample(request))
                return chunks[-1]

            known = {0: taken[visit - 1]} if visit else None
            order = random.Random(seed + visit)
            (found,) = sample_interleaved([sample], [POLICY], order, known=known)
            kernel.release()
            if isinstance(found, PydlbenchError):
                raise found
            taken[visit] = found
            left = len(found.all_seconds)
            while left > 0:  # before them there were calibration and warm-up
                rounds.append(chunks.pop())
                left -= len(rounds[-1].seconds)
    row = joined(taken, VISITS)
    return Run(
        median_s=row.median,
        contended=row.contended,
        shares={name: seen(rounds, name, POLICY) for name in EVIDENCE},
        chunks=len(rounds),
        elapsed_s=time.perf_counter() - start,
    )


@contextlib.contextmanager
def neighbour(busy_s: float, period_s: float) -> Iterator[None]:
    """Have another process spin on the first CPU, for a part of each period."""
    cpu = min(os.sched_getaffinity(0))
    process = subprocess.Popen([sys.executable, "-c", _SPIN, str(busy_s), str(period_s)])
    try:
        os.sched_setaffinity(process.pid, {cpu})
        yield
    finally:
        process.kill()
        process.wait()


def burst_s(cpus: Sequence[int]) -> float:
    """Return the median seconds of a burst on threads of its own."""
    times = []
    for _ in range(200):
        start = time.perf_counter()
        _cpu.canary(cpus)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def lines_of(title: str, runs: Sequence[Run], best_s: float) -> list[str]:
    """Return the section of some runs: how many were slow, and who saw it."""
    slow = [run for run in runs if run.median_s > SLOW * best_s]
    blind = [run for run in slow if not run.contended]
    false = [run for run in runs if run.contended and run.median_s <= SLOW * best_s]
    medians = [1e3 * run.median_s for run in runs]
    span = f"{min(medians):.3f} to {max(medians):.3f}"
    counted = (
        f"({1e3 * best_s:.3f} ms): {len(slow)}, of which {len(slow) - len(blind)} are flagged and "
        f"{len(blind)} are not. Flagged without being so slow: {len(false)}."
    )
    found = [
        f"## {title}",
        "",
        f"{len(runs)} runs; medians {span} ms. Over {SLOW} x the best median {counted}",
        "",
        "| evidence alone | slow runs with it in most chunks | other runs with it in most chunks |",
        "|---|---:|---:|",
    ]
    for name in EVIDENCE:
        counts = [
            sum(run.shares[name] > SEEN for run in some)
            for some in (slow, [run for run in runs if run not in slow])
        ]
        found.append(
            f"| {name} | {counts[0]} of {len(slow)} | {counts[1]} of {len(runs) - len(slow)} |"
        )
    return [*found, ""]


def main() -> int:
    """Print the page; exit 1 if a slow run was not flagged."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="alexnet/conv5")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--runs", type=int, default=200, help="on the machine as it is")
    parser.add_argument("--planted", type=int, default=10, help="beside each planted neighbour")
    parser.add_argument("--minutes", type=float, default=30.0, help="limit of the runs above")
    args = parser.parse_args()

    (layer,) = find_layers([args.shape], args.batch)
    case = KernelSpec(layer=layer)
    end = time.monotonic() + 60 * args.minutes
    alone: list[Run] = []
    while len(alone) < args.runs and (not alone or time.monotonic() < end):
        alone.append(measure(case, len(alone)))
        print(f"{len(alone)} of {args.runs}", end="\r", file=sys.stderr, flush=True)
    planted: dict[str, list[Run]] = {}
    for title, busy_s, period_s in (
        ("A process that spins on the first CPU", 0.1, 0.0),
        ("A process that spins there for 10 of each 100 ms", 0.01, 0.1),
    ):
        with neighbour(busy_s, period_s):
            planted[title] = [measure(case, seed) for seed in range(args.planted)]
    with Session() as session:
        cpus = session.cpus

    best_s = min(run.median_s for run in alone)
    lines = [f"# The canary on {args.shape} at batch {args.batch}", ""]
    lines += lines_of("The machine as it is", alone, best_s)
    for title, runs in planted.items():
        lines += lines_of(title, runs, best_s) if runs else []
    one_s = burst_s(cpus)
    shares = [2 * one_s * run.chunks / run.elapsed_s for run in alone]
    sampling = 2 * one_s / POLICY.chunk_s
    lines += [
        "## What it costs",
        "",
        f"A burst takes {1e3 * one_s:.2f} ms with threads of its own; two are around each chunk:",
        f"{100 * sampling:.2f} % of the sampling and {100 * statistics.median(shares):.2f} % of a",
        "whole run (median; search and warm-up included).",
    ]
    print("\n".join(lines))
    return int(any(r.median_s > SLOW * best_s and not r.contended for r in alone))


if __name__ == "__main__":
    raise SystemExit(main())
