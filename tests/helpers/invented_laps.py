"""Invented laps of a check, in which every rung has been visited."""

from typing import Any

from pydlbench.records.check import Lap

#: A step in milliseconds, rung by rung, no two differences alike.
RUNGS = {
    "limit": 84.0,
    "native": 91.0,
    "native_hot": 88.0,
    "native_cold": 94.0,
    "native_chain": 92.0,
    "operators": 108.0,
    "operator_chain": 111.0,
    "step": 117.0,
    "step_kept": 113.0,
}
VISITS = ("native", "native_chain", "operators", "operator_chain", "step", "step_kept")


def laps(
    count: int = 8,
    *,
    without: tuple[str, ...] = (),
    canary: dict[str, float] | None = None,
    clock: dict[str, float] | None = None,
    marked: int | None = None,
    **changed: float,
) -> list[Lap]:
    """Return laps that drift by a fifth, whatever is in them alike, with a scatter of 0.1 %.

    Args:
        count: of laps.
        without: what was not visited.
        canary: by visit, where it is not 1.
        clock: by visit in GHz, where it is not 4.
        marked: so many of the first laps have these marks; None is all.
        changed: milliseconds of what differs from :data:`RUNGS`, or is there besides.
    """
    found = []
    for index in range(count):
        drift = 1 + 0.2 * index / max(1, count - 1)
        here = marked is None or index < marked
        seconds: dict[str, Any] = {
            name: 1e-3 * ms * drift * (1 + 1e-3 * ((7 * index + 3 * place) % 5 - 2))
            for place, (name, ms) in enumerate({**RUNGS, **changed}.items())
            if name not in without
        }
        visits = [one for one in VISITS if one in seconds]
        found.append(
            Lap(
                seconds=seconds,
                canary={one: (canary or {}).get(one, 1.0) if here else 1.0 for one in visits},
                clock_hz={
                    one: 1e9 * ((clock or {}).get(one, 4.0) if here else 4.0) for one in visits
                },
            )
        )
    return found
