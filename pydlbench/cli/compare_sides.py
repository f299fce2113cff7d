"""The two sides of a comparison as they are stored, and the runs that came before them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.compare import Side
    from pydlbench.results.store import Store

__all__ = ["earlier_runs", "read_sides"]

# Twenty repeats tell a standard deviation to 16 %; more would only take time to read.
_RUNS: Final = 20
_ROWS: Final = 20_000
# Runs that are looked at for them.
_LOOKED_AT: Final = 200
# Repeats one behind the other differ by less than runs of different days do: twenty of them would
# promise more than holds tomorrow.
_PER_HOUR: Final = 4


def read_sides(names: Sequence[str], store: Store | None) -> tuple[Side, Side]:
    """Return both sides.

    Raises:
        UsageError: there is no such run and no such file.
        StoreError: it cannot be read.
    """
    from pydlbench.compare import side_of_run
    from pydlbench.results.store import load

    first, second = (side_of_run(name, load(name, store)) for name in names)
    return first, second


def earlier_runs(store: Store, a: Side, b: Side) -> list[dict[Any, float]]:
    """Return seconds by key, of each earlier run on the machine that both sides were measured on.

    Of the runs of an hour only a few: they tell less than they seem to.

    Args:
        store: where they are.
        a: not among them.
        b: likewise; without two sides of one machine there is nothing to learn.
    """
    from pydlbench.compare import Row
    from pydlbench.compare.keys import key
    from pydlbench.results.store.machine import machine_name

    machine = machine_name(b.device)
    if not machine or machine_name(a.device) != machine:
        return []
    wanted: set[Any] = set()
    found: list[dict[Any, float]] = []
    read = 0
    hours: dict[str, int] = {}
    for info in store.runs(limit=_LOOKED_AT):
        hour = info.created_utc[:13]
        useless = info.id in (a.run_id, b.run_id) or info.machine != machine
        useless = useless or hours.get(hour, 0) == _PER_HOUR
        if useless or info.status in ("running", "killed") or read + info.measurements > _ROWS:
            continue
        read += info.measurements
        wanted = wanted or {key(row) for row in b.rows}
        rows = map(Row._make, store.columns(info.id))
        seconds = {
            name: row.median
            for row in rows
            if row.ok and row.median and not row.contended and (name := key(row)) in wanted
        }
        if seconds:
            found.append(seconds)
            hours[hour] = hours.get(hour, 0) + 1
        if len(found) == _RUNS:
            break
    return found
