"""Going on where a run stopped: whether it is still the same run, and what its record says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pydlbench.errors import UsageError
from pydlbench.store.place import cpu_identity, gpu_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydlbench.records.run import RunRecord

_MISSING = object()
_SHOWN = 3


def refuse_differences(
    before: RunRecord,
    now: RunRecord,
    request_before: Mapping[str, Any] | None,
    request_now: Mapping[str, Any],
) -> None:
    """Make sure that new rows may stand beside those of a run.

    Args:
        before: the run, as it was kept.
        now: a run on this machine as it is; a GPU is compared where both have used one.
        request_before: what it was asked for.
        request_now: what is asked for now; JSON objects, compared key by key.

    Raises:
        UsageError: the machine, a library's version, a variable that libraries read, or the
            request differs; it names what.
    """
    if request_before is None:
        raise UsageError(
            f"--resume {before.id}: it was kept without what was asked for; start a new run"
        )
    pairs = (
        ("the machine", cpu_identity(before.device), cpu_identity(now.device)),
        ("the GPU", *_gpus(before, now)),
        ("the library", *(run.environment.get("packages", {}) for run in (before, now))),
        ("the variable", *(run.environment.get("variables", {}) for run in (before, now))),
        ("the request", _plain(request_before), _plain(request_now)),
    )
    for what, old, new in pairs:
        differences = list(_differences(old, new))
        # A sum over everything says least of all.
        other = [text for text in differences if not text.startswith("cases was")]
        differences = other or differences
        if differences:
            more = f" and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
            some = f"{', '.join(differences[:_SHOWN])}{more}"
            raise UsageError(
                f"--resume {before.id}: {what} is not the same: {some}; "
                "nearest: start a new run, without --resume"
            )


def _gpus(before: RunRecord, now: RunRecord) -> tuple[dict[str, str], dict[str, str]]:
    old, new = gpu_name(before.device), gpu_name(now.device)
    return ({"name": old}, {"name": new}) if old and new else ({}, {})


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys([*old, *new]):
        was, is_ = old.get(name, _MISSING), new.get(name, _MISSING)
        if was != is_:
            yield f"{name} was {_text(was)}, is {_text(is_)}"


def _text(value: Any) -> str:
    if value is _MISSING:
        return "nothing"
    if isinstance(value, (list, tuple)) and len(value) > _SHOWN:
        return f"{len(value)} values"
    return value if isinstance(value, str) else json.dumps(value)


def _plain(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request as it is read back from JSON."""
    plain: dict[str, Any] = json.loads(json.dumps(request))
    return plain


# -----------------------------------------------------------------------------
# The record of a run that was gone on with: what both attempts have found on the machine.
#
# Each attempt probes what its own rows need. The rows of the first one stand in the run beside
# those of the second, so their peaks, bandwidths and libraries have to stand in its record as well.

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
    return msgspec.structs.replace(
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
        return {**card, "host": _same_use(*pair)}
    old, new = _each(before), _each(now)
    every = {name: _same_use(old.get(name, {}), new.get(name, {})) for name in {**old, **new}}
    if len(every) < 2:
        return next(iter(every.values()))
    top = max(
        every.values(), key=lambda device: (bool(device.get("peaks")), device.get("threads") or 0)
    )
    return {**top, _BY_THREADS: every}


def _each(device: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return a device by its number of threads."""
    plain = {name: value for name, value in device.items() if name != _BY_THREADS}
    return {str(plain.get("threads")): plain, **device.get(_BY_THREADS, {})}


def _same_use(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return all that two attempts have found on a device used in the same way."""
    joined = _union(before, now)
    for name, keys in _NAMED.items():
        if before.get(name) and now.get(name):
            joined[name] = _items(before[name], now[name], keys)
    if "host" in before and "host" in now:
        joined["host"] = _same_use(before["host"], now["host"])
    return joined


def _union(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return both, the later one's values where it has some; tables are joined, not replaced."""
    joined = dict(before)
    for name, value in now.items():
        old = joined.get(name)
        if isinstance(old, dict) and isinstance(value, dict):
            joined[name] = {**old, **value}
        elif name not in joined or value not in (None, [], (), {}, ""):
            joined[name] = value
    return joined


def _items(before: Any, now: Any, keys: tuple[str, ...]) -> list[Any]:
    """Return the items of both lists; of those about the same thing the later that was measured."""
    items = {_name(item, keys): item for item in before}
    for item in now:
        name = _name(item, keys)
        # A probe that could not run this time does not undo the one that did.
        if name not in items or not item.get("reason"):
            items[name] = item
    return list(items.values())


def _name(item: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(item.get(name) for name in keys)
