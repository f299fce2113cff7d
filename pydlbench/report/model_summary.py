"""The report of ``model --summary``: what a model is made of, counted and not timed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydlbench.report.plain_table import plain_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["render_summary"]


def render_summary(found: Mapping[str, Any]) -> str:
    """Return the table of nodes and the totals; no newline at the end.

    Args:
        found: What ``pydlbench.models.counts.summary`` returns.
    """
    rows = [
        [
            layer["name"],
            layer["op"],
            _shape(layer["shape"]),
            layer["problem"] or "-",
            _count(layer["parameters"]),
            _count(layer["macs_forward"]),
        ]
        for layer in found["layers"]
    ]
    table = plain_table(
        ["layer", "operation", "output", "problem", "parameters", "multiply-adds"],
        rows,
        [False, False, False, False, True, True],
    )
    totals = [
        f"parameters              {found['parameters']:,}",
        f"multiply-adds forward   {found['macs_forward']:,}",
        f"multiply-adds training  {found['macs_training']:,}",
        "multiply-adds are those of one image; one is two FLOP",
    ]
    head = f"{found['model']}  {found['title']}  batch {found['batch']}  from {found['source']}"
    return "\n\n".join([head, table, "\n".join(totals)])


def _shape(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))


def _count(number: int) -> str:
    return f"{number:,}" if number else "-"
