"""The summary of a kit's journal: targets, failures, and the numbers of each step, on one page."""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from journal import Journal

from kit.steps import ENVIRONMENT, Switches
from pydlbench.units import format_seconds, percent, si

__all__ = ["LINES", "Verdict", "card_of", "summary", "verdicts"]

#: At most so many.
LINES = 100
# Targets of device memory, by card; theoretical 3.35 and 4.8 TB/s.
BANDWIDTHS = {"H100": 2.9e12, "H200": 4.2e12}
# A product's rate is that of its clock, which half a second at the power limit lowers by a tenth or
# two: it is held against PyTorch's of the same minute.
GEMM_SHARE = 0.98
FMA_SHARE = 0.95
RATIO = 1.02
_WORST = 12
_MAX_LISTED = 8
# Errors of an entry with unexpected contents, which costs its own lines only.
_BAD = (KeyError, TypeError, ValueError, AttributeError)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One target.

    Attributes:
        target: in words.
        met: None where it was not measured, or is another card's.
        found: what was measured, in words.
    """

    target: str
    met: bool | None
    found: str


def verdicts(journal: Journal) -> Iterator[Verdict]:
    """Yield the verdict of each target; without measurements it is open."""
    for judged in (_tests, _bandwidth, _fma, _product, _worst, _mean, _rows):
        try:
            yield judged(journal)
        except _BAD as error:
            yield Verdict(target=judged.__name__[1:], met=None, found=f"not readable: {error!r}")


def summary(journal: Journal, names: list[str]) -> str:
    """Return the summary, in at most :data:`LINES` lines.

    Args:
        journal: what was done.
        names: of all steps.
    """
    done = [name for name in names if name in journal]
    spent = sum(entry.get("seconds", 0.0) for entry in map(journal.get, done) if entry)
    lines = [
        *_guarded(ENVIRONMENT, lambda: _head(journal)),
        f"{len(done)} of {len(names)} steps in {spent:.0f} s",
        *_without(journal),
        "",
    ]
    met = {True: "met ", False: "MISS", None: "open"}
    lines += [f"{met[one.met]}  {one.target}: {one.found}" for one in verdicts(journal)]
    lines += ["", *_guarded("failures", lambda: _failures(journal, done))]
    for name in names:
        entry = {"rows": _rows_of(name, journal)} | (journal.get(name) or {})
        lines += _guarded(name, functools.partial(_of_entry, name, entry))
    lines += _guarded("slowest", lambda: _slowest(journal))
    if len(lines) > LINES:
        lines = [*lines[: LINES - 1], f"({len(lines) - LINES + 1} more lines are left out)"]
    return "\n".join(lines) + "\n"


def _guarded(name: str, lines: Callable[[], list[str]]) -> list[str]:
    """Return the lines of an entry, or one with its error, so that the others have theirs."""
    try:
        return lines()
    except _BAD as error:
        return [f"{name}: not readable: {error!r}"[:160]]


def card_of(entry: dict[str, Any]) -> str | None:
    """Return the card's name from the first step, or None."""
    found = entry.get("items", {}).get("card", {}).get("found") or {}
    name: str | None = found.get("name")
    return name


def _head(journal: Journal) -> list[str]:
    """Return lines on the machine: hardware, driver, libraries."""
    entry = journal.get(ENVIRONMENT) or {}
    name = card_of(entry)
    if name is None:
        return ["# no GPU was seen yet", ""]
    found = {item: one.get("found") or {} for item, one in entry["items"].items()}
    libraries = {one: facts["version"] for one, facts in found.get("libraries", {}).items()}
    versions = {**found.get("module", {}), **libraries, **found.get("versions", {})}
    words = ", ".join(f"{what} {version}" for what, version in versions.items())
    facts = {
        key: found["card"][key]
        for key in ("major", "minor", "driver_version", "driver")
        if key in found["card"]
    }
    return [f"# {name}", ", ".join(f"{key} {value}" for key, value in facts.items()), words, ""]


def _without(journal: Journal) -> list[str]:
    said = Switches.of(journal).said()
    return [f"after the smoke run, without: {', '.join(said)}"] if said else []


def _failures(journal: Journal, done: list[str]) -> list[str]:
    """Return a line for all steps with the same failure, and some for single tests."""
    alike: dict[str, list[str]] = {}
    tests = []
    for name in done:
        entry = journal.get(name) or {}
        if "error" in entry:
            said = f"{entry['error']} {str(entry.get('said', ''))[:160]}"
            alike.setdefault(said, []).append(name)
        tests += [f"FAILED  {name}: {one[:160]}" for one in entry.get("failed", ())[:3]]
    found = []
    for said, names in alike.items():
        more = f" and {len(names) - 2} more" if len(names) > 2 else ""
        found.append(f"FAILED  {', '.join(names[:2])}{more}: {said}")
    return [*found, *tests, ""] if found or tests else []


# -----------------------------------------------------------------------------
# Lines of a step.


def _median(row: dict[str, Any]) -> float | None:
    return (row.get("time_s") or {}).get("median") if row["status"] == "ok" else None


def _named(row: dict[str, Any]) -> str:
    return " ".join((row["layer"], row["pass"], row["precision"], row["cache"]))


def _of_entry(name: str, entry: dict[str, Any]) -> list[str]:
    rows = _of_rows(name, entry["rows"]) if entry["rows"] else []
    return [*rows, *_of_items(name, entry.get("items", {})), *_of_step(name, entry)]


def _rows_of(name: str, journal: Journal) -> list[dict[str, Any]]:
    """Return the rows that a step has written into the journal itself, problem by problem."""
    return [row for entry in journal.entries(f"rows {name} ").values() for row in entry["rows"]]


def _of_items(name: str, items: dict[str, Any]) -> list[str]:
    """Return a line for the successful items, and one for each of the first failed ones."""
    if not items or name == ENVIRONMENT:
        return [
            f"{name}: no {item}: {one['error']}"[:200]
            for item, one in items.items()
            if "error" in one
        ]
    bad = {item: one for item, one in items.items() if "error" in one}
    lacking = [
        item
        for item, one in items.items()
        if isinstance(one.get("found"), dict) and "unsupported" in one["found"]
    ]
    words = [f"{len(items) - len(bad) - len(lacking)} of {len(items)} work"]
    if lacking:
        words.append(f"no kernel for {len(lacking)}: {', '.join(lacking)[:80]}")
    numbers = [
        _of_number(item, one["found"])
        for item, one in items.items()
        if len(items) <= _MAX_LISTED and "found" in one
    ]
    lines = [f"{name}: {'; '.join(words)}", *(f"{name}: {one}" for one in numbers if one)]
    lines += [
        f"{name}: {item}: {one['error']}"[:200] for item, one in list(bad.items())[:_MAX_LISTED]
    ]
    if len(bad) > _MAX_LISTED:
        lines.append(f"{name}: and {len(bad) - _MAX_LISTED} more of {len(bad)} that failed")
    return lines


def _of_number(item: str, found: Any) -> str:
    if isinstance(found, float):
        return f"{item} {format_seconds(found)}"
    if not isinstance(found, dict):
        return ""
    if "ratio" in found:
        return f"{item} {found['ratio']:.3f}"
    units = {"flops_per_s": "FLOP/s", "bytes_per_s": "B/s"}
    rates = [si(found[key], unit) for key, unit in units.items() if key in found]
    return f"{item} {', '.join(rates)}" if rates else ""


def _of_rows(name: str, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line per row, or one line for many rows."""
    if len(rows) <= _MAX_LISTED:
        return [f"{name}: {_of_row(row)}" for row in rows]
    counts = Counter(row["status"] for row in rows)
    words = [", ".join(f"{count} {status}" for status, count in sorted(counts.items()))]
    ratios = list(_ratios(rows))
    if ratios:
        mean = math.exp(statistics.fmean(math.log(one) for one, _, _ in ratios))
        words.append(f"native/torch {mean:.3f} over {len(ratios)}")
    roofs = [
        row["roofline"]["efficiency"]
        for row in rows
        if row["backend"] == "native" and _median(row) and row["roofline"]
    ]
    if roofs:
        words.append(f"{percent(statistics.median(roofs))} of the roof, at most {max(roofs):.0%}")
    return [f"{name}: {'; '.join(words)}"]


def _of_row(row: dict[str, Any]) -> str:
    seconds = _median(row)
    if seconds is None:
        return f"{_named(row)} {row['status']}: {row.get('reason', '')[:100]}"
    peaks = row.get("peak_tflops") or {}
    shares = [
        f"{row['tflops'] / peaks[kind]:.0%} of the {kind} peak"
        for kind in ("theoretical", "measured")
        if row.get("tflops") and peaks.get(kind)
    ]
    clock = f"at {si(row['clock_hz'], 'Hz')}" if row.get("clock_hz") else "no clock"
    words = [f"{row.get('tflops') or 0:.4g} TFLOP/s", *shares, clock, row.get("algorithm", "-")]
    if row.get("sustained_s") and row.get("flops"):
        rate = si(row["flops"] / row["sustained_s"], "FLOP/s")
        hz = si(row["sustained_hz"], "Hz") if row.get("sustained_hz") else "no clock"
        watts = f" and {row['power_w']:.0f} W" if row.get("power_w") else ""
        words.append(f"sustained {rate} at {hz}{watts}")
    said = f"; {row['warnings'][0][:60]}" if row.get("warnings") else ""
    return f"{_named(row)} {row['backend']} {format_seconds(seconds)}, {', '.join(words)}{said}"


def _of_step(name: str, entry: dict[str, Any]) -> list[str]:
    if "counts" in entry:
        counts = ", ".join(f"{count} {word}" for word, count in entry["counts"].items())
        return [f"{name}: {counts or 'nothing ran'}"]
    lines = []
    if "estimate" in entry:
        seconds = (entry["estimate"] or {}).get("time_s")
        said = "no estimate" if seconds is None else format_seconds(seconds)
        lines.append(f"{name}: {said}; dominant {entry.get('dominant')}")
    if levels := entry.get("levels"):
        known = {what: one["median"] for what, one in levels.items() if one}
        words = [f"{what} {format_seconds(seconds)}" for what, seconds in known.items()]
        lines.append(f"{name}: {', '.join(words)}")
    for one in entry.get("steps", ()):
        seconds = (one.get("time_s") or {}).get("median")
        said = format_seconds(seconds) if seconds else f"{one.get('status')} {one.get('reason')}"
        lines.append(f"{name}: {one.get('mode')} {one.get('phase')} {said}")
    return lines


def _ratios(rows: list[dict[str, Any]]) -> Iterator[tuple[float, dict[str, Any], dict[str, Any]]]:
    """Yield the ratio of native to PyTorch for each problem that both timed, with the two rows.

    Problems with a disturbed row are left out.
    """
    native = {_named(row): row for row in rows if row["backend"] == "native"}
    for row in rows:
        beside = native.get(_named(row))
        if row["backend"] != "torch" or beside is None:
            continue
        first, second = _median(beside), _median(row)
        if first and second and not (beside.get("contended") or row.get("contended")):
            yield first / second, beside, row


def _slowest(journal: Journal) -> list[str]:
    found = sorted(_all_ratios(journal), key=lambda one: -one[0])[:_WORST]
    if not found or found[0][0] <= 1:
        return []
    return [
        "",
        "slowest beside PyTorch:",
        *(
            f"  {ratio:.3f}  {_named(native)}: {native.get('algorithm')} "
            f"{format_seconds(_median(native) or 0)}"
            for ratio, native, _ in found
            if ratio > 1
        ),
    ]


def _all_ratios(journal: Journal) -> list[tuple[float, dict[str, Any], dict[str, Any]]]:
    entries = journal.entries().values()
    return [one for entry in entries for one in _ratios(entry.get("rows", []))]


# -----------------------------------------------------------------------------
# Verdicts.


def _open(target: str) -> Verdict:
    return Verdict(target=target, met=None, found="not measured")


def _tests(journal: Journal) -> Verdict:
    target = "the gpu tests pass"
    entries = {name: one for name, one in journal.entries().items() if "counts" in one}
    if not entries:
        return _open(target)
    counts: Counter[str] = Counter()
    for entry in entries.values():
        counts.update(entry["counts"])
    bad = [name for name, entry in entries.items() if "error" in entry]
    words = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()) if count)
    found = (words or "nothing ran") + (f"; not passed: {'; '.join(bad)}" if bad else "")
    return Verdict(target=target, met=counts["passed"] > 0 and not bad, found=found)


def _device(journal: Journal) -> dict[str, Any]:
    return (journal.get("device") or {}).get("device") or {}


def _bandwidth(journal: Journal) -> Verdict:
    card = card_of(journal.get(ENVIRONMENT) or {}) or ""
    known = [rate for name, rate in BANDWIDTHS.items() if name in card]
    rates = [
        item["bytes_per_s"]
        for item in _device(journal).get("bandwidths", ())
        if (item["level"], item["pattern"]) == ("memory", "copy")
    ]
    least = f"at least {known[0] / 1e12:g} TB/s" if known else "what this card should"
    target = f"a copy in device memory moves {least}"
    if not rates:
        return _open(target)
    met = rates[0] >= known[0] if known else None
    return Verdict(target=target, met=met, found=f"{rates[0] / 1e12:.2f} TB/s")


def _fma(journal: Journal) -> Verdict:
    target = f"the fp32 FMA probe reaches {FMA_SHARE:.0%} of theoretical at the measured clock"
    for peak in _device(journal).get("peaks", ()):
        if peak["precision"] == "fp32" and peak["measured_flops_per_s"] and peak["theoretical"]:
            share = peak["measured_flops_per_s"] / peak["theoretical"]["flops_per_s"]
            return Verdict(target=target, met=share >= FMA_SHARE, found=f"{share:.1%}")
    return _open(target)


def _product(journal: Journal) -> Verdict:
    target = f"8192^3 bf16-tc runs at {GEMM_SHARE:.0%} of PyTorch's rate of the same minute"
    rates = {
        row["backend"]: row["tflops"]
        for row in (journal.get("products") or {}).get("rows", ())
        if row["precision"] == "bf16-tc" and row.get("tflops")
    }
    if rates.keys() < {"native", "torch"}:
        return _open(target)
    share = rates["native"] / rates["torch"]
    found = f"{share:.1%}: {rates['native']:.0f} TFLOP/s beside {rates['torch']:.0f}"
    return Verdict(target=target, met=share >= GEMM_SHARE, found=found)


def _worst(journal: Journal) -> Verdict:
    target = f"no native/torch interval lies wholly above {RATIO}"
    ratios = _all_ratios(journal)
    if not ratios:
        return _open(target)
    above = without = slower = 0
    for ratio, native, _ in ratios:
        # To the fastest: a native row that is itself the fastest need not have an interval.
        low = (native.get("ratio") or {}).get("ci_low")
        above += low is not None and low > RATIO
        without += low is None
        slower += low is None and ratio > 1
    met = False if above else None if slower else True
    found = f"{above} of {len(ratios)} rows; {without} without an interval, {slower} of them slower"
    return Verdict(target=target, met=met, found=found)


def _mean(journal: Journal) -> Verdict:
    target = "the geometric mean of native/torch is at most 1"
    ratios = _all_ratios(journal)
    if not ratios:
        return _open(target)
    value = math.exp(statistics.fmean(math.log(ratio) for ratio, _, _ in ratios))
    return Verdict(target=target, met=value <= 1, found=f"{value:.3f} over {len(ratios)} rows")


def _rows(journal: Journal) -> Verdict:
    target = "no row failed"
    rows = [row for entry in journal.entries().values() for row in entry.get("rows", ())]
    if not rows:
        return _open(target)
    failed = [_named(row) for row in rows if row["status"] == "failed"]
    skipped = sum(row["status"] == "skipped" for row in rows)
    named = f": {'; '.join(failed[:3])}" if failed else ""
    found = f"{len(failed)} of {len(rows)} failed, {skipped} skipped{named}"
    return Verdict(target=target, met=not failed, found=found)
