"""What follows from a check: the dominant layer, the largest loss, the next command."""

from __future__ import annotations

import dataclasses
import shlex
from typing import TYPE_CHECKING

from pydlbench.errors import UsageError
from pydlbench.report.check_numbers import Scale, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.crosscheck import CheckRecord, LedgerTerm, PieceRow

__all__ = ["check_conclusion", "dominant", "largest_loss"]

# The one term that is physics: what the hardware needs at the least.
_PHYSICS = "layers at their roof"
_UNEXPLAINED = "unexplained"
# Terms that are whole parts of a step, and no losses.
_NEEDED = ("loss", "optimizer")
# The same in the other way of running a framework: whether it has fewer calls and joins nodes.
_JOINED = {"eager": "compiled", "graph": "xla"}
_WORTH = 0.005


def check_conclusion(record: CheckRecord, *, diagnose: bool = False) -> list[str]:
    """Return sentences, each one line.

    Args:
        record: what was found.
        diagnose: whether there is a command of that name to point to.
    """
    lines = []
    scale = Scale.of(record.measured.median)
    first = dominant(record.pieces)
    if first is not None:
        seconds = first.count * first.seconds
        alike = "" if first.count == 1 else f" and {first.count - 1} like it"
        share = percent(seconds / record.measured.median)
        verb = "dominates" if first.count == 1 else "dominate"
        lines.append(f"{first.name}{alike} {verb}: {scale.text(seconds)}, {share} of the step.")
    loss = largest_loss(record)
    if loss is None:
        lines.append("No term besides the roof itself is worth 0.5 % of the step.")
    elif loss.term == _UNEXPLAINED:
        lines.append(
            f"The largest loss has no name: {scale.text(loss.seconds)}, {percent(loss.share)} of "
            "the step. More rounds tell whether it is noise."
        )
    else:
        detail = f" ({' '.join(loss.detail.split())})" if loss.detail else ""
        lines.append(
            f"The largest term that is not physics: {loss.term}, {scale.text(loss.seconds)}, "
            f"{percent(loss.share)} of the step{detail}."
        )
    lines.append(f"next: pydlbench {_next(record, loss, diagnose)}")
    return lines


def dominant(pieces: Sequence[PieceRow]) -> PieceRow | None:
    """Return the layer that takes longest, all that are alike together; of any part if none is."""
    layers = [one for one in pieces if one.kind == "layer"] or list(pieces)
    return max(layers, key=lambda one: one.count * one.seconds, default=None)


def largest_loss(record: CheckRecord) -> LedgerTerm | None:
    """Return the term that costs most besides the roof; None where none is worth it.

    Loss and optimizer have to be computed, so that only what they take above their native rows
    counts.
    """
    terms = [_lost(record, one) for one in record.ledger if one.term != _PHYSICS]
    found = max(terms, key=lambda one: one.seconds, default=None)
    return found if found is not None and found.share >= _WORTH else None


def _lost(record: CheckRecord, term: LedgerTerm) -> LedgerTerm:
    parts = [one for one in record.pieces if one.kind == term.term and one.native_s]
    if term.term not in _NEEDED or not parts:
        return term
    needed = sum(one.count * (one.native_s or 0.0) for one in parts)
    left = term.seconds - needed
    share = left / record.measured.median
    name = f"{term.term} above its native rows"
    return dataclasses.replace(term, term=name, seconds=left, share=share)


def _next(record: CheckRecord, loss: LedgerTerm | None, diagnose: bool) -> str:
    step = _step(record)
    if loss is not None and loss.term == _UNEXPLAINED:
        return f"check {step} --rounds {2 * max(1, len(record.rounds))} --explain"
    if diagnose:
        return f"diagnose {_step(record, feeds=False)}"
    term = None if loss is None else loss.term
    joined = _JOINED.get(record.mode)
    if term in ("pointwise", "dispatch") and joined is not None:
        return f"check {_step(record, mode=joined)}"
    shape = _shape(record, native=term == "above the roof, native")
    if term == "above the roof, native" and shape is not None:
        return f"layers {shape} --algorithms"
    if term in ("operator choice", "layout reorders") and shape is not None:
        how = f"--backend native,{record.framework} --mode {record.mode} --explain"
        return f"layers {shape} {how}"
    return f"check {step} --explain"


def _step(record: CheckRecord, mode: str | None = None, *, feeds: bool = True) -> str:
    """Return the words that name a step; ``mode`` takes the place of its own."""
    words = [record.model, "--batch", str(record.batch)]
    words += ["--phase", record.phase] if record.phase != "forward" else []
    words += ["--precision", record.precision] if record.precision != "fp32" else []
    words += ["--layout", record.layout] if record.layout != "nhwc" else []
    words += ["--feed", record.feed] if record.feed != "resident" and feeds else []
    for name, value in record.options.items():
        words += ["--option", f"{name}={value}"]
    words += ["--framework", record.framework]
    wanted = mode or record.mode
    return shlex.join([*words, "--mode", wanted] if wanted not in _JOINED else words)


def _shape(record: CheckRecord, native: bool) -> str | None:
    """Return the options that time the layer most worth a look alone; None if it has no name."""
    if record.options:  # the catalog has the models as they were published
        return None
    from pydlbench.layers import find_layers

    layers = [one for one in record.pieces if one.kind == "layer" and one.native_s is not None]

    def gap(one: PieceRow) -> float:
        own = one.native_s or 0.0
        return one.count * (own if native else one.seconds - own)

    for piece in sorted(layers, key=gap, reverse=True)[:1]:
        name = f"{record.model}/{piece.nodes[0]}" if piece.nodes else record.model
        try:
            find_layers([name], record.batch, None)
        except UsageError:
            return None
        passes = "" if record.phase == "forward" else " --pass all"
        kind = "" if record.precision == "fp32" else f" --precision {record.precision}"
        return f"--shape {shlex.quote(name)} --batch {record.batch}{passes}{kind}"
    return None
