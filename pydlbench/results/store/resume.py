"""Going on where a run stopped: what is done already, and whether it is still the same run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pydlbench.errors import UsageError
from pydlbench.results.store.entry import ANSWERED
from pydlbench.results.store.machine import cpu_identity, gpu_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydlbench.results.records import RunRecord
    from pydlbench.results.store.reader import Reader

__all__ = ["case_key", "done_keys", "refuse_differences"]

_MISSING = object()
_SHOWN = 3


def case_key(case: Any, threads: int | None = None) -> str:
    """Return what a case is, as a word that is the same in every process.

    Args:
        case: a ``Case`` of a layer or a ``StepCase`` (whatever has ``to_dict()``).
        threads: those that were asked for; None is the default.
    """
    return json.dumps({**case.to_dict(), "threads": threads}, sort_keys=True)


def done_keys(store: Reader, run_id: str) -> frozenset[str]:
    """Return the keys of a run's rows that need not be measured again: ok or skipped ones.

    A row that failed is measured once more; it then takes the failed one's place.
    """
    return frozenset(key for key, status in store.statuses(run_id).items() if status in ANSWERED)


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
        found = list(_differences(old, new))
        # A sum over everything says least of all.
        found = [text for text in found if not text.startswith("cases was")] or found
        if found:
            more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
            raise UsageError(
                f"--resume {before.id}: {what} is not the same: {', '.join(found[:_SHOWN])}{more}; "
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
