"""Replicates of two runs: those of the store that repeat one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydlbench.compare.environment import differences
from pydlbench.compare.match import key
from pydlbench.compare.rows import Side, read_side
from pydlbench.store.place import machine_name

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pydlbench.records.run import RunInfo
    from pydlbench.store.reader import Reader

# Twenty replicates tell a standard deviation to 16 %; more would only take time to read.
_RUNS: Final = 20
_ROWS: Final = 20_000
# Runs that are looked at for them.
_LOOKED_AT: Final = 200
# Replicates one behind the other differ by less than runs of different days do: twenty of them
# would promise more than holds tomorrow.
_PER_HOUR: Final = 4


def repeats(one: Side, other: Side) -> bool:
    """Whether two runs differ in nothing that is known to change times: neither in code.

    Machine, libraries, threads, variables, build, system and the code of this package are asked
    for; a run that does not say them all repeats no other.
    """
    code = one.environment.get("code")
    return (
        bool(code)
        and code == other.environment.get("code")
        and not any(found.counts for found in differences(one, other, ()))
    )


def replicates(store: Reader, a: Side, b: Side) -> list[list[Mapping[Any, float]]]:
    """Return runs that are repetitions of each other: seconds by key.

    Replicates of A with A itself, and those of B with B. Where B repeats A, the two are what is
    asked about, and only the others tell how far repetitions differ. Of the runs of an hour only a
    few count.

    Args:
        store: where the others are.
        a: the first run.
        b: the second one.
    """
    alike = repeats(a, b)
    sides = [a] if alike else [a, b]
    groups: list[list[Mapping[Any, float]]] = [[] for _ in sides]
    keys = {key(row) for side in (a, b) for row in side.rows}
    hours: dict[tuple[int, str], int] = {}
    read = 0
    for info in store.runs(limit=_LOOKED_AT):
        if info.id in (a.run_id, b.run_id) or info.status in ("running", "killed"):
            continue
        if read + info.measurements > _ROWS or not _may_repeat(info, sides):
            continue
        record = store.record(info.id)
        found = Side(name=info.id, rows=(), device=record.device, environment=record.environment)
        number = next((at for at, side in enumerate(sides) if repeats(side, found)), None)
        if number is None or len(groups[number]) == _RUNS:
            continue
        hour = number, info.created_utc[:13]
        if hours.get(hour, 0) == _PER_HOUR:
            continue
        read += info.measurements
        seconds = _seconds(read_side(info.id, store), keys)
        if seconds:
            groups[number].append(seconds)
            hours[hour] = hours.get(hour, 0) + 1
    if not alike:
        for side, group in zip(sides, groups, strict=True):
            if group:
                group.append(_seconds(side, keys))
    return groups


def _may_repeat(info: RunInfo, sides: Collection[Side]) -> bool:
    """Whether a run was measured on the machine of one of the sides."""
    return any(info.machine == machine_name(side.device) for side in sides)


def _seconds(side: Side, keys: Collection[Any]) -> dict[Any, float]:
    """Return a run's seconds by key, without what was disturbed."""
    return {
        name: row.median
        for row in side.rows
        if row.ok and row.median and not row.contended and (name := key(row)) in keys
    }
