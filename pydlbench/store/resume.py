"""Resuming a run: whether machine and request are the same, and the record of both attempts."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from pydlbench.errors import UsageError
from pydlbench.records.run import RunRecord
from pydlbench.store.place import cpu_identity, gpu_name

_MISSING = object()
_MAX_LISTED = 3


def refuse_differences(
    before: RunRecord,
    now: RunRecord,
    request_before: Mapping[str, Any] | None,
    request_now: Mapping[str, Any],
) -> None:
    """Check that new rows may be added to a run.

    Args:
        before: record of the stored run.
        now: record of a run on this machine in its present state; GPUs are compared if both runs
            used one.
        request_before: request of the stored run.
        request_now: present request; both requests are JSON objects and are compared key by key.

    Raises:
        UsageError: the machine, a library's version, an environment variable of a library, or the
            request differs; names the difference.
    """
    if request_before is None:
        raise UsageError(f"--resume {before.id}: its request was not stored; start a new run")
    pairs = (
        ("the machine", cpu_identity(before.device), cpu_identity(now.device)),
        ("the GPU", *_gpus(before, now)),
        ("the library", *(run.environment.get("packages", {}) for run in (before, now))),
        ("the variable", *(run.environment.get("variables", {}) for run in (before, now))),
        ("the request", _plain(request_before), _plain(request_now)),
    )
    for what, old, new in pairs:
        differences = list(_differences(old, new))
        # The digest of all cases is the least informative difference.
        other = [text for text in differences if not text.startswith("cases was")]
        differences = other or differences
        if differences:
            hidden = len(differences) - _MAX_LISTED
            more = f" and {hidden} more" if hidden > 0 else ""
            raise UsageError(
                f"--resume {before.id}: {what} is not the same: "
                f"{', '.join(differences[:_MAX_LISTED])}{more}; "
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
    if isinstance(value, (list, tuple)) and len(value) > _MAX_LISTED:
        return f"{len(value)} values"
    return value if isinstance(value, str) else json.dumps(value)


def _plain(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request after a round trip through JSON."""
    return dict(json.loads(json.dumps(request)))


# -----------------------------------------------------------------------------
# The record of a resumed run, merged from both attempts.
#
# Each attempt probes what its own rows need. The run contains the rows of both, so its record needs
# the peaks, bandwidths and libraries of both.

# Lists of a device's record, with the fields that identify an item.
_NAMED: Final = {
    "peaks": ("precision",),
    "bandwidths": ("level", "pattern"),
    "warnings": ("symptom",),
}
_BY_THREADS: Final = "by_threads"


def merge_records(before: RunRecord, now: RunRecord) -> RunRecord:
    """Return the merged record, with id, time and command of the first attempt.

    Args:
        before: record of the first attempt, as stored.
        now: record of the resuming session, which has precedence.
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
    """Return the merged device; at the top level the one with the most threads, as in any run.

    A device with probed peaks precedes one without.
    """
    if not before or not now:
        return dict(before or now)
    if ("host" in before) != ("host" in now):  # only one attempt used a GPU
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
    """Return the devices of a record by number of threads."""
    plain = {name: value for name, value in device.items() if name != _BY_THREADS}
    return {str(plain.get("threads")): plain, **device.get(_BY_THREADS, {})}


def _same_use(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two records of a device with the same number of threads."""
    merged = _union(before, now)
    for name, keys in _NAMED.items():
        if before.get(name) and now.get(name):
            merged[name] = _items(before[name], now[name], keys)
    if "host" in before and "host" in now:
        merged["host"] = _same_use(before["host"], now["host"])
    return merged


def _union(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two mappings: later values have precedence unless empty; nested ones are merged."""
    merged = dict(before)
    for name, value in now.items():
        old = merged.get(name)
        if isinstance(old, dict) and isinstance(value, dict):
            merged[name] = {**old, **value}
        elif name not in merged or value not in (None, [], (), {}, ""):
            merged[name] = value
    return merged


def _items(before: Any, now: Any, keys: tuple[str, ...]) -> list[Any]:
    """Merge two lists: of items with the same key, the later one that was measured."""
    items = {_name(item, keys): item for item in before}
    for item in now:
        name = _name(item, keys)
        # A probe that could not run does not replace one that did.
        if name not in items or not item.get("reason"):
            items[name] = item
    return list(items.values())


def _name(item: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(item.get(name) for name in keys)
