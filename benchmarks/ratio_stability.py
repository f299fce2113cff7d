"""How well the ratio of a framework to the native backend repeats, run after run.

    python benchmarks/ratio_stability.py --shape conv3 --batch 16 --runs 10
    python benchmarks/ratio_stability.py --shape conv3 --batch 16 --runs 10 --load

Every run is a session of its own (new workers, new memory, a new search for the fastest kernels)
and measures both backends as the command line does, interleaved. The ratios must stay within 2 %
of each other, largest over smallest; runs whose rows are flagged contended say themselves that
they are not to be trusted, and do not count. ``--load`` keeps one of the cores busy meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydlbench.backends import capabilities
from pydlbench.models.catalog import find_layers
from pydlbench.ops.op import Layer
from pydlbench.records.measurement import Measurement
from pydlbench.records.specs import KernelSpec
from pydlbench.runner.session import Options, Session

LIMIT = 0.02
_BUSY = "import os, sys\nos.sched_setaffinity(0, [int(sys.argv[1])])\nwhile True: pass\n"


@dataclass(frozen=True)
class Run:
    """One run's ratio, framework over native, with its interval."""

    ratio: float
    low: float
    high: float
    contended: str | None
    who: str


def value_range(values: Sequence[float]) -> float:
    """Largest over smallest, minus one; 0 of fewer than two."""
    return max(values) / min(values) - 1 if len(values) > 1 else 0.0


def deviation(values: Sequence[float]) -> float:
    """Standard deviation over the mean; 0 of fewer than two."""
    return statistics.stdev(values) / statistics.fmean(values) if len(values) > 1 else 0.0


def ratio_of(native: Measurement, other: Measurement) -> tuple[float, float, float]:
    """Return framework over native with its interval; rows hold ratios to the faster of them."""
    slower, faster_is_native = (other, True) if _is_slower(other, native) else (native, False)
    assert slower.ratio is not None
    found = slower.ratio["median"], slower.ratio["ci_low"], slower.ratio["ci_high"]
    middle, low, high = (float("nan") if value is None else float(value) for value in found)
    return (middle, low, high) if faster_is_native else (1 / middle, 1 / high, 1 / low)


def _is_slower(one: Measurement, than: Measurement) -> bool:
    """Whether a row's ratio is to the other row, not to itself."""
    assert one.ratio is not None
    return bool(one.ratio["to"] == than.who)


def measure(layer: Layer, args: argparse.Namespace, mode: str | None, seed: int) -> Run:
    """Measure both in a session of their own.

    Raises:
        SystemExit: a row failed.
    """
    cases = [
        KernelSpec(layer=layer, pass_=args.pass_, precision=args.precision),
        KernelSpec(
            layer=layer,
            pass_=args.pass_,
            precision=args.precision,
            backend=args.backend,
            mode=mode,
        ),
    ]
    with Session(Options(seed=seed, budget_s=args.budget)) as session:
        rows = [row for _, row in session.measure(cases)]
    for row in rows:
        if not row.ok:
            raise SystemExit(f"{row.backend}: {row.status}: {row.reason}")
    native, other = rows
    flags = [f"{row.backend}: {row.contention_reason}" for row in rows if row.contended]
    return Run(
        *ratio_of(native, other),
        contended="; ".join(flags) or None,
        who=f"{native.algorithm} | {other.algorithm}, {other.layout}",
    )


@contextlib.contextmanager
def busy_core(cpu: int) -> Iterator[None]:
    """Keep a core busy with a process of its own."""
    process = subprocess.Popen([sys.executable, "-c", _BUSY, str(cpu)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def main() -> int:
    """Print the runs and their spread; exit 1 if runs that are not flagged spread too far."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="conv3")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument(
        "--backend",
        default="torch",
        choices=[name for name in capabilities.names() if name != "native"],
    )
    parser.add_argument("--mode", help="default: the backend's first")
    parser.add_argument("--pass", dest="pass_", default="forward")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--budget", type=float, default=2.0, help="seconds per kernel")
    parser.add_argument("--load", action="store_true", help="keep one of the cores busy")
    args = parser.parse_args()

    layers = find_layers([args.shape], args.batch)
    if len(layers) != 1:
        parser.error(f"--shape {args.shape} is {len(layers)} layers; one is needed")
    mode = args.mode or capabilities.of(args.backend).modes["cpu"][0]
    name = " ".join(filter(None, (args.backend, mode)))
    print(f"{name} / native, {layers[0].name or layers[0].problem}, batch {args.batch}", flush=True)
    with Session(Options()) as session:
        cpu = session.cpus[-1] if session.cpus else max(os.sched_getaffinity(0))
    runs: list[Run] = []
    with busy_core(cpu) if args.load else contextlib.nullcontext():
        for number in range(args.runs):
            run = measure(layers[0], args, mode, number)
            runs.append(run)
            flag = f"  contended: {run.contended}" if run.contended else ""
            print(
                f"run {number + 1:>3}: {run.ratio:.4f} ({run.low:.4f} to {run.high:.4f})  "
                f"{run.who}{flag}",
                flush=True,
            )

    everything = [run.ratio for run in runs]
    trusted = [run.ratio for run in runs if not run.contended]
    for what, values in (("all runs", everything), ("not flagged", trusted)):
        print(
            f"{what:<12} {len(values):>3}: range {100 * value_range(values):.2f} %, "
            f"standard deviation {100 * deviation(values):.2f} %"
        )
    good = value_range(everything) <= LIMIT or value_range(trusted) <= LIMIT
    verdict = "yes" if good else "NO"
    print(f"within {100 * LIMIT:g} % of each other, or flagged contended: {verdict}")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
