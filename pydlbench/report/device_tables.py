"""The tables of ``device`` that all kinds of devices share: facts, peaks, bandwidths."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.units import format_bytes, format_hz, format_percent, si

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pydlbench.devices import Bandwidth, PrecisionPeak

__all__ = ["bandwidth_table", "fact_lines", "peak_lines", "ruled_table"]


def fact_lines(facts: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield one line per labelled fact."""
    for label, text in facts:
        yield f"{label:<10}{text}"


def ruled_table(titles: Sequence[str], rows: Sequence[Sequence[str]], align: Sequence[str]) -> str:
    """Return a table with a rule under its titles; ``align`` holds ``left`` or ``right``."""
    from tabulate import tabulate  # imported here: not every command prints a table

    return tabulate(rows, titles, tablefmt="simple", colalign=align, disable_numparse=True)


def peak_lines(peaks: Sequence[PrecisionPeak], rated: str) -> Iterator[str]:
    """Yield the table of compute peaks, an empty line before it, and the derivations.

    Args:
        peaks: one per precision.
        rated: what the clock that a product is sold with is called: ``nominal``, ``rated``.
    """
    if not peaks:
        return
    yield ""
    titles = ("precision", "measured", "theoretical", "share", rated, "clock", "probe")
    yield ruled_table(titles, [_peak_row(peak) for peak in peaks], ("left", *["right"] * 5, "left"))
    for peak in peaks:
        limit = peak.theoretical or peak.nominal
        if limit is not None:
            assumed = "; assumed" if limit.assumed else ""
            yield f"{peak.precision}: {limit.derivation}{assumed}"


def bandwidth_table(
    bandwidths: Sequence[Bandwidth],
    names: Mapping[str, str],
    theory: Mapping[str, float] | None = None,
) -> str:
    """Return the table of bandwidths in GB/s, one row per level, one column per pattern.

    Args:
        bandwidths: what was probed.
        names: of the levels, for people.
        theory: theoretical bandwidths in B/s, of levels that have one.
    """
    patterns = list(dict.fromkeys(item.pattern for item in bandwidths))
    rows = []
    for level in dict.fromkeys(item.level for item in bandwidths):
        found = {item.pattern: item for item in bandwidths if item.level == level}
        size = max(item.working_set_bytes for item in found.values())
        cells = [
            f"{found[pattern].bytes_per_s / 1e9:.1f}" if pattern in found else "-"
            for pattern in patterns
        ]
        if theory:
            limit = theory.get(level)
            best = max(item.bytes_per_s for item in found.values())
            cells += (
                ["-", "-"]
                if limit is None
                else [f"{limit / 1e9:.1f}", format_percent(best / limit)]
            )
        rows.append((names.get(level, level), format_bytes(size), *cells))
    titles = ("GB/s from", "working set", *patterns)
    if theory:
        titles += ("theoretical", "share")
    return ruled_table(titles, rows, ("left", *["right"] * (len(titles) - 1)))


def _peak_row(peak: PrecisionPeak) -> tuple[str, ...]:
    nominal = "-" if peak.nominal is None else si(peak.nominal.flops_per_s, "FLOP/s")
    if peak.measured is None:
        return (peak.precision, "-", "-", "-", nominal, "-", peak.reason or "not probed")
    limit = peak.theoretical
    return (
        peak.precision,
        si(peak.measured, "FLOP/s"),
        "-" if limit is None else si(limit.flops_per_s, "FLOP/s"),
        "-" if limit is None else format_percent(peak.measured / limit.flops_per_s),
        nominal,
        "-" if peak.clock_hz is None else format_hz(peak.clock_hz),
        peak.kernel or "-",
    )
