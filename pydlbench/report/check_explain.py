"""``check --explain``: how each term was measured, all parts, all rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.report.check_numbers import Scale, clip, percent, signed_percent, wrap
from pydlbench.report.plain_table import plain_table
from pydlbench.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.crosscheck import CheckRecord, PieceRow, RoundRow

__all__ = ["explain_check", "pieces_table", "rounds_table", "terms"]

_NAME = 48


def explain_check(record: CheckRecord) -> list[str]:
    """Return blocks: how terms were measured, the table of parts, the table of rounds."""
    scale = Scale.of(record.measured.median)
    blocks = ["\n".join(["how each term was measured", *wrap(terms(record), "    ")])]
    if record.pieces:
        blocks.append(pieces_table(record.pieces, record.measured.median, scale))
    if record.rounds:
        blocks.append(rounds_table(record.rounds, scale))
    return blocks


def terms(record: CheckRecord) -> list[str]:
    """Return a line for each term, and one for what calls cost."""
    lines = [f"  {one.term}: {one.how}" for one in record.ledger]
    costs = [
        f"{name.removesuffix('_s').replace('_', ' ')} {format_seconds(value)}"
        for name, value in record.calibration.items()
        if isinstance(value, (int, float))
    ]
    how = record.calibration.get("how")
    if costs:
        lines.append(f"  calls: {', '.join(costs)}{f'; {how}' if how else ''}")
    return lines


def pieces_table(pieces: Sequence[PieceRow], measured_s: float, scale: Scale) -> str:
    """Return the parts, the largest first, each beside the native rows of the same nodes."""
    ranked = sorted(pieces, key=lambda one: one.count * one.seconds, reverse=True)
    rows = []
    for one in ranked:
        total = one.count * one.seconds
        gap = None if one.native_s is None else one.count * (one.seconds - one.native_s)
        rows.append(
            [
                clip(one.name, _NAME),
                one.kind,
                str(one.count),
                format_seconds(one.seconds),
                "-" if one.native_s is None else format_seconds(one.native_s),
                scale.text(total),
                percent(total / measured_s),
                "-" if gap is None else scale.signed(gap),
            ]
        )
    titles = ["part", "kind", "times", "each", "native", "in all", "share", "against native"]
    return clip(plain_table(titles, rows, [title not in ("part", "kind") for title in titles]))


def rounds_table(rounds: Sequence[RoundRow], scale: Scale) -> str:
    """Return the rounds in their order; each prediction was stored before its step ran."""
    rows = [
        [
            str(number),
            scale.text(one.pieces_s),
            scale.text(one.faults_s),
            scale.text(one.estimate_s),
            scale.text(one.measured_s),
            signed_percent((one.estimate_s - one.measured_s) / one.measured_s),
            scale.text(one.kept_s),
        ]
        for number, one in enumerate(rounds, start=1)
    ]
    titles = ["round", "parts", "page faults", "predicted", "measured", "error", "pages kept"]
    return clip(plain_table(titles, rows, [True] * len(titles)))
