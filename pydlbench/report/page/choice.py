"""Which rows of a large run are on a page: those of the layers that take longest.

A page of fifty thousand rows would take a browser minutes, and nobody would read it. What is chosen
is chosen by the columns of the store, so that no document is read for nothing; a layer comes with
all of its rows, so that backends, batches and precisions stay beside each other.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["COLUMNS", "MOST_ROWS", "MOST_UNTIMED", "Choice", "choose"]

#: Timed rows of a run: every layer of the largest model, hot and cold, is fewer.
MOST_ROWS: Final = 800
#: Rows without a time.
MOST_UNTIMED: Final = 200
#: What a choice is made by, of the store's columns.
COLUMNS: Final = ("status", "median", "layer", "kind", "pass")


class Choice(NamedTuple):
    """The rows of a page.

    Attributes:
        places: their lines among the columns; None is all of them.
        left_timed: timed rows that are not among them.
        left_untimed: rows without a time that are not.
    """

    places: list[int] | None
    left_timed: int = 0
    left_untimed: int = 0


def choose(columns: Sequence[tuple[Any, ...]]) -> Choice:
    """Return what of a run is shown.

    Args:
        columns: :data:`COLUMNS` of each row, perhaps of a document with other things than numbers
            in it.
    """
    if len(columns) <= MOST_ROWS:
        return Choice(None)
    layers: dict[tuple[Any, ...], list[int]] = {}
    slowest: dict[tuple[Any, ...], float] = {}
    untimed = []
    for place, (status, seconds, *rest) in enumerate(columns):
        if status != "ok" or not isinstance(seconds, float) or not 0 < seconds < inf:
            untimed.append(place)
            continue
        name = tuple(rest)
        if name in layers:
            layers[name].append(place)
            if seconds > slowest[name]:
                slowest[name] = seconds
        else:
            layers[name], slowest[name] = [place], seconds
    kept: list[int] = []
    for name in sorted(layers, key=lambda one: -slowest[one]):
        if kept and len(kept) + len(layers[name]) > MOST_ROWS:
            break
        kept += layers[name][: MOST_ROWS - len(kept)]
    timed = sum(map(len, layers.values()))
    places = sorted([*kept, *untimed[:MOST_UNTIMED]])
    return Choice(places, timed - len(kept), max(0, len(untimed) - MOST_UNTIMED))
