"""A table without rules, for everything that is printed in columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["plain_table"]


def plain_table(
    titles: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool]
) -> str:
    """Return an aligned table without rules: readable in a terminal, in a pipe and in a mail."""
    from tabulate import tabulate  # imported here: not every command prints a table

    # The titles go in as a row: tabulate pads headers by two more blanks, which many columns of
    # few digits cannot afford.
    text = tabulate(
        [titles, *cells],
        tablefmt="plain",
        disable_numparse=True,
        colalign=["right" if flag else "left" for flag in right],
    )
    return "\n".join(line.rstrip() for line in text.splitlines())
