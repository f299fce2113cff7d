"""The record of a run that was gone on with: what both attempts have found on the machine.

Each attempt probes what its own rows need. The rows of the first one stand in the run beside those
of the second, so their peaks, bandwidths and libraries have to stand in its record as well.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydlbench.results.records import RunRecord

__all__ = ["continued"]

# Lists of a device's record, and what tells their items apart.
_NAMED: Final = {
    "peaks": ("precision",),
    "bandwidths": ("level", "pattern"),
    "warnings": ("symptom",),
}
_BY_THREADS: Final = "by_threads"


def continued(before: RunRecord, now: RunRecord) -> RunRecord:
    """Return the run's record: the first attempt's id, time and command, and all that is known.

    Args:
        before: as it was kept.
        now: of the session that goes on; where both have found the same thing, this one counts.
    """
    return dataclasses.replace(
        now,
        id=before.id,
        created_utc=before.created_utc,
        command=before.command,
        device=_device(before.device, now.device),
        environment=_union(before.environment, now.environment),
    )


def _device(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return one device; of several numbers of threads the most are on top, as in any run.

    Only one on which nothing was probed stands behind others.
    """
    if not before or not now:
        return dict(before or now)
    if ("host" in before) != ("host" in now):  # one attempt has used a GPU, the other has not
        card = now if "host" in now else before
        pair = (before, card["host"]) if card is now else (card["host"], now)
        return {**card, "host": _one(*pair)}
    old, new = _each(before), _each(now)
    every = {name: _one(old.get(name, {}), new.get(name, {})) for name in {**old, **new}}
    if len(every) < 2:
        return next(iter(every.values()))
    top = max(every.values(), key=lambda one: (bool(one.get("peaks")), one.get("threads") or 0))
    return {**top, _BY_THREADS: every}


def _each(device: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return a device by its number of threads."""
    plain = {name: value for name, value in device.items() if name != _BY_THREADS}
    return {str(plain.get("threads")): plain, **device.get(_BY_THREADS, {})}


def _one(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return all that two attempts have found on a device used in the same way."""
    found = _union(before, now)
    for name, of in _NAMED.items():
        if before.get(name) and now.get(name):
            found[name] = _items(before[name], now[name], of)
    if "host" in before and "host" in now:
        found["host"] = _one(before["host"], now["host"])
    return found


def _union(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return both, the later one's values where it has some; tables are joined, not replaced."""
    found = dict(before)
    for name, value in now.items():
        old = found.get(name)
        if isinstance(old, dict) and isinstance(value, dict):
            found[name] = {**old, **value}
        elif name not in found or value not in (None, [], (), {}, ""):
            found[name] = value
    return found


def _items(before: Any, now: Any, of: tuple[str, ...]) -> list[Any]:
    """Return the items of both lists; of those about the same thing the later that was measured."""
    found = {_name(one, of): one for one in before}
    for one in now:
        name = _name(one, of)
        # A probe that could not run this time does not undo the one that did.
        if name not in found or not one.get("reason"):
            found[name] = one
    return list(found.values())


def _name(item: Mapping[str, Any], of: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(item.get(name) for name in of)
