"""The targets, held against what an acceptance run has measured so far."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Iterator
from typing import Any

from acceptance.journal import Journal

__all__ = ["Verdict", "verdicts"]

# On an H200: device memory of 4.8 TB/s, 989 TFLOP/s dense bf16 at 700 W.
_CARD = "H200"
BANDWIDTH = 4.2e12
GEMM_BF16 = 770e12
FMA_SHARE = 0.95
RATIO = 1.02
CYCLES = 0.01
CYCLES_SHARE = 0.95
# pytest's exit code where it had nothing to run.
_NO_TESTS = 5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One target.

    Attributes:
        target: in words.
        met: None where nothing was measured yet.
        found: what was measured, in words.
    """

    target: str
    met: bool | None
    found: str


def verdicts(journal: Journal) -> Iterator[Verdict]:
    """Yield every target's verdict; one without measurements is open, never met."""
    yield _tests(journal)
    yield _bandwidth(journal)
    yield _fma(journal)
    yield _gemm(journal)
    yield from _torch(journal)
    yield _repeat(journal)
    yield _rows(journal)


def _open(target: str) -> Verdict:
    return Verdict(target=target, met=None, found="not measured")


def _another_card(journal: Journal) -> str | None:
    """Say so where absolute targets are of another card than the one that was measured."""
    names = {entry["name"] for entry in journal.entries("machine ").values()}
    if not names or any(_CARD in name for name in names):
        return None
    return f"(the target is an {_CARD}'s, this is {', '.join(sorted(names))})"


def _tests(journal: Journal) -> Verdict:
    target = "the gpu tests pass"
    entries = journal.entries("tests ")
    if not entries:
        return _open(target)
    counts: Counter[str] = Counter()
    for entry in entries.values():
        counts.update(entry.get("counts", {}))
    # Without a test to run, pytest ends with 5: all of a file's tests are of other modes.
    bad = [
        task.removeprefix("tests ")
        for task, entry in entries.items()
        if entry.get("exit_code") not in (0, _NO_TESTS)
    ]
    words = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()) if count)
    found = (words or "nothing ran") + (f"; not passed: {'; '.join(bad)}" if bad else "")
    return Verdict(target=target, met=counts["passed"] > 0 and not bad, found=found)


def _device(journal: Journal) -> dict[str, Any] | None:
    entry = journal.entries().get("device")
    return None if entry is None or "device" not in entry else entry["device"]


def _bandwidth(journal: Journal) -> Verdict:
    target = f"device memory delivers at least {BANDWIDTH / 1e12:g} TB/s"
    device = _device(journal)
    rates = [
        (item["bytes_per_s"], item["pattern"])
        for item in (device or {}).get("bandwidths", ())
        if item["level"] == "memory"
    ]
    if not rates:
        return _open(target)
    rate, pattern = max(rates)
    if other := _another_card(journal):
        return Verdict(target=target, met=None, found=f"{pattern} {rate / 1e12:.2f} TB/s {other}")
    return Verdict(target=target, met=rate >= BANDWIDTH, found=f"{pattern} {rate / 1e12:.2f} TB/s")


def _fma(journal: Journal) -> Verdict:
    target = f"the fp32 FMA probe reaches {FMA_SHARE:.0%} of theoretical at the measured clock"
    device = _device(journal)
    for peak in (device or {}).get("peaks", ()):
        if peak["precision"] == "fp32" and peak["measured_flops_per_s"] and peak["theoretical"]:
            share = peak["measured_flops_per_s"] / peak["theoretical"]["flops_per_s"]
            return Verdict(target=target, met=share >= FMA_SHARE, found=f"{share:.1%}")
    return _open(target)


def _gemm(journal: Journal) -> Verdict:
    target = f"8192^3 bf16-tc runs at {GEMM_BF16 / 1e12:.0f} TFLOP/s at least"
    entry = journal.entries().get("gemm bf16-tc", {}).get("measurement")
    if entry is None or entry["tflops"] is None:
        return _open(target)
    found = f"{entry['tflops']:.0f} TFLOP/s"
    if other := _another_card(journal):
        return Verdict(target=target, met=None, found=f"{found} {other}")
    return Verdict(target=target, met=entry["tflops"] * 1e12 >= GEMM_BF16, found=found)


def _torch(journal: Journal) -> Iterator[Verdict]:
    worst = f"no native/torch interval lies wholly above {RATIO}"
    mean = "the geometric mean of native/torch is at most 1"
    rows = {
        task: entry
        for task, entry in journal.entries("torch ").items()
        if entry.get("status") == "ok"
    }
    if not rows:
        yield _open(worst)
        yield _open(mean)
        return
    known = {task: entry for task, entry in rows.items() if entry["low"] is not None}
    above = [task.removeprefix("torch ") for task, entry in known.items() if entry["low"] > RATIO]
    found = f"{len(above)} of {len(known)} rows with an interval" + (
        f": {'; '.join(above)}" if above else ""
    )
    yield Verdict(target=worst, met=not above if known else None, found=found)
    value = math.exp(statistics.fmean(math.log(entry["ratio"]) for entry in rows.values()))
    yield Verdict(target=mean, met=value <= 1, found=f"{value:.3f} over {len(rows)} rows")


def _repeat(journal: Journal) -> Verdict:
    target = f"two runs agree within {CYCLES:.0%} in cycles for {CYCLES_SHARE:.0%} of the rows"
    first = _cycles(journal, "layers ")
    second = _cycles(journal, "repeat ")
    both = first.keys() & second.keys()
    if not both:
        return _open(target)
    apart = {key: abs(second[key] / first[key] - 1) for key in both}
    share = sum(value <= CYCLES for value in apart.values()) / len(apart)
    found = f"{share:.1%} of {len(apart)} rows, worst {max(apart.values()):.1%}"
    return Verdict(target=target, met=share >= CYCLES_SHARE, found=found)


def _cycles(journal: Journal, prefix: str) -> dict[str, float]:
    found = {}
    for task, entry in journal.entries(prefix).items():
        row = entry.get("measurement", {})
        if row.get("status") == "ok" and row.get("cycles"):
            found[task.removeprefix(prefix)] = row["cycles"]
    return found


def _rows(journal: Journal) -> Verdict:
    target = "no row failed"
    rows = {
        task: entry["measurement"]
        for task, entry in journal.entries().items()
        if "measurement" in entry
    }
    broken = [task for task, entry in journal.entries().items() if "error" in entry]
    failed = [task for task, row in rows.items() if row["status"] == "failed"] + broken
    if not rows and not broken:
        return _open(target)
    skipped = sum(row["status"] == "skipped" for row in rows.values())
    found = f"{len(failed)} of {len(rows) + len(broken)} failed, {skipped} skipped"
    named = f": {'; '.join(failed[:5])}" if failed else ""
    return Verdict(target=target, met=not failed, found=found + named)
