"""What timing itself costs, and that none of it is subtracted.

    python benchmarks/harness_cost.py

First the sampling loop on its own: an operator that is a Python function of nothing, and operators
that spin or sleep for a known time and keep their own books. A sample must not be shorter than what
the operator did in it, and the difference, which is the harness, must stay below 1 % of a kernel of
100 microseconds. Then a call that does nothing in the worker of every installed backend and mode:
the framework's dispatch, which its users pay too and which is therefore part of its rows.

The native loop is C++: its smallest layer, alone in a sample and a hundred times in one, shows what
the two readings of the clock add.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass
from typing import Any

from pydlbench.backends.capabilities import every, installed_version
from pydlbench.backends.host_clock import HostClock
from pydlbench.errors import PydlbenchError
from pydlbench.ops.table import build_layer
from pydlbench.records.specs import KernelSpec
from pydlbench.runner.session import Options, Session
from pydlbench.timing.chunk import Request
from pydlbench.units import format_seconds

KERNEL_S = 100e-6
LIMIT = 0.01
SAMPLES = 51


class Nothing:
    """An operator that is a call and a return."""

    def call(self) -> None:
        """Do nothing."""

    def wait(self) -> None:
        """Return at once."""

    def outputs(self) -> dict[str, Any]:
        """Write nothing."""
        return {}


class Busy(Nothing):
    """Spins or sleeps for a known time, and writes down what it took by its own reading.

    Args:
        seconds: how long.
        asleep: whether it sleeps.
    """

    def __init__(self, seconds: float, asleep: bool) -> None:
        self.seconds = seconds
        self.asleep = asleep
        self.own: list[float] = []

    def call(self) -> None:
        """Take the time."""
        start = end = time.perf_counter()
        if self.asleep:
            time.sleep(self.seconds)
            end = time.perf_counter()
        else:
            while end - start < self.seconds:
                end = time.perf_counter()
        self.own.append(end - start)


@dataclass(frozen=True)
class Cost:
    """What one check found.

    Attributes:
        what: the operator.
        sample_s: median of the samples.
        harness_s: median of what the samples have more than the operator itself counted.
        least_s: the least of it; negative if something was subtracted.
        kernel_s: the time of the kernel that it is held against.
    """

    what: str
    sample_s: float
    harness_s: float
    least_s: float
    kernel_s: float

    @property
    def share(self) -> float:
        """The harness's part of the kernel's time."""
        return self.harness_s / self.kernel_s

    @property
    def good(self) -> bool:
        """Whether nothing was subtracted and little was added."""
        return self.least_s >= 0 and self.share < LIMIT


def loop(inner: int) -> Cost:
    """Time nothing; all of it is harness."""
    chunk = HostClock(Nothing(), (0,)).sample(Request(samples=SAMPLES, inner=inner, untimed=100))
    middle, least = statistics.median(chunk.seconds), min(chunk.seconds)
    return Cost(f"nothing, {inner} a sample", middle, middle, least, KERNEL_S)


def busy(seconds: float, inner: int, asleep: bool) -> Cost:
    """Time an operator that keeps its own books."""
    operator = Busy(seconds, asleep)
    chunk = HostClock(operator, (0,)).sample(Request(samples=SAMPLES, inner=inner, untimed=0))
    own = [sum(operator.own[i * inner : (i + 1) * inner]) / inner for i in range(SAMPLES)]
    more = [sample - did for sample, did in zip(chunk.seconds, own, strict=True)]
    verb = "sleeps" if asleep else "spins"
    what = f"{verb} {format_seconds(seconds)}, {inner} a sample"
    return Cost(what, statistics.median(chunk.seconds), statistics.median(more), min(more), seconds)


def native(session: Session, device: str) -> str:
    """Return the line of the smallest native layer."""
    kernel = session.prepare(KernelSpec(layer=build_layer("gemm", m=1, k=1, n=1), device=device))
    alone, many = (
        statistics.median(kernel.sample(Request(samples=SAMPLES, inner=n, untimed=100)).seconds)
        for n in (1, 100)
    )
    kernel.release()
    return (
        f"{format_seconds(many):>10} {100 * many / KERNEL_S:>7.2f} %   alone in a sample: "
        f"{format_seconds(alone)}; its clock readings are at most the difference"
    )


def empty_call(session: Session, backend: str, mode: str | None, device: str) -> str:
    """Return the line of a framework's empty call."""
    found = session.worker(backend, device).probe("empty_call", mode=mode)
    return (
        f"{format_seconds(found['seconds']):>10} {100 * found['seconds'] / KERNEL_S:>7.2f} %   "
        f"least: {format_seconds(found['least_s'])}"
    )


def main() -> int:
    """Print the tables; exit 1 if something was subtracted or the loop costs too much."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backend", nargs="+", default=[one.name for one in every()])
    args = parser.parse_args()

    costs = [loop(1), loop(1000)]
    costs += [busy(t, n, asleep=False) for t in (KERNEL_S, 1e-3) for n in (1, 10)]
    costs += [busy(t, 1, asleep=True) for t in (KERNEL_S, 5e-3)]
    print(f"{'the sampling loop':<28} {'sample':>10} {'harness':>10} {'least':>10} {'share':>9}")
    for cost in costs:
        print(
            f"{cost.what:<28} {format_seconds(cost.sample_s):>10} "
            f"{format_seconds(cost.harness_s):>10} {format_seconds(cost.least_s):>10} "
            f"{100 * cost.share:>7.3f} %{'' if cost.good else '  BAD'}"
        )
    kind = args.device.partition(":")[0]
    title = f"an empty call on {args.device}"
    print(f"\n{title:<28} {'time':>10} {'of 100 us':>9}")
    errors = 0
    with Session(Options()) as session:
        for one in every():
            if one.name not in args.backend:
                continue
            if kind in one.modes and installed_version(one) is None:
                print(f"{one.name:<28} not installed: {one.install}")
                continue
            for mode in one.modes.get(kind, ()):
                name = " ".join(filter(None, (one.name, mode)))
                try:
                    if one.name == "native":
                        line = native(session, args.device)
                    else:
                        line = empty_call(session, one.name, mode, args.device)
                except PydlbenchError as error:
                    errors += 1
                    line = str(error)
                print(f"{name:<28} {line}", flush=True)
    bad = sum(not cost.good for cost in costs)
    print(
        f"\nthe loop's share of {format_seconds(KERNEL_S)} is below {100 * LIMIT:g} %, and no "
        f"sample is shorter than what was done in it: {'yes' if not bad else f'NO ({bad} lines)'}"
    )
    return 1 if bad or errors else 0


if __name__ == "__main__":
    raise SystemExit(main())
