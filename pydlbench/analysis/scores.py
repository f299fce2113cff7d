"""How far earlier forecasts were off: the interval of the next one."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydlbench.records.forecast import Place
    from pydlbench.store.reader import Reader

#: Share of steps that lie within the interval of their forecast.
LEVEL: Final = 0.9
#: Half of the interval, as a fraction, while fewer forecasts than :data:`LEAST` were scored: the
#: largest error of an earlier method's forecasts of five users' models.
ASSUMED: Final = 0.17
#: Of fewer errors the largest one does not reach :data:`LEVEL`.
LEAST: Final = 9
# Documents of each table that are read for scores.
_READ: Final = 200
# What tells one step from another in the documents of forecasts, steps and breakdowns.
_STEP: Final = ("model", "options", "own", "batch", "phase", "layout", "feed")
_PLACE: Final = ("framework", "mode", "precision", "device", "threads", "library")


class ScoreInterval(NamedTuple):
    """Half of an interval, as the logarithm of a ratio, and of how many scores it is."""

    reach: float
    scored: int


def interval(errors: list[float]) -> ScoreInterval:
    """Return what the next error lies within nine times of ten.

    Of n errors and the next one, each is the largest equally often: the next one lies within the
    smallest of which ``LEVEL * (n + 1)`` are no larger (split conformal prediction).

    Args:
        errors: logarithms of forecast over measured.
    """
    ordered = sorted(map(abs, errors))
    if len(ordered) < LEAST:
        return ScoreInterval(math.log1p(ASSUMED), len(ordered))
    place = min(len(ordered), math.ceil(LEVEL * (len(ordered) + 1)))
    return ScoreInterval(ordered[place - 1], len(ordered))


def scored(store: Reader | None, place: Place) -> list[float]:
    """Return the errors of forecasts of a place whose step was timed later, or broken down.

    Args:
        store: None has none.
        place: framework, mode, precision, device, threads and library count; errors of others are
            no evidence.

    Returns:
        Logarithms of forecast over measured, one of each step: of its newest forecast.
    """
    if store is None:
        return []
    # A GPU's steps name no threads.
    names = [name for name in _PLACE if name != "threads" or place.device == "cpu"]
    wanted = [str(getattr(place, name)) for name in names]

    def here(document: Mapping[str, Any]) -> bool:
        return [str(document.get(name)) for name in names] == wanted

    errors: dict[str, float] = {}
    for _, document in store.documents("breakdown", _READ):
        error = document.get("forecast_error")
        if here(document) and error is not None and error > -1.0:
            errors.setdefault(_key(document), math.log1p(error))
    timed: dict[str, tuple[int, float]] = {}
    for number, document in store.documents("step", _READ):
        seconds = (document.get("time_s") or {}).get("median")
        if here(document) and seconds:
            timed.setdefault(_key(document), (number, seconds))
    for number, document in store.documents("forecast", _READ):
        later, seconds = timed.get(_key(document), (0, 0.0))
        if document.get("status") == "ok" and here(document) and number < later:
            errors.setdefault(_key(document), math.log(document["forecast_s"] / seconds))
    return list(errors.values())


def _key(document: Mapping[str, Any]) -> str:
    """Return what tells a step from another one; what it has no word for is the default.

    A user's file may be another one today: there the step's calls tell, too.
    """
    names = _STEP if document.get("own") is None else (*_STEP, "program")
    # Breakdowns of earlier versions do not say where their images came from.
    known = {**document, "feed": document.get("feed") or "resident"}
    return json.dumps([known.get(name) or None for name in names], sort_keys=True)
